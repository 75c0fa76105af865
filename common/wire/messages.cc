// The codec of messages.h: cereal's portable binary form, each list with a bound, and nothing left over at the end.
#include "common/wire/messages.h"

#include <sstream>

#include "cereal/archives/portable_binary.hpp"
#include "cereal/types/string.hpp"
#include "common/limits.h"
#include "common/status.h"

namespace layover::wire {
namespace {

using OutputArchive = cereal::PortableBinaryOutputArchive;
using InputArchive = cereal::PortableBinaryInputArchive;

// Reads from memory without a copy and knows what is left, so that a list's length can be held against it.
class MemoryBuffer : public std::streambuf {
 public:
  explicit MemoryBuffer(std::string_view bytes) {
    char* begin = const_cast<char*>(bytes.data());
    setg(begin, begin, begin + bytes.size());
  }
  size_t Remaining() const { return static_cast<size_t>(egptr() - gptr()); }
};

// An archive beside the number of bytes that it can still deliver.
struct Reader {
  InputArchive& archive;
  MemoryBuffer& buffer;
  static constexpr bool kLoads = true;
  template <typename T>
  void Value(T& value) { archive(value); }
  void Text(std::string& text) {
    text.resize(Length(1));
    archive(cereal::binary_data(text.data(), text.size()));
  }
  // cereal would allocate whatever a length says; ours must fit into what is there.
  size_t Length(size_t least_element_bytes) {
    uint64_t n = 0;
    archive(n);
    if (n > buffer.Remaining() / least_element_bytes) throw cereal::Exception("a list is longer than its message");
    return static_cast<size_t>(n);
  }
};

struct Writer {
  OutputArchive& archive;
  static constexpr bool kLoads = false;
  template <typename T>
  void Value(const T& value) { archive(value); }
  void Text(std::string& text) {
    archive(static_cast<uint64_t>(text.size()));
    archive(cereal::binary_data(text.data(), text.size()));
  }
};

template <typename Ar, typename T>
void Field(Ar& ar, T& value);

template <typename Ar>
void Fields(Ar& ar) {}
template <typename Ar, typename First, typename... Rest>
void Fields(Ar& ar, First& first, Rest&... rest) {
  Field(ar, first);
  Fields(ar, rest...);
}

// One overload a struct: the order of its fields on the wire.
template <typename Ar> void Visit(Ar& ar, Digest& m) { Fields(ar, m.high, m.low); }
template <typename Ar, typename A, typename B> void Visit(Ar& ar, std::pair<A, B>& m) { Fields(ar, m.first, m.second); }
template <typename Ar> void Visit(Ar& ar, Envelope& m) { Fields(ar, m.epoch, m.seq); }
template <typename Ar> void Visit(Ar& ar, DataEnd& m) { Fields(ar, m.endpoint, m.binds, m.own_secret, m.peer_public); }
template <typename Ar> void Visit(Ar& ar, FileEnd& m) { Fields(ar, m.end, m.serves, m.host); }
template <typename Ar> void Visit(Ar& ar, Configure& m) {
  Fields(ar, m.stage, m.n_stages, m.model, m.layer_begin, m.layer_end, m.device, m.threads, m.kv_type, m.context, m.n_pages,
         m.n_window_pages, m.n_slots, m.max_step_tokens, m.link_in, m.link_out, m.data_in, m.data_out,
         m.host, m.store_id, m.store, m.file_ends);
}
template <typename Ar> void Visit(Ar& ar, RingAddress& m) { Fields(ar, m.memory, m.bell_read, m.bell_write); }
template <typename Ar> void Visit(Ar& ar, Reset& m) { Fields(ar, m.ring_in, m.ring_out); }
template <typename Ar> void Visit(Ar& ar, Shutdown&) {}
template <typename Ar> void Visit(Ar& ar, PageCopy& m) { Fields(ar, m.src, m.dst, m.rows); }
template <typename Ar> void Visit(Ar& ar, StateAt& m) { Fields(ar, m.position, m.slot, m.window_pages); }
template <typename Ar> void Visit(Ar& ar, OpenSession& m) { Fields(ar, m.session); }
template <typename Ar> void Visit(Ar& ar, ForkSession& m) {
  Fields(ar, m.source, m.session, m.length, m.pages, m.copies, m.state, m.window_copies);
}
template <typename Ar> void Visit(Ar& ar, TruncateSession& m) {
  Fields(ar, m.session, m.length, m.n_pages, m.state);
}
template <typename Ar> void Visit(Ar& ar, CloseSession& m) { Fields(ar, m.session); }
template <typename Ar> void Visit(Ar& ar, SamplerSpec& m) {
  Fields(ar, m.temperature, m.top_p, m.min_p, m.top_k, m.repeat_penalty, m.presence_penalty, m.frequency_penalty, m.seed,
         m.logit_bias, m.banned);
}
template <typename Ar> void Visit(Ar& ar, StepSlice& m) {
  Fields(ar, m.session, m.begin, m.tokens, m.new_pages, m.copies, m.new_window_pages, m.window_copies, m.state_from,
         m.state_to, m.wish, m.sampler, m.output_begin, m.top_logprobs, m.row_digest, m.raw_rows, m.next_token);
}
template <typename Ar> void Visit(Ar& ar, Step& m) { Fields(ar, m.slices); }
template <typename Ar> void Visit(Ar& ar, SegmentRef& m) {
  Fields(ar, m.path, m.layer_begin, m.layer_end, m.generation, m.bytes, m.index_digest, m.folder, m.host);
}
template <typename Ar> void Visit(Ar& ar, BranchCut& m) {
  Fields(ar, m.branch, m.session, m.park, m.n_tokens, m.base, m.window_base, m.checkpoints);
}
template <typename Ar> void Visit(Ar& ar, SaveSession& m) {
  Fields(ar, m.save, m.branches, m.directory, m.folder, m.generation, m.identity);
}
template <typename Ar> void Visit(Ar& ar, AbortSave& m) { Fields(ar, m.save, m.path); }
template <typename Ar> void Visit(Ar& ar, RestoreSession& m) {
  Fields(ar, m.restore, m.session, m.tokens, m.pages, m.state, m.checkpoints, m.segments, m.folder, m.identity);
}
template <typename Ar> void Visit(Ar& ar, ParkSession& m) { Fields(ar, m.park, m.session, m.checkpoints); }
template <typename Ar> void Visit(Ar& ar, UnparkSession& m) {
  Fields(ar, m.restore, m.park, m.session, m.n_tokens, m.pages, m.state, m.checkpoints);
}
template <typename Ar> void Visit(Ar& ar, DropPark& m) { Fields(ar, m.park); }
template <typename Ar> void Visit(Ar& ar, Attach& m) { Fields(ar, m.protocol, m.stage, m.coordinator); }
template <typename Ar> void Visit(Ar& ar, KeepAlive&) {}
template <typename Ar> void Visit(Ar& ar, RemoveSegments& m) { Fields(ar, m.files); }
template <typename Ar> void Visit(Ar& ar, SweepSegments& m) { Fields(ar, m.keep); }
template <typename Ar> void Visit(Ar& ar, JoinHop& m) { Fields(ar, m.peer_id); }
template <typename Ar> void Visit(Ar& ar, Hello& m) { Fields(ar, m.protocol, m.stage, m.pid); }
template <typename Ar> void Visit(Ar& ar, Ready& m) {
  Fields(ar, m.stage, m.layer_digests, m.numerics, m.weight_bytes, m.load_ms, m.arch, m.rope);
}
template <typename Ar> void Visit(Ar& ar, Fault& m) { Fields(ar, m.stage, m.code, m.message); }
template <typename Ar> void Visit(Ar& ar, RowReport& m) {
  Fields(ar, m.position, m.token, m.logprob, m.top, m.digest, m.raw);
}
template <typename Ar> void Visit(Ar& ar, SliceResult& m) { Fields(ar, m.session, m.rows); }
template <typename Ar> void Visit(Ar& ar, StepDone& m) { Fields(ar, m.stage, m.results, m.compute_us); }
template <typename Ar> void Visit(Ar& ar, WireStatus& m) { Fields(ar, m.code, m.message, m.file, m.field); }
template <typename Ar> void Visit(Ar& ar, SaveReceipt& m) {
  Fields(ar, m.stage, m.save, m.status, m.layer_begin, m.layer_end, m.n_tokens, m.prefix, m.bytes, m.payload_bytes,
         m.n_records, m.index_digest, m.ms);
}
template <typename Ar> void Visit(Ar& ar, RestoreReceipt& m) {
  Fields(ar, m.stage, m.restore, m.status, m.n_tokens, m.prefix, m.bytes_read, m.ms);
}
template <typename Ar> void Visit(Ar& ar, ParkReceipt& m) { Fields(ar, m.stage, m.park, m.status, m.bytes, m.ms); }
template <typename Ar> void Visit(Ar& ar, TransferTick& m) {
  Fields(ar, m.stage, m.number, m.restore, m.bytes_done, m.bytes_total);
}
template <typename Ar> void Visit(Ar& ar, Heartbeat& m) { Fields(ar, m.stage, m.last_seq, m.progress); }
template <typename Ar> void Visit(Ar& ar, WorkerEnded& m) { Fields(ar, m.stage, m.message); }
template <typename Ar> void Visit(Ar& ar, Occupied& m) { Fields(ar, m.stage); }

template <typename Ar> void Visit(Ar& ar, HopOffered& m) { Fields(ar, m.stage, m.peer_id); }
template <typename Ar> void Visit(Ar& ar, HopJoined& m) { Fields(ar, m.stage, m.inward); }

template <typename T> struct IsVector : std::false_type {};
template <typename T> struct IsVector<std::vector<T>> : std::true_type {};

template <typename Ar, typename T>
void Field(Ar& ar, T& value) {
  if constexpr (std::is_enum_v<T>) {
    auto raw = static_cast<std::underlying_type_t<T>>(value);
    ar.Value(raw);
    value = static_cast<T>(raw);
  } else if constexpr (std::is_same_v<T, bool>) {
    uint8_t raw = value ? 1 : 0;
    ar.Value(raw);
    value = raw != 0;
  } else if constexpr (std::is_arithmetic_v<T>) {
    ar.Value(value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    ar.Text(value);
  } else if constexpr (IsVector<T>::value) {
    if constexpr (Ar::kLoads) {
      value.resize(ar.Length(4));  // no element of any list is shorter
    } else {
      ar.Value(static_cast<uint64_t>(value.size()));
    }
    for (auto& element : value) Field(ar, element);
  } else {
    Visit(ar, value);
  }
}

template <typename Variant>
std::string EncodeAny(const Envelope& envelope, const Variant& message) {
  std::ostringstream stream;
  OutputArchive archive(stream);
  Writer writer{archive};
  Envelope head = envelope;
  Field(writer, head);
  writer.Value(static_cast<uint8_t>(message.index()));
  std::visit([&](const auto& m) { Field(writer, const_cast<std::remove_cvref_t<decltype(m)>&>(m)); }, message);
  return std::move(stream).str();
}

template <size_t I, typename Variant>
void LoadAlternative(Reader& reader, uint8_t index, Variant* message) {
  if constexpr (I < std::variant_size_v<Variant>) {
    if (index == I) {
      Field(reader, message->template emplace<I>());
    } else {
      LoadAlternative<I + 1>(reader, index, message);
    }
  } else {
    throw cereal::Exception("unknown message kind");
  }
}

template <typename Variant>
absl::Status DecodeAny(std::string_view bytes, Envelope* envelope, Variant* message) {
  if (bytes.size() > limits::kMaxWireMessageBytes) return DataLoss("wire message of {} bytes is over the limit", bytes.size());
  MemoryBuffer buffer(bytes);
  std::istream stream(&buffer);
  try {
    InputArchive archive(stream);
    Reader reader{archive, buffer};
    Field(reader, *envelope);
    uint8_t index = 0;
    reader.Value(index);
    LoadAlternative<0>(reader, index, message);
  } catch (const cereal::Exception& error) {
    return DataLoss("wire message: {}", error.what());
  }
  if (buffer.Remaining() != 0) return DataLoss("wire message: {} bytes too many", buffer.Remaining());
  return absl::OkStatus();
}

}  // namespace

std::string Encode(const Envelope& envelope, const ToStage& message) { return EncodeAny(envelope, message); }
std::string Encode(const Envelope& envelope, const FromStage& message) { return EncodeAny(envelope, message); }

absl::Status Decode(std::string_view bytes, Envelope* envelope, ToStage* message) {
  return DecodeAny(bytes, envelope, message);
}
absl::Status Decode(std::string_view bytes, Envelope* envelope, FromStage* message) {
  return DecodeAny(bytes, envelope, message);
}

WireStatus ToWire(const absl::Status& status) {
  WireStatus wire;
  wire.code = static_cast<int32_t>(status.code());
  wire.message = std::string(status.message());
  if (const auto part = PartOf(status)) {
    wire.file = part->file;
    wire.field = part->field;
  }
  return wire;
}

absl::Status FromWire(const WireStatus& wire, int stage) {
  if (wire.code == 0) return absl::OkStatus();
  absl::Status status(static_cast<absl::StatusCode>(wire.code), wire.message);
  return WithPart(std::move(status), StatusPart{.file = wire.file, .stage = stage, .field = wire.field});
}

}  // namespace layover::wire
