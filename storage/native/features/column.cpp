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

}  // namespace emberline::features
