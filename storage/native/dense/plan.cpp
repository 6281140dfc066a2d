#include "dense/plan.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "dense/tiles.h"

namespace emberline::dense {
namespace {

// Rows that go through all steps before the next ones: what they need stays in the second-level cache. A multiple of
// the rows of a tile.
constexpr std::size_t kBlockRows = 48;
// Floats that a whole vector may read behind what it needs.
constexpr std::size_t kOverread = 16;

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(std::string("dense plan: ") + what);
}

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

std::size_t square_floats(const PairsStep& step, std::size_t n) {
  const std::size_t stride = (n + 15) / 16 * 16;
  return (step.dim + n) * stride + kOverread;
}

// Memory of one thread. It grows to what its largest plan needs.
float* scratch(std::size_t floats) {
  thread_local Lines<float> memory;
  if (memory.size() < floats) memory = Lines<float>(floats);
  return memory.data();
}

// Runs the steps over one block.
class Block {
 public:
  Block(const PackedWeights& weights, const std::vector<OutRows>& values, std::size_t rows, float* step_memory)
      : weights_(weights), kernels_(*weights.kernels), values_(values), rows_(rows), step_memory_(step_memory) {}

  void operator()(const LinearStep& step) const {
    const PackedLinear& linear = weights_.linears[step.weights];
    const Panels panels = linear.panels();
    const Tiles tiles{linear.in, linear.out, linear.tiles.data(), linear.bias.data()};
    Rows from = read(step.from);
    OutRows to = values_[step.to.value];
    to.data += step.to.offset;
    for (std::uint32_t i = 0; i < step.count; ++i, from.data += step.in, to.data += step.out) {
      if (linear.tiles.empty()) {
        kernels_.linear(from, rows_, panels, step.activation, to);
      } else {
        linear_in_tiles(from, rows_, tiles, step.activation, to, reinterpret_cast<std::uint16_t*>(step_memory_));
      }
    }
  }

  void operator()(const PairsStep& step) const {
    const std::size_t n = step.vectors.size();
    const PairRuns& pairs = weights_.indices[step.index];
    float* transposed = step_memory_ + n * kernels_.square_stride(n) + kOverread;
    const float* vectors[kMaxVectors];
    std::size_t strides[kMaxVectors];
    for (std::size_t i = 0; i < n; ++i) {
      vectors[i] = at(step.vectors[i], 0);
      strides[i] = values_[step.vectors[i].value].stride;
    }
    for (std::size_t row = 0; row < rows_; ++row) {
      float* to = at(step.to, row);
      if (pairs.is_triangle) {
        kernels_.triangle(vectors, n, step.dim, transposed, to);
      } else {
        kernels_.square(vectors, n, step.dim, transposed, step_memory_);
        kernels_.take_runs(step_memory_, pairs.runs.data(), pairs.runs.size(), to, step.width);
      }
      for (std::size_t i = 0; i < n; ++i) vectors[i] += strides[i];
    }
  }

  void operator()(const CopyStep& step) const {
    // Rows of embeddings are often as wide as this; copying them is then a few instructions.
    switch (step.width) {
      case 8: return copy_rows<8>(step);
      case 16: return copy_rows<16>(step);
      case 32: return copy_rows<32>(step);
      default:
        for (std::size_t row = 0; row < rows_; ++row) std::copy_n(at(step.from, row), step.width, at(step.to, row));
    }
  }
  void operator()(const ActivateStep& step) const {
    for (std::size_t row = 0; row < rows_; ++row) {
      kernels_.activate(step.activation, at(step.from, row), step.width, at(step.to, row));
    }
  }
  void operator()(const CombineStep& step) const {
    for (std::size_t row = 0; row < rows_; ++row) {
      kernels_.combine(step.operation, at(step.a, row), at(step.b, row), step.width, at(step.to, row));
    }
  }
  void operator()(const SumStep& step) const {
    for (std::size_t row = 0; row < rows_; ++row) {
      kernels_.sum(at(step.from, row), step.outer, step.middle, step.inner, at(step.to, row));
    }
  }

