#include "rows/isa.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "rows/kernels.h"

namespace emberline {
namespace {

constexpr const char* kNames[kIsas] = {"portable", "avx2", "avx512", "neon"};

std::vector<Isa> found() {
  std::vector<Isa> sets{Isa::kPortable};
#if defined(__SANITIZE_THREAD__)
  // Vector loads of words that a writer changes are no atomics to ThreadSanitizer: it sees the plain loops.
#elif defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    sets.push_back(Isa::kAvx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
      sets.push_back(Isa::kAvx512);
    }
  }
#elif defined(__aarch64__)
  sets.push_back(Isa::kNeon);
#endif
  return sets;
}

std::atomic<Isa>& chosen() {
  static std::atomic<Isa> isa{isas().back()};
  return isa;
}

}  // namespace

const char* isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

const std::vector<Isa>& isas() {
  static const std::vector<Isa> sets = found();
  return sets;
}

Isa isa() { return chosen().load(std::memory_order_relaxed); }

void set_isa(const std::string& name) {
  std::string known;
  for (const Isa candidate : isas()) {
    if (name == isa_name(candidate)) {
      chosen().store(candidate, std::memory_order_relaxed);
      return;
    }
    known += std::string(known.empty() ? "" : ", ") + isa_name(candidate);
  }
  throw std::invalid_argument("isa: expected one of " + known + " on this machine, got " + name);
}

#if defined(__x86_64__)
const RowKernels& row_kernels(Isa isa) {
  return isa == Isa::kAvx512 ? kAvx512Rows : isa == Isa::kAvx2 ? kAvx2Rows : kPortableRows;
}
#elif defined(__aarch64__)
const RowKernels& row_kernels(Isa isa) { return isa == Isa::kNeon ? kNeonRows : kPortableRows; }
#else
const RowKernels& row_kernels(Isa) { return kPortableRows; }
#endif

}  // namespace emberline
