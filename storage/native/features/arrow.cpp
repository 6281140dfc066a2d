#include "features/arrow.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace emberline::features {

namespace {

[[noreturn]] void refuse_format(const ArrowSchema& schema) {
  throw std::invalid_argument(std::string("an Arrow column of the format ") + schema.format);
}

// Every format that is read has one letter, but for lists.
char letter_of(const ArrowSchema& schema) {
  if (schema.format[0] == '\0' || schema.format[1] != '\0') refuse_format(schema);
  return schema.format[0];
}

bool is_list_format(const ArrowSchema& schema) {
  return schema.format[0] == '+' && (schema.format[1] == 'l' || schema.format[1] == 'L') && schema.format[2] == '\0';
}

bool is_text(char letter) { return letter == 'u' || letter == 'z' || letter == 'U' || letter == 'Z'; }

bool is_wide(const ArrowSchema& schema) {
  const char letter = schema.format[0] == '+' ? schema.format[1] : schema.format[0];
  return letter == 'U' || letter == 'Z' || letter == 'L';
}

Wire wire_of(const ArrowSchema& schema) {
  const char letter = letter_of(schema);
  if (schema.dictionary != nullptr) {
    if (!is_text(letter_of(*schema.dictionary)) || schema.dictionary->dictionary != nullptr) {
      refuse_format(*schema.dictionary);
    }
    return Wire::kBytes;
  }
  switch (letter) {
    case 'c':
    case 'C':
    case 's':
    case 'S':
    case 'i': return Wire::kInt32;
    case 'I':
    case 'l': return Wire::kInt64;
    case 'L': return Wire::kUint64;
    case 'f': return Wire::kFp32;
    case 'g': return Wire::kFp64;
    case 'b': return Wire::kBool;
    default: break;
  }
  if (!is_text(letter)) refuse_format(schema);
  return Wire::kBytes;
}

// The values of a part, whose array has them in its buffer `number`. Null without any.
template <class T>
const T* buffer_of(const ArrowPart& part, std::int64_t number) {
  if (part.array->n_buffers <= number) refuse_format(*part.schema);
  const auto* all = static_cast<const T*>(part.array->buffers[number]);
  return all == nullptr ? nullptr : all + part.array->offset + part.first;
}

// Calls with the integers of a part, a pointer of their type.
template <class Call>
auto with_integers(const ArrowPart& part, Call&& call) {
  switch (letter_of(*part.schema)) {
    case 'c': return call(buffer_of<std::int8_t>(part, 1));
    case 'C': return call(buffer_of<std::uint8_t>(part, 1));
    case 's': return call(buffer_of<std::int16_t>(part, 1));
    case 'S': return call(buffer_of<std::uint16_t>(part, 1));
    case 'i': return call(buffer_of<std::int32_t>(part, 1));
    case 'I': return call(buffer_of<std::uint32_t>(part, 1));
    case 'l': return call(buffer_of<std::int64_t>(part, 1));
    case 'L': return call(buffer_of<std::uint64_t>(part, 1));
    default: refuse_format(*part.schema);
  }
}

// Writes a byte for each of `count` bits from the bit `first` on, and returns whether all are ones.
bool put_bits(const std::uint8_t* bits, std::int64_t first, std::int64_t count, std::uint8_t* to) {
  std::int64_t i = 0;
  std::uint8_t all = 0xFF;
  const auto put_one = [&] {
    const std::int64_t bit = first + i;
    to[i] = (bits[bit / 8] >> (bit % 8)) & 1;
    all &= to[i++] != 0 ? 0xFF : 0;
  };
  while (i < count && (first + i) % 8 != 0) put_one();
  for (; i + 8 <= count; i += 8) {
    const std::uint8_t byte = bits[(first + i) / 8];
    // Eight copies of the byte, of which each keeps another bit, and has it moved to the lowest place.
    const std::uint64_t kept = (byte * 0x0101010101010101ull) & 0x8040201008040201ull;
    const std::uint64_t flags = (kept + 0x7F7F7F7F7F7F7F7Full) >> 7 & 0x0101010101010101ull;
    std::memcpy(to + i, &flags, sizeof flags);
    all &= byte;
  }
  while (i < count) put_one();
  return all == 0xFF;
}

// A flag for each value, 0 = null; nullptr when none is null.
const std::uint8_t* valid_of(const ArrowPart& part, Arena& arena) {
  if (part.array->null_count == 0 || part.array->n_buffers == 0 || part.array->buffers[0] == nullptr) return nullptr;
  std::uint8_t* flags = arena.take<std::uint8_t>(part.count);
  const auto* bits = static_cast<const std::uint8_t*>(part.array->buffers[0]);
  return put_bits(bits, part.array->offset + part.first, part.count, flags) ? nullptr : flags;
}

// Calls with a function that gives the bytes of a value of a part.
template <class Call>
auto with_text(const ArrowPart& part, Call&& call) {
  if (part.array->n_buffers < 3) refuse_format(*part.schema);
  const char* data = static_cast<const char*>(part.array->buffers[2]);
  const auto texts = [data](const auto* offsets) {
    return [data, offsets](std::int64_t i) {
      return std::string_view(data + offsets[i], static_cast<std::size_t>(offsets[i + 1] - offsets[i]));
    };
  };
  if (is_wide(*part.schema)) return call(texts(buffer_of<std::int64_t>(part, 1)));
  return call(texts(buffer_of<std::int32_t>(part, 1)));
}

// The whole dictionary of a part.
ArrowPart dictionary_of(const ArrowPart& part) {
  if (part.array->dictionary == nullptr) refuse_format(*part.schema);
  return {part.schema->dictionary, part.array->dictionary, 0, part.array->dictionary->length};
}

// Values of a dictionary: bytes, and where these would be more than the places, one for each place.
void put_dictionary(const ArrowPart& part, const std::string& input, WholeColumn& out, Arena& arena) {
  const ArrowPart known = dictionary_of(part);
  const std::uint8_t* valid = valid_of(part, arena);
  const std::uint8_t* known_valid = valid_of(known, arena);
  const bool by_entry = known.count < std::min<std::int64_t>(part.count, std::numeric_limits<std::int32_t>::max());
  const bool has_null_entry = by_entry && valid != nullptr;
  out.entries = known.count + (has_null_entry ? 1 : 0);
  const std::int64_t size = by_entry ? out.entries : part.count;
  auto* const values = arena.take<std::string_view>(size);
  std::uint8_t* flags = nullptr;
  if (valid != nullptr || known_valid != nullptr) flags = arena.take_filled<std::uint8_t>(size, 1);
  std::int32_t* const index = by_entry ? arena.take<std::int32_t>(part.count) : nullptr;
  with_text(known, [&](const auto& text) {
    with_integers(part, [&]<class T>(const T* given) {
      // Outside of the dictionary lie negative ones too.
      const auto is_wrong = [&](std::int64_t i) {
        return static_cast<std::uint64_t>(static_cast<std::int64_t>(given[i])) >=
               static_cast<std::uint64_t>(known.count);
      };
      bool wrong = false;
      for (std::int64_t i = 0; i < part.count; ++i) wrong |= is_wrong(i) && (valid == nullptr || valid[i] != 0);
      if (wrong) throw InvalidInput(input, "input '" + input + "': an index that its dictionary has not");
      if (!by_entry) {
        for (std::int64_t i = 0; i < part.count; ++i) {
          const bool has_value = valid == nullptr || valid[i] != 0;
          const auto entry = has_value ? static_cast<std::int64_t>(given[i]) : 0;
          values[i] = has_value ? text(entry) : std::string_view();
          if (flags != nullptr) flags[i] = has_value && (known_valid == nullptr || known_valid[entry] != 0);
        }
        return;
      }
      for (std::int64_t i = 0; i < known.count; ++i) values[i] = text(i);
      if (known_valid != nullptr) std::copy_n(known_valid, known.count, flags);
      if (has_null_entry) {
        values[known.count] = std::string_view();
        flags[known.count] = 0;
        for (std::int64_t i = 0; i < part.count; ++i) {
          index[i] = valid[i] != 0 ? static_cast<std::int32_t>(given[i]) : static_cast<std::int32_t>(known.count);
        }
      } else {
        for (std::int64_t i = 0; i < part.count; ++i) index[i] = static_cast<std::int32_t>(given[i]);
      }
    });
  });
  out.values = values;
  out.valid = flags;
  out.index = index;
}

template <class From, class To>
const To* widened(const ArrowPart& part, Arena& arena) {
  const From* from = buffer_of<From>(part, 1);
  To* to = arena.take<To>(part.count);
  for (std::int64_t i = 0; i < part.count; ++i) to[i] = static_cast<To>(from[i]);
  return to;
}

// Numbers of another type are widened, and those that do not lie on the borders of numbers are copied.
const void* numbers_of(const ArrowPart& part, Arena& arena) {
  const auto in_place = [&]<class T>(const T* from) -> const void* {
    if (from != nullptr && reinterpret_cast<std::uintptr_t>(from) % alignof(T) == 0) return from;
    T* to = arena.take<T>(part.count);
    if (from != nullptr) std::memcpy(to, from, static_cast<std::size_t>(part.count) * sizeof(T));
    return to;
  };
  switch (letter_of(*part.schema)) {
    case 'c': return widened<std::int8_t, std::int32_t>(part, arena);
    case 'C': return widened<std::uint8_t, std::int32_t>(part, arena);
    case 's': return widened<std::int16_t, std::int32_t>(part, arena);
    case 'S': return widened<std::uint16_t, std::int32_t>(part, arena);
    case 'I': return widened<std::uint32_t, std::int64_t>(part, arena);
    case 'i': return in_place(buffer_of<std::int32_t>(part, 1));
    case 'l':
    case 'L': return in_place(buffer_of<std::int64_t>(part, 1));
    case 'f': return in_place(buffer_of<float>(part, 1));
    case 'g': return in_place(buffer_of<double>(part, 1));
    case 'b': {
      std::uint8_t* to = arena.take<std::uint8_t>(part.count);
      const auto* bits = static_cast<const std::uint8_t*>(part.array->buffers[1]);
      if (part.count > 0) put_bits(bits, part.array->offset + part.first, part.count, to);
      return to;
    }
    default: refuse_format(*part.schema);
  }
}

// Values that are no lists. input: whose values they are.
WholeColumn flat(const ArrowPart& part, const std::string& input, Arena& arena) {
  WholeColumn out;
  out.wire = wire_of(*part.schema);
  out.rows = out.count = part.count;
  if (part.schema->dictionary != nullptr) {
    put_dictionary(part, input, out, arena);
    return out;
  }
  out.valid = valid_of(part, arena);
  if (out.wire != Wire::kBytes) {
    out.values = numbers_of(part, arena);
    return out;
  }
  auto* values = arena.take<std::string_view>(part.count);
  out.values = values;
  if (part.count == 0) return out;  // an array without values need not have offsets
  with_text(part, [&](const auto& text) {
    for (std::int64_t i = 0; i < part.count; ++i) values[i] = text(i);
  });
  return out;
}

template <class From>
const double* with_nan(const From* from, std::int64_t count, const std::uint8_t* valid, Arena& arena) {
  double* to = arena.take<double>(count);
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = valid[i] != 0 ? static_cast<double>(from[i]) : std::numeric_limits<double>::quiet_NaN();
  }
  return to;
}

