// Missed rows: what a lookup missed, scattered to its rows, or added to its bags within the rounding that
// missed_rows.cuh states.
#include "missed_rows.cuh"

#include "check.h"
#include "lookup_gather.cuh"
#include "replica.h"

using namespace replica;

namespace {

constexpr std::int64_t kWarps = 3;

// Features over random ids, some of whose rows the replica has. `truth` has all of them.
struct Batch {
  Batch(std::mt19937& random, Format format, std::int64_t rows, std::int64_t longest, std::vector<std::int64_t> shapes,
        std::int64_t value_bytes)
      : on(emberline::encoded_bytes(format.type, format.dim), 3000, 600, 16),
        truth(on.stride, 3000, 3000, 16),
        batch(rows) {
    std::normal_distribution<float> normal;
    for (std::size_t f = 0; f < shapes.size(); ++f) {
      const auto table = static_cast<std::uint32_t>(f);
      const std::vector<std::int64_t> offsets = random_offsets(random, rows, longest);
      const std::vector<std::int64_t> ids = random_ids(random, offsets.back());
      const bool pooled = value_bytes == 0;
      const std::int64_t width = format.dim * (pooled ? 4 : value_bytes);
      const std::int64_t outputs = pooled ? rows : shapes[f] > 0 ? rows * shapes[f] : offsets.back();
      const bool is_open = !pooled && shapes[f] == 0;
      parts.push_back(std::make_unique<Part>(on, format, table, shapes[f], ids, offsets, outputs * width, outputs,
                                             is_open ? outputs : kNoBound));
      for (const std::int64_t id : ids) {
        if (truth.row(table, id) == nullptr) {
          std::vector<float> decoded;
          const std::vector<char> row = random_row(random, format, decoded);
          CHECK(truth.put(table, id, row, decoded));
          if (random() % 3 != 0) on.put(table, id, row, decoded);
        }
        parts.back()->weights.push_back(normal(random));
      }
    }
  }

  Replica on, truth;
  std::int64_t batch;
  std::vector<std::unique_ptr<Part>> parts;
};

template <class Share>
void run(const Share& share) {
  on_threads(kWarps * emberline::kWarp, [&](std::int64_t thread) { share(thread, kWarps * emberline::kWarp); });
}

template <class Output>
bool scatters(std::mt19937& random, Format format, std::int64_t length) {
  Batch batch(random, format, 12, 9, {length, length}, sizeof(typename Output::Value));
  Launch launch(batch.parts, batch.batch, batch.batch);
  on_threads(2, [&](std::int64_t f) { emberline::gather_share<Output>(emberline::Tile(32), launch.lookup, f, 0, 1); });
  // As a host does it: for every entry of the list its row, wherever that lies in staging.
  std::vector<std::int64_t> entries;
  std::vector<float> staging;
  for (const auto& [key, row] : launch.missed()) {
    const Part& part = *batch.parts[static_cast<std::size_t>(key >> 48)];
    const float* found = batch.truth.row(part.table, part.ids[static_cast<std::size_t>(key & emberline::kRowMask)]);
    entries.insert(entries.end(), {(key >> 48 << 48) | row, static_cast<std::int64_t>(staging.size())});
    staging.insert(staging.end(), found, found + format.dim);
  }
  const auto count = static_cast<std::int64_t>(entries.size() / 2);
  const emberline::MissedRows late{launch.features.data(), launch.header, batch.batch, entries.data(), &count, count,
                                   staging.data(),         nullptr};
  run([&](std::int64_t thread, std::int64_t threads) { emberline::scatter_share<Output>(late, thread, threads); });

  // As if nothing had been late.
  bool right = true;
  for (auto& part : batch.parts) {
    const std::int64_t rows = static_cast<std::int64_t>(part->states.size);
    std::vector<typename Output::Value> expected(static_cast<std::size_t>(rows) * format.dim, 0);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t bag = length > 0 ? row / length : 0;
      const std::int64_t id = length > 0 ? part->begin(bag) + row % length : row;
      const bool is_there = length == 0 || id < part->end(bag);
      right = right && part->states.data[row] == (is_there ? 1 : 0);
      if (!is_there) continue;
      const float* found = batch.truth.row(part->table, part->ids[static_cast<std::size_t>(id)]);
      for (std::uint32_t d = 0; d < format.dim; ++d) {
        expected[static_cast<std::size_t>(row) * format.dim + d] = Output::of(found[d]);
      }
    }
    right = right && (expected.empty() || std::memcmp(expected.data(), part->output.data, part->output.size) == 0);
  }
  return right;
}

