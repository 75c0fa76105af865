// Two cards that meet over NCCL, played by its stand-in under emulation: what arrives, who waits for whom, and what
// happens when the other side is not there, dies or is given up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/gpu_device.h"

namespace layover::gpu {
namespace {

constexpr size_t kMost = 3 << 20;  // more than a socket holds

const bool kStandIn = [] {
  setenv("LAYOVER_NCCL", LAYOVER_BUILD_DIR "/bin/libstand_in_nccl.so", 1);
  return true;
}();

bool Never() {
  return false;
}

class Peer : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(kStandIn);
    for (int card = 0; card < 2; ++card) cards_.push_back(*GpuDevice::Open(card));
    const auto id = cards_[0]->NewPeerId();
    ASSERT_TRUE(id.ok()) << id.status();
    id_ = *id;
  }

  std::unique_ptr<PeerLink> Join(int rank) {
    auto link = cards_[static_cast<size_t>(rank)]->JoinPeer(id_, rank, kMost);
    EXPECT_TRUE(link.ok()) << link.status();
    return *std::move(link);
  }
  void Meet() {
    sender_ = Join(0);
    EXPECT_FALSE(*sender_->Connected());
    receiver_ = Join(1);
    for (const PeerLink* link : {sender_.get(), receiver_.get()}) {
      while (!*const_cast<PeerLink*>(link)->Connected()) std::this_thread::yield();
    }
  }
  // Device memory of a card, which under emulation the host may look at.
  std::unique_ptr<DeviceBuffer> Rows(int card, int first) {
    auto buffer = *cards_[static_cast<size_t>(card)]->Allocate(kMost);
    for (size_t i = 0; i < kMost / sizeof(int); ++i) buffer->As<int>()[i] = first + static_cast<int>(i);
    return buffer;
  }

  std::vector<std::unique_ptr<GpuDevice>> cards_;
  std::string id_;
  std::unique_ptr<PeerLink> sender_, receiver_;
};

TEST_F(Peer, WhatIsSentArrivesAndTheSenderDoesNotWait) {
  Meet();
  const auto got = Rows(1, -1);
  for (const size_t bytes : {size_t{4}, size_t{4096}, kMost}) {
    // Two sends without a receiver, and the source is changed at once.
    for (int first : {10, 20}) {
      const auto rows = Rows(0, first);
      ASSERT_TRUE(sender_->Send(rows->data(), bytes, Never).ok());
      rows->As<int>()[0] = 999;
    }
    for (int first : {10, 20}) {
      ASSERT_TRUE(receiver_->Receive(got->data(), bytes, Never).ok());
      for (size_t i = 0; i < bytes / sizeof(int); ++i) ASSERT_EQ(got->As<int>()[i], first + static_cast<int>(i));
    }
  }
}

TEST_F(Peer, AThirdSendWaitsForTheFirstToBeReceivedAndCanBeGivenUp) {
  Meet();
  const auto rows = Rows(0, 1);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(sender_->Send(rows->data(), kMost, Never).ok());
  int looks = 0;
  const absl::Status third = sender_->Send(rows->data(), kMost, [&] { return ++looks > 3; });
  EXPECT_EQ(third.code(), absl::StatusCode::kAborted) << third;
  EXPECT_EQ(sender_->Send(rows->data(), 4, Never).code(), absl::StatusCode::kAborted);  // for good
}

TEST_F(Peer, AReceiverWhoseSenderIsGoneWaitsUntilItIsGivenUp) {
  Meet();
  sender_.reset();
  const auto got = Rows(1, 0);
  std::atomic<bool> over{false};
  std::atomic<int> looks{0};
  std::thread coordinator([&] {
    while (looks < 100) std::this_thread::yield();  // NCCL itself never says it
    over = true;
  });
  const absl::Status received = receiver_->Receive(got->data(), 64, [&] {
    ++looks;
    return over.load();
  });
  coordinator.join();
  EXPECT_EQ(received.code(), absl::StatusCode::kAborted) << received;
}

TEST_F(Peer, OneWhoIsAloneCanLeaveAndTheNextPairMeets) {
  receiver_ = Join(1);
  EXPECT_FALSE(*receiver_->Connected());
  receiver_.reset();
  id_ = *cards_[0]->NewPeerId();
  Meet();
  const auto rows = Rows(0, 5), got = Rows(1, 0);
  ASSERT_TRUE(sender_->Send(rows->data(), 64, Never).ok());
  ASSERT_TRUE(receiver_->Receive(got->data(), 64, Never).ok());
  EXPECT_EQ(got->As<int>()[15], 20);
}

TEST_F(Peer, WhatIsNoIdIsRefused) {
  EXPECT_EQ(cards_[1]->JoinPeer("short", 1, kMost).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cards_[0]->JoinPeer(std::string(128, 'x'), 0, kMost).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace layover::gpu
