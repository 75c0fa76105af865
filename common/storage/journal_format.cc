#include "common/storage/journal_format.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/limits.h"
#include "common/status.h"
#include "common/storage/on_disk.h"

namespace layover {
namespace {

struct HeaderBytes {
  char magic[4];
  uint16_t kind;
  uint16_t zero;
  uint64_t sequence;
  uint32_t payload_bytes;
  uint32_t zero2;
  DigestBytes previous;
  uint64_t checksum;
};
static_assert(sizeof(HeaderBytes) == kFrameHeaderBytes);

struct OpenBytes {
  uint32_t version;
  uint32_t zero;
  uint64_t salt;
  int64_t time_ms;
  uint32_t owner_bytes;
  uint32_t id_bytes;
};
static_assert(sizeof(OpenBytes) == 32);

struct PromptBytes {
  int64_t parent;
  int64_t time_ms;
  uint32_t fork_position;
  uint32_t id_count;
  uint32_t text_bytes;
  uint32_t zero;
  DigestBytes message_hash;
};
static_assert(sizeof(PromptBytes) == 48);

struct GeneratedBytes {
  int64_t turn;
  uint32_t id_count;
  uint32_t zero;
};
static_assert(sizeof(GeneratedBytes) == 16);

struct TurnEndBytes {
  int64_t turn;
  uint32_t reason;
  uint32_t fed;
  uint32_t text_bytes;
  uint32_t zero;
  DigestBytes reply_hash;
};
static_assert(sizeof(TurnEndBytes) == 40);

struct RewindBytes {
  int64_t turn;
  uint32_t length;
  uint32_t zero;
};
static_assert(sizeof(RewindBytes) == 16);

struct SaveBytes {
  uint64_t generation;
  DigestBytes manifest;
};
static_assert(sizeof(SaveBytes) == 24);

uint64_t Checksum(const HeaderBytes& header, uint64_t salt) {
  DigestStream stream;
  stream.Update(&salt, sizeof(salt));
  stream.Update(&header, offsetof(HeaderBytes, checksum));
  return stream.Value().low;
}

Digest ChainOf(std::string_view header, std::string_view payload_digest) {
  DigestStream stream;
  stream.Update(header.data(), header.size());
  stream.Update(payload_digest.data(), payload_digest.size());
  return stream.Value();
}

void AppendIds(std::string* out, std::span<const int32_t> ids) {
  out->append(reinterpret_cast<const char*>(ids.data()), ids.size_bytes());
}

// Ids are read from unaligned bytes; negative ones are refused.
absl::Status ReadIds(std::string_view bytes, std::vector<int32_t>* ids) {
  ids->resize(bytes.size() / sizeof(int32_t));
  if (!ids->empty()) std::memcpy(ids->data(), bytes.data(), bytes.size());
  const bool fits = std::all_of(ids->begin(), ids->end(), [](int32_t id) { return id >= 0; });
  return fits ? absl::OkStatus() : InvalidArgument("a token id is negative");
}

absl::StatusOr<JournalTurn*> TurnOf(JournalState* state, int64_t number) {
  if (number < 0 || number >= static_cast<int64_t>(state->turns.size()))
    return InvalidArgument("there is no turn {}", number);
  return &state->turns[static_cast<size_t>(number)];
}

absl::Status BadLength(FrameKind kind, size_t bytes) {
  return InvalidArgument("a {} frame cannot have {} bytes", FrameKindName(kind), bytes);
}

absl::Status ApplyPrompt(std::string_view payload, JournalState* state) {
  if (payload.size() < sizeof(PromptBytes)) return BadLength(FrameKind::kPrompt, payload.size());
  const auto in = LoadBytes<PromptBytes>(payload, 0);
  const uint64_t id_bytes = uint64_t{in.id_count} * sizeof(int32_t);
  if (payload.size() != sizeof(PromptBytes) + id_bytes + in.text_bytes || in.zero != 0) {
    return BadLength(FrameKind::kPrompt, payload.size());
  }
  int32_t parent_length = 0;
  if (in.parent != kNoTurn) {
    ASSIGN_OR_RETURN(const JournalTurn* parent, TurnOf(state, in.parent));
    parent_length = parent->length();
  }
  if (in.fork_position > static_cast<uint32_t>(parent_length)) {
    return InvalidArgument("a turn leaves its parent at {}, which has {} tokens", in.fork_position, parent_length);
  }
  if (in.id_count + uint64_t{in.fork_position} > limits::kMaxContextTokens)
    return InvalidArgument("a turn is too long");
  JournalTurn turn;
  turn.number = static_cast<int64_t>(state->turns.size());
  turn.parent = in.parent;
  turn.fork_position = static_cast<int32_t>(in.fork_position);
  turn.time_ms = in.time_ms;
  turn.message_hash = in.message_hash.Value();
  RETURN_IF_ERROR(ReadIds(payload.substr(sizeof(PromptBytes), id_bytes), &turn.prompt));
  turn.text = payload.substr(sizeof(PromptBytes) + id_bytes);
  state->trunk = turn.number;
  state->trunk_length = turn.length();
  state->turns.push_back(std::move(turn));
  return absl::OkStatus();
}

absl::Status ApplyGenerated(std::string_view payload, JournalState* state) {
  if (payload.size() < sizeof(GeneratedBytes)) return BadLength(FrameKind::kGenerated, payload.size());
  const auto in = LoadBytes<GeneratedBytes>(payload, 0);
  const uint64_t id_bytes = uint64_t{in.id_count} * sizeof(int32_t);
  if (payload.size() != sizeof(GeneratedBytes) + id_bytes || in.zero != 0 || in.id_count == 0) {
    return BadLength(FrameKind::kGenerated, payload.size());
  }
  ASSIGN_OR_RETURN(JournalTurn * turn, TurnOf(state, in.turn));
  if (turn->ended) return InvalidArgument("turn {} goes on after its end", in.turn);
  if (static_cast<uint64_t>(turn->length()) + in.id_count > limits::kMaxContextTokens) {
    return InvalidArgument("turn {} is too long", in.turn);
  }
  std::vector<int32_t> ids;
  RETURN_IF_ERROR(ReadIds(payload.substr(sizeof(GeneratedBytes)), &ids));
  turn->generated.insert(turn->generated.end(), ids.begin(), ids.end());
  state->trunk = in.turn;
  state->trunk_length = turn->length();
  return absl::OkStatus();
}

absl::Status ApplyTurnEnd(std::string_view payload, JournalState* state) {
  if (payload.size() < sizeof(TurnEndBytes)) return BadLength(FrameKind::kTurnEnd, payload.size());
  const auto in = LoadBytes<TurnEndBytes>(payload, 0);
  if (payload.size() != sizeof(TurnEndBytes) + uint64_t{in.text_bytes} || in.zero != 0) {
    return BadLength(FrameKind::kTurnEnd, payload.size());
  }
  ASSIGN_OR_RETURN(JournalTurn * turn, TurnOf(state, in.turn));
  if (turn->ended) return InvalidArgument("turn {} ends twice", in.turn);
  if (in.reason < 1 || in.reason > 5) return InvalidArgument("turn {} ends for reason {}", in.turn, in.reason);
  if (in.fed > static_cast<uint32_t>(turn->length())) {
    return InvalidArgument("turn {} has {} tokens, {} of them fed", in.turn, turn->length(), in.fed);
  }
  turn->ended = true;
  turn->end = static_cast<TurnEnd>(in.reason);
  turn->fed = static_cast<int32_t>(in.fed);
  turn->reply_hash = in.reply_hash.Value();
  turn->reply_text = payload.substr(sizeof(TurnEndBytes));
  return absl::OkStatus();
}

absl::Status ApplyRewind(std::string_view payload, JournalState* state) {
  if (payload.size() != sizeof(RewindBytes)) return BadLength(FrameKind::kRewind, payload.size());
  const auto in = LoadBytes<RewindBytes>(payload, 0);
  ASSIGN_OR_RETURN(const JournalTurn* turn, TurnOf(state, in.turn));
  if (in.zero != 0 || in.length > static_cast<uint32_t>(turn->length())) {
    return InvalidArgument("a rewind to {} of a turn with {} tokens", in.length, turn->length());
  }
  state->trunk = in.turn;
  state->trunk_length = static_cast<int32_t>(in.length);
  return absl::OkStatus();
}

absl::Status ApplySave(FrameKind kind, std::string_view payload, JournalState* state) {
  if (payload.size() != sizeof(SaveBytes)) return BadLength(kind, payload.size());
  const auto in = LoadBytes<SaveBytes>(payload, 0);
  if (in.generation < 1 || in.generation > uint64_t{limits::kMaxGeneration}) {
    return InvalidArgument("generation {}", in.generation);
  }
  const SavingFrame frame{static_cast<int64_t>(in.generation), in.manifest.Value()};
  state->highest_generation = std::max(state->highest_generation, frame.generation);
  if (kind == FrameKind::kSaving) {
    state->savings.push_back(frame);
  } else {
    state->saved = frame;
    state->savings.clear();
  }
  return absl::OkStatus();
}

#define LAYOVER_FIELD(Struct, field)                       \
  FieldSpec {                                              \
#field, offsetof(Struct, field), sizeof(Struct::field) \
  }

}  // namespace

std::string_view FrameKindName(FrameKind kind) {
  switch (kind) {
    case FrameKind::kOpen:
      return "open";
    case FrameKind::kPrompt:
      return "prompt";
    case FrameKind::kGenerated:
      return "generated";
    case FrameKind::kTurnEnd:
      return "turn_end";
    case FrameKind::kRewind:
      return "rewind";
    case FrameKind::kSaving:
      return "saving";
    case FrameKind::kSaved:
      return "saved";
    case FrameKind::kDeleted:
      return "deleted";
  }
  return "unknown kind";
}

std::string EncodeFrame(const FrameHeader& header, uint64_t salt, std::string_view payload, Digest* chain) {
  HeaderBytes out{};
  std::memcpy(out.magic, kFrameMagic, sizeof(out.magic));
  out.kind = static_cast<uint16_t>(header.kind);
  out.sequence = header.sequence;
  out.payload_bytes = static_cast<uint32_t>(payload.size());
  out.previous = DigestBytes::Of(header.previous);
  out.checksum = Checksum(out, salt);
  std::string frame;
  frame.reserve(kFrameHeaderBytes + payload.size() + kFrameTrailerBytes);
  AppendBytes(&frame, out);
  frame += payload;
  AppendBytes(&frame, DigestBytes::Of(DigestOf(payload)));
  const std::string_view whole = frame;
  *chain = ChainOf(whole.substr(0, kFrameHeaderBytes), whole.substr(whole.size() - kFrameTrailerBytes));
  return frame;
}

std::optional<FrameHeader> DecodeFrameHeader(std::string_view header, uint64_t salt) {
  const auto in = LoadBytes<HeaderBytes>(header, 0);
  if (std::memcmp(in.magic, kFrameMagic, sizeof(in.magic)) != 0 || in.zero != 0 || in.zero2 != 0) return std::nullopt;
  if (in.kind < 1 || in.kind > static_cast<uint16_t>(FrameKind::kDeleted)) return std::nullopt;
  if (in.payload_bytes > limits::kMaxJournalFrameBytes || in.checksum != Checksum(in, salt)) return std::nullopt;
  return FrameHeader{static_cast<FrameKind>(in.kind), in.sequence, in.payload_bytes, in.previous.Value()};
}

bool CheckFramePayload(std::string_view frame, Digest* chain) {
  const std::string_view header = frame.substr(0, kFrameHeaderBytes);
  const std::string_view payload =
      frame.substr(kFrameHeaderBytes, frame.size() - kFrameHeaderBytes - kFrameTrailerBytes);
  const std::string_view trailer = frame.substr(frame.size() - kFrameTrailerBytes);
  *chain = ChainOf(header, trailer);
  return LoadBytes<DigestBytes>(trailer, 0).Value() == DigestOf(payload);
}

std::string EncodeOpen(const OpenFrame& open) {
  std::string out;
  AppendBytes(&out, OpenBytes{kJournalVersion, 0, open.salt, open.time_ms, static_cast<uint32_t>(open.owner.size()),
                              static_cast<uint32_t>(open.id.size())});
  return out + open.owner + open.id;
}

std::string EncodePrompt(const PromptFrame& prompt) {
  std::string out;
  AppendBytes(&out, PromptBytes{prompt.parent, prompt.time_ms, static_cast<uint32_t>(prompt.fork_position),
                                static_cast<uint32_t>(prompt.ids.size()), static_cast<uint32_t>(prompt.text.size()), 0,
                                DigestBytes::Of(prompt.message_hash)});
  AppendIds(&out, prompt.ids);
  out += prompt.text;
  return out;
}

std::string EncodeGenerated(int64_t turn, std::span<const int32_t> ids) {
  std::string out;
  AppendBytes(&out, GeneratedBytes{turn, static_cast<uint32_t>(ids.size()), 0});
  AppendIds(&out, ids);
  return out;
}

std::string EncodeTurnEnd(const TurnEndFrame& end) {
  std::string out;
  AppendBytes(&out, TurnEndBytes{end.turn, static_cast<uint32_t>(end.end), static_cast<uint32_t>(end.fed),
                                 static_cast<uint32_t>(end.text.size()), 0, DigestBytes::Of(end.reply_hash)});
  out += end.text;
  return out;
}

std::string EncodeRewind(int64_t turn, int32_t length) {
  std::string out;
  AppendBytes(&out, RewindBytes{turn, static_cast<uint32_t>(length), 0});
  return out;
}

std::string EncodeSave(int64_t generation, const Digest& manifest) {
  std::string out;
  AppendBytes(&out, SaveBytes{static_cast<uint64_t>(generation), DigestBytes::Of(manifest)});
  return out;
}

std::optional<OpenFrame> DecodeOpen(std::string_view payload) {
  if (payload.size() < sizeof(OpenBytes)) return std::nullopt;
  const auto in = LoadBytes<OpenBytes>(payload, 0);
  if (in.version != kJournalVersion || in.zero != 0) return std::nullopt;
  if (payload.size() != sizeof(OpenBytes) + uint64_t{in.owner_bytes} + in.id_bytes) return std::nullopt;
  const std::string_view names = payload.substr(sizeof(OpenBytes));
  return OpenFrame{in.salt, in.time_ms, std::string(names.substr(0, in.owner_bytes)),
                   std::string(names.substr(in.owner_bytes))};
}

absl::Status ApplyFrame(FrameKind kind, std::string_view payload, JournalState* state) {
  if (state->deleted) return InvalidArgument("a {} frame follows the deletion", FrameKindName(kind));
  switch (kind) {
    case FrameKind::kOpen:
      return InvalidArgument("a second open frame");
    case FrameKind::kPrompt:
      return ApplyPrompt(payload, state);
    case FrameKind::kGenerated:
      return ApplyGenerated(payload, state);
    case FrameKind::kTurnEnd:
      return ApplyTurnEnd(payload, state);
    case FrameKind::kRewind:
      return ApplyRewind(payload, state);
    case FrameKind::kSaving:
    case FrameKind::kSaved:
      return ApplySave(kind, payload, state);
    case FrameKind::kDeleted:
      if (!payload.empty()) return BadLength(kind, payload.size());
      state->deleted = true;
      return absl::OkStatus();
  }
  return InvalidArgument("frame kind {}", static_cast<int>(kind));
}

std::span<const FieldSpec> FrameHeaderFields() {
  static constexpr std::array kFields = {
      LAYOVER_FIELD(HeaderBytes, magic),         LAYOVER_FIELD(HeaderBytes, kind),
      LAYOVER_FIELD(HeaderBytes, zero),          LAYOVER_FIELD(HeaderBytes, sequence),
      LAYOVER_FIELD(HeaderBytes, payload_bytes), LAYOVER_FIELD(HeaderBytes, zero2),
      LAYOVER_FIELD(HeaderBytes, previous),      LAYOVER_FIELD(HeaderBytes, checksum)};
  return kFields;
}

std::span<const FieldSpec> OpenFrameFields() {
  static constexpr std::array kFields = {LAYOVER_FIELD(OpenBytes, version),     LAYOVER_FIELD(OpenBytes, zero),
                                         LAYOVER_FIELD(OpenBytes, salt),        LAYOVER_FIELD(OpenBytes, time_ms),
                                         LAYOVER_FIELD(OpenBytes, owner_bytes), LAYOVER_FIELD(OpenBytes, id_bytes)};
  return kFields;
}

std::span<const FieldSpec> PromptFrameFields() {
  static constexpr std::array kFields = {
      LAYOVER_FIELD(PromptBytes, parent),        LAYOVER_FIELD(PromptBytes, time_ms),
      LAYOVER_FIELD(PromptBytes, fork_position), LAYOVER_FIELD(PromptBytes, id_count),
      LAYOVER_FIELD(PromptBytes, text_bytes),    LAYOVER_FIELD(PromptBytes, zero),
      LAYOVER_FIELD(PromptBytes, message_hash)};
  return kFields;
}

std::span<const FieldSpec> GeneratedFrameFields() {
  static constexpr std::array kFields = {LAYOVER_FIELD(GeneratedBytes, turn), LAYOVER_FIELD(GeneratedBytes, id_count),
                                         LAYOVER_FIELD(GeneratedBytes, zero)};
  return kFields;
}

std::span<const FieldSpec> TurnEndFrameFields() {
  static constexpr std::array kFields = {LAYOVER_FIELD(TurnEndBytes, turn), LAYOVER_FIELD(TurnEndBytes, reason),
                                         LAYOVER_FIELD(TurnEndBytes, fed),  LAYOVER_FIELD(TurnEndBytes, text_bytes),
                                         LAYOVER_FIELD(TurnEndBytes, zero), LAYOVER_FIELD(TurnEndBytes, reply_hash)};
  return kFields;
}

std::span<const FieldSpec> RewindFrameFields() {
  static constexpr std::array kFields = {LAYOVER_FIELD(RewindBytes, turn), LAYOVER_FIELD(RewindBytes, length),
                                         LAYOVER_FIELD(RewindBytes, zero)};
  return kFields;
}

std::span<const FieldSpec> SaveFrameFields() {
  static constexpr std::array kFields = {LAYOVER_FIELD(SaveBytes, generation), LAYOVER_FIELD(SaveBytes, manifest)};
  return kFields;
}

}  // namespace layover