// Makes numbers doubles, and their nulls NaN.
void put_nan(WholeColumn& child, Arena& arena) {
  const auto convert = [&]<class T>(const T* from) { child.values = with_nan(from, child.count, child.valid, arena); };
  switch (child.wire) {
    case Wire::kInt32: convert(static_cast<const std::int32_t*>(child.values)); break;
    case Wire::kInt64: convert(static_cast<const std::int64_t*>(child.values)); break;
    case Wire::kUint64: convert(static_cast<const std::uint64_t*>(child.values)); break;
    case Wire::kFp32: convert(static_cast<const float*>(child.values)); break;
    default: convert(static_cast<const double*>(child.values));
  }
  child.wire = Wire::kFp64;
  child.valid = nullptr;
}

template <class T>
const void* chosen(const void* values, std::int64_t count, const std::int64_t* places, Arena& arena) {
  const T* from = static_cast<const T*>(values);
  T* to = arena.take<T>(count);
  for (std::int64_t i = 0; i < count; ++i) to[i] = from[places[i]];
  return to;
}

// Keeps the values at some places, and nothing of their nulls.
void keep_places(WholeColumn& column, std::int64_t count, const std::int64_t* places, Arena& arena) {
  column.count = count;
  column.valid = nullptr;
  if (column.index != nullptr) {
    column.index = static_cast<const std::int32_t*>(chosen<std::int32_t>(column.index, count, places, arena));
    return;
  }
  switch (column.wire) {
    case Wire::kInt32: column.values = chosen<std::int32_t>(column.values, count, places, arena); break;
    case Wire::kFp32: column.values = chosen<float>(column.values, count, places, arena); break;
    case Wire::kBool: column.values = chosen<std::uint8_t>(column.values, count, places, arena); break;
    case Wire::kBytes: column.values = chosen<std::string_view>(column.values, count, places, arena); break;
    default: column.values = chosen<std::int64_t>(column.values, count, places, arena);
  }
}

