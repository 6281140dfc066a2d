#include "training/optimizer.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "rows/isa.h"

namespace emberline {
namespace {

constexpr const char* kNames[kRules] = {
    "sgd", "momentum", "adagrad", "rowwise_adagrad", "adagrad_decay", "adam", "adamw", "rowwise_adam", "lamb", "ftrl"};

}  // namespace

extern const OptimizerLoops kPortableOptimizer, kAvx2Optimizer, kAvx512Optimizer;

const char* rule_name(Rule rule) { return kNames[static_cast<int>(rule)]; }

Rule rule_of(const std::string& name) {
  std::string known;
  for (int i = 0; i < kRules; ++i) {
    if (name == kNames[i]) return static_cast<Rule>(i);
    known += (i == 0 ? "" : i + 1 == kRules ? " or " : ", ") + std::string(kNames[i]);
  }
  throw std::invalid_argument("optimizer: expected " + known + ", got '" + name + "'");
}

std::uint32_t slots_of(Rule rule, std::uint32_t dim) {
  switch (rule) {
    case Rule::kSgd: return 0;
    case Rule::kMomentum:
    case Rule::kAdagrad: return dim;
    case Rule::kRowAdagrad: return 1;
    case Rule::kAdagradDecay:
    case Rule::kRowAdam: return dim + 1;
    case Rule::kAdam:
    case Rule::kAdamW:
    case Rule::kLamb:
    case Rule::kFtrl: break;
  }
  return 2 * dim;
}

void start_slots(Rule rule, std::uint32_t dim, float initial, float* slots) {
  std::fill_n(slots, slots_of(rule, dim), 0.0f);
  switch (rule) {
    case Rule::kAdagrad:
    case Rule::kAdagradDecay:
    case Rule::kFtrl: std::fill_n(slots, dim, initial); break;
    case Rule::kRowAdagrad: slots[0] = initial; break;
    default: break;
  }
}

StepNumbers numbers_of(const Step& step) {
  StepNumbers made{};
  made.step = step;
  const auto t = static_cast<double>(step.t);
  const double left1 = 1.0 - std::pow(static_cast<double>(step.beta1), t);
  const double left2 = 1.0 - std::pow(static_cast<double>(step.beta2), t);
  made.keep1 = static_cast<float>(1.0 - static_cast<double>(step.beta1));
  made.keep2 = static_cast<float>(1.0 - static_cast<double>(step.beta2));
  made.corrected_lr = static_cast<float>(static_cast<double>(step.lr) / left1);
  made.corrected_1 = static_cast<float>(1.0 / left1);
  made.corrected_root = static_cast<float>(1.0 / std::sqrt(left2));
  made.shrink = static_cast<float>(1.0 - static_cast<double>(step.lr) * static_cast<double>(step.weight_decay));
  return made;
}

const OptimizerLoops& optimizer_loops() {
#if defined(__x86_64__)
  if (isa() == Isa::kAvx512) return kAvx512Optimizer;
  if (isa() == Isa::kAvx2) return kAvx2Optimizer;
#endif
  return kPortableOptimizer;
}

}  // namespace emberline
