// GPUs that share rows, for the tests of the lookups that look across: on each GPU replicas of its own, what the one
// that looks knows of the others, and the obvious answers, from the maps of the replicas.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "lookup_across.cuh"
#include "replica.h"

namespace gpus {

using namespace replica;

constexpr std::uint8_t kNobodys = 0xEE;

// Of one cache: what each GPU has, null where it has nothing. The decoy stands where the own GPU's would in what it
// knows of the others: there nobody may look.
struct Cache {
  Format format;
  std::vector<std::unique_ptr<Replica>> on;
  std::unique_ptr<Replica> decoy;
};

// What a feature knows of other GPUs: the table that word 11 leads to, and marks of use on each.
struct Peers {
  explicit Peers(std::size_t gpus) : table(static_cast<std::int64_t>(gpus) * 8 * emberline::kPeerWords), uses(gpus) {}

  void describe(std::size_t gpu, Replica* there, bool has_marks) {
    std::uint8_t* const words = table.data + gpu * 8 * emberline::kPeerWords;
    std::memset(words, kNobodys, 8 * emberline::kPeerWords);
    const std::int64_t nothing = 0;
    if (there == nullptr) {
      std::memcpy(words, &nothing, 8);
      return;
    }
    uses[gpu] = std::make_unique<Bytes>(there->slots + 1);
    std::memset(uses[gpu]->data, 0, uses[gpu]->size);
    const std::int64_t all[] = {word_of(there->buckets()), there->bucket_count, word_of(there->slab()), there->slots,
                                has_marks ? word_of(uses[gpu]->data) : 0};
    static_assert(sizeof(all) == 8 * emberline::kPeerWords);
    std::memcpy(words, all, sizeof(all));
  }

  Bytes table;
  std::vector<std::unique_ptr<Bytes>> uses;
};

// A row that is found, and where. Without one: row is null.
struct Place {
  const float* row = nullptr;
  std::size_t gpu = 0;
  std::uint32_t slot = 0;
};

struct Gpus {
  Gpus(std::size_t gpus, std::size_t own_gpu) : count(gpus), own(own_gpu), chains(gpus), answers(gpus, true) {}

  // A feature of the own GPU, and what it knows of the others. To be called once chains are set.
  void add_part(Cache& cache, std::uint32_t table, std::int64_t shape, std::vector<std::int64_t> ids,
                const std::vector<std::int64_t>& offsets, std::int64_t output_bytes, std::int64_t output_rows,
                std::int64_t bound, bool has_marks = true) {
    for (std::size_t gpu = 0; gpu < count; ++gpu) {
      if (cache.on[gpu] != nullptr) cache.on[gpu]->chain = chains[gpu];
    }
    parts.push_back(std::make_unique<Part>(*cache.on[own], cache.format, table, shape, std::move(ids), offsets,
                                           output_bytes, output_rows, bound));
    peers.push_back(std::make_unique<Peers>(count));
    for (std::size_t gpu = 0; gpu < count; ++gpu) {
      peers.back()->describe(gpu, gpu == own ? cache.decoy.get() : cache.on[gpu].get(), has_marks);
    }
    parts.back()->peers = word_of(peers.back()->table.data);
    parts.back()->gpus = static_cast<std::int64_t>(static_cast<std::uint64_t>(own) << 32 | count);
    caches.push_back(&cache);
    marked.push_back(has_marks);
  }

  // Of a batch's header. Past the end of a chain comes another number that there is.
  std::vector<std::int64_t> packed_chains() const {
    std::vector<std::int64_t> words;
    for (std::size_t gpu = 0; gpu < count; ++gpu) {
      words.push_back(answers[gpu] ? static_cast<std::int64_t>(chains[gpu].size()) : -1);
      words.insert(words.end(), chains[gpu].begin(), chains[gpu].end());
      words.resize((gpu + 1) * emberline::kPeerChainWords, 3);
    }
    return words;
  }

