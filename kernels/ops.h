// The one kernel header that others include: what a back end can do, and the contract of each operation.
//
// A back end is a Device (memory, weights, tables) and its Streams (operations in order). Every operation has one name
// and one contract here; `kernels/cpu/<op>` and `kernels/cuda/<op>` implement it; the double-precision reference that
// tests compare with stands in tests/kernels/reference.h.
//
// What holds for every operation:
//  - Asynchronous: a call enqueues. Operations of one stream run in order; results are there for the host after
//    Synchronize() or once a recorded Event is done. (The CPU back end runs them at once, which this allows.)
//  - All pointers are device memory of the stream's device and stay valid and unchanged until the operation has run.
//    That holds for ids, positions and page tables too: upload them once per step. Host memory appears only in the
//    Copy*, *KvRows and Pack functions.
//  - Buffers are allocated once and keep their addresses, so that a step can be captured as a graph.
//  - In-place is allowed only where a contract says "may alias".
//  - Errors are sticky: a failing operation makes Synchronize() return it; arguments that break a contract hit a CHECK.
//  - Rows are independent: the bits of a row depend on that row's inputs only, never on how many rows there are, on
//    threads, or on the instruction set (invariant 1). `float` sums have one fixed order, documented per op.
//
// Shapes are written [slowest, ..., fastest]; ranges are half-open; "row" is a token's vector.
#ifndef LAYOVER_KERNELS_OPS_H_
#define LAYOVER_KERNELS_OPS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/limits.h"

namespace layover {

inline constexpr int kPageTokens = limits::kPageTokens;

// ---------------------------------------------------------------------------------------------------------- types

// Weight storage types; the values are GGML's ids in GGUF files.
enum class WeightType : uint32_t {
  kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8,
  kQ2_K = 10, kQ3_K = 11, kQ4_K = 12, kQ5_K = 13, kQ6_K = 14,
  kIQ2_XXS = 16, kIQ2_XS = 17, kIQ3_XXS = 18, kIQ1_S = 19, kIQ4_NL = 20, kIQ3_S = 21, kIQ2_S = 22, kIQ4_XS = 23,
  kIQ1_M = 29, kBF16 = 30, kMXFP4 = 39,
};

// K/V storage types. Canonical row bytes (container, park images): f32 and f16 plain little-endian; q8_0 and q4_0 are
// GGML blocks of 32 along head_dim (q8_0: f16 d, int8 qs[32]; q4_0: f16 d, uint8 qs[16], low nibbles first half).
enum class KvType : uint8_t { kF32 = 0, kF16 = 1, kQ8_0 = 2, kQ4_0 = 3 };

// How a matrix product wants its activations: kF32 plain rows; kA16 blocks of 32 as a float scale and 32 int16 values
// |a| <= 32639, kept as two int8 halves a = 256*high + low (quants.md; exact int32 dots).
enum class ActivationFormat : uint8_t { kF32, kA16 };

std::string_view KvTypeName(KvType type);                       // "f16"
bool ParseKvType(std::string_view name, KvType* type);
// Bytes of one K (or V) row [kv_heads, head_dim] in canonical layout. head_dim is a multiple of 32 for q8_0 and q4_0.
size_t KvRowBytes(KvType type, int kv_heads, int head_dim);

// A linear layer's weights in the back end's own layout, with its shape. Immutable; made by Device::PackWeight.
// Shape [experts, rows, cols]: y[row] = sum over col of w[row][col] * x[col]; experts is 1 except for MoE slabs.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
  WeightType type = WeightType::kF32;
  int experts = 1;
  int rows = 0;
  int cols = 0;
  size_t device_bytes = 0;
  ActivationFormat activation = ActivationFormat::kF32;  // what MatMul with this weight takes
};

// Where weights come from: `data` is GGUF's layout, experts*rows rows of cols values, rows back to back.
struct WeightSource {
  WeightType type = WeightType::kF32;
  int experts = 1;
  int rows = 0;
  int cols = 0;
  const void* data = nullptr;  // host
  size_t bytes = 0;
};

