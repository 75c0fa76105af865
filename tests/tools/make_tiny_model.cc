// Writes a tiny model as a GGUF file, for tests that start real processes. Equal flags give equal bytes.
//
//   make_tiny_model OUT.gguf [--seed N] [--layers N] [--embd N] [--heads N] [--kv-heads N] [--ff N] [--vocab N]
//                   [--context N] [--type F32|F16|BF16|Q8_0|Q4_0|Q4_1] [--untied] [--rope-freqs] [--rope-base X]
//                   [--gain X] [--name TEXT] [--pre NAME] [--template-file FILE]          a llama of any shape
//   make_tiny_model OUT.gguf --arch NAME [--seed N] [--type ANY] [--gain X] [--fault NAME]
//                                                              another architecture in a shape of its own
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "CLI/CLI.hpp"
#include "common/gguf/weight_types.h"
#include "tests/gguf/gguf_builder.h"

namespace {

int Write(const std::string& path, const std::string& bytes) {
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  stream.close();
  if (stream.good()) return 0;
  std::fprintf(stderr, "cannot write %s\n", path.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  layover::testing::TinyLlamaOptions options;
  layover::testing::TinyModelOptions other;
  std::string out, type = "F32", template_file;
  bool untied = false;
  CLI::App app("writes a tiny llama as a GGUF file");
  app.add_option("out", out, "the file to write")->required();
  app.add_option("--arch", other.architecture)->check(CLI::IsMember(layover::testing::TinyArchitectures()));
  app.add_option("--fault", other.fault);
  app.add_option("--seed", options.seed);
  app.add_option("--layers", options.layers)->check(CLI::Range(1, 1024));
  app.add_option("--embd", options.embd)->check(CLI::Range(2, 65536));
  app.add_option("--heads", options.heads)->check(CLI::Range(1, 1024));
  app.add_option("--kv-heads", options.kv_heads)->check(CLI::Range(1, 1024));
  app.add_option("--ff", options.ff)->check(CLI::Range(1, 1 << 20));
  app.add_option("--vocab", options.vocab)->check(CLI::Range(259, 16384));
  app.add_option("--context", options.context)->check(CLI::Range(1, 1 << 20));
  app.add_option("--type", type);
  app.add_flag("--untied", untied, "a head of its own");
  app.add_flag("--rope-freqs", options.rope_freqs, "with frequency factors");
  app.add_option("--rope-base", options.rope_base);
  app.add_option("--gain", options.weight_gain, "scales all matrices");
  app.add_option("--name", options.name);
  app.add_option("--pre", options.pre_tokenizer);
  app.add_option("--template-file", template_file)->check(CLI::ExistingFile);
  CLI11_PARSE(app, argc, argv);

  options.tied = !untied;
  bool known = false;
  for (const layover::WeightTypeTraits& traits : layover::AllWeightTypes()) {
    if (traits.name != type || !traits.supported) continue;
    options.weight_type = static_cast<layover::WeightType>(traits.id);
    known = true;
  }
  if (!known) {
    std::fprintf(stderr, "--type: there is no %s\n", type.c_str());
    return 2;
  }
  if (!other.architecture.empty()) {
    const std::vector<std::string> faults = layover::testing::TinyFaults(other.architecture);
    if (!other.fault.empty() && std::find(faults.begin(), faults.end(), other.fault) == faults.end()) {
      std::fprintf(stderr, "--fault: %s cannot have the fault %s\n", other.architecture.c_str(), other.fault.c_str());
      return 2;
    }
    other.seed = options.seed;
    other.weight_type = options.weight_type;
    other.weight_gain = options.weight_gain;
    return Write(out, layover::testing::BuildTinyModel(other));
  }
  const int block = layover::WeightTypeInfo(options.weight_type).block_elements;
  if (options.embd % options.heads != 0 || options.heads % options.kv_heads != 0 || options.embd % block != 0 ||
      options.ff % block != 0 || options.embd / options.heads % 2 != 0) {
    std::fprintf(stderr,
                 "embd must be a multiple of 2 * heads and, with ff, of the type's block of %d; heads of kv-heads\n",
                 block);
    return 2;
  }
  if (!template_file.empty()) {
    std::ifstream stream(template_file, std::ios::binary);
    options.chat_template.assign(std::istreambuf_iterator<char>(stream), {});
  }
  return Write(out, layover::testing::BuildTinyLlama(options));
}
