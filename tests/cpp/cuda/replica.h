// A GPU's replica of a cache, made on a host for the tests of the lookups: the buckets, the slab, the features over
// them, packed batches, and the obvious answers, from a map and the row codec of the host.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "lookup_across.cuh"
#include "packed_batch.h"
#include "rows/codec.h"
#include "rows/pooling.h"

namespace replica {

using packed::Bytes;

inline const std::vector<std::int64_t> kOddIds{0, -1, 1, INT64_MIN, INT64_MAX, INT64_MIN + 1, -2, 1LL << 32};

struct Format {
  int type;  // of row_decode.cuh
  std::uint32_t dim;
};

inline std::vector<std::int64_t> below(std::mt19937& random, std::int64_t n, std::int64_t bound) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(n));
  for (std::int64_t& value : out) value = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(bound));
  return out;
}

// By definition, from a table of powers of two.
inline float e4m3(std::uint8_t byte) {
  const int exponent = (byte >> 3) & 15, mantissa = byte & 7;
  if ((byte & 0x7F) == 0x7F) return std::bit_cast<float>((byte & 0x80u) << 24 | 0x7FC00000u);
  const float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                    : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (byte & 0x80) != 0 ? -value : value;
}

// A random row, encoded, and what it decodes to.
inline std::vector<char> random_row(std::mt19937& random, Format format, std::vector<float>& decoded) {
  std::normal_distribution<float> normal;
  decoded.resize(format.dim);
  for (float& value : decoded) value = random() % 16 == 0 ? -0.0f : normal(random);
  std::vector<char> row(static_cast<std::size_t>(emberline::encoded_bytes(format.type, format.dim)));
  if (format.type != emberline::kRowFp8) {
    const emberline::RowFormat host{static_cast<emberline::RowType>(format.type), format.dim};
    emberline::encode_rows(host, decoded.data(), 1, row.data());
    emberline::decode_rows(host, row.data(), 1, decoded.data());
    return row;
  }
  const float scale = 0.01f + std::fabs(normal(random));
  std::memcpy(row.data(), &scale, 4);
  for (std::uint32_t d = 0; d < format.dim; ++d) {
    auto byte = static_cast<std::uint8_t>(random());
    if ((byte & 0x7F) == 0x7F) byte = 0;
    row[4 + d] = static_cast<char>(byte);
    decoded[d] = scale * e4m3(byte);
  }
  return row;
}

class Replica {
 public:
  // room: rows at most. align: of the distance between rows.
  Replica(std::int64_t row_bytes, std::int64_t room, std::int64_t buckets, std::int64_t align)
      : stride(packed::aligned(row_bytes, align)),
        slots(room),
        bucket_count(buckets),
        buckets_(buckets * 64),
        slab_((room + 1) * stride) {
    std::memset(buckets_.data, 0, buckets_.size);
    std::memset(slab_.data, 0xFF, slab_.size);  // NaN in every float type: nobody may add what no row has
  }

  std::uint64_t* buckets() { return reinterpret_cast<std::uint64_t*>(buckets_.data); }
  std::uint8_t* slab() { return slab_.data; }

  // False when the slab or both buckets are full.
  bool put(std::uint32_t table, std::int64_t id, const std::vector<char>& row, const std::vector<float>& decoded) {
    if (entries_.contains({table, id})) return true;
    if (used_ == slots || !place(table, id, static_cast<std::uint32_t>(used_ + 1))) return false;
    ++used_;
    std::memcpy(slab() + used_ * stride, row.data(), row.size());
    entries_[{table, id}] = {static_cast<std::uint32_t>(used_), decoded};
    return true;
  }

  // The search for this id ends here, and the host has to be asked.
  bool put_ask_host(std::uint32_t table, std::int64_t id) { return put_without_row(table, id, emberline::kAskHost); }
  // Here too: its slot is so many beyond the slab, by a bug of our own.
  bool put_beyond(std::uint32_t table, std::int64_t id, std::uint32_t by) {
    return put_without_row(table, id, static_cast<std::uint32_t>(slots) + by);
  }

