#include "tests/storage/storage_fixture.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <sstream>

#include "common/check.h"
#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/fault_point.h"
#include "common/storage/file_names.h"
#include "common/storage/record_plan.h"

namespace layover::testing {

TempFolder::TempFolder(Place place) {
  const char* parent = std::getenv("TMPDIR");
  std::string name = parent == nullptr ? "/tmp" : parent;
  if (place == Place::kInMemory && access("/dev/shm", W_OK) == 0) name = "/dev/shm";
  name += "/layover-test-XXXXXX";
  LAYOVER_CHECK(mkdtemp(name.data()) != nullptr);
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

void WriteFile(const std::string& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  out.close();
  EXPECT_TRUE(out.good()) << path;
}

std::map<std::string, std::string> Snapshot(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    files[std::filesystem::relative(entry.path(), folder).string()] = ReadFile(entry.path().string());
  }
  return files;
}

std::string Noise(uint64_t seed, size_t bytes) {
  std::mt19937_64 generator(seed);
  std::string out(bytes, '\0');
  for (char& c : out) c = static_cast<char>(generator());
  return out;
}

std::vector<int32_t> SampleIds(int32_t count, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(generator() % 49152);
  return ids;
}

BlockIoOptions Buffered() {
  BlockIoOptions options;
  options.direct = false;
  return options;
}

absl::StatusOr<SegmentSummary> WriteSegment(const std::string& folder, const SegmentHeader& header,
                                            const std::vector<SampleRecord>& records, const BlockIoOptions& io) {
  SegmentWriter::Options options;
  options.io = io;
  ASSIGN_OR_RETURN(
      const auto writer,
      SegmentWriter::Create(JoinPath(folder, SegmentFileName(header.stage, header.generation)), header, options));
  for (const SampleRecord& record : records) {
    if (record.begins_run) RETURN_IF_ERROR(writer->BeginRun());
    ASSIGN_OR_RETURN(const std::span<std::byte> room, writer->AppendRecord(record.key, record.payload.size()));
    std::memcpy(room.data(), record.payload.data(), record.payload.size());
  }
  return writer->Finish();
}

StoredIdentity SampleIdentity(uint64_t seed) {
  StoredIdentity identity;
  identity.format = 1;
  identity.page_tokens = limits::kPageTokens;
  identity.architecture = "sample";
  identity.kv_type = "f16";
  identity.arch = Digest{1, 2};
  identity.rope = Digest{3, 4};
  identity.tokenizer = Digest{5, 6};
  for (uint64_t i = 0; i < SampleConversation::kLayers + 2; ++i) identity.weights.push_back(Digest{seed, i + 1});
  identity.combined = Digest{7, seed};
  return identity;
}

SampleConversation::SampleConversation(const std::string& store, const std::string& id, const std::string& owner)
    : store_(store), id_(id), owner_(owner), folder_(ConversationFolder(owner, id)) {}

std::string SampleConversation::path() const {
  return ConversationPath(store_, folder_);
}

absl::Status SampleConversation::Begin() {
  RETURN_IF_ERROR(PrepareStore(store_));
  ASSIGN_OR_RETURN(journal_, Journal::Create(store_, {owner_, id_, 1'700'000'000'000, 42}));
  return absl::OkStatus();
}

absl::Status SampleConversation::OpenJournal() {
  ASSIGN_OR_RETURN(journal_, Journal::Open(path(), std::nullopt));
  return absl::OkStatus();
}

absl::Status SampleConversation::Turn(int32_t prompt, int32_t generated) {
  const JournalState& state = journal_->state();
  const auto seed = static_cast<uint64_t>(state.turns.size()) + 7;
  const std::vector<int32_t> ids = SampleIds(prompt + generated, seed);
  PromptFrame frame;
  frame.parent = state.trunk;
  frame.fork_position = state.trunk_length;
  frame.time_ms = 1'700'000'000'000;
  frame.ids = std::span(ids).first(static_cast<size_t>(prompt));
  frame.text = "hello";
  RETURN_IF_ERROR(journal_->AppendPrompt(frame));
  const int64_t turn = journal_->state().turns.back().number;
  for (int32_t i = prompt; i < prompt + generated; ++i) {
    RETURN_IF_ERROR(journal_->AppendGenerated(turn, std::span(ids).subspan(static_cast<size_t>(i), 1)));
  }
  TurnEndFrame end;
  end.turn = turn;
  end.fed = journal_->state().turns.back().length() - (generated > 0 ? 1 : 0);
  end.text = "there";
  return journal_->AppendTurnEnd(end);
}

int32_t SampleConversation::n_tokens() const {
  return journal_->state().trunk_length;
}

SegmentHeader SampleConversation::HeaderOf(int stage, int64_t generation) const {
  SegmentHeader header;
  header.identity = SampleIdentity().combined;
  header.conversation = ConversationDigest(owner_, id_);
  header.stage = stage;
  header.layer_begin = stage * kLayers / kStages;
  header.layer_end = (stage + 1) * kLayers / kStages;
  header.generation = generation;
  header.n_tokens = n_tokens();
  return header;
}

std::vector<SampleRecord> SampleConversation::RecordsOf(int stage, int32_t n, uint64_t content_seed) const {
  const std::vector<int32_t> ids = journal_->state().TrunkIds();
  const PrefixDigests path(ids);
  const SegmentHeader header = HeaderOf(stage, 1);
  std::vector<SampleRecord> records;
  RecordKey key{RecordKind::kTokenIds, ElementType::kInt32, kNoLayer, 0, n, 0, path.At(n)};
  records.push_back({key, std::string(reinterpret_cast<const char*>(ids.data()), 4 * static_cast<size_t>(n)), true});
  for (int32_t layer = header.layer_begin; layer < header.layer_end; ++layer) {
    for (const RecordKind kind : {RecordKind::kKRows, RecordKind::kVRows}) {
      for (int32_t begin = 0; begin < n; begin += limits::kPageTokens) {
        const int32_t end = std::min(begin + limits::kPageTokens, n);
        const size_t row_bytes = kind == RecordKind::kKRows ? 24 : 20;
        const auto seed = content_seed + static_cast<uint64_t>(layer) * 1000 + static_cast<uint64_t>(kind) * 100 +
                          static_cast<uint64_t>(begin);
        key = {kind, ElementType::kF16, layer, begin, end, 0, path.At(end)};
        records.push_back({key, Noise(seed, row_bytes * static_cast<size_t>(end - begin)), begin == 0});
      }
    }
  }
  return records;
}

Manifest SampleConversation::ManifestOf(int64_t generation, const std::vector<SegmentSummary>& summaries) const {
  Manifest manifest;
  manifest.id = id_;
  manifest.owner = owner_;
  manifest.generation = generation;
  manifest.n_tokens = n_tokens();
  manifest.prefix = DigestOfTokens(journal_->state().TrunkIds());
  manifest.created_at = 1'700'000'000;
  manifest.saved_at = 1'700'000'100;
  manifest.identity = SampleIdentity();
  manifest.template_digest = Digest{8, 9};
  manifest.numerics = "cpu-1";
  manifest.branches = {{0, -1, 0, manifest.n_tokens, manifest.prefix, {}, {{"", generation, 0, manifest.n_tokens}}}};
  for (const SegmentSummary& summary : summaries) {
    const SegmentName name = *ParseSegmentFileName(summary.file);
    const SegmentHeader header = HeaderOf(name.stage, name.generation);
    ManifestSegment segment;
    segment.file = summary.file;
    segment.stage = name.stage;
    segment.generation = name.generation;
    segment.layer_begin = header.layer_begin;
    segment.layer_end = header.layer_end;
    segment.tokens = {{0, manifest.n_tokens}};
    segment.bytes = summary.bytes;
    segment.live_bytes = summary.payload_bytes;
    segment.index_digest = summary.index_digest;
    manifest.segments.push_back(segment);
  }
  return manifest;
}

absl::Status SampleConversation::Save() {
  ASSIGN_OR_RETURN(const ConversationImage image, LoadConversation(store_, folder_));
  const int64_t generation = std::max(image.next_generation, journal_->state().highest_generation + 1);
  std::vector<SegmentSummary> summaries;
  absl::Status status;
  for (int stage = 0; stage < kStages && status.ok(); ++stage) {
    absl::StatusOr<SegmentSummary> summary =
        WriteSegment(path(), HeaderOf(stage, generation), RecordsOf(stage, n_tokens(), 17));
    status = summary.status();
    if (summary.ok()) summaries.push_back(*summary);
  }
  CommitOutcome outcome{status};
  Manifest manifest = ManifestOf(generation, summaries);
  if (status.ok()) outcome = CommitSave(store_, folder_, &manifest, journal_.get());
  if (!outcome.status.ok()) {
    if (outcome.visible) return outcome.status;
    for (const SegmentSummary& summary : summaries) RemoveDurably(path(), summary.file).IgnoreError();
    return outcome.status;
  }
  ASSIGN_OR_RETURN(SegmentNames names, SegmentNames::Collect(store_));
  return RemoveDeadSegments(store_, folder_, names).status();
}

bool RunWithFault(const std::string& fault, const std::function<void()>& body) {
  std::cout.flush();
  const pid_t child = fork();
  LAYOVER_CHECK(child >= 0);
  if (child == 0) {
    setenv("LAYOVER_FAULT", fault.c_str(), 1);
    ResetFaultPoints();
    body();
    std::cout.flush();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  LAYOVER_CHECK(waitpid(child, &status, 0) == child);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return false;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << fault;
  return true;
}

int CountFaultPoints(const std::function<void()>& body) {
  const TempFolder folder;
  const std::string trace = folder.path() + "/trace";
  WriteFile(trace, "");
  EXPECT_TRUE(RunWithFault("trace:" + trace, body));
  const std::string lines = ReadFile(trace);
  return static_cast<int>(std::count(lines.begin(), lines.end(), '\n'));
}

}  // namespace layover::testing
