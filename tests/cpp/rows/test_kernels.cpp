// Every instruction set gives the bits of the plain loops, and those are what pooling.h says.
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "rows/kernels.h"
#include "rows/pooling.h"

using namespace emberline;

namespace {

constexpr RowType kAll[] = {RowType::kFp32, RowType::kFp16, RowType::kBf16, RowType::kInt8};
constexpr std::uint32_t kDims[] = {1,  2,  3,  4,  5,  7,  8,   9,   15,  16,  17,  24, 31,
                                   32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 200, 300};
constexpr std::size_t kRows = 37;

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

struct World {
  std::uint32_t dim;
  std::vector<float> rows;

  explicit World(std::uint32_t d) : dim(d), rows(kRows * d) {
    std::mt19937 random(d);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const unsigned kind = random() % 40;
      rows[i] = normal(random) * std::ldexp(1.0f, static_cast<int>(random() % 60) - 30);
      if (kind == 0) rows[i] = -0.0f;
      if (kind == 1) rows[i] = 1e-41f;
      if (kind == 2) rows[i] = 3e4f;
    }
    std::memset(rows.data() + (kRows - 1) * d, 0, d * sizeof(float));
  }
};

}  // namespace

TEST(every_set_gives_the_bits_of_the_plain_loops) {
  const RowKernels& plain = row_kernels(Isa::kPortable);
  for (const Isa set : isas()) {
    const RowKernels& fast = row_kernels(set);
    for (const std::uint32_t dim : kDims) {
      const World world(dim);
      for (const RowType type : kAll) {
        const int t = static_cast<int>(type);
        const std::size_t bytes = row_bytes(type, dim);
        std::vector<char> want(kRows * bytes, 'a'), got(kRows * bytes, 'b');
        plain.encode[t](world.rows.data(), kRows, dim, want.data());
        fast.encode[t](world.rows.data(), kRows, dim, got.data());
        CHECK(same(want, got));

        std::vector<float> a(kRows * dim, -7), b(kRows * dim, -8);
        plain.decode[t](want.data(), kRows, dim, a.data());
        fast.decode[t](want.data(), kRows, dim, b.data());
        CHECK(same(a, b));

        std::vector<const char*> places;
        for (std::size_t i = 0; i < kRows; ++i) places.push_back(want.data() + (i * 11 % kRows) * bytes);
        plain.gather[t](places.data(), kRows, dim, a.data());
        fast.gather[t](places.data(), kRows, dim, b.data());
        CHECK(same(a, b));
        plain.singles[t](places.data(), kRows, dim, a.data(), dim);
        fast.singles[t](places.data(), kRows, dim, b.data(), dim);
        CHECK(same(a, b));

        std::vector<float> weights(kRows);
        for (std::size_t i = 0; i < kRows; ++i) weights[i] = 0.1f * static_cast<float>(i) - 1.3f;
        places[3] = places[20] = nullptr;
        for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{4}, kRows}) {
          for (const float divisor : {1.0f, 3.0f}) {
            for (const float* factors :
                 {static_cast<const float*>(nullptr), static_cast<const float*>(weights.data())}) {
              std::vector<float> x(dim, -7), y(dim, -8);
              plain.pool[t](places.data(), factors, n, dim, divisor, x.data());
              fast.pool[t](places.data(), factors, n, dim, divisor, y.data());
              CHECK(same(x, y));
            }
          }
        }
      }
    }
  }
}

TEST(a_bag_is_the_sum_of_its_rows_in_order) {
  for (const Isa set : isas()) {
    set_isa(isa_name(set));
    for (const std::uint32_t dim : {3u, 16u, 40u, 128u}) {
      const World world(dim);
      for (const RowType type : kAll) {
        const RowFormat format{type, dim};
        std::vector<char> stored(kRows * format.bytes());
        std::vector<float> rows(kRows * dim);
        encode_rows(format, world.rows.data(), kRows, stored.data());
        decode_rows(format, stored.data(), kRows, rows.data());
        std::vector<const char*> places;
        std::vector<float> weights;
        for (std::size_t i = 0; i < kRows; ++i) {
          places.push_back(i == 5 ? nullptr : stored.data() + i * format.bytes());
          weights.push_back(1.0f / static_cast<float>(i + 1));
        }
        for (const Pooling pooling : {Pooling::kSum, Pooling::kMean, Pooling::kWeighted}) {
          std::vector<float> want(dim, 0.0f), got(dim);
          for (std::size_t i = 0; i < kRows; ++i) {
            if (i == 5) continue;
            for (std::uint32_t d = 0; d < dim; ++d) {
              const float value = rows[i * dim + d];
              // A product that is stored is rounded: no fused multiply-add.
              const volatile float product = weights[i] * value;
              want[d] = want[d] + (pooling == Pooling::kWeighted ? product : value);
            }
          }
          if (pooling == Pooling::kMean) {
            for (float& value : want) value /= static_cast<float>(kRows);
          }
          pool_rows(format, places.data(), weights.data(), kRows, pooling, got.data());
          CHECK(same(want, got));
        }
      }
    }
  }
}

TEST(a_sum_of_one_row_is_not_a_copy_of_a_negative_zero) {
  const std::vector<float> row(20, -0.0f);
  const char* place = reinterpret_cast<const char*>(row.data());
  std::vector<float> copied(20), summed(20), single(20);
  for (const Isa set : isas()) {
    row_kernels(set).gather[0](&place, 1, 20, copied.data());
    row_kernels(set).singles[0](&place, 1, 20, single.data(), 20);
    row_kernels(set).pool[0](&place, nullptr, 1, 20, 1.0f, summed.data());
    CHECK(same(copied, row) && same(summed, single) && same(summed, std::vector<float>(20, 0.0f)));
  }
}

TEST(a_set_that_is_not_here_is_refused) {
  CHECK_THROWS(set_isa("sse9"), std::invalid_argument);
  CHECK(isas().front() == Isa::kPortable);
}

RUN_ALL_TESTS()
