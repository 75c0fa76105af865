#include "stage_worker/worker.h"

#include <unistd.h>

#include <chrono>

#include "common/gguf/model_identity.h"
#include "common/gguf/model_shape.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/status.h"

namespace layover {
namespace {

int64_t MicrosecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start).count();
}

// The device's page tables and logits buffers are sized by this many rows.
constexpr int kLogitsRows = 64;

}  // namespace

Worker::Worker(const WorkerOptions& options) : options_(options), epoch_(options.epoch) {}

Worker::~Worker() {
  stop_beat_ = true;
  if (beat_.joinable()) beat_.join();
}

absl::Status Worker::Run() {
  RETURN_IF_ERROR(Connect());
  const absl::Status status = Loop();
  const std::string summary = runner_ != nullptr ? runner_->Summary() : std::string();
  if (!summary.empty()) LogInfo("{}", summary);
  if (!status.ok()) {
    LogError("{}", status.ToString());
    const absl::Status told = Say(wire::Fault{options_.stage, static_cast<int32_t>(status.code()), std::string(status.message())});
    // The message leaves from ZeroMQ's own thread; give it the moment it needs before the process goes.
    if (told.ok()) usleep(200'000);
  }
  return status;
}

absl::Status Worker::Connect() {
  ASSIGN_OR_RETURN(control_, wire::Socket::Open(context_, wire::SocketKind::kDealer,
                                                {.routing_id = fmt::format("stage-{}", options_.stage)}));
  RETURN_IF_ERROR(control_->Connect(options_.control));
  beat_epoch_ = epoch_;
  RETURN_IF_ERROR(Say(wire::Hello{wire::kProtocolVersion, options_.stage, static_cast<int32_t>(getpid())}));
  beat_ = std::thread([this] { BeatLoop(); });
  return absl::OkStatus();
}

absl::Status Worker::Say(const wire::FromStage& message, uint64_t seq) {
  return control_->Send({wire::Encode({.epoch = epoch_, .seq = seq}, message)});
}

void Worker::BeatLoop() {
  auto socket = wire::Socket::Open(context_, wire::SocketKind::kDealer, {.routing_id = fmt::format("beat-{}", options_.stage)});
  if (!socket.ok() || !(*socket)->Connect(options_.control).ok()) return;
  int waited_ms = 0;
  constexpr int kTickMs = 50;
  while (!stop_beat_) {
    usleep(kTickMs * 1000);
    waited_ms += kTickMs;
    if (waited_ms < limits::kHeartbeatIntervalMs) continue;
    waited_ms = 0;
    const wire::Heartbeat beat{options_.stage, last_seq_, progress_};
    // A beat that cannot be sent is simply missed.
    (void)(*socket)->Send({wire::Encode({.epoch = beat_epoch_}, wire::FromStage(beat))});
  }
}

absl::Status Worker::Loop() {
  while (!shutdown_) {
    RETURN_IF_ERROR(HandleReady());
    std::vector<wire::PollItem> items = {{.socket = control_.get()}, {.fd = results_.fd()}};
    const bool wait = given_up_ || receiver_ == nullptr || receiver_->BeginWait(&items);
    RETURN_IF_ERROR(wire::Poll(items, !wait ? 0 : meeting() ? limits::kPeerPollMs : -1));
    RETURN_IF_ERROR(ReceiveControl());
    RETURN_IF_ERROR(MeetPeers());
    RETURN_IF_ERROR(TakeTransferResults());
    if (receiver_ != nullptr) RETURN_IF_ERROR(receiver_->Drain());
  }
  return absl::OkStatus();
}

absl::Status Worker::ReceiveControl() {
  while (true) {
    ASSIGN_OR_RETURN(auto parts, control_->Receive());
    if (!parts.has_value()) return absl::OkStatus();
    wire::Envelope envelope;
    wire::ToStage message;
    RETURN_IF_ERROR(wire::Decode(parts->back(), &envelope, &message));
    RETURN_IF_ERROR(TakeMessage(envelope, std::move(message)));
  }
}

absl::Status Worker::TakeMessage(const wire::Envelope& envelope, wire::ToStage message) {
  if (std::holds_alternative<wire::Shutdown>(message)) {
    shutdown_ = true;
    return absl::OkStatus();
  }
  if (const auto* reset = std::get_if<wire::Reset>(&message)) return Reset(envelope.epoch, *reset);
  if (envelope.epoch != epoch_) return absl::OkStatus();  // of a pipeline that is no more
  if (const auto* configure = std::get_if<wire::Configure>(&message)) return Load(*configure);
  if (const auto* join = std::get_if<wire::JoinHop>(&message)) {
    return nccl_in_ != nullptr ? nccl_in_->Join(join->peer_id) : Internal("stage {} has no hop of nccl", options_.stage);
  }
  if (const auto* abort = std::get_if<wire::AbortSave>(&message)) {
    if (transfers_ != nullptr) transfers_->AbortSave(*abort);
    return absl::OkStatus();
  }
  if (const auto* remove = std::get_if<wire::RemoveSegments>(&message)) {
    if (transfers_ != nullptr) transfers_->RemoveSegments(*remove);
    return absl::OkStatus();
  }
  if (const auto* sweep = std::get_if<wire::SweepSegments>(&message)) {
    if (transfers_ != nullptr) transfers_->SweepSegments(*sweep);
    return absl::OkStatus();
  }
  queue_.push_back({envelope.seq, std::move(message)});
  return absl::OkStatus();
}

absl::Status Worker::Reset(uint32_t epoch, const wire::Reset& reset) {
  // Before new commands may hand out pages that a running transfer still reads or writes.
  if (transfers_ != nullptr) transfers_->CancelAll();
  (void)results_.TakeAll();
  epoch_ = epoch;
  beat_epoch_ = epoch;
  queue_.clear();
  if (sessions_ != nullptr) sessions_->Clear();
  reset_ = reset;
  given_up_ = false;
  LogInfo("epoch {}: all sessions forgotten", epoch);
  return RenewHops();
}

absl::StatusOr<SegmentHome> Worker::OpenHome(const wire::Configure& configure) {
  SegmentHome home{.host = configure.host};
  if (!home.host.empty() && !configure.store_id.empty()) {
    if (options_.store.empty()) {
      return FailedPrecondition("conversations are saved, but this machine has no place for its segments; "
                                "start layover-stage there with --store DIR");
    }
    ASSIGN_OR_RETURN(home.own, OwnStore::Open(options_.store, configure.store_id));
  }
  std::vector<wire::FileEnd> served;
  for (wire::FileEnd end : configure.file_ends) {
    end.end = HereEnd(end.end);
    if (end.serves) {
      served.push_back(std::move(end));
      continue;
    }
    ASSIGN_OR_RETURN(auto socket, OpenSegmentEnd(context_, end));
    const std::string name = end.host.empty() ? "the coordinator's machine" : end.host;
    home.elsewhere[end.host] = std::make_unique<SegmentLink>(std::move(socket), name);
  }
  if (served.empty()) return home;
  ASSIGN_OR_RETURN(segment_server_,
                   SegmentServer::Start(context_, served, home.own != nullptr ? home.own->root() : configure.store));
  return home;
}

// With the address of this machine that was asked for in place of any.
wire::DataEnd Worker::HereEnd(wire::DataEnd end) const {
  constexpr std::string_view kAnyHost = "tcp://*:";
  if (end.endpoint.starts_with(kAnyHost) && !options_.bind_host.empty()) {
    end.endpoint = fmt::format("tcp://{}:{}", options_.bind_host, end.endpoint.substr(kAnyHost.size()));
  }
  return end;
}

absl::Status Worker::Load(const wire::Configure& configure) {
  const auto start = std::chrono::steady_clock::now();
  configure_ = configure;
  ASSIGN_OR_RETURN(SegmentHome home, OpenHome(configure));
  ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Open(options_.model.empty() ? configure.model : options_.model));
  ASSIGN_OR_RETURN(const ModelShape shape, ReadModelShape(*file));
  ASSIGN_OR_RETURN(device_, OpenDevice(configure.device, {.threads = configure.threads}));
  KvType kv_type;
  if (!ParseKvType(configure.kv_type, &kv_type)) return InvalidArgument("kv_type {} is unknown", configure.kv_type);
  const LayerRange layers{configure.layer_begin, configure.layer_end};
  const ModelPlacement placement{.layers = layers, .owns_embedding = configure.stage == 0,
                                 .owns_head = configure.stage == configure.n_stages - 1,
                                 .step_rows = configure.max_step_tokens, .logits_rows = kLogitsRows, .progress = &progress_};
  ASSIGN_OR_RETURN(pages_, KvPages::Create(*device_, shape, layers, kv_type,
                                           {.full = configure.n_pages, .window = configure.n_window_pages}));
  ASSIGN_OR_RETURN(states_, RecurrentState::Create(*device_, shape, layers, configure.n_slots));
  ASSIGN_OR_RETURN(model_, LoadModel(*device_, *file, shape, {pages_.get(), states_.get()}, placement));
  stream_ = device_->NewComputeStream();
  sessions_ = std::make_unique<SessionTable>(*pages_, *states_, *stream_);
  ASSIGN_OR_RETURN(const auto tokens, file->GetArrayLength("tokenizer.ggml.tokens"));
  const int n_vocab_text = tokens.has_value() ? static_cast<int>(std::min<uint64_t>(*tokens, shape.n_vocab)) : shape.n_vocab;
  n_embd_ = shape.n_embd;
  ASSIGN_OR_RETURN(runner_, StepRunner::Create(*device_, *stream_, *model_,
                                               {.n_vocab = shape.n_vocab, .n_vocab_text = n_vocab_text,
                                                .step_rows = configure.max_step_tokens, .logits_rows = kLogitsRows,
                                                .context = configure.context, .owns_head = placement.owns_head,
                                                .has_windows = shape.window > 0,
                                                .has_states = shape.recurrent.conv_taps > 0}));
  transfers_ = std::make_unique<Transfers>(*device_, *pages_, *states_, configure.stage, &results_);
  transfers_->SetHome(std::move(home));
  RETURN_IF_ERROR(OpenHops());

  wire::Ready ready{.stage = configure.stage, .numerics = device_->NumericsFingerprint(), .arch = ArchDigest(shape),
                    .rope = RopeDigest(*file, shape)};
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    ready.layer_digests.emplace_back(layer, LayerWeightDigest(*file, shape, layer));
  }
  if (placement.owns_embedding) ready.layer_digests.emplace_back(-1, EmbeddingDigest(*file, shape));
  if (placement.owns_head) ready.layer_digests.emplace_back(-2, HeadDigest(*file, shape));
  ready.load_ms = MicrosecondsSince(start) / 1000;
  LogInfo("layers [{}, {}) on {} with {} threads, ready after {} ms", layers.begin, layers.end, configure.device,
          configure.threads, ready.load_ms);
  return Say(ready);
}

