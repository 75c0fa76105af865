#include "coordinator/page_ledger.h"

#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layover {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int kFull = static_cast<int>(PageClass::kFull);
constexpr int kWindow = static_cast<int>(PageClass::kWindow);

LedgerConfig Dense(int sessions, int pages) { return {.sessions = sessions, .full_pages = pages}; }

TEST(PageLedger, GrowsByWholePagesAndGivesThemBack) {
  PageLedger ledger(Dense(2, 4));
  ASSERT_TRUE(ledger.Open(1).ok());
  EXPECT_THAT(ledger.Grow(1, 64)->new_pages[kFull], SizeIs(1));
  EXPECT_THAT(ledger.Grow(1, 65)->new_pages[kFull], SizeIs(1));
  EXPECT_THAT(ledger.Grow(1, 128)->new_pages[kFull], IsEmpty());
  EXPECT_EQ(ledger.FreePages(PageClass::kFull), 2);
  ASSERT_TRUE(ledger.CheckIntegrity().ok());
  ledger.Close(1);
  EXPECT_EQ(ledger.FreePages(PageClass::kFull), 4);
  EXPECT_TRUE(ledger.CheckIntegrity().ok());
}

TEST(PageLedger, AShortageChangesNothing) {
  PageLedger ledger(Dense(2, 2));
  ASSERT_TRUE(ledger.Open(1).ok());
  ASSERT_TRUE(ledger.Grow(1, 100).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(ledger.Grow(1, 200).status()));
  EXPECT_EQ(ledger.Length(1), 100);
  EXPECT_TRUE(ledger.CheckIntegrity().ok());
}

TEST(PageLedger, SessionsAreBounded) {
  PageLedger ledger(Dense(1, 4));
  ASSERT_TRUE(ledger.Open(1).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(ledger.Open(2)));
  EXPECT_TRUE(absl::IsFailedPrecondition(ledger.Open(1)));
}

TEST(PageLedger, AForkSharesWholePagesAndCopiesThePartialOne) {
  PageLedger ledger(Dense(3, 8));
  ASSERT_TRUE(ledger.Open(1).ok());
  ASSERT_TRUE(ledger.Grow(1, 200).ok());  // 4 pages
  const auto fork = ledger.ForkSession(1, 2, 150);
  ASSERT_TRUE(fork.ok());
  const std::vector<int32_t> source = ledger.Pages(1, PageClass::kFull);
  EXPECT_THAT(fork->pages[kFull], SizeIs(3));
  EXPECT_EQ(fork->pages[kFull][0], source[0]);
  EXPECT_EQ(fork->pages[kFull][1], source[1]);
  EXPECT_NE(fork->pages[kFull][2], source[2]);
  ASSERT_THAT(fork->copies[kFull], SizeIs(1));
  EXPECT_EQ(fork->copies[kFull][0].src, source[2]);
  EXPECT_EQ(fork->copies[kFull][0].rows, 22);
  EXPECT_EQ(ledger.FreePages(PageClass::kFull), 3);
  ASSERT_TRUE(ledger.CheckIntegrity().ok());
  ledger.Close(1);
  EXPECT_EQ(ledger.FreePages(PageClass::kFull), 5);  // the two shared ones stay with the fork
  EXPECT_TRUE(ledger.CheckIntegrity().ok());
}

TEST(PageLedger, AForkAtAPageEndCopiesNothing) {
  PageLedger ledger(Dense(2, 4));
  ASSERT_TRUE(ledger.Open(1).ok());
  ASSERT_TRUE(ledger.Grow(1, 130).ok());
  EXPECT_THAT(ledger.ForkSession(1, 2, 128)->copies[kFull], IsEmpty());
}

TEST(PageLedger, CuttingIntoASharedPageCopiesBeforeWriting) {
  PageLedger ledger(Dense(2, 8));
  ASSERT_TRUE(ledger.Open(1).ok());
  ASSERT_TRUE(ledger.Grow(1, 128).ok());
  ASSERT_TRUE(ledger.ForkSession(1, 2, 128).ok());
  ASSERT_TRUE(ledger.Truncate(2, 100).ok());
  const int32_t shared = ledger.Pages(1, PageClass::kFull)[1];
  const auto growth = ledger.Grow(2, 101);
  ASSERT_THAT(growth->copies[kFull], SizeIs(1));
  EXPECT_EQ(growth->copies[kFull][0].src, shared);
  EXPECT_EQ(growth->copies[kFull][0].rows, 36);
  EXPECT_EQ(ledger.Pages(1, PageClass::kFull)[1], shared);
  EXPECT_TRUE(ledger.CheckIntegrity().ok());
}

