#include "coordinator/page_ledger.h"

#include <algorithm>
#include <set>

#include "common/check.h"
#include "common/limits.h"
#include "common/status.h"

namespace layover {
namespace {

constexpr PageClass kClasses[] = {PageClass::kFull, PageClass::kWindow};
constexpr int64_t kPage = limits::kPageTokens;

int64_t PagesFor(int64_t tokens) { return (tokens + kPage - 1) / kPage; }

}  // namespace

PageLedger::PageLedger(const LedgerConfig& config) : config_(config) {
  for (PageClass page_class : kClasses) {
    const int n = PagesOf(page_class);
    pages_[Index(page_class)].resize(static_cast<size_t>(n));
    for (int32_t page = n - 1; page >= 0; --page) free_[Index(page_class)].push_back(page);
  }
  slot_refs_.resize(static_cast<size_t>(config.state_slots));
  for (int32_t slot = config.state_slots - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

int PageLedger::PagesOf(PageClass page_class) const {
  return page_class == PageClass::kFull ? config_.full_pages : config_.window_pages;
}

absl::Status PageLedger::Open(SessionId session) {
  if (sessions_.contains(session)) return FailedPrecondition("session {} is open", session);
  if (FreeSessions() == 0) return ResourceExhausted("all {} sessions are taken", config_.sessions);
  sessions_[session];
  return absl::OkStatus();
}

int64_t PageLedger::FirstWindowPage(int64_t length) const {
  // The next query, at position `length`, sees positions above length - window.
  return std::max<int64_t>(0, length - config_.window_tokens + 1) / kPage;
}

bool PageLedger::MayWriteFrom(PageClass page_class, int32_t page, int32_t row) const {
  const Page& p = pages_[Index(page_class)][page];
  return p.owners == 1 && std::all_of(p.holds.begin(), p.holds.end(), [row](int32_t rows) { return rows <= row; });
}

int32_t PageLedger::Take(PageClass page_class) {
  auto& free = free_[Index(page_class)];
  const int32_t page = free.back();
  free.pop_back();
  pages_[Index(page_class)][page].owners = 1;
  return page;
}

absl::Status PageLedger::OpenFilled(SessionId id, int64_t length) {
  const int64_t full = PagesFor(length), window = full - FirstWindowPage(length);
  const bool has_window = PagesOf(PageClass::kWindow) > 0, has_state = config_.state_slots > 0 && length > 0;
  if (full > FreePages(PageClass::kFull) || (has_window && window > FreePages(PageClass::kWindow))) {
    return ResourceExhausted("{} pages needed, {} free", full, FreePages(PageClass::kFull));
  }
  if (has_state && free_slots_.empty()) return ResourceExhausted("no state slot is free");
  if (absl::Status status = Open(id); !status.ok()) return status;
  Session& session = sessions_.at(id);
  session.length = length;
  for (int64_t j = 0; j < full; ++j) {
    session.tables[Index(PageClass::kFull)].push_back(Take(PageClass::kFull));
    if (!has_window) continue;
    session.tables[Index(PageClass::kWindow)].push_back(j < full - window ? -1 : Take(PageClass::kWindow));
  }
  if (has_state) session.slot = TakeSlot();
  return absl::OkStatus();
}

int32_t PageLedger::TakeSlot() {
  const int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  slot_refs_[slot] = 1;
  return slot;
}

void PageLedger::StepSent() {
  for (const int32_t slot : slots_being_read_) ReleaseSlot(slot);
  slots_being_read_.clear();
}

absl::StatusOr<PageLedger::Growth> PageLedger::Grow(SessionId id, int64_t new_length) {
  Session& session = sessions_.at(id);
  LAYOVER_CHECK(new_length > session.length);
  DropOutOfWindow(session);
  Growth growth;

  // First what is needed, so that a shortage changes nothing.
  std::array<bool, kPageClasses> copy_last{};
  for (PageClass page_class : kClasses) {
    const int i = Index(page_class);
    if (PagesOf(page_class) == 0) continue;
    const int32_t row = static_cast<int32_t>(session.length % kPage);
    copy_last[i] = row != 0 && !MayWriteFrom(page_class, session.tables[i].back(), row);
    const int64_t need = PagesFor(new_length) - static_cast<int64_t>(session.tables[i].size()) + (copy_last[i] ? 1 : 0);
    if (need > static_cast<int64_t>(free_[i].size())) {
      return ResourceExhausted("{} pages needed, {} free", need, free_[i].size());
    }
  }
  const bool moves_state = config_.state_slots > 0 && (session.slot < 0 || slot_refs_[session.slot] > 1);
  if (moves_state && free_slots_.empty()) return ResourceExhausted("no state slot is free");

  for (PageClass page_class : kClasses) {
    const int i = Index(page_class);
    if (PagesOf(page_class) == 0) continue;
    if (copy_last[i]) {
      const int32_t old_page = session.tables[i].back();
      session.tables[i].back() = Take(page_class);
      growth.copies[i].push_back({old_page, session.tables[i].back(), static_cast<int32_t>(session.length % kPage)});
      Release(page_class, old_page);
    }
    while (static_cast<int64_t>(session.tables[i].size()) < PagesFor(new_length)) {
      session.tables[i].push_back(Take(page_class));
      growth.new_pages[i].push_back(session.tables[i].back());
    }
  }
  growth.state_from = session.slot;
  if (moves_state) {
    // The session's own hold on the slot it reads passes to the step.
    if (session.slot >= 0) slots_being_read_.push_back(session.slot);
    session.slot = TakeSlot();
  }
  growth.state_to = session.slot;
  session.length = new_length;
  return growth;
}

void PageLedger::DropOutOfWindow(Session& session) {
  auto& table = session.tables[Index(PageClass::kWindow)];
  const int64_t first = std::min<int64_t>(FirstWindowPage(session.length), static_cast<int64_t>(table.size()));
  for (int64_t j = first - 1; j >= 0 && table[j] >= 0; --j) {
    Release(PageClass::kWindow, table[j]);
    table[j] = -1;
  }
}

absl::StatusOr<PageLedger::Fork> PageLedger::ForkSession(SessionId source_id, SessionId target_id, int64_t length) {
  const Session& source = sessions_.at(source_id);
  LAYOVER_CHECK(length >= 0 && length <= source.length);
  if (config_.state_slots > 0 && length != source.length) {
    return FailedPrecondition("recurrent state at {} cannot be cut to {}", source.length, length);
  }
  return ForkFrom(source, target_id, length);
}

absl::StatusOr<PageLedger::Fork> PageLedger::ForkPin(PinId pin, SessionId target_id) {
  const Session& source = pins_.at(pin).as_it_was;
  return ForkFrom(source, target_id, source.length);
}

absl::StatusOr<PageLedger::Fork> PageLedger::ForkFrom(const Session& source, SessionId target_id, int64_t length) {
  const int32_t rest = static_cast<int32_t>(length % kPage);
  for (PageClass page_class : kClasses) {
    if (PagesOf(page_class) > 0 && rest != 0 && free_[Index(page_class)].empty()) return ResourceExhausted("no page is free");
  }
  if (absl::Status status = Open(target_id); !status.ok()) return status;
  Session& target = sessions_.at(target_id);
  target.length = length;
  Fork fork;
  for (PageClass page_class : kClasses) {
    const int i = Index(page_class);
    if (PagesOf(page_class) == 0) continue;
    auto& table = target.tables[i];
    table.assign(source.tables[i].begin(), source.tables[i].begin() + PagesFor(length));
    if (page_class == PageClass::kWindow) {
      // A cut to an earlier length may need pages that the source gave back.
      for (int64_t j = FirstWindowPage(length); j < static_cast<int64_t>(table.size()); ++j) {
        if (table[j] < 0) {
          sessions_.erase(target_id);
          return FailedPrecondition("the sliding window at {} is gone", length);
        }
      }
    }
  }
  for (PageClass page_class : kClasses) {
    const int i = Index(page_class);
    auto& table = target.tables[i];
    for (size_t j = 0; j < table.size(); ++j) {
      if (table[j] < 0) continue;
      if (rest != 0 && j + 1 == table.size()) {
        const int32_t shared = table[j];
        table[j] = Take(page_class);
        fork.copies[i].push_back({shared, table[j], rest});
      } else {
        ++pages_[i][table[j]].owners;
      }
    }
    fork.pages[i] = table;
  }
  if (source.slot >= 0) {
    target.slot = source.slot;
    ++slot_refs_[source.slot];
    fork.state_from = source.slot;
  }
  return fork;
}

absl::Status PageLedger::Truncate(SessionId id, int64_t length) {
  Session& session = sessions_.at(id);
  LAYOVER_CHECK(length >= 0 && length <= session.length);
  if (length == session.length) return absl::OkStatus();
  if (config_.state_slots > 0 && length != 0) {
    return FailedPrecondition("recurrent state at {} cannot be cut to {}", session.length, length);
  }
  const auto& window = session.tables[Index(PageClass::kWindow)];
  for (int64_t j = FirstWindowPage(length); j < PagesFor(length) && j < static_cast<int64_t>(window.size()); ++j) {
    if (window[j] < 0) return FailedPrecondition("the sliding window at {} is gone", length);
  }
  for (PageClass page_class : kClasses) {
    auto& table = session.tables[Index(page_class)];
    while (static_cast<int64_t>(table.size()) > PagesFor(length)) {
      if (table.back() >= 0) Release(page_class, table.back());
      table.pop_back();
    }
  }
  if (length == 0 && session.slot >= 0) {
    ReleaseSlot(session.slot);
    session.slot = -1;
  }
  session.length = length;
  return absl::OkStatus();
}

void PageLedger::RewindToPin(SessionId id, PinId pin) {
  Session& session = sessions_.at(id);
  const Session& was = pins_.at(pin).as_it_was;
  LAYOVER_CHECK(was.length <= session.length);
  for (PageClass page_class : kClasses) {
    for (const int32_t page : was.tables[Index(page_class)]) {
      if (page >= 0) ++pages_[Index(page_class)][page].owners;
    }
    for (const int32_t page : session.tables[Index(page_class)]) {
      if (page >= 0) Release(page_class, page);
    }
  }
  if (was.slot >= 0) ++slot_refs_[was.slot];
  if (session.slot >= 0) ReleaseSlot(session.slot);
  session = was;
}

wire::StateAt PageLedger::PinnedState(PinId pin) const {
  const Session& was = pins_.at(pin).as_it_was;
  return {was.length, was.slot, was.tables[Index(PageClass::kWindow)]};
}

wire::StateAt PageLedger::StateOf(SessionId id) const {
  const Session& session = sessions_.at(id);
  return {session.length, session.slot, session.tables[Index(PageClass::kWindow)]};
}

void PageLedger::Close(SessionId id) {
  const auto found = sessions_.find(id);
  LAYOVER_CHECK(found != sessions_.end());
  for (PageClass page_class : kClasses) {
    for (int32_t page : found->second.tables[Index(page_class)]) {
      if (page >= 0) Release(page_class, page);
    }
  }
  if (found->second.slot >= 0) ReleaseSlot(found->second.slot);
  sessions_.erase(found);
}

void PageLedger::CloseAll() {
  StepSent();
  while (!sessions_.empty()) Close(sessions_.begin()->first);
  while (!pins_.empty()) Unpin(pins_.begin()->first);
}

PageLedger::PinId PageLedger::Pin(SessionId id) {
  const Session& session = sessions_.at(id);
  Pinned pinned;
  for (PageClass page_class : kClasses) {
    const auto& table = session.tables[Index(page_class)];
    for (size_t j = 0; j < table.size(); ++j) {
      if (table[j] < 0) continue;
      const int32_t rows = static_cast<int32_t>(std::min<int64_t>(kPage, session.length - static_cast<int64_t>(j) * kPage));
      pages_[Index(page_class)][table[j]].holds.push_back(rows);
      pinned.pages.push_back({page_class, table[j], rows});
    }
  }
  pinned.as_it_was = session;
  if (session.slot >= 0) ++slot_refs_[session.slot];
  const PinId pin = next_pin_++;
  pins_[pin] = std::move(pinned);
  return pin;
}

void PageLedger::Unpin(PinId id) {
  const auto found = pins_.find(id);
  LAYOVER_CHECK(found != pins_.end());
  for (const PinnedPage& held : found->second.pages) {
    auto& holds = pages_[Index(held.page_class)][held.page].holds;
    holds.erase(std::find(holds.begin(), holds.end(), held.rows));
    ReleaseIfUnused(held.page_class, held.page);
  }
  if (found->second.as_it_was.slot >= 0) ReleaseSlot(found->second.as_it_was.slot);
  pins_.erase(found);
}

void PageLedger::Release(PageClass page_class, int32_t page) {
  Page& p = pages_[Index(page_class)][page];
  LAYOVER_CHECK(p.owners > 0);
  --p.owners;
  ReleaseIfUnused(page_class, page);
}

void PageLedger::ReleaseIfUnused(PageClass page_class, int32_t page) {
  const Page& p = pages_[Index(page_class)][page];
  if (p.owners == 0 && p.holds.empty()) free_[Index(page_class)].push_back(page);
}

void PageLedger::ReleaseSlot(int32_t slot) {
  LAYOVER_CHECK(slot_refs_[slot] > 0);
  if (--slot_refs_[slot] == 0) free_slots_.push_back(slot);
}

int64_t PageLedger::Length(SessionId session) const { return sessions_.at(session).length; }

const std::vector<int32_t>& PageLedger::Pages(SessionId session, PageClass page_class) const {
  return sessions_.at(session).tables[Index(page_class)];
}

int PageLedger::PagesOwnedAlone(SessionId session) const {
  int alone = 0;
  for (int32_t page : Pages(session, PageClass::kFull)) {
    const Page& p = pages_[Index(PageClass::kFull)][page];
    if (p.owners == 1 && p.holds.empty()) ++alone;
  }
  return alone;
}

absl::Status PageLedger::CheckIntegrity() const {
  for (PageClass page_class : kClasses) {
    const int i = Index(page_class);
    std::vector<int> owners(pages_[i].size(), 0), holds(pages_[i].size(), 0);
    for (const auto& [id, session] : sessions_) {
      if (PagesOf(page_class) > 0 && static_cast<int64_t>(session.tables[i].size()) != PagesFor(session.length)) {
        return Internal("session {} has {} pages for {} tokens", id, session.tables[i].size(), session.length);
      }
      std::set<int32_t> seen;
      for (int32_t page : session.tables[i]) {
        if (page < 0) continue;
        if (!seen.insert(page).second) return Internal("session {} names page {} twice", id, page);
        ++owners[page];
      }
    }
    for (const auto& [id, pinned] : pins_) {
      for (const PinnedPage& held : pinned.pages) {
        if (held.page_class == page_class) ++holds[held.page];
      }
    }
    std::vector<bool> is_free(pages_[i].size(), false);
    for (int32_t page : free_[i]) {
      if (is_free[page]) return Internal("page {} is free twice", page);
      is_free[page] = true;
    }
    for (size_t page = 0; page < pages_[i].size(); ++page) {
      const Page& p = pages_[i][page];
      if (p.owners != owners[page] || static_cast<int>(p.holds.size()) != holds[page]) {
        return Internal("page {} counts {} owners and {} holds, not {} and {}", page, p.owners, p.holds.size(), owners[page],
                        holds[page]);
      }
      if (is_free[page] != (owners[page] == 0 && holds[page] == 0)) return Internal("page {} is free and owned, or neither", page);
    }
  }
  std::vector<int> slots(slot_refs_.size(), 0);
  for (const auto& [id, session] : sessions_) {
    if (session.slot >= 0) ++slots[session.slot];
  }
  for (const auto& [id, pinned] : pins_) {
    if (pinned.as_it_was.slot >= 0) ++slots[pinned.as_it_was.slot];
  }
  for (const int32_t slot : slots_being_read_) ++slots[slot];
  if (slots != slot_refs_) return Internal("state slots are miscounted");
  if (std::count(slots.begin(), slots.end(), 0) != static_cast<int64_t>(free_slots_.size())) return Internal("a state slot leaked");
  return absl::OkStatus();
}

}  // namespace layover
