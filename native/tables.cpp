// Multi-index hashing: lookup tables from substrings of codes to rows.
//
// Two codes that differ in few bits agree, or differ in very few bits, in at least one substring. A substring is a run
// of up to 24 bits, and its lookup table lists the rows for each of its possible values.

#include "loops.h"

namespace {

// `width` bits from bit begin % 64 on, of a word and the one that follows it.
INLINE int64_t substring(Word low, Word high, int64_t begin, int64_t width) {
  const int shift = int(begin % 64);
  Word value = low >> shift;
  if (shift + width > 64) value |= high << (64 - shift);
  return int64_t(value & ((Word(1) << width) - 1));
}

INLINE int64_t substring_of_row(const Codes& codes, int64_t row, int64_t begin, int64_t width) {
  const Word* word = codes.blocks + row / BLOCK * codes.n_words * BLOCK + row % BLOCK + begin / 64 * BLOCK;
  return substring(word[0], begin / 64 + 1 < codes.n_words ? word[BLOCK] : 0, begin, width);
}

INLINE int64_t substring_of_query(const Word* query, int64_t n_words, int64_t begin, int64_t width) {
  return substring(query[begin / 64], begin / 64 + 1 < n_words ? query[begin / 64 + 1] : 0, begin, width);
}

// The distance of a row to a query, or any value above the radius if it is above the radius.
INLINE int64_t distance_up_to(const Codes& codes, int64_t row, const Word* query, int64_t radius) {
  const Word* code = codes.blocks + row / BLOCK * codes.n_words * BLOCK + row % BLOCK;
  int64_t d = 0;
  for (int64_t w = 0; w < codes.n_words && d <= radius; ++w) d += __builtin_popcountll(code[w * BLOCK] ^ query[w]);
  return d;
}

// Whether the lookup of an earlier substring has found this row already.
bool found_before(const Codes& codes, int64_t row, const Tables& tables, int64_t substring, const Flips& flips,
                  const Word* query) {
  for (int64_t s = 0; s < substring; ++s) {
    if (flips.counts[s] == 0) continue;
    const int64_t begin = tables.begins[s], width = tables.widths[s];
    const int64_t value = substring_of_query(query, codes.n_words, begin, width);
    if (__builtin_popcountll(Word(value ^ substring_of_row(codes, row, begin, width))) <= flips.radii[s]) return true;
  }
  return false;
}

}  // namespace

namespace LEVEL {

void substring_values(const Codes& codes, const int64_t* rows, int64_t n, int64_t begin, int64_t width, int64_t* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = substring_of_row(codes, rows[i], begin, width);
}

void build_table(const Codes& codes, int64_t begin, int64_t width, uint32_t* starts, uint32_t* rows) {
  const int64_t n = codes.stop, n_values = int64_t(1) << width;
  Array<uint32_t> values(n), offsets(n_values + 1);
  std::memset(starts, 0, (n_values + 1) * sizeof(uint32_t));
  for (int64_t row = 0; row < n; ++row) {
    values[row] = uint32_t(substring_of_row(codes, row, begin, width));
    ++starts[values[row] + 1];
  }
  for (int64_t value = 1; value <= n_values; ++value) starts[value] += starts[value - 1];
  std::memcpy(offsets.data(), starts, (n_values + 1) * sizeof(uint32_t));
  for (int64_t row = 0; row < n; ++row) rows[offsets[values[row]]++] = uint32_t(row);
}

int64_t look_up(const Codes& codes, const Tables& tables, const Flips& flips, int64_t radius, const Queries& queries,
                const int64_t* after, int64_t first, Hits& hits) {
  for (int64_t q = first; q < queries.n; ++q) {
    const Word* query = queries.words + q * codes.n_words;
    const int64_t before = hits.size;
    for (int64_t s = 0; s < tables.n_substrings; ++s) {
      if (flips.counts[s] == 0) continue;
      const int64_t value = substring_of_query(query, codes.n_words, tables.begins[s], tables.widths[s]);
      for (int64_t f = flips.firsts[s]; f < flips.firsts[s] + flips.counts[s]; ++f) {
        const uint32_t* start = tables.starts + tables.firsts[s] + (value ^ int64_t(flips.masks[f]));
        const int64_t end = min(int64_t(start[1]), tables.n_rows);
        for (int64_t i = start[0]; i < end; ++i) {
          const int64_t row = tables.rows[s * tables.n_rows + i];
          if (row >= tables.n_rows || row <= after[q] || (codes.kept && !(codes.kept[row >> 3] >> (row & 7) & 1)))
            continue;
          const int64_t d = distance_up_to(codes, row, query, radius);
          if (d > radius || found_before(codes, row, tables, s, flips, query)) continue;
          if (hits.size == hits.capacity) {  // drop what this query has found, and resume with it
            hits.size = before;
            return q;
          }
          hits.queries[hits.size] = q;
          hits.rows[hits.size] = row;
          hits.distances[hits.size++] = int32_t(d);
        }
      }
    }
  }
  return queries.n;
}

}  // namespace LEVEL
