#include "training/counting_bloom.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "bucket.cuh"
#include "training/owners.h"

namespace emberline {
namespace {

constexpr double kLeastRate = 1e-4, kMostRate = 0.5;
constexpr std::uint32_t kPlaceBits = 9;  // of a counter in its block
constexpr std::uint32_t kPlacesPerWord = 7;
static_assert(1u << kPlaceBits == CountingBloom::kBlock);
constexpr std::uint64_t kBlocksOfPage = 8 * CountingBloom::kPageBytes / CountingBloom::kBlock;  // of counters of a bit
static_assert(2 * kPlacesPerWord == CountingBloom::kMostProbes);

std::uint32_t bits_for(std::uint32_t most) {
  if (most < 1 || most > CountingBloom::kMostCount) {
    throw std::invalid_argument("most: must be 1 to 255, got " + std::to_string(most));
  }
  std::uint32_t bits = 1;
  while ((1u << bits) - 1 < most) bits *= 2;
  return bits;
}

// The chance that all probes of an unseen id meet counters that are not 0, in a block that so many ids chose. The k-th
// moment of the filled share, by its mean and its variance.
double rate_of_block(double ids, std::uint32_t probes) {
  constexpr double n = CountingBloom::kBlock;
  const double throws = ids * probes;
  const double empty = std::pow(1.0 - 1.0 / n, throws);
  const double pairs = std::pow(1.0 - 2.0 / n, throws);
  const double variance = std::max(0.0, empty / n + (1.0 - 1.0 / n) * pairs - empty * empty);
  const double filled = 1.0 - empty;
  if (filled <= 0.0) return 0.0;
  const double moment = 1.0 + 0.5 * probes * (probes - 1.0) * variance / (filled * filled);
  return std::min(1.0, std::pow(filled, probes) * moment);
}

// The ids of a block are Poisson distributed around their mean.
double rate_at(double mean, std::uint32_t probes) {
  const double spread = 10.0 * std::sqrt(mean) + 10.0;
  double rate = 0.0;
  for (double ids = std::max(0.0, std::floor(mean - spread)); ids <= mean + spread; ids += 1.0) {
    rate += std::exp(ids * std::log(mean) - mean - std::lgamma(ids + 1.0)) * rate_of_block(ids, probes);
  }
  return rate;
}

// The most ids a block that keep the rate.
double densest(double rate, std::uint32_t probes) {
  double low = 0.1, high = 1024.0;
  for (int i = 0; i < 40; ++i) {
    const double middle = 0.5 * (low + high);
    (rate_at(middle, probes) <= rate ? low : high) = middle;
  }
  return low;
}

// Counters of a page that are not 0.
std::uint64_t filled_in(const std::uint8_t* page, std::uint32_t bits) {
  constexpr std::uint64_t kLowest[] = {~std::uint64_t{0}, 0x5555555555555555u, 0x1111111111111111u,
                                       0x0101010101010101u};
  std::uint64_t filled = 0;
  for (std::size_t at = 0; at < CountingBloom::kPageBytes; at += sizeof(std::uint64_t)) {
    std::uint64_t word;
    std::memcpy(&word, page + at, sizeof(word));
    for (std::uint32_t shift = 1; shift < bits; shift *= 2) word |= word >> shift;
    filled += static_cast<std::uint64_t>(std::popcount(word & kLowest[std::countr_zero(bits)]));
  }
  return filled;
}

}  // namespace

struct CountingBloom::Places {
  std::uint64_t block = 0;  // its first counter
  std::uint64_t words[2] = {};

