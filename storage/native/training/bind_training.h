// Training tables for Python, in several files.
#pragma once

#include <nanobind/nanobind.h>

#include "table/bind_arrays.h"
#include "training/training_table.h"

namespace emberline::bind {

namespace nb = nanobind;
using namespace nb::literals;

void bind_training_tier(nb::module_& module, nb::class_<TrainingTable>& table);
void bind_eviction(nb::class_<TrainingTable>& table);
void bind_bloom(nb::class_<TrainingTable>& table);
void bind_batch_lookup(nb::module_& module);
void bind_device_rows(nb::module_& module);
void bind_pairs(nb::module_& module);

}  // namespace emberline::bind