// Device memory; freed with the object.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <typename T>
  T* As() const { return static_cast<T*>(data_); }

 protected:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// One sequence's rows in a step. Rows [row_begin, row_begin + row_count) of the step's matrices are the tokens at
// positions [position_begin, position_begin + row_count) of the sequence, whose page table is
// page_tables[page_table_begin + position / 64].
struct SequenceSlice {
  int32_t row_begin = 0;
  int32_t row_count = 0;
  int32_t position_begin = 0;
  int32_t page_table_begin = 0;
};

// A step's slices, on the device. Slices are in row order and cover rows [0, n_rows) without gaps. Entries of a page table
// that an operation does not look at may be anything: StoreKv looks at the pages of the step's own rows, Attention at
// those from its window's first position on.
struct SliceTable {
  const SequenceSlice* slices = nullptr;   // [n_slices]
  int n_slices = 0;
  const int32_t* page_tables = nullptr;    // [total page table entries], page ids
  int n_rows = 0;
  int max_positions = 0;                   // largest position_begin + row_count, for scratch and scheduling only
};

// The K/V of one attention layer: two pools of pages, [n_pages] x page, in the back end's own layout within a page
// (the CPU keeps K transposed per page). Made by Device::KvPoolBytes and an allocation; unwritten rows are zero.
struct KvLayer {
  void* k_pool = nullptr;
  void* v_pool = nullptr;
  KvType type = KvType::kF16;
  int n_pages = 0;
  int kv_heads = 0;
  int head_dim = 0;
};

// ------------------------------------------------------------------------------------------- operations' arguments

struct EmbedRowsArgs {
  const PackedWeight* table = nullptr;  // [vocab, dim]
  const int32_t* ids = nullptr;         // [n_rows], each in [0, vocab)
  float* out = nullptr;                 // [n_rows, dim]
  int n_rows = 0;
  float scale = 1.0f;                   // gemma: sqrt(dim); 1 multiplies nothing
};

// y = x / sqrt(mean(x^2) + eps) * weight, over the last dimension. y may alias x. Rows are x + i * x_stride; with
// x_stride > dim several heads of one token are separate rows. Sum order: 16 lanes, then a fixed tree.
struct RmsNormArgs {
  const float* x = nullptr;       // [n_rows, dim], stride x_stride
  const float* weight = nullptr;  // [dim]
  float* y = nullptr;             // [n_rows, dim], stride y_stride
  int n_rows = 0;
  int dim = 0;
  int x_stride = 0;
  int y_stride = 0;
  float eps = 0;
};

// Converts rows for MatMul. Per block of 32: scale = max|x| / 32639, values round to nearest even; a zero block is zero.
struct PrepareActivationArgs {
  const float* x = nullptr;  // [n_rows, dim], stride x_stride
  int n_rows = 0;
  int dim = 0;               // multiple of 32 for kA16
  int x_stride = 0;
  ActivationFormat format = ActivationFormat::kF32;
  void* out = nullptr;       // Device::ActivationBytes(format, n_rows, dim)
};

// out[r][o] = (residual ? residual[r][o] : 0) + (bias ? bias[o] : 0) + sum_k w[o][k] * x[r][k].
// Order per output (integer types): the type's groups of 16 or 32 columns ascending, acc = fma(float(int32 dot), dw * da,
// acc); then for types with a minimum acc = fma(m, da * sum(a), acc). Float types: k ascending, acc = fma(w, x, acc).
// Then + bias, then + residual. out may alias residual.
struct MatMulArgs {
  const PackedWeight* weight = nullptr;  // [1, n_out, dim]
  const void* x = nullptr;               // prepared in weight->activation, [n_rows, dim]
  int n_rows = 0;
  float* out = nullptr;                  // [n_rows, n_out], stride out_stride
  int out_stride = 0;
  const float* bias = nullptr;           // [n_out]
  const float* residual = nullptr;       // [n_rows, n_out], stride out_stride
};

