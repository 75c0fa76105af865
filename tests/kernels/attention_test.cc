// Attention: against double precision over what the cache really holds, and the same bits however a sequence is cut
// into steps, slices, pages and threads, on every instruction set.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/float16.h"
#include "tests/kernels/kv_fixture.h"

namespace layover::kernel_test {
namespace {

struct Shape {
  KvType type = KvType::kF16;
  int heads = 6;
  int kv_heads = 2;
  int head_dim = 64;
  int window = 0;
  bool sinks = false;

  std::string Name() const {
    return fmt::format("{}_{}heads_{}kv_{}dim{}{}", KvTypeName(type), heads, kv_heads, head_dim,
                       window > 0 ? fmt::format("_window{}", window) : "", sinks ? "_sinks" : "");
  }
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.Name();
}

// One sequence's q, k and v for every position, and its attention output by position.
class Sequence {
 public:
  Sequence(const Shape& shape, int length, uint32_t seed) : shape_(shape), length_(length) {
    q_ = NormalValues(static_cast<size_t>(length) * q_width(), seed, 2.0f);
    k_ = NormalValues(static_cast<size_t>(length) * kv_width(), seed + 1);
    v_ = NormalValues(static_cast<size_t>(length) * kv_width(), seed + 2);
    sinks_ = NormalValues(shape.heads, 77, 3.0f);  // of the layer, so the same for every sequence
  }
  int length() const { return length_; }
  int q_width() const { return shape_.heads * shape_.head_dim; }
  int kv_width() const { return shape_.kv_heads * shape_.head_dim; }
  const float* q(int position) const { return &q_[static_cast<size_t>(position) * q_width()]; }
  const float* k(int position) const { return &k_[static_cast<size_t>(position) * kv_width()]; }
  const float* v(int position) const { return &v_[static_cast<size_t>(position) * kv_width()]; }
  const float* sinks() const { return shape_.sinks ? sinks_.data() : nullptr; }