// The largest error over what is allowed; above 1 is wrong.
double added_error(std::mt19937& random, Format format, std::int64_t longest, std::int64_t pooling) {
  Batch batch(random, format, 12, longest, {pooling, pooling}, 0);
  Launch launch(batch.parts, batch.batch, batch.batch);
  for (std::int64_t f = 0; f < 2; ++f) {
    const int width = emberline::pool_width(emberline::feature_at(launch.lookup.features, launch.header, f));
    on_threads(32 / width, [&](std::int64_t tile) { emberline::pool_share(launch.lookup, f, tile * width, 32); });
  }
  std::vector<std::int64_t> entries;
  std::vector<float> staging, weights;
  for (const auto& [key, bag] : launch.missed()) {  // sorted: bags together, ids in order
    const Part& part = *batch.parts[static_cast<std::size_t>(key >> 48)];
    const auto number = static_cast<std::size_t>(key & emberline::kRowMask);
    const std::int64_t own = (key >> 48 << 48) | bag;
    if (entries.empty() || entries[entries.size() - 4] != own) {
      entries.insert(entries.end(),
                     {own, static_cast<std::int64_t>(staging.size()), 0, static_cast<std::int64_t>(weights.size())});
    }
    ++entries[entries.size() - 2];
    const float* found = batch.truth.row(part.table, part.ids[number]);
    staging.insert(staging.end(), found, found + format.dim);
    weights.push_back(part.weights[number]);
  }
  const auto count = static_cast<std::int64_t>(entries.size() / 4);
  const emberline::MissedRows late{launch.features.data(), launch.header, batch.batch, entries.data(), &count, count,
                                   staging.data(),         weights.data()};
  run([&](std::int64_t thread, std::int64_t threads) { emberline::add_share(late, thread, threads); });

  double worst = 0;
  for (const auto& part : batch.parts) {
    for (std::size_t b = 0; b < static_cast<std::size_t>(batch.batch); ++b) {
      const auto begin = static_cast<std::size_t>(part->ranges[b].begin),
                 end = static_cast<std::size_t>(part->ranges[b].end);
      std::vector<const char*> rows;
      for (std::size_t i = begin; i < end; ++i) {
        rows.push_back(reinterpret_cast<const char*>(batch.truth.row(part->table, part->ids[i])));
      }
      std::vector<float> expected(format.dim);
      emberline::pool_rows({emberline::RowType::kFp32, format.dim}, rows.data(), part->weights.data() + begin,
                           rows.size(), static_cast<emberline::Pooling>(pooling), expected.data());
      CHECK(part->states.data[b] == 0);
      const double n = static_cast<double>(rows.size());
      const double ulps = (n + 3) * 0x1p-24;
      for (std::uint32_t d = 0; d < format.dim; ++d) {
        double magnitudes = 0;
        for (std::size_t i = 0; i < rows.size(); ++i) {
          const double x = reinterpret_cast<const float*>(rows[i])[d];
          magnitudes += std::fabs(pooling == 3 ? x * part->weights[begin + i] : x);
        }
        const double allowed = 2 * ulps / (1 - ulps) * magnitudes / (pooling == 1 && n > 1 ? n : 1);
        const float got = reinterpret_cast<const float*>(part->output.data)[b * format.dim + d];
        const double error = std::fabs(static_cast<double>(got) - expected[d]);
        if (error > 0) worst = std::max(worst, allowed > 0 ? error / allowed : 2.0);
      }
    }
  }
  return worst;
}

}  // namespace

TEST(scattered_rows_are_as_if_they_had_been_there) {
  std::mt19937 random(1);
  for (const std::uint32_t dim : {1u, 3u, 4u, 16u, 31u, 64u, 128u, 129u, 512u, 1023u, 1024u}) {
    for (const std::int64_t length : {0, 1, 4}) {
      CHECK(scatters<emberline::Fp32Output>(random, {0, dim}, length));
      CHECK(scatters<emberline::Fp16Output>(random, {3, dim}, length));
      CHECK(scatters<emberline::Bf16Output>(random, {4, dim}, length));
    }
  }
}

TEST(added_rows_are_within_the_stated_rounding) {
  std::mt19937 random(2);
  double worst = 0;
  for (const std::uint32_t dim : {1u, 3u, 4u, 16u, 31u, 64u, 128u, 129u, 512u, 1023u, 1024u}) {
    for (const std::int64_t pooling : {0, 1, 3}) {
      for (const std::int64_t longest : {1, 3, 60})
        worst = std::max(worst, added_error(random, {0, dim}, longest, pooling));
      worst = std::max(worst, added_error(random, {3, dim}, 20, pooling));
    }
  }
  std::printf("worst error: %.3f of what is allowed\n", worst);
  CHECK(worst > 0 && worst <= 1);
}

TEST(lists_that_make_no_sense_write_nothing_outside) {
  std::mt19937 random(3);
  Batch batch(random, {0, 8}, 6, 4, {0, 0}, 0);
  Launch launch(batch.parts, 6, 6);
  std::vector<float> staging(64, 1.0f);
  batch.parts[0]->bound = launch.features[10] = 6;
  std::memset(batch.parts[0]->output.data, 0, batch.parts[0]->output.size);
  // A bag past the batch, one past everything, and a count that exceeds the list.
  std::vector<std::int64_t> entries{6, 0, 1, 0, emberline::kRowMask, 0, 1, 0};
  for (const std::int64_t count : {INT64_MAX, INT64_MIN, 2L}) {
    const emberline::MissedRows late{launch.features.data(), launch.header, 6, entries.data(), &count, 2,
                                     staging.data(),         staging.data()};
    run([&](std::int64_t thread, std::int64_t threads) { emberline::add_share(late, thread, threads); });
    emberline::MissedRows scattered = late;
    std::vector<std::int64_t> places{emberline::kRowMask, 0, batch.parts[0]->bound, 0};
    scattered.entries = places.data();
    run([&](std::int64_t thread, std::int64_t threads) {
      emberline::scatter_share<emberline::Fp32Output>(scattered, thread, threads);
    });
  }
  CHECK(std::all_of(batch.parts[0]->output.data, batch.parts[0]->output.data + batch.parts[0]->output.size,
                    [](std::uint8_t byte) { return byte == 0; }));
}

RUN_ALL_TESTS()
