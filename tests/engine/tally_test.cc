// Sums over conversations, against a walk over all of them.
#include "coordinator/conversation/tally.h"

#include "gtest/gtest.h"

namespace layover {
namespace {

std::shared_ptr<Conversation> Make(const std::string& folder) {
  auto conversation = std::make_shared<Conversation>();
  conversation->folder = folder;
  conversation->branches.push_back(std::make_unique<Branch>());
  return conversation;
}

std::shared_ptr<const Manifest> Named(std::vector<ManifestSegment> segments) {
  auto manifest = std::make_shared<Manifest>();
  manifest->n_tokens = 1;
  manifest->segments = std::move(segments);
  return manifest;
}

// `hits` stands for what it holds on the devices; a session makes it warm.
Tally::Entry Look(const Conversation& conversation) {
  const bool live = conversation.trunk().session != 0;
  return {.state = live ? ConversationState::kActive : conversation.HasImage() ? ConversationState::kSaved : ConversationState::kIdle,
          .device_bytes = live ? conversation.hits : 0, .warm = live};
}

TEST(Tally, WhatChangesIsCountedAnew) {
  Tally tally;
  const auto a = Make("a"), b = Make("b");
  tally.Touch(a);
  tally.Touch(b);
  tally.Settle(Look);
  EXPECT_EQ(tally.Count(ConversationState::kIdle), 2);
  EXPECT_EQ(tally.n_touched(), 0u);

  a->trunk().session = 7;
  a->hits = 100;
  tally.Touch(a);
  tally.Settle(Look);
  EXPECT_EQ(tally.Count(ConversationState::kActive), 1);
  EXPECT_EQ(tally.device_bytes(), 100);
  // It is warm: it may change without being touched again, and becomes cold by itself.
  a->hits = 250;
  tally.Settle(Look);
  EXPECT_EQ(tally.device_bytes(), 250);
  a->trunk().session = 0;
  tally.Settle(Look);
  EXPECT_EQ(tally.Count(ConversationState::kIdle), 2);
  EXPECT_EQ(tally.device_bytes(), 0);
  EXPECT_EQ(tally.n_touched(), 0u);
}

TEST(Tally, SharedSegmentsCountOnce) {
  Tally tally;
  const auto a = Make("a"), fork = Make("f");
  a->manifest = Named({{.file = "s00-g000001.seg", .bytes = 1000}, {.file = "s00-g000002.seg", .bytes = 10}});
  fork->manifest = Named({{.folder = "a", .file = "s00-g000001.seg", .bytes = 1000}});
  tally.Touch(a);
  tally.Touch(fork);
  tally.Settle(Look);
  EXPECT_EQ(tally.disk_bytes(), 1010);
  // The fork keeps what it names when its source is no more.
  tally.Forget(*a);
  EXPECT_EQ(tally.disk_bytes(), 1000);
  EXPECT_EQ(tally.Count(ConversationState::kSaved), 1);
  fork->manifest = Named({{.file = "s00-g000009.seg", .bytes = 5}});
  fork->journal_bytes = 1;
  tally.Touch(fork);
  tally.Settle(Look);
  EXPECT_EQ(tally.disk_bytes(), 5 + fork->MetaBytes());
  tally.Forget(*fork);
  EXPECT_EQ(tally.disk_bytes(), 0);
  EXPECT_EQ(tally.Count(ConversationState::kSaved), 0);
}

}  // namespace
}  // namespace layover
