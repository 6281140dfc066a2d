// The optimizers of training tables: how a row takes a step, once for each instruction set. All sets give the same
// bits: values are added and multiplied in float32 in the same order, without contraction, and sums over a row are made
// in 16 parts that are then folded in halves.
//
// A row is D weights; the optimizer's values, its slots, lie behind them. w weights, g gradient, t steps so far, this
// one included. Every rule is lazy: only rows with a gradient take a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace emberline {

// Slots of a row behind each rule. g is the gradient + weight_decay * w unless the rule says otherwise.
enum class Rule : int {
  kSgd,  // none. w -= lr g
  kMomentum,  // m (D). m = momentum m + g; w -= lr m
  kAdagrad,  // a (D). a += g^2; w -= lr g / (sqrt(a) + eps)
  kRowAdagrad,  // a (1). a += mean(g^2); w -= lr g / (sqrt(a) + eps)
  // a (D), e (1): a was decayed for the last time in period e. a = max(a decay^(period - e), initial), then as Adagrad.
  kAdagradDecay,
  kAdam,  // m (D), v (D). m, v moving averages of g, g^2; w -= lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)
  kAdamW,  // as Adam, g without weight decay; w -= lr weight_decay w first
  kRowAdam,  // m (D), v (1): the moving average of mean(g^2)
  kLamb,  // m (D), v (D). u = Adam's step / lr + weight_decay w; w -= lr |w| / |u| u, lr u where a norm is 0
  // n (D), z (D). s = (sqrt(n + g^2) - sqrt(n)) / lr; z += g - s w; n += g^2;
  // w = 0 where |z| <= l1, else -(z - sign(z) l1) / ((beta + sqrt(n)) / lr + l2). g without weight decay.
  kFtrl,
};
constexpr int kRules = 10;

const char* rule_name(Rule rule);
// Throws std::invalid_argument for a name that is none.
Rule rule_of(const std::string& name);
std::uint32_t slots_of(Rule rule, std::uint32_t dim);
// The slots of a new row. initial: of Adagrad's a and of FTRL's n; every other slot starts at 0.
void start_slots(Rule rule, std::uint32_t dim, float initial, float* slots);

// What a step is made with.
struct Step {
  Rule rule = Rule::kSgd;
  float lr = 0.0f;
  float weight_decay = 0.0f;
  float eps = 0.0f;
  float momentum = 0.0f;
  float beta1 = 0.0f, beta2 = 0.0f;
  // Steps so far, this one included: of Adam and its kin.
  std::uint64_t t = 1;
  // Adagrad with decay.
  float decay = 1.0f, initial = 0.0f;
  std::uint32_t period = 0;
  // FTRL.
  float beta = 0.0f, l1 = 0.0f, l2 = 0.0f;
  // Gradients are multiplied by it before anything else.
  float scale = 1.0f;
  // Then a gradient whose norm is larger is brought to this norm; 0: none is.
  float row_clip = 0.0f;
};

// A gradient of a row: grad (D) * factor, or / factor.
struct Contribution {
  const float* grad;
  float factor;
  bool divides;
};

// Numbers that are the same for all rows of a step.
struct StepNumbers {
  Step step;
  float keep1, keep2;  // 1 - beta1, 1 - beta2
  float corrected_lr;  // lr / (1 - beta1^t)
  float corrected_1;  // 1 / (1 - beta1^t)
  float corrected_root;  // 1 / sqrt(1 - beta2^t)
  float shrink;  // 1 - lr * weight_decay
};
StepNumbers numbers_of(const Step& step);

struct OptimizerLoops {
  // sum (D): the contributions, in order. n > 0.
  void (*sum)(const Contribution* contributions, std::size_t n, std::uint32_t dim, float* sum);
  // grad (D) is overwritten.
  void (*step[kRules])(const StepNumbers& numbers, float* row, float* slots, float* grad, std::uint32_t dim);
  // The sum of squares of n values.
  float (*squares)(const float* values, std::size_t n);
};

const OptimizerLoops& optimizer_loops();

}  // namespace emberline