  // row: decoded; none where the host has to be asked.
  struct Entry {
    std::uint32_t slot;
    std::vector<float> row;
  };
  // What the chain shows, or null.
  const Entry* entry(std::uint32_t table, std::int64_t id) const {
    std::vector<std::uint32_t> tables;
    for (const std::int64_t number : chain) tables.push_back(table + static_cast<std::uint32_t>(number) * base_tables);
    tables.push_back(table);
    for (const std::uint32_t asked : tables) {
      const auto found = entries_.find({asked, id});
      if (found != entries_.end()) return &found->second;
    }
    return nullptr;
  }
  // The decoded row that the chain shows, or null.
  const float* row(std::uint32_t table, std::int64_t id) const {
    const Entry* const shown = entry(table, id);
    return shown == nullptr || shown->row.empty() ? nullptr : shown->row.data();
  }

  // Of every batch over it.
  std::vector<std::int64_t> chain;
  std::uint32_t base_tables = 10;

  std::int64_t stride, slots, bucket_count;
  std::int64_t seconds = 0;  // owners that stand in their second bucket

 private:
  bool put_without_row(std::uint32_t table, std::int64_t id, std::uint32_t slot) {
    if (entries_.contains({table, id}) || !place(table, id, slot)) return false;
    entries_[{table, id}] = {slot, {}};
    return true;
  }

  bool place(std::uint32_t table, std::int64_t id, std::uint32_t slot) {
    const std::uint64_t mixed = emberline::mix_owner(id, emberline::table_salt(table));
    const auto count = static_cast<std::uint64_t>(bucket_count);
    std::uint64_t* const head = buckets() + emberline::first_bucket(mixed, count) * 8;
    std::uint64_t* const second = buckets() + emberline::second_bucket(mixed, count) * 8;
    for (std::uint64_t* bucket : {head, second}) {
      for (int at = 0; at < 4; ++at) {
        if (emberline::word::slot(bucket[4 + at]) != 0) continue;
        const std::uint64_t flags = bucket[4 + at] & emberline::word::kFlags;
        seconds += bucket == second;
        bucket[at] = static_cast<std::uint64_t>(id);
        bucket[4 + at] = emberline::word::make(slot, table, 7) | flags;
        if (bucket == second) head[4] |= emberline::word::kOverflow;
        return true;
      }
    }
    return false;
  }

  Bytes buckets_, slab_;
  std::int64_t used_ = 0;
  std::map<std::pair<std::uint32_t, std::int64_t>, Entry> entries_;
};

enum class Hits { kNone, kSome, kAll };

inline std::vector<std::int64_t> random_ids(std::mt19937& random, std::int64_t n) {
  std::vector<std::int64_t> ids = below(random, n, 300);  // repeated, mostly
  for (std::int64_t& id : ids) {
    if (random() % 4 == 0) id = -id;
    if (random() % 4 == 0) id = kOddIds[random() % kOddIds.size()];
  }
  return ids;
}

// Rows for some of the ids, or all, under a table; under the next table always come other rows for the same ids.
inline void fill(std::mt19937& random, Replica& on, Format format, std::uint32_t table,
                 const std::vector<std::int64_t>& ids, Hits hits) {
  std::vector<float> decoded;
  for (const std::int64_t id : ids) {
    const std::vector<char> other = random_row(random, format, decoded);
    on.put(table + 1, id, other, decoded);
    if (hits == Hits::kNone || (hits == Hits::kSome && emberline::mix_id(id) % 3 == 0)) continue;
    const std::vector<char> row = random_row(random, format, decoded);
    CHECK(on.put(table, id, row, decoded) || hits == Hits::kSome);
  }
}

constexpr std::uint8_t kUntouched = 0xA5;
constexpr std::int64_t kNoBound = INT64_MAX;

inline std::int64_t word_of(const void* pointer) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(pointer));
}

