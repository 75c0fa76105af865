#include "stage_worker/transfers.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>

#include "common/limits.h"
#include "common/log.h"
#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "common/storage/remote_segment.h"
#include "stage_worker/segment_restore.h"
#include "stage_worker/segment_save.h"

namespace layover {
namespace {

using Clock = std::chrono::steady_clock;

int64_t MsSince(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
}

// Large enough for any record, with what a buffer carries over from the one before.
std::unique_ptr<CopyBuffers> BuffersFor(Device& device, const RecurrentState& states) {
  if (device.Name() == "cpu") return nullptr;
  const size_t largest = std::max(states.recurrent_bytes(), states.conv_bytes()) + limits::kBlockBytes;
  const size_t whole = (largest + limits::kIoBufferBytes - 1) / limits::kIoBufferBytes * limits::kIoBufferBytes;
  return CopyBuffers::Create(device, limits::kCopyBuffers, std::max(whole, limits::kCopyBufferBytes));
}

}  // namespace

Transfers::Lane::Lane(int niceness) : niceness_(niceness), thread_([this] { Loop(); }) {}

Transfers::Lane::~Lane() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Transfers::Lane::Run(std::function<void()> job) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

void Transfers::Lane::WaitIdle() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.empty() && !busy_; });
}

void Transfers::Lane::Loop() {
  // On Linux this is the calling thread's own. If it is not allowed, saving is only less polite.
  if (niceness_ != 0) (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + niceness_);
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    busy_ = true;
    lock.unlock();
    job();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

Stream& Transfers::LaneStream::Get() {
  if (stream_ == nullptr) stream_ = device_.NewCopyStream();
  return *stream_;
}

void Transfers::LaneStream::Check() {
  if (stream_ != nullptr && !stream_->Synchronize().ok()) stream_.reset();
}

Transfers::Transfers(Device& device, const KvPages& pages, const RecurrentState& states, int stage,
                     Mailbox<TransferResult>* results)
    : pieces_(pages, states),
      stage_(stage),
      results_(results),
      buffers_(BuffersFor(device, states)),
      save_stream_(device),
      restore_stream_(device) {}

Transfers::~Transfers() { CancelAll(); }

void Transfers::CancelAll() {
  cancel_all_ = true;
  save_lane_.WaitIdle();
  restore_lane_.WaitIdle();
  cancel_all_ = false;
  parked_.Clear();
  std::lock_guard<std::mutex> lock(mutex_);
  aborted_saves_.clear();
}

bool Transfers::Cancelled(uint64_t save) const {
  if (cancel_all_) return true;
  std::lock_guard<std::mutex> lock(mutex_);
  return aborted_saves_.contains(save);
}

void Transfers::Save(const wire::SaveSession& save, std::vector<BranchSource> sources) {
  save_lane_.Run([this, save, sources = std::move(sources)] {
    results_->Put({.message = DoSave(save, sources)});
  });
}

void Transfers::AbortSave(const wire::AbortSave& abort) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    aborted_saves_.insert(abort.save);
  }
  // Behind the save itself: if it had finished already, its file is removed here.
  save_lane_.Run([this, abort] {
    const std::string_view folder = DirName(abort.path);
    const absl::Status removed = home_.own == nullptr
                                     ? RemoveDurably(std::string(folder), BaseName(abort.path))
                                     : home_.own->Remove({JoinPath(BaseName(folder), BaseName(abort.path))});
    if (!removed.ok()) LogWarning("aborted save: {}", ToStd(removed.message()));
    std::lock_guard<std::mutex> lock(mutex_);
    aborted_saves_.erase(abort.save);
  });
}

void Transfers::RemoveSegments(const wire::RemoveSegments& remove) {
  if (home_.own == nullptr) return;
  save_lane_.Run([this, remove] {
    const absl::Status removed = home_.own->Remove(remove.files);
    if (!removed.ok()) LogWarning("own store: {}", ToStd(removed.message()));
  });
}

void Transfers::SweepSegments(const wire::SweepSegments& sweep) {
  if (home_.own == nullptr) return;
  save_lane_.Run([this, sweep] {
    const auto removed = home_.own->Sweep(sweep.keep);
    if (!removed.ok()) LogWarning("own store: {}", ToStd(removed.status().message()));
    for (const std::string& file : removed.value_or(std::vector<std::string>())) {
      LogInfo("own store: removed {}, which nothing needs", file);
    }
  });
}

absl::StatusOr<std::string> Transfers::DirectoryFor(const wire::SaveSession& save) {
  if (home_.host.empty()) return save.directory;
  if (home_.own == nullptr) return FailedPrecondition("stage {} at {} keeps no store", stage_, home_.host);
  return home_.own->FolderForWriting(save.folder, SegmentFileName(stage_, save.generation));
}

