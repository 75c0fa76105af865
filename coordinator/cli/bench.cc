// `layover bench`: decode, prefill, save and restore of a topology, each beside what bounds it in the same run: a
// rival's llama-bench (--peer), raw sequential I/O of the same files, reading the prompt again.
//
// All measurements are interleaved and repeated; medians are reported. The store of the topology is not touched: a
// scratch one is made beside it and removed.
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <future>
#include <thread>

#include "common/log.h"
#include "common/plan/token_work.h"
#include "common/status.h"
#include "common/storage/block_io.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/engine.h"
#include "coordinator/metrics.h"
#include "coordinator/serve.h"
#include "coordinator/setup.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One generation, waited for.
class Waiter : public GenerationObserver {
 public:
  bool OnToken(const GeneratedToken& token) override { return true; }
  void OnFinished(FinishReason reason, const Timings& timings) override { result_.set_value(timings); }
  void OnFailed(const absl::Status& status) override { result_.set_value(status); }
  absl::StatusOr<Timings> Wait() { return result_.get_future().get(); }

 private:
  std::promise<absl::StatusOr<Timings>> result_;
};

class Bench {
 public:
  Bench(Setup& setup, const BenchOptions& options) : setup_(setup), options_(options) {}
  absl::StatusOr<Json> Run();

 private:
  absl::Status StartEngine();
  absl::StatusOr<Timings> Generate(const std::string& id, int prompt, int output, bool cache);
  std::vector<int32_t> Prompt(int tokens) const;
  absl::Status MeasureTokens();
  absl::Status MeasureState();
  absl::Status RawWrite();
  absl::Status RawRead();
  absl::Status MeasurePeer();
  std::string ScratchFile(int stage) const { return scratch_ + "/raw-" + std::to_string(stage); }

  Setup& setup_;
  const BenchOptions& options_;
  std::string scratch_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<Engine> engine_;
  std::vector<int64_t> file_bytes_;  // [stage], of the last save
  int salt_ = 0;
  std::string peer_backend_;
  std::vector<double> decode_, prefill_, save_, raw_write_, restore_, raw_read_, restore_ms_, reread_ms_, peer_decode_,
      peer_prefill_;
};

absl::Status Bench::StartEngine() {
  const std::string store = setup_.topology.store.has_value() ? setup_.topology.store->dir : "store";
  std::string pattern = std::filesystem::absolute(store).lexically_normal().string() + "-bench-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) return ErrnoStatus(errno, "mkdtemp " + pattern);
  scratch_ = pattern;
  setup_.topology.store = StoreSettings{.dir = scratch_ + "/store", .min_free_bytes = 0, .save = SavePolicy::kManual};
  ASSIGN_OR_RETURN(const ModelIdentity identity,
                   ReadIdentityButWeights(*setup_.file, setup_.shape, setup_.topology.kv_type));
  ASSIGN_OR_RETURN(tokenizer_, Tokenizer::FromGguf(*setup_.file));
  metrics_ = std::make_unique<Metrics>(static_cast<int>(setup_.plan.stages.size()));
  ASSIGN_OR_RETURN(engine_, Engine::Start({.topology = &setup_.topology,
                                           .plan = &setup_.plan,
                                           .shape = &setup_.shape,
                                           .tokenizer = tokenizer_.get(),
                                           .metrics = metrics_.get(),
                                           .identity = identity}));
  return engine_->WaitUp();
}

// Ids that repeat nothing of an earlier prompt.
std::vector<int32_t> Bench::Prompt(int tokens) const {
  std::vector<int32_t> ids;
  const int first = std::min(300, tokenizer_->n_vocab() / 2);  // beyond control tokens and single bytes
  uint32_t state = 12345u + static_cast<uint32_t>(salt_) * 7919u;
  for (int i = 0; i < tokens; ++i) {
    state = state * 1664525u + 1013904223u;
    ids.push_back(static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(tokenizer_->n_vocab() - first)) + first);
  }
  return ids;
}

absl::StatusOr<Timings> Bench::Generate(const std::string& id, int prompt, int output, bool cache) {
  auto waiter = std::make_shared<Waiter>();
  GenerationRequest request{
      .conversation_id = id, .prompt = Prompt(prompt), .max_tokens = output, .ignore_eos = true, .cache_prompt = cache};
  request.sampler.temperature = 0;
  engine_->Generate(std::move(request), waiter);
  return waiter->Wait();
}

absl::Status Bench::MeasureTokens() {
  ++salt_;
  ASSIGN_OR_RETURN(const Timings read, Generate("", options_.prompt_tokens, 0, false));
  prefill_.push_back(options_.prompt_tokens / read.prompt_ms * 1000);
  ASSIGN_OR_RETURN(const Timings written, Generate("", 1, options_.output_tokens + 1, false));
  decode_.push_back(options_.output_tokens / written.predicted_ms * 1000);
  return absl::OkStatus();
}