absl::Status Worker::OpenHops() {
  const LinkKind in = configure_.link_in, out = configure_.link_out;
  const auto stage = static_cast<uint32_t>(configure_.stage);
  const size_t hop_bytes = sizeof(float) * static_cast<size_t>(configure_.max_step_tokens) * static_cast<size_t>(n_embd_);
  if (in == LinkKind::kZmq) {
    ASSIGN_OR_RETURN(receiver_, OpenZmqReceiver(context_, HereEnd(configure_.data_in)));
  } else if (in == LinkKind::kShm) {
    receiver_ = MakeShmReceiver(*device_, stage);
  } else if (in == LinkKind::kNccl) {
    auto receiver = std::make_unique<NcclReceiver>(*device_, stage, hop_bytes);
    nccl_in_ = receiver.get();
    receiver_ = std::move(receiver);
  }
  if (out == LinkKind::kZmq) {
    ASSIGN_OR_RETURN(sender_, OpenZmqSender(context_, HereEnd(configure_.data_out)));
  } else if (out == LinkKind::kShm) {
    sender_ = MakeShmSender(*device_, stage + 1);
  } else if (out == LinkKind::kNccl) {
    auto sender = std::make_unique<NcclSender>(*device_, stage + 1, hop_bytes);
    nccl_out_ = sender.get();
    sender_ = std::move(sender);
  }
  return RenewHops();
}

