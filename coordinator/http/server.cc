#include "coordinator/http/server.h"

#include <exception>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/log.h"
#include "common/status.h"
#include "coordinator/http/error_json.h"
#include "coordinator/http/guard.h"
#include "coordinator/http/router.h"
#include "coordinator/http/routes.h"

namespace layover {
namespace {

struct Address {
  std::string host;
  uint16_t port = 0;
};

// "127.0.0.1:8080", "[::1]:8080", "localhost:0".
absl::StatusOr<Address> ParseListen(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(listen.substr(colon + 1), &port) || port > 65535) {
    return InvalidArgument("server.listen: {}: expected HOST:PORT", listen);
  }
  std::string host = listen.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    return InvalidArgument("server.listen: {}: an IPv6 address stands in brackets, as in [::1]:8080", listen);
  }
  return Address{host, static_cast<uint16_t>(port)};
}

HttpReply PreflightReply(const std::string& methods) {
  return {204,
          {{"Access-Control-Allow-Methods", methods},
           {"Access-Control-Allow-Headers", "Authorization, Content-Type, X-Api-Key, X-Conversation-Id"},
           {"Access-Control-Max-Age", "600"}},
          ""};
}

}  // namespace

struct HttpServer::Impl {
  Impl(HttpParts given, GuardOptions guard_options) : parts(std::move(given)), guard(std::move(guard_options)) {
    AddHealthRoutes(parts, router);
    AddCompletionRoutes(parts, router);
    AddTextRoutes(parts, router);
    AddModelRoutes(parts, router);
    AddSlotRoutes(parts, router);
    AddConversationRoutes(parts, router);
  }

  // Host and Origin first, then the route, then its key.
  Admission Admit(const HttpRequest& request) const;
  Admission AdmitRoute(const HttpRequest& request) const;

  const HttpParts parts;
  const Guard guard;
  Router router;
  std::string host;
  std::unique_ptr<Listener> listener;  // last: its threads use all of the above
};

namespace {

Admission Refused(HttpReply reply) {
  Admission admission;
  admission.refusal = std::move(reply);
  return admission;
}

// Calls the handler; whatever a library throws in there costs this one request.
HttpHandler Guarded(const Route& route, std::string owner, std::vector<std::string> params) {
  return [&route, owner = std::move(owner), params = std::move(params)](std::shared_ptr<const HttpRequest> request,
                                                                        std::shared_ptr<Responder> reply) {
    try {
      route.handler({std::move(request), reply, owner, params});
    } catch (const std::exception& error) {
      LogError("{} {}: {}", route.method, route.pattern, error.what());
      reply->Respond(ErrorReply(500, "a fault inside the server"));
    }
  };
}

}  // namespace

Admission HttpServer::Impl::Admit(const HttpRequest& request) const {
  if (const absl::Status status = guard.CheckHost(request); !status.ok()) return Refused(ErrorReply(status));
  if (const absl::Status status = guard.CheckOrigin(request); !status.ok()) return Refused(ErrorReply(status));
  Admission admission = AdmitRoute(request);
  admission.extra_headers = guard.CorsHeaders(request);
  return admission;
}

Admission HttpServer::Impl::AdmitRoute(const HttpRequest& request) const {
  const Router::Match match = router.Find(request.method, request.segments);
  Admission admission;
  if (match.route == nullptr && match.allowed_methods.empty()) {
    admission = Refused(ErrorReply(404, "there is nothing at this path", "unknown_path"));
  } else if (match.route == nullptr && request.method == "OPTIONS") {
    admission = Refused(PreflightReply(match.allowed_methods));
  } else if (match.route == nullptr) {
    admission = Refused(ErrorReply(405, "this path does not take this method", "method_not_allowed"));
    admission.refusal->headers.emplace_back("Allow", match.allowed_methods);
  } else {
    absl::StatusOr<std::string> owner = std::string();
    if (match.route->access == Access::kKey) owner = guard.Authenticate(request);
    if (owner.ok()) {
      admission.handler = Guarded(*match.route, *std::move(owner), match.params);
      admission.urgent = match.route->urgency == Urgency::kUrgent;
    } else {
      admission = Refused(ErrorReply(owner.status()));
    }
  }
  const std::string route = match.route == nullptr ? "other" : match.route->pattern;
  admission.on_replied = [metrics = parts.metrics, method = request.method, route, quiet = admission.urgent,
                          begin = std::chrono::steady_clock::now()](int status) {
    static constexpr int kClientGone = 499;
    if (status == 0) status = kClientGone;
    if (metrics != nullptr) metrics->HttpRequestDone(route, status);
    if (quiet) return;  // whoever watches asks every second
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    LogInfo("{} {} {} {:.0f} ms", method, route, status, took.count());
  };
  return admission;
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpServerOptions options, HttpParts parts) {
  ASSIGN_OR_RETURN(const Address address, ParseListen(options.listen));
  GuardOptions guard;
  guard.allow_hosts = std::move(options.allow_hosts);
  guard.allow_origins = std::move(options.allow_origins);
  if (!options.keys_file.empty()) {
    ASSIGN_OR_RETURN(guard.keys, ReadKeysFile(options.keys_file));
  }
  RETURN_IF_ERROR(CheckExposure(address.host, !guard.keys.empty()));
  auto impl = std::make_unique<Impl>(std::move(parts), std::move(guard));
  impl->host = address.host;
  ListenerOptions listening = std::move(options.limits);
  listening.host = address.host;
  listening.port = address.port;
  listening.admit = [raw = impl.get()](const HttpRequest& request) { return raw->Admit(request); };
  listening.refuse = [](int status, std::string_view message) { return ErrorReply(status, message); };
  ASSIGN_OR_RETURN(impl->listener, Listener::Start(std::move(listening)));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

std::string HttpServer::url() const {
  const bool is_v6 = impl_->host.find(':') != std::string::npos;
  return fmt::format("http://{}:{}", is_v6 ? fmt::format("[{}]", impl_->host) : impl_->host, impl_->listener->port());
}

void HttpServer::StopAccepting() {
  impl_->listener->StopAccepting();
}
bool HttpServer::WaitIdle(std::chrono::milliseconds timeout) {
  return impl_->listener->WaitIdle(timeout);
}

}  // namespace layover
