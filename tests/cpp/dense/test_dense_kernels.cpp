// The dense kernels of every instruction set against sums in double, with nothing written outside their outputs.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "dense/kernels.h"
#include "dense/tiles.h"
#include "rows/scalar.h"

using namespace emberline;
using namespace emberline::dense;

namespace {

constexpr float kUntouched = -77.0f;

std::vector<float> random_values(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

// Values that bfloat16 holds: rounding changes nothing, so that products of it are exact.
std::vector<float> held_by_bfloat16(std::vector<float> values) {
  for (float& value : values) value = float_of(bits_of(value) & 0xFFFF0000u);
  return values;
}

double reference(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kRelu: return x > 0 ? x : 0;
    case Activation::kSigmoid: return 1 / (1 + std::exp(-x));
    case Activation::kTanh: return std::tanh(x);
    case Activation::kSilu: return x / (1 + std::exp(-x));
  }
  return x;
}

bool near(double got, double want, double tolerance) {
  return std::abs(got - want) <= tolerance * (1 + std::abs(want));
}

struct Layer {
  std::uint32_t in, out;
  std::vector<float> weight, bias;

  Layer(std::uint32_t i, std::uint32_t o)
      : in(i),
        out(o),
        weight(held_by_bfloat16(random_values(std::size_t{i} * o, i * 1000 + o))),
        bias(random_values(o, o)) {}
  LinearWeights given() const { return {weight.data(), in, 1, bias.data(), in, out}; }
  double sum(const float* x, std::uint32_t o) const {
    double total = bias[o];
    for (std::uint32_t k = 0; k < in; ++k) total += double{x[k]} * weight[std::size_t{o} * in + k];
    return total;
  }
};

// Runs a layer over n rows that lie apart, and compares every float.
template <class Run>
void check_layer(const Layer& layer, std::size_t n, Activation activation, const Run& run) {
  const std::size_t from_stride = layer.in + 3, to_stride = layer.out + 5;
  std::vector<float> from = held_by_bfloat16(random_values(n * from_stride, 7)), to(n * to_stride, kUntouched);
  run(Rows{from.data(), from_stride}, OutRows{to.data(), to_stride});
  bool good = true, untouched = true;
  for (std::size_t row = 0; row < n; ++row) {
    for (std::uint32_t o = 0; o < layer.out; ++o) {
      const double want = reference(activation, layer.sum(from.data() + row * from_stride, o));
      good = good && near(to[row * to_stride + o], want, 1e-5);
    }
    for (std::size_t o = layer.out; o < to_stride; ++o) untouched = untouched && to[row * to_stride + o] == kUntouched;
  }
  CHECK(good);
  CHECK(untouched);
}

constexpr std::uint32_t kWidths[] = {1, 3, 15, 16, 17, 33, 48, 64, 65, 131};

}  // namespace

TEST(a_layer_is_its_sums) {
  for (const Isa set : isas()) {
    const DenseKernels& kernels = dense_kernels(set);
    for (const std::uint32_t in : {1u, 5u, 32u, 67u}) {
      for (const std::uint32_t out : kWidths) {
        const Layer layer(in, out);
        const PackedLinear packed = pack_panels(layer.given(), kernels.width, kernels.vectors);
        for (const std::size_t n : {std::size_t{1}, std::size_t{4}, std::size_t{6}, std::size_t{23}}) {
          check_layer(layer, n, Activation::kRelu,
                      [&](Rows from, OutRows to) { kernels.linear(from, n, packed.panels(), Activation::kRelu, to); });
        }
      }
    }
  }
}

TEST(a_layer_in_tiles_is_its_sums) {
  if (!has_tiles()) return;
  for (const std::uint32_t in : {1u, 16u, 31u, 32u, 33u, 100u}) {
    for (const std::uint32_t out : kWidths) {
      const Layer layer(in, out);
      const PackedLinear packed = pack_tiles(layer.given());
      const Tiles tiles{in, out, packed.tiles.data(), packed.bias.data()};
      for (const std::size_t n : {std::size_t{1}, std::size_t{16}, std::size_t{17}, std::size_t{40}}) {
        Lines<std::uint16_t> rounded(rounded_values(n, in));
        check_layer(layer, n, Activation::kNone, [&](Rows from, OutRows to) {
          linear_in_tiles(from, n, tiles, Activation::kNone, to, rounded.data());
        });
      }
    }
  }
}

TEST(a_transposed_weight_and_no_bias_are_packed_alike) {
  const Layer layer(5, 19);
  std::vector<float> transposed(layer.weight.size());
  for (std::uint32_t o = 0; o < 19; ++o) {
    for (std::uint32_t k = 0; k < 5; ++k) transposed[k * 19 + o] = layer.weight[o * 5 + k];
  }
  const PackedLinear plain = pack_panels(layer.given(), 8, 2);
  const PackedLinear turned = pack_panels({transposed.data(), 1, 19, nullptr, 5, 19}, 8, 2);
  CHECK(plain.values == turned.values);
  CHECK(std::all_of(turned.bias.begin(), turned.bias.end(), [](float value) { return value == 0; }));
}

