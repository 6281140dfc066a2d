// The rows that ranks ask of this one for a batch, and the gradients that come back for them.
//
// R ranks, T tables, N ids, D dim. A message holds, for each table in turn, the ids (N) of a rank, then how often each
// came in its part of the batch, as LEB128 of 7 bits a byte, then zeros up to a multiple of 8 bytes. Rows and gradients
// lie in the order of these ids: those of rank 0, table by table, then those of rank 1. An id that several ranks ask
// for is looked up once, and its row takes one step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "training/table_gradients.h"

namespace emberline {

// What one rank asks of all: message and sizes by rank.
struct AskedIds {
  std::vector<std::uint8_t> message;  // those to rank 0, then those to rank 1, ...
  std::vector<std::int64_t> bytes;  // (R)
  std::vector<std::int64_t> numbers;  // (R, T) ids
};

// Writes a count as LEB128.
void put_count(std::uint32_t count, std::vector<std::uint8_t>& to);

class AskedRows {
 public:
  explicit AskedRows(std::vector<TrainingTable*> tables) : tables_(std::move(tables)), gradients_(tables_.size()) {}

  const std::vector<TrainingTable*>& tables() const { return tables_; }

  // Reads the messages of R ranks, one after the other, and finds the rows. bytes (R), numbers (R, T).
  // train: counts the ids and creates the rows that are due. Throws std::invalid_argument for a message that is cut.
  void find(const std::uint8_t* messages, const std::vector<std::int64_t>& bytes,
            const std::vector<std::int64_t>& numbers, bool train, std::size_t threads);
  // Values of all rows that were asked for.
  std::size_t values() const { return values_; }
  std::size_t ids() const { return ids_; }
  // out (values).
  void write(float* out, std::size_t threads) const;
  // out (ids): 1 for an id with a row.
  void write_flags(std::uint8_t* out) const;
  // grads (values), which must stay where they are until the step.
  void set_gradients(const float* grads, std::size_t threads);
  TableGradients& gradients(std::size_t table) { return gradients_[table]; }

 private:
  // The ids that a rank asks of a table: where they begin among the places of the table, and where in all messages.
  struct Piece {
    std::size_t place, n, value, id;
  };

  std::vector<TrainingTable*> tables_;
  std::vector<TableGradients> gradients_;
  std::vector<std::vector<std::uint32_t>> places_;  // by table, rank after rank: which of its ids it is
  std::vector<std::vector<Piece>> pieces_;  // by table and rank
  std::size_t values_ = 0, ids_ = 0;
};

}  // namespace emberline
