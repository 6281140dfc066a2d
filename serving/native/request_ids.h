// Ids for requests that came without one.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>

namespace emberline::front {

// Returns 32 hex digits that no other request has: half of them are drawn for the process, the others count.
inline std::string new_request_id() {
  static const std::uint64_t process = [] {
    std::random_device random;
    return static_cast<std::uint64_t>(random()) << 32 | random();
  }();
  static std::atomic<std::uint64_t> next{0};
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(process),
                static_cast<unsigned long long>(next.fetch_add(1, std::memory_order_relaxed)));
  return text;
}

}  // namespace emberline::front
