// Memory of this machine, and which parts the rest of the CPU back end is put together from.
#include "kernels/cpu/cpu_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "common/digest.h"
#include "common/host_memory.h"
#include "common/limits.h"
#include "common/status.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/cpu_stream.h"
#include "kernels/cpu/kv_pages.h"
#include "kernels/cpu/math_tables.h"

namespace layover {
namespace {

// Goes up when any float of the back end may come out otherwise than before: an order of sums, a rounding, a formula.
constexpr int kArithmeticVersion = 1;
constexpr size_t kLargeBytes = limits::kMiB;  // rounding these up to huge pages wastes less than it gains
constexpr size_t kCacheLineBytes = 64;

// From the heap.
class SmallBuffer : public DeviceBuffer {
 public:
  SmallBuffer(void* data, size_t bytes) {
    data_ = data;
    bytes_ = bytes;
  }
  ~SmallBuffer() override { std::free(data_); }
};

// A mapping of its own: comes zeroed, costs nothing until touched, and asks for huge pages, without which attention
// walks page tables for every few rows of K/V (a third of the speed of decode at 4,096 tokens).
class LargeBuffer : public DeviceBuffer {
 public:
  // False when the system gives no memory.
  bool Map(size_t bytes) {
    const size_t whole = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    mapped_ = whole + kHugePageBytes;  // so that it holds an aligned part
    mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) return false;
    const uintptr_t address = reinterpret_cast<uintptr_t>(mapping_);
    data_ = reinterpret_cast<void*>((address + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes);
    bytes_ = bytes;
    madvise(data_, whole, MADV_HUGEPAGE);  // a wish; small pages do as well
    return true;
  }
  ~LargeBuffer() override {
    if (mapping_ != MAP_FAILED) munmap(mapping_, mapped_);
  }

 private:
  void* mapping_ = MAP_FAILED;
  size_t mapped_ = 0;
};

template <typename T, size_t kCount>
void AddTable(const T (&table)[kCount], DigestStream* digest) {
  digest->Update(table, sizeof(table));
}

absl::StatusOr<CpuIsa> ChooseIsa(std::string_view wanted) {
  std::string_view source = "device option isa";
  if (wanted.empty()) {
    const char* const environment = std::getenv("LAYOVER_CPU_ISA");
    if (environment != nullptr) wanted = environment;
    source = "LAYOVER_CPU_ISA";
  }
  if (wanted.empty()) return BestCpuIsa();
  CpuIsa isa;
  if (!ParseCpuIsa(wanted, &isa)) {
    return InvalidArgument("{}: \"{}\" is none of scalar, avx2, avx512", source, wanted);
  }
  if (isa > BestCpuIsa()) {
    return Unavailable("{}: this machine has no {} (its best is {})", source, wanted, CpuIsaName(BestCpuIsa()));
  }
  return isa;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuDevice>> CpuDevice::Open(const DeviceOptions& options) {
  if (options.threads < 1 || options.threads > limits::kMaxThreadsPerStage) {
    return InvalidArgument("threads: {} is not in 1 ... {}", options.threads, limits::kMaxThreadsPerStage);
  }
  ASSIGN_OR_RETURN(const CpuIsa isa, ChooseIsa(options.isa));
  return std::unique_ptr<CpuDevice>(new CpuDevice(isa, options.threads));
}

std::string CpuDevice::NumericsFingerprint() const {
  DigestStream digest;
  const float reductions[] = {kLog2E, kLn2High, kLn2Low};
  const double reductions_of_angles[] = {kTwoOverPi, kHalfPiHigh, kHalfPiLow};
  AddTable(reductions, &digest);
  AddTable(kExpPolynomial, &digest);
  AddTable(reductions_of_angles, &digest);
  AddTable(kSinPolynomial, &digest);
  AddTable(kCosPolynomial, &digest);
  return fmt::format("cpu-{}-{}", kArithmeticVersion, digest.Value().Hex().substr(0, 16));
}

bool CpuDevice::Supports(OpFamily) const {
  return true;
}
bool CpuDevice::SupportsWeight(WeightType type) const {
  return CpuSupportsWeight(type);
}
bool CpuDevice::SupportsKv(KvType type, int head_dim) const {
  return CpuSupportsKv(type, head_dim);
}

int64_t CpuDevice::MemoryBytes() const {
  return HostMemoryBytes();
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> CpuDevice::Allocate(size_t bytes) {
  const absl::Status too_much = ResourceExhausted("cpu: no memory for a buffer of {} bytes", bytes);
  if (bytes > static_cast<uint64_t>(MemoryBytes())) return too_much;
  if (bytes < kLargeBytes) {
    const size_t rounded = (std::max<size_t>(bytes, 1) + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
    void* const data = std::aligned_alloc(kCacheLineBytes, rounded);
    if (data == nullptr) return too_much;
    std::memset(data, 0, rounded);
    return std::make_unique<SmallBuffer>(data, bytes);
  }
  auto buffer = std::make_unique<LargeBuffer>();
  if (!buffer->Map(bytes)) return too_much;
  // The first pages of a pool are not announced by any before them, nor is its last one, where proofs are read.
  auto* const begin = static_cast<uint8_t*>(buffer->data());
  const size_t last = (bytes - 1) / kHugePageBytes * kHugePageBytes;
  prefault_->Fetch({begin, std::min(bytes, kHugePageBytes)});
  if (last > 0) prefault_->Fetch({begin + last, bytes - last});
  return buffer;
}

absl::StatusOr<std::unique_ptr<PackedWeight>> CpuDevice::PackWeight(const WeightSource& source) {
  return PackCpuWeight(source, &arena_);
}

size_t CpuDevice::PackedWeightBytes(WeightType type, int experts, int rows, int cols) const {
  return PackedCpuWeightBytes(type, experts, rows, cols);
}

size_t CpuDevice::ActivationBytes(ActivationFormat format, int n_rows, int dim) const {
  return CpuActivationBytes(format, n_rows, dim);
}

size_t CpuDevice::KvPoolBytes(KvType type, int n_pages, int kv_heads, int head_dim) const {
  return CpuKvHeadBytes(type, head_dim) * static_cast<size_t>(kv_heads) * static_cast<size_t>(n_pages);
}

std::unique_ptr<Stream> CpuDevice::NewComputeStream() {
  return std::make_unique<CpuStream>(isa_, threads_, prefault_);
}
std::unique_ptr<Stream> CpuDevice::NewCopyStream() {
  return std::make_unique<CpuStream>(isa_, 1, prefault_);
}

}  // namespace layover
