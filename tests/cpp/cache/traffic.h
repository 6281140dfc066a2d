// Streams of ids for the policy's tests: skewed, seeded, and with a known best static choice.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "cache_rows.h"

namespace emberline {

// Owners (table, id) by weight, most wanted first.
class Traffic {
 public:
  // Zipf(exponent) over `ids` ids of one table, its lookups worth `share`. Several of them compete.
  void add(std::uint32_t table, std::size_t ids, double exponent, double share) {
    double sum = 0;
    for (std::size_t rank = 1; rank <= ids; ++rank) sum += std::pow(static_cast<double>(rank), -exponent);
    for (std::size_t rank = 1; rank <= ids; ++rank) {
      items_.push_back(
          {share * std::pow(static_cast<double>(rank), -exponent) / sum, table, static_cast<std::int64_t>(rank)});
    }
  }
  // Ids of one table of which `share` of the ids (first) get `uses` each (second).
  void add_reuse(std::uint32_t table, std::size_t ids, const std::vector<std::pair<double, double>>& classes) {
    std::int64_t id = 1;
    for (const auto& [share, uses] : classes) {
      const auto count = static_cast<std::size_t>(std::llround(share * static_cast<double>(ids)));
      for (std::size_t i = 0; i < count; ++i) items_.push_back({uses, table, id++});
    }
  }

  void ready() {
    std::stable_sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) { return a.weight > b.weight; });
    double sum = 0;
    for (const Item& item : items_) cumulative_.push_back(sum += item.weight);
    for (std::size_t i = 0; i < items_.size(); ++i) names_.push_back(i);
    shuffle();
  }

  // Everybody's place is somebody else's now.
  void shuffle() { std::shuffle(names_.begin(), names_.end(), random_); }

  double best(std::size_t rows) const {
    return rows == 0 ? 0 : cumulative_[std::min(rows, items_.size()) - 1] / cumulative_.back();
  }

  // Rows of a table in the best choice of `rows` as the traffic is now.
  std::size_t best_of(std::uint32_t table, std::size_t rows) const {
    std::size_t count = 0;
    for (std::size_t i = 0; i < rows; ++i) count += items_[names_[i]].table == table;
    return count;
  }

  // Looks up `lookups` ids in batches and offers what is missing; returns the share of hits.
  double run(std::vector<CacheTable>& tables, double lookups, int batch = 256) {
    std::size_t hits = 0, asked = 0;
    std::uniform_real_distribution<double> uniform(0, cumulative_.back());
    std::vector<std::vector<std::int64_t>> wanted(tables.size());
    while (static_cast<double>(asked) < lookups) {
      for (auto& ids : wanted) ids.clear();
      for (int i = 0; i < batch; ++i) {
        const auto rank =
            std::lower_bound(cumulative_.begin(), cumulative_.end(), uniform(random_)) - cumulative_.begin();
        const Item& item = items_[names_[std::min<std::size_t>(static_cast<std::size_t>(rank), items_.size() - 1)]];
        wanted[item.table].push_back(item.id);
      }
      for (std::size_t t = 0; t < tables.size(); ++t) hits += look_up(tables[t], wanted[t]);
      asked += static_cast<std::size_t>(batch);
    }
    return static_cast<double>(hits) / static_cast<double>(asked);
  }

  // Every id once.
  void scan(std::vector<CacheTable>& tables) {
    for (const Item& item : items_) look_up(tables[item.table], {item.id});
  }

 private:
  struct Item {
    double weight;
    std::uint32_t table;
    std::int64_t id;
  };

  std::size_t look_up(CacheTable& table, std::vector<std::int64_t> ids) {
    std::vector<float> out(ids.size() * table.dim());
    std::vector<std::uint8_t> found(ids.size());
    const std::size_t hits = table.find(ids.data(), ids.size(), out.data(), found.data());
    std::vector<std::int64_t> missing;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (!found[i]) missing.push_back(ids[i]);
    }
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    const std::vector<float> rows(missing.size() * table.dim());
    table.insert_and_evict(missing.data(), missing.size(), rows.data(), nullptr);
    return hits;
  }

  std::vector<Item> items_;
  std::vector<double> cumulative_;
  std::vector<std::size_t> names_;
  std::mt19937_64 random_{7};
};

}  // namespace emberline
