// What the lookups of a GPU share: which features there are and where their rows lie, how a batch's ids come, the
// search in the replica of a cache's index, the list of misses, the marks of use.
//
// Features, (features, 16) int64, written once (a graph is captured over them); what a batch really has is in its
// header:
//   0 buckets (64 bytes each, cache_bucket.cuh)
//   1 their number, from 2 on
//   2 slab: row of slot s at slab + s * stride
//   3 highest slot
//   4 stride, a multiple of 4; of 16 for loads of 16 bytes
//   5 row type (row_decode.cuh)
//   6 dim
//   7 table
//   8 use marks, a byte for each slot, or 0
//   9 base tables: how many there are, T
//   10 bound: most ids of a batch; where id i goes to row i, the rows of the output
//   11, 12 of GPUs that share rows (lookup_across.cuh), or 0
//   13 pooling, or the length of an unpooled feature (lookup_gather.cuh)
//   14 output
//   15 a byte for each row of the output, or 0
// Tables of several caches, row types and widths may stand side by side, so that one launch does for all features of a
// batch.
//
// Header of a batch, int64 words, at the beginning of what the host packed. Offsets are in bytes from its first one,
// multiples of the size of what lies there; 0 is none:
//   0 stamp     1 batch     2 length of the chain, 0 to 8     3 to 10 the chain, from its first
//   11 of GPUs that share rows (lookup_across.cuh), or 0
//   12 + 4f     of feature f: offset of its ids (int64), their number, offset of ranges, offset of weights (float32)
// Ranges, two int32 for each row of the batch: the ids of row b are [begin, end). Rows may share one. Without weights
// all are 1.
//
// Chain: the rows of a difference with number c (from 1 on) stand under the virtual tables t + c * T, and hide those of
// table t. A search asks the virtual tables of the chain, then table t; the first that has the id gives the row, or, by
// the slot kAskHost, says that the host has to be asked: a miss.
//
// Misses go to a list: entries of two int64 {feature << 48 | number of the id within the feature, row of the output},
// in no order that means anything. `count` of them there were; those beyond `room` are counted and not written, and the
// batch is then for the host to do. Whoever launches a lookup has set `count` to 0 before, on the same stream.
//
// A search may miss what is there while its owner moves within the index: a miss on a GPU is never wrong, the host
// decides.
#pragma once

#include "cache_bucket.cuh"
#include "memory_order.cuh"
#include "row_decode.cuh"
#include "tile.cuh"

namespace emberline {

constexpr int kFeatureWords = 16;
constexpr int kFeatureShift = 48;
constexpr int kChainLengthWord = 2;
constexpr int kChainWord = 3;
constexpr int kMostChain = 8;
constexpr int kPackedFeatureWord = 12;
constexpr int kPackedFeatureWords = 4;
// Of a feature in a batch: so that a tile's step past the last one is an int too.
constexpr int64_t kMostIds = 0x7FFFFF00;
// Above every slot.
constexpr uint32_t kAskHost = 0xFFFFFFFFu;
// Rows of one lane that are under way at once.
constexpr int kRowsAhead = 4;

// The ids of a row of a batch.
struct alignas(8) PackedRange {
  int begin, end;
};

struct Feature {
  const uint64_t* buckets;
  uint64_t bucket_count;
  const uint8_t* slab;
  uint32_t slots;
  int64_t stride;
  int row_type;
  int64_t dim;
  uint32_t table;
  uint8_t* uses;
  uint32_t base_tables;
  int64_t id_room;
  int64_t shape;
  uint8_t* output;
  uint8_t* states;
  // Of the batch; null where there is none. chain: how many tables a search asks before the feature's own.
  int chain;
  const int64_t* ids;
  int id_count;
  const PackedRange* ranges;
  const float* weights;
};

template <class T>
EMBERLINE_HD T* address(int64_t word) {
  return reinterpret_cast<T*>(static_cast<uint64_t>(word));
}

EMBERLINE_HD int64_t clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}
EMBERLINE_HD int clamp(int value, int low, int high) { return value < low ? low : value > high ? high : value; }

// What lies at an offset of the packed batch. None at one that nothing can lie at: our own bug.
template <class T>
EMBERLINE_HD const T* packed_at(const int64_t* header, int64_t offset) {
  if (offset <= 0 || offset % static_cast<int64_t>(alignof(T)) != 0) return nullptr;
  return reinterpret_cast<const T*>(reinterpret_cast<const uint8_t*>(header) + offset);
}

