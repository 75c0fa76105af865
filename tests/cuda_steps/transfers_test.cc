// A stage's saves, restores and parks on a card: the state comes back, and it goes through page-locked memory in pieces
// of at least 2 MiB, except where a run (of a layer and kind) ends.
#include "stage_worker/transfers.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <numeric>

#include "common/storage/file_names.h"
#include "tests/cuda/gpu_fixture.h"
#include "tests/cuda/kernel_draw.h"
#ifndef LAYOVER_TEST_ON_CARD
#include "kernels/emulation/host_copies.h"
#endif

namespace layover::gpu_test {
namespace {

constexpr size_t kLeastPiece = 2 * limits::kMiB;

struct Fill {
  int full = 0;  // layers of each kind
  int window = 0;
  int recurrent = 0;
  int tokens = 0;
  KvType type = KvType::kF16;
  int kv_heads = 8;
};

// Where a session's state lies: pages [page, ...) of both classes, and a slot.
struct Place {
  int page = 0;
  int slot = 0;
};

class Stage {
 public:
  Stage(Device* device, const Fill& fill) : device_(device), fill_(fill) {
    ModelShape shape;
    shape.head_dim_k = shape.head_dim_v = 128;
    shape.window = fill.window > 0 ? 100 : 0;
    const auto add = [&](LayerKind kind, int count) {
      shape.layers.insert(shape.layers.end(), static_cast<size_t>(count), {.kind = kind, .n_head_kv = fill.kv_heads});
    };
    add(LayerKind::kFullAttention, fill.full);
    add(LayerKind::kSlidingWindow, fill.window);
    add(LayerKind::kRecurrent, fill.recurrent);
    shape.n_layers = static_cast<int>(shape.layers.size());
    if (fill.recurrent > 0) shape.recurrent = {.conv_taps = 4, .key_heads = 2, .value_heads = 4, .dim = 128};
    const LayerRange layers{0, shape.n_layers};
    n_pages_ = (fill.tokens + kPageTokens - 1) / kPageTokens;
    pages_ = *KvPages::Create(*device, shape, layers, fill.type, {2 * n_pages_, fill.window > 0 ? 2 * n_pages_ : 0});
    states_ = *RecurrentState::Create(*device, shape, layers, fill.recurrent > 0 ? 2 : 0);
    for (int i = 0; i < fill.tokens; ++i) tokens_.push_back(i * 7 % 1000);
    folder_ = FolderName(FolderDigest{7});
    directory_ = std::filesystem::temp_directory_path() / ("layover-card-" + std::to_string(getpid())) / folder_;
    std::filesystem::create_directories(directory_);
    transfers_ = std::make_unique<Transfers>(*device, *pages_, *states_, 0, &results_);
  }
  ~Stage() { std::filesystem::remove_all(directory_.parent_path()); }

  int n_pages() const { return n_pages_; }
  size_t RunBytes() const { return pages_->row_bytes(0) * tokens_.size(); }

  std::vector<PieceRun> Runs() const {
    const StatePieces pieces(*pages_, *states_);
    std::vector<PieceRun> runs = pieces.Rows(0, fill_.tokens);
    for (const PieceRun& run : pieces.StateAt(fill_.tokens)) runs.push_back(run);
    return runs;
  }
  // Every piece of the state at a place, one at a time.
  using Move = std::function<void(const StatePieces&, Stream&, const StatePiece&, const StateTables&)>;
  void Each(const Place& place, const Move& move) {
    const StatePieces pieces(*pages_, *states_);
    const std::vector<int32_t> pages = PagesOf(place);
    const StateTables tables{pages, pages, place.slot};
    const std::unique_ptr<Stream> stream = device_->NewCopyStream();
    for (const PieceRun& run : Runs()) {
      for (const StatePiece& piece : run) {
        move(pieces, *stream, piece, tables);
        EXPECT_TRUE(stream->Synchronize().ok());
      }
    }
  }
  // seed 0: nothing but zeros.
  void Write(const Place& place, uint32_t seed) {
    Each(place, [&](const StatePieces& pieces, Stream& stream, const StatePiece& piece, const StateTables& at) {
      std::vector<std::byte> bytes(pieces.Bytes(piece));
      uint32_t x = seed;
      for (std::byte& byte : bytes)
        byte = seed == 0 ? std::byte{0} : static_cast<std::byte>((x = x * 1664525u + 1013904223u) >> 24);
      seed = x;
      pieces.Write(stream, piece, at, bytes.data());
      EXPECT_TRUE(stream.Synchronize().ok());
    });
  }
  std::vector<std::byte> Read(const Place& place) {
    std::vector<std::byte> all;
    Each(place, [&](const StatePieces& pieces, Stream& stream, const StatePiece& piece, const StateTables& at) {
      std::vector<std::byte> bytes(pieces.Bytes(piece));
      pieces.Read(stream, piece, at, bytes.data());
      EXPECT_TRUE(stream.Synchronize().ok());
      all.insert(all.end(), bytes.begin(), bytes.end());
    });
    return all;
  }

