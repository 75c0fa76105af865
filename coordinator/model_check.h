// Whether a stage on another machine opened the same model. Its layers' digests alone would only say what it loaded; so
// the coordinator reads the same layers of its own file, on a thread of its own, and compares.
#ifndef LAYOVER_COORDINATOR_MODEL_CHECK_H_
#define LAYOVER_COORDINATOR_MODEL_CHECK_H_

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/digest.h"
#include "common/gguf/reader.h"
#include "common/plan/stage_plan.h"
#include "common/wire/messages.h"

namespace layover {

class ModelCheck {
 public:
  // Begins to read the layers of these stages.
  ModelCheck(const std::string& model, std::vector<StagePlan> stages);
  ~ModelCheck();

  // Nothing while the file is still being read. FailedPrecondition: what the stage opened differs, and in what.
  std::optional<absl::Status> Judge(const wire::Ready& ready) const;

 private:
  struct Known {
    absl::Status status;
    Digest arch;
    Digest rope;
    std::map<int, Digest> weights;  // layer; -1 embedding, -2 head, as in Ready
  };
  Known Read(const std::string& model) const;

  const std::vector<StagePlan> stages_;
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  std::optional<Known> known_;  // guarded by mutex_; constant once there
  std::thread thread_;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_MODEL_CHECK_H_
