// A strict view of one YAML mapping: every key known and given once, every value of the wanted kind, every error with
// its line. It closes yaml-cpp's traps: duplicate keys (the first wins there) and numbers such as 010 (8 there).
#ifndef LAYOVER_COMMON_YAML_MAP_H_
#define LAYOVER_COMMON_YAML_MAP_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/status.h"
#include "yaml-cpp/yaml.h"

namespace layover {

class YamlMap {
 public:
  // `what` names the mapping in messages ("stage 1"); `keys` are those allowed.
  static absl::StatusOr<YamlMap> Make(const YAML::Node& node, const std::string& file, const std::string& what,
                                      std::vector<std::string_view> keys);
  // The one document of `text`, as a mapping.
  static absl::StatusOr<YamlMap> Parse(std::string_view text, const std::string& file, const std::string& what,
                                       std::vector<std::string_view> keys);

  bool Has(std::string_view key) const;
  int line() const { return line_; }
  int LineOf(std::string_view key) const;
  YAML::Node Get(std::string_view key) const;  // the key is there

  // Each leaves `*value` alone when the key is absent.
  absl::Status String(std::string_view key, std::string* value) const;
  absl::Status Int(std::string_view key, int low, int high, int* value) const;
  absl::Status Bool(std::string_view key, bool* value) const;
  absl::Status Strings(std::string_view key, std::vector<std::string>* value) const;

  // `FILE:LINE: KEY: text`.
  template <typename... Args>
  absl::Status Error(std::string_view key, fmt::format_string<Args...> format, Args&&... args) const {
    return InvalidArgument("{}:{}: {}: {}", file_, LineOf(key), key, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  struct Entry {
    std::string key;
    int line = 0;
    YAML::Node value;
  };
  const Entry* Find(std::string_view key) const;

  std::string file_;
  int line_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace layover

#endif  // LAYOVER_COMMON_YAML_MAP_H_
