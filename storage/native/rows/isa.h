// The instruction set that the loops of the core use. It is chosen once, by what the processor has; all sets give the
// same bits.
#pragma once

#include <string>
#include <vector>

namespace emberline {

enum class Isa : int { kPortable = 0, kAvx2 = 1, kAvx512 = 2, kNeon = 3 };
constexpr int kIsas = 4;

const char* isa_name(Isa isa);
// Returns the sets that this processor and this build have, the best one last.
const std::vector<Isa>& isas();
Isa isa();
// Sets the instruction set, for tests; running calls finish with the one they began with. Throws std::invalid_argument
// for a set that is not there.
void set_isa(const std::string& name);

}  // namespace emberline