absl::StatusOr<std::unique_ptr<SegmentReader>> Transfers::OpenSegment(const wire::SegmentRef& ref,
                                                                      const SegmentExpectations& expected) const {
  const SegmentReader::Options options{.io = IoOptions()};
  if (ref.host == home_.host && home_.own == nullptr) return SegmentReader::Open(ref.path, expected, options);
  const std::string file(BaseName(ref.path));
  if (ref.host == home_.host) {
    ASSIGN_OR_RETURN(const std::string folder, home_.own->FolderOf(ref.folder));
    return SegmentReader::Open(JoinPath(folder, file), expected, options);
  }
  const auto link = home_.elsewhere.find(ref.host);
  if (link == home_.elsewhere.end()) return FailedPrecondition("{} is kept by {}, which stage {} cannot reach", file, ref.host, stage_);
  auto blocks = link->second->Open(ref.folder, file, buffers_.get());
  if (!blocks.ok()) return WithPart(blocks.status(), {.file = file});
  return OpenSegmentBlocks(*std::move(blocks), ref.path, expected, options);
}

BlockIoOptions Transfers::IoOptions() const {
  if (buffers_ == nullptr) return {};
  return {.request_bytes = limits::kCopyBufferBytes, .memory = buffers_.get()};
}

// Between two buffers of a save: rests if steps run. Its own proof's is one, and the last before the cut may be another,
// so that either more of them have come since, or several came within a moment.
void Transfers::MakeWay(int64_t steps_before, Clock::time_point* since) const {
  constexpr int64_t kOwnSteps = 2;
  constexpr auto kMoment = std::chrono::milliseconds(100), kLongest = std::chrono::milliseconds(200);
  const Clock::time_point now = Clock::now();
  const int64_t ran = steps_;
  const auto lately = [&](int64_t back) {
    const Clock::duration time(step_times_[static_cast<size_t>(ran - back) % kPaceSteps].load());
    return ran >= back && now - Clock::time_point(time) < kMoment;
  };
  if (lately(1) && (ran - steps_before > kOwnSteps || lately(kPaceSteps)) && !cancel_all_) {
    std::this_thread::sleep_for(std::min<Clock::duration>((now - *since) * kSaveRest, kLongest));
  }
  *since = Clock::now();
}

wire::SaveReceipt Transfers::DoSave(const wire::SaveSession& save, const std::vector<BranchSource>& sources) {
  const Clock::time_point start = Clock::now();
  const wire::BranchCut& trunk = save.branches.front();
  const std::span<const int32_t> tokens(sources.front().tokens());
  wire::SaveReceipt receipt{.stage = stage_,
                            .save = save.save,
                            .layer_begin = pieces_.pages().layers().begin,
                            .layer_end = pieces_.pages().layers().end,
                            .n_tokens = trunk.n_tokens,
                            .prefix = DigestOfTokens(tokens.first(static_cast<size_t>(trunk.n_tokens)))};
  receipt.status = wire::ToWire(WriteSegment(save, sources, &receipt));
  save_stream_.Check();
  receipt.ms = MsSince(start);
  return receipt;
}

absl::Status Transfers::WriteSegment(const wire::SaveSession& save, const std::vector<BranchSource>& sources,
                                     wire::SaveReceipt* receipt) {
  SaveSettings settings{.stage = stage_, .io = IoOptions(), .pieces_together = buffers_ != nullptr};
  ASSIGN_OR_RETURN(settings.directory, DirectoryFor(save));
  settings.cancelled = [&] { return Cancelled(save.save); };
  Clock::time_point since = Clock::now();
  const int64_t steps_before = steps_;
  settings.progress = [&](int64_t done, int64_t total) {
    MakeWay(steps_before, &since);
    results_->Put({.message = wire::TransferTick{stage_, save.save, false, done, total}});
  };
  ASSIGN_OR_RETURN(const SegmentSummary summary, SaveToSegment(save_stream_.Get(), pieces_, save, sources, settings));
  receipt->bytes = static_cast<int64_t>(summary.bytes);
  receipt->payload_bytes = static_cast<int64_t>(summary.payload_bytes);
  receipt->n_records = static_cast<int64_t>(summary.n_records);
  receipt->index_digest = summary.index_digest;
  return absl::OkStatus();
}

void Transfers::Park(const wire::ParkSession& park, StageSession session) {
  restore_lane_.Run([this, park, session = std::move(session)] {
    const Clock::time_point start = Clock::now();
    wire::ParkReceipt receipt{.stage = stage_, .park = park.park};
    absl::StatusOr<std::shared_ptr<const ParkImage>> image;
    {
      PieceCopier copier(restore_stream_.Get(), buffers_.get());
      image = ParkImage::Copy(copier, pieces_, session, park.checkpoints);
    }
    restore_stream_.Check();
    receipt.status = wire::ToWire(image.status());
    if (image.ok()) {
      receipt.bytes = (*image)->bytes();
      parked_.Put(park.park, *std::move(image));
    }
    receipt.ms = MsSince(start);
    results_->Put({.message = receipt});
  });
}

void Transfers::Unpark(const wire::UnparkSession& unpark) {
  restore_lane_.Run([this, unpark] { results_->Put(DoUnpark(unpark)); });
}

