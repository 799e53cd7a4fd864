// Comparing pairs of codes word by word, with early stopping.

#include "loops.h"

namespace LEVEL {

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
