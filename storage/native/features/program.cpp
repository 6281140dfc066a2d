#include "features/program.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "features/outputs.h"

namespace emberline::features {

namespace {

// Scratch memory that a thread keeps. A user gives all of it back at its end.
class Scratch {
 public:
  explicit Scratch(Arena& arena) : arena_(arena) {}
  ~Scratch() { arena_.reset(kKeptScratchBytes); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

 private:
  Arena& arena_;
};

// Columns that were loaded lie there until the run ends, and what a feature makes until the feature is written.
struct ThreadMemory {
  Arena columns;
  Arena feature;
};

ThreadMemory& thread_memory() {
  static thread_local ThreadMemory memory;
  return memory;
}

bool is_single(double weight) { return std::abs(weight) <= static_cast<double>(std::numeric_limits<float>::max()); }

}  // namespace

// One run: columns are loaded when the first feature needs them, and shared by all that do.
class ProgramRun {
 public:
  ProgramRun(const Program& program, const Source& source, Batch& out, ThreadMemory& memory)
      : program_(program),
        source_(source),
        batch_(out.rows),
        outputs_(out, memory.feature),
        kept_(memory.columns),
        columns_given_back_(memory.columns),
        arena_(memory.feature) {
    const auto inputs = static_cast<std::int64_t>(program.inputs_.size());
    columns_ = kept_.take_filled<const WholeColumn*>(inputs, nullptr);
    loaded_ = kept_.take_filled<const Cells*>(inputs, nullptr);
  }

  void run(std::size_t number) {
    const Scratch given_back(arena_);
    const Feature& feature = program_.features_[number];
    Cells cells = feature.cross ? cross(feature, program_.names_[number]) : load(feature.inputs[0]);
    if (feature.weights) attach_weights(feature, cells);
    for (const Transform& step : feature.transforms) {
      std::visit([&](const auto& op) { op.apply(cells, arena_); }, step);
    }
    if (feature.is_dense) {
      outputs_.put_dense(feature, cells, program_.inputs_[feature.inputs[0]].name);
    } else {
      outputs_.put_ids(feature, cells);
    }
  }

 private:
  template <class T>
  const T* keep(const T& value) {
    return new (kept_.take<T>(1)) T(value);
  }

  const WholeColumn* column(std::size_t input) {
    if (columns_[input] == nullptr && source_.has(input)) columns_[input] = keep(source_.column(input, kept_));
    return columns_[input];
  }

  const Cells& load(std::size_t input) {
    if (loaded_[input] == nullptr) loaded_[input] = keep(program_.inputs_[input].load(column(input), kept_));
    return *loaded_[input];
  }

  Cells cross(const Feature& feature, const std::vector<std::string>& names) {
    Cells* parts = arena_.take<Cells>(static_cast<std::int64_t>(feature.inputs.size()));
    for (std::size_t k = 0; k < feature.inputs.size(); ++k) parts[k] = load(feature.inputs[k]);
    return feature.cross->apply({parts, feature.inputs.size()}, names, arena_);
  }

  void attach_weights(const Feature& feature, Cells& cells);
  bool weights_fit(const Cells& cells, const Cells& weights) const;
  void check_weights(const Feature& feature, const Cells& cells, const Cells& weights) const;

