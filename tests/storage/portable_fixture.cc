#include "tests/storage/portable_fixture.h"

#include <filesystem>

#include "common/check.h"
#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"

namespace layover::testing {

PortableSecret SampleKey(char fill) {
  return {KeySource::kKeyFile, std::string(32, fill)};
}

PortableSecret SamplePassphrase() {
  return {KeySource::kPassphrase, "correct horse battery staple"};
}

absl::Status SaveSmall(SampleConversation* chat) {
  std::vector<SegmentSummary> summaries;
  for (int stage = 0; stage < SampleConversation::kStages; ++stage) {
    std::vector<SampleRecord> records = chat->RecordsOf(stage, chat->n_tokens(), 17);
    for (SampleRecord& record : records) record.begins_run = false;
    ASSIGN_OR_RETURN(const SegmentSummary summary, WriteSegment(chat->path(), chat->HeaderOf(stage, 1), records));
    summaries.push_back(summary);
  }
  Manifest manifest = chat->ManifestOf(1, summaries);
  return CommitSave(chat->store(), chat->folder(), &manifest, &chat->journal()).status;
}

absl::StatusOr<std::unique_ptr<SampleConversation>> Fork(const SampleConversation& parent, const std::string& id) {
  ASSIGN_OR_RETURN(const ConversationImage image, LoadConversation(parent.store(), parent.folder()));
  auto fork = std::make_unique<SampleConversation>(parent.store(), id, image.owner);
  RETURN_IF_ERROR(fork->Begin());
  for (const JournalTurn& turn : image.journal.state.turns) {
    RETURN_IF_ERROR(fork->Turn(static_cast<int32_t>(turn.prompt.size()), static_cast<int32_t>(turn.generated.size())));
  }
  Manifest manifest = *image.manifest;
  manifest.id = id;
  for (ManifestSegment& segment : manifest.segments) {
    if (segment.folder.empty()) segment.folder = parent.folder();
  }
  for (ChainLink& link : manifest.branches[0].chain) {
    if (link.folder.empty()) link.folder = parent.folder();
  }
  RETURN_IF_ERROR(CommitSave(fork->store(), fork->folder(), &manifest, &fork->journal()).status);
  return fork;
}

PortableParts PartsOf(const SampleConversation& chat) {
  PortableParts parts;
  const absl::StatusOr<ConversationImage> image = LoadConversation(chat.store(), chat.folder());
  LAYOVER_CHECK(image.ok() && image->manifest.has_value());
  parts.body.push_back(ReadFile(JoinPath(chat.path(), kJournalName)));
  for (const ManifestSegment& segment : image->manifest->segments) {
    parts.body.push_back(ReadFile(JoinPath(chat.path(), segment.file)));
  }
  parts.head = {parts.body[0].size(), image->owner, image->id, ReadFile(JoinPath(chat.path(), kManifestName))};
  return parts;
}

absl::Status WritePortable(const std::string& file, const PortableParts& parts, const PortableSecret& secret,
                           const PortableWriteOptions& options) {
  std::filesystem::remove(file);
  uint64_t body_bytes = 0;
  for (const std::string& part : parts.body) body_bytes += part.size();
  ASSIGN_OR_RETURN(const auto writer, PortableWriter::Create(file, secret, parts.head, body_bytes, options));
  for (const std::string& part : parts.body) RETURN_IF_ERROR(writer->Append(part));
  return writer->Finish().status();
}

absl::StatusOr<PortableSummary> Import(const std::string& store, const std::string& file, const PortableSecret& secret,
                                       const ImportTarget& target) {
  ASSIGN_OR_RETURN(const std::unique_ptr<PortableReader> reader, PortableReader::Open(file, secret));
  return ImportConversation(store, reader.get(), target);
}

void TransferTest::SetUp() {
  ASSERT_OK(chat_.Begin());
  ASSERT_OK(chat_.Turn(100, 31));
  ASSERT_OK(PrepareStore(there_));
}

absl::StatusOr<PortableSummary> TransferTest::Export(const SampleConversation& chat, const PortableSecret& secret) {
  std::filesystem::remove(file_);
  return ExportConversation(chat.store(), chat.folder(), file_, secret);
}

ConversationImage TransferTest::Load(const std::string& store, const std::string& owner, const std::string& id) {
  absl::StatusOr<ConversationImage> image = LoadConversation(store, ConversationFolder(owner, id));
  EXPECT_OK(image);
  return image.ok() ? *std::move(image) : ConversationImage{};
}

void TransferTest::ExpectSound(const std::string& store, const std::string& owner, const std::string& id) {
  const absl::StatusOr<VerifyReport> report = VerifyConversation(store, ConversationFolder(owner, id), nullptr);
  ASSERT_OK(report);
  EXPECT_TRUE(report->ok()) << report->problems[0].file << ": " << report->problems[0].what;
}

}  // namespace layover::testing
