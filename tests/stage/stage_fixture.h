// One stage without its process: model, pages, slots, sessions and transfers, driven by the same messages.
#ifndef LAYOVER_TESTS_STAGE_STAGE_FIXTURE_H_
#define LAYOVER_TESTS_STAGE_STAGE_FIXTURE_H_

#include <poll.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/mailbox.h"
#include "stage_worker/step_runner.h"
#include "stage_worker/transfers.h"

namespace layover::testing {

inline constexpr int kPages = 24;  // of each class
inline constexpr int kSlots = 6;
inline constexpr int kStepRows = 256;

class TestStage {
 public:
  TestStage(const GgufFile& file, const ModelShape& shape, int stage, LayerRange layers, KvType kv_type, int threads)
      : TestStage(file, shape, stage, layers, kv_type, *OpenDevice("cpu", {.threads = threads})) {}
  TestStage(const GgufFile& file, const ModelShape& shape, int stage, LayerRange layers, KvType kv_type,
            std::unique_ptr<Device> device)
      : device_(std::move(device)) {
    pages_ =
        *KvPages::Create(*device_, shape, layers, kv_type, {.full = kPages, .window = shape.window > 0 ? kPages : 0});
    states_ = *RecurrentState::Create(*device_, shape, layers, shape.recurrent.conv_taps > 0 ? kSlots : 0);
    const bool first = layers.begin == 0, last = layers.end == shape.n_layers;
    auto model = LoadModel(*device_, file, shape, {pages_.get(), states_.get()},
                           {.layers = layers,
                            .owns_embedding = first,
                            .owns_head = last,
                            .step_rows = kStepRows,
                            .logits_rows = 32,
                            .progress = &progress_});
    LAYOVER_CHECK(model.ok());
    model_ = *std::move(model);
    stream_ = device_->NewComputeStream();
    sessions_ = std::make_unique<SessionTable>(*pages_, *states_, *stream_);
    runner_ = *StepRunner::Create(*device_, *stream_, *model_,
                                  {.n_vocab = shape.n_vocab,
                                   .n_vocab_text = shape.n_vocab,
                                   .step_rows = kStepRows,
                                   .logits_rows = 32,
                                   .context = 64 * kPages,
                                   .owns_head = last,
                                   .has_windows = shape.window > 0,
                                   .has_states = shape.recurrent.conv_taps > 0});
    transfers_ = std::make_unique<Transfers>(*device_, *pages_, *states_, stage, &results_);
    first_ = first;
    last_ = last;
  }

  SessionTable& sessions() { return *sessions_; }
  StepRunner& runner() { return *runner_; }
  Stream& stream() { return *stream_; }
  Transfers& transfers() { return *transfers_; }
  int layers_with_state() const { return static_cast<int>(states_->layers().size()); }
  LayerRange layers() const { return pages_->layers(); }

  // `x`: the residual stream, in from the stage before, out to the one behind.
  std::vector<wire::SliceResult> Step(const wire::Step& step, std::vector<float>* x, int n_embd) {
    for (const wire::StepSlice& slice : step.slices) LAYOVER_CHECK(sessions_->Extend(slice).ok());
    const int n = *runner_->Prepare(step, *sessions_);
    const size_t count = static_cast<size_t>(n) * static_cast<size_t>(n_embd);
    if (!first_) stream_->CopyToDevice(runner_->rows(), x->data(), sizeof(float) * count);
    runner_->Run();
    x->resize(count);
    if (!last_) stream_->CopyToHost(x->data(), runner_->rows(), sizeof(float) * count);
    LAYOVER_CHECK(stream_->Synchronize().ok());
    return last_ ? *runner_->Results(step, *sessions_) : std::vector<wire::SliceResult>();
  }

