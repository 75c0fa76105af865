// Holds docs/storage_format.md and the code together: every table of the page is compared with the code's offsets,
// sizes, numbers and names.
#include <algorithm>
#include <map>
#include <sstream>

#include "common/storage/journal_format.h"
#include "common/storage/manifest.h"
#include "common/storage/portable_format.h"
#include "common/storage/segment_format.h"
#include "nlohmann/json.hpp"
#include "tests/storage/storage_fixture.h"

namespace layover {
namespace {

using Row = std::vector<std::string>;
using Table = std::vector<Row>;

std::string Trim(const std::string& text) {
  const size_t begin = text.find_first_not_of(" `");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" `") - begin + 1);
}

Row Cells(const std::string& line) {
  Row row;
  std::stringstream in(line.substr(1));
  for (std::string cell; std::getline(in, cell, '|');) row.push_back(Trim(cell));
  return row;
}

// The page's marked tables without their two heading lines, by "layout: IndexEntry".
std::map<std::string, Table> ReadTables() {
  std::stringstream page(testing::ReadFile(std::string(LAYOVER_SOURCE_DIR) + "/docs/storage_format.md"));
  std::map<std::string, Table> tables;
  std::string mark;
  int heading = 0;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("<!-- ")) {
      mark = line.substr(5, line.find(" -->") - 5);
      EXPECT_FALSE(tables.contains(mark)) << mark;
      heading = 2;
    } else if (!mark.empty() && line.starts_with("|")) {
      if (heading > 0) {
        --heading;
      } else {
        tables[mark].push_back(Cells(line));
      }
    } else {
      mark.clear();
    }
  }
  return tables;
}

class FormatPageTest : public ::testing::Test {
 protected:
  const Table& Get(const std::string& mark) {
    EXPECT_TRUE(tables_.contains(mark)) << "no table " << mark;
    return tables_[mark];
  }
  std::map<std::string, Table> tables_ = ReadTables();
};

TEST_F(FormatPageTest, LayoutsAreThoseOfTheCode) {
  const std::map<std::string, std::span<const FieldSpec>> layouts = {
      {"SegmentHeader", SegmentHeaderFields()},
      {"IndexEntry", IndexEntryFields()},
      {"Footer", FooterFields()},
      {"Checkpoint", CheckpointFields()},
      {"CheckpointReference", CheckpointReferenceFields()},
      {"FrameHeader", FrameHeaderFields()},
      {"OpenFrame", OpenFrameFields()},
      {"PromptFrame", PromptFrameFields()},
      {"GeneratedFrame", GeneratedFrameFields()},
      {"TurnEndFrame", TurnEndFrameFields()},
      {"RewindFrame", RewindFrameFields()},
      {"SaveFrame", SaveFrameFields()},
      {"PortableHeader", PortableHeaderFields()},
      {"PortableHead", PortableHeadFields()},
      {"ChunkNonce", ChunkNonceFields()},
  };
  for (const auto& [name, fields] : layouts) {
    const Table& table = Get("layout: " + name);
    ASSERT_EQ(table.size(), fields.size()) << name;
    size_t end = 0;
    for (size_t i = 0; i < fields.size(); ++i) {
      EXPECT_EQ(table[i][0], std::to_string(fields[i].offset)) << name << "." << fields[i].name;
      EXPECT_EQ(table[i][1], std::to_string(fields[i].bytes)) << name << "." << fields[i].name;
      EXPECT_EQ(table[i][2], fields[i].name) << name;
      EXPECT_EQ(fields[i].offset, end) << name << "." << fields[i].name << ": a gap";
      end = fields[i].offset + fields[i].bytes;
    }
  }
  const auto marked =
      std::count_if(tables_.begin(), tables_.end(), [](const auto& t) { return t.first.starts_with("layout: "); });
  EXPECT_EQ(static_cast<size_t>(marked), layouts.size()) << "a layout on the page that no test knows";
}

TEST_F(FormatPageTest, RecordKindsAreThoseOfTheCode) {
  const Table& table = Get("constants: RecordKind");
  for (size_t i = 0; i < table.size(); ++i) {
    EXPECT_EQ(table[i][0], std::to_string(i + 1));
    EXPECT_EQ(table[i][1], RecordKindName(static_cast<RecordKind>(i + 1)));
  }
  EXPECT_EQ(RecordKindName(static_cast<RecordKind>(table.size() + 1)), "unknown kind");
}

TEST_F(FormatPageTest, ElementTypesAreThoseOfTheCode) {
  const std::vector<std::pair<ElementType, std::string>> types = {
      {ElementType::kF32, "f32"},   {ElementType::kF16, "f16"},     {ElementType::kQ8_0, "q8_0"},
      {ElementType::kQ4_0, "q4_0"}, {ElementType::kInt32, "int32"}, {ElementType::kTable, "table"}};
  const Table& table = Get("constants: ElementType");
  ASSERT_EQ(table.size(), types.size());
  for (size_t i = 0; i < types.size(); ++i) {
    EXPECT_EQ(table[i][0], std::to_string(static_cast<int>(types[i].first)));
    EXPECT_EQ(table[i][1], types[i].second);
  }
}

