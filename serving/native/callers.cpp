#include "callers.h"

#include <algorithm>
#include <ctime>
#include <limits>
#include <random>
#include <utility>

#include "blake2b.h"
#include "queue.h"

namespace emberline::front {

namespace {

// Past so many callers, or models of one, all are forgotten, or all models of it, and have to be let in again.
constexpr std::size_t kMostCallers = 8192;
constexpr std::size_t kMostModels = 1024;

double real_time_s() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

double Rates::take(std::string_view client, double rate, double now_s) {
  const double burst = std::max(1.0, rate);
  const std::lock_guard lock(mutex_);
  const auto found = by_client_.find(client);
  if (found == by_client_.end()) {
    buckets_.push_back({std::string(client), burst, now_s});
    by_client_.emplace(buckets_.back().client, std::prev(buckets_.end()));
    if (buckets_.size() > max_clients_) {
      by_client_.erase(buckets_.front().client);
      buckets_.pop_front();
    }
  } else {
    buckets_.splice(buckets_.end(), buckets_, found->second);
  }
  Bucket& bucket = buckets_.back();
  // Calls of several threads may come in another order than their times.
  bucket.left = std::min(burst, bucket.left + std::max(0.0, now_s - bucket.at_s) * rate);
  bucket.at_s = std::max(bucket.at_s, now_s);
  if (bucket.left < 1.0) return (1.0 - bucket.left) / rate;
  bucket.left -= 1.0;
  return 0.0;
}

std::size_t Rates::clients() const {
  const std::lock_guard lock(mutex_);
  return buckets_.size();
}

Callers::Callers(std::shared_ptr<Rates> rates) : rates_(std::move(rates)) {
  std::random_device random;
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t bits = random();
    key_.append(reinterpret_cast<const char*>(&bits), sizeof bits);
  }
}

Callers::Digest Callers::digest_of(std::string_view authorization) const { return blake2b_256(key_, authorization); }

void Callers::let_in(std::string_view authorization, std::string_view model, Caller caller) {
  const Digest digest = digest_of(authorization);
  const std::lock_guard lock(mutex_);
  if (callers_.size() >= kMostCallers && callers_.find(digest) == callers_.end()) callers_.clear();
  auto& known = callers_[digest];
  if (known != nullptr && known->models.size() < kMostModels) caller.models = known->models;
  caller.models.emplace(model);
  known = std::make_shared<const Caller>(std::move(caller));
}

void Callers::forget() {
  const std::lock_guard lock(mutex_);
  callers_.clear();
}

std::shared_ptr<const Caller> Callers::find(std::string_view authorization) const {
  const Digest digest = digest_of(authorization);
  std::shared_ptr<const Caller> known;
  {
    const std::lock_guard lock(mutex_);
    const auto found = callers_.find(digest);
    if (found != callers_.end()) known = found->second;
  }
  const bool is_over = known != nullptr && known->expires_s < std::numeric_limits<double>::infinity() &&
                       known->expires_s < real_time_s();
  return is_over ? nullptr : known;
}

bool Callers::take(const Caller& caller, std::string_view client) const {
  if (caller.rate <= 0.0) return true;
  return rates_->take(caller.by_address ? client : caller.name, caller.rate, 1e-9 * static_cast<double>(now_ns())) ==
         0.0;
}

}  // namespace emberline::front