  // Its own GPU first; what that says holds. Then the GPU whose part the id is. across: whether other GPUs are
  // asked.
  Place find(std::size_t feature, std::int64_t id, bool across = true) const {
    const std::uint32_t table = parts[feature]->table;
    if (const Replica::Entry* entry = parts[feature]->replica->entry(table, id); entry != nullptr) {
      return entry->row.empty() ? Place{} : Place{entry->row.data(), own, entry->slot};
    }
    const std::size_t gpu = part_of(table, id);
    if (!across || gpu == own || !answers[gpu] || caches[feature]->on[gpu] == nullptr) return {};
    const Replica::Entry* entry = caches[feature]->on[gpu]->entry(table, id);
    return entry == nullptr || entry->row.empty() ? Place{} : Place{entry->row.data(), gpu, entry->slot};
  }

  std::size_t part_of(std::uint32_t table, std::int64_t id) const {
    return emberline::part_of(emberline::mix_owner(id, emberline::table_salt(table)),
                              static_cast<std::uint32_t>(count));
  }

  // Where a feature's lookups leave marks on a GPU; null where it knows of none.
  const Bytes* uses(std::size_t feature, std::size_t gpu) const {
    return gpu == own ? &parts[feature]->uses : peers[feature]->uses[gpu].get();
  }
  // As if nothing had been looked up.
  void clear() {
    for (std::size_t f = 0; f < parts.size(); ++f) {
      for (Bytes* bytes : {&parts[f]->output, &parts[f]->states}) std::memset(bytes->data, kUntouched, bytes->size);
      std::memset(parts[f]->uses.data, 0, parts[f]->uses.size);
      for (const auto& marks : peers[f]->uses) {
        if (marks != nullptr) std::memset(marks->data, 0, marks->size);
      }
    }
  }

  std::size_t count, own;
  std::vector<std::vector<std::int64_t>> chains;
  std::vector<bool> answers;
  // By feature.
  std::vector<std::unique_ptr<Part>> parts;
  std::vector<std::unique_ptr<Peers>> peers;
  std::vector<Cache*> caches;
  std::vector<bool> marked;
};

// What must come of the lookups of a launch.
struct Expected {
  explicit Expected(const Gpus& of, bool looks_across = true) : on(of), across(looks_across) {
    for (std::size_t f = 0; f < on.parts.size(); ++f) {
      for (std::size_t gpu = 0; gpu < on.count; ++gpu) {
        const Bytes* const bytes = on.uses(f, gpu);
        marks.emplace_back(bytes == nullptr ? 0 : bytes->size, std::uint8_t{0});
      }
    }
  }

  // Looks an id up for a row of the output: its row, or null.
  const float* look_up(const emberline::Lookup& lookup, std::size_t feature, std::int64_t id_number, std::int64_t row) {
    const auto number = static_cast<std::int64_t>(feature);
    const Place place = on.find(feature, on.parts[feature]->ids[static_cast<std::size_t>(id_number)], across);
    if (place.row == nullptr) {
      misses.emplace_back((number << 48) | id_number, row);
    } else if (on.marked[feature] && emberline::leaves_mark(lookup, number, id_number)) {
      marks[feature * on.count + place.gpu][place.slot] = 1;
    }
    found_elsewhere += place.row != nullptr && place.gpu != on.own;
    return place.row;
  }

  bool misses_are(const Launch& launch) {
    std::sort(misses.begin(), misses.end());
    return launch.missed() == misses && launch.miss_count == misses.size();
  }
  // On every GPU.
  bool marks_are_right() const {
    for (std::size_t at = 0; at < marks.size(); ++at) {
      const Bytes* const bytes = on.uses(at / on.count, at % on.count);
      if (bytes != nullptr && !std::equal(marks[at].begin(), marks[at].end(), bytes->data)) return false;
    }
    return true;
  }

  const Gpus& on;
  bool across;
  Misses misses;
  std::vector<std::vector<std::uint8_t>> marks;  // by feature, then by GPU
  std::int64_t found_elsewhere = 0;
};

// Those are no GPU's marks: GPUs::uses does not give them.
inline bool decoys_are_unmarked(const Gpus& on) {
  return std::all_of(on.peers.begin(), on.peers.end(), [&](const auto& peers) {
    const Bytes* const marks = peers->uses[on.own].get();
    return marks == nullptr ||
           std::all_of(marks->data, marks->data + marks->size, [](std::uint8_t mark) { return mark == 0; });
  });
}

}  // namespace gpus
