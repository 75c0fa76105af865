#include "coordinator/text/request_json.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/check.h"
#include "common/limits.h"
#include "common/status.h"
#include "coordinator/text/utf8.h"
#include "fmt/core.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using Json = nlohmann::ordered_json;

// Builds the value from the parser's events.
class Builder : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(number_integer_t value) override { return Put(value); }
  bool number_unsigned(number_unsigned_t value) override { return Put(value); }
  bool number_float(number_float_t value, const string_t& digits) override {
    if (digits.find_first_of(".eE") != std::string::npos) return Put(value);
    return Put(Json::binary(std::vector<uint8_t>(digits.begin(), digits.end())));
  }
  bool string(string_t& value) override { return Put(std::move(value)); }
  bool binary(binary_t&) override { return Fail("binary values are not JSON"); }
  bool start_object(size_t) override { return Open(Json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    open_.back().key = std::move(name);
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    const std::string_view what = error.what();
    const size_t begin = what.find("] ");  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    return Fail(std::string(begin == std::string_view::npos ? what : what.substr(begin + 2)));
  }

  Json TakeRoot() { return std::move(root_); }
  const std::string& error() const { return error_; }

 private:
  struct Container {
    Json* value;
    std::string key;                                 // of the member that comes next
    absl::flat_hash_map<std::string, size_t> index;  // object: key to its place; ordered_json itself searches
  };

  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }

  Json* Add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Container& container = open_.back();
    if (container.value->is_array()) {
      auto& array = container.value->get_ref<Json::array_t&>();
      array.push_back(std::move(value));
      return &array.back();
    }
    auto& members = container.value->get_ref<Json::object_t&>();
    const auto [it, is_new] = container.index.emplace(container.key, members.size());
    if (is_new) {
      members.emplace_back(container.key, std::move(value));
    } else {
      (members.begin() + static_cast<ptrdiff_t>(it->second))->second = std::move(value);
    }
    return &(members.begin() + static_cast<ptrdiff_t>(it->second))->second;
  }

  bool Put(Json value) {
    Add(std::move(value));
    return true;
  }

  bool Open(Json empty) {
    if (open_.size() == static_cast<size_t>(limits::kMaxJsonDepth)) {
      return Fail(fmt::format("nested deeper than {}", limits::kMaxJsonDepth));
    }
    Json* value = Add(std::move(empty));
    open_.push_back({value, {}, {}});
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Container> open_;
  std::string error_;
};

void DumpString(std::string_view text, std::string* out) {
  if (!IsValidUtf8(text)) return DumpString(ToValidUtf8(text), out);
  out->push_back('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      *out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

void DumpTo(const Json& value, int depth, std::string* out) {
  LAYOVER_CHECK(depth <= 2 * limits::kMaxJsonDepth);
  const char* separator = "";
  switch (value.type()) {
    case Json::value_t::object:
      out->push_back('{');
      for (const auto& [key, member] : value.get_ref<const Json::object_t&>()) {
        *out += separator;
        DumpString(key, out);
        out->push_back(':');
        DumpTo(member, depth + 1, out);
        separator = ",";
      }
      out->push_back('}');
      break;
    case Json::value_t::array:
      out->push_back('[');
      for (const Json& element : value) {
        *out += separator;
        DumpTo(element, depth + 1, out);
        separator = ",";
      }
      out->push_back(']');
      break;
    case Json::value_t::string:
      DumpString(value.get_ref<const std::string&>(), out);
      break;
    case Json::value_t::binary:
      out->append(value.get_binary().begin(), value.get_binary().end());
      break;
    default:
      *out += value.dump();
  }
}

}  // namespace

absl::StatusOr<nlohmann::ordered_json> ParseRequestJson(std::string_view text) {
  Builder builder;
  const bool is_whole = Json::sax_parse(text.begin(), text.end(), &builder);
  if (!is_whole) return InvalidArgument("JSON: {}", builder.error());
  return builder.TakeRoot();
}

std::string DumpJson(const nlohmann::ordered_json& value) {
  std::string out;
  DumpTo(value, 0, &out);
  return out;
}

}  // namespace layover
