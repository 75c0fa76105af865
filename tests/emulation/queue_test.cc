// Emulated queues: late, each in its own order, errors for good; and their graphs.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/gpu.h"
#include "kernels/emulation/foreign_stream.h"
#include "kernels/emulation/host_copies.h"

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

// Whatever the seed: what waits for another queue's event comes after it, and an error does not hold it up.
TEST(Queue, WaitsForAnEventOfAnotherQueue) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    emulation::Settings settings;
    settings.seed = seed;
    emulation::SetSettings(settings);
    const std::unique_ptr<Queue> a = NewQueue(0), b = NewQueue(0);
    int word = 0;
    const int one = 1, two = 2;
    a->CopyToDevice(&word, &one, sizeof(int));
    b->WaitFor(*a->Record());  // the event itself may go at once
    b->CopyToDevice(&word, &two, sizeof(int));
    EXPECT_TRUE(b->Synchronize().ok());
    EXPECT_EQ(word, 2);
    Launch("NeverMeets", NeverMeets, {1}, 64, 0, a.get(), 0);
    b->WaitFor(*a->Record());
    EXPECT_TRUE(b->Synchronize().ok());
    EXPECT_FALSE(a->Synchronize().ok());
    // A queue that goes while it waits.
    const std::unique_ptr<Queue> c = NewQueue(0);
    c->CopyToDevice(&word, &one, sizeof(int));
    NewQueue(0)->WaitFor(*c->Record());
    EXPECT_EQ(word, 1);
  }
  emulation::SetSettings({});
}

TEST(Queue, TellsInWhichPiecesAndThroughWhichMemoryCopiesWent) {
  const std::unique_ptr<Queue> queue = NewQueue(0);
  std::vector<char> host(300), device(300);
  queue->CopyToHost(host.data(), device.data(), 1);  // nobody watches yet
  ASSERT_TRUE(PinHostMemory(0, host.data() + 100, 100));
  emulation::WatchHostCopies();
  queue->CopyToHost(host.data() + 100, device.data(), 100);
  queue->CopyToDevice(device.data(), host.data() + 150, 50);
  queue->CopyToHost(host.data() + 99, device.data(), 2);
  queue->CopyToHost(host.data() + 199, device.data(), 2);
  queue->CopyToHost(host.data(), device.data(), 7);
  const std::vector<emulation::HostCopy> copies = emulation::TakeHostCopies();
  ASSERT_EQ(copies.size(), 5u);
  EXPECT_TRUE(copies[0].to_host && copies[0].pinned && copies[0].bytes == 100);
  EXPECT_TRUE(!copies[1].to_host && copies[1].pinned && copies[1].bytes == 50);
  for (size_t i = 2; i < 5; ++i) EXPECT_FALSE(copies[i].pinned) << i;
  EXPECT_TRUE(emulation::TakeHostCopies().empty());
  UnpinHostMemory(0, host.data() + 100);
  emulation::Settings settings;
  settings.most_pinned = 99;
  emulation::SetSettings(settings);
  EXPECT_FALSE(PinHostMemory(0, host.data(), 100));
  emulation::SetSettings({});
}

// --- graphs

TEST(QueueGraph, RunsLateAndAsOftenAsItIsLaunched) {
  const std::unique_ptr<Queue> queue = NewQueue(0);
  int device = 5, other = 0;
  emulation::TakeLaunches();
  ASSERT_TRUE(queue->BeginCapture().ok());
  Launch("AddOne", AddOne, {1}, 32, 0, queue.get(), &device);
  queue->CopyOnDevice(&other, &device, sizeof(int));
  queue->Fill(&device, 0, sizeof(int));
  const auto graph = queue->EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  EXPECT_TRUE(queue->Synchronize().ok());
  EXPECT_EQ(device, 5) << "capturing runs nothing";
  (*graph)->Launch();
  Launch("AddOne", AddOne, {1}, 32, 0, queue.get(), &other);
  EXPECT_EQ(device, 5);
  EXPECT_TRUE(queue->Synchronize().ok());
  EXPECT_EQ(other, 7);
  (*graph)->Launch();
  EXPECT_TRUE(queue->Synchronize().ok());
  EXPECT_EQ(other, 1);
  const emulation::Launches launches = emulation::TakeLaunches();
  EXPECT_EQ(launches.graphs, 2);
  EXPECT_EQ(launches.kernels, 1);
}