TransferResult Transfers::DoUnpark(const wire::UnparkSession& unpark) {
  const Clock::time_point start = Clock::now();
  wire::RestoreReceipt receipt{.stage = stage_, .restore = unpark.restore, .n_tokens = unpark.n_tokens};
  TransferResult result{.restored_session = unpark.session};
  const std::shared_ptr<const ParkImage> image = parked_.Get(unpark.park);
  absl::Status status = image == nullptr ? Internal("image {} is not parked here", unpark.park) : Fill(*image, unpark);
  restore_stream_.Check();
  if (status.ok()) {
    result.session = {.tokens = image->tokens(), .pages = unpark.pages, .window_pages = unpark.state.window_pages,
                      .state_slot = unpark.state.slot};
    result.session.tokens.resize(static_cast<size_t>(unpark.n_tokens));
    receipt.prefix = DigestOfTokens(result.session.tokens);
  }
  receipt.status = wire::ToWire(status);
  receipt.ms = MsSince(start);
  result.message = receipt;
  return result;
}

absl::Status Transfers::Fill(const ParkImage& image, const wire::UnparkSession& unpark) {
  if (static_cast<int64_t>(image.tokens().size()) < unpark.n_tokens) {
    return Internal("image {} has {} tokens, not {}", unpark.park, image.tokens().size(), unpark.n_tokens);
  }
  Stream& stream = restore_stream_.Get();
  pieces_.ZeroUnfilled(stream, unpark.pages, unpark.n_tokens);
  pieces_.ZeroWindow(stream, unpark.state.window_pages);
  for (const wire::StateAt& checkpoint : unpark.checkpoints) pieces_.ZeroWindow(stream, checkpoint.window_pages);
  PieceCopier copier(stream, buffers_.get());
  const auto fill = [&](const std::vector<PieceRun>& runs, const StateTables& to) -> absl::Status {
    for (const PieceRun& run : runs) {
      for (const StatePiece& piece : run) {
        const std::byte* parked = image.Find(pieces_, piece);
        if (parked == nullptr) {
          return Internal("image {} lacks the {} at {}", unpark.park, RecordKindName(piece.kind), piece.end);
        }
        copier.Write({parked, pieces_.Bytes(piece)},
                     [&](Stream& s, const std::byte* bytes) { pieces_.Write(s, piece, to, bytes); });
      }
    }
    return absl::OkStatus();
  };
  const StateTables tables{unpark.pages, unpark.state.window_pages, unpark.state.slot};
  RETURN_IF_ERROR(pieces_.CheckTables(unpark.n_tokens, tables));
  RETURN_IF_ERROR(fill(pieces_.Rows(0, unpark.n_tokens), tables));
  RETURN_IF_ERROR(fill(pieces_.StateAt(unpark.n_tokens), tables));
  for (const wire::StateAt& checkpoint : unpark.checkpoints) {
    const StateTables at{unpark.pages, checkpoint.window_pages, checkpoint.slot};
    RETURN_IF_ERROR(pieces_.CheckTables(checkpoint.position, at));
    RETURN_IF_ERROR(fill(pieces_.StateAt(checkpoint.position), at));
  }
  return copier.Finish();
}

void Transfers::DropPark(const wire::DropPark& drop) {
  // Behind an unpark that may still read it.
  restore_lane_.Run([this, drop] { parked_.Drop(drop.park); });
}

void Transfers::Restore(const wire::RestoreSession& restore) {
  restore_lane_.Run([this, restore] { results_->Put(DoRestore(restore)); });
}

TransferResult Transfers::DoRestore(const wire::RestoreSession& restore) {
  const Clock::time_point start = Clock::now();
  wire::RestoreReceipt receipt{.stage = stage_, .restore = restore.restore,
                               .n_tokens = static_cast<int64_t>(restore.tokens.size()),
                               .prefix = DigestOfTokens(restore.tokens)};
  const RestoreHooks hooks{
      .open = [this](const wire::SegmentRef& ref, const SegmentExpectations& expected) { return OpenSegment(ref, expected); },
      .cancelled = [this] { return cancel_all_.load(); },
      .tick = [&](int64_t done, int64_t total) {
        results_->Put({.message = wire::TransferTick{stage_, restore.restore, true, done, total}});
      }};
  const absl::Status status = FillFromSegments(restore_stream_.Get(), pieces_, restore, hooks, &receipt.bytes_read);
  restore_stream_.Check();
  receipt.status = wire::ToWire(status);
  receipt.ms = MsSince(start);
  // A session that could not be filled exists too, empty, until the coordinator closes it: so all stages agree.
  TransferResult result{.message = receipt, .restored_session = restore.session};
  if (status.ok()) {
    result.session = {.tokens = restore.tokens, .pages = restore.pages, .window_pages = restore.state.window_pages,
                      .state_slot = restore.state.slot};
  }
  return result;
}

}  // namespace layover