TEST(activations_are_near_at_every_size) {
  for (const Isa set : isas()) {
    for (const Activation activation :
         {Activation::kRelu, Activation::kSigmoid, Activation::kTanh, Activation::kSilu}) {
      std::vector<float> from;
      for (float x = -120; x < 120; x += 0.37f) from.push_back(x);
      std::vector<float> to(from.size() + 1, kUntouched);
      dense_kernels(set).activate(activation, from.data(), from.size(), to.data());
      bool good = true;
      for (std::size_t i = 0; i < from.size(); ++i) good = good && near(to[i], reference(activation, from[i]), 1e-6);
      CHECK(good);
      CHECK(to.back() == kUntouched);
      const float strange[] = {std::numeric_limits<float>::quiet_NaN()};
      dense_kernels(set).activate(activation, strange, 1, to.data());
      CHECK(std::isnan(to[0]));
    }
  }
}

TEST(pairs_are_products_and_end_where_they_should) {
  for (const Isa set : isas()) {
    const DenseKernels& kernels = dense_kernels(set);
    for (const std::uint32_t n : {1u, 2u, 5u, 16u, 17u, 27u, 32u, 33u, 40u, 70u}) {
      for (const std::uint32_t dim : {1u, 7u, 16u, 20u}) {
        const std::vector<float> values = random_values(std::size_t{n} * dim, n);
        std::vector<const float*> vectors;
        for (std::uint32_t i = 0; i < n; ++i) vectors.push_back(values.data() + std::size_t{i} * dim);
        const std::size_t stride = kernels.square_stride(n), count = std::size_t{n} * (n - 1) / 2;
        std::vector<float> transposed(dim * stride), square(n * stride + 16), triangle(count + 1, kUntouched);
        kernels.square(vectors.data(), n, dim, transposed.data(), square.data());
        kernels.triangle(vectors.data(), n, dim, transposed.data(), triangle.data());
        bool good = true;
        std::size_t place = 0;
        std::vector<std::int64_t> index;
        for (std::uint32_t i = 0; i < n; ++i) {
          for (std::uint32_t j = 0; j <= i; ++j) {
            double want = 0;
            for (std::uint32_t d = 0; d < dim; ++d) want += double{vectors[i][d]} * vectors[j][d];
            good = good && near(square[i * stride + j], want, 1e-5);
            if (j == i) continue;
            good = good && triangle[place++] == square[i * stride + j];
            index.push_back(std::int64_t{i} * n + j);
          }
        }
        CHECK(good);
        CHECK(triangle.back() == kUntouched);
        CHECK(index_runs(index.data(), index.size(), n, static_cast<std::uint32_t>(stride)).is_triangle);

        // The other way round, it is taken in runs.
        std::reverse(index.begin(), index.end());
        for (std::int64_t& each : index) each = each % n * n + each / n;
        const PairRuns pairs = index_runs(index.data(), index.size(), n, static_cast<std::uint32_t>(stride));
        CHECK(pairs.is_triangle == (index.size() < 2));
        std::vector<float> taken(count + 1, kUntouched);
        kernels.take_runs(square.data(), pairs.runs.data(), pairs.runs.size(), taken.data(), count);
        CHECK(taken.back() == kUntouched);
        std::reverse(taken.begin(), taken.end() - 1);
        if (!pairs.is_triangle) CHECK(taken == triangle);
      }
    }
  }
}

TEST(an_index_outside_the_square_is_refused) {
  for (const std::int64_t index : {std::int64_t{-1}, std::int64_t{9}}) {
    CHECK_THROWS(index_runs(&index, 1, 3, 16), std::invalid_argument);
  }
}

TEST(sums_and_operations_are_those_of_floats) {
  for (const Isa set : isas()) {
    const DenseKernels& kernels = dense_kernels(set);
    const std::vector<float> a = random_values(2 * 3 * 5, 1), b = random_values(30, 2);
    std::vector<float> to(31, kUntouched);
    kernels.sum(a.data(), 2, 3, 5, to.data());
    CHECK(to[7] == a[15 + 2] + a[20 + 2] + a[25 + 2] && to[10] == kUntouched);
    kernels.combine(Binary::kSubtract, a.data(), b.data(), 30, to.data());
    CHECK(to[29] == a[29] - b[29] && to[30] == kUntouched);
    kernels.combine(Binary::kMultiply, a.data(), b.data(), 30, to.data());
    CHECK(to[3] == a[3] * b[3]);
    kernels.combine(Binary::kAdd, a.data(), b.data(), 30, to.data());
    CHECK(to[3] == a[3] + b[3]);
  }
}

RUN_ALL_TESTS()
