#include "coordinator/http/completion_stream.h"

#include <mutex>
#include <random>
#include <utility>

#include "coordinator/http/conversation_json.h"
#include "coordinator/http/error_json.h"
#include "coordinator/text/detokenizer.h"
#include "coordinator/text/stop_strings.h"
#include "fmt/core.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

constexpr char kPingText[] = ": ping\n\n";  // a comment with text: some clients trip over a bare colon
// A stream's head goes out when the engine takes the request up, or after so long: by then a full queue would have been
// refused, and proxies want to see life.
constexpr std::chrono::milliseconds kHeadDelay{1000};

std::string NewId(std::string_view prefix) {
  std::random_device source;
  return fmt::format("{}-{:08x}{:08x}{:08x}", prefix, source(), source(), source());
}

int64_t UnixSeconds() {
  using std::chrono::duration_cast;
  return duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string_view FinishName(FinishReason reason, bool stopped) {
  return reason == FinishReason::kStop || stopped ? "stop" : "length";
}

// What both forms of a reply do with each token. Used by one thread at a time.
class TokenText {
 public:
  explicit TokenText(CompletionReplyOptions options)
      : options_(std::move(options)),
        stop_(options_.fields.stop),
        extras_(options_.fields.return_tokens, options_.fields.top_logprobs >= 0, options_.fields.return_row_digests) {}

  // The text that this token lets out, perhaps none.
  std::string Add(const GeneratedToken& token) {
    ++n_tokens_;
    ObserveTime();
    extras_.Add(token, *options_.tokenizer);
    return stop_.Push(detokenizer_.Push(options_.tokenizer->TokenBytes(token.id)));
  }
  // At the end: what was held back.
  std::string Rest() {
    if (stop_.stopped()) return "";
    std::string rest = stop_.Push(detokenizer_.Flush());
    return stop_.stopped() ? rest : rest + stop_.Flush();
  }

  const CompletionReplyOptions& options() const { return options_; }
  bool is_chat() const { return options_.kind == CompletionKind::kChat; }
  bool stopped() const { return stop_.stopped(); }
  TokenExtras& extras() { return extras_; }
  Usage UsageNow(const Timings& timings) const {
    return {timings.cache_n + timings.recomputed_n + timings.prompt_n, n_tokens_, timings.cache_n};
  }
  ReplyHead Head(bool stream) const {
    const char* object = !is_chat() ? "text_completion" : stream ? "chat.completion.chunk" : "chat.completion";
    return {NewId(is_chat() ? "chatcmpl" : "cmpl"), object, options_.model, UnixSeconds()};
  }

 private:
  void ObserveTime() {
    if (options_.metrics == nullptr) return;
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double> since = now - (n_tokens_ == 1 ? options_.arrival : last_token_);
    if (n_tokens_ == 1) {
      options_.metrics->ObserveFirstToken(since.count());
    } else {
      options_.metrics->ObserveInterToken(since.count());
    }
    last_token_ = now;
  }

  const CompletionReplyOptions options_;
  StreamingDetokenizer detokenizer_;
  StopMatcher stop_;
  TokenExtras extras_;
  int64_t n_tokens_ = 0;
  std::chrono::steady_clock::time_point last_token_;
};

class WholeReply final : public GenerationObserver {
 public:
  WholeReply(CompletionReplyOptions options, std::shared_ptr<Responder> reply)
      : text_(std::move(options)), reply_(std::move(reply)) {}

  bool OnToken(const GeneratedToken& token) override {
    content_ += text_.Add(token);
    return !text_.stopped();
  }

  void OnFinished(FinishReason reason, const Timings& timings) override {
    content_ += text_.Rest();
    const std::string content = JsonString(content_);
    const std::string choice = text_.is_chat()
                                   ? fmt::format(R"("message":{{"role":"assistant","content":{}}})", content)
                                   : fmt::format(R"("text":{})", content);
    const std::string body =
        fmt::format(R"({},"choices":[{{"index":0,{}{},"finish_reason":"{}"}}],"usage":{},"timings":{}}})",
                    text_.Head(false).Open(), choice, text_.extras().Take(), FinishName(reason, text_.stopped()),
                    UsageText(text_.UsageNow(timings)), TimingsText(timings));
    reply_->Respond({200, {{"Content-Type", "application/json"}}, body});
  }

  void OnFailed(const absl::Status& status) override { reply_->Respond(ErrorReply(status)); }

 private:
  TokenText text_;
  const std::shared_ptr<Responder> reply_;
  std::string content_;
};

// The engine calls it on its thread, the timer of the head on the I/O thread: hence the lock.
class StreamedReply final : public GenerationObserver, public std::enable_shared_from_this<StreamedReply> {
 public:
  StreamedReply(CompletionReplyOptions options, std::shared_ptr<Responder> reply)
      : text_(std::move(options)), head_(text_.Head(true)), open_(head_.Open()), reply_(std::move(reply)) {}

  void ArmHead() {
    reply_->After(kHeadDelay, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) {
        std::lock_guard lock(self->mutex_);
        self->Begin();
      }
    });
  }

  void OnStarted(const Timings& timings) override {
    std::lock_guard lock(mutex_);
    Begin();
  }

  bool OnToken(const GeneratedToken& token) override {
    std::lock_guard lock(mutex_);
    Begin();
    if (const std::string text = text_.Add(token); !text.empty()) Send(ContentChunk(text));
    return !text_.stopped();
  }

  void OnFinished(FinishReason reason, const Timings& timings) override {
    std::lock_guard lock(mutex_);
    Begin();
    const std::string rest = text_.Rest();
    if (!rest.empty() || !text_.extras().empty()) Send(ContentChunk(rest));
    Send(fmt::format(R"({},"choices":[{{"index":0,{},"finish_reason":"{}"}}],"timings":{}}})", open_,
                     text_.is_chat() ? R"("delta":{})" : R"("text":"")", FinishName(reason, text_.stopped()),
                     TimingsText(timings)));
    if (text_.options().fields.include_usage) {
      Send(fmt::format(R"({},"choices":[],"usage":{}}})", open_, UsageText(text_.UsageNow(timings))));
    }
    Send("[DONE]");
    reply_->End(false);
  }

  void OnFailed(const absl::Status& status) override {
    std::lock_guard lock(mutex_);
    if (!begun_) {
      begun_ = true;
      reply_->Respond(ErrorReply(status));
      return;
    }
    Send(ToText({{"error", ErrorObject(status)}}));
    reply_->End(true);
  }

 private:
  void Begin() {
    if (std::exchange(begun_, true)) return;
    reply_->SetPing(text_.options().ping_interval, kPingText);
    reply_->BeginStream(
        200, {{"Content-Type", "text/event-stream"}, {"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}});
    if (text_.is_chat()) {
      Send(fmt::format(
          R"({},"choices":[{{"index":0,"delta":{{"role":"assistant","content":""}},"finish_reason":null}}]}})", open_));
    }
  }

  std::string ContentChunk(std::string_view text) {
    const std::string json = JsonString(text);
    const std::string content =
        text_.is_chat() ? fmt::format(R"("delta":{{"content":{}}})", json) : fmt::format(R"("text":{})", json);
    return fmt::format(R"({},"choices":[{{"index":0,{}{},"finish_reason":null}}]}})", open_, content,
                       text_.extras().Take());
  }

  void Send(std::string_view data) { reply_->Write(fmt::format("data: {}\n\n", data)); }

  std::mutex mutex_;
  TokenText text_;
  const ReplyHead head_;
  const std::string open_;
  const std::shared_ptr<Responder> reply_;
  bool begun_ = false;
};

}  // namespace

std::shared_ptr<GenerationObserver> MakeCompletionReply(CompletionReplyOptions options,
                                                        std::shared_ptr<Responder> reply) {
  if (options.fields.ping_interval.has_value()) options.ping_interval = *options.fields.ping_interval;
  if (!options.fields.stream) return std::make_shared<WholeReply>(std::move(options), std::move(reply));
  auto streamed = std::make_shared<StreamedReply>(std::move(options), std::move(reply));
  streamed->ArmHead();
  return streamed;
}

}  // namespace layover
