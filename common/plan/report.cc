#include "common/plan/report.h"

#include <map>

#include "common/gguf/weight_types.h"
#include "common/limits.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using nlohmann::ordered_json;

std::string Size(uint64_t bytes) {
  if (bytes >= limits::kGiB) return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / limits::kGiB);
  if (bytes >= limits::kMiB) return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / limits::kMiB);
  return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / limits::kKiB);
}

// Untrusted text for a terminal: no control characters.
std::string Printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 100)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return out;
}

std::map<uint32_t, int> CountTypes(const GgufFile& file) {
  std::map<uint32_t, int> counts;
  for (const GgufTensor& tensor : file.tensors()) ++counts[tensor.type];
  return counts;
}

std::string RopeText(const RopeShape& rope) {
  std::string text = fmt::format("{} dims, base {}", rope.n_rot, rope.freq_base);
  if (rope.freq_base_window > 0) text += fmt::format(" (window layers {})", rope.freq_base_window);
  if (rope.scaling == RopeScaling::kLinear) text += fmt::format(", linear x{}", rope.factor);
  if (rope.scaling == RopeScaling::kYarn) text += fmt::format(", yarn x{} of {}", rope.factor, rope.original_context);
  if (rope.has_freq_factors) text += ", frequency factors";
  return text;
}

std::string LayersText(const ModelShape& shape) {
  int full = 0, window = 0, recurrent = 0;
  for (const LayerShape& layer : shape.layers) {
    full += layer.kind == LayerKind::kFullAttention;
    window += layer.kind == LayerKind::kSlidingWindow;
    recurrent += layer.kind == LayerKind::kRecurrent;
  }
  std::string text = fmt::format("{} ({} full attention", shape.n_layers, full);
  if (window > 0) text += fmt::format(", {} with a window of {}", window, shape.window);
  if (recurrent > 0) text += fmt::format(", {} recurrent", recurrent);
  text += ")";
  if (shape.n_extra_blocks > 0) text += fmt::format(", {} further blocks are skipped", shape.n_extra_blocks);
  return text;
}

constexpr std::string_view kTakesLess = "fewer sessions, a shorter context and a smaller chunk take less";

// What the stages of the coordinator's machine take on one of its devices.
uint64_t PlannedOn(const Plan& plan, std::string_view device) {
  uint64_t bytes = 0;
  for (const StagePlan& stage : plan.stages)
    bytes += stage.host.empty() && stage.device == device ? stage.total_bytes : 0;
  return bytes;
}

}  // namespace

std::string InspectText(const GgufFile& file, const ModelShape& shape) {
  std::string text;
  const auto line = [&text](std::string_view what, const std::string& value) {
    text += fmt::format("{:<14} {}\n", what, value);
  };
  line("file", fmt::format("{}{}", file.path(),
                           file.files().size() > 1 ? fmt::format(" and {} more", file.files().size() - 1) : ""));
  line("size", fmt::format("{} ({} bytes)", Size(file.total_bytes()), file.total_bytes()));
  if (!shape.name.empty()) line("name", Printable(shape.name));
  line("architecture", shape.architecture);
  line("layers", LayersText(shape));
  line("embedding", fmt::format("{}", shape.n_embd));
  line("heads", fmt::format("{} query, {} K/V, {} dims", shape.n_head, shape.n_head_kv, shape.head_dim_k));
  if (shape.n_ff > 0) line("feed-forward", fmt::format("{}", shape.n_ff));
  if (shape.experts.count > 0) {
    line("experts",
         fmt::format("{} of {}, width {}{}", shape.experts.used, shape.experts.count, shape.experts.n_ff,
                     shape.experts.n_ff_shared > 0 ? fmt::format(", shared {}", shape.experts.n_ff_shared) : ""));
  }
  if (shape.recurrent.conv_taps > 0) {
    line("recurrent", fmt::format("{} key heads, {} value heads, {} dims", shape.recurrent.key_heads,
                                  shape.recurrent.value_heads, shape.recurrent.dim));
  }
  line("vocabulary", fmt::format("{}{}", shape.n_vocab, shape.tied_output ? ", head tied to the embedding" : ""));
  line("context", fmt::format("{} in training", shape.context_train));
  line("rope", RopeText(shape.rope));
  std::string types;
  for (const auto& [type, count] : CountTypes(file)) {
    types += fmt::format("{}{} {}", types.empty() ? "" : ", ", count, WeightTypeInfo(type)->name);
  }
  line("tensors", types);
  return text;
}

std::string InspectJson(const GgufFile& file, const ModelShape& shape) {
  ordered_json json;
  json["architecture"] = shape.architecture;
  json["n_layers"] = shape.n_layers;
  json["n_embd"] = shape.n_embd;
  json["n_head"] = shape.n_head;
  json["n_head_kv"] = shape.n_head_kv;
  json["n_vocab"] = shape.n_vocab;
  json["context_train"] = shape.context_train;
  json["bytes"] = file.total_bytes();
  json["types"] = ordered_json::object();
  for (const auto& [type, count] : CountTypes(file)) json["types"][std::string(WeightTypeInfo(type)->name)] = count;
  return json.dump();
}

