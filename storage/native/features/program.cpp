#include "features/program.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace emberline::features {

namespace {

// The ids of each row without its nulls, at most `cut` of them; one row is repeated over the whole batch.
Jagged to_ids(Cells&& cells, std::int64_t cut, std::int64_t batch) {
  if (cells.weighted && cells.rows() != batch) cells.repeat(batch);
  Jagged out;
  out.weighted = cells.weighted;
  if (cells.null.empty() && cut == 0) {
    out.values = std::move(cells.ints);
    out.offsets = std::move(cells.offsets);
    out.weights.assign(cells.weights.begin(), cells.weights.end());
  } else {
    out.weights.reserve(cells.weights.size());
    out.values.reserve(cells.ints.size());
    out.offsets.reserve(cells.offsets.size());
    out.offsets.push_back(0);
    for (std::size_t row = 0; row + 1 < cells.offsets.size(); ++row) {
      std::int64_t kept = 0;
      for (std::int64_t i = cells.offsets[row]; i < cells.offsets[row + 1] && (cut == 0 || kept < cut); ++i) {
        if (cells.is_null(i)) continue;
        out.values.push_back(cells.ints[static_cast<std::size_t>(i)]);
        if (cells.weighted) out.weights.push_back(static_cast<float>(cells.weights[static_cast<std::size_t>(i)]));
        ++kept;
      }
      out.offsets.push_back(static_cast<std::int64_t>(out.values.size()));
    }
  }
  if (static_cast<std::int64_t>(out.offsets.size()) == batch + 1) return out;
  Jagged spread;
  const auto length = static_cast<std::int64_t>(out.values.size());
  spread.values.reserve(static_cast<std::size_t>(length * batch));
  spread.offsets.reserve(static_cast<std::size_t>(batch) + 1);
  spread.offsets.push_back(0);
  for (std::int64_t row = 1; row <= batch; ++row) {
    spread.values.insert(spread.values.end(), out.values.begin(), out.values.end());
    spread.offsets.push_back(row * length);
  }
  return spread;
}

}  // namespace

Program::Program(std::vector<Input> inputs, std::vector<Feature> features, std::vector<std::int64_t> group_widths)
    : inputs_(std::move(inputs)), features_(std::move(features)), group_widths_(std::move(group_widths)) {
  for (const Feature& feature : features_) {
    const bool known =
        std::all_of(feature.inputs.begin(), feature.inputs.end(), [&](std::size_t i) { return i < inputs_.size(); });
    if (feature.inputs.empty() || !known || feature.cross.has_value() != (feature.inputs.size() > 1)) {
      throw std::invalid_argument("feature '" + feature.name + "': its inputs do not fit");
    }
    if (feature.weights &&
        (*feature.weights >= inputs_.size() || feature.is_dense || feature.cross || !fits_weights(feature))) {
      throw std::invalid_argument("feature '" + feature.name + "': its weights do not fit");
    }
    if (!feature.is_dense) {
      if (feature.slot != ids_features_)
        throw std::invalid_argument("feature '" + feature.name + "': ids out of order");
      ++ids_features_;
    } else if (feature.slot >= group_widths_.size() || feature.column < 0 || feature.width < 1 ||
               feature.column + feature.width > group_widths_[feature.slot]) {
      throw std::invalid_argument("feature '" + feature.name + "': its columns do not lie in its group");
    }
  }
}

Batch Program::run(const std::vector<const ColumnView*>& columns, std::int64_t batch) const {
  check(columns, batch);
  Batch out;
  for (const std::int64_t width : group_widths_) out.dense.emplace_back(static_cast<std::size_t>(width * batch));
  out.ids.resize(ids_features_);
  for (const Feature& feature : features_) {
    Cells cells = transform(feature, columns, batch);
    if (feature.is_dense) {
      write_dense(feature, std::move(cells), batch, out.dense[feature.slot]);
    } else {
      if (cells.type != Type::kInt) throw std::logic_error("feature '" + feature.name + "' does not end in integers");
      out.ids[feature.slot] = to_ids(std::move(cells), feature.cut, batch);
    }
  }
  return out;
}

void Program::check(const std::vector<const ColumnView*>& columns, std::int64_t batch) const {
  if (batch < 0 || batch > kMaxBatch) {
    throw InvalidInput("", "a batch of " + std::to_string(batch) + " rows; expected 0 to " + std::to_string(kMaxBatch));
  }
  if (columns.size() != inputs_.size()) throw std::invalid_argument("one column an input is expected");
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (columns[i] != nullptr) {
      inputs_[i].check(*columns[i], batch);
    } else if (!inputs_[i].missing_is_null) {
      throw InvalidInput(inputs_[i].name,
                         "input '" + inputs_[i].name + "' is missing; send it, or give it `missing: null` in the spec");
    }
  }
}