absl::Status Bench::MeasureState() {
  ++salt_;
  const std::string id = "bench-" + std::to_string(salt_);
  ASSIGN_OR_RETURN(const Timings read, Generate(id, options_.state_tokens, 0, true));
  reread_ms_.push_back(read.prompt_ms);

  std::promise<absl::StatusOr<SaveResult>> saved;
  const Clock::time_point save_start = Clock::now();
  engine_->Save("", id, nullptr, [&](absl::StatusOr<SaveResult> result) { saved.set_value(std::move(result)); });
  ASSIGN_OR_RETURN(const SaveResult save, saved.get_future().get());
  save_.push_back(static_cast<double>(save.bytes_written) / SecondsSince(save_start));
  file_bytes_.clear();
  for (const StageBytes& stage : save.stages) file_bytes_.push_back(stage.bytes_written);
  RETURN_IF_ERROR(RawWrite());

  std::promise<absl::StatusOr<RestoreResult>> restored;
  const Clock::time_point restore_start = Clock::now();
  engine_->Restore("", id, false, nullptr,
                   [&](absl::StatusOr<RestoreResult> result) { restored.set_value(std::move(result)); });
  ASSIGN_OR_RETURN(const RestoreResult restore, restored.get_future().get());
  const double seconds = SecondsSince(restore_start);
  restore_ms_.push_back(seconds * 1000);
  restore_.push_back(static_cast<double>(restore.bytes_read) / seconds);
  RETURN_IF_ERROR(RawRead());

  std::promise<absl::Status> removed;
  engine_->Delete("", id, [&](absl::Status status) { removed.set_value(std::move(status)); });
  return removed.get_future().get();
}

// The same files, sizes and syncs without gathering or hashing; stages side by side, as in a save.
absl::Status Bench::RawWrite() {
  const Clock::time_point start = Clock::now();
  std::vector<std::future<absl::Status>> stages;
  int64_t total = 0;
  for (size_t stage = 0; stage < file_bytes_.size(); ++stage) {
    total += file_bytes_[stage];
    stages.push_back(std::async(std::launch::async, [this, stage]() -> absl::Status {
      std::error_code ignored;
      std::filesystem::remove(ScratchFile(static_cast<int>(stage)), ignored);
      ASSIGN_OR_RETURN(const auto writer, BlockWriter::Create(ScratchFile(static_cast<int>(stage)), {}));
      for (int64_t left = file_bytes_[stage]; left > 0;) {
        const size_t bytes = static_cast<size_t>(std::min<int64_t>(left, limits::kMiB));
        ASSIGN_OR_RETURN(const std::span<std::byte> room, writer->Reserve(bytes));
        std::fill(room.begin(), room.end(), std::byte{0x5a});
        left -= static_cast<int64_t>(bytes);
      }
      return writer->Finish();
    }));
  }
  for (auto& stage : stages) RETURN_IF_ERROR(stage.get());
  raw_write_.push_back(static_cast<double>(total) / SecondsSince(start));
  return absl::OkStatus();
}

absl::Status Bench::RawRead() {
  const Clock::time_point start = Clock::now();
  std::vector<std::future<absl::Status>> stages;
  int64_t total = 0;
  for (size_t stage = 0; stage < file_bytes_.size(); ++stage) {
    total += file_bytes_[stage];
    stages.push_back(std::async(std::launch::async, [this, stage]() -> absl::Status {
      ASSIGN_OR_RETURN(const auto reader, BlockReader::Open(ScratchFile(static_cast<int>(stage)), {}));
      const auto bytes = static_cast<uint64_t>(file_bytes_[stage]);
      std::vector<Extent> extents;  // as a restore asks for them: one request for all of it is several times slower
      for (uint64_t done = 0; done < bytes; done += limits::kIoBufferBytes) {
        extents.push_back({done, std::min<uint64_t>(limits::kIoBufferBytes, bytes - done)});
      }
      return reader->Read(extents, [](size_t, std::span<const std::byte>) { return absl::OkStatus(); });
    }));
  }
  for (auto& stage : stages) RETURN_IF_ERROR(stage.get());
  raw_read_.push_back(static_cast<double>(total) / SecondsSince(start));
  return absl::OkStatus();
}

