// Products, prepared activations and embeddings on the CUDA back end, for every weight type: bits of the CPU back end
// at every number of rows, and the double reference.
#include <cmath>
#include <limits>

#include "tests/cuda/gpu_fixture.h"
#include "tests/kernels/reference_matmul.h"

namespace layover::gpu_test {
namespace {

struct Shape {
  int rows;
  int n_out;
  int cols;
};

struct Case {
  RawWeight weight;
  std::vector<float> x, bias, residual;
  int n_rows;
  int out_stride;
};

Case MakeCase(WeightType type, const Shape& shape, uint32_t seed, bool extras) {
  Case c{RandomWeight(type, shape.n_out, shape.cols, seed),
         RandomRows(shape.rows, shape.cols, seed + 1),
         {},
         {},
         shape.rows,
         shape.n_out + (extras ? 3 : 0)};
  if (extras) {
    c.bias = RandomRows(1, shape.n_out, seed + 2);
    c.residual = RandomRows(shape.rows, c.out_stride, seed + 3);
  }
  return c;
}

// Prepared and multiplied, [n_rows, out_stride].
std::vector<float> Multiply(Device* device, const Case& c) {
  Memory memory(device);
  auto weight = device->PackWeight(c.weight.Source());
  EXPECT_TRUE(weight.ok()) << weight.status().message();
  const ActivationFormat format = (*weight)->activation;
  void* prepared = memory.Zeroed<uint8_t>(device->ActivationBytes(format, c.n_rows, c.weight.cols));
  memory.stream()->PrepareActivation({memory.Put(c.x), c.n_rows, c.weight.cols, c.weight.cols, format, prepared});
  const size_t n = static_cast<size_t>(c.n_rows) * c.out_stride;
  float* out = c.residual.empty() ? memory.Zeroed<float>(n) : memory.Put(c.residual);  // in place
  memory.stream()->MatMul({weight->get(), prepared, c.n_rows, out, c.out_stride,
                           c.bias.empty() ? nullptr : memory.Put(c.bias), c.residual.empty() ? nullptr : out});
  std::vector<float> result = memory.Get(out, n);
  return result;
}

class GpuMatMul : public testing::TestWithParam<WeightType> {
 protected:
  // A number of columns that the type takes.
  int Cols(int wanted) const {
    const int block = BlockElements(GetParam());
    return (wanted + block - 1) / block * block;
  }
};

TEST_P(GpuMatMul, SameBitsAsTheCpuAtEveryNumberOfRows) {
  const Shape shapes[] = {{1, 8, 32},  {1, 5, 96},   {2, 17, 160},   {3, 130, 544}, {7, 24, 512},  {8, 9, 576},
                          {9, 16, 64}, {16, 7, 256}, {17, 131, 288}, {64, 8, 128},  {65, 40, 160}, {1, 40, 2080}};
  uint32_t seed = 1;
  for (Shape shape : shapes) {
    shape.cols = Cols(shape.cols);
    SCOPED_TRACE(fmt::format("{} rows, {} x {}", shape.rows, shape.n_out, shape.cols));
    seed += 10;
    const Case c = MakeCase(GetParam(), shape, seed, seed % 20 == 1);
    SameOnBoth<float>([&](Device* device) { return Multiply(device, c); });
    if (HasFatalFailure()) return;
  }
}

// With what integer activations leave of x: the error of preparing is allowed for.
TEST_P(GpuMatMul, MatchesTheReference) {
  for (const int rows : {1, 5, 20}) {
    Case c = MakeCase(GetParam(), {rows, 19, Cols(320)}, 100 + rows, false);
    const std::vector<double> x(c.x.begin(), c.x.end());
    const bool exact = BlockElements(GetParam()) == 1;
    const ReferenceProduct want =
        MultiplyInDouble(c.weight, x, exact ? std::vector<double>() : A16Error(c.x, c.weight.cols), rows);
    ForEverySchedule(4, [&](Device* device) { ASSERT_TRUE(WithinBound(Multiply(device, c), want, c.weight.rows)); });
  }
}

TEST_P(GpuMatMul, NumbersThatAreNoneStayNone) {
  for (const int rows : {2, 12}) {
    Case c = MakeCase(GetParam(), {rows, 12, Cols(128)}, 200, false);
    c.x[5] = NAN;
    c.x[static_cast<size_t>(c.weight.cols) + 40] = INFINITY;
    const std::vector<float> y = SameOnBoth<float>([&](Device* device) { return Multiply(device, c); });
    EXPECT_TRUE(std::isnan(y[3]));
    EXPECT_FALSE(std::isfinite(y[12 + 3]));
  }
}

TEST_P(GpuMatMul, ZerosSubnormalsAndLargeValues) {
  Case c = MakeCase(GetParam(), {10, 12, Cols(128)}, 300, false);
  const int cols = c.weight.cols;
  for (int k = 0; k < cols; ++k) {
    c.x[k] = 0;
    c.x[cols + k] *= 0x1p-120f;
    c.x[2 * cols + k] *= 0x1p-140f;
    c.x[3 * cols + k] *= 0x1p100f;
    c.x[4 * cols + k] = k % 2 == 0 ? 1.0f : -1.0f;  // halves of 16 bits at their ends
  }
  SameOnBoth<float>([&](Device* device) { return Multiply(device, c); });
}

TEST_P(GpuMatMul, EmbedRowsGivesTheTablesValues) {
  const int cols = Cols(352);
  const RawWeight table = RandomWeight(GetParam(), 21, cols, 7);
  const std::vector<int32_t> ids = {0, 20, 7, 8, 7};
  for (const float scale : {1.0f, 12.5f}) {
    const std::vector<float> rows = SameOnBoth<float>([&](Device* device) {
      Memory memory(device);
      auto packed = device->PackWeight(table.Source());
      EXPECT_TRUE(packed.ok());
      float* out = memory.Zeroed<float>(ids.size() * cols);
      memory.stream()->EmbedRows({packed->get(), memory.Put(ids), out, static_cast<int>(ids.size()), scale});
      return memory.Get(out, ids.size() * cols);
    });
    if (scale != 1.0f) continue;
    std::vector<float> want(cols);
    for (size_t i = 0; i < ids.size(); ++i) {
      DequantizeRow(GetParam(), table.row(ids[i]), cols, want.data());
      ASSERT_TRUE(SameValues(std::vector<float>(&rows[i * cols], &rows[i * cols] + cols), want));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GpuMatMul, testing::ValuesIn(kMatMulTypes),
                         [](const auto& test) { return std::string(WeightTypeName(test.param)); });

TEST(GpuPackWeight, RefusesWhatTheCpuRefuses) {
  const std::unique_ptr<Device> cpu = kernel_test::OpenCpu(kernel_test::BestVariant());
  auto gpu = gpu::GpuDevice::Open(0);
  ASSERT_TRUE(gpu.ok());
  const std::vector<uint8_t> data(4096);
  const WeightSource bad[] = {{WeightType::kQ4_0, 1, 4, 40, data.data(), 90},
                              {WeightType::kQ4_0, 1, 4, 64, data.data(), 145},
                              {WeightType::kQ4_0, 0, 4, 64, data.data(), 144},
                              {static_cast<WeightType>(1000), 1, 4, 64, data.data(), 144}};
  for (const WeightSource& source : bad) {
    EXPECT_EQ(cpu->PackWeight(source).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ((*gpu)->PackWeight(source).status().code(), absl::StatusCode::kInvalidArgument);
  }
  for (const WeightType type : kMatMulTypes) EXPECT_TRUE((*gpu)->SupportsWeight(type));
  EXPECT_FALSE((*gpu)->SupportsWeight(static_cast<WeightType>(1000)));
}

}  // namespace
}  // namespace layover::gpu_test