// A save holds rows below n; the session goes on in the same page behind them.
TEST(PageLedger, BehindAPinRowsAreAppendedInPlace) {
  PageLedger ledger(Dense(1, 4));
  ASSERT_TRUE(ledger.Open(1).ok());
  ASSERT_TRUE(ledger.Grow(1, 100).ok());
  const PageLedger::PinId pin = ledger.Pin(1);
  EXPECT_THAT(ledger.Grow(1, 101)->copies[kFull], IsEmpty());
  ledger.Unpin(pin);
  EXPECT_TRUE(ledger.CheckIntegrity().ok());
}

TEST(PageLedger, BelowAPinRowsAreCopiedFirst) {
  PageLedger ledger(Dense(1, 4));
  ASSERT_TRUE(ledger.Open(1).ok());
  ASSERT_TRUE(ledger.Grow(1, 100).ok());
  const PageLedger::PinId pin = ledger.Pin(1);
  ASSERT_TRUE(ledger.Truncate(1, 80).ok());
  EXPECT_THAT(ledger.Grow(1, 81)->copies[kFull], SizeIs(1));
  ASSERT_TRUE(ledger.CheckIntegrity().ok());
  ledger.Unpin(pin);
  EXPECT_EQ(ledger.FreePages(PageClass::kFull), 2);
  EXPECT_TRUE(ledger.CheckIntegrity().ok());
}

TEST(PageLedger, APinKeepsPagesOfAClosedSession) {
  PageLedger ledger(Dense(1, 2));
  ASSERT_TRUE(ledger.Open(1).ok());
  ASSERT_TRUE(ledger.Grow(1, 100).ok());
  const PageLedger::PinId pin = ledger.Pin(1);
  ledger.Close(1);
  EXPECT_EQ(ledger.FreePages(PageClass::kFull), 0);
  ledger.Unpin(pin);
  EXPECT_EQ(ledger.FreePages(PageClass::kFull), 2);
}

// --- a hybrid shape: two page classes and recurrent state, no kernels needed

LedgerConfig Hybrid() {
  return {.sessions = 4, .full_pages = 32, .window_pages = 32, .window_tokens = 128, .state_slots = 6};
}

TEST(PageLedger, PagesOutOfTheWindowComeBack) {
  PageLedger ledger(Hybrid());
  ASSERT_TRUE(ledger.Open(1).ok());
  for (int64_t length = 50; length <= 600; length += 50) ASSERT_TRUE(ledger.Grow(1, length).ok());
  const auto& window = ledger.Pages(1, PageClass::kWindow);
  ASSERT_THAT(window, SizeIs(10));
  // The first query of the step that went from 550 to 600 sees positions from 423 on: page 6.
  for (int page = 0; page < 10; ++page) EXPECT_EQ(window[static_cast<size_t>(page)] >= 0, page >= 6) << page;
  EXPECT_EQ(ledger.FreePages(PageClass::kWindow), 28);
  EXPECT_EQ(ledger.FreePages(PageClass::kFull), 22);
  EXPECT_TRUE(ledger.CheckIntegrity().ok());
}

TEST(PageLedger, AStepsPagesStayUntilTheNextOne) {
  // A chunk that is longer than the window: its first rows still see the pages that its last ones do not.
  PageLedger ledger({.sessions = 2, .full_pages = 32, .window_pages = 16, .window_tokens = 64});
  ASSERT_TRUE(ledger.Open(1).ok());
  ASSERT_TRUE(ledger.Open(2).ok());
  ASSERT_TRUE(ledger.Grow(1, 100).ok());
  ASSERT_TRUE(ledger.Grow(1, 612).ok());
  const std::vector<int32_t> seen = ledger.Pages(1, PageClass::kWindow);
  const auto other = ledger.Grow(2, 300);
  ASSERT_TRUE(other.ok());
  for (const int32_t page : other->new_pages[kWindow]) EXPECT_THAT(seen, Not(Contains(page)));
  EXPECT_TRUE(ledger.CheckIntegrity().ok());
}

