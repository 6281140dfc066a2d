// What ids without a row read as: the values of initial_row, rounded as a table stores rows.
#include <cmath>
#include <limits>
#include <vector>

#include "every_isa.h"
#include "rows/absent.h"

using namespace emberline;

namespace {

constexpr RowType kAll[] = {RowType::kFp32, RowType::kFp16, RowType::kBf16, RowType::kInt8};
constexpr std::uint32_t kDim = 7;

std::vector<float> stored(RowFormat format, const std::vector<float>& row) {
  std::vector<char> bytes(format.bytes());
  std::vector<float> back(format.dim);
  encode_rows(format, row.data(), 1, bytes.data());
  decode_rows(format, bytes.data(), 1, back.data());
  return back;
}

}  // namespace

TEST(a_constant_is_one_row_for_every_id) {
  for (const RowType type : kAll) {
    const AbsentRows absent({{Initial::kConstant, 0.3f}, 0}, {type, kDim});
    CHECK(!absent.is_zero() && absent.is_constant());
    std::vector<float> scratch(kDim, -7.0f), written(kDim);
    const float* row = absent.row(5, scratch.data());
    CHECK(row == absent.row(-9, scratch.data()) && row != scratch.data() && scratch[0] == -7.0f);
    CHECK((std::vector<float>(row, row + kDim) == stored({type, kDim}, std::vector<float>(kDim, 0.3f))));
    absent.write(5, written.data());
    CHECK((written == std::vector<float>(row, row + kDim)));
  }
}

TEST(drawn_rows_are_those_of_the_initializer_as_they_are_stored) {
  for (const RowType type : kAll) {
    for (const Initial kind : {Initial::kUniform, Initial::kNormal, Initial::kTruncatedNormal}) {
      const SeededInitializer from{{kind, 0.5f}, 77};
      const AbsentRows absent(from, {type, kDim});
      CHECK(!absent.is_zero() && !absent.is_constant());
      for (const std::int64_t id : {std::int64_t{0}, std::int64_t{-3}, std::numeric_limits<std::int64_t>::max()}) {
        std::vector<float> plain(kDim), scratch(kDim);
        initial_row(from.initializer, from.seed, id, kDim, plain.data());
        CHECK(absent.row(id, scratch.data()) == scratch.data());
        CHECK((scratch == stored({type, kDim}, plain)));
      }
    }
  }
}

TEST(zeros_are_written_and_no_scale_is_zero) {
  std::vector<float> written(kDim, 1.0f);
  const AbsentRows absent({{Initial::kNormal, 0.0f}, 3}, {RowType::kInt8, kDim});
  CHECK(absent.is_zero() && AbsentRows().is_zero());
  absent.write(4, written.data());
  CHECK((written == std::vector<float>(kDim, 0.0f)));
}

RUN_ALL_TESTS_ON_EVERY_ISA()
