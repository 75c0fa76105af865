// The topology file: every key, every default, every error with its line.
#include "common/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/gguf/gguf_builder.h"

namespace layover {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::string_view kLeast = "model: m.gguf\nstages:\n  - {device: cpu}\n";

Topology Parsed(const std::string& text) {
  auto topology = ParseTopology(text, "t.yaml");
  EXPECT_TRUE(topology.ok()) << topology.status();
  return topology.ok() ? *std::move(topology) : Topology{};
}

// `message` is how the error begins, the line included.
void ExpectError(const std::string& text, const std::string& message) {
  const auto topology = ParseTopology(text, "t.yaml");
  ASSERT_FALSE(topology.ok()) << text;
  EXPECT_EQ(topology.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(topology.status().message()), StartsWith(message)) << text;
}

std::string Least(const std::string& more) {
  return std::string(kLeast) + more;
}

TEST(Topology, DefaultsOfTheShortestFile) {
  const Topology topology = Parsed(std::string(kLeast));
  EXPECT_EQ(topology.file, "t.yaml");
  EXPECT_EQ(topology.model, "m.gguf");
  EXPECT_EQ(topology.context, 4096);
  EXPECT_EQ(topology.kv_type, "f16");
  EXPECT_EQ(topology.sessions, 8);
  EXPECT_EQ(topology.chunk, 512);
  EXPECT_TRUE(topology.deterministic);
  ASSERT_EQ(topology.stages.size(), 1u);
  EXPECT_EQ(topology.stages[0].threads, 1);
  EXPECT_EQ(topology.stages[0].layers, std::nullopt);
  EXPECT_EQ(topology.stages[0].link, LinkKind::kAuto);
  EXPECT_EQ(topology.stages[0].line, 3);
  EXPECT_EQ(topology.store, std::nullopt);
  EXPECT_EQ(topology.server.listen, "127.0.0.1:8080");
}

TEST(Topology, EveryKey) {
  const Topology topology = Parsed(R"(
model: m.gguf
context: 8192
kv_type: q8_0
sessions: 3
chunk: 128
deterministic: true
stages:
  - {device: cpu, threads: 4, layers: 0-14}
  - {device: "emu:1", layers: 15-19, link: zmq}
  - device: "emu:0"
    layers: 20-20
    link: nccl
  - {host: "tcp://10.0.0.7:7001", device: "cuda:0", layers: 21-29, public_key_file: a.pub, secret_key_file: b.key}
store: {dir: ./store, budget: 1GiB, ttl: 10m, min_free: 100, save: evict, pin: [one, "two 2"], prove: true}
park: {ram_budget: 2MiB}
server: {listen: "[::1]:0", keys_file: keys, allow_origins: ["https://a.example"], allow_hosts: [b, c]}
)");
  EXPECT_EQ(topology.context, 8192);
  EXPECT_EQ(topology.kv_type, "q8_0");
  EXPECT_EQ(topology.sessions, 3);
  EXPECT_EQ(topology.chunk, 128);
  EXPECT_TRUE(topology.deterministic);
  ASSERT_EQ(topology.stages.size(), 4u);
  EXPECT_EQ(topology.stages[0].threads, 4);
  EXPECT_EQ(topology.stages[0].layers, (LayerRange{0, 15}));
  EXPECT_EQ(topology.stages[1].device, "emu:1");
  EXPECT_EQ(topology.stages[1].link, LinkKind::kZmq);
  EXPECT_EQ(topology.stages[2].layers, (LayerRange{20, 21}));
  EXPECT_EQ(topology.stages[2].link, LinkKind::kNccl);
  EXPECT_EQ(topology.stages[2].line, 11);
  EXPECT_EQ(topology.stages[3].host, "tcp://10.0.0.7:7001");
  EXPECT_EQ(topology.stages[3].public_key_file, "a.pub");
  EXPECT_EQ(topology.stages[3].secret_key_file, "b.key");
  ASSERT_TRUE(topology.store.has_value());
  EXPECT_EQ(topology.store->dir, "./store");
  EXPECT_EQ(topology.store->budget_bytes, limits::kGiB);
  EXPECT_EQ(topology.store->ttl_seconds, 600);
  EXPECT_EQ(topology.store->min_free_bytes, 100u);
  EXPECT_EQ(topology.store->save, SavePolicy::kEvict);
  EXPECT_THAT(topology.store->pin, ElementsAre("one", "two 2"));
  EXPECT_TRUE(topology.store->prove);
  EXPECT_EQ(topology.park.ram_budget_bytes, 2 * limits::kMiB);
  EXPECT_EQ(topology.server.listen, "[::1]:0");
  EXPECT_EQ(topology.server.keys_file, "keys");
  EXPECT_THAT(topology.server.allow_origins, ElementsAre("https://a.example"));
  EXPECT_THAT(topology.server.allow_hosts, ElementsAre("b", "c"));
}

TEST(Topology, TheShippedFilesAreGood) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(LAYOVER_SOURCE_DIR "/configs")) {
    const auto topology = LoadTopology(entry.path().string());
    EXPECT_TRUE(topology.ok()) << topology.status();
    ++files;
  }
  EXPECT_GE(files, 3);
}

