// The parts of the Python module.
#pragma once

#include <nanobind/nanobind.h>

namespace emberline::bind {

void bind_files(nanobind::module_& m);

}  // namespace emberline::bind
