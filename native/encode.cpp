// Encoding a tile of rows, apart from its matrix products: norms, kernel values and packing of bits. Projections that
// are so close to their thresholds that rounding could flip a bit are recomputed in double precision.

#include "exp2.h"
#include "loops.h"

namespace {

// Inner product in double precision: eight partial sums in a fixed order.
template <class T>
INLINE double inner_product(const T* a, const float* b, int64_t n) {
  double sums[8] = {};
  const int64_t whole = n / 8 * 8;
  for (int64_t k = 0; k < whole; k += 8)
    for (int i = 0; i < 8; ++i) sums[i] += double(a[k + i]) * double(b[k + i]);
  for (int64_t k = whole; k < n; ++k) sums[k - whole] += double(a[k]) * double(b[k]);
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

// Rounds to float without crossing the threshold: a value above it stays above.
INLINE float round_to_same_side(double value, float threshold) {
  const float rounded = float(value);
  if (value > threshold) return max(rounded, __builtin_nextafterf(threshold, __builtin_inff()));
  return min(rounded, threshold);
}

INLINE float magnitude(float value) { return __builtin_fabsf(value); }

// Taylor series of 2^r, accurate to 1e-11 for r from -1/2 to 1/2.
constexpr double LN2 = 0.69314718055994530942;
constexpr double C2 = LN2 * LN2 / 2, C3 = C2 * LN2 / 3, C4 = C3 * LN2 / 4, C5 = C4 * LN2 / 5, C6 = C5 * LN2 / 6,
                 C7 = C6 * LN2 / 7, C8 = C7 * LN2 / 8, C9 = C8 * LN2 / 9;
constexpr double SERIES[] = {C8, C7, C6, C5, C4, C3, C2, LN2, 1.0};

INLINE double exp2_in_double(double t) {
  t = min(max(t, -1000.0), 1000.0);
  const double whole = __builtin_floor(t + 0.5), r = t - whole;
  double p = C9;
  for (const double c : SERIES) p = p * r + c;
  uint64_t bits;
  std::memcpy(&bits, &p, 8);
  bits += uint64_t(int64_t(whole)) << 52;
  std::memcpy(&p, &bits, 8);
  return p;
}

}  // namespace

namespace LEVEL {

void squared_norms(const float* rows, int64_t stride, int64_t n_rows, int64_t width, float* out) {
  typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
  const int64_t whole = width / 4 * 4;
  for (int64_t i = 0; i < n_rows; ++i) {
    const float* row = rows + i * stride;
    Four sums = {};
    for (int64_t j = 0; j < whole; j += 4) {
      const Four values = *(const Four*)(row + j);
      sums += values * values;
    }
    for (int64_t j = whole; j < width; ++j) sums[0] += row[j] * row[j];
    out[i] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
}

void exp2_of_expanded_square(float* products, int64_t stride, int64_t n_rows, int64_t width, const float* row_terms,
                             const float* column_terms) {
  const int64_t whole = width / FLOATS * FLOATS;
  for (int64_t i = 0; i < n_rows; ++i) {
    float* row = products + i * stride;
    const float term = row_terms[i];
    for (int64_t j = 0; j < whole; j += FLOATS)
      store(row + j, exp2_nonpositive(load(row + j) - (broadcast(term) + load(column_terms + j))));
    if (whole < width) {
      Floats remainder = {}, columns = {};
      std::memcpy(&remainder, row + whole, (width - whole) * sizeof(float));
      std::memcpy(&columns, column_terms + whole, (width - whole) * sizeof(float));
      remainder = exp2_nonpositive(remainder - (broadcast(term) + columns));
      std::memcpy(row + whole, &remainder, (width - whole) * sizeof(float));
    }
  }
}

void pack_above(const float* values, int64_t stride, int64_t n_rows, const float* thresholds, int64_t n_bits,
                uint8_t* codes) {
  const int64_t n_bytes = (n_bits + 7) / 8;
  for (int64_t i = 0; i < n_rows; ++i) {
    const float* row = values + i * stride;
    for (int64_t c = 0; c < n_bytes; ++c) {
      const int64_t n = min(int64_t(8), n_bits - 8 * c);
      int byte = 0;
      for (int64_t b = 0; b < n; ++b) byte |= (row[8 * c + b] > thresholds[8 * c + b]) << (7 - b);
      codes[i * n_bytes + c] = uint8_t(byte);
    }
  }
}

int64_t recompute_sums(float* projections, int64_t stride, int64_t n_rows, const float* features, int64_t n_features,
                       int64_t features_stride, const Directions& d, const float* sum_bound, const float* feature_bound,
                       bool* ambiguous) {
  constexpr int64_t BLOCK_OF_BITS = 64;
  int64_t n_ambiguous = 0;
  for (int64_t i = 0; i < n_rows; ++i) {
    float* row = projections + i * stride;
    ambiguous[i] = false;
    for (int64_t low = 0; low < d.n_bits; low += BLOCK_OF_BITS) {
      const int64_t high = min(low + BLOCK_OF_BITS, d.n_bits);
      int any_ambiguous = 0;
      for (int64_t j = low; j < high; ++j) any_ambiguous |= magnitude(row[j] - d.thresholds[j]) <= sum_bound[j];
      if (!any_ambiguous) continue;
      for (int64_t j = low; j < high; ++j) {
        if (!(magnitude(row[j] - d.thresholds[j]) <= sum_bound[j])) continue;
        const double sum = inner_product(features + i * features_stride, d.directions + j * n_features, n_features);
        row[j] = round_to_same_side(sum, d.thresholds[j]);
        ambiguous[i] |= magnitude(row[j] - d.thresholds[j]) <= feature_bound[j];
      }
    }
    n_ambiguous += ambiguous[i];
  }
  return n_ambiguous;
}

void recompute_rows(float* projections, int64_t stride, const int64_t* rows, int64_t n, const double* features,
                    int64_t n_features, const Directions& d, const float* feature_bound) {
  for (int64_t i = 0; i < n; ++i) {
    float* row = projections + rows[i] * stride;
    for (int64_t j = 0; j < d.n_bits; ++j) {
      if (!(magnitude(row[j] - d.thresholds[j]) <= feature_bound[j])) continue;
      const double sum = inner_product(features + i * n_features, d.directions + j * n_features, n_features);
      row[j] = round_to_same_side(sum, d.thresholds[j]);
    }
  }
}

void gaussians(const double* rows, int64_t n_rows, const double* basis, int64_t n_basis, int64_t width, double factor,
               double* out) {
  for (int64_t i = 0; i < n_rows; ++i) {
    const double* row = rows + i * width;
    for (int64_t b = 0; b < n_basis; ++b) {
      const double* basis_row = basis + b * width;
      double sums[4] = {};
      const int64_t whole = width / 4 * 4;
      for (int64_t c = 0; c < whole; c += 4)
        for (int k = 0; k < 4; ++k) sums[k] += (row[c + k] - basis_row[c + k]) * (row[c + k] - basis_row[c + k]);
      for (int64_t c = whole; c < width; ++c) sums[0] += (row[c] - basis_row[c]) * (row[c] - basis_row[c]);
      out[i * n_basis + b] = exp2_in_double(-factor * ((sums[0] + sums[2]) + (sums[1] + sums[3])));
    }
  }
}

}  // namespace LEVEL
