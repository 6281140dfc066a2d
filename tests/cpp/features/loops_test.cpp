// Goal: the loops of every instruction set give the bits of the plain formulas, at every length.
#include "every_isa.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "features/hash.h"
#include "features/loops.h"

using namespace emberline::features;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr std::int64_t kLengths[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 63, 64, 65, 127, 130, 1000};

std::vector<double> numbers(std::int64_t size) {
  std::mt19937_64 random(static_cast<std::uint64_t>(size));
  std::normal_distribution<double> normal(0.0, 3.0);
  const double special[] = {0.0, -0.0, kInf, -kInf, std::nan(""), 1e300, -1e300, 1.0, 3.4028234663852886e38};
  std::vector<double> out;
  for (std::int64_t i = 0; i < size; ++i) out.push_back(random() % 4 == 0 ? special[random() % 9] : normal(random));
  return out;
}

template <class T>
bool same_bits(const std::vector<T>& one, const std::vector<T>& other) {
  return one.size() == other.size() &&
         (one.empty() || std::memcmp(one.data(), other.data(), one.size() * sizeof(T)) == 0);
}

}  // namespace

TEST(ids_are_hashed) {
  for (const std::int64_t size : kLengths) {
    std::mt19937_64 random(7);
    std::vector<std::int64_t> from, to(static_cast<std::size_t>(size)), expected;
    for (std::int64_t i = 0; i < size; ++i) from.push_back(static_cast<std::int64_t>(random()));
    for (const std::uint64_t buckets :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1000}, std::uint64_t{0xFFFFFFFF}, std::uint64_t{1} << 32,
          (std::uint64_t{1} << 40) + 7, (std::uint64_t{1} << 63) - 1}) {
      expected.clear();
      for (const std::int64_t value : from) expected.push_back(to_id(hash_int(value, 99), buckets));
      loops().hash(from.data(), size, 99, buckets, to.data());
      CHECK(same_bits(to, expected));
    }
  }
}

TEST(values_find_their_bucket) {
  for (const std::int64_t size : kLengths) {
    const std::vector<double> from = numbers(size);
    for (const std::size_t count : {0, 1, 2, 3, 7, 8, 12, 13, 40, 1000}) {
      std::vector<double> boundaries;
      for (std::size_t k = 0; k < count; ++k)
        boundaries.push_back(static_cast<double>(k) - static_cast<double>(count / 2));
      std::vector<std::int64_t> to(from.size()), expected;
      for (const double value : from) {
        std::int64_t below = 0;
        for (const double boundary : boundaries) below += boundary <= value;
        expected.push_back(below);
      }
      std::size_t half = count == 0 ? 0 : 1;
      while (count > 0 && 2 * half < count + 1) half *= 2;
      boundaries.resize(2 * half, std::nan(""));
      loops().bucketise(from.data(), size, boundaries.data(), half, count, to.data());
      CHECK(same_bits(to, expected));
    }
  }
}

TEST(logarithms_are_those_of_log1p) {
  std::vector<double> known;
  for (int value = 0; value < kSmallLogs; ++value) known.push_back(std::log1p(value));
  for (const std::int64_t size : kLengths) {
    for (const bool counts : {false, true}) {
      std::vector<double> from = numbers(size), to(from.size()), expected;
      for (double& value : from) value = counts ? std::floor(value * 500.0) : value;
      for (const double value : from) expected.push_back(std::log1p(value > 0.0 ? value : 0.0));
      loops().log(from.data(), size, known.data(), to.data());
      CHECK(same_bits(to, expected));
    }
    const std::vector<double> from(static_cast<std::size_t>(size), 1023.0);
    std::vector<double> to(from.size()), expected(from.size(), std::log1p(1023.0));
    loops().log(from.data(), size, known.data(), to.data());
    CHECK(same_bits(to, expected));
  }
}

TEST(numbers_are_clipped_scaled_and_converted) {
  for (const std::int64_t size : kLengths) {
    const std::vector<double> from = numbers(size);
    std::vector<double> to(from.size()), clipped, scaled, widened;
    std::vector<float> singles, narrowed(from.size());
    for (const double value : from) {
      clipped.push_back(value < -1.5 ? -1.5 : (value > 2.0 ? 2.0 : value));
      const volatile double product = value * 0.1;  // rounded before the sum
      scaled.push_back(product + 0.7);
      singles.push_back(std::abs(value) < 1e30 ? static_cast<float>(value) : 1.0f);
      widened.push_back(singles.back());
    }
    loops().clip(from.data(), size, -1.5, 2.0, to.data());
    CHECK(same_bits(to, clipped));
    loops().affine(from.data(), size, 0.1, 0.7, to.data());
    for (std::size_t i = 0; i < to.size(); ++i)
      CHECK(to[i] == scaled[i] || (std::isnan(to[i]) && std::isnan(scaled[i])));
    loops().widen(singles.data(), size, to.data());
    CHECK(same_bits(to, widened));
    loops().narrow(widened.data(), size, narrowed.data());
    CHECK(same_bits(narrowed, singles));
  }
}

TEST(one_wrong_number_is_found_wherever_it_stands) {
  for (const std::int64_t size : kLengths) {
    std::vector<double> doubles(static_cast<std::size_t>(size), 3.4028234663852886e38);
    std::vector<float> singles(doubles.size(), -std::numeric_limits<float>::max());
    const auto found = [&] {
      return std::vector<bool>{loops().doubles_have_nan(doubles.data(), size),
                               loops().singles_have_nan(singles.data(), size),
                               !loops().doubles_fit(doubles.data(), size), !loops().singles_fit(singles.data(), size)};
    };
    CHECK((found() == std::vector<bool>{false, false, false, false}));
    for (std::size_t at = 0; at < doubles.size(); at += 1 + at / 20) {
      const double before = doubles[at];
      const float single = singles[at];
      doubles[at] = singles[at] = std::nanf("");
      CHECK((found() == std::vector<bool>{true, true, true, true}));
      doubles[at] = -kInf, singles[at] = std::numeric_limits<float>::infinity();
      CHECK((found() == std::vector<bool>{false, false, true, true}));
      doubles[at] = 3.402823466385289e38;
      CHECK(!loops().doubles_fit(doubles.data(), size));
      doubles[at] = before, singles[at] = single;
    }
  }
}

RUN_ALL_TESTS_ON_EVERY_ISA()
