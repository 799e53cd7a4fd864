// Gram matrices of whole numbers, exact: the sums over pairs behind the moments.
//
// Numbers of 13 bits with sign are kept as int16, two rows side by side, so that one instruction multiplies
// and adds both. The rows of a block lie in panels of 16 columns:
// [panel][couple of rows][column][row of the couple]. Sums of 32 bits are kept in registers for 64 couples,
// which cannot overflow, and then added to sums of 64 bits.

#include "loops.h"

namespace {

typedef int64_t Longs __attribute__((vector_size(8 * FLOATS)));
typedef int64_t LooseLongs __attribute__((vector_size(8 * FLOATS), aligned(8), may_alias));

constexpr int COLUMNS = GRAM_PANEL;
constexpr int VECTORS = COLUMNS / FLOATS;
constexpr int ROWS = VECTORS == 1 ? 8 : 4;  // of a register block
constexpr int64_t COUPLES = 64;             // between two transfers to the sums of 64 bits

// out[r, c] += sum over 64 couples of a[couple, r] . b[couple, c] for ROWS x 16 entries.
INLINE void add_couples(const int32_t* a, const int32_t* b, int64_t* out, int64_t stride) {
  Ints sums[ROWS][VECTORS] = {};
#pragma GCC unroll 4
  for (int64_t k = 0; k < COUPLES; ++k) {
    Ints columns[VECTORS];
    for (int v = 0; v < VECTORS; ++v) columns[v] = *(const LooseInts*)(b + k * COLUMNS + v * FLOATS);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const Ints row = *(const LooseInt*)(a + k * COLUMNS + r) - Ints{};
      for (int v = 0; v < VECTORS; ++v) sums[r][v] = add_products(sums[r][v], row, columns[v]);
    }
  }
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECTORS; ++v)
      *(LooseLongs*)(out + r * stride + v * FLOATS) += __builtin_convertvector(sums[r][v], Longs);
}

// The rows features[left] + sign * features[right] - shift of a block of pairs, in panels.
void fill_panels(const int16_t* features, int64_t width, const int64_t* left, const int64_t* right, int64_t n, int sign,
                 int shift, int16_t* panels) {
  for (int64_t i = 0; i < n; ++i) {
    const int16_t *a = features + left[i] * width, *b = features + right[i] * width;
    int16_t* at = panels + i / 2 * 2 * COLUMNS + i % 2;
    for (int64_t j = 0; j < width; j += COLUMNS, at += GRAM_BLOCK * COLUMNS) {
      const int64_t some = least(int64_t(COLUMNS), width - j);
      for (int64_t c = 0; c < some; ++c) at[2 * c] = int16_t(a[j + c] + sign * b[j + c] - shift);
    }
  }
}

}  // namespace

namespace LEVEL {

void add_gram(const int16_t* features, int64_t width, const int64_t* left, const int64_t* right, int64_t n_pairs,
              int sign, int shift, int64_t* out) {
  const int64_t n_panels = (width + COLUMNS - 1) / COLUMNS, stride = n_panels * COLUMNS;
  const int64_t size = GRAM_BLOCK / 2 * COLUMNS;  // couples of a panel
  Array<int16_t> panels(n_panels * size * 2);
  for (int64_t start = 0; start < n_pairs; start += GRAM_BLOCK) {
    const int64_t n = least(GRAM_BLOCK, n_pairs - start);
    if (n < GRAM_BLOCK) std::memset(panels + 0, 0, n_panels * size * 2 * sizeof(int16_t));
    fill_panels(features, width, left + start, right + start, n, sign, shift, panels + 0);
    const int32_t* couples = (const int32_t*)(panels + 0);
    const int64_t n_parts = (n + 2 * COUPLES - 1) / (2 * COUPLES);
    for (int64_t p = 0; p < n_panels; ++p)
      for (int64_t q = p; q < n_panels; ++q)
        for (int64_t r = 0; r < COLUMNS; r += ROWS)
          for (int64_t part = 0; part < n_parts; ++part) {
            const int32_t* a = couples + p * size + part * COUPLES * COLUMNS;
            const int32_t* b = couples + q * size + part * COUPLES * COLUMNS;
            add_couples(a + r, b, out + (p * COLUMNS + r) * stride + q * COLUMNS, stride);
          }
  }
}

}  // namespace LEVEL
