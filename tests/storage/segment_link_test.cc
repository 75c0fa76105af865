// Segments on other machines: read over a link, kept in a store of their own, known by the manifests that name them.
#include "common/segment_link/segment_link.h"

#include <algorithm>
#include <filesystem>

#include "common/segment_link/own_store.h"
#include "common/segment_link/segment_server.h"
#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "common/storage/remote_segment.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/storage/storage_fixture.h"

namespace layover::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

constexpr const char* kHost = "tcp://10.0.0.7:7001";
constexpr const char* kStoreId = "0123456789abcdef0123456789abcdef";

class LinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(chat_.Begin());
    ASSERT_OK(chat_.Turn(100, 31));
    ASSERT_OK(chat_.Save());
  }

  wire::FileEnd End(bool serves, bool binds) const {
    wire::FileEnd end{.end = {.endpoint = "ipc://" + sockets_.path() + "/link", .binds = binds}, .serves = serves};
    end.end.own_secret = binds ? bound_.secret_key : connecting_.secret_key;
    end.end.peer_public = binds ? connecting_.public_key : bound_.public_key;
    return end;
  }

  // A server for the conversation's store and a link to it, either end bound.
  std::unique_ptr<SegmentLink> Connect(bool server_binds) {
    auto server = SegmentServer::Start(there_, {End(true, server_binds)}, chat_.store());
    EXPECT_OK(server);
    server_ = *std::move(server);
    auto socket = OpenSegmentEnd(here_, End(false, !server_binds));
    EXPECT_OK(socket);
    return std::make_unique<SegmentLink>(*std::move(socket), kHost);
  }

  TempFolder folder_, sockets_{Place::kOnDisk};
  SampleConversation chat_{JoinPath(folder_.path(), "store")};
  wire::CurvePair bound_, connecting_;
  wire::SocketContext here_, there_;
  std::unique_ptr<SegmentServer> server_;
};

TEST_F(LinkTest, BlocksAreThoseOfTheFile) {
  const std::string file = SegmentFileName(1, 1);
  const std::string bytes = ReadFile(JoinPath(chat_.path(), file));
  for (const bool server_binds : {true, false}) {
    const auto link = Connect(server_binds);
    const auto reader = link->Open(chat_.folder(), file);
    ASSERT_OK(reader);
    EXPECT_EQ((*reader)->file_bytes(), bytes.size());
    // More extents than requests may be in flight, out of order, one of them all of the file.
    std::vector<Extent> extents = {{0, bytes.size()}};
    for (uint64_t at = bytes.size(); at > 0; at -= 4096) extents.push_back({at - 4096, 4096});
    std::vector<size_t> seen;
    EXPECT_OK((*reader)->Read(extents, [&](size_t i, std::span<const std::byte> data) {
      seen.push_back(i);
      const std::string_view got(reinterpret_cast<const char*>(data.data()), data.size());
      EXPECT_EQ(got, std::string_view(bytes).substr(extents[i].offset, extents[i].bytes));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(data.data()) % 4096, 0u);
      return absl::OkStatus();
    }));
    EXPECT_EQ(seen.size(), extents.size());
    EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
    EXPECT_TRUE(absl::IsDataLoss((*reader)->Read(std::vector<Extent>{{bytes.size(), 4096}}, nullptr)));
    server_.reset();
  }
}

TEST_F(LinkTest, AReaderThatStopsDoesNotConfuseTheNext) {
  const auto link = Connect(true);
  const std::string file = SegmentFileName(0, 1);
  const auto first = link->Open(chat_.folder(), file);
  ASSERT_OK(first);
  const std::vector<Extent> extents(8, {0, 4096});
  const absl::Status stopped = (*first)->Read(extents, [](size_t, auto) { return Cancelled("enough"); });
  EXPECT_TRUE(absl::IsCancelled(stopped));
  const auto second = link->Open(chat_.folder(), SegmentFileName(1, 1));
  ASSERT_OK(second);
  EXPECT_EQ((*second)->file_bytes(), fs::file_size(JoinPath(chat_.path(), SegmentFileName(1, 1))));
}

TEST_F(LinkTest, WithKeysOnlyTheOneReaderGetsIn) {
  bound_ = *wire::NewCurvePair();
  connecting_ = *wire::NewCurvePair();
  const auto link = Connect(true);
  EXPECT_OK(link->Open(chat_.folder(), SegmentFileName(0, 1)));
}

TEST_F(LinkTest, NothingButSegmentsCanBeRead) {
  const auto link = Connect(true);
  for (const auto& [folder, file] : std::vector<std::pair<std::string, std::string>>{{chat_.folder(), "journal"},
                                                                                     {chat_.folder(), "../lock"},
                                                                                     {"..", SegmentFileName(0, 1)},
                                                                                     {"", "manifest.json"}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(link->Open(folder, file).status())) << folder << " " << file;
  }
  const absl::Status missing = link->Open(chat_.folder(), SegmentFileName(0, 9)).status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_THAT(missing.ToString(), HasSubstr(kHost));
  for (const auto& [offset, bytes] : {std::pair<uint64_t, uint64_t>{1ull << 40, 1}, {0, 1ull << 40}, {~0ull, 2}}) {
    const SegmentPiece piece = ReadSegmentPiece(chat_.store(), {.number = 7, .offset = offset, .bytes = bytes},
                                                JoinPath(chat_.folder(), SegmentFileName(0, 1)));
    EXPECT_EQ(piece.answer.code, static_cast<int>(absl::StatusCode::kInvalidArgument));
    EXPECT_EQ(piece.answer.number, 7u);
  }
}

