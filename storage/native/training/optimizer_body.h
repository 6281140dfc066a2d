// The bodies of OptimizerLoops. A file includes this in an unnamed namespace.

constexpr std::uint32_t kParts = 16;

// Folds 16 parts in halves.
inline float fold(float* parts) {
  for (std::uint32_t width = kParts / 2; width > 0; width /= 2) {
    for (std::uint32_t part = 0; part < width; ++part) parts[part] += parts[part + width];
  }
  return parts[0];
}

float squares(const float* __restrict values, std::size_t n) {
  float parts[kParts] = {};
  std::size_t d = 0;
  for (; d + kParts <= n; d += kParts) {
    for (std::uint32_t part = 0; part < kParts; ++part) parts[part] += values[d + part] * values[d + part];
  }
  for (std::uint32_t part = 0; d < n; ++d, ++part) parts[part] += values[d] * values[d];
  return fold(parts);
}

void sum(const Contribution* contributions, std::size_t n, std::uint32_t dim, float* __restrict total) {
  for (std::size_t i = 0; i < n; ++i) {
    const Contribution& each = contributions[i];
    const float* __restrict grad = each.grad;
    const float factor = each.factor;
    if (i == 0) {
      if (each.divides) {
        for (std::uint32_t d = 0; d < dim; ++d) total[d] = grad[d] / factor;
      } else {
        for (std::uint32_t d = 0; d < dim; ++d) total[d] = grad[d] * factor;
      }
    } else if (each.divides) {
      for (std::uint32_t d = 0; d < dim; ++d) total[d] += grad[d] / factor;
    } else {
      for (std::uint32_t d = 0; d < dim; ++d) total[d] += grad[d] * factor;
    }
  }
}

// Scales and clips a gradient, and adds the weight decay.
inline void ready(const Step& step, const float* __restrict row, float* __restrict grad, std::uint32_t dim,
                  bool decays) {
  if (step.scale != 1.0f) {
    for (std::uint32_t d = 0; d < dim; ++d) grad[d] *= step.scale;
  }
  if (step.row_clip > 0.0f) {
    const float norm = std::sqrt(squares(grad, dim));
    if (norm > step.row_clip) {
      const float factor = step.row_clip / norm;
      for (std::uint32_t d = 0; d < dim; ++d) grad[d] *= factor;
    }
  }
  if (decays && step.weight_decay != 0.0f) {
    for (std::uint32_t d = 0; d < dim; ++d) grad[d] += step.weight_decay * row[d];
  }
}

void step_sgd(const StepNumbers& numbers, float* __restrict row, float*, float* __restrict grad, std::uint32_t dim) {
  ready(numbers.step, row, grad, dim, true);
  const float lr = numbers.step.lr;
  for (std::uint32_t d = 0; d < dim; ++d) row[d] -= lr * grad[d];
}

void step_momentum(const StepNumbers& numbers, float* __restrict row, float* __restrict slots, float* __restrict grad,
                   std::uint32_t dim) {
  ready(numbers.step, row, grad, dim, true);
  const float lr = numbers.step.lr, momentum = numbers.step.momentum;
  for (std::uint32_t d = 0; d < dim; ++d) {
    const float moment = momentum * slots[d] + grad[d];
    slots[d] = moment;
    row[d] -= lr * moment;
  }
}

inline void adagrad(const Step& step, float* __restrict row, float* __restrict slots, const float* __restrict grad,
                    std::uint32_t dim) {
  const float lr = step.lr, eps = step.eps;
  for (std::uint32_t d = 0; d < dim; ++d) {
    const float total = slots[d] + grad[d] * grad[d];
    slots[d] = total;
    row[d] -= lr * grad[d] / (std::sqrt(total) + eps);
  }
}

void step_adagrad(const StepNumbers& numbers, float* __restrict row, float* __restrict slots, float* __restrict grad,
                  std::uint32_t dim) {
  ready(numbers.step, row, grad, dim, true);
  adagrad(numbers.step, row, slots, grad, dim);
}

void step_row_adagrad(const StepNumbers& numbers, float* __restrict row, float* __restrict slots,
                      float* __restrict grad, std::uint32_t dim) {
  ready(numbers.step, row, grad, dim, true);
  slots[0] += squares(grad, dim) / static_cast<float>(dim);
  const float root = std::sqrt(slots[0]) + numbers.step.eps, lr = numbers.step.lr;
  for (std::uint32_t d = 0; d < dim; ++d) row[d] -= lr * grad[d] / root;
}

void step_adagrad_decay(const StepNumbers& numbers, float* __restrict row, float* __restrict slots,
                        float* __restrict grad, std::uint32_t dim) {
  const Step& step = numbers.step;
  ready(step, row, grad, dim, true);
  // Periods are whole numbers that a float32 holds exactly.
  const auto last = static_cast<std::uint32_t>(slots[dim]);
  if (step.period > last) {
    float factor = 1.0f, power = step.decay;
    for (std::uint32_t left = step.period - last; left > 0; left /= 2) {
      if (left % 2 == 1) factor *= power;
      power *= power;
    }
    for (std::uint32_t d = 0; d < dim; ++d) {
      const float decayed = slots[d] * factor;
      slots[d] = decayed < step.initial ? step.initial : decayed;
    }
    slots[dim] = static_cast<float>(step.period);
  }
  adagrad(step, row, slots, grad, dim);
}