EMBERLINE_HD Feature feature_at(const int64_t* features, const int64_t* header, int64_t number) {
  const int64_t* words = features + number * kFeatureWords;
  Feature feature;
  feature.buckets = address<const uint64_t>(words[0]);
  feature.bucket_count = static_cast<uint64_t>(words[1]);
  feature.slab = address<const uint8_t>(words[2]);
  feature.slots = static_cast<uint32_t>(words[3]);
  feature.stride = words[4];
  feature.row_type = static_cast<int>(words[5]);
  feature.dim = words[6];
  feature.table = static_cast<uint32_t>(words[7]);
  feature.uses = address<uint8_t>(words[8]);
  feature.base_tables = static_cast<uint32_t>(words[9]);
  feature.id_room = words[10];
  feature.shape = words[13];
  feature.output = address<uint8_t>(words[14]);
  feature.states = address<uint8_t>(words[15]);
  feature.chain = static_cast<int>(clamp(header[kChainLengthWord], int64_t{0}, int64_t{kMostChain}));
  const int64_t* packed = header + kPackedFeatureWord + number * kPackedFeatureWords;
  feature.ids = packed_at<int64_t>(header, packed[0]);
  const int64_t most = feature.id_room < kMostIds ? feature.id_room : kMostIds;
  feature.id_count = feature.ids == nullptr ? 0 : static_cast<int>(clamp(packed[1], int64_t{0}, most));
  feature.ranges = packed_at<PackedRange>(header, packed[2]);
  feature.weights = packed_at<float>(header, packed[3]);
  return feature;
}

// One launch.
struct Lookup {
  const int64_t* features;
  const int64_t* header;
  int64_t rows;  // of the outputs, which the launch was sized for
  int64_t* misses;
  uint64_t* miss_count;
  int64_t miss_room;
  int64_t use_mask;  // 2^k - 1: every 2^k-th lookup marks its row as used; below 0: none does
};

EMBERLINE_HD int64_t batch_of(const Lookup& lookup) { return clamp(lookup.header[1], int64_t{0}, lookup.rows); }

// The ids of a row; none past the batch. Ranges that make no sense would be our own bug: nothing outside `ids` is read.
struct IdRange {
  int begin, end;
};
EMBERLINE_HD IdRange ids_of(const Feature& feature, int64_t row, int64_t batch) {
  if (row >= batch || feature.ranges == nullptr) return {0, 0};
  const PackedRange range = feature.ranges[row];
  const int begin = clamp(range.begin, 0, feature.id_count);
  return {begin, clamp(range.end, begin, feature.id_count)};
}

// A bucket in registers, by four loads of 16 bytes that are under way together and may come in any order: whoever sees
// a word began after its id and its row were complete (publish.cuh).
struct LoadedBucket {
  IdPair ids[kCacheBucketIds / 2], words[kCacheBucketIds / 2];

  EMBERLINE_DEVICE int64_t id(int at) const { return at % 2 == 0 ? ids[at / 2].low : ids[at / 2].high; }
  EMBERLINE_DEVICE uint64_t word(int at) const {
    return static_cast<uint64_t>(at % 2 == 0 ? words[at / 2].low : words[at / 2].high);
  }
};

struct GpuBuckets {
  const uint64_t* buckets;
  uint64_t bucket_count;

  EMBERLINE_DEVICE uint64_t count() const { return bucket_count; }
  EMBERLINE_DEVICE LoadedBucket loads(uint64_t index) const {
    const int64_t* bucket = reinterpret_cast<const int64_t*>(buckets) + index * (2 * kCacheBucketIds);
    return {{load_pair_relaxed(bucket), load_pair_relaxed(bucket + 2)},
            {load_pair_relaxed(bucket + 4), load_pair_relaxed(bucket + 6)}};
  }
};

// What a replica says of an id: the slot of its row; kAskHost, or another number above every slot, where the host has
// to be asked; 0 where no table that is asked has an entry. chain: the numbers of `length` differences, which are asked
// first.
template <class Buckets>
EMBERLINE_DEVICE uint32_t find_entry(const Buckets& buckets, const int64_t* chain, int length, const Feature& feature,
                                     int64_t id) {
  for (int at = 0; at <= length; ++at) {
    uint32_t table = feature.table;
    if (at < length) table += static_cast<uint32_t>(chain[at]) * feature.base_tables;
    const uint64_t mixed = mix_owner(id, table_salt(table));
    const Match match = find_unless_moving(buckets, id, table, mixed);
    if (match.at >= 0) return word::slot(match.word);
  }
  return 0;
}

EMBERLINE_DEVICE uint32_t find_own_entry(const int64_t* header, const Feature& feature, int64_t id) {
  return find_entry(GpuBuckets{feature.buckets, feature.bucket_count}, header + kChainWord, feature.chain, feature, id);
}

// Whether it is a lookup's turn to leave a mark of use. Turns begin elsewhere in every batch and feature, so that a
// position of a batch does not count for ever or never.
EMBERLINE_DEVICE bool leaves_mark(const Lookup& lookup, int64_t number, int64_t id_number) {
  if (lookup.use_mask < 0) return false;
  const uint64_t turn = mix_id(lookup.header[0] ^ (number << kFeatureShift)) + static_cast<uint64_t>(id_number);
  return (turn & static_cast<uint64_t>(lookup.use_mask)) == 0;
}