// cos and sin of position * inverse frequency, once per step, shared by its layers.
struct RopeAnglesArgs {
  const int32_t* positions = nullptr;  // [n_rows]
  const double* frequencies = nullptr; // [n_pairs] radians per position, scaling applied (models/rope)
  float* angles = nullptr;             // [n_rows, n_pairs, 2]: cos, sin
  int n_rows = 0;
  int n_pairs = 0;
  float magnitude = 1.0f;              // YaRN's factor on cos and sin
};

enum class RopePairing : uint8_t { kNorm /* (2p, 2p+1) */, kNeox /* (p, p + n_pairs) */ };

// Rotates the first 2 * n_pairs dims of every head in place; the rest passes.
struct RopeArgs {
  float* x = nullptr;            // [n_rows, heads, head_dim], row stride x_stride
  const float* angles = nullptr; // [n_rows, n_pairs, 2]
  int n_rows = 0;
  int heads = 0;
  int head_dim = 0;
  int x_stride = 0;
  int n_pairs = 0;
  RopePairing pairing = RopePairing::kNorm;
};

// Writes the step's K and V rows through the K/V type into their pages. q8_0 and q4_0 rounding: see kv_codec.h.
struct StoreKvArgs {
  KvLayer cache;
  const float* k = nullptr;  // [n_rows, kv_heads, head_dim], row stride stride
  const float* v = nullptr;
  int stride = 0;
  SliceTable slices;
};

// Causal softmax(scale * q k) v over the pages, reading also the step's own rows back from them (call StoreKv first).
// Query head h uses K/V head h / (heads / kv_heads). The query at position p sees positions (p - window, p], all of
// [0, p] if window is 0. sinks: one logit per head in the denominator only.
// Order: each 64-block whole and masked; dots over d ascending, one lane per key; block maximum; own exp; sums of a
// block in a fixed tree; V over keys ascending; partials of blocks merged in ascending order.
struct AttentionArgs {
  KvLayer cache;
  const float* q = nullptr;      // [n_rows, heads, head_dim], row stride q_stride
  float* out = nullptr;          // [n_rows, heads, head_dim], row stride out_stride
  int q_stride = 0;
  int out_stride = 0;
  int heads = 0;
  float scale = 0;
  int window = 0;
  const float* sinks = nullptr;  // [heads] or null
  SliceTable slices;
};

enum class GateKind : uint8_t {
  kSilu,           // silu(g) * u
  kGeluTanh,       // gelu_tanh(g) * u
  kSigmoid,        // sigmoid(g) * u
  kClampedSwiglu,  // gpt-oss: c * sigmoid(1.702 c) * (clamp(u, -7, 7) + 1), c = min(g, 7)
};

// out = act(gate) * up, element by element; out may alias either. A stride may be larger than dim: where q and its gate
// stand side by side per head, [n_rows, heads, 2, head_dim], heads are rows, gate = x + head_dim, gate_stride = 2 head_dim.
struct GatedArgs {
  const float* gate = nullptr;  // [n_rows, dim], stride gate_stride
  const float* up = nullptr;    // [n_rows, dim], stride up_stride; null (not for kClampedSwiglu): out = act(gate)
  float* out = nullptr;         // [n_rows, dim], stride out_stride
  int n_rows = 0;
  int dim = 0;
  int gate_stride = 0;
  int up_stride = 0;
  int out_stride = 0;
  GateKind kind = GateKind::kSilu;
};

// Copies rows: out[i] = x[rows[i]]. The last stage picks the rows it wants logits of.
struct GatherRowsArgs {
  const float* x = nullptr;       // [*, dim]
  const int32_t* rows = nullptr;  // [n_rows]
  float* out = nullptr;           // [n_rows, dim]
  int n_rows = 0;
  int dim = 0;
};

// The k largest of each row, the largest first, of equal ones the lower index. NaN and -infinity are never among them;
// +infinity is the largest float, -0 is +0. Where a row has fewer than k, the rest is index -1, value -infinity.
struct TopKArgs {
  const float* x = nullptr;  // [n_rows, dim], stride x_stride
  int32_t* ids = nullptr;    // [n_rows, k]
  float* values = nullptr;   // [n_rows, k]
  int n_rows = 0;
  int dim = 0;
  int x_stride = 0;
  int k = 0;                 // 1 to limits::kMaxTopK; may be above dim
};

