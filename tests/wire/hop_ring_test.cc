// The ring of a hop: between two threads, between two processes, around its end, with the largest hop, and with a
// writer that dies in the middle of one.
#include "common/wire/hop_ring.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "common/hop_memory.h"
#include "common/limits.h"

namespace layover::wire {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kHop = 3, kEpoch = 7;
constexpr uint32_t kDim = 24;

std::unique_ptr<HopRing> NewRing(uint32_t n_slots, uint64_t slot_bytes) {
  auto ring = HopRing::Create({.hop = kHop, .epoch = kEpoch, .n_slots = n_slots, .slot_bytes = slot_bytes});
  EXPECT_TRUE(ring.ok()) << ring.status();
  return *std::move(ring);
}

std::unique_ptr<RingWriter> OpenWriter(const HopRing& ring) {
  auto writer = RingWriter::Open(ring.address(), kHop, kEpoch);
  EXPECT_TRUE(writer.ok()) << writer.status();
  return *std::move(writer);
}

std::unique_ptr<RingReader> OpenReader(const HopRing& ring) {
  auto reader = RingReader::Open(ring.address(), kHop, kEpoch);
  EXPECT_TRUE(reader.ok()) << reader.status();
  return *std::move(reader);
}

// What `plan` counts is what is taken.
TEST(HopRing, TakesTheMemoryThatIsPlanned) {
  for (const uint32_t slots : {1u, 3u, 65u}) {
    for (const uint64_t payload : {uint64_t{0}, uint64_t{4032}, uint64_t{4033}, uint64_t{1 << 20}}) {
      const auto ring = NewRing(slots, payload);
      EXPECT_EQ(OpenReader(*ring)->memory().size(), HopRingBytes(slots, payload));
    }
  }
}

// Every float of hop `seq` says which hop and which place it is.
float Value(uint64_t seq, size_t i) {
  return static_cast<float>((seq * 7919 + i * 13) % 100'003);
}

FrameHeader HeaderOf(uint64_t seq, uint32_t n_rows) {
  return {.epoch = kEpoch, .seq = seq, .n_rows = n_rows, .dim = kDim};
}

void Fill(std::byte* payload, uint64_t seq, size_t count) {
  auto* const values = reinterpret_cast<float*>(payload);
  for (size_t i = 0; i < count; ++i) values[i] = Value(seq, i);
}

// False when the ring is full.
bool Write(RingWriter& writer, uint64_t seq, uint32_t n_rows) {
  std::byte* const payload = writer.NextPayload();
  if (payload == nullptr) return false;
  Fill(payload, seq, n_rows * kDim);
  writer.Publish(HeaderOf(seq, n_rows));
  return true;
}

void WaitForFront(RingReader& reader) {
  while (!reader.HasFront()) {
    if (!reader.BeginWait()) continue;
    pollfd item{reader.fd(), POLLIN, 0};
    ASSERT_EQ(poll(&item, 1, -1), 1);
    reader.EndWait();
  }
}

// The next hop is `seq`, whole.
void Read(RingReader& reader, uint64_t seq, uint32_t n_rows) {
  ASSERT_TRUE(reader.HasFront());
  const auto header = reader.Front();
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->seq, seq);
  ASSERT_EQ(header->n_rows, n_rows);
  const auto* const values = reinterpret_cast<const float*>(reader.FrontPayload());
  for (size_t i = 0; i < n_rows * kDim; ++i) ASSERT_EQ(values[i], Value(seq, i)) << "hop " << seq << ", value " << i;
  reader.Pass();
  reader.FreePassed();
}

uint32_t RowsOf(uint64_t seq) {
  return 1 + static_cast<uint32_t>(seq * 5 % 9);
}

constexpr uint64_t kLargest = sizeof(float) * 9 * kDim;

TEST(HopRing, AFullRingTakesNoMoreUntilASlotIsFree) {
  const auto ring = NewRing(3, kLargest);
  const auto writer = OpenWriter(*ring);
  const auto reader = OpenReader(*ring);
  EXPECT_FALSE(reader->HasFront());
  for (uint64_t seq = 0; seq < 3; ++seq) EXPECT_TRUE(Write(*writer, seq, 9));
  EXPECT_FALSE(Write(*writer, 3, 9));
  Read(*reader, 0, 9);
  EXPECT_TRUE(Write(*writer, 3, 9));
  for (uint64_t seq = 1; seq < 4; ++seq) Read(*reader, seq, 9);
  EXPECT_FALSE(reader->HasFront());
}

// A hop that is passed keeps its bytes until its slot is freed: a copy of it may still be under way.
TEST(HopRing, APassedHopIsNotOverwritten) {
  const auto ring = NewRing(2, kLargest);
  const auto writer = OpenWriter(*ring);
  const auto reader = OpenReader(*ring);
  ASSERT_TRUE(Write(*writer, 0, 9));
  ASSERT_TRUE(Write(*writer, 1, 9));
  const auto* const first = reinterpret_cast<const float*>(reader->FrontPayload());
  reader->Pass();
  EXPECT_EQ(reader->Front()->seq, 1u);
  EXPECT_FALSE(Write(*writer, 2, 9));
  EXPECT_EQ(first[9 * kDim - 1], Value(0, 9 * kDim - 1));
  reader->FreePassed();
  EXPECT_TRUE(Write(*writer, 2, 9));
}

TEST(HopRing, TwoThreadsManyTimesAround) {
  const auto ring = NewRing(3, kLargest);
  constexpr uint64_t kHops = 20'000;
  std::thread writing([&] {
    const auto writer = OpenWriter(*ring);
    for (uint64_t seq = 0; seq < kHops;) {
      if (Write(*writer, seq, RowsOf(seq))) {
        ++seq;
      } else {
        std::this_thread::yield();
      }
    }
  });
  const auto reader = OpenReader(*ring);
  for (uint64_t seq = 0; seq < kHops; ++seq) {
    WaitForFront(*reader);
    Read(*reader, seq, RowsOf(seq));
    if (HasFatalFailure()) break;
  }
  writing.join();
}

TEST(HopRing, TwoProcesses) {
  const auto ring = NewRing(2, kLargest);
  const RingAddress address = ring->address();
  constexpr uint64_t kHops = 2'000;
  const pid_t child = fork();
  if (child == 0) {
    auto writer = RingWriter::Open(address, kHop, kEpoch);
    if (!writer.ok()) _exit(1);
    for (uint64_t seq = 0; seq < kHops;) {
      if (Write(**writer, seq, RowsOf(seq))) {
        ++seq;
      } else {
        sched_yield();
      }
    }
    _exit(0);
  }
  const auto reader = OpenReader(*ring);
  for (uint64_t seq = 0; seq < kHops && !HasFatalFailure(); ++seq) {
    WaitForFront(*reader);
    Read(*reader, seq, RowsOf(seq));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// The child is killed when half of a hop's bytes are in its slot. The hops before it are read, nothing of it is.
TEST(HopRing, AWriterThatDiesInTheMiddleLeavesNothingToRead) {
  const auto ring = NewRing(4, kLargest);
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const RingAddress address = ring->address();
  const pid_t child = fork();
  if (child == 0) {
    auto writer = RingWriter::Open(address, kHop, kEpoch);
    if (!writer.ok() || !Write(**writer, 0, 9)) _exit(1);
    Fill((*writer)->NextPayload(), 1, 9 * kDim / 2);
    if (write(told[1], "x", 1) != 1) _exit(1);
    pause();
  }
  close(told[1]);
  char byte = 0;
  ASSERT_EQ(read(told[0], &byte, 1), 1);
  close(told[0]);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const auto reader = OpenReader(*ring);
  Read(*reader, 0, 9);
  EXPECT_FALSE(reader->HasFront());
  EXPECT_TRUE(reader->BeginWait());
  pollfd item{reader->fd(), POLLIN, 0};
  EXPECT_EQ(poll(&item, 1, 0), 0);
}

TEST(HopRing, TheBellRingsOnlyForOneWhoSleeps) {
  const auto ring = NewRing(2, kLargest);
  const auto writer = OpenWriter(*ring);
  const auto reader = OpenReader(*ring);
  pollfd item{reader->fd(), POLLIN, 0};
  ASSERT_TRUE(Write(*writer, 0, 1));
  EXPECT_EQ(poll(&item, 1, 0), 0);
  EXPECT_FALSE(reader->BeginWait());  // something is there
  Read(*reader, 0, 1);
  EXPECT_TRUE(reader->BeginWait());
  ASSERT_TRUE(Write(*writer, 1, 1));
  EXPECT_EQ(poll(&item, 1, 0), 1);
  reader->EndWait();
  EXPECT_EQ(poll(&item, 1, 0), 0);
}

TEST(HopRing, TheLargestHopThereMayBe) {
  // Its memory is only touched where it is written: the last bytes of the last slot.
  const auto ring = NewRing(2, limits::kMaxHopBytes);
  const auto writer = OpenWriter(*ring);
  const auto reader = OpenReader(*ring);
  const FrameHeader header{.epoch = kEpoch, .seq = 1, .n_rows = limits::kMaxStepTokens, .dim = limits::kMaxEmbedding};
  for (int i = 0; i < 2; ++i) {
    std::memcpy(writer->NextPayload() + limits::kMaxHopBytes - 4, "last", 4);
    writer->Publish(header);
    ASSERT_TRUE(reader->Front().ok()) << reader->Front().status();
    EXPECT_EQ(std::memcmp(reader->FrontPayload() + limits::kMaxHopBytes - 4, "last", 4), 0);
    reader->Pass();
    reader->FreePassed();
  }
}

TEST(HopRing, HeadersAlone) {
  const auto ring = NewRing(2, 0);
  const auto writer = OpenWriter(*ring);
  const auto reader = OpenReader(*ring);
  ASSERT_NE(writer->NextPayload(), nullptr);
  writer->Publish(HeaderOf(5, 1000));
  EXPECT_EQ(reader->Front()->n_rows, 1000u);
}

TEST(HopRing, WhatIsNoGoodHeaderIsRefused) {
  const auto ring = NewRing(4, kLargest);
  const auto writer = OpenWriter(*ring);
  const auto reader = OpenReader(*ring);
  FrameHeader old = HeaderOf(1, 1);
  old.epoch = kEpoch - 1;
  FrameHeader strange = HeaderOf(1, 1);
  strange.magic = 0;
  for (const FrameHeader& bad : {old, strange, HeaderOf(1, 10)}) {
    writer->Publish(bad);
    EXPECT_EQ(reader->Front().status().code(), absl::StatusCode::kDataLoss);
    reader->Pass();
    reader->FreePassed();
  }
}

TEST(HopRing, OnlyTheRingOfThisHopAndEpochIsOpened) {
  auto ring = NewRing(2, kLargest);
  const RingAddress address = ring->address();
  for (const auto& [hop, epoch] : {std::pair{kHop + 1, kEpoch}, std::pair{kHop, kEpoch + 1}}) {
    const auto reader = RingReader::Open(address, hop, epoch);
    ASSERT_FALSE(reader.ok());
    EXPECT_THAT(std::string(reader.status().message()), HasSubstr("is not the ring of hop"));
  }
  ring.reset();
  EXPECT_EQ(RingWriter::Open(address, kHop, kEpoch).status().code(), absl::StatusCode::kFailedPrecondition);
  // Its number may belong to any other file by now.
  const OwnedFd file(open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  ASSERT_EQ(ftruncate(file.get(), 1 << 20), 0);
  RingAddress other = address;
  other.memory = "/proc/self/fd/" + std::to_string(file.get());
  const auto writer = RingWriter::Open(other, kHop, kEpoch);
  ASSERT_FALSE(writer.ok());
  EXPECT_THAT(std::string(writer.status().message()), HasSubstr("is no hop's ring"));
}

TEST(HopRing, BothEndsSeeThatItIsClosed) {
  const auto ring = NewRing(2, kLargest);
  const auto writer = OpenWriter(*ring);
  const auto reader = OpenReader(*ring);
  EXPECT_FALSE(writer->closed());
  EXPECT_FALSE(reader->closed());
  ring->Close();
  EXPECT_TRUE(writer->closed());
  EXPECT_TRUE(reader->closed());
}

TEST(HopRing, NobodyElseMayOpenItAndNobodyCanResizeIt) {
  const auto ring = NewRing(2, kLargest);
  const std::string path = ring->address().memory;
  const OwnedFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat file;
  ASSERT_EQ(fstat(fd.get(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
  EXPECT_NE(ftruncate(fd.get(), 4096), 0);
  EXPECT_NE(ftruncate(fd.get(), file.st_size * 2), 0);
}

}  // namespace
}  // namespace layover::wire
