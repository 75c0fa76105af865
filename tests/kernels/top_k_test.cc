// TopK of the CPU back end against a plain sort of the row, bit for bit.
#include "kernels/top_k.h"

#include <gtest/gtest.h>

#include "tests/kernels/kernel_fixture.h"
#include "tests/kernels/reference_top_k.h"

namespace layover::kernel_test {
namespace {

TEST(TopK, IsTheHeadOfASort) {
  for (const Variant& variant : Variants()) {
    const std::unique_ptr<Stream> stream = OpenCpu(variant)->NewComputeStream();
    for (const int dim : {1, 7, 128, 1000, 50'000}) {
      for (const int k : {1, 2, 40, limits::kMaxTopK}) {
        const int n_rows = 5, stride = dim + 3;
        const std::vector<float> x = reference::HardRows(n_rows, stride, static_cast<uint32_t>(dim + k));
        std::vector<int32_t> ids(static_cast<size_t>(n_rows * k));
        std::vector<float> values(ids.size());
        stream->TopK({x.data(), ids.data(), values.data(), n_rows, dim, stride, k});
        for (int row = 0; row < n_rows; ++row) {
          const auto want = reference::TopKOf({&x[static_cast<size_t>(row * stride)], static_cast<size_t>(dim)}, k);
          const auto at = static_cast<ptrdiff_t>(row * k);
          EXPECT_EQ(std::vector(ids.begin() + at, ids.begin() + at + k), want.ids) << dim << ", " << k;
          EXPECT_TRUE(SameBits(std::vector(values.begin() + at, values.begin() + at + k), want.values)) << dim;
        }
      }
    }
  }
}

TEST(TopK, KeysComeBackAsTheyWere) {
  for (const float logit : {-1e30f, -1.5f, 0.0f, 1e-42f, 7.25f, 3e38f}) {
    const uint64_t key = TopKKey(logit, 123'456);
    EXPECT_EQ(LogitOfTopKKey(key), logit);
    EXPECT_EQ(IdOfTopKKey(key), 123'456);
    EXPECT_GT(key, TopKKey(logit, 123'457));
    EXPECT_LT(key, TopKKey(std::nextafter(logit, INFINITY), 1'000'000));
  }
}

}  // namespace
}  // namespace layover::kernel_test
