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

// A token can be sent in many forms: in letters of either case, with more spaces. So many of one caller are known.
constexpr std::size_t kMostHeaders = 8;

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

void Rates::give_back(std::string_view client, double rate) {
  const std::lock_guard lock(mutex_);
  const auto found = by_client_.find(client);
  if (found != by_client_.end()) found->second->left = std::min(std::max(1.0, rate), found->second->left + 1.0);
}

std::size_t Rates::clients() const {
  const std::lock_guard lock(mutex_);
  return buckets_.size();
}

Callers::Callers(std::shared_ptr<Rates> rates, bool is_open) : rates_(std::move(rates)), is_open_(is_open) {
  std::random_device random;
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t bits = random();
    key_.append(reinterpret_cast<const char*>(&bits), sizeof bits);
  }
}

Callers::Digest Callers::digest_of(std::string_view authorization) const { return blake2b_256(key_, authorization); }

void Callers::let_in(std::string_view authorization, std::string_view model, const Caller& caller) {
  const Digest digest = digest_of(authorization);
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Known>& known = by_name_[caller.name];
  if (known == nullptr) known = std::make_shared<Known>(Known{std::make_shared<const Caller>(caller)});
  if (!model.empty() && !known->caller->may_ask(model)) {
    auto made = std::make_shared<Caller>(*known->caller);
    made->models.emplace(model);
    known->caller = std::move(made);
  }
  if (!by_header_.insert_or_assign(digest, known).second) return;
  known->headers.push_back(digest);
  if (known->headers.size() <= kMostHeaders) return;
  by_header_.erase(known->headers.front());  // it has to be let in again
  known->headers.pop_front();
}

void Callers::forget() {
  const std::lock_guard lock(mutex_);
  by_header_.clear();
  by_name_.clear();
}

std::shared_ptr<const Caller> Callers::find(std::optional<std::string_view> authorization) const {
  if (!authorization) return look_up("");
  // An empty one is not none: where callers have to be known, Python refuses it.
  auto found = authorization->empty() ? nullptr : look_up(*authorization);
  return found == nullptr && is_open_ ? look_up("") : found;
}

std::shared_ptr<const Caller> Callers::look_up(std::string_view authorization) const {
  const Digest digest = digest_of(authorization);
  std::shared_ptr<const Caller> caller;
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_header_.find(digest);
    if (found != by_header_.end()) caller = found->second->caller;
  }
  const bool is_over = caller != nullptr && caller->expires_s < std::numeric_limits<double>::infinity() &&
                       caller->expires_s < real_time_s();
  return is_over ? nullptr : caller;
}

bool Callers::take(const Caller& caller, std::string_view client) const {
  if (caller.rate <= 0.0) return true;
  return rates_->take(caller.by_address ? client : caller.name, caller.rate, 1e-9 * static_cast<double>(now_ns())) ==
         0.0;
}

void Callers::give_back(const Caller& caller, std::string_view client) const {
  if (caller.rate > 0.0) rates_->give_back(caller.by_address ? client : caller.name, caller.rate);
}

}  // namespace emberline::front