// One feature's part of a batch: what a lookup reads, and where it writes.
struct Part {
  // offsets: of the rows, each of which has ids of its own. output_bound: where id i goes to row i, else kNoBound.
  Part(Replica& on, Format row_format, std::uint32_t of_table, std::int64_t with_shape,
       std::vector<std::int64_t> with_ids, const std::vector<std::int64_t>& offsets, std::int64_t output_bytes,
       std::int64_t output_rows, std::int64_t output_bound = kNoBound)
      : replica(&on),
        format(row_format),
        table(of_table),
        shape(with_shape),
        bound(output_bound),
        ids(std::move(with_ids)),
        output(output_bytes),
        states(output_rows),
        uses(on.slots + 1) {
    for (std::size_t row = 0; row + 1 < offsets.size(); ++row) {
      ranges.push_back({static_cast<int>(offsets[row]), static_cast<int>(offsets[row + 1])});
    }
    std::memset(output.data, kUntouched, output.size);
    std::memset(states.data, kUntouched, states.size);
    std::memset(uses.data, 0, uses.size);
  }

  Replica* replica;
  Format format;
  std::uint32_t table;
  std::int64_t shape, bound;
  std::vector<std::int64_t> ids;
  std::vector<emberline::PackedRange> ranges;
  std::vector<float> weights;
  Bytes output, states, uses;
  // Words 11 and 12: of other GPUs that share the rows.
  std::int64_t peers = 0, gpus = 0;

  std::int64_t begin(std::int64_t row) const { return ranges[static_cast<std::size_t>(row)].begin; }
  std::int64_t end(std::int64_t row) const { return ranges[static_cast<std::size_t>(row)].end; }
  // The decoded row of the id of this number, or null.
  const float* row(std::int64_t number) const { return replica->row(table, ids[static_cast<std::size_t>(number)]); }

  void describe(std::int64_t* words) {
    const std::int64_t all[] = {word_of(replica->buckets()),
                                replica->bucket_count,
                                word_of(replica->slab()),
                                replica->slots,
                                replica->stride,
                                format.type,
                                format.dim,
                                table,
                                word_of(uses.data),
                                replica->base_tables,
                                bound,
                                peers,
                                gpus,
                                shape,
                                word_of(output.data),
                                word_of(states.data)};
    static_assert(sizeof(all) == 8 * emberline::kFeatureWords);
    std::memcpy(words, all, sizeof(all));
  }
};

// Entries of three differences for some of the ids, also of one that no chain names; and a chain of up to two.
inline void fill_differences(std::mt19937& random, Replica& on, const std::vector<std::unique_ptr<Part>>& parts) {
  std::vector<float> decoded;
  for (const std::unique_ptr<Part>& part : parts) {
    for (const std::int64_t id : part->ids) {
      for (std::uint32_t number = 1; number <= 3; ++number) {
        const std::uint32_t table = part->table + number * on.base_tables;
        if (random() % 3 == 0) on.put_ask_host(table, id);
        if (random() % 3 != 0) continue;
        const std::vector<char> row = random_row(random, part->format, decoded);
        on.put(table, id, row, decoded);
      }
    }
  }
  constexpr std::int64_t kChains[][2] = {{1, 2}, {2, 1}, {1, 3}, {3, 2}, {2, 3}};
  const auto& chain = kChains[random() % 5];
  on.chain.assign(chain, chain + random() % 3);
}