absl::Status Worker::RenewHops() {
  if (receiver_ != nullptr) receiver_->Renew(epoch_, reset_.ring_in);
  if (sender_ != nullptr) sender_->Renew(epoch_, reset_.ring_out);
  if (nccl_out_ == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(std::string id, nccl_out_->Offer());
  return id.empty() ? absl::OkStatus() : Say(wire::HopOffered{options_.stage, std::move(id)});
}

bool Worker::meeting() const {
  return (nccl_in_ != nullptr && nccl_in_->meeting().under_way()) || (nccl_out_ != nullptr && nccl_out_->meeting().under_way());
}

absl::Status Worker::MeetPeers() {
  if (nccl_in_ != nullptr) {
    ASSIGN_OR_RETURN(const bool joined, nccl_in_->meeting().Poll());
    if (joined) RETURN_IF_ERROR(Say(wire::HopJoined{options_.stage, true}));
  }
  if (nccl_out_ != nullptr) {
    ASSIGN_OR_RETURN(const bool joined, nccl_out_->meeting().Poll());
    if (joined) RETURN_IF_ERROR(Say(wire::HopJoined{options_.stage, false}));
  }
  return absl::OkStatus();
}

// The other end of a hop is gone, which is not this worker's fault: a Reset is on its way.
absl::Status Worker::GiveUp(const absl::Status& why) {
  if (!absl::IsAborted(why)) return why;
  LogInfo("epoch {}: {}", epoch_, ToStd(why.message()));
  given_up_ = true;
  queue_.clear();
  return absl::OkStatus();
}

absl::Status Worker::TakeTransferResults() {
  for (TransferResult& result : results_.TakeAll()) {
    if (result.restored_session != 0) {
      RETURN_IF_ERROR(sessions_->Adopt(result.restored_session, std::move(result.session)));
    }
    RETURN_IF_ERROR(Say(result.message));
  }
  return absl::OkStatus();
}

absl::Status Worker::HandleReady() {
  while (!queue_.empty() && !shutdown_ && !given_up_ && CanHandle(queue_.front())) {
    const Ordered ordered = std::move(queue_.front());
    queue_.pop_front();
    RETURN_IF_ERROR(Handle(ordered));
    last_seq_ = ordered.seq;
  }
  return absl::OkStatus();
}

bool Worker::CanHandle(const Ordered& ordered) const {
  return receiver_ == nullptr || !std::holds_alternative<wire::Step>(ordered.message) || receiver_->Has(ordered.seq);
}

absl::Status Worker::Handle(const Ordered& ordered) {
  if (sessions_ == nullptr) return Internal("an ordered message came before Configure");
  const wire::ToStage& message = ordered.message;
  if (const auto* step = std::get_if<wire::Step>(&message)) return HandleStep(ordered.seq, *step);
  if (const auto* open = std::get_if<wire::OpenSession>(&message)) return sessions_->Open(open->session);
  if (const auto* fork = std::get_if<wire::ForkSession>(&message)) return sessions_->Fork(*fork);
  if (const auto* cut = std::get_if<wire::TruncateSession>(&message)) return sessions_->Truncate(*cut);
  if (const auto* close = std::get_if<wire::CloseSession>(&message)) return sessions_->Close(close->session);
  // Transfers copy on streams of their own, which wait for nothing that a fork or a step has put in this one.
  RETURN_IF_ERROR(stream_->Synchronize());
  if (const auto* save = std::get_if<wire::SaveSession>(&message)) return HandleSave(*save);
  if (const auto* restore = std::get_if<wire::RestoreSession>(&message)) {
    transfers_->Restore(*restore);
    return absl::OkStatus();
  }
  if (const auto* park = std::get_if<wire::ParkSession>(&message)) return HandlePark(*park);
  if (const auto* unpark = std::get_if<wire::UnparkSession>(&message)) {
    transfers_->Unpark(*unpark);
    return absl::OkStatus();
  }
  if (const auto* drop = std::get_if<wire::DropPark>(&message)) {
    transfers_->DropPark(*drop);
    return absl::OkStatus();
  }
  return Internal("message {} is not an ordered one", message.index());
}

absl::Status Worker::HandleSave(const wire::SaveSession& save) {
  std::vector<BranchSource> cuts;
  for (const wire::BranchCut& cut : save.branches) {
    ASSIGN_OR_RETURN(BranchSource source, SourceOf(cut));
    cuts.push_back(std::move(source));
  }
  if (cuts.empty()) return Internal("save {} has no branch", save.save);
  transfers_->Save(save, std::move(cuts));
  return absl::OkStatus();
}

// The cut: tokens, page tables and slot as they are now. Rows below n_tokens and the slots stay as they are until the
// coordinator unpins.
absl::StatusOr<BranchSource> Worker::SourceOf(const wire::BranchCut& cut) const {
  BranchSource source;
  if (cut.session == 0) {
    source.image = transfers_->Parked(cut.park);
    if (source.image == nullptr) return Internal("image {} is not parked here", cut.park);
    const auto held = static_cast<int64_t>(source.image->tokens().size());
    if (cut.n_tokens > held) return Internal("image {} has {} tokens, not {}", cut.park, held, cut.n_tokens);
    return source;
  }
  const StageSession* session = sessions_->Find(cut.session);
  if (session == nullptr) return Internal("session {} is not open", cut.session);
  const auto length = static_cast<int64_t>(session->tokens.size());
  if (cut.n_tokens > length || cut.base < 0 || cut.base > cut.n_tokens) {
    return Internal("session {} has {} tokens, not [{}, {})", cut.session, length, cut.base, cut.n_tokens);
  }
  if (cut.n_tokens != length && (session->state_slot >= 0 || pages_->window() > 0)) {
    return Internal("session {} has its state at {}, not {}", cut.session, length, cut.n_tokens);
  }
  source.session = *session;
  source.session.tokens.resize(static_cast<size_t>(cut.n_tokens));
  return source;
}

absl::Status Worker::HandlePark(const wire::ParkSession& park) {
  const StageSession* session = sessions_->Find(park.session);
  if (session == nullptr) return Internal("session {} is not open", park.session);
  transfers_->Park(park, *session);
  return absl::OkStatus();
}

absl::Status Worker::HandleStep(uint64_t seq, const wire::Step& step) {
  // A card's steps do not run on the memory that a save reads and hashes.
  if (transfers_ != nullptr && configure_.device == "cpu") transfers_->NoteStep();
  for (const wire::StepSlice& slice : step.slices) RETURN_IF_ERROR(sessions_->Extend(slice));
  ASSIGN_OR_RETURN(const int n_rows, runner_->Prepare(step, *sessions_));
  if (receiver_ != nullptr) {
    const absl::Status taken = receiver_->Take({seq, n_rows, n_embd_}, runner_->rows(), *stream_);
    if (!taken.ok()) return GiveUp(taken);
  }
  const auto start = std::chrono::steady_clock::now();
  runner_->Run();
  wire::StepDone done{.stage = options_.stage};
  if (sender_ != nullptr) {
    const wire::FrameHeader header{.epoch = epoch_, .seq = seq, .n_rows = static_cast<uint32_t>(n_rows),
                                   .dim = static_cast<uint32_t>(n_embd_)};
    const absl::Status sent = sender_->Send(header, runner_->rows(), *stream_);
    if (!sent.ok()) return GiveUp(sent);
  } else {
    ASSIGN_OR_RETURN(done.results, runner_->Results(step, *sessions_));
  }
  done.compute_us = MicrosecondsSince(start);
  return Say(done, seq);
}

}  // namespace layover
