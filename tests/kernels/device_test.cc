// Opening devices by name, what is refused and in which words, memory, K/V type names.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/limits.h"
#include "kernels/plugin.h"
#include "tests/kernels/kernel_fixture.h"

namespace layover::kernel_test {
namespace {

absl::Status OpenStatus(std::string_view name, const DeviceOptions& options = {}) {
  return OpenDevice(name, options).status();
}

class ScopedEnvironment {
 public:
  ScopedEnvironment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~ScopedEnvironment() { unsetenv(name_); }

 private:
  const char* const name_;
};

TEST(OpenDevice, NamesOfNoDeviceAreRefused) {
  for (const char* name :
       {"", "gpu", "cpu:0", "cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999999999", "CPU"}) {
    EXPECT_EQ(OpenStatus(name).code(), absl::StatusCode::kInvalidArgument) << name;
  }
  EXPECT_EQ(OpenStatus("gpu").message(), "device \"gpu\": expected cpu, cuda:N or emu:N");
}

TEST(OpenDevice, MissingPluginIsAnErrorThatNamesIt) {
  for (const char* kind : {"cuda", "emu"}) {
    const auto device = OpenPluginDevice("/nonexistent", kind, 3, {});
    EXPECT_EQ(device.status().code(), absl::StatusCode::kUnavailable);
    const std::string message(device.status().message());
    EXPECT_NE(message.find(fmt::format("{}:3", kind)), std::string::npos) << message;
    EXPECT_NE(message.find(fmt::format("/nonexistent/liblayover_{}.so is missing", kind)), std::string::npos)
        << message;
  }
}

TEST(OpenDevice, FileThatIsNoPluginIsAnError) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("layover-plugin-{}", getpid());
  std::filesystem::create_directory(folder);
  std::ofstream(folder / "liblayover_cuda.so") << "not a library";
  const absl::Status status = OpenPluginDevice(folder.string(), "cuda", 0, {}).status();
  std::filesystem::remove_all(folder);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(status.message()).find("cannot be loaded"), std::string::npos) << status.message();
}

TEST(OpenDevice, ThreadsAndInstructionSetsAreChecked) {
  EXPECT_EQ(OpenStatus("cpu", {0, ""}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenStatus("cpu", {limits::kMaxThreadsPerStage + 1, ""}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenStatus("cpu", {1, "sse"}).message(), "device option isa: \"sse\" is none of scalar, avx2, avx512");
  EXPECT_TRUE(OpenStatus("cpu", {2, "scalar"}).ok());
  if (BestCpuIsa() < CpuIsa::kAvx512) {
    EXPECT_EQ(OpenStatus("cpu", {1, "avx512"}).code(), absl::StatusCode::kUnavailable);
  }
}

TEST(OpenDevice, EnvironmentForcesAnInstructionSet) {
  const auto isa_of = [](const DeviceOptions& options) { return CpuDevice::Open(options).value()->isa(); };
  EXPECT_EQ(isa_of({}), BestCpuIsa());
  const ScopedEnvironment environment("LAYOVER_CPU_ISA", "scalar");
  EXPECT_EQ(isa_of({}), CpuIsa::kScalar);
  EXPECT_EQ(isa_of({1, std::string(CpuIsaName(BestCpuIsa()))}), BestCpuIsa());
  setenv("LAYOVER_CPU_ISA", "neon", 1);
  EXPECT_EQ(OpenStatus("cpu").message(), "LAYOVER_CPU_ISA: \"neon\" is none of scalar, avx2, avx512");
}

TEST(CpuDevice, FingerprintIsThatOfTheArithmeticOnly) {
  const std::string fingerprint = OpenCpu({CpuIsa::kScalar, 1})->NumericsFingerprint();
  EXPECT_EQ(fingerprint.find("cpu-"), 0u);
  for (const Variant& variant : Variants()) EXPECT_EQ(OpenCpu(variant)->NumericsFingerprint(), fingerprint);
}

TEST(CpuDevice, MemoryComesZeroedAndAligned) {
  const std::unique_ptr<Device> device = OpenCpu(BestVariant());
  EXPECT_GT(device->MemoryBytes(), 1 << 20);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100}, size_t{5} << 20}) {
    const auto buffer = device->Allocate(bytes);
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ((*buffer)->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>((*buffer)->data()) % 64, 0u);
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ((*buffer)->As<uint8_t>()[i], 0);
    std::memset((*buffer)->data(), 1, bytes);
  }
}

TEST(CpuDevice, TooMuchMemoryIsRefusedWithTheSize) {
  const absl::Status status = OpenCpu(BestVariant())->Allocate(size_t{1} << 60).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(status.message()).find("1152921504606846976"), std::string::npos);
}

TEST(CpuDevice, SaysWhichKvItTakes) {
  const std::unique_ptr<Device> device = OpenCpu(BestVariant());
  for (const int dim : {8, 64, 80, 96, 128, 256}) EXPECT_TRUE(device->SupportsKv(KvType::kF16, dim)) << dim;
  for (const int dim : {0, 4, 60, limits::kMaxHeadDim + 8}) EXPECT_FALSE(device->SupportsKv(KvType::kF32, dim)) << dim;
  EXPECT_TRUE(device->SupportsKv(KvType::kQ8_0, 96));
  EXPECT_FALSE(device->SupportsKv(KvType::kQ8_0, 80));
  EXPECT_EQ(device->KvPoolBytes(KvType::kF16, 10, 3, 64), 10u * 3 * 64 * 64 * 2);
  EXPECT_EQ(device->KvPoolBytes(KvType::kQ8_0, 10, 3, 64), 10u * 3 * 64 * 68);
}

TEST(KvTypes, HaveNamesAndRowSizes) {
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kQ8_0, KvType::kQ4_0}) {
    KvType parsed = KvType::kF32;
    EXPECT_TRUE(ParseKvType(KvTypeName(type), &parsed));
    EXPECT_EQ(parsed, type);
  }
  KvType untouched = KvType::kQ8_0;
  EXPECT_FALSE(ParseKvType("bf16", &untouched));
  EXPECT_EQ(untouched, KvType::kQ8_0);
  EXPECT_EQ(KvTypeName(KvType::kQ8_0), "q8_0");
  EXPECT_EQ(KvRowBytes(KvType::kF32, 3, 64), 768u);
  EXPECT_EQ(KvRowBytes(KvType::kF16, 3, 64), 384u);
  EXPECT_EQ(KvRowBytes(KvType::kQ8_0, 3, 64), 204u);
  EXPECT_EQ(KvRowBytes(KvType::kQ4_0, 3, 64), 108u);
}

TEST(CpuStream, EventsAreDoneAndCopiesAreMade) {
  const std::unique_ptr<Device> device = OpenCpu({BestCpuIsa(), 2});
  for (const bool compute : {true, false}) {
    const std::unique_ptr<Stream> stream = compute ? device->NewComputeStream() : device->NewCopyStream();
    float values[4] = {1, 2, 3, 4};
    float copy[4] = {};
    stream->CopyToDevice(copy, values, sizeof(values));
    EXPECT_EQ(copy[3], 4);
    stream->Zero(copy, 8);
    stream->CopyToHost(values, copy, 8);
    EXPECT_EQ(values[1], 0);
    EXPECT_EQ(values[2], 3);
    EXPECT_TRUE(stream->Record()->Done());
    EXPECT_TRUE(stream->Synchronize().ok());
  }
}

}  // namespace
}  // namespace layover::kernel_test
