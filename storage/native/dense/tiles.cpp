#include "dense/tiles.h"

#include <algorithm>

#include "rows/scalar.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace emberline::dense {

#if defined(__x86_64__)
namespace {

bool ask_for_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;  // leaf 7, EDX
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBf16) == 0 || (d & kTile) == 0) return false;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0 || (a & (1u << 5)) == 0) return false;  // AVX512_BF16
  // Linux gives a process the registers of tiles when it asks: ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA.
  return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

}  // namespace

bool has_tiles() {
  static const bool has = ask_for_tiles();
  return has && isa() == Isa::kAvx512;
}
#else
bool has_tiles() { return false; }
void linear_in_tiles(Rows, std::size_t, const Tiles&, Activation, OutRows, std::uint16_t*) {}
#endif

PackedLinear pack_tiles(const LinearWeights& from) {
  PackedLinear packed;
  packed.in = from.in;
  packed.out = from.out;
  packed.padded_out = (from.out + kTileColumns - 1) / kTileColumns * kTileColumns;
  const std::uint32_t depth = (from.in + kTileDepth - 1) / kTileDepth * kTileDepth;
  packed.tiles.assign(std::size_t{packed.padded_out} * depth, 0);
  packed.bias.assign(packed.padded_out, 0.0f);
  if (from.bias != nullptr) std::copy_n(from.bias, from.out, packed.bias.begin());
  for (std::uint32_t k = 0; k < from.in; ++k) {
    for (std::uint32_t c = 0; c < from.out; ++c) {
      const float value =
          from.weight[static_cast<std::ptrdiff_t>(c) * from.out_step + static_cast<std::ptrdiff_t>(k) * from.in_step];
      const std::size_t tile = std::size_t{c / kTileColumns} * (depth / kTileDepth) + k / kTileDepth;
      const std::uint32_t pair = k % kTileDepth / 2, column = c % kTileColumns;
      packed.tiles[tile * kTileValues + (pair * kTileColumns + column) * 2 + k % 2] = to_bfloat(value);
    }
  }
  return packed;
}

}  // namespace emberline::dense