// A batch as a host packs it: exactly so many bytes, bytes that nobody may read between the sections. peer_chains: of
// other GPUs, for each {length or -1, numbers}.
inline std::unique_ptr<Bytes> pack(const std::vector<std::unique_ptr<Part>>& parts, std::int64_t batch,
                                   const std::vector<std::int64_t>& peer_chains) {
  std::vector<std::int64_t> header(static_cast<std::size_t>(emberline::kPackedFeatureWord) +
                                   parts.size() * emberline::kPackedFeatureWords);
  header[0] = 77;
  header[1] = batch;
  const std::vector<std::int64_t>& chain = parts.at(0)->replica->chain;
  header[emberline::kChainLengthWord] = static_cast<std::int64_t>(chain.size());
  std::copy(chain.begin(), chain.end(), header.begin() + emberline::kChainWord);
  std::int64_t end = static_cast<std::int64_t>(8 * header.size());
  std::vector<std::pair<std::int64_t, std::pair<const void*, std::size_t>>> sections;
  const auto section = [&](const auto& values) {
    if (values.empty()) return std::int64_t{0};
    const std::int64_t offset = packed::aligned(end + 1, 16);
    const std::size_t size = values.size() * sizeof(values[0]);
    sections.push_back({offset, {values.data(), size}});
    end = offset + static_cast<std::int64_t>(size);
    return offset;
  };
  for (std::size_t f = 0; f < parts.size(); ++f) {
    std::int64_t* words = header.data() + emberline::kPackedFeatureWord + f * emberline::kPackedFeatureWords;
    words[0] = section(parts[f]->ids);
    words[1] = static_cast<std::int64_t>(parts[f]->ids.size());
    words[2] = section(parts[f]->ranges);
    words[3] = section(parts[f]->weights);
  }
  header[emberline::kPeerChainsWord] = section(peer_chains);
  auto bytes = std::make_unique<Bytes>(end);
  std::memset(bytes->data, packed::kUnused, bytes->size);
  std::memcpy(bytes->data, header.data(), 8 * header.size());
  for (const auto& [offset, values] : sections) std::memcpy(bytes->data + offset, values.first, values.second);
  return bytes;
}

using Misses = std::vector<std::pair<std::int64_t, std::int64_t>>;  // of one launch, sorted
// More than a batch of these tests has ids. A longer list would cost sanitizers most of their time.
constexpr std::int64_t kMisses = 1 << 12;

// Features of one batch, and one launch over them.
struct Launch {
  Launch(std::vector<std::unique_ptr<Part>>& parts, std::int64_t batch, std::int64_t rows, std::int64_t room = kMisses,
         const std::vector<std::int64_t>& peer_chains = {})
      : features(parts.size() * emberline::kFeatureWords),
        packed_batch(pack(parts, batch, peer_chains)),
        header(reinterpret_cast<std::int64_t*>(packed_batch->data)),
        misses(static_cast<std::size_t>(2 * room)) {
    for (std::size_t f = 0; f < parts.size(); ++f) parts[f]->describe(features.data() + f * emberline::kFeatureWords);
    lookup = {features.data(), header, rows, misses.data(), &miss_count, room, -1};
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  Misses missed() const {
    Misses out;
    for (std::uint64_t m = 0; m < std::min<std::uint64_t>(miss_count, static_cast<std::uint64_t>(lookup.miss_room));
         ++m) {
      out.emplace_back(misses[2 * m], misses[2 * m + 1]);
    }
    std::sort(out.begin(), out.end());
    return out;
  }

  // Words of the header that say where the ids of a feature lie.
  std::int64_t* packed_feature(std::int64_t feature) {
    return header + emberline::kPackedFeatureWord + feature * emberline::kPackedFeatureWords;
  }

  std::vector<std::int64_t> features;
  std::unique_ptr<Bytes> packed_batch;
  std::int64_t* header;
  std::vector<std::int64_t> misses;
  emberline::uint64_t miss_count = 0;
  emberline::Lookup lookup;
};

// Runs share(number) for the numbers below count, in four threads of the host, so that a sanitizer sees two that write
// one byte.
template <class Share>
void on_threads(std::int64_t count, const Share& share) {
  constexpr std::int64_t kThreads = 4;
  std::vector<std::thread> threads;
  for (std::int64_t part = 0; part < kThreads; ++part) {
    threads.emplace_back([&, part] {
      for (std::int64_t number = part; number < count; number += kThreads) share(number);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Random offsets of `batch` rows of up to `longest` ids.
inline std::vector<std::int64_t> random_offsets(std::mt19937& random, std::int64_t batch, std::int64_t longest) {
  std::vector<std::int64_t> offsets{0};
  for (std::int64_t b = 0; b < batch; ++b) {
    offsets.push_back(offsets.back() + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(longest + 1)));
  }
  return offsets;
}

// Bits, so that zeros have signs.
inline bool same(const float* a, const float* b, std::size_t n) { return n == 0 || std::memcmp(a, b, 4 * n) == 0; }

}  // namespace replica
