#include "route.h"

#include <cmath>
#include <random>
#include <utility>

#include "blake2b.h"

namespace emberline::front {

namespace {

constexpr std::size_t kKeyBytes = 64;

}  // namespace

double routing_point(std::string_view model, std::string_view routing_key) {
  if (routing_key.empty()) {
    static thread_local std::mt19937_64 random{std::random_device{}()};
    return std::ldexp(static_cast<double>(random() >> 11), -53);
  }
  return std::ldexp(static_cast<double>(blake2b_64(model.substr(0, kKeyBytes), routing_key)), -64);
}

void Route::choose(InferRequest& request, std::string_view routing_key) const {
  const bool is_canary = canary != nullptr && routing_point(main->name(), routing_key) < share;
  request.model = is_canary ? canary : main;
  const double arm_share = request.model->canary_share();
  request.canary = arm_share > 0.0 && routing_point(request.model->name(), routing_key) < arm_share;
}

void Routes::set(const std::string& path, std::shared_ptr<const Route> route) {
  const std::lock_guard lock(mutex_);
  if (route == nullptr) {
    routes_.erase(path);
  } else {
    routes_[path] = std::move(route);
  }
}

std::shared_ptr<const Route> Routes::find(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  const auto found = routes_.find(path);
  return found == routes_.end() ? nullptr : found->second;
}

}  // namespace emberline::front
