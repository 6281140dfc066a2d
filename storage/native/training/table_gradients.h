// The gradients of a table's rows, and the steps that they make. N ids.
//
// Work is divided among threads by rows, and every sum is made by one thread in the order of the ids, so results do not
// depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "training/optimizer.h"
#include "training/training_table.h"

namespace emberline {

// What a table gets from the gradients of a lookup.
class TableGradients {
 public:
  // grads (N, D): one for each of the ids; they must stay where they are until the step.
  static TableGradients of_rows(TrainingTable& table, const std::int64_t* ids, std::size_t n, const float* grads);
  // The gradients of several lookups of one table, in the order given.
  static TableGradients merged(const std::vector<const TableGradients*>& parts);

  // Makes `starts` of the counts that were found, and room for the contributions.
  void set_starts();

  FoundRows found;
  std::vector<std::uint32_t> starts;  // (ids + 1): where the contributions of each id begin
  std::vector<Contribution> contributions;
};

// What a step works on: tables, each once, and their gradients.
struct TableStep {
  TrainingTable* table = nullptr;
  TableGradients* gradients = nullptr;
};

// Steps every row that has a gradient. step.t is set from each table. Returns the rows stepped.
std::size_t step_tables(const std::vector<TableStep>& tables, const Step& step, std::size_t threads);
// The sum of squares of the gradients of all rows that would take a step.
double squared_norm(const std::vector<TableStep>& tables, std::size_t threads);

}  // namespace emberline