 private:
  template <std::size_t kWidth>
  void copy_rows(const CopyStep& step) const {
    const Rows from = read(step.from);
    const OutRows to = {at(step.to, 0), values_[step.to.value].stride};
    for (std::size_t row = 0; row < rows_; ++row) {
      std::memcpy(to.data + row * to.stride, from.data + row * from.stride, kWidth * sizeof(float));
    }
  }
  float* at(const Part& part, std::size_t row) const {
    const OutRows& value = values_[part.value];
    return value.data + row * value.stride + part.offset;
  }
  Rows read(const Part& part) const {
    const OutRows& value = values_[part.value];
    return {value.data + part.offset, value.stride};
  }

  const PackedWeights& weights_;
  const DenseKernels& kernels_;
  const std::vector<OutRows>& values_;
  std::size_t rows_;
  // For what one step needs beside its values.
  float* step_memory_;
};

}  // namespace

std::size_t PackedWeights::bytes() const {
  std::size_t total = 0;
  for (const PackedLinear& linear : linears) total += linear.bytes();
  for (const PairRuns& index : indices) total += index.runs.size() * sizeof(Run);
  for (const auto& values : constants) total += values.size() * sizeof(float);
  return total;
}

Plan::Plan(std::vector<ValueSpec> values, std::vector<LinearSpec> linears, std::vector<IndexSpec> indices,
           std::vector<Step> steps)
    : values_(std::move(values)), linears_(std::move(linears)), indices_(std::move(indices)), steps_(std::move(steps)) {
  for (const ValueSpec& value : values_) {
    require(value.width > 0 && value.width <= kMaxWidth, "a value's width is out of range");
    if (value.kind == Kind::kScratch || value.kind == Kind::kOfUser) scratch_width_ += value.width;
  }
  for (const LinearSpec& linear : linears_) {
    require(linear.in > 0 && linear.out > 0 && linear.in <= kMaxWidth && linear.out <= kMaxWidth,
            "a matrix's size is out of range");
  }
  for (const IndexSpec& index : indices_) require(index.n > 0 && index.n <= kMaxVectors, "too many vectors");
  for (const Step& step : steps_) {
    std::visit(Overloaded{
                   [&](const LinearStep& s) {
                     require(s.weights < linears_.size(), "no such weights");
                     require(linears_[s.weights].in == s.in && linears_[s.weights].out == s.out,
                             "a matrix of another size");
                     require(s.count > 0 && s.count <= kMaxWidth, "a count is out of range");
                     check_part(s.from, std::size_t{s.count} * s.in, false);
                     check_part(s.to, std::size_t{s.count} * s.out, true);
                     if (linears_[s.weights].is_rounded) {
                       step_floats_ = std::max(step_floats_, rounded_values(kBlockRows, s.in) / 2);
                     }
                   },
                   [&](const PairsStep& s) {
                     require(s.index < indices_.size(), "no such index");
                     require(indices_[s.index].n == s.vectors.size() && indices_[s.index].length == s.width,
                             "an index of other pairs");
                     for (const Part& part : s.vectors) check_part(part, s.dim, false);
                     check_part(s.to, s.width, true);
                     step_floats_ = std::max(step_floats_, square_floats(s, s.vectors.size()));
                   },
                   [&](const CopyStep& s) {
                     check_part(s.from, s.width, false);
                     check_part(s.to, s.width, true);
                   },
                   [&](const ActivateStep& s) {
                     check_part(s.from, s.width, false);
                     check_part(s.to, s.width, true);
                   },
                   [&](const CombineStep& s) {
                     check_part(s.a, s.width, false);
                     check_part(s.b, s.width, false);
                     check_part(s.to, s.width, true);
                   },
                   [&](const SumStep& s) {
                     require(s.outer <= kMaxWidth && s.middle <= kMaxWidth && s.inner <= kMaxWidth && s.middle > 0,
                             "a sum is out of range");
                     check_part(s.from, std::size_t{s.outer} * s.middle * s.inner, false);
                     check_part(s.to, std::size_t{s.outer} * s.inner, true);
                   },
               },
               step);
  }
}

