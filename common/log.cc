#include "common/log.h"

#include <cstdlib>
#include <memory>

#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace layover {

void InitLog(std::string_view program) {
  auto logger = std::make_shared<spdlog::logger>(std::string(program), std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %n: %v");
  logger->flush_on(spdlog::level::debug);
  const char* wanted = std::getenv("LAYOVER_LOG");
  logger->set_level(spdlog::level::from_str(wanted != nullptr ? wanted : "info"));
  spdlog::set_default_logger(std::move(logger));
}

void WriteLog(LogLevel level, std::string_view text) {
  static constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                                          spdlog::level::err};
  spdlog::default_logger_raw()->log(kLevels[static_cast<int>(level)], spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace layover
