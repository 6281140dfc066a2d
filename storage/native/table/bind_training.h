// TrainingTable for Python, in two files.
#pragma once

#include <nanobind/nanobind.h>

#include "table/bind_arrays.h"
#include "table/training.h"

namespace emberline::bind {

namespace nb = nanobind;
using namespace nb::literals;

void bind_training_tier(nb::class_<TrainingTable>& table);

}  // namespace emberline::bind
