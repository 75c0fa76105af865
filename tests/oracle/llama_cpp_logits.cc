// What llama.cpp says of a model file: reads ids from standard input, writes the float32 rows [ids, vocabulary] to OUT. K/V
// in f32, no flash attention, no repacked weights. For making goldens, built by hand against a llama.cpp:
// make_llama_cpp_goldens.py has the command.
//
//   llama_cpp_logits MODEL.gguf OUT < IDS
#include <cstdio>
#include <vector>

#include "llama.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::vector<llama_token> ids;
  for (int id = 0; std::scanf("%d", &id) == 1;) ids.push_back(id);
  llama_backend_init();
  llama_model_params model_params = llama_model_default_params();
  model_params.use_extra_bufts = false;
  llama_model* model = llama_model_load_from_file(argv[1], model_params);
  if (model == nullptr) return 1;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 1024;
  params.n_batch = params.n_ubatch = 512;
  params.type_k = params.type_v = GGML_TYPE_F32;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) return 1;
  const int n = static_cast<int>(ids.size());
  llama_batch batch = llama_batch_init(n, 0, 1);
  batch.n_tokens = n;
  for (int i = 0; i < n; ++i) {
    batch.token[i] = ids[static_cast<size_t>(i)];
    batch.pos[i] = i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  if (llama_decode(context, batch) != 0) return 1;
  const auto n_vocab = static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
  std::FILE* out = std::fopen(argv[2], "wb");
  if (out == nullptr) return 1;
  for (int i = 0; i < n; ++i) std::fwrite(llama_get_logits_ith(context, i), sizeof(float), n_vocab, out);
  return std::fclose(out) == 0 ? 0 : 1;
}
