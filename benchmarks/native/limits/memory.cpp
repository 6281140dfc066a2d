#include "limits/memory.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace emberline::limits {
namespace {

constexpr std::size_t kLoadFifths = 4;  // of five places are taken
constexpr std::size_t kWidth = 8;       // ids of a line

std::uint64_t lines_for(std::size_t n) {
  const std::uint64_t places = (static_cast<std::uint64_t>(n) * 5 + kLoadFifths - 1) / kLoadFifths;
  const std::uint64_t lines = std::max<std::uint64_t>(2, (places + kWidth - 1) / kWidth);
  if (lines > (std::uint64_t{1} << 28)) throw std::invalid_argument("ids: more than a probe can count");
  return lines;
}

std::size_t whole_lines(std::size_t bytes) {
  if (bytes < 64) throw std::invalid_argument("bytes: expected 64 or more");
  return bytes / 64 * 64;
}

}  // namespace

IndexLimit::IndexLimit(const std::int64_t* ids, std::size_t n, const Kernels& kernels)
    : kernels_(kernels), size_(n), line_count_(lines_for(n)), pages_(line_count_ * sizeof(IdLine)) {
  auto* lines = reinterpret_cast<IdLine*>(pages_.data());
  for (std::size_t i = 0; i < n; ++i) {
    if (ids[i] == 0) throw std::invalid_argument("ids: 0 stands for an empty place");
    std::uint64_t line = kernels.line_of(ids[i], line_count_);
    for (;;) {
      std::int64_t* places = lines[line].ids;
      std::int64_t* place =
          std::find_if(places, places + kWidth, [&](std::int64_t at) { return at == 0 || at == ids[i]; });
      if (place != places + kWidth) {
        if (*place == ids[i]) throw std::invalid_argument("ids: " + std::to_string(ids[i]) + " stands twice");
        *place = ids[i];
        break;
      }
      line = line + 1 == line_count_ ? 0 : line + 1;
    }
  }
}

std::size_t IndexLimit::find(const std::int64_t* ids, std::size_t n, std::uint32_t* places) const {
  kernels_.find(lines(), line_count_, ids, n, places);
  return n - static_cast<std::size_t>(std::count(places, places + n, kNowhere));
}

RowLimit::RowLimit(std::size_t rows, std::size_t dim, const Kernels& kernels)
    : kernels_(kernels), rows_(rows), dim_(dim), pages_(std::max<std::size_t>(1, rows * dim * sizeof(float))) {
  if (rows == 0 || dim == 0) throw std::invalid_argument("rows and dim: expected 1 or more");
  auto* values = reinterpret_cast<float*>(pages_.data());
  for (std::size_t row = 0; row < rows; ++row) std::fill_n(values + row * dim, dim, static_cast<float>(row));
}

void RowLimit::check(const std::int64_t* numbers, std::size_t n) const {
  // One pass over ids that are read next anyway: it costs a hundredth of the gather.
  std::uint64_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, static_cast<std::uint64_t>(numbers[i]));
  if (n > 0 && largest >= rows_) {
    throw std::out_of_range("numbers: " + std::to_string(static_cast<std::int64_t>(largest)) +
                            " is not a row, there are " + std::to_string(rows_));
  }
}

void RowLimit::gather(const std::int64_t* numbers, std::size_t n, float* out) const {
  check(numbers, n);
  kernels_.gather(pages_.data(), dim_ * sizeof(float), numbers, n, reinterpret_cast<char*>(out));
}

void RowLimit::pool(const std::int64_t* numbers, std::size_t n, const std::int64_t* offsets, std::size_t bags,
                    float* out) const {
  check(numbers, n);
  bool ascending = offsets[0] == 0 && static_cast<std::uint64_t>(offsets[bags]) == n;
  for (std::size_t bag = 0; bag < bags; ++bag) ascending = ascending && offsets[bag] <= offsets[bag + 1];
  if (!ascending) throw std::invalid_argument("offsets: expected 0, then ascending, to the number of rows asked for");
  kernels_.pool(reinterpret_cast<const float*>(pages_.data()), dim_, numbers, offsets, bags, out);
}

ByteLimit::ByteLimit(std::size_t bytes) : half_(whole_lines(bytes)), pages_(2 * half_) {
  std::memset(pages_.data(), 1, 2 * half_);
}

std::uint64_t ByteLimit::read() const {
  const auto* words = reinterpret_cast<const std::uint64_t*>(pages_.data());
  std::uint64_t sums[8] = {};
  for (std::size_t i = 0; i < half_ / 8; i += 8) {
    for (int k = 0; k < 8; ++k) sums[k] += words[i + static_cast<std::size_t>(k)];
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t part : sums) sum += part;
  return sum;
}

void ByteLimit::copy() { std::memcpy(pages_.data() + half_, pages_.data(), half_); }

}  // namespace emberline::limits