std::vector<std::string> PlanWarnings(const Plan& plan, const MachineMemory& memory) {
  std::vector<std::string> warnings;
  if (plan.host_bytes > memory.host_bytes) {
    uint64_t hops = 0;
    for (const StagePlan& stage : plan.stages) hops += stage.hop_host_bytes;
    warnings.push_back(
        fmt::format("this machine has {} of memory; CPU stages and hops take {} when all sessions are full, {} of it "
                    "hops ({})",
                    Size(memory.host_bytes), Size(plan.host_bytes), Size(hops), kTakesLess));
  }
  for (const auto& [device, bytes] : memory.devices) {
    const uint64_t planned = PlannedOn(plan, device);
    if (planned <= bytes) continue;
    warnings.push_back(
        fmt::format("{} has {} of memory; its stages take {} ({})", device, Size(bytes), Size(planned), kTakesLess));
  }
  return warnings;
}

std::string PlanText(const Plan& plan, const MachineMemory& memory) {
  std::string text =
      fmt::format("context {} tokens, {} sessions, K/V {}\n\n", plan.context, plan.sessions, plan.kv_type);
  text += fmt::format("{:<6}{:<10}{:<10}{:<6}{:>12}{:>12}{:>12}{:>12}{:>12}\n", "stage", "device", "layers", "link",
                      "weights", "K/V", "state", "scratch", "total");
  uint64_t total = 0;
  for (const StagePlan& stage : plan.stages) {
    text +=
        fmt::format("{:<6}{:<10}{:<10}{:<6}{:>12}{:>12}{:>12}{:>12}{:>12}\n", stage.stage, stage.device,
                    fmt::format("{}-{}", stage.layers.begin, stage.layers.end - 1),
                    stage.stage == 0 ? "-" : LinkKindName(stage.link), Size(stage.weight_bytes), Size(stage.kv_bytes),
                    Size(stage.state_bytes), Size(stage.scratch_bytes), Size(stage.total_bytes));
    if (!stage.host.empty()) text += fmt::format("      on {}\n", stage.host);
    total += stage.total_bytes;
  }
  text += fmt::format("{:>92}\n", Size(total));
  for (const StagePlan& stage : plan.stages) {
    if (stage.stage == 0) continue;
    text += fmt::format("hop {}-{} over {}: {} of host memory{}", stage.stage - 1, stage.stage,
                        LinkKindName(stage.link), Size(stage.hop_host_bytes), stage.hop_pinned ? ", page-locked" : "");
    const uint64_t device_bytes = plan.stages[static_cast<size_t>(stage.stage) - 1].hop_device_bytes;
    if (device_bytes > 0) text += fmt::format(", {} of stage {}'s scratch", Size(device_bytes), stage.stage - 1);
    text += "\n";
  }
  text +=
      fmt::format("this machine: {} of {} for CPU stages and hops\n", Size(plan.host_bytes), Size(memory.host_bytes));
  for (const auto& [device, bytes] : memory.devices) {
    text += fmt::format("{}: {} of {}\n", device, Size(PlannedOn(plan, device)), Size(bytes));
  }
  for (const std::string& warning : PlanWarnings(plan, memory)) text += "warning: " + warning + "\n";
  return text;
}

std::string PlanJson(const Plan& plan, const MachineMemory& memory) {
  ordered_json json;
  json["context"] = plan.context;
  json["sessions"] = plan.sessions;
  json["kv_type"] = plan.kv_type;
  json["stages"] = ordered_json::array();
  for (const StagePlan& stage : plan.stages) {
    ordered_json entry;
    entry["stage"] = stage.stage;
    entry["device"] = stage.device;
    if (!stage.host.empty()) entry["host"] = stage.host;
    if (stage.stage > 0) entry["link"] = std::string(LinkKindName(stage.link));
    entry["layers"] = {stage.layers.begin, stage.layers.end};
    entry["weight_bytes"] = stage.weight_bytes;
    entry["kv_bytes"] = stage.kv_bytes;
    entry["state_bytes"] = stage.state_bytes;
    entry["checkpoint_bytes"] = stage.checkpoint_bytes;
    entry["scratch_bytes"] = stage.scratch_bytes;
    entry["total_bytes"] = stage.total_bytes;
    entry["hop_host_bytes"] = stage.hop_host_bytes;
    entry["hop_pinned"] = stage.hop_pinned;
    entry["hop_device_bytes"] = stage.hop_device_bytes;
    json["stages"].push_back(std::move(entry));
  }
  json["host_bytes"] = plan.host_bytes;
  json["host_memory_bytes"] = memory.host_bytes;
  json["devices"] = ordered_json::array();
  for (const auto& [device, bytes] : memory.devices) {
    json["devices"].push_back(
        {{"device", device}, {"planned_bytes", PlannedOn(plan, device)}, {"memory_bytes", bytes}});
  }
  json["warnings"] = PlanWarnings(plan, memory);
  return json.dump();
}

}  // namespace layover
