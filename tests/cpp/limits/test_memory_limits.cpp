// The limits do the work that they claim to: a limit that left something out would be too high.
#include "check.h"
#include "limits/memory.h"

#include <cstdint>
#include <stdexcept>
#include <vector>

using namespace emberline::limits;

namespace {

std::vector<const Kernels*> all_kernels() {
  std::vector<const Kernels*> all{&portable_kernels()};
  for (const Kernels* kernels : {avx2_kernels(), avx512_kernels()}) {
    if (kernels != nullptr) all.push_back(kernels);
  }
  return all;
}

std::vector<std::int64_t> some_ids(std::size_t n, std::uint64_t seed) {
  std::vector<std::int64_t> ids(n);
  for (std::size_t i = 0; i < n; ++i) {
    std::uint64_t value = (seed + i + 1) * 0x9E3779B97F4A7C15ull;
    value = (value ^ (value >> 29)) * 0xBF58476D1CE4E5B9ull;
    ids[i] = static_cast<std::int64_t>(value >> 1) + 1;
  }
  return ids;
}

}  // namespace

TEST(every_id_is_found_once_and_no_other) {
  const std::vector<std::int64_t> ids = some_ids(20'000, 1);
  const std::vector<std::int64_t> others = some_ids(5'000, 1'000'000);
  for (const Kernels* kernels : all_kernels()) {
    const IndexLimit index(ids.data(), ids.size(), *kernels);
    std::vector<std::uint32_t> places(ids.size());
    CHECK(index.find(ids.data(), ids.size(), places.data()) == ids.size());
    std::vector<char> taken(index.bytes() / 8, 0);
    for (const std::uint32_t place : places) {
      CHECK(place < taken.size() && !taken[place]);
      taken[place] = 1;
    }
    CHECK(index.find(others.data(), others.size(), places.data()) == 0);
  }
}

TEST(few_ids_and_none) {
  const std::int64_t one[] = {-5};
  const IndexLimit index(one, 1);
  std::uint32_t place = kNowhere;
  CHECK(index.find(one, 1, &place) == 1);
  CHECK(place != kNowhere);
  CHECK(IndexLimit(one, 0).find(one, 1, &place) == 0);
  CHECK(index.find(one, 0, &place) == 0);
}

TEST(zero_and_doubles_are_refused) {
  const std::int64_t zero[] = {1, 0};
  const std::int64_t twice[] = {7, 8, 7};
  CHECK_THROWS(IndexLimit(zero, 2), std::invalid_argument);
  CHECK_THROWS(IndexLimit(twice, 3), std::invalid_argument);
}

TEST(gather_and_pool_give_what_a_plain_loop_gives) {
  constexpr std::size_t kRows = 700;
  for (const Kernels* kernels : all_kernels()) {
    for (const std::size_t dim :
         {std::size_t{1}, std::size_t{16}, std::size_t{32}, std::size_t{50}, std::size_t{64}, std::size_t{128}}) {
      const RowLimit rows(kRows, dim, *kernels);
      std::vector<std::int64_t> numbers;
      for (std::size_t i = 0; i < 501; ++i) numbers.push_back(static_cast<std::int64_t>(i * 37 % kRows));
      std::vector<float> out(numbers.size() * dim, -1.0f);
      rows.gather(numbers.data(), numbers.size(), out.data());
      for (std::size_t i = 0; i < out.size(); ++i) CHECK(out[i] == static_cast<float>(numbers[i / dim]));

      const std::vector<std::int64_t> offsets{0, 0, 10, 11, 400, 501};
      std::vector<float> sums((offsets.size() - 1) * dim, -1.0f);
      rows.pool(numbers.data(), numbers.size(), offsets.data(), offsets.size() - 1, sums.data());
      for (std::size_t bag = 0; bag + 1 < offsets.size(); ++bag) {
        float sum = 0.0f;
        for (auto i = static_cast<std::size_t>(offsets[bag]); i < static_cast<std::size_t>(offsets[bag + 1]); ++i) {
          sum += static_cast<float>(numbers[i]);
        }
        for (std::size_t d = 0; d < dim; ++d) CHECK(sums[bag * dim + d] == sum);
      }
    }
  }
}

TEST(numbers_and_offsets_that_lead_outside_are_refused) {
  const RowLimit rows(10, 4);
  const std::int64_t large[] = {3, 10};
  const std::int64_t negative[] = {-1};
  const std::int64_t fine[] = {3, 9};
  float out[16];
  CHECK_THROWS(rows.gather(large, 2, out), std::out_of_range);
  CHECK_THROWS(rows.gather(negative, 1, out), std::out_of_range);
  const std::int64_t back[] = {0, 2, 1, 2};
  const std::int64_t short_of[] = {0, 1};
  CHECK_THROWS(rows.pool(fine, 2, back, 3, out), std::invalid_argument);
  CHECK_THROWS(rows.pool(fine, 2, short_of, 1, out), std::invalid_argument);
  CHECK_THROWS(RowLimit(0, 4), std::invalid_argument);
}

TEST(bytes_are_read_and_copied_whole) {
  ByteLimit bytes(1 << 20);
  CHECK(bytes.bytes() == 1 << 20);
  CHECK(bytes.read() == (std::uint64_t{1} << 17) * 0x0101010101010101ull);
  bytes.copy();
  CHECK(bytes.read() == (std::uint64_t{1} << 17) * 0x0101010101010101ull);
  CHECK_THROWS(ByteLimit(10), std::invalid_argument);
}

RUN_ALL_TESTS()
