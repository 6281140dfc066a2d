#include "pages/order.h"

#include <array>
#include <stdexcept>
#include <utility>

namespace emberline::pages {
namespace {

constexpr int kDigitBits = 11;
constexpr std::size_t kDigits = std::size_t{1} << kDigitBits;
constexpr int kPasses = (64 + kDigitBits - 1) / kDigitBits;

struct Entry {
  std::uint64_t key;
  std::uint32_t position;
};

std::size_t digit_of(std::uint64_t key, int pass) { return key >> (pass * kDigitBits) & (kDigits - 1); }

}  // namespace

bool strictly_ascending(const std::int64_t* ids, std::size_t n) {
  for (std::size_t i = 1; i < n; ++i) {
    if (ids[i - 1] >= ids[i]) return false;
  }
  return true;
}

// Radix sort, lowest digit first: time does not depend on how the ids are distributed. Digits that all ids share are
// left out.
std::vector<std::uint32_t> order_of(const std::int64_t* ids, std::size_t n) {
  if (n >> 32 != 0) throw std::invalid_argument("ids: " + std::to_string(n) + " at once, expected less than 2^32");
  std::vector<Entry> from(n), to(n);
  std::vector<std::array<std::uint32_t, kDigits>> counts(kPasses);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t key = static_cast<std::uint64_t>(ids[i]) ^ std::uint64_t{1} << 63;
    from[i] = {key, static_cast<std::uint32_t>(i)};
    for (int pass = 0; pass < kPasses; ++pass) ++counts[static_cast<std::size_t>(pass)][digit_of(key, pass)];
  }
  for (int pass = 0; pass < kPasses; ++pass) {
    auto& count = counts[static_cast<std::size_t>(pass)];
    if (n == 0 || count[digit_of(from[0].key, pass)] == n) continue;
    std::uint32_t before = 0;
    for (std::uint32_t& place : count) before += std::exchange(place, before);
    for (const Entry& entry : from) to[count[digit_of(entry.key, pass)]++] = entry;
    from.swap(to);
  }
  std::vector<std::uint32_t> order(n);
  for (std::size_t i = 0; i < n; ++i) order[i] = from[i].position;
  return order;
}

}  // namespace emberline::pages
