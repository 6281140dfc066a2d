// Functions of vectors of floats. A file includes this once, in an unnamed namespace, behind a struct V of its
// instruction set:
//
//   F, kWidth, kVectors (of a full panel; 6 rows of so many sums fit the registers)
//   zero(), all(float), load(const float*), store(float*, F), store_some(float*, F, n), add, subtract, multiply, divide
//   multiply_add(a, b, c): a * b + c
//   greatest(bound, F), least(bound, F): NaN where the second is NaN
//   round(F): to the nearest whole number. scale(F, F n): times 2 to the power of n, whole
//   transpose(const float* const*, n, dim, stride, to): n vectors of dim values -> to (dim, n), rows `stride` apart

using F = V::F;

// Not std::min and the like: what the standard library's templates compile to here could be linked into other files.
inline std::size_t smaller(std::size_t a, std::size_t b) { return a < b ? a : b; }

// e^x, within two units in the last place, from 2^-126 to 2^127. After Cephes' expf: x = n ln 2 + r, and a polynomial.
inline F exponential(F x) {
  x = V::greatest(V::all(-87.0f), V::least(V::all(88.0f), x));
  const F n = V::round(V::multiply(x, V::all(1.44269504f)));
  F r = V::multiply_add(n, V::all(-0.693359375f), x);
  r = V::multiply_add(n, V::all(2.12194440e-4f), r);
  F p = V::all(1.9875691500e-4f);
  constexpr float kFactors[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                                5.0000001201e-1f};
  for (const float factor : kFactors) p = V::multiply_add(p, r, V::all(factor));
  p = V::multiply_add(p, V::multiply(r, r), V::add(r, V::all(1.0f)));
  return V::scale(p, n);
}

inline F sigmoid(F x) { return V::divide(V::all(1.0f), V::add(V::all(1.0f), exponential(V::subtract(V::zero(), x)))); }

inline F activated(Activation activation, F x) {
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kRelu: return V::greatest(V::zero(), x);
    case Activation::kSigmoid: return sigmoid(x);
    case Activation::kTanh:
      return V::subtract(V::all(1.0f), V::divide(V::all(2.0f), V::add(V::all(1.0f), exponential(V::add(x, x)))));
    case Activation::kSilu: return V::multiply(x, sigmoid(x));
  }
  return x;
}
