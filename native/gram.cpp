// Exact Gram matrices of integers: the sums over pairs that the moments are made of.
//
// Values of 13 bits plus sign are stored as int16. Two rows are interleaved, so that one instruction multiplies and
// adds both. The rows of a block are arranged in panels of 16 columns: [panel][row / 2][column][row % 2]. Sums over
// 64 interleaved row pairs are kept in 32-bit registers, which cannot overflow, and then added to 64-bit sums.

#include "loops.h"

namespace {

typedef int64_t Longs __attribute__((vector_size(8 * FLOATS)));
typedef int64_t UnalignedLongs __attribute__((vector_size(8 * FLOATS), aligned(8), may_alias));

constexpr int COLUMNS = GRAM_PANEL;
constexpr int VECTORS = COLUMNS / FLOATS;
constexpr int ROWS = VECTORS == 1 ? 8 : 4;  // of the result that are in registers at a time
constexpr int64_t ROW_PAIRS = 64;           // that are summed in 32 bits

// out[r, c] += sum over 64 row pairs of a[pair, r] . b[pair, c], for ROWS x 16 entries.
INLINE void add_row_pairs(const int32_t* a, const int32_t* b, int64_t* out, int64_t stride) {
  Ints sums[ROWS][VECTORS] = {};
#pragma GCC unroll 4
  for (int64_t k = 0; k < ROW_PAIRS; ++k) {
    Ints columns[VECTORS];
    for (int v = 0; v < VECTORS; ++v) columns[v] = *(const UnalignedInts*)(b + k * COLUMNS + v * FLOATS);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const Ints row = *(const UnalignedInt*)(a + k * COLUMNS + r) - Ints{};
      for (int v = 0; v < VECTORS; ++v) sums[r][v] = add_products(sums[r][v], row, columns[v]);
    }
  }
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECTORS; ++v)
      *(UnalignedLongs*)(out + r * stride + v * FLOATS) += __builtin_convertvector(sums[r][v], Longs);
}

// Writes the rows features[left] + sign * features[right] - shift of a block of pairs to panels.
void fill_panels(const int16_t* features, int64_t width, const int64_t* left, const int64_t* right, int64_t n, int sign,
                 int shift, int16_t* panels) {
  for (int64_t i = 0; i < n; ++i) {
    const int16_t *a = features + left[i] * width, *b = features + right[i] * width;
    int16_t* at = panels + i / 2 * 2 * COLUMNS + i % 2;
    for (int64_t j = 0; j < width; j += COLUMNS, at += GRAM_BLOCK * COLUMNS) {
      const int64_t n_columns = min(int64_t(COLUMNS), width - j);
      for (int64_t c = 0; c < n_columns; ++c) at[2 * c] = int16_t(a[j + c] + sign * b[j + c] - shift);
    }
  }
}

}  // namespace

namespace LEVEL {

void add_gram(const int16_t* features, int64_t width, const int64_t* left, const int64_t* right, int64_t n_pairs,
              int sign, int shift, int64_t* out) {
  const int64_t n_panels = (width + COLUMNS - 1) / COLUMNS, stride = n_panels * COLUMNS;
  const int64_t size = GRAM_BLOCK / 2 * COLUMNS;  // row pairs times columns of a panel
  Array<int16_t> panels(n_panels * size * 2);
  for (int64_t start = 0; start < n_pairs; start += GRAM_BLOCK) {
    const int64_t n = min(GRAM_BLOCK, n_pairs - start);
    if (n < GRAM_BLOCK) std::memset(panels.data(), 0, n_panels * size * 2 * sizeof(int16_t));
    fill_panels(features, width, left + start, right + start, n, sign, shift, panels.data());
    const int32_t* row_pairs = (const int32_t*)(panels.data());
    const int64_t n_chunks = (n + 2 * ROW_PAIRS - 1) / (2 * ROW_PAIRS);
    for (int64_t p = 0; p < n_panels; ++p)
      for (int64_t q = p; q < n_panels; ++q)
        for (int64_t r = 0; r < COLUMNS; r += ROWS)
          for (int64_t chunk = 0; chunk < n_chunks; ++chunk) {
            const int32_t* a = row_pairs + p * size + chunk * ROW_PAIRS * COLUMNS;
            const int32_t* b = row_pairs + q * size + chunk * ROW_PAIRS * COLUMNS;
            add_row_pairs(a + r, b, out + (p * COLUMNS + r) * stride + q * COLUMNS, stride);
          }
  }
}

}  // namespace LEVEL
