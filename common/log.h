// Logging, in front of spdlog so that only log.cc pays for its headers. One line per event, on stderr.
// Never the text of a conversation, never a key: ids, counts, times and reasons.
#ifndef LAYOVER_COMMON_LOG_H_
#define LAYOVER_COMMON_LOG_H_

#include <string>
#include <string_view>
#include <utility>

#include "fmt/core.h"

namespace layover {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// `program` stands in every line ("layover", "stage-1"). LAYOVER_LOG=debug|info|warning|error sets the level.
void InitLog(std::string_view program);
void WriteLog(LogLevel level, std::string_view text);

template <typename... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  WriteLog(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  WriteLog(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  WriteLog(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  WriteLog(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace layover

#endif  // LAYOVER_COMMON_LOG_H_
