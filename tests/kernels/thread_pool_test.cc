// The thread pool: every item exactly once, whoever runs it and however often threads fall asleep in between.
#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <vector>

namespace layover {
namespace {

TEST(ThreadPool, RunsEveryItemOnce) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int items : {0, 1, 2, 3, 64, 65, 1000}) {
      for (const int grain : {0, 1, 7, 64, 5000}) {
        std::vector<std::atomic<int>> runs(items);
        pool.ForRanges(items, grain, [&](int begin, int end, int thread) {
          ASSERT_TRUE(0 <= begin && begin < end && end <= items);
          ASSERT_TRUE(0 <= thread && thread < threads);
          for (int i = begin; i < end; ++i) ++runs[i];
        });
        for (const std::atomic<int>& run : runs) ASSERT_EQ(run, 1) << threads << " " << items << " " << grain;
      }
    }
  }
}

TEST(ThreadPool, OneThreadGetsOneRange) {
  ThreadPool pool(1);
  int calls = 0;
  pool.ForRanges(1000, 1, [&](int begin, int end, int) {
    ++calls;
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 1000);
  });
  EXPECT_EQ(calls, 1);
}

// A thread that took its piece late must never meet the next job's data: each job has its own result on the stack.
TEST(ThreadPool, ManyShortJobsKeepApart) {
  ThreadPool pool(3);
  for (int job = 0; job < 20'000; ++job) {
    int results[5] = {};
    pool.ForRanges(5, 1, [&](int begin, int end, int) {
      for (int i = begin; i < end; ++i) results[i] += job + i;
    });
    for (int i = 0; i < 5; ++i) ASSERT_EQ(results[i], job + i);
  }
}

TEST(ThreadPool, NoTwoRangesAtOnceHaveTheSameThread) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<bool> twice{false};
  for (int job = 0; job < 200; ++job) {
    pool.ForRanges(64, 1, [&](int, int, int thread) {
      if (inside[thread].fetch_add(1) != 0) twice = true;
      inside[thread].fetch_sub(1);
    });
  }
  EXPECT_FALSE(twice);
}

// Both threads are needed for this to end: each waits for the other to have begun.
TEST(ThreadPool, ThreadsReallyRunAtOnce) {
  ThreadPool pool(2);
  for (int job = 0; job < 50; ++job) {
    std::atomic<int> begun{0};
    pool.ForRanges(2, 1, [&](int, int, int) {
      ++begun;
      while (begun < 2) std::this_thread::yield();
    });
    EXPECT_EQ(begun, 2);
  }
}

// Work done before ForRanges returns is visible after it, also what other threads wrote.
TEST(ThreadPool, ResultsAreVisibleAfterwards) {
  ThreadPool pool(3);
  std::vector<int> values(10'000);
  pool.ForRanges(10'000, 100, [&](int begin, int end, int) { std::iota(&values[begin], &values[end - 1] + 1, begin); });
  for (int i = 0; i < 10'000; ++i) ASSERT_EQ(values[i], i);
}

}  // namespace
}  // namespace layover
