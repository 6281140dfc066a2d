#include "model.h"

#include <algorithm>
#include <utility>

#include "columns.h"

namespace emberline::front {

namespace {

// Longer timeouts, of more than a month, could not be added to a time.
constexpr std::int64_t kMostTimeoutUs = std::int64_t{1} << 42;

bool is_integer(std::uint8_t dtype) { return dtype == kInt64 || dtype == kInt32 || dtype == kUint64; }

// Whether a tensor is of this shape; without the second dimension where that is 1.
bool has_shape(const Tensor& tensor, std::int64_t rows, std::int64_t width) {
  return tensor.shape[0] == rows && (tensor.rank == 2 ? tensor.shape[1] == width : tensor.rank == 1 && width == 1);
}

bool has_bytes(const Tensor& tensor, std::int64_t count) {
  return tensor.values.size == static_cast<std::size_t>(count * kWireBytes[tensor.dtype]);
}

bool is_before(const ColumnPart& part, std::uint16_t place) { return part.place < place; }

}  // namespace

Model::Model(std::int64_t key, std::vector<ModelInput> inputs, std::vector<ModelOutput> outputs, std::int64_t max_rows,
             std::string name, std::string name_json, std::vector<ModelLevel> levels, std::size_t default_level)
    : key_(key),
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)),
      max_rows_(max_rows),
      name_(std::move(name)),
      name_json_(std::move(name_json)),
      levels_(std::move(levels)),
      default_level_(default_level),
      queues_(std::make_shared<Queues>()) {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const ModelInput& input = inputs_[i];
    const auto place = static_cast<std::uint16_t>(i);
    tensors_[input.name] = {place, Role::kValues};
    if (input.is_list) tensors_[input.name + ".lengths"] = {place, Role::kLengths};
    if (input.has_valid) tensors_[input.name + ".valid"] = {place, Role::kValid};
    required_ += input.is_required;
  }
  max_tensors_ = tensors_.size();
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    output_places_.emplace(outputs_[i].name, static_cast<std::uint16_t>(i));
  }
}

void Model::set_queues(std::shared_ptr<const Queues> queues) {
  const std::lock_guard lock(mutex_);
  queues_ = std::move(queues);
}

std::shared_ptr<const Queues> Model::queues() const {
  const std::lock_guard lock(mutex_);
  return queues_;
}

bool Model::place(InferRequest& request, const std::vector<Tensor>& tensors) const {
  if (tensors.empty() || tensors.size() > max_tensors_) return false;
  request.columns.reserve(tensors.size());
  std::vector<std::pair<Wanted, const Tensor*>> companions;
  for (const Tensor& tensor : tensors) {
    const auto found = tensors_.find(tensor.name);
    if (found == tensors_.end() || tensor.dtype == kNoWire || tensor.dtype == kStrings) return false;
    if (found->second.role != Role::kValues) {
      companions.emplace_back(found->second, &tensor);
    } else if (!add_values(request, found->second.input, tensor)) {
      return false;
    }
  }
  auto& columns = request.columns;
  const auto in_order = [](const ColumnPart& a, const ColumnPart& b) { return a.place < b.place; };
  if (!std::is_sorted(columns.begin(), columns.end(), in_order)) std::sort(columns.begin(), columns.end(), in_order);
  if (std::adjacent_find(columns.begin(), columns.end(), [](const ColumnPart& a, const ColumnPart& b) {
        return a.place == b.place;
      }) != columns.end()) {
    return false;
  }
  for (const auto& [wanted, tensor] : companions) {
    if (!add_companion(request, wanted, *tensor)) return false;
  }
  return find_rows(request);
}

bool Model::add_values(InferRequest& request, std::uint16_t input, const Tensor& tensor) const {
  const ModelInput& taken = inputs_[input];
  const std::int64_t rows = tensor.shape[0], width = taken.is_list ? tensor.shape[1] : taken.width;
  if ((taken.takes >> tensor.dtype & 1) == 0 || rows < 1 || rows > max_rows_) return false;
  if (taken.is_list && (tensor.rank != 2 || width < 0 || width > taken.width)) return false;
  if (!has_shape(tensor, rows, width) || !has_bytes(tensor, rows * width)) return false;
  ColumnPart& part = request.columns.emplace_back();
  part.input = input;
  part.place = taken.place;
  part.dtype = tensor.dtype;
  part.form = taken.is_list ? kList : 0;
  part.rows = rows;
  part.width = width;
  part.count = rows * width;
  part.values = tensor.values;
  return true;
}