template <class Offset>
WholeColumn list(const ArrowPart& part, const Input& spec, Arena& arena) {
  const std::int64_t rows = part.count;
  std::int64_t* offsets = arena.take<std::int64_t>(rows + 1);
  offsets[0] = 0;
  const Offset* given = buffer_of<Offset>(part, 1);
  const std::int64_t first = rows == 0 ? 0 : std::int64_t{given[0]};
  const std::int64_t count = rows == 0 ? 0 : std::int64_t{given[rows]} - first;
  WholeColumn out = flat({part.schema->children[0], part.array->children[0], first, count}, spec.name, arena);
  const std::uint8_t* valid = valid_of(part, arena);
  const bool is_float = type_of(spec.wire) == Type::kFloat;
  if (out.valid != nullptr && is_float) put_nan(out, arena);
  // Where all values stay, rows lie as they are given.
  bool all_stay = out.valid == nullptr;
  for (std::int64_t row = 0; row < rows; ++row) {
    offsets[row + 1] = std::int64_t{given[row + 1]} - first;
    all_stay &= valid == nullptr || valid[row] != 0 || offsets[row + 1] == offsets[row];
  }
  if (!all_stay) {
    std::int64_t* places = arena.take<std::int64_t>(count);
    std::int64_t kept = 0, begin = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t end = offsets[row + 1];
      for (std::int64_t i = begin; i < end && (valid == nullptr || valid[row] != 0); ++i) {
        const bool is_null = out.valid != nullptr && out.valid[out.index == nullptr ? i : out.index[i]] == 0;
        places[kept] = i;
        kept += is_null ? 0 : 1;
      }
      begin = end;
      offsets[row + 1] = kept;
    }
    keep_places(out, kept, places, arena);
  }
  out.rows = rows;
  out.offsets = offsets;
  out.valid = valid;
  return out;
}

}  // namespace