  const Program& program_;
  const Source& source_;
  std::int64_t batch_;
  Outputs outputs_;
  Arena& kept_;
  Scratch columns_given_back_;
  Arena& arena_;
  const WholeColumn** columns_;
  const Cells** loaded_;
};

// Puts a weight beside each value, before any transform: what moves or drops a value does so with its weight.
void ProgramRun::attach_weights(const Feature& feature, Cells& cells) {
  Cells weights = program_.inputs_[*feature.weights].load_weights(column(*feature.weights), arena_);
  cells.spread(arena_);
  weights.pack_floats(arena_);
  // One row stands for all of them, whichever side has it, and also when there is no row at all.
  if (weights.rows != cells.rows) {
    if (weights.rows != batch_) weights.repeat(batch_, arena_);
    if (cells.rows != batch_) cells.repeat(batch_, arena_);
  }
  if (!weights_fit(cells, weights)) check_weights(feature, cells, weights);
  cells.weights = weights.floats();
  if (cells.null == nullptr) return;
  // A value that is null has no weight, and its place none that could be cast.
  const std::int64_t size = cells.size();
  double* kept = arena_.take<double>(size);
  for (std::int64_t i = 0; i < size; ++i) kept[i] = cells.null[i] != 0 ? 0.0 : weights.floats()[i];
  cells.weights = kept;
}

// Whether each value has a weight that is a finite float32.
bool ProgramRun::weights_fit(const Cells& cells, const Cells& weights) const {
  bool fits = true;
  for (std::int64_t row = 0; row < cells.rows; ++row) fits &= cells.end(row) == weights.end(row);
  if (!fits) return false;
  const std::int64_t size = cells.size();
  for (std::int64_t i = 0; i < size; ++i) {
    const bool is_null = cells.null != nullptr && cells.null[i] != 0;
    const bool has_none = weights.null != nullptr && weights.null[i] != 0;
    fits &= is_null | (!has_none & is_single(weights.floats()[i]));
  }
  return fits;
}

void ProgramRun::check_weights(const Feature& feature, const Cells& cells, const Cells& weights) const {
  const Input &ids = program_.inputs_[feature.inputs[0]], &input = program_.inputs_[*feature.weights];
  for (std::int64_t row = 0; row < cells.rows; ++row) {
    const auto refuse = [&](const std::string& problem) {
      throw InvalidInput(input.name, "input '" + input.name + "', row " + std::to_string(row) + ": " + problem);
    };
    const std::int64_t wanted = cells.end(row) - cells.begin(row), count = weights.end(row) - weights.begin(row);
    if (wanted != count) {
      std::string problem = "the number of weights is " + std::to_string(count) + ", that of values in '" + ids.name +
                            "' is " + std::to_string(wanted);
      if (!source_.has(feature.inputs[0])) problem += ": '" + ids.name + "' is not in the request";
      if (!source_.has(*feature.weights)) problem += ": the weights are not in the request";
      refuse(problem);
    }
    for (std::int64_t i = 0; i < wanted; ++i) {
      const std::int64_t place = cells.begin(row) + i, at = weights.begin(row) + i;
      if (cells.null != nullptr && cells.null[place] != 0) continue;
      if (weights.null != nullptr && weights.null[at] != 0) {
        refuse("a weight is null or NaN; send a number for each value of '" + ids.name + "'");
      }
      if (!is_single(weights.floats()[at])) refuse("a weight is not a finite float32");
    }
  }
}

Program::Program(std::vector<Input> inputs, std::vector<Feature> features, std::vector<std::int64_t> group_widths)
    : inputs_(std::move(inputs)), features_(std::move(features)), group_widths_(std::move(group_widths)) {
  std::vector<std::int64_t> filled(group_widths_.size(), 0);
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
      row_bytes_ += 8 * row_ids(feature) + (feature.weights ? 4 * row_ids(feature) : 0);
    } else if (feature.slot >= group_widths_.size() || feature.column < 0 || feature.width < 1 ||
               feature.column + feature.width > group_widths_[feature.slot]) {
      throw std::invalid_argument("feature '" + feature.name + "': its columns do not lie in its group");
    } else {
      filled[feature.slot] += feature.width;
    }
    names_.emplace_back();
    for (const std::size_t input : feature.inputs) names_.back().push_back(inputs_[input].name);
  }
  for (std::size_t group = 0; group < group_widths_.size(); ++group) {
    is_filled_.push_back(filled[group] == group_widths_[group]);
    row_bytes_ += 4 * group_widths_[group];
  }
}

