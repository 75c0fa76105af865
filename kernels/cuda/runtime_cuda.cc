// runtime.h over NVIDIA's runtime, linked statically: the plug-in loads on a machine without a driver and says so.
#include <cuda_runtime.h>

#include <utility>

#include "common/log.h"
#include "common/status.h"
#include "kernels/cuda/runtime.h"

namespace layover::gpu {
namespace {

absl::Status Failure(std::string_view what, cudaError_t error) {
  return Internal("{}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

class CudaEvent : public QueueEvent {
 public:
  explicit CudaEvent(cudaStream_t stream) {
    error_ = cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
    if (error_ == cudaSuccess) error_ = cudaEventRecord(event_, stream);
  }
  ~CudaEvent() override {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  // After an error nothing is waited for any more: the queue's Synchronize tells.
  bool Done() const override { return error_ != cudaSuccess || cudaEventQuery(event_) != cudaErrorNotReady; }
  cudaEvent_t event() const { return event_; }
  cudaError_t error() const { return error_; }

 private:
  cudaEvent_t event_ = nullptr;
  cudaError_t error_ = cudaSuccess;
};

class CudaQueue;

class CudaGraph : public QueueGraph {
 public:
  CudaGraph(CudaQueue& queue, cudaGraphExec_t graph) : queue_(queue), graph_(graph) {}
  // One that runs is freed when it has.
  ~CudaGraph() override { cudaGraphExecDestroy(graph_); }
  void Launch() override;

 private:
  CudaQueue& queue_;
  const cudaGraphExec_t graph_;
};

class CudaQueue : public Queue {
 public:
  CudaQueue(int card, QueueRank rank) : card_(card) {
    UseCard(card_);
    // A card without priorities says 0 to both.
    int least = 0, greatest = 0;
    Note("cudaDeviceGetStreamPriorityRange", cudaDeviceGetStreamPriorityRange(&least, &greatest));
    const int priority = rank == QueueRank::kAhead ? greatest : least;
    Note("cudaStreamCreate", cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority));
  }
  ~CudaQueue() override {
    if (stream_ == nullptr) return;
    UseCard(card_);
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }

  void CopyToDevice(void* device, const void* host, size_t bytes) override {
    if (Refused("a copy to the card")) return;
    Note("copy to the card", cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_));
  }
  void CopyToHost(void* host, const void* device, size_t bytes) override {
    if (Refused("a copy to the host")) return;
    Note("copy to the host", cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_));
  }
  void CopyOnDevice(void* to, const void* from, size_t bytes) override {
    Note("copy on the card", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_));
  }
  void Fill(void* device, uint8_t byte, size_t bytes) override {
    Note("fill", cudaMemsetAsync(device, byte, bytes, stream_));
  }
  std::unique_ptr<QueueEvent> Record() override {
    (void)Refused("an event");
    return std::make_unique<CudaEvent>(stream_);
  }
  void WaitFor(const QueueEvent& event) override {
    if (Refused("another queue's event")) return;
    const auto& other = static_cast<const CudaEvent&>(event);
    Note("an event", other.error());
    if (other.error() == cudaSuccess) Note("waiting for an event", cudaStreamWaitEvent(stream_, other.event(), 0));
  }
  absl::Status Synchronize() override {
    if (!Refused("waiting")) Note("a kernel or copy", cudaStreamSynchronize(stream_));
    return status_;
  }

  absl::Status BeginCapture() override {
    // Other threads allocate and copy meanwhile.
    const cudaError_t error = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess) return Failure("cudaStreamBeginCapture", error);
    capturing_ = true;
    capture_status_ = absl::OkStatus();
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<QueueGraph>> EndCapture() override;

  // What goes wrong in a capture spoils that, not the queue.
  void Note(std::string_view what, cudaError_t error) {
    absl::Status& status = capturing_ ? capture_status_ : status_;
    if (error != cudaSuccess && status.ok()) status = Failure(what, error);
  }
  cudaStream_t stream() const { return stream_; }

