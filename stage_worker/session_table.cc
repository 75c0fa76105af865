#include "stage_worker/session_table.h"

#include <algorithm>

#include "common/limits.h"
#include "common/status.h"

namespace layover {

absl::Status SessionTable::CheckPages(const std::vector<int32_t>& pages) const {
  for (int32_t page : pages) {
    // One page beyond the ledger's is the probe's.
    if (page < 0 || page > pages_.n_pages()) return Internal("page {} of {}", page, pages_.n_pages());
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
  RETURN_IF_ERROR(CheckPages(fork.pages));
  StageSession session;
  session.tokens.assign(source->tokens.begin(), source->tokens.begin() + fork.length);
  session.pages = fork.pages;
  pages_.Copy(stream_, fork.copies);
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
  session.tokens.resize(static_cast<size_t>(cut.length));
  session.pages.resize(static_cast<size_t>(cut.n_pages));
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
  RETURN_IF_ERROR(CheckPages(slice.new_pages));
  for (const wire::PageCopy& copy : slice.copies) {
    const auto page = std::find(session.pages.begin(), session.pages.end(), copy.src);
    if (page == session.pages.end()) return Internal("session {} does not own page {}", slice.session, copy.src);
    *page = copy.dst;
  }
  pages_.Copy(stream_, slice.copies);
  // A page keeps what its last owner wrote; attention reads whole blocks, so it starts out as zeros.
  pages_.Zero(stream_, slice.new_pages);
  session.pages.insert(session.pages.end(), slice.new_pages.begin(), slice.new_pages.end());
  session.tokens.insert(session.tokens.end(), slice.tokens.begin(), slice.tokens.end());
  const size_t need = (session.tokens.size() + kPageTokens - 1) / kPageTokens;
  if (session.pages.size() != need) {
    return Internal("session {} has {} pages for {} tokens", slice.session, session.pages.size(), session.tokens.size());
  }
  return absl::OkStatus();
}

const StageSession* SessionTable::Find(uint64_t id) const {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : &found->second;
}

}  // namespace layover