TEST(Topology, DeterministicIsAlwaysSoOnCpusAndOffByDefaultElsewhere) {
  EXPECT_TRUE(Parsed(Least("deterministic: false\n")).deterministic);
  const std::string gpu = "model: m\nstages: [{device: 'cuda:0'}]\n";
  EXPECT_FALSE(Parsed(gpu).deterministic);
  EXPECT_TRUE(Parsed(gpu + "deterministic: true\n").deterministic);
}

TEST(Topology, UnknownAndDuplicateKeys) {
  ExpectError(Least("modell: x\n"), "t.yaml:4: unknown key 'modell' in the topology, allowed are model, context,");
  ExpectError(Least("model: x\n"), "t.yaml:4: 'model' stands twice in the topology (first on line 1)");
  ExpectError("model: m\nstages:\n  - device: cpu\n    thread: 1\n", "t.yaml:4: unknown key 'thread' in stage 0");
  ExpectError("model: m\nstages:\n  - {device: cpu, device: cpu}\n", "t.yaml:3: 'device' stands twice in stage 0");
  ExpectError(Least("store:\n  dir: x\n  size: 1\n"), "t.yaml:6: unknown key 'size' in store, allowed are dir, budget");
  ExpectError(Least("park: {x: 1}\n"), "t.yaml:4: unknown key 'x' in park, allowed are ram_budget");
  ExpectError(Least("server:\n\n  port: 1\n"), "t.yaml:6: unknown key 'port' in server");
  ExpectError("base: &b {device: cpu}\nmodel: m\nstages: [{<<: *b}]\n", "t.yaml:1: unknown key 'base'");
  ExpectError("model: m\nstages:\n  - &b {device: cpu}\n  - {<<: *b}\n", "t.yaml:4: unknown key '<<' in stage 1");
  ExpectError(Least("[a, b]: 1\n"), "t.yaml:4: the topology has a key that is not a word");
}

TEST(Topology, BrokenYaml) {
  ExpectError("model: [\n", "t.yaml:2: ");
  ExpectError("- a\n- b\n", "t.yaml:1: the topology must be a mapping");
  ExpectError("", "t.yaml:1: there must be one YAML document, here are 0");
  ExpectError("model: m\n---\nmodel: m\n", "t.yaml:1: there must be one YAML document, here are 2");
  ExpectError("just text", "t.yaml:1: the topology must be a mapping");
  ExpectError(std::string(3000, '['), "t.yaml:1: ");
}

TEST(Topology, MissingAndEmptyValues) {
  ExpectError("stages: [{device: cpu}]\n", "t.yaml:1: 'model' is missing");
  ExpectError("model: m\n", "t.yaml:1: 'stages' is missing");
  ExpectError("model:\nstages: [{device: cpu}]\n", "t.yaml:1: 'model' has no value");
  ExpectError("model: ''\nstages: [{device: cpu}]\n", "t.yaml:1: model: must be a text");
  ExpectError("model: [m]\nstages: [{device: cpu}]\n", "t.yaml:1: model: must be a text");
  ExpectError("model: m\nstages: []\n", "t.yaml:2: stages: must be a list of 1 to 64 stages");
  ExpectError("model: m\nstages: {device: cpu}\n", "t.yaml:2: stages: must be a list");
  ExpectError("model: m\nstages: [cpu]\n", "t.yaml:2: stage 0 must be a mapping with the keys device");
  ExpectError("model: m\nstages:\n  - {threads: 2}\n", "t.yaml:3: stage 0 has no 'device'");
  ExpectError(Least("store: {budget: 1GiB}\n"), "t.yaml:4: store has no 'dir'");
  ExpectError(Least("store:\n"), "t.yaml:4: 'store' has no value");
}

