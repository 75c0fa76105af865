// Shared by the tests of portable files: a conversation to export, a store to import into, and files made by hand.
#ifndef LAYOVER_TESTS_STORAGE_PORTABLE_FIXTURE_H_
#define LAYOVER_TESTS_STORAGE_PORTABLE_FIXTURE_H_

#include <memory>
#include <string>
#include <vector>

#include "common/storage/portable_export.h"
#include "common/storage/portable_import.h"
#include "common/storage/portable_stream.h"
#include "tests/storage/storage_fixture.h"

namespace layover::testing {

PortableSecret SampleKey(char fill = 'k');
PortableSecret SamplePassphrase();

// Saves all tokens of `chat` with its records in one run a stage, so that every file is a few blocks.
absl::Status SaveSmall(SampleConversation* chat);

// A conversation with the id `id` whose manifest names `parent`'s segments, as a fork does.
absl::StatusOr<std::unique_ptr<SampleConversation>> Fork(const SampleConversation& parent, const std::string& id);

// What a portable file is made of.
struct PortableParts {
  PortableHead head;
  std::vector<std::string> body;  // the journal, then segments
};
// Of a saved conversation.
PortableParts PartsOf(const SampleConversation& chat);
// Without any check of what the parts say. `file` may exist.
absl::Status WritePortable(const std::string& file, const PortableParts& parts, const PortableSecret& secret,
                           const PortableWriteOptions& options = {});

// Opens and imports; into a store that exists.
absl::StatusOr<PortableSummary> Import(const std::string& store, const std::string& file,
                                       const PortableSecret& secret = {}, const ImportTarget& target = {});

// A conversation of one turn in the store `here`, an empty store `there` as on another machine, and a file between
// them.
class TransferTest : public ::testing::Test {
 protected:
  void SetUp() override;

  // To file_, replacing it.
  absl::StatusOr<PortableSummary> Export(const SampleConversation& chat, const PortableSecret& secret = {});
  ConversationImage Load(const std::string& store, const std::string& owner, const std::string& id);
  void ExpectSound(const std::string& store, const std::string& owner, const std::string& id);

  TempFolder temp_;
  const std::string here_ = temp_.path() + "/here";
  const std::string there_ = temp_.path() + "/there";
  const std::string file_ = temp_.path() + "/file";
  SampleConversation chat_{here_};
};

}  // namespace layover::testing

#endif  // LAYOVER_TESTS_STORAGE_PORTABLE_FIXTURE_H_
