// A device for tests whose streams really are asynchronous: every operation is put aside and runs when the stream is
// synchronised, as a GPU may. The CPU back end does the work, late.
#ifndef LAYOVER_TESTS_KERNELS_LATE_DEVICE_H_
#define LAYOVER_TESTS_KERNELS_LATE_DEVICE_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops.h"

namespace layover::kernel_test {

class LateStream : public Stream {
 public:
  explicit LateStream(std::unique_ptr<Stream> inner) : inner_(std::move(inner)) {}

  void EmbedRows(const EmbedRowsArgs& args) override { Later(&Stream::EmbedRows, args); }
  void RmsNorm(const RmsNormArgs& args) override { Later(&Stream::RmsNorm, args); }
  void PrepareActivation(const PrepareActivationArgs& args) override { Later(&Stream::PrepareActivation, args); }
  void MatMul(const MatMulArgs& args) override { Later(&Stream::MatMul, args); }
  void RopeAngles(const RopeAnglesArgs& args) override { Later(&Stream::RopeAngles, args); }
  void Rope(const RopeArgs& args) override { Later(&Stream::Rope, args); }
  void StoreKv(const StoreKvArgs& args) override { Later(&Stream::StoreKv, args); }
  void Attention(const AttentionArgs& args) override { Later(&Stream::Attention, args); }
  void Gated(const GatedArgs& args) override { Later(&Stream::Gated, args); }
  void GatherRows(const GatherRowsArgs& args) override { Later(&Stream::GatherRows, args); }
  void TopK(const TopKArgs& args) override { Later(&Stream::TopK, args); }

  void CausalConv(const CausalConvArgs& args) override { Later(&Stream::CausalConv, args); }
  void GatedDeltaNet(const GatedDeltaNetArgs& args) override { Later(&Stream::GatedDeltaNet, args); }
  void MoeRoute(const MoeRouteArgs& args) override { Later(&Stream::MoeRoute, args); }
  void MoeMatMul(const MoeMatMulArgs& args) override { Later(&Stream::MoeMatMul, args); }
  void MoeCombine(const MoeCombineArgs& args) override { Later(&Stream::MoeCombine, args); }

  void ReadKvRows(const KvLayer& cache, int page, int row_begin, int row_end, void* k_rows, void* v_rows) override {
    Put([=, this] { inner_->ReadKvRows(cache, page, row_begin, row_end, k_rows, v_rows); });
  }
  void WriteKvRows(const KvLayer& cache, int page, int row_begin, int row_end, const void* k_rows,
                   const void* v_rows) override {
    Put([=, this] { inner_->WriteKvRows(cache, page, row_begin, row_end, k_rows, v_rows); });
  }
  void CopyKvPage(const KvLayer& cache, int src_page, int dst_page, int rows) override {
    Put([=, this] { inner_->CopyKvPage(cache, src_page, dst_page, rows); });
  }
  void ZeroKvPage(const KvLayer& cache, int page) override {
    Put([=, this] { inner_->ZeroKvPage(cache, page); });
  }
  void CopyToDevice(void* dst, const void* host, size_t bytes) override {
    Put([=, this] { inner_->CopyToDevice(dst, host, bytes); });
  }
  void CopyToHost(void* host, const void* src, size_t bytes) override {
    Put([=, this] { inner_->CopyToHost(host, src, bytes); });
  }
  void Zero(void* dst, size_t bytes) override {
    Put([=, this] { inner_->Zero(dst, bytes); });
  }

  std::unique_ptr<Event> Record() override;
  absl::Status Synchronize() override;

  // The operation enqueued next fails when it runs.
  void FailNext(absl::Status status) { fail_next_ = std::move(status); }

 private:
  template <typename Args>
  void Later(void (Stream::*op)(const Args&), const Args& args) {
    Put([this, op, args] { (inner_.get()->*op)(args); });
  }
  void Put(std::function<void()> operation);

  const std::unique_ptr<Stream> inner_;
  std::vector<std::function<void()>> waiting_;
  absl::Status fail_next_;
  absl::Status error_;  // of the first operation that failed, for good
};

class LateDevice : public Device {
 public:
  explicit LateDevice(std::unique_ptr<Device> inner) : inner_(std::move(inner)) {}

  std::string Name() const override { return "late"; }
  std::string NumericsFingerprint() const override { return inner_->NumericsFingerprint(); }
  bool Supports(OpFamily family) const override { return inner_->Supports(family); }
  bool SupportsWeight(WeightType type) const override { return inner_->SupportsWeight(type); }
  bool SupportsKv(KvType type, int head_dim) const override { return inner_->SupportsKv(type, head_dim); }
  int64_t MemoryBytes() const override { return inner_->MemoryBytes(); }
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(size_t bytes) override { return inner_->Allocate(bytes); }
  absl::StatusOr<std::unique_ptr<PackedWeight>> PackWeight(const WeightSource& source) override {
    return inner_->PackWeight(source);
  }
  size_t PackedWeightBytes(WeightType type, int experts, int rows, int cols) const override {
    return inner_->PackedWeightBytes(type, experts, rows, cols);
  }
  size_t ActivationBytes(ActivationFormat format, int n_rows, int dim) const override {
    return inner_->ActivationBytes(format, n_rows, dim);
  }
  size_t KvPoolBytes(KvType type, int n_pages, int kv_heads, int head_dim) const override {
    return inner_->KvPoolBytes(type, n_pages, kv_heads, head_dim);
  }
  std::unique_ptr<Stream> NewComputeStream() override {
    return std::make_unique<LateStream>(inner_->NewComputeStream());
  }
  std::unique_ptr<Stream> NewCopyStream() override { return std::make_unique<LateStream>(inner_->NewCopyStream()); }

 private:
  const std::unique_ptr<Device> inner_;
};

}  // namespace layover::kernel_test

#endif  // LAYOVER_TESTS_KERNELS_LATE_DEVICE_H_
