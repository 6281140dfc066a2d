// The rows of a lookup as a GPU gets them: each once, those that the GPU keeps by their place there, and the others
// with their values. It pools them itself, by the places that are written here.
//
// B bags, D dim, G groups. Tables of a group have one dim, and their rows of a batch lie in one matrix: first the kept
// ones, table by table, then the others, table by table, then a row of zeros, with which sequences are filled up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "table/id_map.h"
#include "training/batch_lookup.h"

namespace emberline {

// The rows of a table that a GPU keeps: id -> place there.
class KeptIds {
 public:
  void put(std::int64_t id, std::uint32_t place) { places_[id] = place + 1; }
  // One more than the place, 0 for an id that is not kept.
  std::uint32_t get(std::int64_t id) const {
    const std::uint32_t* found = places_.find(id);
    return found == nullptr ? 0 : *found;
  }
  void erase(std::int64_t id) { places_.erase(id); }
  void clear() { places_.clear(); }
  std::size_t size() const { return places_.size(); }

 private:
  IdMap places_;
};

// Where the gradients of a feature's bags, or of the places of its sequences, lie in a matrix of gradients: that of bag
// b in row `first` + b * `stride`, and those of the places of a sequence behind it. Without `has` there are none.
struct GradientRows {
  std::size_t first = 0, stride = 0;
  bool has = false;
};

// Sums of gradients, in an order that depends on the batch alone: the terms of a row as its ids lie in the features,
// one feature after the other, 32 at a time, then these sums, 32 at a time.
struct DeviceSums {
  std::vector<std::int32_t> rows;  // (terms) in the matrix of gradients
  std::vector<float> factors;  // (terms), or none when all are 1
  // By level: where each sum begins, and the end. The last level has a sum a row.
  std::vector<std::vector<std::int32_t>> levels;
};

class DeviceRows {
 public:
  // groups, kept: by table; kept null: no row of the table. `lookup` has found its rows, and stays as it is until the
  // step.
  DeviceRows(BatchLookup& lookup, std::vector<std::uint32_t> groups, const std::vector<const KeptIds*>& kept,
             std::size_t threads);

  // The places on the GPU of the kept rows of a group, in the order of its matrix.
  const std::vector<std::int32_t>& kept(std::size_t group) const { return groups_[group].kept; }
  // Rows of a group that are not kept.
  std::size_t others(std::size_t group) const { return groups_[group].others; }
  std::size_t groups() const { return groups_.size(); }
  std::uint32_t dim(std::size_t group) const { return groups_[group].dim; }

  // out: by group, (others, D).
  void write(const std::vector<float*>& out, std::size_t threads) const;
  // Features of one group and one pooling, side by side: bags in the order (B, features). places: (ids) of rows in the
  // matrix, offsets (B * features + 1), weights (ids) or null.
  std::size_t ids(const std::vector<std::uint32_t>& features) const;
  void write_bags(const std::vector<std::uint32_t>& features, std::int32_t* places, std::int32_t* offsets,
                  float* weights, std::size_t threads) const;
  // places: (B, L) of a feature that is not pooled.
  void write_sequence(std::uint32_t feature, std::int32_t* places) const;
  // What the gradient of each row of the matrix of a group is a sum of, without that of zeros.
  DeviceSums sums(std::size_t group, const std::vector<GradientRows>& from, std::size_t threads) const;
  // Whether each row of the matrix of a group, without that of zeros, belongs to a feature that is used. used: by
  // feature.
  std::vector<std::uint8_t> is_used(std::size_t group, const std::vector<char>& used) const;
  // Leaves in the gradients of each table those of the rows that are not kept. grads: by group, (others, D), which stay
  // where they are until the step. used: by feature; ids of the others have none.
  void take_gradients(const std::vector<const float*>& grads, const std::vector<char>& used, std::size_t threads);

 private:
  struct Group {
    std::vector<std::int32_t> kept;
    std::size_t others = 0;
    std::uint32_t dim = 0;
  };

  BatchLookup& lookup_;
  std::vector<std::uint32_t> group_of_;  // by table
  std::vector<Group> groups_;
  std::vector<std::vector<std::uint32_t>> at_;  // by table and found id: its row in the matrix
};

}  // namespace emberline
