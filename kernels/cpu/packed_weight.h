// Weights in the layout that the CPU's products read (kernels/cpu/packed_layout.h has it byte by byte), and the memory
// they live in. One layout serves every instruction set.
#ifndef LAYOVER_KERNELS_CPU_PACKED_WEIGHT_H_
#define LAYOVER_KERNELS_CPU_PACKED_WEIGHT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace layover {

// Memory for weights: large mappings that ask for huge pages (a decode step reads every weight once, and small pages
// cost it a fifth of its speed), shared by many weights. A mapping is freed with the last weight in it, which may be
// after the arena. Thread-safe.
class CpuWeightArena {
 public:
  CpuWeightArena();
  ~CpuWeightArena();
  CpuWeightArena(const CpuWeightArena&) = delete;
  CpuWeightArena& operator=(const CpuWeightArena&) = delete;

  // Zeroed, aligned to 64. ResourceExhausted with the size asked for. The result keeps its mapping alive.
  absl::StatusOr<std::shared_ptr<uint8_t>> Allocate(size_t bytes);

 private:
  struct Mapping;
  std::mutex mutex_;
  std::shared_ptr<Mapping> current_;  // guarded by mutex_
  size_t used_ = 0;                   // of current_; guarded by mutex_
};

class CpuPackedWeight : public PackedWeight {
 public:
  const uint8_t* data() const { return data_.get(); }
  // Tiles are 16 output rows over all cols; tiles of one expert, and experts, stand back to back.
  size_t tile_bytes() const { return tile_bytes_; }
  int tiles() const { return (rows + 15) / 16; }  // of one expert

 private:
  friend absl::StatusOr<std::unique_ptr<PackedWeight>> PackCpuWeight(const WeightSource&, CpuWeightArena*);
  std::shared_ptr<uint8_t> data_;
  size_t tile_bytes_ = 0;
};

bool CpuSupportsWeight(WeightType type);

// Bytes of the packed form; `type` is supported and cols is a multiple of its block.
size_t PackedCpuWeightBytes(WeightType type, int experts, int rows, int cols);

// InvalidArgument when the type is not supported, a size is not positive, cols is no multiple of the type's block, or
// bytes do not match; ResourceExhausted when there is no memory.
absl::StatusOr<std::unique_ptr<PackedWeight>> PackCpuWeight(const WeightSource& source, CpuWeightArena* arena);

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_PACKED_WEIGHT_H_
