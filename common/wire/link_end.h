// The links between stages, as the coordinator hands them out: where each end is, how ends meet, and what a frame begins
// with.
#ifndef LAYOVER_COMMON_WIRE_LINK_END_H_
#define LAYOVER_COMMON_WIRE_LINK_END_H_

#include <cstdint>
#include <string>

namespace layover::wire {

// One end of a hop over zmq. An endpoint that begins with tcp://*: is bound on the address that the worker's machine
// was told to listen on. With keys (Z85) the end that binds is the CURVE server.
struct DataEnd {
  std::string endpoint;            // empty: there is no such hop
  bool binds = false;
  std::string own_secret;
  std::string peer_public;
};

// Where a hop's ring is to be opened (common/wire/hop_ring.h): shm's memory, and what wakes and ends the waits of nccl.
struct RingAddress {
  std::string memory;              // paths; empty: the hop has no ring
  std::string bell_read;
  std::string bell_write;
};

// How the ends of an nccl hop meet, in each epoch. From its sender, with the id that the stage after is to be told:
struct HopOffered {
  int32_t stage = 0;
  std::string peer_id;
};

// To its receiver; both ends make their communicator with the id.
struct JoinHop {
  std::string peer_id;
};

// From either end: it is connected. Steps come when all are.
struct HopJoined {
  int32_t stage = 0;
  bool inward = false;             // the hop from the stage before, else the one to the stage after
};

// One end of a link over which a stage reads records from segments on another machine (common/segment_link).
struct FileEnd {
  DataEnd end;
  bool serves = false;             // this stage answers for its machine; else it asks for what `host` keeps
  std::string host;                // of a remote stage; empty: the coordinator's machine
};

// What a hop begins with on every link; its payload is [n_rows, dim] float32.
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