  wire::SaveReceipt Save(const Place& place, int generation = 1) {
    wire::SaveSession save{.save = 1, .directory = directory_.string(), .folder = folder_, .generation = generation};
    save.branches = {{.session = 1, .n_tokens = fill_.tokens}};
    transfers_->Save(save, {{.session = SessionAt(place)}});
    auto receipt = std::get<wire::SaveReceipt>(Receipt());
    EXPECT_EQ(receipt.status.code, 0) << receipt.status.message;
    segments_ = {{.path = (directory_ / SegmentFileName(0, generation)).string(),
                  .layer_begin = receipt.layer_begin,
                  .layer_end = receipt.layer_end,
                  .generation = generation,
                  .bytes = receipt.bytes,
                  .index_digest = receipt.index_digest,
                  .folder = folder_}};
    return receipt;
  }
  wire::RestoreReceipt Restore(const Place& place) {
    transfers_->Restore({.restore = 1,
                         .session = 2,
                         .tokens = tokens_,
                         .pages = PagesOf(place),
                         .state = StateAt(place),
                         .segments = segments_,
                         .folder = folder_});
    return std::get<wire::RestoreReceipt>(Receipt());
  }
  void Park(const Place& place) {
    transfers_->Park({.park = 1, .session = 1}, SessionAt(place));
    const auto receipt = std::get<wire::ParkReceipt>(Receipt());
    EXPECT_EQ(receipt.status.code, 0) << receipt.status.message;
  }
  void Unpark(const Place& place) {
    transfers_->Unpark({.restore = 2,
                        .park = 1,
                        .session = 3,
                        .n_tokens = fill_.tokens,
                        .pages = PagesOf(place),
                        .state = StateAt(place)});
    const auto receipt = std::get<wire::RestoreReceipt>(Receipt());
    EXPECT_EQ(receipt.status.code, 0) << receipt.status.message;
  }
  const std::string& SegmentPath() const { return segments_.front().path; }

