// Method and path to handler. The route is found first and then authenticated, so no spelling of a path slips past.
#ifndef LAYOVER_COORDINATOR_HTTP_ROUTER_H_
#define LAYOVER_COORDINATOR_HTTP_ROUTER_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/http/listener.h"

namespace layover {

// One admitted request, as a handler gets it.
struct HttpCall {
  std::shared_ptr<const HttpRequest> request;
  std::shared_ptr<Responder> reply;
  std::string owner;                // the API key's name
  std::vector<std::string> params;  // what stood for each {..} of the pattern, decoded
};
using RouteHandler = std::function<void(HttpCall)>;

enum class Access { kKey, kOpen };
enum class Urgency { kNormal, kUrgent };  // urgent: quick, on the I/O thread, never behind work

struct Route {
  std::string method;
  std::string pattern;  // "/v1/models/{id}"
  Access access = Access::kKey;
  Urgency urgency = Urgency::kNormal;
  RouteHandler handler;
};

class Router {
 public:
  void Add(Route route);

  struct Match {
    const Route* route = nullptr;  // null: none
    std::vector<std::string> params;
    std::string allowed_methods;  // where the path is known but not with this method: "GET, HEAD"
  };
  // HEAD finds the GET route. Segments are compared decoded.
  Match Find(std::string_view method, const std::vector<std::string>& segments) const;

 private:
  struct Entry {
    Route route;
    std::vector<std::string> segments;
  };
  std::vector<Entry> entries_;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_HTTP_ROUTER_H_
