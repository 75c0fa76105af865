#include "stage_worker/session_table.h"

#include <algorithm>

#include "common/limits.h"
#include "common/status.h"

namespace layover {

absl::Status SessionTable::CheckPages(LayerKind kind, const std::vector<int32_t>& pages) const {
  const int least = kind == LayerKind::kSlidingWindow ? -1 : 0;
  for (int32_t page : pages) {
    // One page beyond the ledger's is the probe's.
    if (page < least || page > pages_.n_pages(kind)) return Internal("page {} of {}", page, pages_.n_pages(kind));
  }
  return absl::OkStatus();
}

absl::Status SessionTable::CheckState(const wire::StateAt& state, int64_t length) const {
  // One slot beyond the ledger's is the probe's.
  if (state.slot < -1 || state.slot > states_.n_slots()) return Internal("slot {} of {}", state.slot, states_.n_slots());
  RETURN_IF_ERROR(CheckPages(LayerKind::kSlidingWindow, state.window_pages));
  const size_t need = pages_.window() == 0 ? 0 : static_cast<size_t>((length + kPageTokens - 1) / kPageTokens);
  if (state.window_pages.size() != need) {
    return Internal("{} window pages for {} tokens", state.window_pages.size(), length);
  }
  return absl::OkStatus();
}

absl::Status SessionTable::Open(uint64_t id) {
  if (!sessions_.try_emplace(id).second) return Internal("session {} is open", id);
  return absl::OkStatus();
}

absl::Status SessionTable::Fork(const wire::ForkSession& fork) {
  const StageSession* source = Find(fork.source);
  if (source == nullptr) return Internal("session {} is not open", fork.source);
  if (fork.length < 0 || fork.length > static_cast<int64_t>(source->tokens.size())) {
    return Internal("session {} has {} tokens, not {}", fork.source, source->tokens.size(), fork.length);
  }
  RETURN_IF_ERROR(CheckPages(LayerKind::kFullAttention, fork.pages));
  RETURN_IF_ERROR(CheckState(fork.state, fork.length));
  StageSession session;
  session.tokens.assign(source->tokens.begin(), source->tokens.begin() + fork.length);
  session.pages = fork.pages;
  session.window_pages = fork.state.window_pages;
  session.state_slot = fork.state.slot;
  pages_.Copy(stream_, LayerKind::kFullAttention, fork.copies);
  pages_.Copy(stream_, LayerKind::kSlidingWindow, fork.window_copies);
  return Adopt(fork.session, std::move(session));
}

absl::Status SessionTable::Truncate(const wire::TruncateSession& cut) {
  const auto found = sessions_.find(cut.session);
  if (found == sessions_.end()) return Internal("session {} is not open", cut.session);
  StageSession& session = found->second;
  if (cut.length < 0 || cut.length > static_cast<int64_t>(session.tokens.size()) || cut.n_pages < 0 ||
      cut.n_pages > static_cast<int64_t>(session.pages.size())) {
    return Internal("session {} has {} tokens, not {}", cut.session, session.tokens.size(), cut.length);
  }
  RETURN_IF_ERROR(CheckState(cut.state, cut.length));
  session.tokens.resize(static_cast<size_t>(cut.length));
  session.pages.resize(static_cast<size_t>(cut.n_pages));
  session.window_pages = cut.state.window_pages;
  session.state_slot = cut.state.slot;
  return absl::OkStatus();
}

absl::Status SessionTable::Close(uint64_t id) {
  if (sessions_.erase(id) == 0) return Internal("session {} is not open", id);
  return absl::OkStatus();
}

absl::Status SessionTable::Adopt(uint64_t id, StageSession session) {
  if (!sessions_.try_emplace(id, std::move(session)).second) return Internal("session {} is open", id);
  return absl::OkStatus();
}

absl::Status SessionTable::Extend(const wire::StepSlice& slice) {
  const auto found = sessions_.find(slice.session);
  if (found == sessions_.end()) return Internal("session {} is not open", slice.session);
  StageSession& session = found->second;
  if (slice.begin != static_cast<int64_t>(session.tokens.size())) {
    return Internal("session {} has {} tokens, the step begins at {}", slice.session, session.tokens.size(), slice.begin);
  }
  if (slice.state_from != session.state_slot || slice.state_to < -1 || slice.state_to > states_.n_slots()) {
    return Internal("session {} has its state in slot {}, not {}; then {}", slice.session, session.state_slot,
                    slice.state_from, slice.state_to);
  }
  session.state_slot = slice.state_to;
  RETURN_IF_ERROR(Grow(LayerKind::kFullAttention, slice.new_pages, slice.copies, &session.pages));
  RETURN_IF_ERROR(Grow(LayerKind::kSlidingWindow, slice.new_window_pages, slice.window_copies, &session.window_pages));
  session.tokens.insert(session.tokens.end(), slice.tokens.begin(), slice.tokens.end());
  const size_t need = (session.tokens.size() + kPageTokens - 1) / kPageTokens;
  if (session.pages.size() != need || session.window_pages.size() != (pages_.window() == 0 ? 0 : need)) {
    return Internal("session {} has {} and {} pages for {} tokens", slice.session, session.pages.size(),
                    session.window_pages.size(), session.tokens.size());
  }
  return absl::OkStatus();
}

absl::Status SessionTable::Grow(LayerKind kind, const std::vector<int32_t>& new_pages,
                                const std::vector<wire::PageCopy>& copies, std::vector<int32_t>* table) {
  RETURN_IF_ERROR(CheckPages(kind, new_pages));
  for (const wire::PageCopy& copy : copies) {
    const auto page = std::find(table->begin(), table->end(), copy.src);
    if (page == table->end()) return Internal("the page table does not name page {}", copy.src);
    *page = copy.dst;
  }
  pages_.Copy(stream_, kind, copies);
  // A page keeps what its last owner wrote; attention reads whole blocks, so it starts out as zeros.
  pages_.Zero(stream_, kind, new_pages);
  table->insert(table->end(), new_pages.begin(), new_pages.end());
  return absl::OkStatus();
}

const StageSession* SessionTable::Find(uint64_t id) const {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : &found->second;
}

}  // namespace layover
