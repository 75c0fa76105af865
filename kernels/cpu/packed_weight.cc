// The arena and the packing of whole weights.
#include "kernels/cpu/packed_weight.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <utility>

#include "common/check.h"
#include "common/limits.h"
#include "common/status.h"
#include "kernels/cpu/packed_format.h"
#include "kernels/cpu/packed_layout.h"
#include "kernels/dequantize.h"

namespace layover {
namespace {

constexpr size_t kHugePageBytes = 2 * limits::kMiB;
// One mapping for many weights: their ends share huge pages. Untouched pages of it take no memory.
constexpr size_t kMappingBytes = 64 * limits::kMiB;

constexpr size_t RoundUp(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

// begin is aligned to huge pages within a mapping one huge page longer.
struct CpuWeightArena::Mapping {
  explicit Mapping(size_t bytes) : mapped_bytes(bytes + kHugePageBytes) {
    base = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return;
    begin = reinterpret_cast<uint8_t*>(RoundUp(reinterpret_cast<uintptr_t>(base), kHugePageBytes));
    // A system without huge pages answers with an error and serves small ones.
    (void)madvise(begin, bytes, MADV_HUGEPAGE);
  }
  ~Mapping() {
    if (base != MAP_FAILED) munmap(base, mapped_bytes);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  size_t mapped_bytes;
  void* base;
  uint8_t* begin = nullptr;
};

CpuWeightArena::CpuWeightArena() = default;
CpuWeightArena::~CpuWeightArena() = default;

absl::StatusOr<std::shared_ptr<uint8_t>> CpuWeightArena::Allocate(size_t bytes) {
  const size_t rounded = RoundUp(std::max<size_t>(bytes, 1), 64);
  std::lock_guard lock(mutex_);
  if (rounded > kMappingBytes / 2) {
    auto own = std::make_shared<Mapping>(RoundUp(rounded, kHugePageBytes));
    if (own->begin == nullptr) return ResourceExhausted("no memory for weights: {} bytes were asked for", bytes);
    uint8_t* data = own->begin;
    return std::shared_ptr<uint8_t>(std::move(own), data);
  }
  if (current_ == nullptr || used_ + rounded > kMappingBytes) {
    auto fresh = std::make_shared<Mapping>(kMappingBytes);
    if (fresh->begin == nullptr) return ResourceExhausted("no memory for weights: {} bytes were asked for", bytes);
    current_ = std::move(fresh);
    used_ = 0;
  }
  uint8_t* data = current_->begin + used_;
  used_ += rounded;
  return std::shared_ptr<uint8_t>(current_, data);
}

bool CpuSupportsWeight(WeightType type) {
  return FindPackedFormat(type) != nullptr;
}

size_t PackedCpuWeightBytes(WeightType type, int experts, int rows, int cols) {
  const PackedFormat* format = FindPackedFormat(type);
  LAYOVER_CHECK(format != nullptr && experts > 0 && rows > 0 && cols > 0 && cols % format->super_cols == 0);
  const size_t tiles = (static_cast<size_t>(rows) + kTileRows - 1) / kTileRows;
  return static_cast<size_t>(experts) * tiles * TileBytes(*format, cols);
}

namespace {

absl::Status CheckSource(const WeightSource& source, const PackedFormat* format) {
  const WeightTypeTraits* info = WeightTypeInfo(static_cast<uint32_t>(source.type));
  if (info == nullptr) return InvalidArgument("weight type {} is unknown", static_cast<uint32_t>(source.type));
  if (format == nullptr) return InvalidArgument("the CPU back end has no product for {} weights", info->name);
  if (source.experts <= 0 || source.rows <= 0 || source.cols <= 0 || source.experts > limits::kMaxExperts) {
    return InvalidArgument("a weight of {} experts, {} rows, {} columns", source.experts, source.rows, source.cols);
  }
  if (source.cols % format->super_cols != 0) {
    return InvalidArgument("{} columns are no multiple of {}, the block of {}", source.cols, format->super_cols,
                           info->name);
  }
  const size_t row_bytes = RowBytes(source.type, source.cols);
  const size_t all_rows = static_cast<size_t>(source.experts) * source.rows;
  if (source.bytes / row_bytes != all_rows || source.bytes % row_bytes != 0) {
    return InvalidArgument("{} bytes for {} x {} x {} {} weights, which take {} a row", source.bytes, source.experts,
                           source.rows, source.cols, info->name, row_bytes);
  }
  LAYOVER_CHECK(source.data != nullptr);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackedWeight>> PackCpuWeight(const WeightSource& source, CpuWeightArena* arena) {
  const PackedFormat* format = FindPackedFormat(source.type);
  RETURN_IF_ERROR(CheckSource(source, format));
  auto weight = std::make_unique<CpuPackedWeight>();
  weight->type = source.type;
  weight->experts = source.experts;
  weight->rows = source.rows;
  weight->cols = source.cols;
  weight->activation = format->activation;
  weight->device_bytes = PackedCpuWeightBytes(source.type, source.experts, source.rows, source.cols);
  weight->tile_bytes_ = TileBytes(*format, source.cols);
  ASSIGN_OR_RETURN(weight->data_, arena->Allocate(weight->device_bytes));

  const size_t row_bytes = RowBytes(source.type, source.cols);
  const auto* expert_rows = static_cast<const uint8_t*>(source.data);
  uint8_t* tile = weight->data_.get();
  for (int expert = 0; expert < source.experts; ++expert, expert_rows += source.rows * row_bytes) {
    for (int row = 0; row < source.rows; row += kTileRows, tile += weight->tile_bytes_) {
      std::array<const uint8_t*, kTileRows> rows{};
      for (int lane = 0; lane < kTileRows && row + lane < source.rows; ++lane) {
        rows[lane] = expert_rows + (row + lane) * row_bytes;
      }
      PackTile(*format, rows.data(), source.cols, tile);
    }
  }
  return weight;
}

}  // namespace layover