 private:
  std::vector<int32_t> PagesOf(const Place& place) const {
    std::vector<int32_t> pages(static_cast<size_t>(n_pages_));
    std::iota(pages.begin(), pages.end(), place.page);
    return pages;
  }
  wire::StateAt StateAt(const Place& place) const {
    return {fill_.tokens, fill_.recurrent > 0 ? place.slot : -1,
            fill_.window > 0 ? PagesOf(place) : std::vector<int32_t>()};
  }
  StageSession SessionAt(const Place& place) const {
    const wire::StateAt state = StateAt(place);
    return {.tokens = tokens_, .pages = PagesOf(place), .window_pages = state.window_pages, .state_slot = state.slot};
  }
  wire::FromStage Receipt() {
    while (true) {
      while (!waiting_.empty()) {
        const wire::FromStage message = waiting_.front().message;
        waiting_.pop_front();
        if (!std::holds_alternative<wire::TransferTick>(message)) return message;
      }
      pollfd wait{.fd = results_.fd(), .events = POLLIN, .revents = 0};
      LAYOVER_CHECK(poll(&wait, 1, 120'000) == 1);
      waiting_ = results_.TakeAll();
    }
  }

  Device* const device_;
  const Fill fill_;
  int n_pages_ = 0;
  std::unique_ptr<KvPages> pages_;
  std::unique_ptr<RecurrentState> states_;
  std::vector<int32_t> tokens_;
  std::string folder_;
  std::filesystem::path directory_;
  std::vector<wire::SegmentRef> segments_;
  Mailbox<TransferResult> results_;
  std::deque<TransferResult> waiting_;
  std::unique_ptr<Transfers> transfers_;
};

const std::unique_ptr<gpu::GpuDevice>& Card() {
  static const auto& device = *new std::unique_ptr<gpu::GpuDevice>(gpu::GpuDevice::Open(0).value());
  return device;
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kLayers = 1;  // they are slow, and see what they look for in one buffer as in many
constexpr std::array kHeads = {8};
#else
constexpr int kLayers = 4;
constexpr std::array kHeads = {1, 3, 8, 16};
#endif
// Runs that do not fill their last page, in more buffers than there are, so that each is used again.
constexpr Fill kLarge = {.full = kLayers, .tokens = 40 * kPageTokens + 10};

// From the one place by way of a file to the other, and by way of host memory back.
void ExpectComesBack(Stage* stage, const Place& first, const Place& second, uint32_t seed) {
  stage->Write(first, seed);
  const std::vector<std::byte> want = stage->Read(first);
  stage->Save(first);
  ASSERT_EQ(stage->Restore(second).status.code, 0);
  ASSERT_TRUE(stage->Read(second) == want);
  stage->Park(second);
  stage->Write(first, 0);
  stage->Unpark(first);
  ASSERT_TRUE(stage->Read(first) == want);
}

TEST(Transfers, ALargeStateComesBackFromFileAndFromHostMemory) {
  Stage stage(Card().get(), kLarge);
  const Place first{0}, second{stage.n_pages()};
  stage.Write(second, 0);
  ExpectComesBack(&stage, first, second, 1);
}

TEST(Transfers, AllKindsOfStateOfEveryType) {
  for (const KvType type : kernel_test::kAllKvTypes) {
    SCOPED_TRACE(KvTypeName(type));
    Stage stage(Card().get(), {.full = 1, .window = 1, .recurrent = 2, .tokens = 300, .type = type, .kv_heads = 1});
    ExpectComesBack(&stage, {0, 0}, {stage.n_pages(), 1}, 3);
  }
}

// Half of it is on the card already when the damage is found; the lane goes on with the next restore.
TEST(Transfers, ARestoreThatFailsLeavesTheLaneAsItWas) {
  Stage stage(Card().get(), kLarge);
  const Place first{0}, second{stage.n_pages()};
  stage.Write(first, 5);
  const std::vector<std::byte> want = stage.Read(first);
  stage.Save(first);
  const auto at = static_cast<off_t>(std::filesystem::file_size(stage.SegmentPath()) * 3 / 4);
  std::FILE* const file = std::fopen(stage.SegmentPath().c_str(), "r+b");
  ASSERT_NE(file, nullptr);
  char byte = 0;
  ASSERT_EQ(pread(fileno(file), &byte, 1, at), 1);
  const char other = static_cast<char>(byte ^ 1);
  ASSERT_EQ(pwrite(fileno(file), &other, 1, at), 1);
  EXPECT_EQ(stage.Restore(second).status.code, static_cast<int>(absl::StatusCode::kDataLoss));
  ASSERT_EQ(pwrite(fileno(file), &byte, 1, at), 1);
  std::fclose(file);
  ASSERT_EQ(stage.Restore(second).status.code, 0);
  EXPECT_TRUE(stage.Read(second) == want);
}

#ifndef LAYOVER_TEST_ON_CARD
// A copy that is shorter ends where a run ends.
void ExpectLargePieces(const std::vector<emulation::HostCopy>& copies, bool to_host, const Stage& stage) {
  const size_t run = stage.RunBytes();
  size_t at = 0, small = 0;
  for (const emulation::HostCopy& copy : copies) {
    EXPECT_EQ(copy.to_host, to_host);
    EXPECT_TRUE(copy.pinned);
    at += copy.bytes;
    if (copy.bytes >= kLeastPiece) continue;
    ++small;
    EXPECT_EQ(at % run, 0u) << "a piece of " << copy.bytes << " bytes";
  }
  EXPECT_EQ(at, run * stage.Runs().size());
  EXPECT_LE(small, stage.Runs().size());
}

TEST(Transfers, CopiesAreLargeAndThroughPinnedMemory) {
  for (const int kv_heads : kHeads) {  // records of 16 to 256 KiB
    SCOPED_TRACE(kv_heads);
    Stage stage(Card().get(), {.full = 2, .tokens = 8 * 40 / kv_heads * kPageTokens + 10, .kv_heads = kv_heads});
    const Place first{0}, second{stage.n_pages()};
    stage.Write(first, 9);
    emulation::WatchHostCopies();
    stage.Save(first);
    ExpectLargePieces(emulation::TakeHostCopies(), true, stage);
    emulation::WatchHostCopies();
    ASSERT_EQ(stage.Restore(second).status.code, 0);
    ExpectLargePieces(emulation::TakeHostCopies(), false, stage);
    // Images have no order but that of the pieces: only the last copy is short.
    for (const bool park : {true, false}) {
      emulation::WatchHostCopies();
      park ? stage.Park(second) : stage.Unpark(first);
      const std::vector<emulation::HostCopy> copies = emulation::TakeHostCopies();
      ASSERT_FALSE(copies.empty());
      for (size_t i = 0; i < copies.size(); ++i) {
        EXPECT_TRUE(copies[i].pinned && copies[i].to_host == park);
        EXPECT_TRUE(i + 1 == copies.size() || copies[i].bytes >= kLeastPiece) << copies[i].bytes;
      }
    }
  }
}

TEST(Transfers, WorkWhereTheSystemLocksNoMemory) {
  emulation::Settings settings;
  settings.most_pinned = 8 * limits::kMiB;
  emulation::SetSettings(settings);
  Stage stage(Card().get(), {.full = 1, .tokens = 40 * kPageTokens});
  const Place first{0}, second{stage.n_pages()};
  stage.Write(first, 2);
  const std::vector<std::byte> want = stage.Read(first);
  emulation::WatchHostCopies();
  stage.Save(first);
  ASSERT_EQ(stage.Restore(second).status.code, 0);
  stage.Park(second);
  stage.Write(first, 0);
  stage.Unpark(first);
  for (const emulation::HostCopy& copy : emulation::TakeHostCopies()) EXPECT_FALSE(copy.pinned);
  EXPECT_TRUE(stage.Read(first) == want);
  emulation::SetSettings({});
}
#endif

}  // namespace
}  // namespace layover::gpu_test
