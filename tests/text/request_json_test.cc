// What request JSON must survive: order, large numbers, depth, duplicates, bad bytes.
#include "coordinator/text/request_json.h"

#include "common/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using ::testing::HasSubstr;

std::string ThereAndBack(std::string_view text) {
  const auto value = ParseRequestJson(text);
  return value.ok() ? DumpJson(*value) : std::string(value.status().message());
}

TEST(RequestJson, KeepsOrderAndNumbers) {
  const std::string text = R"({"z":1.0,"a":[-0.5,1e+22,18446744073709551615,123456789012345678901234567890,)"
                           R"(-99999999999999999999],"m":{"é":null}})";
  EXPECT_EQ(ThereAndBack(text), text);
  EXPECT_EQ(ThereAndBack(R"(  { "a" : [ true , false ] }  )"), R"({"a":[true,false]})");
  EXPECT_EQ(ThereAndBack("7"), "7");
}

TEST(RequestJson, NumbersAreOrdinaryOnes) {
  const auto value = ParseRequestJson(R"({"t":0.7,"n":5})");
  ASSERT_TRUE(value.ok());
  EXPECT_EQ((*value)["t"].get<double>(), 0.7);
  EXPECT_EQ((*value)["n"].get<int>(), 5);
}

TEST(RequestJson, LastOfDuplicateKeysWins) {
  EXPECT_EQ(ThereAndBack(R"({"a":1,"b":2,"a":3})"), R"({"a":3,"b":2})");
}

TEST(RequestJson, EscapesWhatJsonMust) {
  const std::string text = R"("\u0000\"\\\n\u001f/é\ud83d\ude00\u007f")";
  EXPECT_EQ(ThereAndBack(text), "\"\\u0000\\\"\\\\\\u000a\\u001f/é\xF0\x9F\x98\x80\x7F\"");
  EXPECT_EQ(DumpJson(nlohmann::ordered_json("a\xFFz")), "\"a\xEF\xBF\xBDz\"");
}

TEST(RequestJson, DepthIsBounded) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(ThereAndBack(nested(limits::kMaxJsonDepth)), nested(limits::kMaxJsonDepth));
  EXPECT_THAT(ThereAndBack(nested(limits::kMaxJsonDepth + 1)), HasSubstr("nested deeper than 64"));
  EXPECT_THAT(ThereAndBack(std::string(200'000, '[')), HasSubstr("nested deeper than 64"));
}

TEST(RequestJson, ErrorsSayWhere) {
  EXPECT_THAT(ThereAndBack("{\"a\":\n}"), HasSubstr("line 2, column 1"));
  EXPECT_THAT(ThereAndBack(""), HasSubstr("JSON: parse error"));
  EXPECT_THAT(ThereAndBack("{} x"), HasSubstr("JSON: parse error"));
  EXPECT_THAT(ThereAndBack("\"\xFF\""), HasSubstr("UTF-8"));
  EXPECT_THAT(ThereAndBack("[1e999]"), HasSubstr("JSON: "));
  EXPECT_THAT(ThereAndBack("NaN"), HasSubstr("JSON: "));
}

TEST(RequestJson, ManyKeysStayLinear) {
  // ordered_json alone searches the whole object for every key: hours for this one.
  std::string text = "{";
  for (int i = 0; i < 300'000; ++i) text += (i == 0 ? "\"k" : ",\"k") + std::to_string(i) + "\":0";
  text += "}";
  EXPECT_EQ(ThereAndBack(text), text);
}

}  // namespace
}  // namespace layover
