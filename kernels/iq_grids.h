// The codebooks of GGUF's IQ types. Entry n of a grid packs its coordinates' codes, coordinate 0 in the least significant
// bits; entries ascend.
#ifndef LAYOVER_KERNELS_IQ_GRIDS_H_
#define LAYOVER_KERNELS_IQ_GRIDS_H_

#include <cstdint>

namespace layover {

// 8 coordinates of 2 bits: 8, 25, 43.
extern const uint16_t kIq2xxsGrid[256];
extern const uint16_t kIq2xsGrid[512];
extern const uint16_t kIq2sGrid[1024];
// 4 coordinates of 3 bits: 4, 12, 20, 28, 36, 44, 52, 62 and 1, 3, 5 ... 15.
extern const uint16_t kIq3xxsGrid[256];
extern const uint16_t kIq3sGrid[512];
// 8 coordinates of 2 bits: -1, 0, 1.
extern const uint16_t kIq1Grid[2048];

}  // namespace layover

#endif  // LAYOVER_KERNELS_IQ_GRIDS_H_