  // The next receipt; a restored session has been taken in.
  wire::FromStage Receipt() {
    while (true) {
      while (!waiting_.empty()) {
        TransferResult result = std::move(waiting_.front());
        waiting_.pop_front();
        if (std::holds_alternative<wire::TransferTick>(result.message)) continue;
        if (result.restored_session != 0) {
          LAYOVER_CHECK(sessions_->Adopt(result.restored_session, std::move(result.session)).ok());
        }
        return result.message;
      }
      pollfd wait{.fd = results_.fd(), .events = POLLIN, .revents = 0};
      LAYOVER_CHECK(poll(&wait, 1, 60'000) == 1);
      waiting_ = results_.TakeAll();
    }
  }

 private:
  std::atomic<uint64_t> progress_{0};
  std::unique_ptr<Device> device_;
  std::unique_ptr<KvPages> pages_;
  std::unique_ptr<RecurrentState> states_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<SessionTable> sessions_;
  std::unique_ptr<StepRunner> runner_;
  Mailbox<TransferResult> results_;
  std::deque<TransferResult> waiting_;
  std::unique_ptr<Transfers> transfers_;
  bool first_ = false;
  bool last_ = false;
};

// A model on several stages, and sessions whose pages and slots the test numbers itself.
class TestPipeline {
 public:
  // `ends`: where each stage's layers end.
  TestPipeline(const GgufFile& file, const ModelShape& shape, const std::vector<int>& ends, KvType kv_type,
               int threads = 1)
      : shape_(shape) {
    int begin = 0;
    for (const int end : ends) {
      const int index = static_cast<int>(stages_.size());
      stages_.push_back(std::make_unique<TestStage>(file, shape, index, LayerRange{begin, end}, kv_type, threads));
      begin = end;
    }
  }

  bool hybrid() const { return shape_.recurrent.conv_taps > 0; }
  bool windows() const { return shape_.window > 0; }
  std::vector<std::unique_ptr<TestStage>>& stages() { return stages_; }

  // Pages [first_page + j] of both classes, the state in a slot.
  struct Place {
    uint64_t session = 0;
    int32_t first_page = 0;
    int32_t slot = 0;
  };
  std::vector<int32_t> PagesOf(const Place& place, int64_t length) const {
    std::vector<int32_t> pages;
    for (int32_t j = 0; j < (length + 63) / 64; ++j) pages.push_back(place.first_page + j);
    return pages;
  }
  wire::StateAt StateOf(const Place& place, int64_t length) const {
    return {length, hybrid() ? place.slot : -1, windows() ? PagesOf(place, length) : std::vector<int32_t>()};
  }

  // Feeds tokens [begin, end) in one step and gives the digests of their logits rows. The state goes to `to_slot`.
  std::vector<Digest> Feed(Place* place, const std::vector<int32_t>& tokens, int64_t begin, int64_t end,
                           int32_t to_slot) {
    wire::StepSlice slice{.session = place->session, .begin = begin, .wish = wire::RowWish::kReport, .top_logprobs = 1};
    slice.tokens.assign(tokens.begin() + begin, tokens.begin() + end);
    for (int32_t j = static_cast<int32_t>((begin + 63) / 64); j < (end + 63) / 64; ++j) {
      slice.new_pages.push_back(place->first_page + j);
    }
    if (windows()) slice.new_window_pages = slice.new_pages;
    if (hybrid()) {
      slice.state_from = begin == 0 ? -1 : place->slot;
      slice.state_to = place->slot = to_slot;
    }
    std::vector<float> x;
    std::vector<wire::SliceResult> results;
    for (auto& stage : stages_) results = stage->Step({{slice}}, &x, shape_.n_embd);
    std::vector<Digest> rows;
    for (const wire::RowReport& row : results.at(0).rows) rows.push_back(row.digest);
    return rows;
  }

 private:
  const ModelShape shape_;
  std::vector<std::unique_ptr<TestStage>> stages_;
};

}  // namespace layover::testing

#endif  // LAYOVER_TESTS_STAGE_STAGE_FIXTURE_H_