TEST(QueueGraph, MayGoWhileItRuns) {
  const std::unique_ptr<Queue> queue = NewQueue(0);
  int device = 0;
  {
    ASSERT_TRUE(queue->BeginCapture().ok());
    Launch("AddOne", AddOne, {1}, 32, 0, queue.get(), &device);
    const auto graph = queue->EndCapture();
    (*graph)->Launch();
  }
  EXPECT_TRUE(queue->Synchronize().ok());
  EXPECT_EQ(device, 1);
}

TEST(QueueGraph, WhatDoesNotBelongInOneIsRefused) {
  int device = 0, host = 0;
  void* const memory = AllocateOnDevice(0, 16).value();
  const std::unique_ptr<Queue> other = NewQueue(0);
  const std::unique_ptr<QueueEvent> event = other->Record();
  const std::pair<const char*, std::function<void(Queue*)>> misuses[] = {
      {"a copy to the card in a graph", [&](Queue* queue) { queue->CopyToDevice(&device, &host, sizeof(int)); }},
      {"a copy to the host in a graph", [&](Queue* queue) { queue->CopyToHost(&host, &device, sizeof(int)); }},
      {"an event in a graph", [&](Queue* queue) { queue->Record(); }},
      {"another queue's event in a graph", [&](Queue* queue) { queue->WaitFor(*event); }},
      {"waiting in a graph", [&](Queue* queue) { EXPECT_FALSE(queue->Synchronize().ok()); }},
      {"memory allocated in a graph", [&](Queue*) { FreeOnDevice(0, AllocateOnDevice(0, 16).value()); }},
      {"memory freed in a graph", [&](Queue*) { FreeOnDevice(0, memory); }},
  };
  for (const auto& [message, misuse] : misuses) {
    const std::unique_ptr<Queue> queue = NewQueue(0);
    ASSERT_TRUE(queue->BeginCapture().ok());
    Launch("AddOne", AddOne, {1}, 32, 0, queue.get(), &device);
    misuse(queue.get());
    EXPECT_EQ(queue->EndCapture().status().message(), message);
    EXPECT_EQ(queue->Synchronize().message(), message);
    EXPECT_FALSE(queue->BeginCapture().ok()) << "after a failure nothing is captured";
  }
  EXPECT_EQ(device, 0);
}

TEST(QueueGraph, AnotherThreadAllocatesMeanwhile) {
  const std::unique_ptr<Queue> queue = NewQueue(0), other = NewQueue(0);
  ASSERT_TRUE(queue->BeginCapture().ok());
  std::thread([&] {
    void* const memory = AllocateOnDevice(0, 16).value();
    other->Fill(memory, 0, 16);
    EXPECT_TRUE(other->Synchronize().ok());
    FreeOnDevice(0, memory);
  }).join();
  EXPECT_TRUE(queue->EndCapture().ok());
}

TEST(QueueGraph, TellsWhereAnotherDiffers) {
  const std::unique_ptr<Queue> queue = NewQueue(0);
  int a = 0, b = 0;
  const auto capture = [&](int* word, unsigned blocks, size_t fill, int entries) {
    EXPECT_TRUE(queue->BeginCapture().ok());
    for (int i = 0; i < entries; ++i) Launch("AddOne", AddOne, {blocks}, 32, 0, queue.get(), word);
    queue->Fill(&b, 0, fill);
    return *queue->EndCapture();
  };
  const auto graph = capture(&a, 1, 4, 1);
  EXPECT_EQ(graph->DifferenceTo(*capture(&a, 1, 4, 1)), "");
  EXPECT_EQ(graph->DifferenceTo(*capture(&b, 1, 4, 1)), "entry 0, AddOne, has other arguments");
  EXPECT_EQ(graph->DifferenceTo(*capture(&a, 2, 4, 1)), "entry 0, AddOne, has other arguments");
  EXPECT_EQ(graph->DifferenceTo(*capture(&a, 1, 3, 1)), "entry 1, fill, has other arguments");
  EXPECT_EQ(graph->DifferenceTo(*capture(&a, 1, 4, 2)), "entry 1 is AddOne, was fill");
  EXPECT_EQ(capture(&a, 1, 4, 0)->DifferenceTo(*graph), "entry 0 is AddOne, was fill");
}

}  // namespace
}  // namespace layover::gpu
