#include "features/column.h"

namespace emberline::features {

const char* wire_name(Wire wire) {
  static constexpr const char* kNames[kWires] = {"INT64", "INT32", "UINT64", "BYTES", "FP32", "FP64", "BOOL"};
  return kNames[static_cast<int>(wire)];
}

Type type_of(Wire wire) {
  switch (wire) {
    case Wire::kBytes: return Type::kBytes;
    case Wire::kFp32:
    case Wire::kFp64: return Type::kFloat;
    default: return Type::kInt;
  }
}

bool accepts(Wire declared, Wire sent) {
  if (declared == Wire::kBool || sent == Wire::kBool || declared == Wire::kBytes || sent == Wire::kBytes) {
    return declared == sent;
  }
  return type_of(declared) == Type::kFloat || type_of(sent) == Type::kInt;
}

void Cells::to_floats() {
  if (type != Type::kInt) return;
  floats.assign(ints.begin(), ints.end());
  ints.clear();
  type = Type::kFloat;
}

void Cells::repeat(std::int64_t rows) {
  const std::int64_t length = size();
  const auto spread = [&](auto& values) {
    const auto once = values;
    values.clear();
    values.reserve(once.size() * static_cast<std::size_t>(rows));
    for (std::int64_t row = 0; row < rows; ++row) values.insert(values.end(), once.begin(), once.end());
  };
  spread(bytes);
  spread(ints);
  spread(floats);
  spread(null);
  spread(weights);
  offsets.resize(static_cast<std::size_t>(rows) + 1);
  for (std::int64_t row = 0; row <= rows; ++row) offsets[static_cast<std::size_t>(row)] = row * length;
}

}  // namespace emberline::features
