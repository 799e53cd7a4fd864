// Comparing codes one by one: in full, weighted by a query's projections, or part by part until enough is known.

#include "loops.h"

namespace LEVEL {

void all_distances(const uint64_t* a, int64_t n, const uint64_t* columns, int64_t m, int64_t n_words, uint16_t* out) {
  // Words of the second codes lie column by column, so that the inner loop runs over neighbours.
  std::memset(out, 0, n * m * sizeof(uint16_t));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t w = 0; w < n_words; ++w)
      for (int64_t j = 0; j < m; ++j)
        out[i * m + j] += uint16_t(__builtin_popcountll(a[i * n_words + w] ^ columns[w * m + j]));
}

void weight_differing(const uint64_t* words, const float* projections, int64_t n, int64_t m, int64_t n_words,
                      int64_t n_bits, float* out) {
  // Bit i of a code is the bit that numpy.packbits writes to byte i / 8, from the top.
  for (int64_t q = 0; q < n; ++q) {
    const float* values = projections + q * n_bits;
    for (int64_t c = 0; c < m; ++c) {
      const uint8_t* code = (const uint8_t*)(words + (q * m + c) * n_words);
      float total = 0;
      for (int64_t i = 0; i < n_bits; ++i) {
        const bool bit = code[i / 8] >> (7 - i % 8) & 1;
        total += (values[i] > 0) != bit ? __builtin_fabsf(values[i]) : 0.0f;
      }
      out[q * m + c] = total;
    }
  }
}

void decide(const uint32_t* a, const uint32_t* b, const int64_t* left, const int64_t* right, int64_t n, int64_t n_parts,
            const int32_t* accept, const int32_t* reject, bool* similar, uint16_t* parts) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t *x = a + left[i] * n_parts, *y = b + right[i] * n_parts;
    int32_t distance = 0;
    for (int64_t k = 0; k < n_parts; ++k) {
      distance += __builtin_popcount(x[k] ^ y[k]);
      if (distance > accept[k] && distance < reject[k]) continue;
      similar[i] = distance <= accept[k];
      parts[i] = uint16_t(k + 1);
      break;
    }
  }
}

}  // namespace LEVEL