// moments: m (D), v (D).
inline void adam(const StepNumbers& numbers, float* __restrict row, float* __restrict moments,
                 const float* __restrict grad, std::uint32_t dim) {
  const float beta1 = numbers.step.beta1, beta2 = numbers.step.beta2, eps = numbers.step.eps;
  const float keep1 = numbers.keep1, keep2 = numbers.keep2;
  const float lr = numbers.corrected_lr, root = numbers.corrected_root;
  float* __restrict squared = moments + dim;
  for (std::uint32_t d = 0; d < dim; ++d) {
    const float m = beta1 * moments[d] + keep1 * grad[d];
    const float v = beta2 * squared[d] + keep2 * (grad[d] * grad[d]);
    moments[d] = m;
    squared[d] = v;
    row[d] -= lr * m / (std::sqrt(v) * root + eps);
  }
}

void step_adam(const StepNumbers& numbers, float* __restrict row, float* __restrict slots, float* __restrict grad,
               std::uint32_t dim) {
  ready(numbers.step, row, grad, dim, true);
  adam(numbers, row, slots, grad, dim);
}

void step_adamw(const StepNumbers& numbers, float* __restrict row, float* __restrict slots, float* __restrict grad,
                std::uint32_t dim) {
  ready(numbers.step, row, grad, dim, false);
  if (numbers.step.weight_decay != 0.0f) {
    for (std::uint32_t d = 0; d < dim; ++d) row[d] *= numbers.shrink;
  }
  adam(numbers, row, slots, grad, dim);
}

void step_row_adam(const StepNumbers& numbers, float* __restrict row, float* __restrict slots, float* __restrict grad,
                   std::uint32_t dim) {
  ready(numbers.step, row, grad, dim, true);
  const float beta1 = numbers.step.beta1, keep1 = numbers.keep1, lr = numbers.corrected_lr;
  const float v = numbers.step.beta2 * slots[dim] + numbers.keep2 * (squares(grad, dim) / static_cast<float>(dim));
  slots[dim] = v;
  const float root = std::sqrt(v) * numbers.corrected_root + numbers.step.eps;
  for (std::uint32_t d = 0; d < dim; ++d) {
    const float m = beta1 * slots[d] + keep1 * grad[d];
    slots[d] = m;
    row[d] -= lr * m / root;
  }
}

void step_lamb(const StepNumbers& numbers, float* __restrict row, float* __restrict slots, float* __restrict grad,
               std::uint32_t dim) {
  ready(numbers.step, row, grad, dim, false);
  const float beta1 = numbers.step.beta1, beta2 = numbers.step.beta2, eps = numbers.step.eps;
  const float keep1 = numbers.keep1, keep2 = numbers.keep2, decay = numbers.step.weight_decay;
  const float first = numbers.corrected_1, root = numbers.corrected_root;
  float* __restrict squared = slots + dim;
  for (std::uint32_t d = 0; d < dim; ++d) {
    const float m = beta1 * slots[d] + keep1 * grad[d];
    const float v = beta2 * squared[d] + keep2 * (grad[d] * grad[d]);
    slots[d] = m;
    squared[d] = v;
    grad[d] = first * m / (std::sqrt(v) * root + eps) + decay * row[d];
  }
  const float weights = std::sqrt(squares(row, dim)), update = std::sqrt(squares(grad, dim));
  const float trust = weights > 0.0f && update > 0.0f ? weights / update : 1.0f;
  const float rate = numbers.step.lr * trust;
  for (std::uint32_t d = 0; d < dim; ++d) row[d] -= rate * grad[d];
}

void step_ftrl(const StepNumbers& numbers, float* __restrict row, float* __restrict slots, float* __restrict grad,
               std::uint32_t dim) {
  ready(numbers.step, row, grad, dim, false);
  const float lr = numbers.step.lr, beta = numbers.step.beta, l1 = numbers.step.l1, l2 = numbers.step.l2;
  float* __restrict linear = slots + dim;
  for (std::uint32_t d = 0; d < dim; ++d) {
    const float total = slots[d] + grad[d] * grad[d];
    const float root = std::sqrt(total);
    const float z = linear[d] + (grad[d] - (root - std::sqrt(slots[d])) / lr * row[d]);
    slots[d] = total;
    linear[d] = z;
    const float size = z < 0.0f ? -z : z;
    const float pulled = z < 0.0f ? z + l1 : z - l1;
    row[d] = size <= l1 ? 0.0f : -pulled / ((beta + root) / lr + l2);
  }
}

constexpr OptimizerLoops kOptimizer = {
    sum,
    {step_sgd, step_momentum, step_adagrad, step_row_adagrad, step_adagrad_decay, step_adam, step_adamw, step_row_adam,
     step_lamb, step_ftrl},
    squares,
};
