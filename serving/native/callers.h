// Callers that the Python path has let in, by the Authorization header that they send: what they ask for again need not
// go there to be checked. Everything that is not known here, refusals too, is for the Python path.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

namespace emberline::front {

// A token bucket for each client, in bounded memory; see serving/security/rates.py. Thread-safe.
class Rates {
 public:
  // max_clients: past it the least recent client is forgotten.
  explicit Rates(std::size_t max_clients) : max_clients_(max_clients) {}

  // Counts one request. rate: requests a second. now_s: on CLOCK_MONOTONIC. Returns 0, or, where the client has come
  // too often, in how many seconds the next request is granted.
  double take(std::string_view client, double rate, double now_s);
  // Takes back that a request was counted.
  void give_back(std::string_view client, double rate);
  std::size_t clients() const;

 private:
  struct Bucket {
    std::string client;
    double left = 0.0, at_s = 0.0;
  };
  using Buckets = std::list<Bucket>;

  const std::size_t max_clients_;
  mutable std::mutex mutex_;
  // The most recent client is last; the keys view the buckets.
  Buckets buckets_;
  std::unordered_map<std::string_view, Buckets::iterator> by_client_;
};

// A caller that was let in. Immutable.
struct Caller {
  std::string name;
  // Requests a second; 0 for any number. Whether each address has so many, and not all that send this header together.
  double rate = 0.0;
  bool by_address = false;
  // On CLOCK_REALTIME.
  double expires_s = 0.0;
  // The models that it was let in for.
  std::set<std::string, std::less<>> models = {};

  bool may_ask(std::string_view model) const { return models.find(model) != models.end(); }
};

// Thread-safe. It keeps digests of the headers, made with a key of the process: finding one takes as long for a wrong
// token as for another one, and no token is in it.
class Callers {
 public:
  // is_open: whoever sends an unknown header is as good as one who sends none.
  Callers(std::shared_ptr<Rates> rates, bool is_open);

  // Knows whoever sends this header from now on as a caller, whose name no other one has. authorization: "" for those
  // that send none. model: that it may ask for, and all that send other headers of this caller; "" for none.
  void let_in(std::string_view authorization, std::string_view model, const Caller& caller);
  // Forgets all of them.
  void forget();
  // Returns who sends this header; null for nobody that was let in, or whose time is over. authorization: nothing for
  // callers that send none.
  std::shared_ptr<const Caller> find(std::optional<std::string_view> authorization) const;
  // Counts one request of a caller, or, where rates are by address, of `client`; returns whether it is granted.
  bool take(const Caller& caller, std::string_view client) const;
  // Takes back that `take` counted one.
  void give_back(const Caller& caller, std::string_view client) const;

 private:
  using Digest = std::array<std::uint64_t, 4>;
  struct First {
    std::size_t operator()(const Digest& digest) const { return static_cast<std::size_t>(digest[0]); }
  };
  // A caller as it is now (a further model makes another one), and the digests of its headers, the oldest first.
  struct Known {
    std::shared_ptr<const Caller> caller;
    std::deque<Digest> headers = {};
  };
  Digest digest_of(std::string_view authorization) const;

  std::shared_ptr<const Caller> look_up(std::string_view authorization) const;

  const std::shared_ptr<Rates> rates_;
  const bool is_open_;
  std::string key_;
  mutable std::mutex mutex_;
  std::unordered_map<Digest, std::shared_ptr<Known>, First> by_header_;
  std::unordered_map<std::string, std::shared_ptr<Known>> by_name_;
};

}  // namespace emberline::front