// Where a kernel looks: on its own GPU. RowsAcross (lookup_across.cuh) is the other one. Held: what a lane knows of a
// row that it found, 0 without one.
struct OwnRows {
  using Held = uint32_t;  // the slot

  // No row, too, where the host has to be asked, and at a slot that is beyond the slab by a bug of our own.
  static EMBERLINE_DEVICE Held find(const int64_t* header, const Feature& feature, int64_t id) {
    const uint32_t slot = find_own_entry(header, feature, id);
    return slot <= feature.slots ? slot : 0;
  }
  static EMBERLINE_DEVICE Held look_up(const Lookup& lookup, const Feature& feature, int64_t number,
                                       int64_t id_number) {
    const uint32_t slot = find(lookup.header, feature, feature.ids[id_number]);
    if (slot != 0 && feature.uses != nullptr && leaves_mark(lookup, number, id_number)) {
      store_relaxed(feature.uses + slot, 1);
    }
    return slot;
  }
  static EMBERLINE_DEVICE const uint8_t* row(const Feature& feature, Held slot) {
    return feature.slab + static_cast<int64_t>(slot) * feature.stride;
  }
};

// Appends for every lane that misses: one atomic for the tile. Returns whether any did.
EMBERLINE_DEVICE bool append_misses(const Tile& tile, const Lookup& lookup, int64_t number, PerLane<bool>& missing,
                                    PerLane<int64_t>& id_numbers, PerLane<int64_t>& rows) {
  const uint32_t lanes = tile.ballot(missing);
  if (lanes == 0) return false;
  const uint64_t begin =
      tile.once([&] { return fetch_add(lookup.miss_count, static_cast<uint64_t>(count_bits(lanes))); });
  tile.each([&](int lane) {
    if (!missing[lane]) return;
    const uint64_t place = begin + static_cast<uint64_t>(count_bits(lanes & ((1u << lane) - 1)));
    if (place >= static_cast<uint64_t>(lookup.miss_room)) return;
    lookup.misses[2 * place] = (number << kFeatureShift) | id_numbers[lane];
    lookup.misses[2 * place + 1] = rows[lane];
  });
  return true;
}

// Part of a row in a lane: one unit, decoded when it is needed. Zeros where there is no row.
template <int kType, int kWords>
struct RowPart {
  static constexpr int kValues = kWords * values_in_word<kType>();
  RowUnit<kWords> unit;
  float scale;

  EMBERLINE_DEVICE void load(const uint8_t* row, int64_t unit_number) {
    unit = reinterpret_cast<const RowUnit<kWords>*>(row)[unit_number];
    scale = row_scale<kType>(row);
  }
  EMBERLINE_DEVICE void clear() {
    EMBERLINE_UNROLL
    for (int w = 0; w < kWords; ++w) unit.words[w] = 0;
    scale = 0;
  }
  EMBERLINE_DEVICE float value(int at) const {
    constexpr int kInWord = values_in_word<kType>();
    return decode_value<kType>(unit.words[at / kInWord], at % kInWord, scale);
  }
};

template <int kType, int kWords>
EMBERLINE_HD int64_t units_of(int64_t dim) {
  return (encoded_bytes(kType, dim) + 4 * kWords - 1) / (4 * kWords);
}

// Of every row type.
constexpr int kAnyRowType = -1;

// Calls work.run<row type, words of a unit>(), where the feature has rows of the type that is asked for. A kernel for
// one type has fewer registers, so that more warps are under way, than one that has the code of all of them.
template <int kType, class Work>
EMBERLINE_DEVICE void by_row_type(const Feature& feature, const Work& work) {
  const bool wide = feature.stride % 16 == 0;
  if constexpr (kType != kAnyRowType) {
    if (feature.row_type != kType) return;
    return wide ? work.template run<kType, 4>() : work.template run<kType, 1>();
  }
  switch (feature.row_type) {
    case kRowFp32: return wide ? work.template run<kRowFp32, 4>() : work.template run<kRowFp32, 1>();
    case kRowFp16: return wide ? work.template run<kRowFp16, 4>() : work.template run<kRowFp16, 1>();
    case kRowBf16: return wide ? work.template run<kRowBf16, 4>() : work.template run<kRowBf16, 1>();
    case kRowInt8: return wide ? work.template run<kRowInt8, 4>() : work.template run<kRowInt8, 1>();
    case kRowFp8: return wide ? work.template run<kRowFp8, 4>() : work.template run<kRowFp8, 1>();
    default: return;
  }
}

}  // namespace emberline
