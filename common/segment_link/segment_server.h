// Lets other machines read the segments of this one: a thread that answers segment links (segment_link.h).
#ifndef LAYOVER_COMMON_SEGMENT_LINK_SEGMENT_SERVER_H_
#define LAYOVER_COMMON_SEGMENT_LINK_SEGMENT_SERVER_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/messages.h"
#include "common/wire/socket.h"

namespace layover {

class SegmentServer {
 public:
  // Answers on all of `ends` from what lies below store/c. The context outlives it.
  static absl::StatusOr<std::unique_ptr<SegmentServer>> Start(wire::SocketContext& context,
                                                              const std::vector<wire::FileEnd>& ends,
                                                              const std::string& store);
  ~SegmentServer();

 private:
  explicit SegmentServer(std::string store) : store_(std::move(store)) {}
  void Loop();
  absl::Status AnswerAll(wire::Socket& socket) const;

  const std::string store_;
  std::vector<std::unique_ptr<wire::Socket>> sockets_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace layover

#endif  // LAYOVER_COMMON_SEGMENT_LINK_SEGMENT_SERVER_H_