// Adds the lengths of a list, or which values there are, to their column.
bool Model::add_companion(InferRequest& request, Wanted wanted, const Tensor& tensor) const {
  const ModelInput& input = inputs_[wanted.input];
  const auto part = std::lower_bound(request.columns.begin(), request.columns.end(), input.place, is_before);
  if (part == request.columns.end() || part->input != wanted.input) return false;
  const std::int64_t width = (part->form & kList) != 0 ? 1 : part->width;
  if (!has_shape(tensor, part->rows, width) || !has_bytes(tensor, part->rows * width)) return false;
  if (wanted.role == Role::kValid) {
    if (tensor.dtype != kBool || (part->form & kHasValid) != 0) return false;
    part->form |= kHasValid;
    part->valid = tensor.values;
    return true;
  }
  if (!is_integer(tensor.dtype) || part->lengths_dtype != kNoWire) return false;
  part->lengths_dtype = tensor.dtype;
  part->lengths = tensor.values;
  part->count = 0;
  const char* lengths = request.data(tensor.values);
  for (std::int64_t row = 0; row < part->rows; ++row) {
    const std::int64_t length = length_at(lengths, tensor.dtype, row);
    if (length < 0 || length > part->width) return false;
    part->count += length;
  }
  return true;
}

// Finds the rows of a request: those of the inputs of items, or the most that the others have.
bool Model::find_rows(InferRequest& request) const {
  std::int64_t rows = 0;
  std::size_t required = 0;
  for (const ColumnPart& part : request.columns) {
    required += inputs_[part.input].is_required;
    if (inputs_[part.input].is_user) continue;
    if (rows != 0 && part.rows != rows) return false;
    rows = part.rows;
  }
  if (required != required_) return false;
  if (rows == 0) {
    for (const ColumnPart& part : request.columns) rows = std::max(rows, part.rows);
  }
  for (ColumnPart& part : request.columns) {
    if (part.rows == rows) continue;
    if (part.rows != 1) return false;
    part.form |= kOneRow;
    request.has_one_row = true;
  }
  request.rows = rows;
  return true;
}

bool Model::add_output(InferRequest& request, std::string_view name, bool is_binary) const {
  const auto place = output_places_.find(name);
  if (place == output_places_.end() || (!is_binary && outputs_[place->second].json_dtype == kNoWire)) return false;
  const bool is_there = std::any_of(request.outputs.begin(), request.outputs.end(),
                                    [&](const WantedOutput& each) { return each.place == place->second; });
  if (!is_there) request.outputs.push_back({place->second, is_binary});
  return !is_there;
}

bool Model::add_outputs(InferRequest& request, bool is_binary) const {
  return std::all_of(outputs_.begin(), outputs_.end(),
                     [&](const ModelOutput& output) { return add_output(request, output.name, is_binary); });
}

bool Model::schedule(InferRequest& request, std::int64_t priority, std::int64_t timeout_us) const {
  if (timeout_us > kMostTimeoutUs) return false;
  const bool is_known = priority >= 1 && priority <= static_cast<std::int64_t>(levels_.size());
  request.level = is_known ? static_cast<std::size_t>(priority - 1) : default_level_;
  const ModelLevel& level = levels_[request.level];
  std::int64_t timeout_ns = timeout_us * 1000;
  if (level.timeout_ns != 0 && level.delays) request.delay_at_ns = request.arrived_ns + level.timeout_ns;
  if (level.timeout_ns != 0 && !level.delays) {
    timeout_ns = timeout_ns == 0 ? level.timeout_ns : std::min(timeout_ns, level.timeout_ns);
  }
  if (timeout_ns != 0) request.deadline_ns = request.arrived_ns + timeout_ns;
  return true;
}

}  // namespace emberline::front
