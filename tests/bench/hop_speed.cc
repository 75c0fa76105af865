// What a hop between two stages of one machine costs: shm against zmq, as the workers use them (copy out of the
// sender's device, wake the receiver, copy into its own). Two processes send one frame to and fro; half a round trip is
// a hop.
//
//   hop_speed [--rounds 2000]
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/check.h"
#include "common/wire/hop_ring.h"
#include "stage_worker/links/data_link.h"

namespace layover {
namespace {

struct Size {
  const char* what;
  int n_rows;
  int dim;
};

// The two ends of a process: one hop out, one in.
struct Ends {
  std::unique_ptr<DataSender> out;
  std::unique_ptr<DataReceiver> in;
};

struct Hops {
  std::unique_ptr<wire::HopRing> there, back;
  std::string folder;
};

Ends OpenEnds(const Hops& hops, bool shm, bool first, Device& device, wire::SocketContext& context) {
  Ends ends;
  const uint32_t out = first ? 1 : 2, in = first ? 2 : 1;
  if (shm) {
    ends.out = MakeShmSender(device, out);
    ends.in = MakeShmReceiver(device, in);
  } else {
    const auto end = [&](uint32_t hop, bool binds) {
      return wire::DataEnd{.endpoint = "ipc://" + hops.folder + "/" + std::to_string(hop), .binds = binds};
    };
    ends.in = *OpenZmqReceiver(context, end(in, true));
    ends.out = *OpenZmqSender(context, end(out, false));
  }
  ends.out->Renew(1, (first ? hops.there : hops.back)->address());
  ends.in->Renew(1, (first ? hops.back : hops.there)->address());
  return ends;
}

// Microseconds of each round. The first process sends first.
std::vector<double> Play(const Hops& hops, bool shm, bool first, const Size& size, int rounds) {
  wire::SocketContext context;
  const auto device = *OpenDevice("cpu", {});
  const auto stream = device->NewComputeStream();
  const Ends ends = OpenEnds(hops, shm, first, *device, context);
  std::vector<float> rows(static_cast<size_t>(size.n_rows) * static_cast<size_t>(size.dim), 1.0f);
  std::vector<double> times;
  const auto send = [&](uint64_t seq) {
    const wire::FrameHeader header{
        .epoch = 1, .seq = seq, .n_rows = static_cast<uint32_t>(size.n_rows), .dim = static_cast<uint32_t>(size.dim)};
    LAYOVER_CHECK(ends.out->Send(header, rows.data(), *stream).ok());
  };
  const auto receive = [&](uint64_t seq) {
    while (!ends.in->Has(seq)) {
      std::vector<wire::PollItem> items;
      const bool wait = ends.in->BeginWait(&items);
      LAYOVER_CHECK(wire::Poll(items, wait ? -1 : 0).ok() && ends.in->Drain().ok());
    }
    LAYOVER_CHECK(ends.in->Take({seq, size.n_rows, size.dim}, rows.data(), *stream).ok() && stream->Synchronize().ok());
  };
  for (int round = 1; round <= rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    if (first) send(static_cast<uint64_t>(round));
    receive(static_cast<uint64_t>(round));
    if (!first) send(static_cast<uint64_t>(round));
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  // What was sent last leaves from ZeroMQ's own thread, if the socket lives so long.
  if (!first) usleep(200'000);
  return times;
}

void Measure(const std::string& folder, bool shm, const Size& size, int rounds) {
  Hops hops{.folder = folder};
  const uint64_t bytes = sizeof(float) * static_cast<uint64_t>(size.n_rows) * static_cast<uint64_t>(size.dim);
  hops.there = *wire::HopRing::Create({.hop = 1, .epoch = 1, .n_slots = 3, .slot_bytes = bytes});
  hops.back = *wire::HopRing::Create({.hop = 2, .epoch = 1, .n_slots = 3, .slot_bytes = bytes});
  const pid_t child = fork();
  if (child == 0) {
    Play(hops, shm, false, size, rounds);
    _exit(0);
  }
  std::vector<double> times = Play(hops, shm, true, size, rounds);
  waitpid(child, nullptr, 0);
  std::sort(times.begin(), times.end());
  const auto hop = [&](double part) {
    return times[static_cast<size_t>(part * static_cast<double>(times.size() - 1))] / 2;
  };
  std::printf("%-28s %-5s %10.1f %10.1f\n", size.what, shm ? "shm" : "zmq", hop(0.5), hop(0.99));
}

}  // namespace
}  // namespace layover

int main(int argc, char** argv) {
  int rounds = 2000;
  CLI::App app("What a hop between two stages of one machine costs: shm against zmq.");
  app.add_option("--rounds", rounds, "round trips of each measurement")->check(CLI::Range(10, 1'000'000));
  CLI11_PARSE(app, argc, argv);
  char folder[] = "/tmp/layover-hops-XXXXXX";
  LAYOVER_CHECK(mkdtemp(folder) != nullptr);
  std::printf("%-28s %-5s %10s %10s\n", "microseconds a hop", "link", "median", "99 %");
  for (const layover::Size& size :
       {layover::Size{"decode, 1 row of 5120", 1, 5120}, layover::Size{"decode, 8 rows of 5120", 8, 5120},
        layover::Size{"prefill, 512 rows of 5120", 512, 5120}}) {
    for (const bool shm : {true, false}) layover::Measure(folder, shm, size, size.n_rows > 100 ? rounds / 10 : rounds);
  }
  std::filesystem::remove_all(folder);
}