TEST(PageLedger, AFilledSessionHasOnlyTheWindow) {
  PageLedger ledger(Hybrid());
  ASSERT_TRUE(ledger.OpenFilled(1, 600).ok());
  const wire::StateAt state = ledger.StateOf(1);
  EXPECT_EQ(state.position, 600);
  EXPECT_GE(state.slot, 0);
  ASSERT_THAT(state.window_pages, SizeIs(10));
  for (int page = 0; page < 10; ++page) EXPECT_EQ(state.window_pages[static_cast<size_t>(page)] >= 0, page >= 7);
  EXPECT_THAT(ledger.Pages(1, PageClass::kFull), SizeIs(10));
  EXPECT_TRUE(absl::IsResourceExhausted(ledger.OpenFilled(2, 64 * 23)));
  EXPECT_FALSE(ledger.Has(2));
  EXPECT_TRUE(ledger.CheckIntegrity().ok());
}

TEST(PageLedger, APinIsACheckpointToGoBackTo) {
  PageLedger ledger(Hybrid());
  ASSERT_TRUE(ledger.Open(1).ok());
  ASSERT_TRUE(ledger.Grow(1, 200).ok());
  const PageLedger::PinId pin = ledger.Pin(1);
  const wire::StateAt held = ledger.PinnedState(pin);
  ASSERT_TRUE(ledger.Grow(1, 500).ok());
  ledger.StepSent();
  EXPECT_NE(ledger.StateOf(1).slot, held.slot);
  ASSERT_TRUE(ledger.ForkPin(pin, 2).ok());
  EXPECT_EQ(ledger.Length(2), 200);
  EXPECT_EQ(ledger.StateOf(2).slot, held.slot);
  ledger.RewindToPin(1, pin);
  EXPECT_EQ(ledger.Length(1), 200);
  EXPECT_EQ(ledger.StateOf(1).window_pages, held.window_pages);
  const auto growth = ledger.Grow(1, 201);
  EXPECT_EQ(growth->state_from, held.slot);
  EXPECT_NE(growth->state_to, held.slot);
  EXPECT_TRUE(ledger.CheckIntegrity().ok());
}

TEST(PageLedger, ASlotThatAStepReadsIsNotGivenAway) {
  PageLedger ledger({.sessions = 3, .full_pages = 32, .state_slots = 2});
  ASSERT_TRUE(ledger.Open(1).ok());
  ASSERT_TRUE(ledger.Open(2).ok());
  const auto first = ledger.Grow(1, 10);
  const PageLedger::PinId pin = ledger.Pin(1);
  EXPECT_EQ(ledger.Grow(1, 11)->state_from, first->state_to);
  ledger.Unpin(pin);
  EXPECT_TRUE(absl::IsResourceExhausted(ledger.Grow(2, 10).status()));
  ledger.StepSent();
  EXPECT_EQ(ledger.Grow(2, 10)->state_to, first->state_to);
  EXPECT_TRUE(ledger.CheckIntegrity().ok());
}

TEST(PageLedger, StateIsWrittenInPlaceUnlessSomeoneHoldsIt) {
  PageLedger ledger(Hybrid());
  ASSERT_TRUE(ledger.Open(1).ok());
  const auto first = ledger.Grow(1, 10);
  EXPECT_EQ(first->state_from, -1);
  const auto second = ledger.Grow(1, 20);
  EXPECT_EQ(second->state_from, first->state_to);
  EXPECT_EQ(second->state_to, first->state_to);
  const PageLedger::PinId pin = ledger.Pin(1);
  const auto third = ledger.Grow(1, 30);
  EXPECT_EQ(third->state_from, second->state_to);
  EXPECT_NE(third->state_to, third->state_from);  // the held state stays for the save
  EXPECT_EQ(ledger.FreeSlots(), 4);
  ledger.StepSent();
  ledger.Unpin(pin);
  EXPECT_EQ(ledger.FreeSlots(), 5);
  EXPECT_TRUE(ledger.CheckIntegrity().ok());
}

