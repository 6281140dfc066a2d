// Small training tables, and what is done to them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "training/batch_lookup.h"

namespace emberline::tests {

struct Made {
  std::uint32_t dim = 4;
  Rule rule = Rule::kAdagrad;
  std::uint64_t seed = 1;
  float scale = 0.5f;
  std::uint32_t admit_after = 1;
  bool evicts = false;
};

// A folder that goes with it.
struct Folder {
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "rows-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }

  std::string path;
};

inline TrainingOptions options(const Made& made) {
  return {made.dim, made.rule,        0.25f, made.seed,  {Initial::kUniform, made.scale},
          {},       made.admit_after, {},    made.evicts};
}

inline std::vector<float> look(TrainingTable& table, const std::vector<std::int64_t>& ids, bool train) {
  std::vector<float> out(ids.size() * table.dim(), -1.0f);
  table.lookup(ids.data(), ids.size(), out.data(), train);
  return out;
}

inline std::size_t step(TrainingTable& table, const std::vector<std::int64_t>& ids, const std::vector<float>& grads,
                        float lr = 0.1f, float eps = 1e-8f) {
  TableGradients gradients = TableGradients::of_rows(table, ids.data(), ids.size(), grads.data());
  Step step;
  step.rule = table.options().rule;
  step.lr = lr;
  step.eps = eps;
  return step_tables({{&table, &gradients}}, step, 1);
}

}  // namespace emberline::tests