 private:
  const Shape shape_;
  const int length_;
  std::vector<float> q_, k_, v_, sinks_;
};

// A slice of a step: positions [begin, end) of a sequence with the pages given.
struct Part {
  const Sequence* sequence;
  int begin;
  int end;
  std::vector<int32_t> pages;
};

AttentionArgs ArgsFor(const Shape& shape, const KvLayer& cache, const Sequence& sequence) {
  AttentionArgs args;
  args.cache = cache;
  args.heads = shape.heads;
  args.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  args.window = shape.window;
  args.sinks = sequence.sinks();
  return args;
}

// One step: stores the parts' K and V, attends, returns the rows of all parts. Strides are wider than the rows.
std::vector<float> RunStep(const Shape& shape, Stream* stream, const KvLayer& cache, const std::vector<Part>& parts) {
  const int q_width = parts[0].sequence->q_width();
  const int kv_width = parts[0].sequence->kv_width();
  const int q_stride = q_width + 16, kv_stride = kv_width + 8, out_stride = q_width + 4;
  StepSlices step;
  std::vector<float> q, k, v;
  for (const Part& part : parts) {
    for (int p = part.begin; p < part.end; ++p) {
      q.insert(q.end(), part.sequence->q(p), part.sequence->q(p) + q_width);
      k.insert(k.end(), part.sequence->k(p), part.sequence->k(p) + kv_width);
      v.insert(v.end(), part.sequence->v(p), part.sequence->v(p) + kv_width);
      q.resize(q.size() + q_stride - q_width, NAN);
      k.resize(k.size() + kv_stride - kv_width, NAN);
      v.resize(v.size() + kv_stride - kv_width, NAN);
    }
    step.Add(part.begin, part.end - part.begin, part.pages);
  }
  stream->StoreKv({cache, k.data(), v.data(), kv_stride, step.Table()});
  std::vector<float> out(static_cast<size_t>(step.rows()) * out_stride, NAN);
  AttentionArgs args = ArgsFor(shape, cache, *parts[0].sequence);
  args.q = q.data();
  args.out = out.data();
  args.q_stride = q_stride;
  args.out_stride = out_stride;
  args.slices = step.Table();
  stream->Attention(args);
  EXPECT_TRUE(stream->Synchronize().ok());
  std::vector<float> rows;
  for (int r = 0; r < step.rows(); ++r) {
    rows.insert(rows.end(), &out[static_cast<size_t>(r) * out_stride],
                &out[static_cast<size_t>(r) * out_stride] + q_width);
  }
  return rows;
}

// The whole sequence in steps that end at `cuts` and at its end, alone, in pages of a random order.
std::vector<float> RunInSteps(const Shape& shape, const Variant& variant, const Sequence& sequence,
                              std::vector<int> cuts, uint32_t page_seed) {
  const std::unique_ptr<Device> device = OpenCpu(variant);
  const std::unique_ptr<Stream> stream = device->NewComputeStream();
  const std::vector<int32_t> pages = ShuffledPages(PagesFor(sequence.length()), page_seed);
  const TestCache cache(device.get(), shape.type, static_cast<int>(pages.size()), shape.kv_heads, shape.head_dim);
  cuts.push_back(sequence.length());
  std::vector<float> rows;
  int begin = 0;
  for (const int end : cuts) {
    std::vector<int32_t> table = pages;  // pages before the window were given back
    const int first = shape.window > 0 ? std::max(0, begin - shape.window + 1) / kPageTokens : 0;
    std::fill_n(table.begin(), first, -1);
    const std::vector<float> part = RunStep(shape, stream.get(), cache.layer(), {{&sequence, begin, end, table}});
    rows.insert(rows.end(), part.begin(), part.end());
    begin = end;
  }
  return rows;
}

std::vector<int> EveryPosition(int begin, int end) {
  std::vector<int> cuts;
  for (int p = begin; p < end; ++p) cuts.push_back(p);
  return cuts;
}

// Canonical bytes of one head's row as numbers, by the formats' definition.
std::vector<double> DecodeRow(KvType type, const uint8_t* row, int dim) {
  std::vector<double> values(dim);
  for (int d = 0; d < dim; ++d) {
    const int block = d / 32, j = d % 32;
    uint16_t half;
    float single;
    switch (type) {
      case KvType::kF32:
        std::memcpy(&single, row + 4 * d, 4);
        values[d] = single;
        break;
      case KvType::kF16:
        std::memcpy(&half, row + 2 * d, 2);
        values[d] = HalfToFloat(half);
        break;
      case KvType::kQ8_0:
        std::memcpy(&half, row + 34 * block, 2);
        values[d] = HalfToFloat(half) * static_cast<double>(static_cast<int8_t>(row[34 * block + 2 + j]));
        break;
      case KvType::kQ4_0:
        std::memcpy(&half, row + 18 * block, 2);
        values[d] = HalfToFloat(half) * static_cast<double>((row[18 * block + 2 + j % 16] >> (j / 16 * 4) & 15) - 8);
        break;
    }
  }
  return values;
}

// What the cache holds of a K/V head, K first: [position][head_dim].
std::pair<reference::Rows, reference::Rows> HeldRows(const TestCache& cache, Stream* stream,
                                                     const std::vector<int32_t>& pages, int length, int kv_head) {
  const KvLayer& layer = cache.layer();
  const size_t head_bytes = cache.row_bytes() / layer.kv_heads;
  std::pair<reference::Rows, reference::Rows> rows;
  for (int p = 0; p < length; ++p) {
    const int slot = p % kPageTokens;
    const std::vector<uint8_t> bytes = cache.Read(stream, pages[p / kPageTokens], slot, slot + 1);
    rows.first.push_back(DecodeRow(layer.type, bytes.data() + kv_head * head_bytes, layer.head_dim));
    rows.second.push_back(
        DecodeRow(layer.type, bytes.data() + cache.row_bytes() + kv_head * head_bytes, layer.head_dim));
  }
  return rows;
}

class AttentionTest : public testing::TestWithParam<Shape> {};

TEST_P(AttentionTest, MatchesReference) {
  const Shape shape = GetParam();
  const Sequence sequence(shape, 200, 1);
  const std::unique_ptr<Device> device = OpenCpu(BestVariant());
  const std::unique_ptr<Stream> stream = device->NewComputeStream();
  const std::vector<int32_t> pages = ShuffledPages(PagesFor(sequence.length()), 2);
  const TestCache cache(device.get(), shape.type, static_cast<int>(pages.size()), shape.kv_heads, shape.head_dim);
  const std::vector<float> out =
      RunStep(shape, stream.get(), cache.layer(), {{&sequence, 0, sequence.length(), pages}});
  for (int head = 0; head < shape.heads; ++head) {
    const auto [keys, values] =
        HeldRows(cache, stream.get(), pages, sequence.length(), head / (shape.heads / shape.kv_heads));
    for (int position = 0; position < sequence.length(); ++position) {
      reference::AttentionRow row;
      row.q = sequence.q(position) + head * shape.head_dim;
      row.keys = &keys;
      row.values = &values;
      row.position = position;
      row.window = shape.window;
      row.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
      row.sink = shape.sinks ? sequence.sinks() + head : nullptr;
      const float* got = &out[static_cast<size_t>(position) * sequence.q_width() + head * shape.head_dim];
      ASSERT_TRUE(WithinBounds(got, reference::Attention(row))) << "head " << head << ", position " << position;
    }
  }
}

TEST_P(AttentionTest, BitsDoNotDependOnStepsThreadsOrIsa) {
  const Shape shape = GetParam();
  const int length = shape.heads < 50 ? 330 : 135;
  const Sequence sequence(shape, length, 4);
  const std::vector<float> whole = RunInSteps(shape, {CpuIsa::kScalar, 1}, sequence, {}, 5);
  for (const Variant& variant : Variants()) {
    EXPECT_TRUE(SameBits(RunInSteps(shape, variant, sequence, {}, 6), whole)) << variant.Name();
    EXPECT_TRUE(SameBits(RunInSteps(shape, variant, sequence, {1, 63, 64, 65, 127, 128, 129}, 7), whole))
        << variant.Name() << ", uneven steps";
  }
  const Variant two_threads = {BestCpuIsa(), 2};
  EXPECT_TRUE(SameBits(RunInSteps(shape, two_threads, sequence, EveryPosition(1, length), 8), whole)) << "one by one";
}

// Several sequences in a step, prefill beside decode, get what each gets alone.
TEST_P(AttentionTest, BitsDoNotDependOnOtherSlices) {
  const Shape shape = GetParam();
  const int lengths[] = {1, 64, 130, 200};
  std::vector<Sequence> sequences;
  std::vector<std::vector<float>> alone;
  std::vector<std::vector<int32_t>> tables;
  const std::vector<int32_t> pages = ShuffledPages(16, 9);
  size_t used = 0;
  for (const int length : lengths) {
    sequences.emplace_back(shape, length, 10 + length);
    alone.push_back(RunInSteps(shape, BestVariant(), sequences.back(), {}, 11));
    tables.emplace_back(pages.begin() + used, pages.begin() + used + PagesFor(length));
    used += PagesFor(length);
  }
  for (const int threads : {1, 3}) {
    const std::unique_ptr<Device> device = OpenCpu({BestCpuIsa(), threads});
    const std::unique_ptr<Stream> stream = device->NewComputeStream();
    const TestCache cache(device.get(), shape.type, 16, shape.kv_heads, shape.head_dim);
    // Sequence i has done all but its last (i + 1)^2 tokens, at most.
    std::vector<Part> first, second;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const int left = std::min<int>(lengths[i], static_cast<int>((i + 1) * (i + 1)));
      if (left < lengths[i]) first.push_back({&sequences[i], 0, lengths[i] - left, tables[i]});
      second.push_back({&sequences[i], lengths[i] - left, lengths[i], tables[i]});
    }
    RunStep(shape, stream.get(), cache.layer(), first);
    const std::vector<float> rows = RunStep(shape, stream.get(), cache.layer(), second);
    size_t at = 0;
    for (size_t i = 0; i < second.size(); ++i) {
      const size_t n = static_cast<size_t>(second[i].end - second[i].begin) * sequences[i].q_width();
      const std::vector<float> got(rows.begin() + at, rows.begin() + at + n);
      EXPECT_TRUE(SameBits(got, {alone[i].end() - n, alone[i].end()}))
          << "sequence " << i << ", " << threads << " threads";
      at += n;
    }
  }
}

// A restore: rows read from one cache and written into other pages of another.
TEST_P(AttentionTest, RestoredPagesGiveTheSameBits) {
  const Shape shape = GetParam();
  const Sequence sequence(shape, 200, 20);
  const std::vector<float> whole = RunInSteps(shape, BestVariant(), sequence, {}, 21);
  const std::unique_ptr<Device> device = OpenCpu(BestVariant());
  const std::unique_ptr<Stream> stream = device->NewComputeStream();
  const std::unique_ptr<Stream> copy = device->NewCopyStream();
  for (const int saved : {1, 63, 64, 65, 127, 128, 129, 199}) {
    const std::vector<int32_t> old_pages = ShuffledPages(4, 22), new_pages = ShuffledPages(4, 23);
    const TestCache before(device.get(), shape.type, 4, shape.kv_heads, shape.head_dim);
    const TestCache after(device.get(), shape.type, 4, shape.kv_heads, shape.head_dim);
    RunStep(shape, stream.get(), before.layer(), {{&sequence, 0, saved, old_pages}});
    for (int begin = 0; begin < saved; begin += kPageTokens) {
      const int rows = std::min(saved - begin, kPageTokens), block = begin / kPageTokens;
      after.Write(copy.get(), new_pages[block], 0, rows, before.Read(copy.get(), old_pages[block], 0, rows));
    }
    const std::vector<float> rest = RunStep(shape, stream.get(), after.layer(), {{&sequence, saved, 200, new_pages}});
    EXPECT_TRUE(SameBits(rest, {whole.end() - static_cast<ptrdiff_t>(rest.size()), whole.end()})) << saved;
  }
}

// Rows that a query does not see may hold anything: left over from a rewound branch, or a later token's infinities.
TEST_P(AttentionTest, UnseenRowsTakePartInNothing) {
  const Shape shape = GetParam();
  if (shape.type != KvType::kF16 && shape.type != KvType::kF32) return;  // raw bits below are theirs
  const Sequence sequence(shape, 100, 30);
  const std::vector<float> whole = RunInSteps(shape, BestVariant(), sequence, {}, 31);
  const std::unique_ptr<Device> device = OpenCpu(BestVariant());
  const std::unique_ptr<Stream> stream = device->NewComputeStream();
  const TestCache cache(device.get(), shape.type, 2, shape.kv_heads, shape.head_dim);
  for (const uint8_t byte : {0xff, 0xfc}) {  // NaNs of either sign of payload
    for (const int page : {0, 1}) {
      cache.Write(stream.get(), page, 0, 64, std::vector<uint8_t>(2 * 64 * cache.row_bytes(), byte));
    }
    std::vector<float> rows;
    for (const auto& [begin, end] : {std::pair{0, 40}, {40, 41}, {41, 97}, {97, 98}, {98, 100}}) {
      const std::vector<float> part = RunStep(shape, stream.get(), cache.layer(), {{&sequence, begin, end, {1, 0}}});
      rows.insert(rows.end(), part.begin(), part.end());
    }
    EXPECT_TRUE(SameBits(rows, whole));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionTest,
    testing::Values(Shape{KvType::kF16, 9, 3, 64}, Shape{KvType::kF32, 4, 2, 64}, Shape{KvType::kQ8_0, 6, 2, 64},
                    Shape{KvType::kQ4_0, 2, 1, 64}, Shape{KvType::kF16, 2, 2, 80}, Shape{KvType::kF16, 4, 1, 96},
                    Shape{KvType::kF16, 8, 1, 128}, Shape{KvType::kQ8_0, 3, 1, 256}, Shape{KvType::kF32, 1, 1, 8},
                    Shape{KvType::kF16, 2, 1, 24}, Shape{KvType::kF16, 4, 2, 64, 100}, Shape{KvType::kF16, 1, 1, 32, 1},
                    Shape{KvType::kF32, 6, 1, 16, 64}, Shape{KvType::kF16, 8, 1, 64, 128, true},
                    Shape{KvType::kQ8_0, 7, 1, 32, 70, true}, Shape{KvType::kF16, 100, 1, 8, 0, true}),
    [](const auto& test) { return test.param.Name(); });

// A value that is no number must reach the output, so that nobody takes it for one.
TEST(Attention, NanIsNotHidden) {
  const Shape shape;
  Sequence sequence(shape, 70, 40);
  const_cast<float*>(sequence.v(65))[3] = NAN;
  const std::vector<float> rows = RunInSteps(shape, BestVariant(), sequence, {}, 41);
  EXPECT_TRUE(std::isfinite(rows[static_cast<size_t>(64) * sequence.q_width() + 3]));
  EXPECT_TRUE(std::isnan(rows[static_cast<size_t>(65) * sequence.q_width() + 3]));
  EXPECT_TRUE(std::isnan(rows[static_cast<size_t>(69) * sequence.q_width() + 3]));
}

// Long contexts with few heads are shared by blocks over the threads, in waves.
TEST(Attention, LongContextsShareBlocksAndKeepTheirBits) {
  const Shape shape{KvType::kF16, 2, 1, 32};
  const Sequence sequence(shape, 3000, 50);
  const std::vector<int> cuts = {2990, 2991, 2995, 2998, 2999};
  const std::vector<float> one = RunInSteps(shape, {BestCpuIsa(), 1}, sequence, cuts, 51);
  for (const int threads : {2, 3, 5}) {
    EXPECT_TRUE(SameBits(RunInSteps(shape, {BestCpuIsa(), threads}, sequence, cuts, 52), one)) << threads;
  }
}

}  // namespace
}  // namespace layover::kernel_test
