// The codec: every message comes back as it went, and nothing but a whole message is taken.
#include "common/wire/messages.h"

#include <random>

#include "gtest/gtest.h"

namespace layover::wire {
namespace {

ToStage FullStep() {
  StepSlice slice{.session = 5, .begin = 64, .tokens = {1, 2, 3}, .new_pages = {7}, .copies = {{1, 2, 3}},
                  .new_window_pages = {8}, .window_copies = {{4, 5, 6}}, .state_from = 2, .state_to = 3,
                  .wish = RowWish::kSample, .output_begin = 12, .top_logprobs = 5, .row_digest = true,
                  .raw_rows = true, .next_token = 9};
  slice.sampler.temperature = 0.5f;
  slice.sampler.seed = 0xfedcba9876543210;
  slice.sampler.logit_bias = {{3, -100.0f}};
  slice.sampler.banned = {2, 4};
  return Step{{slice, slice}};
}

std::vector<ToStage> AllToStage() {
  return {Configure{.stage = 1, .n_stages = 2, .model = "m.gguf", .layer_end = 3, .device = "cpu", .kv_type = "f16",
                    .link_in = LinkKind::kZmq, .link_out = LinkKind::kShm, .data_in = {"tcp://*:7002", true, "s", "p"}, .data_out = {"ipc://d", false, "", ""},
                    .host = "tcp://h:7001", .store_id = "ab", .store = "d",
                    .file_ends = {{{"tcp://*:7004", true, "s", "p"}, true, "tcp://h:1"}}},
          Reset{{"/proc/1/fd/5", "/proc/1/fd/6", "/proc/1/fd/7"}, {"m", "r", "w"}},
          Shutdown{},
          OpenSession{3},
          ForkSession{1, 2, 70, {4, 5}, {{6, 7, 8}}, {70, 9, {-1, 10}}, {{11, 12, 13}}},
          TruncateSession{1, 2, 3, {2, 4, {5}}},
          CloseSession{9},
          FullStep(),
          SaveSession{.save = 1, .branches = {{0, 2, 5, 3, 4, 6, {{2, 1, {7}}}}}, .directory = "d", .folder = "f", .generation = 5,
                      .identity = {6, 7}},
          AbortSave{1, "p"},
          RestoreSession{.restore = 1, .session = 2, .tokens = {3}, .pages = {4}, .state = {1, 2, {3}}, .checkpoints = {{4, 5, {6}}},
                         .segments = {{"p", 0, 3, 4, 5, {6, 7}, "f", "tcp://h:1"}}, .folder = "f", .identity = {1, 2}},
          ParkSession{1, 2, {{3, 4, {5}}}},
          UnparkSession{1, 2, 3, 4, {5}, {6, 7, {8}}, {{9, 10, {11}}}},
          DropPark{6},
          Attach{kProtocolVersion, 1, 1ull << 63},
          KeepAlive{},
          RemoveSegments{{"f/s00-g000001.seg"}},
          SweepSegments{{"f/s00-g000002.seg"}},
          JoinHop{"id"}};
}

std::vector<FromStage> AllFromStage() {
  return {Hello{kProtocolVersion, 1, 2},
          Ready{1, {{0, {1, 2}}, {-1, {3, 4}}}, "cpu", 5, 6, {7, 8}, {9, 10}},
          Fault{1, 2, "why"},
          StepDone{1, {{7, {{3, 4, -1.5f, {{5, -0.25f}}, {6, 7}, "raw"}}}}, 8},
          SaveReceipt{.stage = 1, .save = 2, .status = {3, "m", "f", "g"}, .prefix = {1, 2}, .bytes = 9, .index_digest = {3, 4}},
          RestoreReceipt{.stage = 1, .restore = 2, .n_tokens = 3, .prefix = {4, 5}, .bytes_read = 6, .ms = 7},
          ParkReceipt{1, 2, {3, "m", "f", "g"}, 4, 5},
          TransferTick{1, 2, true, 3, 4},
          Heartbeat{1, 2, 3},
          WorkerEnded{1, "how"},
          Occupied{1},
          HopOffered{1, "id"},
          HopJoined{1, true}};
}

template <typename Message>
void ExpectRoundTrips(const std::vector<Message>& messages) {
  for (const Message& message : messages) {
    const std::string bytes = Encode({.epoch = 3, .seq = 1ull << 40}, message);
    Envelope envelope;
    Message back;
    ASSERT_TRUE(Decode(bytes, &envelope, &back).ok()) << message.index();
    EXPECT_EQ(envelope.epoch, 3u);
    EXPECT_EQ(envelope.seq, 1ull << 40);
    EXPECT_EQ(back.index(), message.index());
    EXPECT_EQ(Encode(envelope, back), bytes) << message.index();
  }
}

TEST(Messages, EveryMessageComesBackAsItWent) {
  ASSERT_EQ(AllToStage().size(), std::variant_size_v<ToStage>);
  ASSERT_EQ(AllFromStage().size(), std::variant_size_v<FromStage>);
  ExpectRoundTrips(AllToStage());
  ExpectRoundTrips(AllFromStage());
}

TEST(Messages, ACutOrLengthenedMessageIsRefused) {
  for (const ToStage& message : AllToStage()) {
    const std::string bytes = Encode({}, message);
    Envelope envelope;
    ToStage back;
    for (size_t length = 0; length < bytes.size(); ++length) {
      EXPECT_FALSE(Decode(std::string_view(bytes).substr(0, length), &envelope, &back).ok()) << message.index() << " cut to " << length;
    }
    EXPECT_FALSE(Decode(bytes + "x", &envelope, &back).ok());
  }
}

// A length that says 2^60 must not be believed.
TEST(Messages, DamagedBytesNeverAllocateWhatTheySay) {
  std::mt19937 random(1);
  for (const ToStage& message : AllToStage()) {
    const std::string bytes = Encode({}, message);
    for (int i = 0; i < 2000; ++i) {
      std::string damaged = bytes;
      for (int k = 0; k < 3; ++k) damaged[random() % damaged.size()] = static_cast<char>(random());
      Envelope envelope;
      ToStage back;
      (void)Decode(damaged, &envelope, &back);
    }
  }
}

}  // namespace
}  // namespace layover::wire