ArrowSource::ArrowSource(const std::vector<Input>& inputs, const ArrowSchema& schema, const ArrowArray& array,
                         std::span<const ArrowInput> places)
    : inputs_(inputs), schema_(schema), array_(array), places_(places), rows_(array.length), lists_(inputs.size()) {
  if (std::strcmp(schema.format, "+s") != 0 || array.n_children != schema.n_children) refuse_format(schema);
  if (places.size() != inputs.size()) throw std::invalid_argument("one place an input is expected");
  for (std::size_t input = 0; input < inputs.size(); ++input) {
    if (places[input].column < 0) continue;
    if (places[input].column >= array.n_children) throw std::invalid_argument("a column that is not there");
    const ArrowPart whole = part(places[input]);
    if (!is_list_format(*whole.schema)) continue;
    if (whole.array->n_children != 1) refuse_format(*whole.schema);
    lists_[input] = is_wide(*whole.schema) ? list<std::int64_t>(whole, inputs[input], memory_)
                                           : list<std::int32_t>(whole, inputs[input], memory_);
  }
}

ArrowPart ArrowSource::part(const ArrowInput& place) const {
  return {schema_.children[place.column], array_.children[place.column], array_.offset, rows_};
}

void ArrowSource::check(std::size_t input, const Input& spec) const {
  if (places_[input].column < 0) return spec.check(*places_[input].view, rows_);
  const WholeColumn& list = lists_[input];
  ColumnView form;
  form.rows = rows_;
  if (list.offsets != nullptr) {
    form.wire = list.wire;
    form.count = list.count;
    form.offsets = list.offsets;
    form.offsets_count = rows_ + 1;
  } else {
    form.wire = wire_of(*part(places_[input]).schema);
    form.count = rows_;
  }
  spec.check_form(form, rows_);
}

WholeColumn ArrowSource::column(std::size_t input, Arena& arena) const {
  if (places_[input].column < 0) return whole_column(*places_[input].view, arena);
  if (lists_[input].offsets != nullptr) return lists_[input];
  return flat(part(places_[input]), inputs_[input].name, arena);
}

}  // namespace emberline::features
