// Rows of training data in the memory of Arrow, as its C data interface describes them
// (https://arrow.apache.org/docs/format/CDataInterface.html).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "features/source.h"

namespace emberline::features {

// The two structures of the interface, as its page defines them. Nothing here releases them: their owner does.
struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  std::int64_t flags;
  std::int64_t n_children;
  ArrowSchema** children;
  ArrowSchema* dictionary;
  void (*release)(ArrowSchema*);
  void* private_data;
};

struct ArrowArray {
  std::int64_t length;
  std::int64_t null_count;  // -1: not known
  std::int64_t offset;
  std::int64_t n_buffers;
  std::int64_t n_children;
  const void** buffers;
  ArrowArray** children;
  ArrowArray* dictionary;
  void (*release)(ArrowArray*);
  void* private_data;
};

// Where the values of an input are: in a column of the rows, or in a column that was made of it.
struct ArrowInput {
  std::int64_t column = -1;          // -1: see `view`
  const ColumnView* view = nullptr;  // nullptr too: not there
};

// Values of one Arrow array.
struct ArrowPart {
  const ArrowSchema* schema = nullptr;
  const ArrowArray* array = nullptr;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// A struct array, whose children are columns of
//   - integers, float32, float64 and booleans;
//   - text and bytes with offsets of 32 or 64 bits, and dictionaries of these with indices of any integer type;
//   - lists of these with offsets of 32 or 64 bits.
//
// Inputs have one value a row, or a list. A null inside a list of floats is NaN, and other lists are without it. The
// memory of text is taken to be valid, as that of arrays is which pyarrow read or validated; indices are checked.
class ArrowSource : public Source {
 public:
  // inputs: those of the program. places: one an input. Throws std::invalid_argument for a column of another type, and
  // InvalidInput for one whose dictionary has not every index.
  ArrowSource(const std::vector<Input>& inputs, const ArrowSchema& schema, const ArrowArray& array,
              std::span<const ArrowInput> places);

  std::int64_t batch() const override { return rows_; }
  bool has(std::size_t input) const override { return places_[input].column >= 0 || places_[input].view != nullptr; }
  void check(std::size_t input, const Input& spec) const override;
  WholeColumn column(std::size_t input, Arena& arena) const override;

 private:
  ArrowPart part(const ArrowInput& place) const;

  const std::vector<Input>& inputs_;
  const ArrowSchema& schema_;
  const ArrowArray& array_;
  std::span<const ArrowInput> places_;
  std::int64_t rows_;
  Arena memory_;
  std::vector<WholeColumn> lists_;  // by input; those that are lists
};

}  // namespace emberline::features
