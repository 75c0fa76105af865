// Counters, gauges and histograms of the whole server, in front of prometheus-cpp so that only metrics.cc pays for it.
// Every method may be called from any thread and never blocks for long. Counters only rise; every series that can be
// named beforehand exists from the start at zero. No conversation id is ever a label.
#ifndef LAYOVER_COORDINATOR_METRICS_H_
#define LAYOVER_COORDINATOR_METRICS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "coordinator/service.h"

namespace layover {

enum class RequestPhase { kQueued, kPrefill, kDecode };  // where a request was when its client went away
enum class TransferResult { kOk, kRefused, kFailed };    // refused: identity or damage (restores only)
enum class StateTier { kDevice, kHost, kDisk };

class Metrics {
 public:
  explicit Metrics(int n_stages);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // The text of GET /metrics (Prometheus exposition format 0.0.4).
  std::string Serialize() const;

  // --- Requests. The engine sets the two gauges and reports ends.
  void SetRequestsRunning(int64_t count);
  void SetRequestsQueued(int64_t count);
  void RequestStarted();
  void RequestCancelled(RequestPhase phase);
  // A generation that came to its end: its tokens by where they came from, and its queue, prefill and decode times.
  void RequestFinished(const Timings& timings);
  void ObserveFirstToken(double seconds);  // from arrival to the first token
  void ObserveInterToken(double seconds);  // between two tokens of one request
  // `route` is a pattern such as "/v1/kv/conversations/{id}", never a path that a client chose.
  void HttpRequestDone(std::string_view route, int status);

  // --- State on disk and in memory.
  void AddStageReadBytes(int stage, int64_t bytes);
  void AddStageWrittenBytes(int stage, int64_t bytes);
  // How far a save or restore in flight has come, as the engine numbers them; told again whenever it moves. The gauges
  // are sums over all that have not ended.
  void TransferMoved(uint64_t number, const TransferProgress& progress);
  void TransferEnded(uint64_t number);
  void SaveDone(TransferResult result, double seconds);
  void RestoreDone(TransferResult result, double seconds);
  void Evicted(StateTier tier);
  void SetConversations(ConversationState state, int64_t count);
  void SetConversationBytes(StateTier tier, int64_t bytes);
  void SetStoreBytes(int64_t bytes);
  void JournalError();

  // --- Stages.
  void StageRestarted(int stage);

 private:
  struct Series;
  std::unique_ptr<Series> series_;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_METRICS_H_