Cells Program::transform(const Feature& feature, const std::vector<const ColumnView*>& columns,
                         std::int64_t batch) const {
  const auto load = [&](std::size_t input) { return inputs_[input].load(columns[input]); };
  Cells cells;
  if (feature.cross) {
    std::vector<Cells> parts;
    std::vector<std::string> names;
    for (const std::size_t input : feature.inputs) {
      parts.push_back(load(input));
      names.push_back(inputs_[input].name);
    }
    cells = feature.cross->apply(parts, names);
  } else {
    cells = load(feature.inputs[0]);
    if (feature.weights) attach_weights(feature, columns, batch, cells);
  }
  for (const Transform& step : feature.transforms) {
    std::visit([&](const auto& op) { op.apply(cells); }, step);
  }
  return cells;
}

bool Program::fits_weights(const Feature& feature) const {
  const Input &ids = inputs_[feature.inputs[0]], &weights = inputs_[*feature.weights];
  const bool pads = std::any_of(feature.transforms.begin(), feature.transforms.end(),
                                [](const Transform& step) { return std::holds_alternative<Pad>(step); });
  return type_of(weights.wire) == Type::kFloat && weights.is_list == ids.is_list && weights.width == ids.width && !pads;
}

// Puts a weight beside each value, before any transform: what moves or drops a value does so with its weight.
void Program::attach_weights(const Feature& feature, const std::vector<const ColumnView*>& columns, std::int64_t batch,
                             Cells& cells) const {
  const Input &ids = inputs_[feature.inputs[0]], &input = inputs_[*feature.weights];
  const ColumnView* given = columns[*feature.weights];
  Cells weights = input.load_weights(given);
  // One row stands for all of them, whichever side has it, and also when there is no row at all.
  if (weights.rows() != cells.rows()) {
    if (weights.rows() != batch) weights.repeat(batch);
    if (cells.rows() != batch) cells.repeat(batch);
  }
  for (std::int64_t row = 0; row < cells.rows(); ++row) {
    const auto r = static_cast<std::size_t>(row);
    const auto refuse = [&](const std::string& problem) {
      throw InvalidInput(input.name, "input '" + input.name + "', row " + std::to_string(row) + ": " + problem);
    };
    const std::int64_t wanted = cells.offsets[r + 1] - cells.offsets[r],
                       count = weights.offsets[r + 1] - weights.offsets[r];
    if (wanted != count) {
      std::string problem = "the number of weights is " + std::to_string(count) + ", that of values in '" + ids.name +
                            "' is " + std::to_string(wanted);
      if (columns[feature.inputs[0]] == nullptr) problem += ": '" + ids.name + "' is not in the request";
      if (given == nullptr) problem += ": the weights are not in the request";
      refuse(problem);
    }
    for (std::int64_t i = 0; i < wanted; ++i) {
      const std::int64_t place = cells.offsets[r] + i, at = weights.offsets[r] + i;
      if (cells.is_null(place)) continue;
      if (weights.is_null(at)) refuse("a weight is null or NaN; send a number for each value of '" + ids.name + "'");
      const double exact = weights.floats[static_cast<std::size_t>(at)];
      if (!(std::abs(exact) <= static_cast<double>(std::numeric_limits<float>::max()))) {
        refuse("a weight is not a finite float32");
      }
    }
  }
  // A value that is null has no weight, and its place none that could be cast.
  cells.weights = std::move(weights.floats);
  for (std::size_t i = 0; i < cells.null.size(); ++i) {
    if (cells.null[i] != 0) cells.weights[i] = 0.0;
  }
  cells.weighted = true;
}

void Program::write_dense(const Feature& feature, Cells&& cells, std::int64_t batch, std::vector<float>& out) const {
  cells.to_floats();
  const std::int64_t rows = cells.rows(), stride = group_widths_[feature.slot];
  if (cells.type != Type::kFloat || cells.size() != rows * feature.width) {
    throw std::logic_error("feature '" + feature.name + "' does not give its width");
  }
  const std::string& name = inputs_[feature.inputs[0]].name;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t k = 0; k < feature.width; ++k) {
      const std::int64_t place = row * feature.width + k;
      float value = 0.0f;
      if (!cells.is_null(place)) {
        const double exact = cells.floats[static_cast<std::size_t>(place)];
        // The cast of a double beyond float's range is undefined, so it is judged before it is made.
        if (!std::isfinite(exact) || std::abs(exact) > static_cast<double>(std::numeric_limits<float>::max())) {
          throw InvalidInput(
              name, "input '" + name + "', row " + std::to_string(row) + ": the dense feature '" + feature.name +
                        "' is not a finite float32; clip it in its spec, or send a smaller number or null");
        }
        value = static_cast<float>(exact);
      }
      if (rows == batch) {
        out[static_cast<std::size_t>(row * stride + feature.column + k)] = value;
      } else {
        for (std::int64_t item = 0; item < batch; ++item) {
          out[static_cast<std::size_t>(item * stride + feature.column + k)] = value;
        }
      }
    }
  }
}

}  // namespace emberline::features
