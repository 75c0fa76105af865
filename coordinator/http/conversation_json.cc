#include "coordinator/http/conversation_json.h"

#include "nlohmann/json.hpp"

namespace layover {
namespace {

using nlohmann::ordered_json;

ordered_json TextOrNull(const std::string& text) {
  return text.empty() ? ordered_json() : ordered_json(text);
}

ordered_json Layers(int begin, int end) {
  return ordered_json::array({begin, end});
}

ordered_json BranchJson(const BranchInfo& branch) {
  return {{"n_tokens", branch.n_tokens},
          {"fork_position", branch.fork_position},
          {"saved_n_tokens", branch.saved_n_tokens},
          {"state", ConversationStateName(branch.state)},
          {"checkpoints", branch.checkpoints}};
}

ordered_json SegmentJson(const SegmentInfo& segment) {
  return {{"file", segment.file},
          {"stage", segment.stage},
          {"generation", segment.generation},
          {"layers", Layers(segment.layer_begin, segment.layer_end)},
          {"bytes", segment.bytes},
          {"live_bytes", segment.live_bytes}};
}

ordered_json DivergenceJson(const std::optional<Divergence>& divergence) {
  if (!divergence.has_value()) return nullptr;
  return {{"position", divergence->position}, {"had", divergence->had}, {"got", divergence->got}};
}

ordered_json LastSaveJson(const std::optional<std::pair<int64_t, int64_t>>& last_save) {
  if (!last_save.has_value()) return nullptr;
  return {{"bytes_written", last_save->first}, {"bytes_kept", last_save->second}};
}

}  // namespace

std::string_view ConversationStateName(ConversationState state) {
  static constexpr std::string_view kNames[] = {"active", "idle", "parked", "saved", "saving", "restoring"};
  return kNames[static_cast<size_t>(state)];
}

ordered_json ConversationJson(const ConversationInfo& info, bool detail) {
  ordered_json out = {{"id", info.id},
                      {"state", ConversationStateName(info.state)},
                      {"n_tokens", info.n_tokens},
                      {"saved_n_tokens", info.saved_n_tokens},
                      {"generation", info.generation},
                      {"bytes_device", info.bytes_device},
                      {"bytes_host", info.bytes_host},
                      {"bytes_disk", info.bytes_disk},
                      {"branches", info.branches},
                      {"pinned", info.pinned},
                      {"created_at", info.created_at},
                      {"last_used_at", info.last_used_at},
                      {"identity", info.identity},
                      {"last_error", TextOrNull(info.last_error)}};
  if (!detail) return out;
  out["branch_list"] = ordered_json::array();
  for (const BranchInfo& branch : info.branch_list) out["branch_list"].push_back(BranchJson(branch));
  out["segments"] = ordered_json::array();
  for (const SegmentInfo& segment : info.segments) out["segments"].push_back(SegmentJson(segment));
  out["last_save"] = LastSaveJson(info.last_save);
  out["divergence"] = DivergenceJson(info.divergence);
  return out;
}

ordered_json ConversationListJson(const ConversationPage& page) {
  ordered_json data = ordered_json::array();
  for (const ConversationInfo& info : page.data) data.push_back(ConversationJson(info, false));
  return {{"object", "list"}, {"data", std::move(data)}, {"next", TextOrNull(page.next)}};
}

ordered_json DeletedJson(std::string_view id) {
  return {{"id", id}, {"deleted", true}};
}

ordered_json SaveJson(const SaveResult& result) {
  ordered_json stages = ordered_json::array();
  for (const StageBytes& stage : result.stages) {
    stages.push_back({{"stage", stage.stage},
                      {"layers", Layers(stage.layer_begin, stage.layer_end)},
                      {"bytes_written", stage.bytes_written},
                      {"bytes_kept", stage.bytes_kept},
                      {"ms", stage.ms}});
  }
  return {{"id", result.id},
          {"generation", result.generation},
          {"n_tokens", result.n_tokens},
          {"bytes_written", result.bytes_written},
          {"bytes_kept", result.bytes_kept},
          {"ms", result.ms},
          {"stages", std::move(stages)}};
}

ordered_json RestoreJson(const RestoreResult& result) {
  ordered_json stages = ordered_json::array();
  for (const StageBytes& stage : result.stages) {
    stages.push_back({{"stage", stage.stage},
                      {"layers", Layers(stage.layer_begin, stage.layer_end)},
                      {"bytes_read", stage.bytes_read},
                      {"ms", stage.ms}});
  }
  ordered_json out = {{"id", result.id},
                      {"generation", result.generation},
                      {"n_tokens", result.n_tokens},
                      {"bytes_read", result.bytes_read},
                      {"ms", result.ms},
                      {"proof", result.proof.has_value() ? ordered_json(*result.proof) : ordered_json()},
                      {"stages", std::move(stages)}};
  if (!result.warnings.empty()) out["warnings"] = result.warnings;
  return out;
}

ordered_json ParkJson(const ParkResult& result) {
  return {{"id", result.id}, {"bytes_host", result.bytes_host}};
}

ordered_json RewindJson(const RewindResult& result) {
  return {{"id", result.id}, {"n_tokens", result.n_tokens}};
}

ordered_json VerifyJson(const VerifyResult& result) {
  ordered_json problems = ordered_json::array();
  for (const VerifyProblem& problem : result.problems) {
    problems.push_back({{"file", problem.file},
                        {"stage", problem.stage >= 0 ? ordered_json(problem.stage) : ordered_json()},
                        {"layer", problem.layer >= 0 ? ordered_json(problem.layer) : ordered_json()},
                        {"what", problem.what}});
  }
  return {{"id", result.id},
          {"ok", result.ok},
          {"generation", result.generation},
          {"n_records", result.n_records},
          {"bytes", result.bytes},
          {"problems", std::move(problems)}};
}

ordered_json ProgressJson(const TransferProgress& progress) {
  ordered_json stages = ordered_json::array();
  for (const TransferProgress::Stage& stage : progress.stages) {
    stages.push_back({{"stage", stage.stage}, {"bytes_done", stage.bytes_done}, {"bytes_total", stage.bytes_total}});
  }
  return {{"verb", progress.verb},
          {"bytes_done", progress.bytes_done},
          {"bytes_total", progress.bytes_total},
          {"stages", std::move(stages)}};
}

ordered_json HealthJson(const HealthReport& report) {
  ordered_json stages = ordered_json::array();
  for (const StageHealth& stage : report.stages) {
    stages.push_back({{"stage", stage.stage},
                      {"pid", stage.pid},
                      {"device", stage.device},
                      {"layers", Layers(stage.layer_begin, stage.layer_end)},
                      {"state", stage.state},
                      {"last_step", stage.last_step}});
  }
  return {{"status", report.status}, {"stages", std::move(stages)}};
}

std::string ToText(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace layover
