// The passes of a step of refinement between its matrix products.
//
// Items are the members of pairs: the first members of all, then the second ones in the same order.

#include "exp2.h"
#include "loops.h"

namespace {

constexpr float FAR = -1e30f;  // less than any similarity

// The gradient by the soft bits of an item, its partner and the nearest other item.
template <bool DIFFERENT>
INLINE void add_three(const float* item, const float* partner, const float* other, float slope, int64_t low,
                      int64_t high, float* by_item, float* by_partner, float* by_other) {
  const auto add = [&](int64_t j) __attribute__((always_inline)) {
    const float mine = slope * item[j];
    by_item[j] += slope * (other[j] - partner[j]);
    by_partner[j] -= mine;
    by_other[j] += mine;
  };
  if constexpr (DIFFERENT) {
#pragma GCC ivdep
    for (int64_t j = low; j < high; ++j) add(j);
  } else {
    for (int64_t j = low; j < high; ++j) add(j);
  }
}

}  // namespace

namespace LEVEL {

void soft_bits(const float* projections, int64_t n_rows, int64_t n_bits, const float* thresholds, float factor,
               float* out) {
  for (int64_t i = 0; i < n_rows; ++i) {
    const float* row = projections + i * n_bits;
    float* bits = out + i * n_bits;
    for (int64_t j = 0; j < n_bits; j += FLOATS) {
      // tanh(u) from d = exp(-2 |u|): (1 - d) / (1 + d) with the sign of u.
      Floats p = {}, t = {};
      const int64_t n = least(int64_t(FLOATS), n_bits - j);
      std::memcpy(&p, row + j, n * sizeof(float));
      std::memcpy(&t, thresholds + j, n * sizeof(float));
      const Floats gap = p - t, size = gap < 0 ? -gap : gap;
      const Floats d = exp2_below_one(all(-factor) * size);
      const Floats height = (all(1.0f) - d) / (all(1.0f) + d);
      const Floats bit = p > t ? height : -height;
      std::memcpy(bits + j, &bit, n * sizeof(float));
    }
  }
}

void hide_same(float* similarity, int64_t n_rows, int64_t n, int64_t first, const int64_t* labels) {
  for (int64_t r = 0; r < n_rows; ++r)
    for (int64_t j = 0; j < n; ++j)
      if (labels[j] == labels[first + r]) similarity[r * n + j] = FAR;
}

void find_largest(const float* similarity, int64_t n_rows, int64_t n, int32_t* where, float* value) {
  for (int64_t r = 0; r < n_rows; ++r) {
    const float* row = similarity + r * n;
    Floats tops = all(row[0]);
    int64_t j = 0;
    for (; j + FLOATS <= n; j += FLOATS) {
      const Floats some = load(row + j);
      tops = some > tops ? some : tops;
    }
    float top = row[0];
    for (int i = 0; i < FLOATS; ++i) top = most(top, tops[i]);
    for (; j < n; ++j) top = most(top, row[j]);
    int32_t place = 0;
    while (row[place] < top) ++place;
    where[r] = place, value[r] = top;
  }
}

void add_partners(const float* soft, int64_t n, int64_t n_bits, int64_t low, int64_t high, int64_t first,
                  int64_t n_rows, float* out) {
  for (int64_t r = 0; r < n_rows; ++r) {
    const float* mine = soft + (first + r) * n_bits;
    const float* partner = soft + (first + r + n / 2) % n * n_bits;
    float lanes[16] = {};
    int64_t c = low;
    for (; c + 16 <= high; c += 16)
      for (int i = 0; i < 16; ++i) lanes[i] = fma(mine[c + i], partner[c + i], lanes[i]);
    for (int i = 0; c < high; ++c, ++i) lanes[i] = fma(mine[c], partner[c], lanes[i]);
    out[r] += sum_of_16(lanes);
  }
}

void add_gradient(const float* soft, int64_t n, int64_t n_bits, const int32_t* nearest, const float* slopes,
                  const int64_t* prefixes, int64_t n_prefixes, int64_t low, int64_t high, float* out) {
  for (int64_t k = 0; k < n_prefixes; ++k) {
    if (prefixes[k] <= low) continue;
    const int64_t end = least(high, prefixes[k]);
    for (int64_t i = 0; i < n; ++i) {
      const float slope = slopes[k * n + i];
      const int64_t a = i * n_bits, b = (i + n / 2) % n * n_bits, c = int64_t(nearest[k * n + i]) * n_bits;
      if (a != c && b != c)
        add_three<true>(soft + a, soft + b, soft + c, slope, low, end, out + a, out + b, out + c);
      else  // all items of a batch have one label
        add_three<false>(soft + a, soft + b, soft + c, slope, low, end, out + a, out + b, out + c);
    }
  }
}

void adam_step(float* values, const float* gradient, float* mean, float* square, int64_t n, float size, float scale) {
  const float keep = 0.9f, keep_square = 0.999f, fresh = float(1 - 0.9), fresh_square = float(1 - 0.999);
  for (int64_t i = 0; i < n; ++i) {
    const float g = gradient[i];
    mean[i] = keep * mean[i] + fresh * g;
    square[i] = keep_square * square[i] + fresh_square * g * g;
    values[i] -= size * mean[i] / (__builtin_sqrtf(scale * square[i]) + 1e-12f);
  }
}

}  // namespace LEVEL
