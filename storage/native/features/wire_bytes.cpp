#include "features/wire_bytes.h"

#include <cstring>

#include "features/column.h"

namespace emberline::features {

ByteRanges split_wire_bytes(const char* data, std::int64_t size, std::int64_t count, const std::string& field) {
  const auto refuse = [&](const std::string& problem) {
    throw InvalidInput(field, (field.empty() ? "" : "input '" + field + "': ") + problem);
  };
  const auto text = [](std::int64_t number) { return std::to_string(number); };
  if (count < 0 || count > size / 4) {
    refuse(text(count) + " BYTES elements cannot lie in " + text(size) + " bytes; each has a length of 4 bytes");
  }
  ByteRanges out;
  out.starts.reserve(static_cast<std::size_t>(count));
  out.ends.reserve(static_cast<std::size_t>(count));
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (size - at < 4) refuse("BYTES element " + text(i) + " of " + text(count) + ": its length is cut off");
    std::uint32_t length;
    std::memcpy(&length, data + at, 4);
    at += 4;
    if (size - at < static_cast<std::int64_t>(length)) {
      refuse("BYTES element " + text(i) + " claims " + text(length) + " bytes, " + text(size - at) + " are left");
    }
    out.starts.push_back(at);
    at += length;
    out.ends.push_back(at);
  }
  if (at != size) refuse(text(size - at) + " bytes are left over behind " + text(count) + " BYTES elements");
  return out;
}

}  // namespace emberline::features