TEST(PageLedger, RecurrentStateCannotBeCut) {
  PageLedger ledger(Hybrid());
  ASSERT_TRUE(ledger.Open(1).ok());
  ASSERT_TRUE(ledger.Grow(1, 100).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(ledger.Truncate(1, 50)));
  EXPECT_TRUE(absl::IsFailedPrecondition(ledger.ForkSession(1, 2, 50).status()));
  EXPECT_FALSE(ledger.Has(2));
  EXPECT_TRUE(ledger.ForkSession(1, 2, 100).ok());
  EXPECT_TRUE(ledger.Truncate(1, 0).ok());
  EXPECT_TRUE(ledger.CheckIntegrity().ok());
}

TEST(PageLedger, NoFreeSlotIsAShortage) {
  PageLedger ledger({.sessions = 3, .full_pages = 32, .state_slots = 2});
  for (PageLedger::SessionId id : {1, 2, 3}) ASSERT_TRUE(ledger.Open(id).ok());
  ASSERT_TRUE(ledger.Grow(1, 10).ok());
  ASSERT_TRUE(ledger.Grow(2, 10).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(ledger.Grow(3, 10).status()));
  EXPECT_EQ(ledger.Length(3), 0);
  EXPECT_TRUE(ledger.CheckIntegrity().ok());
}

// Whatever happens in whatever order, the books balance, and at the end everything is free.
void RandomLife(const LedgerConfig& config, uint32_t seed) {
  PageLedger ledger(config);
  std::mt19937 random(seed);
  std::set<PageLedger::SessionId> open;
  std::set<PageLedger::PinId> pins;
  PageLedger::SessionId next = 1;
  const auto any = [&](const auto& set) { return *std::next(set.begin(), static_cast<long>(random() % set.size())); };
  for (int i = 0; i < 3000; ++i) {
    const uint32_t what = random() % 19;
    if (what < 2) {
      if (ledger.Open(next).ok()) open.insert(next);
      ++next;
    } else if (open.empty()) {
      continue;
    } else if (what < 8) {
      const PageLedger::SessionId id = any(open);
      (void)ledger.Grow(id, ledger.Length(id) + 1 + random() % 150);
    } else if (what < 10) {
      const PageLedger::SessionId id = any(open);
      if (ledger.ForkSession(id, next, random() % 2 ? ledger.Length(id) : random() % (ledger.Length(id) + 1)).ok()) open.insert(next);
      ++next;
    } else if (what < 12) {
      const PageLedger::SessionId id = any(open);
      (void)ledger.Truncate(id, random() % (ledger.Length(id) + 1));
    } else if (what < 13) {
      const PageLedger::SessionId id = any(open);
      ledger.Close(id);
      open.erase(id);
    } else if (what < 15) {
      pins.insert(ledger.Pin(any(open)));
    } else if (what < 16) {
      ledger.StepSent();
    } else if (!pins.empty()) {
      const PageLedger::PinId pin = any(pins);
      const PageLedger::SessionId id = any(open);
      if (what == 16) {
        ledger.Unpin(pin);
        pins.erase(pin);
      } else if (what == 17) {
        if (ledger.ForkPin(pin, next).ok()) open.insert(next);
        ++next;
      } else if (ledger.PinnedState(pin).position <= ledger.Length(id)) {
        ledger.RewindToPin(id, pin);
      }
    }
    const absl::Status status = ledger.CheckIntegrity();
    ASSERT_TRUE(status.ok()) << "seed " << seed << " step " << i << ": " << status;
  }
  ledger.StepSent();
  for (PageLedger::SessionId id : open) ledger.Close(id);
  for (PageLedger::PinId pin : pins) ledger.Unpin(pin);
  EXPECT_EQ(ledger.FreePages(PageClass::kFull), config.full_pages);
  EXPECT_EQ(ledger.FreePages(PageClass::kWindow), config.window_pages);
  EXPECT_EQ(ledger.FreeSlots(), config.state_slots);
}

TEST(PageLedger, RandomLivesKeepTheBooksBalanced) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    RandomLife({.sessions = 6, .full_pages = 40}, seed);
    RandomLife({.sessions = 6, .full_pages = 40, .window_pages = 24, .window_tokens = 100, .state_slots = 9}, seed);
  }
}

}  // namespace
}  // namespace layover
