// Loads and stores of memory that a GPU's other kernels change meanwhile: with the order that the protocol asks for,
// and never from a first-level cache that has not heard of the change. PTX on a GPU, the compiler's atomics on a host.
//
// Of a GPU's own memory the order holds for the threads of that GPU; the loads and stores that end in _system are for
// memory that another GPU reads or changes. A release is always the system's: it stands for whoever acquires.
#pragma once

#include "host_device.cuh"

namespace emberline {

// Two of the ids of a bucket, by one load of 16 bytes. Each is a word of its own; the two are not one.
struct IdPair {
  int64_t low, high;
};

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

EMBERLINE_DEVICE int64_t load_relaxed(const int64_t* from) {
  int64_t value;
  asm volatile("ld.relaxed.gpu.global.s64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

EMBERLINE_DEVICE IdPair load_pair_relaxed(const int64_t* from) {
  IdPair pair;
  asm volatile("ld.relaxed.gpu.global.v2.s64 {%0, %1}, [%2];" : "=l"(pair.low), "=l"(pair.high) : "l"(from) : "memory");
  return pair;
}

EMBERLINE_DEVICE uint64_t load_acquire(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

EMBERLINE_DEVICE int64_t load_relaxed_system(const int64_t* from) {
  int64_t value;
  asm volatile("ld.relaxed.sys.global.s64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

EMBERLINE_DEVICE IdPair load_pair_relaxed_system(const int64_t* from) {
  IdPair pair;
  asm volatile("ld.relaxed.sys.global.v2.s64 {%0, %1}, [%2];" : "=l"(pair.low), "=l"(pair.high) : "l"(from) : "memory");
  return pair;
}

EMBERLINE_DEVICE uint64_t load_acquire_system(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

EMBERLINE_DEVICE void store_release(uint64_t* to, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(to), "l"(value) : "memory");
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

inline int64_t load_relaxed(const int64_t* from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }
inline IdPair load_pair_relaxed(const int64_t* from) { return {load_relaxed(from), load_relaxed(from + 1)}; }
inline uint64_t load_acquire(const uint64_t* from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }
inline int64_t load_relaxed_system(const int64_t* from) { return load_relaxed(from); }
inline IdPair load_pair_relaxed_system(const int64_t* from) { return load_pair_relaxed(from); }
inline uint64_t load_acquire_system(const uint64_t* from) { return load_acquire(from); }
inline void store_release(uint64_t* to, uint64_t value) { __atomic_store_n(to, value, __ATOMIC_RELEASE); }
inline void store_relaxed(uint8_t* to, uint8_t value) { __atomic_store_n(to, value, __ATOMIC_RELAXED); }
inline void store_relaxed_system(uint8_t* to, uint8_t value) { store_relaxed(to, value); }
inline uint64_t fetch_add(uint64_t* to, uint64_t count) { return __atomic_fetch_add(to, count, __ATOMIC_RELAXED); }

#endif

}  // namespace emberline