bool Program::fits_weights(const Feature& feature) const {
  const Input &ids = inputs_[feature.inputs[0]], &weights = inputs_[*feature.weights];
  // What they make has no weight.
  const bool makes = std::any_of(feature.transforms.begin(), feature.transforms.end(), [](const Transform& step) {
    return std::holds_alternative<Pad>(step) || std::holds_alternative<IsNull>(step) ||
           std::holds_alternative<Fill>(step) || std::holds_alternative<Split>(step);
  });
  return type_of(weights.wire) == Type::kFloat && weights.is_list == ids.is_list && weights.width == ids.width &&
         !makes;
}

// How many 8 bytes a row of an ids feature takes, about: its ids, and its offset unless all rows have as many.
std::int64_t Program::row_ids(const Feature& feature) const {
  const Input& input = inputs_[feature.inputs[0]];
  if (input.is_list || feature.cross) return 4;
  std::int64_t width = input.width;
  for (const Transform& step : feature.transforms) {
    if (std::holds_alternative<Split>(step)) return 4;
    if (const auto* slice = std::get_if<Slice>(&step)) width = slice->stop - slice->start;
    if (const auto* cut = std::get_if<Truncate>(&step)) width = std::min(width, cut->length);
    if (const auto* pad = std::get_if<Pad>(&step)) width = std::max(width, pad->length);
  }
  return width;
}

Batch Program::run(const Source& source) const {
  check(source);
  const std::int64_t batch = source.batch();
  constexpr std::int64_t kPieceBytes = 64;  // an array's share of the object, its alignment, its last offset
  const auto arrays = static_cast<std::int64_t>(2 * ids_features_ + group_widths_.size());
  Batch out(batch, static_cast<std::int64_t>(group_widths_.size()), static_cast<std::int64_t>(ids_features_),
            static_cast<std::size_t>((batch + 1) * (row_bytes_ + 8) + arrays * kPieceBytes));
  for (std::size_t group = 0; group < group_widths_.size(); ++group) {
    const std::int64_t count = group_widths_[group] * batch;
    float* values = is_filled_[group] ? out.memory().take<float>(count) : out.memory().take_filled<float>(count, 0.0f);
    out.dense[group] = {{values, static_cast<std::size_t>(count)}, group_widths_[group]};
  }
  ProgramRun run(*this, source, out, thread_memory());
  for (std::size_t feature = 0; feature < features_.size(); ++feature) run.run(feature);
  return out;
}

Batch Program::run(std::span<const Request> requests) const {
  try {
    return run(RequestSource(requests, inputs_.size()));
  } catch (const InvalidInput& joined) {
    if (requests.size() < 2) throw;
    for (std::size_t number = 0; number < requests.size(); ++number) {
      try {
        run(RequestSource(requests.subspan(number, 1), inputs_.size()));
      } catch (const InvalidInput& own) {
        throw InvalidInput(own.field(), own.what(), number);
      }
    }
    throw joined;
  }
}

Batch Program::run(const std::vector<const ColumnView*>& columns, std::int64_t batch) const {
  const Request request{columns, batch};
  return run(RequestSource({&request, 1}, inputs_.size()));
}

Batch Program::run(const BlockLayout& layout, std::span<const Block> blocks) const {
  if (layout.inputs() != inputs_.size()) throw std::invalid_argument("a layout of another program");
  return run(BlockSource(layout, blocks));
}

Batch Program::run(const ArrowSchema& schema, const ArrowArray& rows, std::span<const ArrowInput> places) const {
  return run(ArrowSource(inputs_, schema, rows, places));
}

void Program::check(const Source& source) const {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (source.has(i)) {
      source.check(i, inputs_[i]);
    } else if (!inputs_[i].missing_is_null) {
      throw InvalidInput(inputs_[i].name,
                         "input '" + inputs_[i].name + "' is missing; send it, or give it `missing: null` in the spec");
    }
  }
}

}  // namespace emberline::features
