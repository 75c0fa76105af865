// The two clocks of the engine: the wall clock for what people read, the steady one for order and durations.
#ifndef LAYOVER_COORDINATOR_CLOCKS_H_
#define LAYOVER_COORDINATOR_CLOCKS_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>

namespace layover {

inline int64_t UnixMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}
inline int64_t UnixSeconds() { return UnixMs() / 1000; }
inline int64_t SteadyMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
inline double MsBetween(std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}
inline int64_t MsSince(std::chrono::steady_clock::time_point start) {
  return static_cast<int64_t>(MsBetween(start, std::chrono::steady_clock::now()));
}

// How long silence is borne: so long, or less where a test says so (LAYOVER_SILENT_MS).
inline std::chrono::milliseconds BoundOfSilence(int limit_ms) {
  static const char* const lower = std::getenv("LAYOVER_SILENT_MS");
  return std::chrono::milliseconds(lower == nullptr ? limit_ms : std::clamp(std::atoi(lower), 1, limit_ms));
}

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_CLOCKS_H_