// --- Hybrid models. State slots: one per live sequence, [n_slots, ...] floats. A step reads slot `from` and writes slot
// `to` of each slice, so that a save or a checkpoint can keep the state at the cut while the next step goes on: `from` is
// left as it is unless it is `to`. No slice writes a slot that another one reads or writes.
struct StateSlots {
  const int32_t* from = nullptr;  // [n_slices], -1: zero state
  const int32_t* to = nullptr;    // [n_slices]
};

// Causal depthwise convolution of width `taps`, then SiLU: c[n] = sum_t w[ch][t] * u[n - taps + 1 + t]; u before the
// slice comes from the state (the last taps-1 inputs, oldest first), which is updated. Order: fma with t ascending,
// from +0, taps on inputs before the sequence's first included.
struct CausalConvArgs {
  const float* u = nullptr;       // [n_rows, channels]
  const float* weight = nullptr;  // [channels, taps]
  float* state = nullptr;         // [n_slots, taps - 1, channels]
  float* out = nullptr;           // [n_rows, channels]; not u
  int channels = 0;
  int taps = 0;
  StateSlots slots;
  SliceTable slices;
};

// The gated delta rule (architectures.md section 6.4), per value head, token by token:
//   q' = q / sqrt(|q|^2 + eps) / sqrt(dim), k' = k / sqrt(|k|^2 + eps)
//   S *= exp(a * softplus(alpha + dt_bias));  d = sigmoid(beta) * (v - S^T k');  S += k' d^T;  out = S^T q'
// Every value column is on its own, its sums over the key dimension run in 16 lanes and the fixed tree.
struct GatedDeltaNetArgs {
  const float* qkv = nullptr;     // [n_rows, 2 * key_heads * dim + value_heads * dim], after CausalConv
  const float* alpha = nullptr;   // [n_rows, value_heads], logits
  const float* beta = nullptr;    // [n_rows, value_heads], logits
  const float* a = nullptr;       // [value_heads], -exp(A_log)
  const float* dt_bias = nullptr; // [value_heads]
  float* state = nullptr;         // [n_slots, value_heads, dim (value), dim (key)]
  float* out = nullptr;           // [n_rows, value_heads, dim]
  int key_heads = 0;
  int value_heads = 0;
  int dim = 0;
  bool key_head_is_modulo = false;  // key head of value head h: h % key_heads, else h / (value_heads / key_heads)
  float eps = 0;                    // as in training; the norms' epsilon of the models there are, 1e-6
  StateSlots slots;
  SliceTable slices;
};

// --- Mixture of experts. Routing in float; ties go to the lower id; chosen experts are listed in ascending id, and
// their outputs are added in that order.

// The k largest logits. weights: p = softmax over all experts, of the chosen p / max(sum of p, 2^-14); or, with
// softmax_after_top_k, softmax over the chosen only; then times weight_scale. A NaN among a row's logits makes all its
// weights NaN. Order: exp(logit - max), summed in 16 lanes and the tree (all) or ascending (chosen).
struct MoeRouteArgs {
  const float* logits = nullptr;  // [n_rows, experts], bias included
  int32_t* chosen = nullptr;      // [n_rows, k], ascending
  float* weights = nullptr;       // [n_rows, k]
  int n_rows = 0;
  int experts = 0;
  int k = 0;
  bool softmax_after_top_k = false;  // gpt-oss
  float weight_scale = 1.0f;
};

// For every row and each of its chosen experts: out[row][j] = weight[chosen[row][j]] * x + bias[chosen[row][j]]. The
// bits are those of MatMul with that expert's weight. `x_per_choice` says whether x is [n_rows, dim] (first products) or
// [n_rows, k, dim] (the down product).
struct MoeMatMulArgs {
  const PackedWeight* weight = nullptr;  // [experts, n_out, dim]
  const void* x = nullptr;               // prepared
  const int32_t* chosen = nullptr;       // [n_rows, k], each in [0, experts)
  float* out = nullptr;                  // [n_rows, k, n_out]
  int n_rows = 0;
  int k = 0;
  bool x_per_choice = false;
  const float* bias = nullptr;           // [experts, n_out] or null
};

