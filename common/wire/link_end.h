// The links between stages, as the coordinator hands them out: where each end is, and what a frame begins with.
#ifndef LAYOVER_COMMON_WIRE_LINK_END_H_
#define LAYOVER_COMMON_WIRE_LINK_END_H_

#include <cstdint>
#include <string>

namespace layover::wire {

// One end of a hop between stages. An endpoint that begins with tcp://*: is bound on the address that the worker's machine
// was told to listen on. With keys (Z85) the end that binds is the CURVE server.
struct DataEnd {
  std::string endpoint;            // empty: there is no such hop
  bool binds = false;
  std::string own_secret;
  std::string peer_public;
};

// One end of a link over which a stage reads records from segments on another machine (common/segment_link).
struct FileEnd {
  DataEnd end;
  bool serves = false;             // this stage answers for its machine; else it asks for what `host` keeps
  std::string host;                // of a remote stage; empty: the coordinator's machine
};

// The header of an activation frame on the data link; the payload [n_rows, dim] float32 follows as a second part.
struct FrameHeader {
  uint32_t magic = 0x4d52464c;          // "LFRM"
  uint32_t epoch = 0;
  uint64_t seq = 0;
  uint32_t n_rows = 0;
  uint32_t dim = 0;
};
static_assert(sizeof(FrameHeader) == 24);

}  // namespace layover::wire

#endif  // LAYOVER_COMMON_WIRE_LINK_END_H_