TEST_F(LinkTest, VerifyReadsWhatARemoteStageKeeps) {
  Manifest manifest = *LoadConversation(chat_.store(), chat_.folder())->manifest;
  manifest.segments[1].host = kHost;
  manifest.generation = 2;
  ASSERT_OK(CommitSave(chat_.store(), chat_.folder(), &manifest, &chat_.journal()).status);
  const absl::StatusOr<VerifyReport> alone = VerifyConversation(chat_.store(), chat_.folder(), nullptr);
  ASSERT_OK(alone);
  ASSERT_EQ(alone->problems.size(), 1u);
  EXPECT_THAT(alone->problems[0].what, HasSubstr(kHost));
  const RemoteOpener here = [&](const std::string& host, const std::string& folder, const std::string& file) {
    EXPECT_EQ(host, kHost);
    return BlockReader::Open(JoinPath(ConversationPath(chat_.store(), folder), file), {});
  };
  const absl::StatusOr<VerifyReport> both = VerifyConversation(chat_.store(), chat_.folder(), nullptr, here);
  ASSERT_OK(both);
  EXPECT_TRUE(both->ok()) << both->problems[0].what;
  EXPECT_GT(both->bytes, alone->bytes);
}

// -------------------------------------------------------------------------------------------------- names by host

Manifest NamingRemote(const std::vector<std::string>& files, const std::string& folder = "") {
  Manifest manifest;
  for (const std::string& file : files) manifest.segments.push_back({.folder = folder, .file = file, .host = kHost});
  return manifest;
}

TEST(NamesByHost, WhatLosesItsLastNameIsDroppedOnce) {
  const std::string a(64, 'a'), b(64, 'b');
  RemoteNames names;
  const Manifest first = NamingRemote({"s01-g000001.seg", "s01-g000002.seg"});
  names.Set(a, &first);
  EXPECT_THAT(names.Named()[kHost], ElementsAre(a + "/s01-g000001.seg", a + "/s01-g000002.seg"));
  const Manifest fork = NamingRemote({"s01-g000001.seg"}, a);
  names.Set(b, &fork);
  const Manifest second = NamingRemote({"s01-g000002.seg", "s01-g000003.seg"});
  names.Set(a, &second);  // the fork still needs the first
  EXPECT_THAT(names.TakeDropped(), IsEmpty());
  names.Set(b, nullptr);
  EXPECT_THAT(names.TakeDropped()[kHost], ElementsAre(a + "/s01-g000001.seg"));
  EXPECT_THAT(names.TakeDropped(), IsEmpty());
  names.Set(a, nullptr);
  EXPECT_EQ(names.TakeDropped()[kHost].size(), 2u);
}

// ------------------------------------------------------------------------------------------------------ own store

TEST(OwnStoreTest, KeepsWhatIsNamedAndWhatItWrote) {
  TempFolder folder;
  const std::string chat(64, 'c'), other(64, 'd');
  auto store = OwnStore::Open(folder.path(), kStoreId);
  ASSERT_OK(store);
  const auto write = [&](OwnStore& into, const std::string& where, const std::string& file) {
    const auto path = into.FolderForWriting(where, file);
    ASSERT_OK(path);
    WriteFile(JoinPath(*path, file), "rows");
  };
  write(**store, chat, "s01-g000001.seg");
  write(**store, chat, "s01-g000002.seg");
  write(**store, other, "s01-g000001.seg");
  EXPECT_EQ(fs::status((*store)->root()).permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(*(*store)->FolderOf(chat)).permissions(), fs::perms::owner_all);
  EXPECT_THAT(*(*store)->Sweep({}), IsEmpty());  // all its own

  ASSERT_OK(store = OwnStore::Open(folder.path(), kStoreId));  // a new worker
  write(**store, chat, "s01-g000003.seg");
  EXPECT_THAT(*(*store)->Sweep({chat + "/s01-g000002.seg", "x/y"}),
              ElementsAre(chat + "/s01-g000001.seg", other + "/s01-g000001.seg"));
  EXPECT_FALSE(fs::exists(*(*store)->FolderOf(other)));
  EXPECT_OK((*store)->Remove({chat + "/s01-g000003.seg", chat + "/s01-g000003.seg", other + "/s01-g000007.seg"}));
  EXPECT_THAT(*ListFolder(*(*store)->FolderOf(chat)), ElementsAre("s01-g000002.seg"));
  for (const char* path : {"../lock", "c/s01-g000001.seg", "s01-g000001.seg"}) {
    EXPECT_FALSE((*store)->Remove({path}).ok()) << path;
  }
  EXPECT_FALSE((*store)->FolderForWriting("..", "s01-g000001.seg").ok());
}

TEST(OwnStoreTest, CoordinatorsStoresAreApart) {
  TempFolder folder;
  const std::string chat(64, 'c');
  auto one = OwnStore::Open(folder.path(), kStoreId);
  auto two = OwnStore::Open(folder.path(), std::string(32, 'f'));
  ASSERT_OK(one);
  ASSERT_OK(two);
  WriteFile(JoinPath(*(*one)->FolderForWriting(chat, "s01-g000001.seg"), "s01-g000001.seg"), "rows");
  EXPECT_THAT(*(*two)->Sweep({}), IsEmpty());
  EXPECT_OK((*two)->Remove({chat + "/s01-g000001.seg"}));
  EXPECT_THAT(*ListFolder(*(*one)->FolderOf(chat)), ElementsAre("s01-g000001.seg"));
  for (const char* id : {"", "..", "0123", "0123456789abcdef0123456789abcdeg"}) {
    EXPECT_FALSE(OwnStore::Open(folder.path(), id).ok()) << id;
  }
}

}  // namespace
}  // namespace layover::testing
