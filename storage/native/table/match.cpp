#include "table/match.h"

namespace emberline {

extern const MatchBlock kMatchPortable, kMatchAvx2, kMatchAvx512, kMatchNeon;

#if defined(__x86_64__)
MatchBlock match_block_of(Isa isa) {
  return isa == Isa::kAvx512 ? kMatchAvx512 : isa == Isa::kAvx2 ? kMatchAvx2 : kMatchPortable;
}
#elif defined(__aarch64__)
MatchBlock match_block_of(Isa isa) { return isa == Isa::kNeon ? kMatchNeon : kMatchPortable; }
#else
MatchBlock match_block_of(Isa) { return kMatchPortable; }
#endif

}  // namespace emberline