TEST(Topology, Numbers) {
  ExpectError(Least("context: 010\n"), "t.yaml:4: context: '010' has a leading zero");
  ExpectError(Least("context: 0\n"), "t.yaml:4: context: '0' is not a whole number from 1 to 1048576");
  ExpectError(Least("context: 1048577\n"), "t.yaml:4: context: '1048577' is not");
  ExpectError(Least("context: -1\n"), "t.yaml:4: context: '-1' is not");
  ExpectError(Least("context: 4k\n"), "t.yaml:4: context: '4k' is not");
  ExpectError(Least("context: 1e3\n"), "t.yaml:4: context: '1e3' is not");
  ExpectError(Least("context: 99999999999999999999\n"), "t.yaml:4: context: '99999999999999999999' is not");
  ExpectError(Least("sessions: 257\n"), "t.yaml:4: sessions: '257' is not a whole number from 1 to 256");
  ExpectError(Least("chunk: 100\n"), "t.yaml:4: chunk: 100 is no multiple of 64");
  ExpectError(Least("chunk: 8192\n"), "t.yaml:4: chunk: '8192' is not a whole number from 64 to 4096");
  ExpectError("model: m\nstages: [{device: cpu, threads: 0}]\n", "t.yaml:2: threads: '0' is not");
  ExpectError(Least("deterministic: yes\n"), "t.yaml:4: deterministic: 'yes' is neither true nor false");
  EXPECT_EQ(Parsed(Least("context: 1048576\n")).context, 1 << 20);
}

TEST(Topology, Words) {
  ExpectError(Least("kv_type: q5_0\n"), "t.yaml:4: kv_type: 'q5_0' is not one of f32, f16, q8_0, q4_0");
  for (const char* device : {"gpu", "cuda", "cuda:", "cuda:x", "cuda:01", "cuda:64", "CPU", "emu:-1"}) {
    ExpectError(std::string("model: m\nstages: [{device: '") + device + "'}]\n",
                std::string("t.yaml:2: device: '") + device + "' is not cpu, cuda:N or emu:N");
  }
  ExpectError(Least("store: {dir: s, save: always}\n"),
              "t.yaml:4: save: 'always' is not one of turn, evict, shutdown, manual");
  ExpectError(Least("store: {dir: s, budget: 1GB}\n"), "t.yaml:4: budget: '1GB' is not a size");
  ExpectError(Least("store: {dir: s, ttl: 3d}\n"), "t.yaml:4: ttl: '3d' is not a time like 30s, 10m or 720h");
  ExpectError(Least("store: {dir: s, pin: one}\n"), "t.yaml:4: pin: must be a list");
  ExpectError(Least("store: {dir: s, pin: [[a]]}\n"), "t.yaml:4: pin: its elements must be texts");
  ExpectError(Least("store: {dir: s, pin: [\"a\\n\"]}\n"), "t.yaml:4: pin: an id has 1 to 256 printable ASCII");
  for (const char* listen : {"8080", "host", "host:", "host:65536", ":80", "::1:80", "http://h:80", "[::1]", "a b:1"}) {
    ExpectError(Least(std::string("server: {listen: '") + listen + "'}\n"),
                std::string("t.yaml:4: listen: '") + listen + "' is not HOST:PORT");
  }
}

TEST(Topology, Layers) {
  const auto stages = [](const std::string& a, const std::string& b) {
    const auto entry = [](const std::string& layers) {
      return "  - {device: cpu" + (layers.empty() ? "" : ", layers: " + layers) + "}\n";
    };
    return "model: m\nstages:\n" + entry(a) + entry(b);
  };
  EXPECT_EQ(Parsed(stages("0-0", "1-9")).stages[1].layers, (LayerRange{1, 10}));
  ExpectError(stages("0-4", ""), "t.yaml:4: stage 1: 'layers' stands on every stage or on none");
  ExpectError(stages("", "0-4"), "t.yaml:4: stage 1: 'layers' stands on every stage or on none");
  ExpectError(stages("1-4", "5-9"), "t.yaml:3: stage 0: layers begin at 1, they must go on at 0");
  ExpectError(stages("0-4", "6-9"), "t.yaml:4: stage 1: layers begin at 6, they must go on at 5");
  ExpectError(stages("0-4", "4-9"), "t.yaml:4: stage 1: layers begin at 4, they must go on at 5");
  for (const char* bad : {"5", "4-3", "a-b", "0-", "-4", "00-4", "0-04", "0-1024", "0-4-5", "[0, 4]"}) {
    ExpectError(stages("0-4", bad), "t.yaml:4: layers: ");
  }
}