 private:
  bool Refused(std::string_view what) {
    if (capturing_ && capture_status_.ok()) capture_status_ = Internal("{} in a graph", what);
    return capturing_;
  }

  const int card_;
  cudaStream_t stream_ = nullptr;
  absl::Status status_;
  bool capturing_ = false;
  absl::Status capture_status_;
};

absl::StatusOr<std::unique_ptr<QueueGraph>> CudaQueue::EndCapture() {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  Note("cudaStreamEndCapture", cudaStreamEndCapture(stream_, &graph));
  if (capture_status_.ok()) Note("cudaGraphInstantiate", cudaGraphInstantiate(&executable, graph, 0));
  // Here, so that a card without room for it says so now.
  if (capture_status_.ok()) Note("cudaGraphUpload", cudaGraphUpload(executable, stream_));
  capturing_ = false;
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (capture_status_.ok()) return std::make_unique<CudaGraph>(*this, executable);
  cudaGetLastError();  // not sticky: the kernels can be started one by one
  if (executable != nullptr) cudaGraphExecDestroy(executable);
  return capture_status_;
}

void CudaGraph::Launch() {
  queue_.Note("a graph", cudaGraphLaunch(graph_, queue_.stream()));
}

}  // namespace

CUstream_st* CudaStream(Queue* queue) {
  return static_cast<CudaQueue*>(queue)->stream();
}
void NoteLaunchError(Queue* queue, const char* kernel, int error) {
  static_cast<CudaQueue*>(queue)->Note(kernel, static_cast<cudaError_t>(error));
}

absl::StatusOr<CardInfo> OpenCard(int index) {
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted == cudaErrorInsufficientDriver) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    if (driver == 0) return Unavailable("this machine has no NVIDIA driver");
    return Unavailable("the NVIDIA driver serves CUDA {}.{}, this build needs {}.{}", driver / 1000, driver % 1000 / 10,
                       CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  }
  if (counted != cudaSuccess) return Unavailable("{}", cudaGetErrorString(counted));
  if (index >= count) return Unavailable("this machine has {} NVIDIA cards, numbered from 0", count);
  cudaDeviceProp properties;
  cudaError_t error = cudaSetDevice(index);
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, index);
  if (error != cudaSuccess) return Unavailable("{}", cudaGetErrorString(error));
  if (properties.major < 8) {
    return Unavailable("{} is of compute capability {}.{}; the kernels need 8.0", properties.name, properties.major,
                       properties.minor);
  }
  return CardInfo{properties.name, fmt::format("sm_{}{}", properties.major, properties.minor),
                  properties.multiProcessorCount, properties.sharedMemPerBlockOptin,
                  static_cast<int64_t>(properties.totalGlobalMem)};
}

void UseCard(int index) {
  // The index was good when the card was opened; what fails later shows at the next operation.
  (void)cudaSetDevice(index);
}

absl::StatusOr<void*> AllocateOnDevice(int card, size_t bytes) {
  UseCard(card);
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes > 0 ? bytes : 1);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // this one is not sticky
    return ResourceExhausted("cuda:{}: no memory on the card for {} bytes", card, bytes);
  }
  if (error != cudaSuccess) return Failure("cudaMalloc", error);
  return memory;
}

void FreeOnDevice(int card, void* memory) {
  UseCard(card);
  cudaFree(memory);
}

bool PinHostMemory(int card, void* memory, size_t bytes) {
  UseCard(card);
  const cudaError_t error = cudaHostRegister(memory, bytes, cudaHostRegisterPortable);
  if (error == cudaSuccess) return true;
  cudaGetLastError();  // not sticky: a limit on locked memory is no reason to stop
  LogWarning("cuda:{}: {} bytes of host memory stay pageable: {}", card, bytes, cudaGetErrorString(error));
  return false;
}

void UnpinHostMemory(int card, void* memory) {
  UseCard(card);
  cudaHostUnregister(memory);
}

std::unique_ptr<Queue> NewQueue(int card, QueueRank rank) {
  return std::make_unique<CudaQueue>(card, rank);
}

const char* BackEndKind() {
  return "cuda";
}

}  // namespace layover::gpu
