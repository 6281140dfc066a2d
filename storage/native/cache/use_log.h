// The log of readers' reports to the writer: rows whose count steps, and sampled lookups. Bounded; reports that do not
// fit are dropped, and the lookups that they came from do not age the counts either (CachePipeline), so losing uses
// costs nothing but accuracy. A reader takes a stripe's flag or tries the next; no reader waits.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace emberline {

struct SampledLookup {
  std::uint64_t mixed;
  std::uint32_t table;
  bool hit;
};

class UseLog {
 public:
  explicit UseLog(std::size_t uses_per_stripe) {
    for (Stripe& stripe : stripes_) {
      stripe.positions.reserve(uses_per_stripe);
      stripe.samples.reserve(uses_per_stripe / 8);
    }
    uses_ = uses_per_stripe;
  }

  struct Dropped {
    std::size_t uses = 0, samples = 0;
  };

  // Returns the reports that did not fit.
  Dropped add(const std::uint32_t* positions, std::size_t n, const SampledLookup* samples, std::size_t m) {
    static std::atomic<std::uint32_t> next_thread{0};
    thread_local const std::uint32_t thread = next_thread.fetch_add(1, std::memory_order_relaxed);
    for (std::uint32_t i = 0; i < kStripes && n + m > 0; ++i) {
      Stripe& stripe = stripes_[(thread + i) % kStripes];
      if (stripe.busy.exchange(true, std::memory_order_acquire)) continue;
      for (; n > 0 && stripe.positions.size() < uses_; --n) stripe.positions.push_back(*positions++);
      for (; m > 0 && stripe.samples.size() < uses_ / 8; --m) stripe.samples.push_back(*samples++);
      stripe.busy.store(false, std::memory_order_release);
    }
    return {n, m};
  }

  // Calls use(position), sample(SampledLookup) for all reports. Called by the writer.
  template <class Use, class Sample>
  void drain(Use use, Sample sample) {
    for (Stripe& stripe : stripes_) {
      if (stripe.busy.exchange(true, std::memory_order_acquire)) continue;  // next time
      for (const std::uint32_t position : stripe.positions) use(position);
      for (const SampledLookup& lookup : stripe.samples) sample(lookup);
      stripe.positions.clear();
      stripe.samples.clear();
      stripe.busy.store(false, std::memory_order_release);
    }
  }

  static std::size_t bytes(std::size_t uses_per_stripe) {
    return kStripes * (uses_per_stripe * sizeof(std::uint32_t) + uses_per_stripe / 8 * sizeof(SampledLookup));
  }
  std::size_t bytes() const { return bytes(uses_); }

 private:
  static constexpr std::uint32_t kStripes = 4;
  struct alignas(64) Stripe {
    std::atomic<bool> busy{false};
    std::vector<std::uint32_t> positions;
    std::vector<SampledLookup> samples;
  };
  Stripe stripes_[kStripes];
  std::size_t uses_ = 0;
};

}  // namespace emberline
