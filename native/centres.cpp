// Grouping codes around centres: the nearest cell of each code, sums of bits, and the order of the rows.

#include "cells.h"

namespace {

constexpr int64_t MAX_LOOK = 64;  // groups whose cells are considered

void fill_up(uint16_t* scores, int64_t n) {
  for (int64_t i = n; i < score_capacity(n); ++i) scores[i] = UNUSED;
}

}  // namespace

namespace LEVEL {

void score_centres(const Centres& centres, const Queries& queries, int64_t n_words, uint16_t* scores) {
  for (int64_t q = 0; q < queries.n; ++q) {
    const Word* words = queries.words + q * n_words;
    uint16_t* out = scores + q * centres.n;
    score(centres, n_words, 0, centres.n, 1, &words, &out);
  }
}

void assign_cells(const Queries& codes, int64_t n_words, const Probe& probe, uint32_t* cells) {
  const int64_t n_groups = probe.groups.n, look = min(probe.n_groups, MAX_LOOK);
  int64_t largest = 0;
  for (int64_t g = 0; g < n_groups; ++g) largest = max(largest, probe.firsts[g + 1] - probe.firsts[g]);
  Array<uint16_t> group_scores(score_capacity(n_groups)), scores(score_capacity(largest) + SHORTS);
  for (int64_t i = 0; i < codes.n; ++i) {
    const Word* words = codes.words + i * n_words;
    uint16_t *at = group_scores.data(), *cell_scores = scores.data();
    score(probe.groups, n_words, 0, n_groups, 1, &words, &at);
    fill_up(at, n_groups);
    uint16_t best = UNUSED;
    cells[i] = 0;
    for (int64_t j = 0; j < look; ++j) {
      const int64_t group = find_lowest(at, score_capacity(n_groups));
      if (at[group] == UNUSED) break;
      at[group] = UNUSED;
      const int64_t first = probe.firsts[group], n = probe.firsts[group + 1] - first;
      if (!n) continue;
      score(probe.cells, n_words, first, first + n, 1, &words, &cell_scores);
      fill_up(cell_scores, n);
      const int64_t nearest = find_lowest(cell_scores, score_capacity(n)), cell = first + nearest;
      const uint16_t lowest = cell_scores[nearest];
      if (lowest < best || (lowest == best && lowest != UNUSED && cell < cells[i]))
        best = lowest, cells[i] = uint32_t(cell);
    }
  }
}

void add_bits(const Queries& codes, int64_t n_words, const uint32_t* cells, int32_t* sums) {
  for (int64_t i = 0; i < codes.n; ++i) {
    int32_t* out = sums + int64_t(cells[i]) * n_words * 64;
    for (int64_t w = 0; w < n_words; ++w, out += 64) {
      const Word word = codes.words[i * n_words + w];
      for (int bit = 0; bit < 64; ++bit) out[bit] += int32_t(word >> bit & 1);
    }
  }
}

void order_rows(const Cells& cells, int64_t n, uint32_t* cells_to_rows, int64_t* next, uint16_t* low, uint64_t* high) {
  for (int64_t position = 0; position < n; ++position) {
    const int64_t cell = cells_to_rows[position], row = next[cell]++;
    const int64_t bit = row + cell * cells.n_high + (position >> 16);
    low[row] = uint16_t(position);
    high[bit >> 6] |= Word(1) << (bit & 63);
    cells_to_rows[position] = uint32_t(row);
  }
}

void scatter(const Queries& codes, int64_t n_words, const uint32_t* rows, int64_t start, int64_t stop,
             uint64_t* blocks) {
  for (int64_t i = 0; i < codes.n; ++i) {
    const int64_t row = int64_t(rows[i]) - start;
    if (row < 0 || row >= stop - start) continue;
    Word* out = blocks + row / BLOCK * n_words * BLOCK + row % BLOCK;
    for (int64_t w = 0; w < n_words; ++w) out[w * BLOCK] = codes.words[i * n_words + w];
  }
}

}  // namespace LEVEL
