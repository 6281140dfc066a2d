#include "training/asked_rows.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "training/distinct_ids.h"
#include "training/threads.h"

namespace emberline {
namespace {

// Reads a count and moves `at` behind it.
std::uint32_t take_count(const std::uint8_t*& at, const std::uint8_t* end) {
  std::uint32_t count = 0;
  for (std::uint32_t shift = 0; shift < 35; shift += 7) {
    if (at == end) break;
    const std::uint8_t byte = *at++;
    count |= static_cast<std::uint32_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return count;
  }
  throw std::invalid_argument("ids: the message of a rank is cut");
}

}  // namespace

void put_count(std::uint32_t count, std::vector<std::uint8_t>& to) {
  for (; count >= 0x80; count >>= 7) to.push_back(static_cast<std::uint8_t>(count | 0x80));
  to.push_back(static_cast<std::uint8_t>(count));
}

void AskedRows::find(const std::uint8_t* messages, const std::vector<std::int64_t>& bytes,
                     const std::vector<std::int64_t>& numbers, bool train, std::size_t threads) {
  const std::size_t ranks = bytes.size(), tables = tables_.size();
  std::vector<const std::uint8_t*> ids(ranks);
  std::vector<std::vector<std::uint32_t>> counts(ranks);
  std::vector<std::vector<std::size_t>> first(ranks, std::vector<std::size_t>(tables));
  pieces_.assign(tables, std::vector<Piece>(ranks));
  places_.resize(tables);
  std::vector<std::size_t> sizes(tables);
  values_ = ids_ = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::uint8_t* const end = messages + bytes[rank];
    std::size_t n = 0;
    for (std::size_t table = 0; table < tables; ++table) {
      const auto own = static_cast<std::size_t>(numbers[rank * tables + table]);
      pieces_[table][rank] = {sizes[table], own, values_, ids_};
      first[rank][table] = n;
      sizes[table] += own;
      values_ += own * tables_[table]->dim();
      ids_ += own;
      n += own;
    }
    if (static_cast<std::size_t>(bytes[rank]) < 9 * n) {
      throw std::invalid_argument("ids: the message of a rank is cut");
    }
    ids[rank] = messages;
    const std::uint8_t* at = messages + 8 * n;
    counts[rank].resize(n);
    for (std::uint32_t& count : counts[rank]) count = take_count(at, end);
    messages = end;
  }
  const Locks locks(tables_);
  on_threads(threads, tables, [&](std::size_t table) {
    TableGradients& gradients = gradients_[table];
    std::vector<std::uint32_t>& places = places_[table];
    places.resize(sizes[table]);
    {
      DistinctIds distinct(gradients.found);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const Piece& piece = pieces_[table][rank];
        const std::size_t from = first[rank][table];
        for (std::size_t i = 0; i < piece.n; ++i) {
          std::int64_t id;
          std::memcpy(&id, ids[rank] + 8 * (from + i), sizeof id);
          places[piece.place + i] = distinct.add(id, counts[rank][from + i]);
        }
      }
    }
    tables_[table]->find(gradients.found, train);
  });
}

void AskedRows::write(float* out, std::size_t threads) const {
  on_threads(threads, tables_.size(), [&](std::size_t table) {
    const std::vector<const float*>& rows = gradients_[table].found.rows;
    const std::size_t dim = tables_[table]->dim();
    for (const Piece& piece : pieces_[table]) {
      const std::uint32_t* places = places_[table].data() + piece.place;
      float* to = out + piece.value;
      for (std::size_t i = 0; i < piece.n; ++i, to += dim) {
        const float* row = rows[places[i]];
        if (row == nullptr) {
          std::memset(to, 0, dim * sizeof(float));
        } else {
          std::memcpy(to, row, dim * sizeof(float));
        }
      }
    }
  });
}

void AskedRows::write_flags(std::uint8_t* out) const {
  for (std::size_t table = 0; table < tables_.size(); ++table) {
    for (const Piece& piece : pieces_[table]) {
      for (std::size_t i = 0; i < piece.n; ++i) {
        out[piece.id + i] = gradients_[table].found.has_row(places_[table][piece.place + i]) ? 1 : 0;
      }
    }
  }
}

void AskedRows::set_gradients(const float* grads, std::size_t threads) {
  on_threads(threads, tables_.size(), [&](std::size_t table) {
    TableGradients& gradients = gradients_[table];
    const std::size_t dim = tables_[table]->dim();
    // From now on counts are those of the ranks that asked, each of which has one gradient.
    std::fill(gradients.found.counts.begin(), gradients.found.counts.end(), 0);
    for (const std::uint32_t place : places_[table]) ++gradients.found.counts[place];
    gradients.set_starts();
    std::vector<std::uint32_t> next(gradients.starts.begin(), gradients.starts.end() - 1);
    for (const Piece& piece : pieces_[table]) {
      const float* from = grads + piece.value;
      for (std::size_t i = 0; i < piece.n; ++i, from += dim) {
        gradients.contributions[next[places_[table][piece.place + i]]++] = {from, 1.0f, false};
      }
    }
  });
}

}  // namespace emberline