TEST(Topology, LinksAndHosts) {
  const auto second = [](const std::string& more) {
    return "model: m\nstages:\n  - {device: 'cuda:0'}\n  - {device: 'cuda:1', " + more + "}\n";
  };
  EXPECT_EQ(Parsed(second("link: shm")).stages[1].link, LinkKind::kShm);
  ExpectError(second("link: pipe"), "t.yaml:4: link: 'pipe' is not one of zmq, shm, nccl");
  ExpectError(second("link: auto"), "t.yaml:4: link: 'auto' is not one of");
  ExpectError("model: m\nstages:\n  - {device: cpu}\n  - {device: 'cuda:1', link: nccl}\n",
              "t.yaml:4: stage 1: link nccl joins two GPUs");
  ExpectError(second("link: shm, host: 'tcp://h:1'"), "t.yaml:4: stage 1: link shm joins stages of one host");
  ExpectError(second("host: h"), "t.yaml:4: host: 'h' is not tcp://HOST:PORT");
  ExpectError(second("host: 'ipc://x:1'"), "t.yaml:4: host: ");
  ExpectError(second("host: 'tcp://h:1', public_key_file: k"), "t.yaml:4: public_key_file: public_key_file and secret");
  ExpectError(second("host: 'tcp://h:1', secret_key_file: k"), "t.yaml:4: secret_key_file: public_key_file and secret");
  ExpectError(second("public_key_file: k, secret_key_file: k"), "t.yaml:4: public_key_file: keys are for a stage with");
}

TEST(Topology, PathsAreFoundFromTheWorkingDirectoryOrBesideTheFile) {
  const std::string model = testing::WriteTestFile("topology/beside.gguf", "x");
  const std::string folder = std::filesystem::path(model).parent_path().string();
  const auto parse = [&](const std::string& path) {
    return ParseTopology("model: " + path + "\nstages: [{device: cpu}]\n", folder + "/t.yaml")->model;
  };
  EXPECT_EQ(parse("beside.gguf"), folder + "/beside.gguf");
  EXPECT_EQ(parse(model), model);
  EXPECT_EQ(parse("nowhere.gguf"), "nowhere.gguf");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder);
  EXPECT_EQ(parse("beside.gguf"), "beside.gguf");
  std::filesystem::current_path(before);
}

TEST(Topology, LoadsFiles) {
  const std::string path = testing::WriteTestFile("topology/t.yaml", kLeast);
  EXPECT_TRUE(LoadTopology(path).ok());
  EXPECT_EQ(LoadTopology(path + ".absent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(LoadTopology(std::filesystem::path(path).parent_path().string()).ok());
  const std::string large = testing::WriteTestFile("topology/l.yaml", std::string(limits::kMaxTopologyBytes + 1, '#'));
  EXPECT_THAT(std::string(LoadTopology(large).status().message()), HasSubstr("larger than"));
}

TEST(Topology, SizesAndTimes) {
  EXPECT_EQ(ParseBytes("0"), 0u);
  EXPECT_EQ(ParseBytes("17"), 17u);
  EXPECT_EQ(ParseBytes("3KiB"), 3u << 10);
  EXPECT_EQ(ParseBytes("3MiB"), 3u << 20);
  EXPECT_EQ(ParseBytes("3GiB"), 3ull << 30);
  EXPECT_EQ(ParseBytes("3TiB"), 3ull << 40);
  for (const char* bad :
       {"", "KiB", "-1", "1.5GiB", "1 GiB", "1kib", "1KB", "01", "9999999TiB", "99999999999999999999"}) {
    EXPECT_EQ(ParseBytes(bad), std::nullopt) << bad;
  }
  EXPECT_EQ(ParseSeconds("30s"), 30);
  EXPECT_EQ(ParseSeconds("10m"), 600);
  EXPECT_EQ(ParseSeconds("720h"), 720 * 3600);
  for (const char* bad : {"", "s", "30", "1d", "-1s", "1.5h", "01s", "99999999999h"}) {
    EXPECT_EQ(ParseSeconds(bad), std::nullopt) << bad;
  }
}

TEST(Topology, EachSavePolicyIncludesTheWeakerOnes) {
  EXPECT_LT(SavePolicy::kManual, SavePolicy::kShutdown);
  EXPECT_LT(SavePolicy::kShutdown, SavePolicy::kEvict);
  EXPECT_LT(SavePolicy::kEvict, SavePolicy::kTurn);
  EXPECT_EQ(SavePolicyName(SavePolicy::kTurn), "turn");
}

}  // namespace
}  // namespace layover
