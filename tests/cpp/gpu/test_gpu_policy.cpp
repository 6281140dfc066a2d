// The hit rate of a GPU's cache beside that of the host's, on the same traffic. A GPU reports every eighth use, in
// marks that are read now and then, and rows come in a set later.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>

#include "cache/cache_table.h"
#include "check.h"
#include "gpu_rows.h"

using namespace emberline;

namespace {

constexpr std::size_t kRow = 4;
constexpr int kBatch = 256;

class Zipf {
 public:
  Zipf(std::size_t ids, double exponent) {
    double sum = 0;
    for (std::size_t rank = 1; rank <= ids; ++rank) {
      cumulative_.push_back(sum += std::pow(static_cast<double>(rank), -exponent));
    }
    for (std::size_t i = 0; i < ids; ++i) names_.push_back(static_cast<std::int64_t>(i));
    shuffle();
  }
  void shuffle() { std::shuffle(names_.begin(), names_.end(), random_); }
  double best(std::size_t rows) const { return cumulative_[rows - 1] / cumulative_.back(); }
  std::int64_t next() {
    std::uniform_real_distribution<double> uniform(0, cumulative_.back());
    const auto rank = std::lower_bound(cumulative_.begin(), cumulative_.end() - 1, uniform(random_));
    return names_[static_cast<std::size_t>(rank - cumulative_.begin())];
  }
  void batch(std::vector<std::int64_t>& ids) {
    ids.resize(kBatch);
    for (std::int64_t& id : ids) id = next();
  }

 private:
  std::vector<double> cumulative_;
  std::vector<std::int64_t> names_;
  std::mt19937_64 random_{7};
};

std::vector<std::int64_t> distinct(std::vector<std::int64_t> ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

// A GPU and what its tier does: marks, sets, ids that were missed.
class Gpu {
 public:
  explicit Gpu(std::uint64_t rows) : cache(kRow, rows, 1), marks_(cache.slots() + 1, 0) {}

  double run(Zipf& traffic, double lookups) {
    std::vector<std::int64_t> ids;
    std::uint64_t asked = 0, hits = 0;
    for (; static_cast<double>(asked) < lookups; asked += kBatch) {
      traffic.batch(ids);
      std::vector<std::uint32_t> slots(ids.size());
      cache.find(0, ids.data(), ids.size(), slots.data());
      std::vector<std::int64_t> missing;
      std::uint64_t hit = 0;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (slots[i] == 0) {
          missing.push_back(ids[i]);
          continue;
        }
        ++hit;
        if (random_() % 8 == 0) marks_[slots[i]] = 1;
      }
      hits += hit;
      cache.pass_lookups(ids.size(), hit);
      take_in(distinct(missing));
      if (++batches_ % 8 != 0) continue;
      publish(cache);
      cache.note_uses(marks_.data(), 8, {});
      std::fill(marks_.begin(), marks_.end(), std::uint8_t{0});
    }
    return static_cast<double>(hits) / static_cast<double>(asked);
  }

  GpuCache cache;

 private:
  void take_in(const std::vector<std::int64_t>& missing) {
    const auto admits = std::make_unique<bool[]>(missing.size());
    cache.ask(0, missing.data(), missing.size(), admits.get());
    std::vector<std::int64_t> wanted;
    for (std::size_t i = 0; i < missing.size(); ++i) {
      if (admits[i]) wanted.push_back(missing[i]);
    }
    const std::vector<std::uint8_t> rows(wanted.size() * kRow);
    cache.offer(0, wanted.data(), wanted.size(), rows.data(), nullptr, true);
  }

  std::vector<std::uint8_t> marks_;
  std::mt19937 random_{5};
  int batches_ = 0;
};

class Host {
 public:
  explicit Host(std::uint64_t rows) : cache_(kRow, rows, 1), table_(cache_, 0, {RowType::kFp32, 1}) {}

  double run(Zipf& traffic, double lookups) {
    std::vector<std::int64_t> ids;
    std::uint64_t asked = 0, hits = 0;
    std::vector<float> out(kBatch);
    std::vector<std::uint8_t> found(kBatch);
    for (; static_cast<double>(asked) < lookups; asked += kBatch) {
      traffic.batch(ids);
      hits += table_.find(ids.data(), ids.size(), out.data(), found.data());
      std::vector<std::int64_t> missing;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (!found[i]) missing.push_back(ids[i]);
      }
      missing = distinct(missing);
      table_.insert_and_evict(missing.data(), missing.size(), out.data(), nullptr);
    }
    return static_cast<double>(hits) / static_cast<double>(asked);
  }

 private:
  Cache cache_;
  CacheTable table_;
};

}  // namespace

TEST(a_gpu_keeps_nearly_as_many_hits_as_the_host_would) {
  for (const std::size_t rows : {std::size_t{10'000}, std::size_t{2'000}}) {
    Zipf for_gpu(100'000, 1.05), for_host(100'000, 1.05);
    Gpu gpu(rows);
    Host host(rows);
    const auto scale = static_cast<double>(rows);
    gpu.run(for_gpu, 120 * scale);
    host.run(for_host, 120 * scale);
    const double on_gpu = gpu.run(for_gpu, 20 * scale), on_host = host.run(for_host, 20 * scale);
    std::printf("     hit rate %.2f, the host's cache %.2f, best static %.2f\n", 100 * on_gpu, 100 * on_host,
                100 * for_gpu.best(rows));
    CHECK(on_gpu > on_host - 0.02);
    gpu.cache.check_integrity();
  }
}

// Also by a GPU that keeps room for deltas, and so never holds all that it could.
TEST(a_replaced_hot_set_is_learned) {
  for (const std::size_t kept : {0, 1'250}) {
    Zipf traffic(100'000, 1.05);
    Gpu gpu(10'000 + kept);
    gpu.cache.reserve(kept);
    gpu.run(traffic, 1'000'000);
    traffic.shuffle();
    const double first = gpu.run(traffic, 10'000);
    gpu.run(traffic, 290'000);
    const double then = gpu.run(traffic, 50'000);
    std::printf("     first %.2f, then %.2f, best static %.2f\n", 100 * first, 100 * then, 100 * traffic.best(10'000));
    CHECK(first < traffic.best(10'000) - 0.2 && then > traffic.best(10'000) - 0.03);
  }
}

RUN_ALL_TESTS()
