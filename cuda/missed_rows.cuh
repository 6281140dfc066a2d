// Rows that a lookup missed and the host has found since, brought to where they belong: scattered into the output of an
// unpooled feature, added to a bag of a pooled one. They come decoded, as float32, in staging that the GPU can read
// (its own memory, or pinned memory of the host), each at a multiple of 4 floats for loads of 16 bytes; at any place
// otherwise.
//
// Scatter: entries of two int64 {feature << 48 | row of the output, where the row begins in staging, in floats}. No row
// of the output comes twice. The row's state becomes 1.
//
// Add: entries of four int64 {feature << 48 | bag, where the bag's first missed row begins, number of its missed rows,
// where its weights begin in `weights`}. The missed rows of a bag lie one after the other, D floats apart, in the order
// of their ids; a bag comes once. It becomes bag + (0 + w0 * late0 + w1 * late1 + ...), for a mean bag + that sum /
// number of its ids. Its state becomes 0.
//
// Rounding. With u = 2^-24, n the bag's ids and S the sum of |w * x| over all of them in a column, a sum of n products
// rounded one by one is within g * S of the exact one, g = n u / (1 - n u), in whatever order it is taken; dividing a
// mean in two parts and adding these rounds three times more. So the result is within 2 (n + 3) u / (1 - (n + 3) u) * S
// (of a mean: of S / n) of what the host gives, which sums in the order of the ids, short of overflow and of values
// below 2^-126. It is the same on every GPU and in every run, for no atomic takes part: it depends on which ids were
// late and on nothing else.
#pragma once

#include "lookup_pool.cuh"

namespace emberline {

constexpr int kScatterWords = 2;
constexpr int kLateBagWords = 4;
constexpr int64_t kRowMask = (int64_t{1} << kFeatureShift) - 1;

struct MissedRows {
  const int64_t* features;
  const int64_t* header;
  int64_t rows;  // of the outputs
  const int64_t* entries;
  const int64_t* count;  // of entries, on the GPU
  int64_t room;  // for entries, which the launch was sized for
  const float* staging;
  const float* weights;  // may be null where no feature is weighted
};

EMBERLINE_HD int64_t entries_of(const MissedRows& late) { return clamp(*late.count, int64_t{0}, late.room); }

// What one thread of `threads` does. Neighbouring threads take neighbouring quads of a row.
template <class Output>
EMBERLINE_DEVICE void scatter_share(const MissedRows& late, int64_t thread, int64_t threads) {
  using Value = typename Output::Value;
  const int64_t entries = entries_of(late);
  for (int64_t entry = thread / kWarp; entry < entries; entry += threads / kWarp) {
    const int64_t* words = late.entries + entry * kScatterWords;
    const Feature feature = feature_at(late.features, late.header, words[0] >> kFeatureShift);
    const int64_t row = words[0] & kRowMask;
    const int64_t most = feature.shape > 0 ? late.rows * feature.shape : feature.id_room;
    if (row >= most) continue;  // our own bug
    const float* from = late.staging + words[1];
    Value* to = reinterpret_cast<Value*>(feature.output) + row * feature.dim;
    for (int64_t d = 4 * (thread % kWarp); d < feature.dim; d += 4 * kWarp) {
      put_values<Output, 4>(to, d, feature.dim, [&](int v) { return d + v < feature.dim ? from[d + v] : 0.0f; });
    }
    if (feature.states != nullptr && thread % kWarp == 0) feature.states[row] = 1;
  }
}

EMBERLINE_DEVICE void add_share(const MissedRows& late, int64_t thread, int64_t threads) {
  const int64_t entries = entries_of(late);
  const int64_t batch = clamp(late.header[1], int64_t{0}, late.rows);
  for (int64_t entry = thread / kWarp; entry < entries; entry += threads / kWarp) {
    const int64_t* words = late.entries + entry * kLateBagWords;
    const Feature feature = feature_at(late.features, late.header, words[0] >> kFeatureShift);
    const int64_t bag = words[0] & kRowMask;
    if (bag >= batch) continue;  // our own bug
    const IdRange ids = ids_of(feature, bag, batch);
    const float divisor = divisor_of(feature.shape, ids.end - ids.begin);
    const bool is_weighted = feature.shape == kPoolWeighted && late.weights != nullptr;
    const float* weights = is_weighted ? late.weights + words[3] : nullptr;
    float* output = reinterpret_cast<float*>(feature.output) + bag * feature.dim;
    for (int64_t d = thread % kWarp; d < feature.dim; d += kWarp) {
      const float* from = late.staging + words[1] + d;
      float sum = 0;
      for (int64_t r = 0; r < words[2]; ++r, from += feature.dim) {
        sum = add(sum, weights == nullptr ? *from : multiply(weights[r], *from));
      }
      output[d] = add(output[d], divisor != 1.0f ? divide(sum, divisor) : sum);
    }
    if (feature.states != nullptr && thread % kWarp == 0) feature.states[bag] = 0;
  }
}

}  // namespace emberline
