// Which session owns which page and which recurrent-state slot, for all stages at once: the same page id means the same
// 64 tokens on every stage, so capacity is the minimum over the stages and one ledger decides.
//
// Two page classes: full attention (a session keeps all its pages) and sliding window (pages wholly out of the window
// are given back when the next tokens are fed: until then the step in flight may read them). Full pages may be shared by
// branches; a partial page never is, so a writer is alone on its last page unless someone holds it: a holder is a pin (a
// save in flight, a checkpoint) that relies on rows below its length.
//
// What must stay true (CheckIntegrity): every page is free or owned; its count equals the sessions and pins that name
// it; no page is named twice by one session; nothing is written below a holder's length.
//
// Pure bookkeeping: no I/O, no clock, no threads.
#ifndef LAYOVER_COORDINATOR_PAGE_LEDGER_H_
#define LAYOVER_COORDINATOR_PAGE_LEDGER_H_

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/messages.h"

namespace layover {

enum class PageClass : int { kFull = 0, kWindow = 1 };
inline constexpr int kPageClasses = 2;

struct LedgerConfig {
  int sessions = 0;          // live at once
  int full_pages = 0;
  int window_pages = 0;      // 0: the model has no sliding-window layer
  int64_t window_tokens = 0;
  int state_slots = 0;       // 0: the model has no recurrent layer
};

class PageLedger {
 public:
  using SessionId = uint64_t;
  using PinId = uint64_t;

  // What a session needs before its next tokens are fed.
  struct Growth {
    std::array<std::vector<int32_t>, kPageClasses> new_pages;        // to append to the page table
    std::array<std::vector<wire::PageCopy>, kPageClasses> copies;    // table entries replaced by copies (copy on write)
    int32_t state_from = -1;                                         // slot to read; -1: none or zero state
    int32_t state_to = -1;                                           // slot to write
  };

  struct Fork {
    std::array<std::vector<int32_t>, kPageClasses> pages;            // the new session's whole page table
    std::array<std::vector<wire::PageCopy>, kPageClasses> copies;
    int32_t state_from = -1;
  };

  explicit PageLedger(const LedgerConfig& config);

  // ResourceExhausted when all sessions are taken; FailedPrecondition when the id is.
  absl::Status Open(SessionId session);

  // A session of `length` tokens whose pages and slot somebody is going to fill: all full pages, those of the window,
  // a slot. ResourceExhausted: nothing has changed.
  absl::Status OpenFilled(SessionId session, int64_t length);

  // Room for tokens [length, new_length) and a place for the state after them. All or nothing: on ResourceExhausted
  // (pages or slots) nothing has changed, but that pages out of the window came free.
  absl::StatusOr<Growth> Grow(SessionId session, int64_t new_length);

  // `target` becomes a new session with source's first `length` tokens. Recurrent state cannot be cut: with state slots,
  // length must be the source's length.
  absl::StatusOr<Fork> ForkSession(SessionId source, SessionId target, int64_t length);

  // Forgets tokens from `length` on. Same rule for recurrent state as ForkSession, or length 0.
  absl::Status Truncate(SessionId session, int64_t length);

  void Close(SessionId session);
  void CloseAll();  // every session and every pin: all stages forgot everything

  // Holds the session's rows [0, its length) and its current state as they are, until Unpin. So a pin is all that a
  // checkpoint is made of here.
  PinId Pin(SessionId session);
  void Unpin(PinId pin);
  // Where the pin stands and what it holds beside full pages.
  wire::StateAt PinnedState(PinId pin) const;
  // `target` becomes a new session of the pin's tokens.
  absl::StatusOr<Fork> ForkPin(PinId pin, SessionId target);
  // The session, of which the pin was taken, goes back to it. Nothing is copied: it is alone on its pages or copies on
  // its next write.
  void RewindToPin(SessionId session, PinId pin);

  // A step is made by several calls of Grow; until it is sent, no slot that it reads is given to another session.
  void StepSent();

  bool Has(SessionId session) const { return sessions_.contains(session); }
  int64_t Length(SessionId session) const;
  const std::vector<int32_t>& Pages(SessionId session, PageClass page_class) const;
  wire::StateAt StateOf(SessionId session) const;
  const LedgerConfig& config() const { return config_; }
  int FreePages(PageClass page_class) const { return static_cast<int>(free_[Index(page_class)].size()); }
  int FreeSlots() const { return static_cast<int>(free_slots_.size()); }
  int FreeSessions() const { return config_.sessions - static_cast<int>(sessions_.size()); }
  // Pages that would come free if the session were closed.
  int PagesOwnedAlone(SessionId session) const;

  // OK, or which promise is broken.
  absl::Status CheckIntegrity() const;

 private:
  struct Session {
    int64_t length = 0;
    std::array<std::vector<int32_t>, kPageClasses> tables;  // page ids by position / 64; -1 where out of the window
    int32_t slot = -1;
  };
  struct PinnedPage {
    PageClass page_class;
    int32_t page;
    int32_t rows;
  };
  struct Pinned {
    std::vector<PinnedPage> pages;
    Session as_it_was;
  };
  struct Page {
    int owners = 0;               // sessions
    std::vector<int32_t> holds;   // rows that each pin relies on
  };

  static int Index(PageClass page_class) { return static_cast<int>(page_class); }
  int PagesOf(PageClass page_class) const;
  bool MayWriteFrom(PageClass page_class, int32_t page, int32_t row) const;
  void Release(PageClass page_class, int32_t page);
  void ReleaseIfUnused(PageClass page_class, int32_t page);
  void ReleaseSlot(int32_t slot);
  int32_t Take(PageClass page_class);
  int32_t TakeSlot();
  void DropOutOfWindow(Session& session);
  absl::StatusOr<Fork> ForkFrom(const Session& source, SessionId target, int64_t length);
  int64_t FirstWindowPage(int64_t length) const;

  const LedgerConfig config_;
  std::map<SessionId, Session> sessions_;
  std::map<PinId, Pinned> pins_;
  PinId next_pin_ = 1;
  std::array<std::vector<Page>, kPageClasses> pages_;
  std::array<std::vector<int32_t>, kPageClasses> free_;  // used as stacks: the page given back last is warm
  std::vector<int> slot_refs_;
  std::vector<int32_t> free_slots_;
  std::vector<int32_t> slots_being_read_;  // by the step that is being made
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_PAGE_LEDGER_H_
