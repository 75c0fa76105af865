// The shm link: rows from one device to another through a ring, epoch by epoch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/wire/hop_ring.h"
#include "stage_worker/links/data_link.h"

namespace layover {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kHop = 1;
constexpr int kDim = 8;
constexpr int kMostRows = 6;

class ShmLink : public testing::Test {
 protected:
  void SetUp() override {
    device_ = *OpenDevice("cpu", {});
    stream_ = device_->NewComputeStream();
    sender_ = MakeShmSender(*device_, kHop);
    receiver_ = MakeShmReceiver(*device_, kHop);
  }

  std::unique_ptr<wire::HopRing> NewRing(uint32_t epoch) {
    return *wire::HopRing::Create(
        {.hop = kHop, .epoch = epoch, .n_slots = 3, .slot_bytes = sizeof(float) * kMostRows * kDim});
  }
  void Renew(uint32_t epoch, const wire::HopRing& ring) {
    sender_->Renew(epoch, ring.address());
    receiver_->Renew(epoch, ring.address());
  }
  std::vector<float> RowsOf(uint64_t seq, int n_rows) const {
    std::vector<float> rows(static_cast<size_t>(n_rows * kDim));
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(seq) + static_cast<float>(i) / 64;
    return rows;
  }
  absl::Status Send(uint32_t epoch, uint64_t seq, int n_rows) {
    const std::vector<float> rows = RowsOf(seq, n_rows);
    const wire::FrameHeader header{.epoch = epoch, .seq = seq, .n_rows = static_cast<uint32_t>(n_rows), .dim = kDim};
    return sender_->Send(header, rows.data(), *stream_);
  }
  absl::StatusOr<std::vector<float>> Take(uint64_t seq, int n_rows) {
    std::vector<float> rows(static_cast<size_t>(n_rows * kDim));
    absl::Status taken = receiver_->Take({seq, n_rows, kDim}, rows.data(), *stream_);
    if (!taken.ok()) return taken;
    taken = stream_->Synchronize();
    if (!taken.ok()) return taken;
    return rows;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<DataSender> sender_;
  std::unique_ptr<DataReceiver> receiver_;
};

TEST_F(ShmLink, StepsArriveInOrderAndMoreThanOneMayWait) {
  const auto ring = NewRing(1);
  Renew(1, *ring);
  EXPECT_FALSE(receiver_->Has(10));
  for (uint64_t seq = 10; seq < 40; seq += 2) {
    ASSERT_TRUE(Send(1, seq, 1).ok());
    ASSERT_TRUE(Send(1, seq + 1, kMostRows).ok());
    EXPECT_TRUE(receiver_->Has(seq));
    EXPECT_EQ(*Take(seq, 1), RowsOf(seq, 1));
    EXPECT_EQ(*Take(seq + 1, kMostRows), RowsOf(seq + 1, kMostRows));
    EXPECT_FALSE(receiver_->Has(seq + 2));
  }
}

TEST_F(ShmLink, AWaitEndsWhenAStepComes) {
  const auto ring = NewRing(1);
  Renew(1, *ring);
  std::vector<wire::PollItem> items;
  EXPECT_TRUE(receiver_->BeginWait(&items));
  ASSERT_EQ(items.size(), 1u);
  ASSERT_TRUE(wire::Poll(items, 0).ok());
  EXPECT_FALSE(items[0].ready);
  ASSERT_TRUE(Send(1, 5, 2).ok());
  ASSERT_TRUE(wire::Poll(items, 0).ok());
  EXPECT_TRUE(items[0].ready);
  ASSERT_TRUE(receiver_->Drain().ok());
  EXPECT_FALSE(receiver_->BeginWait(&items));
  EXPECT_EQ(*Take(5, 2), RowsOf(5, 2));
}

TEST_F(ShmLink, NothingOfAnOldEpochIsTaken) {
  const auto first = NewRing(1);
  Renew(1, *first);
  ASSERT_TRUE(Send(1, 5, 2).ok());
  const auto second = NewRing(2);
  Renew(2, *second);
  EXPECT_FALSE(receiver_->Has(5));
  ASSERT_TRUE(Send(2, 6, 2).ok());
  Renew(2, *second);  // told again: what is there stays
  EXPECT_EQ(*Take(6, 2), RowsOf(6, 2));
}

TEST_F(ShmLink, AnotherStepOrShapeIsDamage) {
  const auto ring = NewRing(1);
  Renew(1, *ring);
  ASSERT_TRUE(Send(1, 5, 2).ok());
  for (const auto& [seq, n_rows] : {std::pair<uint64_t, int>{6, 2}, {5, 3}}) {
    const auto taken = Take(seq, n_rows);
    ASSERT_FALSE(taken.ok());
    EXPECT_EQ(taken.status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST_F(ShmLink, ALargerHopThanPlannedIsAnError) {
  const auto ring = NewRing(1);
  Renew(1, *ring);
  EXPECT_EQ(Send(1, 5, kMostRows + 1).code(), absl::StatusCode::kInternal);
}

TEST_F(ShmLink, ASenderThatIsAheadWaitsForRoom) {
  const auto ring = NewRing(1);
  Renew(1, *ring);
  constexpr uint64_t kSteps = 40;
  std::atomic<bool> ended = false;
  std::thread sender([&] {
    for (uint64_t seq = 0; seq < kSteps; ++seq) EXPECT_TRUE(Send(1, seq, 1).ok()) << seq;
    ended = true;
  });
  for (uint64_t seq = 0; seq < kSteps; ++seq) {
    while (!receiver_->Has(seq) && !ended) std::this_thread::yield();
    const auto taken = Take(seq, 1);
    EXPECT_EQ(taken.value_or(std::vector<float>()), RowsOf(seq, 1)) << seq;
  }
  sender.join();
}

TEST_F(ShmLink, ItsWaitEndsWithTheEpoch) {
  const auto ring = NewRing(1);
  Renew(1, *ring);
  for (uint64_t seq = 5; seq < 8; ++seq) ASSERT_TRUE(Send(1, seq, 1).ok());
  std::thread coordinator([&] { ring->Close(); });
  EXPECT_EQ(Send(1, 8, 1).code(), absl::StatusCode::kAborted);
  coordinator.join();
}

// A Reset may name a ring that the next epoch has closed already. That is an error only for a step.
TEST_F(ShmLink, ARingThatIsGoneIsReportedByTheStepThatNeedsIt) {
  auto ring = NewRing(1);
  const wire::RingAddress gone = ring->address();
  ring.reset();
  sender_->Renew(1, gone);
  receiver_->Renew(1, gone);
  std::vector<wire::PollItem> items;
  EXPECT_TRUE(receiver_->BeginWait(&items));
  EXPECT_TRUE(items.empty());
  EXPECT_TRUE(receiver_->Has(5));
  const auto taken = Take(5, 1);
  ASSERT_FALSE(taken.ok());
  EXPECT_THAT(std::string(taken.status().message()), HasSubstr("a hop's ring"));
  EXPECT_FALSE(Send(1, 5, 1).ok());
  const auto next = NewRing(2);
  Renew(2, *next);
  ASSERT_TRUE(Send(2, 6, 1).ok());
  EXPECT_EQ(*Take(6, 1), RowsOf(6, 1));
}

}  // namespace
}  // namespace layover
