// Emulated queues: late, each in its own order, errors for good.
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "kernels/cuda/gpu.h"
#include "kernels/emulation/foreign_stream.h"

namespace layover::gpu {
namespace {

void AddOne(int* word) {
  if (threadIdx.x == 0) *word += 1;
}
void NeverMeets(int) {
  if (threadIdx.x == 0) __syncthreads();
}

TEST(Queue, RunsLateAndInOrder) {
  const std::unique_ptr<Queue> queue = NewQueue(0);
  int host = 5, device = 0, back = 0;
  queue->CopyToDevice(&device, &host, sizeof(int));
  Launch("AddOne", AddOne, {1}, 32, 0, queue.get(), &device);
  Launch("AddOne", AddOne, {1}, 32, 0, queue.get(), &device);
  queue->CopyToHost(&back, &device, sizeof(int));
  EXPECT_EQ(back, 0);
  host = 7;  // it is read when the copy runs
  EXPECT_TRUE(queue->Synchronize().ok());
  EXPECT_EQ(back, 9);
}

TEST(Queue, EventsComeTrueBySomebodyAsking) {
  const std::unique_ptr<Queue> queue = NewQueue(0);
  int device = 0;
  Launch("AddOne", AddOne, {1}, 32, 0, queue.get(), &device);
  const std::unique_ptr<QueueEvent> event = queue->Record();
  EXPECT_FALSE(event->Done());
  int asked = 0;
  while (!event->Done()) ASSERT_LT(++asked, 10);
  EXPECT_EQ(device, 1);
}

// Two queues that write one word without waiting for each other: both orders are seen.
TEST(Queue, QueuesAreInterleavedByTheSeed) {
  std::set<int> results;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    emulation::Settings settings;
    settings.seed = seed;
    emulation::SetSettings(settings);
    const std::unique_ptr<Queue> a = NewQueue(0), b = NewQueue(0);
    int word = 0;
    const int one = 1, two = 2;
    a->CopyToDevice(&word, &one, sizeof(int));
    b->CopyToDevice(&word, &two, sizeof(int));
    EXPECT_TRUE(a->Synchronize().ok());
    EXPECT_TRUE(b->Synchronize().ok());
    results.insert(word);
  }
  emulation::SetSettings({});
  EXPECT_EQ(results, (std::set<int>{1, 2}));
}

TEST(Queue, AnErrorIsForGoodAndNothingRunsAfterIt) {
  const std::unique_ptr<Queue> queue = NewQueue(0);
  int device = 0;
  Launch("NeverMeets", NeverMeets, {1}, 64, 0, queue.get(), 0);
  Launch("AddOne", AddOne, {1}, 32, 0, queue.get(), &device);
  const absl::Status status = queue->Synchronize();
  EXPECT_NE(std::string(status.message()).find("queue_test.cc"), std::string::npos) << status.message();
  EXPECT_EQ(queue->Synchronize(), status);
  EXPECT_EQ(device, 0);
  const std::unique_ptr<Queue> other = NewQueue(0);
  EXPECT_TRUE(other->Synchronize().ok());
}

TEST(Queue, MemoryBeginsAsPoison) {
  void* memory = AllocateOnDevice(0, 100).value();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(static_cast<uint8_t*>(memory)[i], 0xff);
  FreeOnDevice(0, memory);
  EXPECT_EQ(AllocateOnDevice(0, size_t{1} << 50).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(OpenCard(1000).status().code(), absl::StatusCode::kUnavailable);
}

// Another library's work holds up what is behind it, and nothing else; it goes on although nobody asks.
TEST(Queue, AnotherLibrarysStepIsAskedUntilItIsDone) {
  const std::unique_ptr<Queue> queue = NewQueue(0), other = NewQueue(0);
  std::atomic<int> asked{0};
  std::atomic<bool> there{false};
  CudaStream(queue.get())->Enqueue([&] {
    ++asked;
    return there ? ForeignStep::kDone : ForeignStep::kWaiting;
  });
  const std::unique_ptr<QueueEvent> event = queue->Record();
  EXPECT_FALSE(event->Done());
  int word = 0;
  const int one = 1;
  other->CopyToDevice(&word, &one, sizeof(int));
  EXPECT_TRUE(other->Synchronize().ok());
  EXPECT_EQ(word, 1);
  const int before = asked;
  while (asked < before + 3) std::this_thread::yield();
  EXPECT_FALSE(event->Done());
  there = true;
  EXPECT_TRUE(queue->Synchronize().ok());
  EXPECT_TRUE(event->Done());
}

}  // namespace
}  // namespace layover::gpu