TEST_F(FormatPageTest, FrameKindsAreThoseOfTheCode) {
  const Table& table = Get("constants: FrameKind");
  for (size_t i = 0; i < table.size(); ++i) {
    const auto kind = static_cast<FrameKind>(i + 1);
    EXPECT_EQ(table[i][0], std::to_string(i + 1));
    EXPECT_EQ(table[i][1], FrameKindName(kind));
    EXPECT_EQ(table[i][2], IsSyncedKind(kind) ? "yes" : "no") << table[i][1];
  }
  EXPECT_EQ(FrameKindName(static_cast<FrameKind>(table.size() + 1)), "unknown kind");
}

TEST_F(FormatPageTest, ManifestFieldsAreThoseOfTheCodeInOrder) {
  testing::TempFolder folder;
  testing::SampleConversation chat(folder.path() + "/store");
  ASSERT_OK(chat.Begin());
  ASSERT_OK(chat.Turn(3, 1));
  ASSERT_OK(chat.Save());
  const std::string text = testing::ReadFile(chat.path() + "/manifest.json");
  const auto json = nlohmann::ordered_json::parse(text);
  const auto expect_fields = [&](const std::string& name, const nlohmann::ordered_json& object) {
    const Table& table = Get("fields: " + name);
    ASSERT_EQ(table.size(), object.size()) << name;
    size_t i = 0;
    for (const auto& [key, value] : object.items()) EXPECT_EQ(table[i++][0], key) << name;
  };
  expect_fields("Manifest", json);
  expect_fields("Identity", json["identity"]);
  expect_fields("Branch", json["branches"][0]);
  expect_fields("ChainLink", json["branches"][0]["chain"][0]);
  expect_fields("Segment", json["segments"][0]);
}

// Numbers that stand in the page's text.
TEST_F(FormatPageTest, NumbersInTheTextAreThoseOfTheCode) {
  const std::string page = testing::ReadFile(std::string(LAYOVER_SOURCE_DIR) + "/docs/storage_format.md");
  const auto says = [&](const std::string& text) { return page.find(text) != std::string::npos; };
  EXPECT_TRUE(says("`" + std::string(kSegmentMagic, 8) + "`"));
  EXPECT_TRUE(says("`" + std::string(kFooterMagic, 8) + "`"));
  EXPECT_TRUE(says("`" + std::string(kFrameMagic, 4) + "`"));
  EXPECT_TRUE(says("has 1 to 67,108,864 bytes"));
  EXPECT_EQ(limits::kMaxRecordBytes, 67'108'864u);
  EXPECT_TRUE(says("token_end ≤ 1,048,576"));
  EXPECT_EQ(limits::kMaxContextTokens, 1'048'576);
  EXPECT_TRUE(says("entries; at most 67,108,864"));
  EXPECT_EQ(limits::kMaxSegmentRecords, 67'108'864u);
  EXPECT_TRUE(says("u32, at most 67,108,864"));
  EXPECT_EQ(limits::kMaxJournalFrameBytes, 67'108'864u);
  EXPECT_TRUE(says("One entry of 72 bytes per record"));
  EXPECT_TRUE(says("A header of 48 bytes, the payload, and 16 bytes"));
  EXPECT_EQ(kFrameHeaderBytes, 48u);
  EXPECT_EQ(kFrameTrailerBytes, 16u);
  EXPECT_TRUE(says("a multiple of 512, `b`"));
  EXPECT_EQ(kTornBoundaryBytes, 512u);
  EXPECT_TRUE(says("at `e` rounded up to 64, or **in a new run**, at `e` rounded up to 4096"));
  EXPECT_EQ(NextInRun(65), 128u);
  EXPECT_EQ(NextRun(65), 4096u);
  EXPECT_TRUE(says("at most 2^53 - 1"));
  EXPECT_EQ(limits::kMaxGeneration, (int64_t{1} << 53) - 1);
  EXPECT_TRUE(says("`" + std::string(kPortableMagic, 8) + "`"));
  EXPECT_TRUE(says("a power of two from 4096 to 262,144; 262,144 is written"));
  EXPECT_EQ(limits::kMinPortableChunkBytes, 4096u);
  EXPECT_EQ(limits::kMaxPortableChunkBytes, 262'144u);
  EXPECT_EQ(PortableHeader{}.chunk_bytes, limits::kMaxPortableChunkBytes);
  EXPECT_TRUE(says("of the head without trailers; at most 67,109,400"));
  EXPECT_EQ(kMaxPortableHeadBytes, 67'109'400u);
  EXPECT_TRUE(says("128 + head_bytes + 16 ×"));
  EXPECT_EQ(kPortableHeaderBytes, 128u);
  EXPECT_EQ(kChunkTrailerBytes, 16u);
}

}  // namespace
}  // namespace layover