// llama-bench prints a JSON array with one object for prompt processing and one for generation.
absl::Status Bench::MeasurePeer() {
  if (options_.peer.empty()) return absl::OkStatus();
  const std::string command =
      fmt::format("'{}' -m '{}' -t {} -p {} -n {} -r 1 -o json 2>/dev/null", options_.peer, setup_.topology.model,
                  setup_.topology.stages.front().threads, options_.prompt_tokens, options_.output_tokens);
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return ErrnoStatus(errno, options_.peer);
  std::string text;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) text.append(buffer, n);
  if (pclose(pipe) != 0) return Internal("{} failed", options_.peer);
  const Json results = Json::parse(text, nullptr, false);
  if (!results.is_array()) return Internal("{} printed no JSON array", options_.peer);
  for (const Json& result : results) {
    if (!result.contains("avg_ts") || !result.contains("n_gen"))
      return Internal("{}: avg_ts or n_gen is missing", options_.peer);
    if (result.contains("backends") && result["backends"].is_string()) peer_backend_ = result["backends"];
    (result["n_gen"].get<int>() > 0 ? peer_decode_ : peer_prefill_).push_back(result["avg_ts"].get<double>());
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> Bench::Run() {
  const auto cleanup = [this] {
    engine_.reset();
    std::error_code ignored;
    if (!scratch_.empty()) std::filesystem::remove_all(scratch_, ignored);
  };
  absl::Status status = StartEngine();
  for (int i = 0; i < options_.repeats && status.ok(); ++i) {
    status = MeasureTokens();
    if (status.ok()) status = MeasureState();
    if (status.ok()) status = MeasurePeer();
  }
  cleanup();
  RETURN_IF_ERROR(status);
  const TokenWork work = WorkOfToken(*setup_.file, setup_.shape);
  Json result = {{"threads", setup_.topology.stages.front().threads},
                 {"stages", setup_.plan.stages.size()},
                 {"prompt_tokens", options_.prompt_tokens},
                 {"output_tokens", options_.output_tokens},
                 {"state_tokens", options_.state_tokens},
                 {"repeats", options_.repeats},
                 {"token_weight_bytes", work.weight_bytes},
                 {"token_layer_operations", work.layer_operations},
                 {"decode_tok_s", Median(decode_)},
                 {"prefill_tok_s", Median(prefill_)},
                 {"save_bytes_s", Median(save_)},
                 {"raw_write_bytes_s", Median(raw_write_)},
                 {"restore_bytes_s", Median(restore_)},
                 {"raw_read_bytes_s", Median(raw_read_)},
                 {"restore_ms", Median(restore_ms_)},
                 {"reread_ms", Median(reread_ms_)},
                 {"peer", nullptr}};
  if (!options_.peer.empty()) {
    result["peer"] = {{"name", std::filesystem::path(options_.peer).filename().string()},
                      {"decode_tok_s", Median(peer_decode_)},
                      {"prefill_tok_s", Median(peer_prefill_)},
                      {"backend", peer_backend_}};
  }
  return result;
}

void PrintTable(const Json& r) {
  const auto ratio = [](const Json& a, const Json& b) { return a.get<double>() / b.get<double>(); };
  std::printf("%d stage(s), %d thread(s) each; medians of %d\n", r["stages"].get<int>(), r["threads"].get<int>(),
              r["repeats"].get<int>());
  std::printf("decode   %8.1f tokens/s", r["decode_tok_s"].get<double>());
  if (!r["peer"].is_null())
    std::printf("   %.2f x %s", ratio(r["decode_tok_s"], r["peer"]["decode_tok_s"]),
                r["peer"]["name"].get<std::string>().c_str());
  std::printf("\nprefill  %8.1f tokens/s", r["prefill_tok_s"].get<double>());
  if (!r["peer"].is_null())
    std::printf("   %.2f x %s", ratio(r["prefill_tok_s"], r["peer"]["prefill_tok_s"]),
                r["peer"]["name"].get<std::string>().c_str());
  std::printf("\nsave     %8.1f MB/s       %.2f x raw writes\n", r["save_bytes_s"].get<double>() / 1e6,
              ratio(r["save_bytes_s"], r["raw_write_bytes_s"]));
  std::printf("restore  %8.1f MB/s       %.2f x raw reads, %.1f x faster than reading %d tokens again\n",
              r["restore_bytes_s"].get<double>() / 1e6, ratio(r["restore_bytes_s"], r["raw_read_bytes_s"]),
              ratio(r["reread_ms"], r["restore_ms"]), r["state_tokens"].get<int>());
}

}  // namespace

int RunBench(const BenchOptions& options) {
  InitLog("layover");
  const auto setup = LoadSetup(options.topology);
  if (!setup.ok()) {
    std::fprintf(stderr, "%s\n", std::string(setup.status().message()).c_str());
    return ExitCodeOfSetup(setup.status());
  }
  if (options.state_tokens >= (*setup)->plan.context || options.prompt_tokens >= (*setup)->plan.context) {
    std::fprintf(stderr, "the context of %d is too short for %d tokens\n", (*setup)->plan.context,
                 std::max(options.state_tokens, options.prompt_tokens));
    return 2;
  }
  const auto result = Bench(**setup, options).Run();
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", std::string(result.status().message()).c_str());
    return 1;
  }
  if (options.json) {
    std::printf("%s\n", result->dump(2).c_str());
  } else {
    PrintTable(*result);
  }
  return 0;
}

}  // namespace layover
