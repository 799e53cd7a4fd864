// Comparing codes one by one: with weights from a query's projections, or word by word with early stopping.

#include "loops.h"

namespace LEVEL {

void weighted_distances(const uint64_t* words, const float* projections, int64_t n, int64_t m, int64_t n_words,
                        int64_t n_bits, float* out) {
  // Bit i of a code is in byte i / 8, most significant bit first, as numpy.packbits writes it.
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

void decide(const uint32_t* a, const uint32_t* b, const int64_t* left, const int64_t* right, int64_t n, int64_t n_words,
            const int32_t* accept, const int32_t* reject, bool* similar, uint16_t* words_read) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t *x = a + left[i] * n_words, *y = b + right[i] * n_words;
    int32_t distance = 0;
    for (int64_t k = 0; k < n_words; ++k) {
      distance += __builtin_popcount(x[k] ^ y[k]);
      if (distance > accept[k] && distance < reject[k]) continue;
      similar[i] = distance <= accept[k];
      words_read[i] = uint16_t(k + 1);
      break;
    }
  }
}

}  // namespace LEVEL