  std::uint64_t operator[](std::uint32_t probe) const {
    const std::uint64_t word = words[probe / kPlacesPerWord];
    return block + ((word >> (kPlaceBits * (probe % kPlacesPerWord))) & (kBlock - 1));
  }
};

BloomShape CountingBloom::shape_of(const BloomOptions& options) {
  if (!(options.false_rate >= kLeastRate && options.false_rate <= kMostRate)) {
    throw std::invalid_argument("false_rate: must be 0.0001 to 0.5, got " + std::to_string(options.false_rate));
  }
  BloomShape best;
  double most = 0.0;
  for (std::uint32_t probes = 1; probes <= kMostProbes; ++probes) {
    const double ids = densest(options.false_rate, probes);
    if (ids <= most) continue;
    most = ids;
    best.probes = probes;
  }
  const auto needed = static_cast<std::uint64_t>(std::ceil(static_cast<double>(options.expected_ids) / most));
  constexpr std::uint64_t kBuckets = std::uint64_t{1} << kBucketBits;
  best.blocks = (needed + kBuckets - 1) / kBuckets * kBuckets;
  return best;
}

double CountingBloom::false_rate(const BloomShape& shape, double ids) {
  return ids <= 0.0 ? 0.0 : rate_at(ids / static_cast<double>(shape.blocks), shape.probes);
}

CountingBloom::CountingBloom(const BloomOptions& options, std::uint32_t most, std::uint64_t seed)
    : shape_(shape_of(options)), bits_(bits_for(most)), key_(mix(seed + 0x9E3779B97F4A7C15ull)) {
  if (shape_.blocks < 1) throw std::invalid_argument("expected_ids: must be 1 or more, got 0");
  if (shape_.blocks > std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument("expected_ids: the filter would have more than 2^32 blocks");
  }
  if (options.rank >= options.ranks) throw std::invalid_argument("rank: there are fewer ranks");
  const std::uint64_t each = shape_.blocks >> kBucketBits;  // blocks of a bucket
  first_block_ = first_bucket(options.rank, options.ranks) * each;
  end_block_ = first_bucket(options.rank + 1, options.ranks) * each;
  pages_ = shape_.blocks * bits_ / kBlocksOfPage;
  first_page_ = first_block_ * bits_ / kBlocksOfPage;
  end_page_ = (end_block_ * bits_ + kBlocksOfPage - 1) / kBlocksOfPage;
  data_ = Pages(pages_ * kPageBytes);
  stamps_ = Pages(pages_ * sizeof(std::uint32_t));
}

CountingBloom::Places CountingBloom::places(std::int64_t id) const {
  const std::uint64_t first = mix(static_cast<std::uint64_t>(id) + key_);
  const std::uint64_t second = mix(first ^ 0xD1B54A32D192ED03ull);
  return {multiply_high(bucket_hash(id), shape_.blocks) * kBlock, {second, mix(second + key_)}};
}

void CountingBloom::prefetch(std::int64_t id) const {
  const std::uint8_t* block = counters() + multiply_high(bucket_hash(id), shape_.blocks) * (kBlock / 8) * bits_;
  for (std::uint32_t line = 0; line < bits_; ++line) __builtin_prefetch(block + std::size_t{line} * 64, 1, 3);
}

std::uint32_t CountingBloom::get(std::uint64_t counter) const {
  const std::uint64_t bit = counter * bits_;
  return (counters()[bit / 8] >> (bit % 8)) & most();
}

void CountingBloom::set(std::uint64_t counter, std::uint32_t value, std::uint32_t stamp) {
  const std::uint64_t bit = counter * bits_;
  std::uint8_t& byte = counters()[bit / 8];
  const std::uint32_t before = (byte >> (bit % 8)) & most();
  if (before == value) return;
  filled_ += (value != 0) - (before != 0);
  byte = static_cast<std::uint8_t>((byte & ~(most() << (bit % 8))) | value << (bit % 8));
  stamps()[bit / 8 / kPageBytes] = stamp;
}

std::uint32_t CountingBloom::smallest(const Places& at) const {
  std::uint32_t least = get(at[0]);
  for (std::uint32_t probe = 1; probe < shape_.probes; ++probe) least = std::min(least, get(at[probe]));
  return least;
}

void CountingBloom::raise(const Places& at, std::uint32_t count, std::uint32_t stamp) {
  const std::uint32_t value = std::min(count, most());
  for (std::uint32_t probe = 0; probe < shape_.probes; ++probe) {
    if (get(at[probe]) < value) set(at[probe], value, stamp);
  }
}

std::uint32_t CountingBloom::count(std::int64_t id) const { return smallest(places(id)); }

std::uint32_t CountingBloom::add(std::int64_t id, std::uint32_t occurrences, std::uint32_t stamp) {
  const Places at = places(id);
  const std::uint32_t before = smallest(at);
  const std::uint32_t count = occurrences > std::numeric_limits<std::uint32_t>::max() - before
                                  ? std::numeric_limits<std::uint32_t>::max()
                                  : before + occurrences;
  raise(at, count, stamp);
  return count;
}

void CountingBloom::raise(std::int64_t id, std::uint32_t count, std::uint32_t stamp) {
  raise(places(id), count, stamp);
}

double CountingBloom::ids() const {
  // A counter is empty with probability exp(-m (1 - (1 - 1/512)^probes)), for m ids a block on the average.
  const auto blocks = static_cast<double>(end_block_ - first_block_);
  const double counters = std::max(1.0, blocks * kBlock);
  const double empty = std::max(1.0, counters - static_cast<double>(filled_)) / counters;
  return blocks * -std::log(empty) / (1.0 - std::pow(1.0 - 1.0 / kBlock, shape_.probes));
}

std::vector<std::uint32_t> CountingBloom::pages_since(std::uint32_t stamp) const {
  std::vector<std::uint32_t> changed;
  for (std::uint64_t page = first_page_; page < end_page_; ++page) {
    if (stamps()[page] > stamp) changed.push_back(static_cast<std::uint32_t>(page));
  }
  return changed;
}

void CountingBloom::restore(const std::uint32_t* pages, std::size_t n, const std::uint8_t* content, std::uint32_t bits,
                            std::uint32_t stamp) {
  if (bits != 1 && bits != 2 && bits != 4 && bits != 8) {
    throw std::invalid_argument("bits: must be 1, 2, 4 or 8, got " + std::to_string(bits));
  }
  const std::uint32_t mask = (1u << bits) - 1;
  const std::uint64_t per_page = kPageBytes * 8 / bits;
  const std::uint64_t counters = shape_.blocks * kBlock;
  for (std::size_t i = 0; i < n; ++i, content += kPageBytes) {
    const std::uint64_t first = pages[i] * per_page;
    if (first >= counters) throw std::invalid_argument("pages: there is no page " + std::to_string(pages[i]));
    const std::uint64_t begin = std::max(first, first_block_ * kBlock);
    const std::uint64_t end = std::min(first + per_page, end_block_ * kBlock);
    if (begin >= end) continue;
    if (bits == bits_ && end - begin == per_page && stamps()[pages[i]] == 0) {
      const std::uint64_t filled = filled_in(content, bits);
      if (filled == 0) continue;
      filled_ += filled;
      std::memcpy(this->counters() + pages[i] * kPageBytes, content, kPageBytes);
      stamps()[pages[i]] = stamp;
      continue;
    }
    for (std::uint64_t counter = begin; counter < end; ++counter) {
      const std::uint64_t bit = (counter - first) * bits;
      const std::uint32_t value = std::min((content[bit / 8] >> (bit % 8)) & mask, most());
      if (get(counter) < value) set(counter, value, stamp);
    }
  }
}

}  // namespace emberline
