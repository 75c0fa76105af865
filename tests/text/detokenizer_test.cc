// Streaming UTF-8 and stop strings: the same output however the input is cut.
#include "coordinator/text/detokenizer.h"

#include <random>

#include "coordinator/text/stop_strings.h"
#include "gtest/gtest.h"

namespace layover {
namespace {

std::string StreamBytewise(std::string_view bytes) {
  StreamingDetokenizer stream;
  std::string out;
  for (const char c : bytes) {
    out += stream.Push(std::string(1, c));
    EXPECT_TRUE(IsValidUtf8(out));
  }
  return out + stream.Flush();
}

TEST(StreamingDetokenizer, HoldsUnfinishedCharacters) {
  StreamingDetokenizer stream;
  EXPECT_EQ(stream.Push("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.Push("\x98"), "");
  EXPECT_EQ(stream.Push("\x80"
                        "b"),
            "\xF0\x9F\x98\x80"
            "b");
  EXPECT_EQ(stream.Push("\xE4\xB8"), "");
  EXPECT_EQ(stream.Flush(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.Flush(), "");
}

TEST(StreamingDetokenizer, BrokenBytesAreReplacedAtOnce) {
  const std::pair<const char*, const char*> cases[] = {
      {"\x80", "\uFFFD"},
      {"\xC0\x80", "\uFFFD\uFFFD"},
      {"\xC1z", "\uFFFDz"},
      {"\xF5", "\uFFFD"},
      {"\xFF", "\uFFFD"},
      {"\xE0\x80", "\uFFFD\uFFFD"},
      {"\xED\xA0", "\uFFFD\uFFFD"},
      {"\xF4\x90", "\uFFFD\uFFFD"},
      {"\xF0\x8F", "\uFFFD\uFFFD"},
      {"\xC3z", "\uFFFDz"},
      {"\xE4\xB8z", "\uFFFDz"},
      {"\xF0\x9F\x98z", "\uFFFDz"},
      {"\xE4\xC3\xA9", "\uFFFD\u00E9"},
  };
  for (const auto& [bytes, expected] : cases) {
    StreamingDetokenizer stream;
    EXPECT_EQ(stream.Push(bytes), expected);
    EXPECT_EQ(stream.Flush(), "");
  }
}

TEST(StreamingDetokenizer, DoesNotDependOnTheCuts) {
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes;
    for (size_t n = random() % 12; n > 0; --n) {
      const unsigned char interesting[] = {0x41, 0x80, 0xBF, 0xC2, 0xC3, 0xE0, 0xA0, 0xED,
                                           0x9F, 0xEF, 0xF0, 0x90, 0xF4, 0x8F, 0xF5};
      bytes += static_cast<char>(interesting[random() % std::size(interesting)]);
    }
    const std::string whole = ToValidUtf8(bytes);
    EXPECT_TRUE(IsValidUtf8(whole));
    EXPECT_EQ(StreamBytewise(bytes), whole);
    StreamingDetokenizer stream;
    const size_t cut = bytes.empty() ? 0 : random() % bytes.size();
    std::string cut_once = stream.Push(bytes.substr(0, cut));
    cut_once += stream.Push(bytes.substr(cut));
    cut_once += stream.Flush();
    EXPECT_EQ(cut_once, whole);
  }
}

TEST(Utf8, EveryCharacterThereAndBack) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    std::string text;
    AppendUtf8(c, &text);
    const bool is_surrogate = c >= 0xD800 && c < 0xE000;
    ASSERT_EQ(IsValidUtf8(text), !is_surrogate) << c;
    ASSERT_TRUE(is_surrogate || DecodeUtf8(text, text.size()) == c) << c;
  }
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBecomeAStopString) {
  StopMatcher matcher({"</end>", "STOP"});
  EXPECT_EQ(matcher.Push("hello <"), "hello ");
  EXPECT_EQ(matcher.Push("b> </en"), "<b> ");
  EXPECT_EQ(matcher.Push("x S"), "</enx ");
  EXPECT_EQ(matcher.Push("T"), "");
  EXPECT_EQ(matcher.Push("OPPED more"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.matched(), "STOP");
  EXPECT_EQ(matcher.shown_bytes(), 16);
  EXPECT_EQ(matcher.Push("ignored"), "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcher, FlushGivesWhatWasHeld) {
  StopMatcher matcher({"abcd"});
  EXPECT_EQ(matcher.Push("xabc"), "x");
  EXPECT_EQ(matcher.Flush(), "abc");
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.shown_bytes(), 4);
}

TEST(StopMatcher, OverlappingBeginningsAreTracked) {
  StopMatcher matcher({"aab"});
  EXPECT_EQ(matcher.Push("aaab"), "a");
  EXPECT_TRUE(matcher.stopped());
  StopMatcher other({"abac"});
  EXPECT_EQ(other.Push("abab"), "ab");
  EXPECT_EQ(other.Push("ac"), "");
  EXPECT_TRUE(other.stopped());
}

TEST(StopMatcher, CompleteFirstWinsLongestOnATie) {
  StopMatcher matcher({"world", "lo world", "o"});
  EXPECT_EQ(matcher.Push("hello world"), "hell");
  EXPECT_EQ(matcher.matched(), "o");
  StopMatcher tie({"world", "lo world"});
  EXPECT_EQ(tie.Push("hello world"), "hel");
  EXPECT_EQ(tie.matched(), "lo world");
}

TEST(StopMatcher, WithoutStopStringsEverythingIsShown) {
  StopMatcher matcher({"", ""});
  EXPECT_EQ(matcher.Push("abc"), "abc");
  EXPECT_FALSE(matcher.stopped());
}

// The text up to the first completion of any stop string, found by trying every end.
std::string SlowCut(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (!stop.empty() && std::string_view(text).substr(0, end).ends_with(stop))
        longest = std::max(longest, stop.size());
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

TEST(StopMatcher, EqualsSlowSearchForAnyCuts) {
  std::mt19937 random(5);
  const auto word = [&](size_t longest) {
    std::string text;
    for (size_t n = random() % (longest + 1); n > 0; --n) text += static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 5000; ++round) {
    const std::vector<std::string> stops = {word(4), word(6), "ab" + word(5)};
    const std::string text = word(30);
    StopMatcher matcher(stops);
    std::string shown;
    for (size_t begin = 0; begin < text.size();) {
      const size_t n = 1 + random() % 5;
      shown += matcher.Push(text.substr(begin, n));
      begin += n;
      EXPECT_EQ(static_cast<size_t>(matcher.shown_bytes()), shown.size());
    }
    EXPECT_EQ(shown + matcher.Flush(), SlowCut(text, stops)) << text;
  }
}

}  // namespace
}  // namespace layover
