#include "common/yaml_map.h"

#include <algorithm>

#include "common/check.h"

namespace layover {
namespace {

int LineOfNode(const YAML::Node& node) {
  return node.Mark().line + 1;
}

std::string Join(const std::vector<std::string_view>& words) {
  std::string text;
  for (const std::string_view word : words) text += fmt::format("{}{}", text.empty() ? "" : ", ", word);
  return text;
}

}  // namespace

absl::StatusOr<YamlMap> YamlMap::Make(const YAML::Node& node, const std::string& file, const std::string& what,
                                      std::vector<std::string_view> keys) {
  YamlMap map;
  map.file_ = file;
  map.line_ = LineOfNode(node);
  if (!node.IsMap()) {
    return InvalidArgument("{}:{}: {} must be a mapping with the keys {}", file, map.line_, what, Join(keys));
  }
  for (const auto& pair : node) {
    const int line = LineOfNode(pair.first);
    if (!pair.first.IsScalar()) return InvalidArgument("{}:{}: {} has a key that is not a word", file, line, what);
    const std::string& key = pair.first.Scalar();
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      return InvalidArgument("{}:{}: unknown key '{}' in {}, allowed are {}", file, line, key.substr(0, 60), what,
                             Join(keys));
    }
    if (const Entry* earlier = map.Find(key); earlier != nullptr) {
      return InvalidArgument("{}:{}: '{}' stands twice in {} (first on line {})", file, line, key, what, earlier->line);
    }
    if (pair.second.IsNull()) return InvalidArgument("{}:{}: '{}' has no value", file, line, key);
    map.entries_.push_back({key, line, pair.second});
  }
  return map;
}

absl::StatusOr<YamlMap> YamlMap::Parse(std::string_view text, const std::string& file, const std::string& what,
                                       std::vector<std::string_view> keys) {
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(std::string(text));
    if (documents.size() != 1) {
      return InvalidArgument("{}:1: there must be one YAML document, here are {}", file, documents.size());
    }
    return Make(documents[0], file, what, std::move(keys));
  } catch (const YAML::Exception& error) {
    return InvalidArgument("{}:{}: {}", file, error.mark.line + 1, error.msg);
  }
}

const YamlMap::Entry* YamlMap::Find(std::string_view key) const {
  for (const Entry& entry : entries_) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}

bool YamlMap::Has(std::string_view key) const {
  return Find(key) != nullptr;
}

int YamlMap::LineOf(std::string_view key) const {
  const Entry* entry = Find(key);
  return entry != nullptr ? entry->line : line_;
}

YAML::Node YamlMap::Get(std::string_view key) const {
  const Entry* entry = Find(key);
  LAYOVER_CHECK(entry != nullptr);
  return entry->value;
}

absl::Status YamlMap::String(std::string_view key, std::string* value) const {
  const Entry* entry = Find(key);
  if (entry == nullptr) return absl::OkStatus();
  if (!entry->value.IsScalar() || entry->value.Scalar().empty()) return Error(key, "must be a text that is not empty");
  *value = entry->value.Scalar();
  return absl::OkStatus();
}

absl::Status YamlMap::Int(std::string_view key, int low, int high, int* value) const {
  if (!Has(key)) return absl::OkStatus();
  std::string text;
  RETURN_IF_ERROR(String(key, &text));
  const bool digits = std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (digits && text.size() > 1 && text[0] == '0') {
    return Error(key, "'{}' has a leading zero, which YAML may read as octal; write a plain decimal number", text);
  }
  if (!digits || text.size() > 9 || std::stoi(text) < low || std::stoi(text) > high) {
    return Error(key, "'{}' is not a whole number from {} to {}", text.substr(0, 40), low, high);
  }
  *value = std::stoi(text);
  return absl::OkStatus();
}

absl::Status YamlMap::Bool(std::string_view key, bool* value) const {
  if (!Has(key)) return absl::OkStatus();
  std::string text;
  RETURN_IF_ERROR(String(key, &text));
  if (text != "true" && text != "false") return Error(key, "'{}' is neither true nor false", text.substr(0, 40));
  *value = text == "true";
  return absl::OkStatus();
}

absl::Status YamlMap::Strings(std::string_view key, std::vector<std::string>* value) const {
  const Entry* entry = Find(key);
  if (entry == nullptr) return absl::OkStatus();
  if (!entry->value.IsSequence()) return Error(key, "must be a list: [a, b]");
  value->clear();
  for (const YAML::Node& element : entry->value) {
    if (!element.IsScalar() || element.Scalar().empty()) return Error(key, "its elements must be texts, none empty");
    value->push_back(element.Scalar());
  }
  return absl::OkStatus();
}

}  // namespace layover
