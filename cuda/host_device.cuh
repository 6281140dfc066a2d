// What every header here begins with: how a function is marked that host and device share, and the integer types. NVRTC
// has no <cstdint>.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
// Arithmetic: runs on either side.
#define EMBERLINE_HD __host__ __device__ __forceinline__
// Work of the lanes of a tile, or on memory that others change meanwhile: the device's. Plain C++ to a host's compiler,
// which runs it for the tests.
#define EMBERLINE_DEVICE __device__ __forceinline__
#define EMBERLINE_UNROLL _Pragma("unroll")
#else
#define EMBERLINE_HD inline
#define EMBERLINE_DEVICE inline
#define EMBERLINE_UNROLL
#endif

#if defined(__CUDACC_RTC__)
namespace emberline {
typedef signed long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned int uint32_t;
typedef unsigned short uint16_t;
typedef unsigned char uint8_t;
}  // namespace emberline
#else
#include <cstdint>
namespace emberline {
using std::int64_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;
}  // namespace emberline
#endif
