// The products of cuBLAS that prefill is divided by.
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/status.h"
#include "kernels/float16.h"
#include "tests/gpu/card_measures.h"

namespace layover::gpu {
namespace {

// The queue goes before the memory that it uses, and cuBLAS before the queue.
struct CublasWork {
  std::unique_ptr<DeviceBuffer> w, x, out;
  std::unique_ptr<Queue> queue;
  std::unique_ptr<Cublas> cublas;
  Cublas::Product product;
};

}  // namespace

absl::Status CardMeasures::AddCublas() {
  const std::unique_ptr<Queue> queue = NewQueue(0);
  const auto cublas = Cublas::Open(queue.get());
  if (!cublas.ok()) {
    cublas_facts_["absent"] = std::string(cublas.status().message());
    return absl::OkStatus();
  }
  cublas_facts_["version"] = (*cublas)->Version();
  RETURN_IF_ERROR(AddCublasKind(Cublas::Kind::kInt8));
  return AddCublasKind(Cublas::Kind::kF16);
}

// A product that cuBLAS does not have here is a fact, a wrong one a failure.
absl::Status CardMeasures::AddCublasKind(Cublas::Kind kind) {
  const bool integers = kind == Cublas::Kind::kInt8;
  const char* const name = integers ? "int8" : "f16";
  const Cublas::Shape shape{sizes_.prefill_rows, sizes_.n_out, sizes_.cols};
  const size_t in = integers ? 1 : 2, out = integers ? 4 : 2;
  const size_t w_bytes = static_cast<size_t>(shape.n_out) * static_cast<size_t>(shape.cols) * in;
  const size_t x_bytes = static_cast<size_t>(shape.rows) * static_cast<size_t>(shape.cols) * in;
  const auto work = std::make_shared<CublasWork>();
  ASSIGN_OR_RETURN(work->w, device_.Allocate(w_bytes));
  ASSIGN_OR_RETURN(work->x, device_.Allocate(x_bytes));
  ASSIGN_OR_RETURN(work->out,
                   device_.Allocate(static_cast<size_t>(shape.rows) * static_cast<size_t>(shape.n_out) * out));
  work->queue = NewQueue(0);
  ASSIGN_OR_RETURN(work->cublas, Cublas::Open(work->queue.get()));
  work->product = {kind, shape, work->w->data(), work->x->data(), work->out->data()};

  // Of equal values every output is known: the last one tells whether it is this product that is timed.
  const uint8_t byte = integers ? 1 : 0x3c;
  const float value = integers ? 1.0f : HalfToFloat(0x3c3c), want = value * value * static_cast<float>(shape.cols);
  work->queue->Fill(work->w->data(), byte, w_bytes);
  work->queue->Fill(work->x->data(), byte, x_bytes);
  if (const absl::Status status = work->cublas->Multiply(work->product); !status.ok()) {
    cublas_facts_[name] = std::string(status.message());
    return absl::OkStatus();
  }
  uint32_t last = 0;
  work->queue->CopyToHost(&last, work->out->As<uint8_t>() + work->out->bytes() - out, out);
  RETURN_IF_ERROR(work->queue->Synchronize());
  const float got =
      integers ? static_cast<float>(static_cast<int32_t>(last)) : HalfToFloat(static_cast<uint16_t>(last));
  if (!(std::abs(got - want) <= 0.01f * want)) return Internal("cuBLAS's {} product gives {}, not {}", name, got, want);

  // Timed with random values, as equal ones would draw less power: int8 of any size, halves of magnitude 0.5 to 1.
  std::mt19937 random(3);
  for (DeviceBuffer* buffer : {work->w.get(), work->x.get()}) {
    std::vector<uint32_t> words(buffer->bytes() / sizeof(uint32_t));
    for (uint32_t& word : words) word = integers ? random() : (random() & 0x83ff83ffu) | 0x38003800u;
    work->queue->CopyToDevice(buffer->data(), words.data(), buffer->bytes());
    RETURN_IF_ERROR(work->queue->Synchronize());
  }
  measures_.push_back(
      {.what =
           {{"group", "cublas"}, {"kind", name}, {"rows", shape.rows}, {"n_out", shape.n_out}, {"cols", shape.cols}},
       .amount = 2.0 * shape.rows * shape.n_out * shape.cols,
       .unit = 1e12,
       .run = [work](int times) -> absl::Status {
         for (int i = 0; i < times; ++i) RETURN_IF_ERROR(work->cublas->Multiply(work->product));
         return work->queue->Synchronize();
       }});
  return absl::OkStatus();
}

}  // namespace layover::gpu
