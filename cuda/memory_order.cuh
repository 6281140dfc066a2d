// Loads and stores of memory that a GPU's other kernels change meanwhile. None of them orders anything: the protocol of
// publish.cuh needs no order within a launch, so a thread may have as many loads under way as it likes. They never come
// from a first-level cache that has not heard of a change. PTX on a GPU, the compiler's atomics on a host.
//
// Those that end in _system are for memory that another GPU reads or changes.
#pragma once

#include "host_device.cuh"

namespace emberline {

// Two of the ids or words of a bucket, by one load of 16 bytes. Each is a word of its own; the two are not one.
struct IdPair {
  int64_t low, high;
};

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

EMBERLINE_DEVICE IdPair load_pair_relaxed(const int64_t* from) {
  IdPair pair;
  asm volatile("ld.relaxed.gpu.global.v2.s64 {%0, %1}, [%2];" : "=l"(pair.low), "=l"(pair.high) : "l"(from));
  return pair;
}

EMBERLINE_DEVICE IdPair load_pair_relaxed_system(const int64_t* from) {
  IdPair pair;
  asm volatile("ld.relaxed.sys.global.v2.s64 {%0, %1}, [%2];" : "=l"(pair.low), "=l"(pair.high) : "l"(from));
  return pair;
}

EMBERLINE_DEVICE void store_relaxed_system(uint64_t* to, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(to), "l"(value) : "memory");
}

EMBERLINE_DEVICE void store_relaxed(uint8_t* to, uint8_t value) {
  asm volatile("st.relaxed.gpu.global.u8 [%0], %1;" : : "l"(to), "r"(static_cast<uint32_t>(value)) : "memory");
}

EMBERLINE_DEVICE void store_relaxed_system(uint8_t* to, uint8_t value) {
  asm volatile("st.relaxed.sys.global.u8 [%0], %1;" : : "l"(to), "r"(static_cast<uint32_t>(value)) : "memory");
}

EMBERLINE_DEVICE uint64_t fetch_add(uint64_t* to, uint64_t count) {
  return atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(count));
}

#else

inline IdPair load_pair_relaxed(const int64_t* from) {
  return {__atomic_load_n(from, __ATOMIC_RELAXED), __atomic_load_n(from + 1, __ATOMIC_RELAXED)};
}
inline IdPair load_pair_relaxed_system(const int64_t* from) { return load_pair_relaxed(from); }
inline void store_relaxed_system(uint64_t* to, uint64_t value) { __atomic_store_n(to, value, __ATOMIC_RELAXED); }
inline void store_relaxed(uint8_t* to, uint8_t value) { __atomic_store_n(to, value, __ATOMIC_RELAXED); }
inline void store_relaxed_system(uint8_t* to, uint8_t value) { store_relaxed(to, value); }
inline uint64_t fetch_add(uint64_t* to, uint64_t count) { return __atomic_fetch_add(to, count, __ATOMIC_RELAXED); }

#endif

}  // namespace emberline