// out[r] = residual[r] + sum over j ascending of weights[r][j] * parts[r][j], each an fma. out may alias residual. An
// expert that all rows share, with a gate of its own, is added by another MoeCombine with k = 1.
struct MoeCombineArgs {
  const float* parts = nullptr;     // [n_rows, k, dim]
  const float* weights = nullptr;   // [n_rows, k]
  const float* residual = nullptr;  // [n_rows, dim]
  float* out = nullptr;             // [n_rows, dim]
  int n_rows = 0;
  int k = 0;
  int dim = 0;
};

// ------------------------------------------------------------------------------------------------- streams, device

class Event {
 public:
  virtual ~Event() = default;
  virtual bool Done() const = 0;
};

// Names work that recurs (Stream::Replay): all that its operations are told by the host follows from the key.
struct GraphKey {
  int32_t n_rows = 0;
  int32_t n_slices = 0;
  int32_t max_positions = 0;  // rounded up, so that few differ
  int32_t n_logits = 0;       // rows whose logits are part of it
  int32_t slot = 0;           // which of the input buffers it reads
  bool operator==(const GraphKey&) const = default;
};

// What came of a stream's calls of Replay.
struct ReplayCounts {
  int64_t captured = 0;  // graphs made
  int64_t launched = 0;  // calls that started one
};

class Stream {
 public:
  virtual ~Stream() = default;

  // --- forward pass
  virtual void EmbedRows(const EmbedRowsArgs& args) = 0;
  virtual void RmsNorm(const RmsNormArgs& args) = 0;
  virtual void PrepareActivation(const PrepareActivationArgs& args) = 0;
  virtual void MatMul(const MatMulArgs& args) = 0;
  virtual void RopeAngles(const RopeAnglesArgs& args) = 0;
  virtual void Rope(const RopeArgs& args) = 0;
  virtual void StoreKv(const StoreKvArgs& args) = 0;
  virtual void Attention(const AttentionArgs& args) = 0;
  virtual void Gated(const GatedArgs& args) = 0;
  virtual void GatherRows(const GatherRowsArgs& args) = 0;
  virtual void TopK(const TopKArgs& args) = 0;

  // --- hybrid and mixture models; a back end that lacks one says so in Device::Supports before any model is loaded
  virtual void CausalConv(const CausalConvArgs& args);
  virtual void GatedDeltaNet(const GatedDeltaNetArgs& args);
  virtual void MoeRoute(const MoeRouteArgs& args);
  virtual void MoeMatMul(const MoeMatMulArgs& args);
  virtual void MoeCombine(const MoeCombineArgs& args);

  // --- state path. Canonical rows [rows, kv_heads, head_dim] (see KvType) on the host; rows [row_begin, row_end) of one
  // page, 0 <= row_begin < row_end <= 64; k_rows or v_rows may be null: that half is left out. They may run on a copy
  // stream while the compute stream writes *other* rows of the same page.
  virtual void ReadKvRows(const KvLayer& cache, int page, int row_begin, int row_end, void* k_rows, void* v_rows) = 0;
  virtual void WriteKvRows(const KvLayer& cache, int page, int row_begin, int row_end, const void* k_rows,
                           const void* v_rows) = 0;
  // dst becomes a copy of src below `rows`, zero from there on.
  virtual void CopyKvPage(const KvLayer& cache, int src_page, int dst_page, int rows) = 0;
  virtual void ZeroKvPage(const KvLayer& cache, int page) = 0;

  // --- memory
  virtual void CopyToDevice(void* dst, const void* host, size_t bytes) = 0;
  virtual void CopyToHost(void* host, const void* src, size_t bytes) = 0;
  virtual void Zero(void* dst, size_t bytes) = 0;

