// Training tables for Python, in several files.
#pragma once

#include <nanobind/nanobind.h>

#include "table/bind_arrays.h"
#include "training/training_table.h"

namespace emberline::bind {

namespace nb = nanobind;
using namespace nb::literals;

void bind_training_tier(nb::class_<TrainingTable>& table);
void bind_eviction(nb::class_<TrainingTable>& table);
void bind_bloom(nb::class_<TrainingTable>& table);
void bind_batch_lookup(nb::module_& module);
void bind_pairs(nb::module_& module);

// Rows beside a table; both None, or both given.
inline SideRows side_of(const TrainingTable& table, nb::handle ids, nb::handle rows) {
  if (ids.is_none() && rows.is_none()) return {};
  const Ids id = Ids::of_rank(1, ids, "side_ids");
  const Floats row(rows, "side_rows", {id.size(), table.dim()});
  return {id.data(), id.size(), row.data()};
}

}  // namespace emberline::bind
