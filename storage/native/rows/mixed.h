// 64 mixed bits of a number: an addition, then the finaliser of SplitMix64 (Steele, Lea and Flood, 2014), a bijection.
// Filters of page files and fingerprints in manifests hold what it returns, so it may not change.
#pragma once

#include <cstdint>

namespace emberline {

inline std::uint64_t mixed(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15u;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

}  // namespace emberline