  virtual std::unique_ptr<Event> Record() = 0;
  virtual absl::Status Synchronize() = 0;

  // --- graphs. Has the stream do what `enqueue` puts in it, which is operations of the forward pass only. In calls with
  // equal keys these are the same to the last argument, and nothing but what lies in device memory differs: so a back end
  // may keep them as a graph, and start that without calling `enqueue`.
  virtual void Replay(const GraphKey& key, const std::function<void()>& enqueue) { enqueue(); }
  virtual ReplayCounts Replays() const { return {}; }
};

// One hop between two devices over the back end's own library (NCCL): rank 0 sends, rank 1 receives, both are made with
// the same id. What waits for the other side asks `given_up` again and again, and ends with Aborted once that is true; the
// link is of no use afterwards. One host thread uses it.
class PeerLink {
 public:
  virtual ~PeerLink() = default;  // aborts what is under way; never waits for the other side
  // Whether both sides are there; Unavailable if they cannot meet. Never waits.
  virtual absl::StatusOr<bool> Connected() = 0;
  // Device memory; complete for the host when the call returns. It waits while as many sends as the link has room for
  // have not been received.
  virtual absl::Status Send(const void* data, size_t bytes, const std::function<bool()>& given_up) = 0;
  virtual absl::Status Receive(void* data, size_t bytes, const std::function<bool()>& given_up) = 0;
};

// Operations beyond the dense forward pass that a model may need.
enum class OpFamily : uint8_t { kGatedDeltaNet, kMixtureOfExperts };

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string Name() const = 0;                 // "cpu"
  // Names what the bits of a logits row depend on besides model, K/V type and tokens (kernel table version, rounding
  // tables). Equal on two machines: equal bits.
  virtual std::string NumericsFingerprint() const = 0;
  virtual bool Supports(OpFamily family) const = 0;
  virtual bool SupportsWeight(WeightType type) const = 0;
  virtual bool SupportsKv(KvType type, int head_dim) const = 0;
  virtual int64_t MemoryBytes() const = 0;              // what a plan may use

  // Zeroed. ResourceExhausted with the size asked for.
  virtual absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(size_t bytes) = 0;
  // InvalidArgument when the type is not supported, cols is no multiple of its block, or bytes do not match.
  virtual absl::StatusOr<std::unique_ptr<PackedWeight>> PackWeight(const WeightSource& source) = 0;

  virtual size_t PackedWeightBytes(WeightType type, int experts, int rows, int cols) const = 0;
  virtual size_t ActivationBytes(ActivationFormat format, int n_rows, int dim) const = 0;
  virtual size_t KvPoolBytes(KvType type, int n_pages, int kv_heads, int head_dim) const = 0;  // of k_pool or v_pool

  // The compute stream owns the device's threads. Copy streams run beside it; each is for one host thread.
  virtual std::unique_ptr<Stream> NewComputeStream() = 0;
  virtual std::unique_ptr<Stream> NewCopyStream() = 0;

  // Page-locks host memory that this device's copies will go through again and again; false where that is of no use or is
  // refused (slower, not wrong). What was pinned is unpinned before it is unmapped.
  virtual bool PinHost(void* memory, size_t bytes);
  virtual void UnpinHost(void* memory);

  // Unavailable, saying what is missing, where the back end has no such links. The process that made an id stays until
  // both ranks are connected. No message has more than `most_bytes`.
  virtual absl::StatusOr<std::string> NewPeerId();
  virtual absl::StatusOr<std::unique_ptr<PeerLink>> JoinPeer(const std::string& id, int rank, size_t most_bytes);
};

struct DeviceOptions {
  int threads = 1;       // CPU: compute threads
  std::string isa;       // CPU, for tests: "" the best there is, or "scalar" | "avx2" | "avx512"; also LAYOVER_CPU_ISA
};

// `name` is "cpu", "cuda:N" or "emu:N". Unavailable, saying what is missing, where this build or machine has no such
// device.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(std::string_view name, const DeviceOptions& options);

}  // namespace layover

#endif  // LAYOVER_KERNELS_OPS_H_
