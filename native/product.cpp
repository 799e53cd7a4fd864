// A matrix product in which the result of a row does not depend on the other rows.
//
// BLAS rounds an entry differently depending on the position of its row in a block, on the height of the block and on
// the number of threads. Here every entry is computed by the same chain of multiply-adds over k, so a row gives the
// same bits alone, in any batch and on any thread.
//
// The right-hand factor is packed into panels that are two vectors wide. The sums of a block of rows stay in registers
// while the block is multiplied with a panel.

#include "loops.h"

namespace {

constexpr int64_t DEPTH = 256;  // rows of a panel that are used at a time, so that they stay in the L1 cache
constexpr int HEIGHT = 6;       // rows of a block; 12 sums, two vectors per row, hide the latency

// c[r, :] += sum over k of a[r, k] * panel[k, :], for R rows.
template <int R>
INLINE void add_block(const float* a, int64_t a_stride, const float* panel, int64_t depth, float* c, int64_t c_stride) {
  Floats sums[R][2];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < 2; ++v) sums[r][v] = load(c + r * c_stride + v * FLOATS);
  for (int64_t k = 0; k < depth; ++k) {
    const Floats columns[2] = {load(panel + k * PANEL), load(panel + k * PANEL + FLOATS)};
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const Floats row = broadcast(a[r * a_stride + k]);
      for (int v = 0; v < 2; ++v) sums[r][v] = fma(row, columns[v], sums[r][v]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < 2; ++v) store(c + r * c_stride + v * FLOATS, sums[r][v]);
}

// One row times N panels: a single row needs several panels to have enough independent sums.
template <int N>
INLINE void add_row(const float* a, const float* panel, int64_t panel_size, int64_t depth, float* c) {
  Floats sums[N][2];
  for (int p = 0; p < N; ++p)
    for (int v = 0; v < 2; ++v) sums[p][v] = load(c + p * PANEL + v * FLOATS);
  for (int64_t k = 0; k < depth; ++k) {
    const Floats row = broadcast(a[k]);
#pragma GCC unroll 4
    for (int p = 0; p < N; ++p) {
      const float* columns = panel + p * panel_size + k * PANEL;
      for (int v = 0; v < 2; ++v) sums[p][v] = fma(row, load(columns + v * FLOATS), sums[p][v]);
    }
  }
  for (int p = 0; p < N; ++p)
    for (int v = 0; v < 2; ++v) store(c + p * PANEL + v * FLOATS, sums[p][v]);
}

}  // namespace

namespace LEVEL {

void multiply(const float* a, int64_t a_stride, int64_t n_rows, const float* panels, int64_t n_panels, int64_t depth,
              float* out) {
  const int64_t width = n_panels * PANEL, size = depth * PANEL;
  std::memset(out, 0, n_rows * width * sizeof(float));
  for (int64_t start = 0; start < depth; start += DEPTH) {
    const int64_t n = min(DEPTH, depth - start);
    const int64_t whole = n_rows / HEIGHT * HEIGHT;
    for (int64_t p = 0; p < n_panels && whole; ++p)
      for (int64_t r = 0; r < whole; r += HEIGHT)
        add_block<HEIGHT>(a + r * a_stride + start, a_stride, panels + p * size + start * PANEL, n,
                          out + r * width + p * PANEL, width);
    for (int64_t r = whole; r < n_rows; ++r) {
      const float* row = a + r * a_stride + start;
      int64_t p = 0;
      for (; p + 4 <= n_panels; p += 4)
        add_row<4>(row, panels + p * size + start * PANEL, size, n, out + r * width + p * PANEL);
      for (; p < n_panels; ++p)
        add_row<1>(row, panels + p * size + start * PANEL, size, n, out + r * width + p * PANEL);
    }
  }
}

}  // namespace LEVEL
