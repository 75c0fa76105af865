#include "common/storage/journal.h"

#include <sys/random.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "common/check.h"
#include "common/limits.h"
#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "common/storage/journal_format.h"
#include "common/storage/journal_scan.h"
#include "fmt/format.h"

namespace layover {
namespace {

absl::Status Named(const absl::Status& status) {
  if (status.ok()) return status;
  StatusPart part;
  part.file = std::string(kJournalName);
  return WithPart(absl::Status(status.code(), ToAbsl(fmt::format("{}: {}", kJournalName, ToStd(status.message())))),
                  part);
}

uint64_t RandomSalt() {
  uint64_t salt = 0;
  LAYOVER_CHECK(getrandom(&salt, sizeof(salt), 0) == sizeof(salt));
  return salt;
}

// The file: frames up to `written_` are in it, those up to `synced_` survive a power cut, the rest waits in memory. All
// frames behind `synced_` are kept until a sync succeeds, because a failed one may have lost any of them.
class JournalImpl : public Journal {
 public:
  JournalImpl(std::string path, UniqueFd fd, JournalScan scan)
      : path_(std::move(path)),
        fd_(std::move(fd)),
        salt_(scan.salt),
        state_(std::move(scan.state)),
        torn_bytes_(scan.torn_bytes),
        next_sequence_(scan.next_sequence),
        last_chain_(scan.end.chain),
        written_(scan.end),
        synced_(scan.end) {}

  // Cuts off what the scan found torn, and makes sure that what it found good stays.
  absl::Status Mend() {
    if (torn_bytes_ > 0) RETURN_IF_ERROR(TruncateFile(fd_.get(), path_, written_.bytes));
    return SyncFile(fd_.get(), path_);
  }

  const JournalState& state() const override { return state_; }
  JournalBound bound() const override { return written_; }
  uint64_t torn_bytes() const override { return torn_bytes_; }
  uint64_t pending_bytes() const override {
    uint64_t bytes = 0;
    for (size_t i = n_written_; i < waiting_.size(); ++i) bytes += waiting_[i].bytes.size();
    return bytes;
  }

  absl::Status AppendPrompt(const PromptFrame& prompt) override {
    return Append(FrameKind::kPrompt, EncodePrompt(prompt));
  }
  absl::Status AppendGenerated(int64_t turn, std::span<const int32_t> ids) override {
    return Append(FrameKind::kGenerated, EncodeGenerated(turn, ids));
  }
  absl::Status AppendTurnEnd(const TurnEndFrame& end) override {
    return Append(FrameKind::kTurnEnd, EncodeTurnEnd(end));
  }
  absl::Status AppendRewind(int64_t turn, int32_t length) override {
    return Append(FrameKind::kRewind, EncodeRewind(turn, length));
  }
  absl::Status AppendSaving(int64_t generation, const Digest& manifest) override {
    return AppendOrDrop(FrameKind::kSaving, EncodeSave(generation, manifest));
  }
  absl::Status AppendSaved(int64_t generation, const Digest& manifest) override {
    return Append(FrameKind::kSaved, EncodeSave(generation, manifest));
  }
  absl::Status AppendDeleted() override { return AppendOrDrop(FrameKind::kDeleted, ""); }

  absl::Status Flush() override { return Named(Write(/*sync=*/true)); }

 private:
  struct Frame {
    std::string bytes;
    Digest chain;
  };

  absl::Status Append(FrameKind kind, const std::string& payload) {
    RETURN_IF_ERROR(Take(kind, payload));
    return Named(Write(IsSyncedKind(kind)));
  }

  // For frames that must not come to disk later, when nobody waits for them any more.
  absl::Status AppendOrDrop(FrameKind kind, const std::string& payload) {
    const Digest chain_before = last_chain_;
    const size_t n_savings = state_.savings.size();
    RETURN_IF_ERROR(Take(kind, payload));
    const absl::Status status = Write(/*sync=*/true);
    if (status.ok()) return status;
    // A failed write or sync leaves the frame among the waiting ones, as the last. highest_generation stays: the number
    // is used up.
    waiting_bytes_ -= waiting_.back().bytes.size();
    waiting_.pop_back();
    --next_sequence_;
    last_chain_ = chain_before;
    state_.savings.resize(n_savings);
    state_.deleted = false;
    return Named(status);
  }

