// Runs all cases once for each instruction set that is here.
#pragma once

#include <cstdio>

#include "check.h"
#include "rows/isa.h"

#define RUN_ALL_TESTS_ON_EVERY_ISA()                     \
  int main() {                                           \
    int failed = 0;                                      \
    for (const emberline::Isa set : emberline::isas()) { \
      std::printf("%s\n", emberline::isa_name(set));     \
      emberline::set_isa(emberline::isa_name(set));      \
      failed |= check::run_all();                        \
    }                                                    \
    return failed;                                       \
  }
