// Where the columns of a run come from: requests whose columns lie apart, or requests of one block of bytes each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "features/input.h"

namespace emberline::features {

// One request. Its memory must stay until the run has ended.
struct Request {
  std::span<const ColumnView* const> columns;  // one an input of the program; nullptr: not in the request
  std::int64_t batch = 0;
};

// Gives each input of a run as one column over all rows.
class Source {
 public:
  virtual ~Source() = default;
  virtual std::int64_t batch() const = 0;
  virtual bool has(std::size_t input) const = 0;
  // Throws InvalidInput unless the columns of the input are whole and fit it.
  virtual void check(std::size_t input, const Input& spec) const = 0;
  // The column of an input that it has and that was checked: the caller's memory, or joined in the arena.
  virtual WholeColumn column(std::size_t input, Arena& arena) const = 0;
};

// One column as it is given, in the caller's memory where that is possible.
WholeColumn whole_column(const ColumnView& column, Arena& arena);

// Requests with the same inputs in the same forms. Where several are joined, the one row of a user is repeated for each
// row of its request.
class RequestSource : public Source {
 public:
  // Throws std::invalid_argument unless each request has one column an input and all of them are alike.
  RequestSource(std::span<const Request> requests, std::size_t inputs);
  // Returns whether two requests can be joined.
  static bool are_alike(const Request& one, const Request& other);

  std::int64_t batch() const override { return batch_; }
  bool has(std::size_t input) const override { return !requests_.empty() && requests_[0].columns[input] != nullptr; }
  void check(std::size_t input, const Input& spec) const override;
  WholeColumn column(std::size_t input, Arena& arena) const override;

 private:
  std::span<const Request> requests_;
  std::int64_t batch_ = 0;
};

// The columns that a block holds, one behind the other: numbers of fixed width, without nulls.
class BlockLayout {
 public:
  struct Column {
    std::size_t input = 0;
    Wire wire = Wire::kInt64;
    std::int64_t width = 1;
  };

  // Throws std::invalid_argument for an input that the program has not, or that is there twice, for BYTES, and for a
  // width below 1 or above 2^20.
  BlockLayout(const std::vector<Column>& columns, std::size_t inputs);

  std::size_t inputs() const { return places_.size(); }
  std::int64_t row_bytes() const { return row_bytes_; }

 private:
  friend class BlockSource;

  struct Place {
    Wire wire = Wire::kInt64;
    std::int64_t width = 0;      // 0: the input is not in the blocks
    std::int64_t row_bytes = 0;
    std::int64_t before = 0;     // bytes of a row of all columns before
  };

  std::vector<Place> places_;  // by input
  std::int64_t row_bytes_ = 0;
};

// One request: `batch` rows of a layout.
struct Block {
  const std::byte* data = nullptr;
  std::int64_t size = 0;
  std::int64_t batch = 0;
};

class BlockSource : public Source {
 public:
  // Throws InvalidInput for a block that is not as long as its rows.
  BlockSource(const BlockLayout& layout, std::span<const Block> blocks);

  std::int64_t batch() const override { return batch_; }
  bool has(std::size_t input) const override { return layout_.places_[input].width > 0; }
  void check(std::size_t input, const Input& spec) const override;
  WholeColumn column(std::size_t input, Arena& arena) const override;

 private:
  const BlockLayout& layout_;
  std::span<const Block> blocks_;
  std::int64_t batch_ = 0;
};

}  // namespace emberline::features
