// Which version of a model answers a request, and by which of its arms, while a canary runs.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "infer_request.h"
#include "model.h"

namespace emberline::front {

// Maps a routing key to a number in [0, 1) as serving/engine/canary.py does; "" is drawn at random.
double routing_point(std::string_view model, std::string_view routing_key);

// What requests of a path are answered by. Immutable.
struct Route {
  std::shared_ptr<const Model> main;
  // A version that answers this share of the requests; null for none.
  std::shared_ptr<const Model> canary;
  double share = 0.0;

  // Sets the model and the arm that answer a request with this routing key.
  void choose(InferRequest& request, std::string_view routing_key) const;
};

// The paths that are answered: /v2/models/NAME/infer or /v2/models/NAME/versions/NUMBER/infer. Thread-safe.
class Routes {
 public:
  // Answers a path by this route from now on; null: the path is no longer answered natively.
  void set(const std::string& path, std::shared_ptr<const Route> route);
  // Returns null for a path that is not answered natively.
  std::shared_ptr<const Route> find(const std::string& path) const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const Route>> routes_;
};

}  // namespace emberline::front
