#include "cache/policy.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace emberline {
namespace {

constexpr std::uint64_t kSteps = 4;  // quarter octaves, each after kUsesPerRow / kSteps lookups a row
constexpr std::uint64_t kLeastStretch = 1024;
constexpr double kFall = 0.08;     // hits below the usual
constexpr double kNoises = 3;      // times the usual difference between stretches, below it
constexpr double kReturns = 0.015;  // ids outside that come again in the same stretch, above twice the usual
constexpr std::uint64_t kLeastShare =
    8;  // at least one lookup in so many moves the clock, so that nothing stays for ever
constexpr std::uint64_t kQuietRows = 5;
constexpr int kCutOctaves = 6;
constexpr std::uint64_t kMostCells = 1 << 18;  // aged in one call

}  // namespace

FrequencyPolicy::FrequencyPolicy(std::uint64_t capacity_rows)
    : capacity_(std::max<std::uint64_t>(1, capacity_rows)), ghosts_(ghost_cells(capacity_)) {}

std::uint32_t FrequencyPolicy::random() {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return static_cast<std::uint32_t>(random_ >> 32);
}

std::uint8_t FrequencyPolicy::from_uses(std::uint8_t uses_code) {
  return count_code(std::min(count_value(uses_code), kMaxCount / kUse) * kUse, random());
}

std::uint32_t FrequencyPolicy::asked(std::uint64_t mixed, std::uint8_t uses) {
  const Ghosts::Asked ghost = ghosts_.add(mixed, kUse, stretch_, random());
  ++asked_;
  returns_ += ghost.again;
  known_ += ghost.units > kUse;
  return std::max(ghost.units, count_value(from_uses(uses)));
}

std::uint32_t FrequencyPolicy::known(std::uint64_t mixed, std::uint8_t uses) {
  return std::max(ghosts_.count_of(mixed), count_value(from_uses(uses)));
}

void FrequencyPolicy::pass(std::uint64_t lookups, std::uint64_t hits, bool full) {
  if (lookups == 0) return;
  const std::uint64_t clock = std::max(hits + std::exchange(known_, 0), lookups / kLeastShare);
  const double steps = static_cast<double>(clock) * kSteps / (static_cast<double>(capacity_) * kUsesPerRow);
  // A backlog of more than one round would only be worked off long after it meant something.
  due_rows_ = std::min(due_rows_ + steps, 1.0);
  due_cells_ = std::min(due_cells_ + steps, 1.0);
  age_ghosts();
  lookups_ += lookups;
  hits_ += std::min(hits, lookups);
  quiet_ -= std::min(quiet_, lookups);
  settle_ghosts();
  if (lookups_ >= stretch_lookups()) close_stretch(full);
}

std::uint64_t FrequencyPolicy::stretch_lookups() const { return std::max(kLeastStretch, capacity_ / 2); }

// Ages the ghosts as far as the stretch has passed.
void FrequencyPolicy::settle_ghosts() {
  const double share = std::min(1.0, static_cast<double>(lookups_) / static_cast<double>(stretch_lookups()));
  const auto until = static_cast<std::uint64_t>(share * static_cast<double>(ghosts_.cells()));
  for (; settle_hand_ < until; ++settle_hand_) ghosts_.settle(settle_hand_, stretch_);
}

// Hits and returns of one stretch beside the usual. The usual follows slowly what gets worse and quickly what gets
// better. Batches that ask for very different ids make short stretches differ by themselves; only a fall beyond that is
// a change.
void FrequencyPolicy::close_stretch(bool full) {
  const double hits = static_cast<double>(hits_) / static_cast<double>(lookups_);
  const double returns = static_cast<double>(returns_) / static_cast<double>(std::max<std::uint64_t>(asked_, 1));
  lookups_ = hits_ = asked_ = returns_ = 0;
  settle_hand_ = 0;
  ++stretch_;
  if (!full || resizing_ || usual_hits_ < 0) {
    usual_hits_ = hits;
    usual_returns_ = returns;
    return;
  }
  const double fall = std::max(kFall, kNoises * noise_);
  if (quiet_ == 0 && hits < usual_hits_ - fall && returns > 2 * usual_returns_ + kReturns) {
    change_ = true;
    ++changes_;
    quiet_ = capacity_ * kQuietRows;
    usual_hits_ = hits;
    usual_returns_ = returns;
    return;
  }
  noise_ += (std::abs(hits - usual_hits_) - noise_) * 0.2;
  usual_hits_ += (hits - usual_hits_) * (hits > usual_hits_ ? 0.5 : 0.05);
  usual_returns_ += (returns - usual_returns_) * (returns < usual_returns_ ? 0.5 : 0.05);
}

// The fading of one step: a quarter of an octave, what lies between two counts by chance.
std::uint32_t FrequencyPolicy::faded(std::uint32_t units) {
  const std::uint64_t scaled = std::uint64_t{units} * 55109;  // 2^16 * 2^(-1/4)
  return static_cast<std::uint32_t>(scaled >> 16) + ((random() & 0xFFFF) < (scaled & 0xFFFF) ? 1 : 0);
}

std::uint8_t FrequencyPolicy::aged(std::uint8_t code) { return count_code(faded(count_value(code)), random()); }

std::uint8_t FrequencyPolicy::cut(std::uint8_t code) {
  const std::uint32_t units = count_value(code);
  const std::uint32_t rest = units & ((1u << kCutOctaves) - 1);
  return count_code((units >> kCutOctaves) + ((random() & ((1u << kCutOctaves) - 1)) < rest ? 1 : 0), random());
}

std::uint64_t FrequencyPolicy::due(std::uint64_t buckets, std::uint64_t most) {
  const auto count = std::min(static_cast<std::uint64_t>(due_rows_ * static_cast<double>(buckets)), most);
  due_rows_ -= static_cast<double>(count) / static_cast<double>(buckets);
  return count;
}

void FrequencyPolicy::age_ghosts() {
  const std::uint64_t cells = ghosts_.cells();
  const auto count = std::min(static_cast<std::uint64_t>(due_cells_ * static_cast<double>(cells)), kMostCells);
  due_cells_ -= static_cast<double>(count) / static_cast<double>(cells);
  for (std::uint64_t i = 0; i < count; ++i) {
    ghosts_.age(ghost_hand_, [&](std::uint32_t units) { return faded(units); });
    if (++ghost_hand_ >= cells) ghost_hand_ = 0;
  }
}

bool FrequencyPolicy::take_change() {
  if (!change_) return false;
  change_ = false;
  // Ghosts from before the change know nothing of what comes.
  ghosts_ = Ghosts(ghost_cells(capacity_));
  return true;
}

void FrequencyPolicy::resize(std::uint64_t capacity_rows) {
  capacity_ = std::max<std::uint64_t>(1, capacity_rows);
  ghosts_ = Ghosts(ghost_cells(capacity_));
  ghost_hand_ = settle_hand_ = 0;
  lookups_ = hits_ = asked_ = returns_ = 0;
  usual_hits_ = usual_returns_ = -1;
  quiet_ = 0;
  resizing_ = false;
}

}  // namespace emberline
