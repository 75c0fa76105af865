#include "tests/gpu/cublas.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#include "common/status.h"

namespace layover::gpu {
namespace {

absl::StatusOr<void*> LoadLibrary() {
  const char* const asked = std::getenv("LAYOVER_CUBLAS");
  const bool emulated = std::string(BackEndKind()) == "emu";
  std::vector<std::string> names = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11"};
  if (asked != nullptr && *asked != '\0') {
    names = {asked};
  } else if (emulated) {
    return Unavailable("emulated cards have no cuBLAS");
  }
  std::string why;
  for (const std::string& name : names) {
    // Never closed: its threads may outlive the last product.
    if (void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) {
      if (!emulated || dlsym(library, kCublasStandInSymbol) != nullptr) return library;
      return Unavailable("{} is no stand-in, which is what emulated cards need", name);
    }
    if (why.empty()) why = dlerror();
  }
  return Unavailable("{} (LAYOVER_CUBLAS names another file)", why);
}

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Cublas>> Cublas::Open(Queue* queue) {
  ASSIGN_OR_RETURN(void* const library, LoadLibrary());
  std::unique_ptr<Cublas> cublas(new Cublas);
  int (*create)(CublasContext**) = nullptr;
  int (*set_stream)(CublasContext*, CUstream_st*) = nullptr;
  int (*get_version)(CublasContext*, int*) = nullptr;
  const bool all = Find(library, "cublasCreate_v2", &create) && Find(library, "cublasSetStream_v2", &set_stream) &&
                   Find(library, "cublasGetVersion_v2", &get_version) &&
                   Find(library, "cublasDestroy_v2", &cublas->destroy_) &&
                   Find(library, "cublasGemmEx", &cublas->gemm_);
  if (!all) return Unavailable("the library lacks functions of cuBLAS 11 or later");
  int result = create(&cublas->handle_);
  if (result != kCublasSuccess) {
    cublas->handle_ = nullptr;
    return Unavailable("cublasCreate answers {}", result);
  }
  result = set_stream(cublas->handle_, CudaStream(queue));
  if (result == kCublasSuccess) result = get_version(cublas->handle_, &cublas->version_);
  if (result != kCublasSuccess) return Unavailable("cuBLAS answers {}", result);
  return cublas;
}

Cublas::~Cublas() {
  if (handle_ != nullptr) destroy_(handle_);
}

std::string Cublas::Version() const {
  const int major = version_ >= 100000 ? 10000 : 1000;  // 130100 is 13.1.0, and 11402 was 11.4.2
  return fmt::format("{}.{}.{}", version_ / major, version_ % major / 100, version_ % 100);
}

// cuBLAS counts by columns: its A is w as it lies, transposed, its C is out.
absl::Status Cublas::Multiply(const Product& product) {
  const auto& [rows, n_out, cols] = product.shape;
  const bool integers = product.kind == Kind::kInt8;
  const int in = integers ? kCuda8I : kCuda16F, out = integers ? kCuda32I : kCuda16F;
  const int32_t one_int = 1, zero_int = 0;
  const float one_float = 1, zero_float = 0;
  const void* const one = integers ? static_cast<const void*>(&one_int) : &one_float;
  const void* const zero = integers ? static_cast<const void*>(&zero_int) : &zero_float;
  const int result =
      gemm_(handle_, kCublasTransposed, kCublasPlain, n_out, rows, cols, one, product.w, in, cols, product.x, in, cols,
            zero, product.out, out, n_out, integers ? kCublasCompute32I : kCublasCompute32F, kCublasDefault);
  if (result != kCublasSuccess) return Unavailable("cublasGemmEx answers {}", result);
  return absl::OkStatus();
}

}  // namespace layover::gpu