  absl::Status Take(FrameKind kind, const std::string& payload) {
    if (payload.size() > limits::kMaxJournalFrameBytes)
      return Named(InvalidArgument("a frame of {} bytes", payload.size()));
    if (waiting_bytes_ + payload.size() > limits::kMaxJournalPendingBytes) {
      return Named(Unavailable("{} bytes wait to be written, no more are taken", waiting_bytes_));
    }
    RETURN_IF_ERROR(Named(ApplyFrame(kind, payload, &state_)));
    FrameHeader header;
    header.kind = kind;
    header.sequence = next_sequence_;
    header.previous = last_chain_;
    Frame frame;
    frame.bytes = EncodeFrame(header, salt_, payload, &frame.chain);
    last_chain_ = frame.chain;
    ++next_sequence_;
    waiting_bytes_ += frame.bytes.size();
    waiting_.push_back(std::move(frame));
    return absl::OkStatus();
  }

  absl::Status Write(bool sync) {
    if (cut_due_) RETURN_IF_ERROR(CutBack());
    std::string bytes;
    for (size_t i = n_written_; i < waiting_.size(); ++i) bytes += waiting_[i].bytes;
    if (!bytes.empty()) {
      if (const absl::Status status = WriteAt(fd_.get(), path_, written_.bytes, bytes); !status.ok()) {
        cut_due_ = true;
        CutBack().IgnoreError();  // tried again before the next write
        return status;
      }
      written_.bytes += bytes.size();
      written_.chain = last_chain_;
      n_written_ = waiting_.size();
    }
    if (!sync) return absl::OkStatus();
    if (const absl::Status status = SyncFile(fd_.get(), path_); !status.ok()) {
      // After a failed sync the system may have dropped any unsynced page and will not say which: write them all again.
      written_ = synced_;
      n_written_ = 0;
      cut_due_ = true;
      CutBack().IgnoreError();
      return status;
    }
    synced_ = written_;
    waiting_.clear();
    waiting_bytes_ = 0;
    n_written_ = 0;
    return absl::OkStatus();
  }

  absl::Status CutBack() {
    RETURN_IF_ERROR(TruncateFile(fd_.get(), path_, written_.bytes));
    cut_due_ = false;
    return absl::OkStatus();
  }

