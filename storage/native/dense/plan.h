// A dense graph as steps over blocks of rows. Built once, then immutable, so any number of threads may run it.
//
// B rows of a batch, U rows of users. A value has a fixed number of floats a row. Steps read and write parts of values,
// so that what is concatenated is written where it is read.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "dense/kernels.h"

namespace emberline::dense {

// Bounds on what a plan may ask for, so that no size overflows.
constexpr std::uint32_t kMaxWidth = 1u << 24;
constexpr std::uint32_t kMaxVectors = 256;

// Floats of one row of a value, from `offset` on.
struct Part {
  std::uint32_t value, offset;
};

// For `count` stretches of a row, one behind the other: to = activation(from * weights + bias).
struct LinearStep {
  Part from, to;
  std::uint32_t in, out, count;
  // The place of its weights among the linear ones.
  std::uint32_t weights;
  Activation activation;
};
// The products of all pairs of vectors that an index takes.
struct PairsStep {
  std::vector<Part> vectors;
  std::uint32_t dim, width;
  // The place of its index among the indices.
  std::uint32_t index;
  Part to;
};
struct CopyStep {
  Part from, to;
  std::uint32_t width;
};
struct ActivateStep {
  Part from, to;
  std::uint32_t width;
  Activation activation;
};
struct CombineStep {
  Part a, b, to;
  std::uint32_t width;
  Binary operation;
};
// from (outer, middle, inner) -> to (outer, inner)
struct SumStep {
  Part from, to;
  std::uint32_t outer, middle, inner;
};
using Step = std::variant<LinearStep, PairsStep, CopyStep, ActivateStep, CombineStep, SumStep>;

// Where a value comes from.
enum class Kind : std::uint8_t {
  kInput,  // (B, width), given
  kOfUser,  // (U, width), given; row r of the batch takes the row that the batch's index of users has for it
  kConstant,  // (width), given with the weights, the same for every row
  kScratch,  // written by steps, read by later ones
  kOutput,  // (B, width), written by steps for the caller
};
struct ValueSpec {
  Kind kind;
  std::uint32_t width;
};

struct LinearSpec {
  std::uint32_t in, out;
  // Whether its products may be computed in bfloat16.
  bool is_rounded;
};
struct IndexSpec {
  // An index into the products of all pairs of n vectors, and its length.
  std::uint32_t n, length;
};

// The weights of one snapshot, for one plan and one instruction set. Immutable once it is filled.
struct PackedWeights {
  const DenseKernels* kernels = nullptr;
  std::vector<PackedLinear> linears;
  std::vector<PairRuns> indices;
  std::vector<Lines<float>> constants;

  std::size_t bytes() const;
};

// What a run reads and writes: addresses of the inputs, rows of users, and outputs, in the order of the values.
struct Arguments {
  std::vector<const float*> inputs;
  std::vector<const float*> of_users;
  std::vector<float*> outputs;
  std::size_t rows = 0;
  // (B), each row's user, below `users`; null without values of users.
  const std::int64_t* user_of_row = nullptr;
  std::size_t users = 0;
};

class Plan {
 public:
  // Throws std::invalid_argument for a step that reads or writes outside its values.
  Plan(std::vector<ValueSpec> values, std::vector<LinearSpec> linears, std::vector<IndexSpec> indices,
       std::vector<Step> steps);

  // Throws std::invalid_argument where `weights` are not those of this plan, or a row's user is not there.
  void run(const PackedWeights& weights, const Arguments& arguments) const;

  std::size_t count(Kind kind) const;
  std::uint32_t width(Kind kind, std::size_t place) const;
  const std::vector<LinearSpec>& linears() const { return linears_; }
  const std::vector<IndexSpec>& indices() const { return indices_; }

 private:
  void check_part(const Part& part, std::size_t width, bool is_written) const;
  void check(const PackedWeights& weights, const Arguments& arguments) const;

  std::vector<ValueSpec> values_;
  std::vector<LinearSpec> linears_;
  std::vector<IndexSpec> indices_;
  std::vector<Step> steps_;
  // Floats of a row in scratch memory, and the most that a step needs beside its values.
  std::size_t scratch_width_ = 0;
  std::size_t step_floats_ = 0;
};

}  // namespace emberline::dense