void Plan::check_part(const Part& part, std::size_t width, bool is_written) const {
  require(part.value < values_.size(), "no such value");
  const ValueSpec& value = values_[part.value];
  require(width > 0 && part.offset <= value.width && width <= value.width - part.offset, "a part is outside its value");
  if (is_written) {
    require(value.kind == Kind::kScratch || value.kind == Kind::kOutput, "a step writes what is given");
  }
}

std::size_t Plan::count(Kind kind) const {
  return static_cast<std::size_t>(
      std::count_if(values_.begin(), values_.end(), [kind](const ValueSpec& value) { return value.kind == kind; }));
}

std::uint32_t Plan::width(Kind kind, std::size_t place) const {
  for (const ValueSpec& value : values_) {
    if (value.kind == kind && place-- == 0) return value.width;
  }
  throw std::invalid_argument("dense plan: no such value");
}

void Plan::check(const PackedWeights& weights, const Arguments& arguments) const {
  require(weights.kernels != nullptr && weights.linears.size() == linears_.size() &&
              weights.indices.size() == indices_.size() && weights.constants.size() == count(Kind::kConstant),
          "the weights of another plan");
  require(arguments.inputs.size() == count(Kind::kInput) && arguments.of_users.size() == count(Kind::kOfUser) &&
              arguments.outputs.size() == count(Kind::kOutput),
          "other inputs or outputs");
  if (arguments.of_users.empty()) return;
  require(arguments.user_of_row != nullptr || arguments.rows == 0, "no users of the rows");
  for (std::size_t row = 0; row < arguments.rows; ++row) {
    const std::int64_t user = arguments.user_of_row[row];
    require(user >= 0 && static_cast<std::size_t>(user) < arguments.users, "a row's user is not there");
  }
}

void Plan::run(const PackedWeights& weights, const Arguments& arguments) const {
  check(weights, arguments);
  const std::size_t block_rows = std::min(arguments.rows, kBlockRows);
  float* const memory = scratch(step_floats_ + scratch_width_ * block_rows);
  std::vector<OutRows> values(values_.size());
  for (std::size_t first = 0; first < arguments.rows; first += kBlockRows) {
    const std::size_t rows = std::min(arguments.rows - first, kBlockRows);
    float* free = memory + step_floats_;
    std::size_t inputs = 0, of_users = 0, constants = 0, outputs = 0;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const std::uint32_t width = values_[i].width;
      OutRows& value = values[i];
      switch (values_[i].kind) {
        // What is given is only read: `check_part` has refused steps that would write it.
        case Kind::kInput: value = {const_cast<float*>(arguments.inputs[inputs++]) + first * width, width}; break;
        case Kind::kConstant: value = {const_cast<float*>(weights.constants[constants++].data()), 0}; break;
        case Kind::kOutput: value = {arguments.outputs[outputs++] + first * width, width}; break;
        case Kind::kScratch:
          value = {free, width};
          free += width * block_rows;
          break;
        case Kind::kOfUser: {
          const float* given = arguments.of_users[of_users++];
          value = {free, width};
          free += width * block_rows;
          for (std::size_t row = 0; row < rows; ++row) {
            const auto user = static_cast<std::size_t>(arguments.user_of_row[first + row]);
            std::copy_n(given + user * width, width, value.data + row * width);
          }
        }
      }
    }
    const Block block(weights, values, rows, memory);
    for (const Step& step : steps_) std::visit(block, step);
  }
}

}  // namespace emberline::dense
