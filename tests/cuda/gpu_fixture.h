// What the tests of the CUDA back end share. A case is a function of a Device that gives back floats or bytes; it runs
// on the CPU back end once, whose bits are wanted, and on the CUDA back end under every schedule of the emulation. On a
// real card (LAYOVER_TEST_ON_CARD) there is one schedule.
#ifndef LAYOVER_TESTS_CUDA_GPU_FIXTURE_H_
#define LAYOVER_TESTS_CUDA_GPU_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/gpu_device.h"
#ifndef LAYOVER_TEST_ON_CARD
#include "kernels/emulation/settings.h"
#endif
#include "tests/kernels/kernel_fixture.h"

namespace layover::gpu_test {

// Memory of a device that lives as long as this.
class Memory {
 public:
  explicit Memory(Device* device) : device_(device), stream_(device->NewComputeStream()) {}

  Device* device() { return device_; }
  Stream* stream() { return stream_.get(); }

  template <typename T>
  T* Zeroed(size_t n) {
    auto buffer = device_->Allocate(n * sizeof(T));
    EXPECT_TRUE(buffer.ok()) << buffer.status().message();
    buffers_.push_back(std::move(buffer).value());
    return buffers_.back()->As<T>();
  }
  template <typename T>
  T* Put(const std::vector<T>& values) {
    T* memory = Zeroed<T>(values.size());
    stream_->CopyToDevice(memory, values.data(), values.size() * sizeof(T));
    Finish();
    return memory;
  }
  template <typename T>
  std::vector<T> Get(const T* memory, size_t n) {
    std::vector<T> values(n);
    stream_->CopyToHost(values.data(), memory, n * sizeof(T));
    Finish();
    return values;
  }
  void Finish() {
    const absl::Status status = stream_->Synchronize();
    ASSERT_TRUE(status.ok()) << status.message();
  }

 private:
  Device* const device_;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
  std::unique_ptr<Stream> stream_;
};

// A NaN equals a NaN, other values their bits.
template <typename T>
testing::AssertionResult SameValues(const std::vector<T>& got, const std::vector<T>& want) {
  if (got.size() != want.size()) return testing::AssertionFailure() << got.size() << " values, not " << want.size();
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], sizeof(T)) == 0) continue;
    if (got[i] != got[i] && want[i] != want[i]) continue;
    return testing::AssertionFailure() << fmt::format("value {} of {}: {} is not {}", i, got.size(), got[i], want[i]);
  }
  return testing::AssertionSuccess();
}

// Which schedules of the emulation: all, forward and random, reverse and warp depth.
enum class Schedules { kAll, kOuter, kInner };

#ifdef LAYOVER_TEST_ON_CARD
inline void ForEverySchedule(int, const std::function<void(Device*)>& body, Schedules = Schedules::kAll, uint64_t = 7) {
  auto device = gpu::GpuDevice::Open(0);
  ASSERT_TRUE(device.ok()) << device.status().message();
  body(device->get());
}
#else
inline void ForEverySchedule(int multiprocessors, const std::function<void(Device*)>& body,
                             Schedules schedules = Schedules::kAll, uint64_t seed = 7) {
  using emulation::Schedule;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  // The sanitizers see what they look for in any schedule, and are slow.
  constexpr Schedule kThese[] = {Schedule::kRandom};
  schedules = Schedules::kAll;
#else
  constexpr Schedule kThese[] = {Schedule::kForward, Schedule::kReverse, Schedule::kWarpDepth, Schedule::kRandom};
#endif
  for (const Schedule schedule : kThese) {
    const bool outer = schedule == Schedule::kForward || schedule == Schedule::kRandom;
    if (schedules != Schedules::kAll && outer != (schedules == Schedules::kOuter)) continue;
    emulation::Settings settings;
    settings.schedule = schedule;
    settings.seed = seed;
    settings.multiprocessors = multiprocessors;
    emulation::SetSettings(settings);
    SCOPED_TRACE(fmt::format("schedule {}, seed {}", static_cast<int>(schedule), settings.seed));
    auto device = gpu::GpuDevice::Open(0);
    ASSERT_TRUE(device.ok()) << device.status().message();
    body(device->get());
    if (testing::Test::HasFatalFailure()) break;
  }
  emulation::SetSettings({});
}
#endif

// What the CPU back end makes of `body`, after the CUDA back end has made the same of it under every schedule.
template <typename T>
std::vector<T> SameOnBoth(const std::function<std::vector<T>(Device*)>& body, int multiprocessors = 4,
                          Schedules schedules = Schedules::kAll) {
  const std::unique_ptr<Device> cpu = kernel_test::OpenCpu(kernel_test::BestVariant());
  const std::vector<T> want = body(cpu.get());
  ForEverySchedule(
      multiprocessors, [&](Device* device) { ASSERT_TRUE(SameValues(body(device), want)); }, schedules);
  return want;
}

}  // namespace layover::gpu_test

#endif  // LAYOVER_TESTS_CUDA_GPU_FIXTURE_H_