  const std::string path_;
  UniqueFd fd_;
  const uint64_t salt_;
  JournalState state_;
  const uint64_t torn_bytes_;
  uint64_t next_sequence_;
  Digest last_chain_;  // of the last frame taken, written or not
  JournalBound written_;
  JournalBound synced_;
  std::deque<Frame> waiting_;  // behind synced_
  size_t n_written_ = 0;       // of waiting_, from the front
  uint64_t waiting_bytes_ = 0;
  bool cut_due_ = false;  // what lies behind written_ in the file is not ours
};

// An old journal that only says that its conversation is gone does not stand in the way of a new one.
absl::Status CheckReplaceable(const std::string& folder) {
  const absl::StatusOr<JournalScan> old = ScanJournal(folder, std::nullopt);
  if (absl::IsNotFound(old.status()) || (old.ok() && old->state.deleted)) return absl::OkStatus();
  RETURN_IF_ERROR(old.status());
  return absl::AlreadyExistsError("journal: this conversation exists");
}

}  // namespace

std::vector<int32_t> JournalState::PathIds(int64_t turn, int32_t length) const {
  std::vector<int32_t> ids(static_cast<size_t>(length));
  int32_t end = length;  // what is still to fill: [0, end)
  while (end > 0) {
    LAYOVER_CHECK(turn != kNoTurn);
    const JournalTurn& t = turns[static_cast<size_t>(turn)];
    LAYOVER_CHECK(end <= t.length());
    const auto prompt_end = t.fork_position + static_cast<int32_t>(t.prompt.size());
    for (int32_t i = t.fork_position; i < std::min(end, prompt_end); ++i) {
      ids[static_cast<size_t>(i)] = t.prompt[static_cast<size_t>(i - t.fork_position)];
    }
    for (int32_t i = prompt_end; i < end; ++i) {
      ids[static_cast<size_t>(i)] = t.generated[static_cast<size_t>(i - prompt_end)];
    }
    end = std::min(end, t.fork_position);
    turn = t.parent;
  }
  return ids;
}

std::vector<int32_t> JournalState::PathIds(int64_t turn) const {
  return turn == kNoTurn ? std::vector<int32_t>() : PathIds(turn, turns[static_cast<size_t>(turn)].length());
}

std::vector<int32_t> JournalState::TrunkIds() const {
  return trunk == kNoTurn ? std::vector<int32_t>() : PathIds(trunk, trunk_length);
}

int32_t JournalState::HeldLength(int64_t turn) const {
  if (turn == kNoTurn) return 0;
  const JournalTurn& t = turns[static_cast<size_t>(turn)];
  if (t.ended) return t.fed;
  return t.generated.empty() ? t.length() : t.length() - 1;
}

int64_t JournalState::FindTurn(int32_t length, const Digest& prefix) const {
  // Newest first: of several turns with the same beginning, the one worked on last.
  for (auto turn = static_cast<int64_t>(turns.size()) - 1; turn >= 0; --turn) {
    const JournalTurn& t = turns[static_cast<size_t>(turn)];
    if (length <= t.length() && DigestOfTokens(PathIds(turn, length)) == prefix) return turn;
  }
  return kNoTurn;
}

bool JournalState::Accepts(int64_t generation, const Digest& manifest) const {
  const auto matches = [&](const SavingFrame& frame) {
    return frame.generation == generation && frame.manifest == manifest;
  };
  return (saved.has_value() && matches(*saved)) || std::any_of(savings.begin(), savings.end(), matches);
}

absl::StatusOr<std::unique_ptr<Journal>> Journal::Create(const std::string& store, const NewJournal& fresh) {
  const std::string folder = ConversationPath(store, ConversationFolder(fresh.owner, fresh.id));
  RETURN_IF_ERROR(Named(EnsureFolder(folder)));
  RETURN_IF_ERROR(CheckReplaceable(folder));
  OpenFrame open{fresh.salt == 0 ? RandomSalt() : fresh.salt, fresh.time_ms, fresh.owner, fresh.id};
  Digest chain;
  // Its own header's checksum has salt 0: the salt is only known from its payload.
  const std::string frame = EncodeFrame(FrameHeader{}, /*salt=*/0, EncodeOpen(open), &chain);
  RETURN_IF_ERROR(Named(WriteFileDurably(folder, kJournalName, frame)));
  return Open(folder, std::nullopt);
}

absl::StatusOr<std::unique_ptr<Journal>> Journal::Open(const std::string& folder,
                                                       const std::optional<JournalBound>& bound) {
  ASSIGN_OR_RETURN(JournalScan scan, ScanJournal(folder, bound));
  const std::string path = JoinPath(folder, kJournalName);
  absl::StatusOr<UniqueFd> fd = OpenFile(path, OpenMode::kReadWrite);
  if (!fd.ok()) return Named(fd.status());
  auto journal = std::make_unique<JournalImpl>(path, *std::move(fd), std::move(scan));
  RETURN_IF_ERROR(Named(journal->Mend()));
  return journal;
}

absl::StatusOr<Journal::Inspection> Journal::Inspect(const std::string& folder,
                                                     const std::optional<JournalBound>& bound) {
  ASSIGN_OR_RETURN(JournalScan scan, ScanJournal(folder, bound));
  return Inspection{std::move(scan.state), scan.end, scan.torn_bytes};
}

}  // namespace layover
