// exp, log and sums whose bits are the same on every machine: only single IEEE operations in a written order, four
// lanes at a time by compiler vectors (the library's own exp and log differ in the last bit from processor to
// processor).
#ifndef LAYOVER_STAGE_WORKER_FIXED_MATH_H_
#define LAYOVER_STAGE_WORKER_FIXED_MATH_H_

#include <cstddef>
#include <span>
#include <vector>

namespace layover {

inline constexpr size_t kSumBlock = 64;

// out[i] = exp((logits[i] - max) * scale) for logits no greater than `max` and a scale above 0; 0 for NaN and below
// e^-87. Relative error below 3e-7. `out` has logits.size() places and may not alias it.
void ScaledExp(std::span<const float> logits, float max, float scale, float* out);

// Sum of what ScaledExp with a scale of 1 would write, blocks (see BlockSums) added in ascending order.
double SumOfExp(std::span<const float> logits, float max);

// Sums of blocks of kSumBlock values, the last one shorter: eight float lanes by index modulo 8, each in ascending
// order, then added in double, lane 0 first.
std::vector<double> BlockSums(std::span<const float> values);

// The largest value, +infinity as the largest float, NaN left out; -infinity if there is none.
float MaxOf(std::span<const float> values);

// Natural logarithm of a finite x > 0; absolute error below 1e-15 near 1, relative elsewhere.
double FixedLog(double x);

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_FIXED_MATH_H_
