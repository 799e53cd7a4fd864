// Approximate search: the k nearest codes among those of the nearest cells.
//
// The centres of the groups of cells are scored first, then the cells of the nearest groups. The nearest cell of each
// query is scanned first, so that its bound falls early. The other cells are scanned in the order of the rows, each for
// all queries that need it, with AVX-512 for up to four at a time. Codes are fetched into the cache ahead of the scan.

#include "cells.h"

namespace {

struct Visit {  // a cell that is scanned for a query
  int64_t cell, query;
};

// Fetches the codes of cells that are scanned soon.
class Prefetcher {
 public:
  Prefetcher(const Codes& codes, const Cells& cells, const Visit* visits, int64_t n)
      : codes_(codes), cells_(cells), visits_(visits), n_(n) {
    for (int i = 0; i < AHEAD; i += 8) step(8);
  }

  // Fetches some cache lines, perhaps beyond the end of a cell.
  INLINE void step(int64_t n_lines) {
    if (at_ >= end_) next_cell();
    for (int64_t i = 0; i < n_lines; ++i) __builtin_prefetch(at_ + i * BLOCK);
    at_ += n_lines * BLOCK;
  }

 private:
  static constexpr int AHEAD = 64;  // cache lines

  __attribute__((noinline)) void next_cell() {
    while (at_ >= end_ && next_ < n_) {
      const int64_t cell = visits_[next_].cell;
      while (next_ < n_ && visits_[next_].cell == cell) ++next_;
      const RowRun rows = rows_of(cells_, cell);
      at_ = codes_.blocks + rows.start / BLOCK * BLOCK * codes_.n_words;
      end_ = codes_.blocks + (rows.stop + BLOCK - 1) / BLOCK * BLOCK * codes_.n_words;
    }
    if (at_ >= end_) at_ = end_;
  }

  const Codes& codes_;
  const Cells& cells_;
  const Visit* visits_;
  const int64_t n_;
  int64_t next_ = 0;
  const Word *at_ = codes_.blocks, *end_ = codes_.blocks;
};

constexpr int64_t STEP = 2 * BLOCK;        // codes that are compared at a time
constexpr int STEP_VECTORS = 2 * VECTORS;  // of one word of these codes
constexpr int64_t MAX_FIRST = 8192;        // codes of a cell whose distances are all stored

// The codes of a step that are compared without vectors: AVX2 has no instruction that counts bits, and these codes use
// other units of the CPU.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int STEP_SCALARS = 4;
#else
constexpr int STEP_SCALARS = 0;
#endif

// Queries that are compared with a cell together, so that their words fit into registers.
constexpr int64_t SHARED = VECTORS == 1 ? 4 : 1;

// The number of set bits; the compiler may not compute several words in a vector first.
INLINE Word count_ones_alone(Word word) {
  asm("" : "+r"(word));
  return __builtin_popcountll(word);
}

// Where vector number `v` of a step begins.
INLINE const Word* vector_of(const Word* at, int64_t n_words, int v) {
  return at + v / VECTORS * n_words * BLOCK + v % VECTORS * LANES;
}

// The distances of a vector of codes. W is the number of words of a code, or 0 for any number.
template <int W>
INLINE Plane distances_of(const Word* at, int64_t n_words, const Word* query) {
  Plane sums = {};
  for (int64_t first = 0; first < n_words; first += 16) {  // so that sums of bytes do not overflow
    OnesCounter ones;
    const int64_t end = W && W <= 16 ? n_words : min(n_words, first + 16);
    for (int64_t w = first; w < end; ++w) ones.add(*(const UnalignedPlane*)(at + w * BLOCK) ^ broadcast(query[w]));
    sums += ones.total();
  }
  return sums;
}

// The first step from `at` on in which a code is nearer to one of M queries than its bound, or `end`. `ahead` may be
// null.
template <int W, int M>
__attribute__((noinline)) const Word* find_near(const Word* at, const Word* end, const Word* const* queries,
                                                const int64_t* const* bounds, Prefetcher* ahead) {
  Plane words[M][W], limits[M];
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) {
    limits[m] = broadcast(Word(*bounds[m]));
#pragma GCC unroll 8
    for (int w = 0; w < W; ++w) words[m][w] = broadcast(queries[m][w]);
  }
  const auto is_near = [&](const Word* at) __attribute__((always_inline)) {
    Plane below = {};  // negative in the lanes that are below a bound
    Word also_below = 0;
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
      for (int v = 0; v < STEP_VECTORS - STEP_SCALARS / LANES; ++v) {
        OnesCounter ones;
#pragma GCC unroll 8
        for (int w = 0; w < W; ++w) ones.add(*(const UnalignedPlane*)(vector_of(at, W, v) + w * BLOCK) ^ words[m][w]);
        below |= ones.total() - limits[m];
      }
#pragma GCC unroll 4
      for (int i = 0; i < STEP_SCALARS; ++i) {
        const Word* code = at + W * BLOCK + BLOCK - STEP_SCALARS + i;
        Word ones = 0;
#pragma GCC unroll 8
        for (int w = 0; w < W; ++w) ones += count_ones_alone(code[w * BLOCK] ^ queries[m][w]);
        also_below |= ones - Word(*bounds[m]);
      }
    }
    return any_negative(below) || (STEP_SCALARS && also_below >> 63);
  };
  if (ahead) {
    for (; at < end; at += W * STEP) {
      ahead->step(W * STEP / BLOCK);
      if (is_near(at)) return at;
    }
  } else {
    for (; at < end; at += W * STEP)
      if (is_near(at)) return at;
  }
  return end;
}

// Compares M queries with the codes of a cell. W is the number of words of a code, or 0 for any number.
template <int W, int M>
__attribute__((noinline)) void scan_cell(const Codes& codes, const Cells& cells, const Queries& queries,
                                         const Visit* visits, NearestByPosition& results, Prefetcher* ahead) {
  const int64_t n_words = W ? W : codes.n_words, cell = visits[0].cell;
  const RowRun rows = rows_of(cells, cell);
  const Word* words[M];
  const int64_t* bounds[M];
  for (int m = 0; m < M; ++m) {
    words[m] = queries.words + visits[m].query * n_words;
    bounds[m] = results.bounds + visits[m].query;
  }
  int64_t row = rows.start / BLOCK * BLOCK;
  const Word* at = codes.blocks + row * n_words;
  alignas(64) Word distances[M * STEP];
  const auto offer = [&](int n_vectors) __attribute__((always_inline)) {
    Word near = 0;
    for (int m = 0; m < M; ++m)
      for (int v = 0; v < n_vectors; ++v) {
        const Plane sums = distances_of<W>(vector_of(at, n_words, v), n_words, words[m]);
        *(Plane*)(distances + m * STEP + v * LANES) = sums;
        unsigned lanes = lanes_below(sums, broadcast(Word(*bounds[m])));
        asm("" : "+r"(lanes));  // GCC 12 may store a mask as one byte and read eight
        near |= Word(lanes & ((1u << LANES) - 1)) << (m * STEP + v * LANES);
      }
    for (; near; near &= near - 1) {
      const int i = __builtin_ctzll(near);
      const int64_t found = row + i % STEP;
      if (found >= rows.start && found < rows.stop && is_kept(codes, found))
        results.offer(visits[i / STEP].query, int(distances[i]), found, cell);
    }
  };
  if constexpr (W > 0) {
    int64_t n_steps = (rows.stop - row + STEP - 1) / STEP;  // the last one perhaps beyond the end of the cell
    if (row + n_steps * STEP > (codes.stop + BLOCK - 1) / BLOCK * BLOCK) --n_steps;
    for (const Word* end = at + n_steps * STEP * W; at < end; at += STEP * W) {
      at = find_near<W, M>(at, end, words, bounds, ahead);
      if (at >= end) break;
      row = (at - codes.blocks) / W;
      offer(STEP_VECTORS);
    }
    row = (at - codes.blocks) / W;
  }
  for (; row < rows.stop; row += BLOCK, at += n_words * BLOCK) {
    if (ahead) ahead->step(n_words);
    offer(VECTORS);
  }
}

// Compares a query with all codes of a small cell, before any bound is known, and offers the k nearest. `distances` has
// room for MAX_FIRST codes and a vector.
template <int W>
void scan_first(const Codes& codes, const Cells& cells, const Queries& queries, const Visit& visit, int64_t k,
                uint16_t* distances, NearestByPosition& results, Prefetcher* ahead) {
  typedef uint16_t LaneShorts __attribute__((vector_size(2 * LANES)));
  const int64_t n_words = W ? W : codes.n_words;
  const Word* query = queries.words + visit.query * n_words;
  const RowRun rows = rows_of(cells, visit.cell);
  const int64_t base = rows.start / BLOCK * BLOCK, n = rows.stop - base, capacity = score_capacity(n);
  const Word* at = codes.blocks + base * n_words;
  for (int64_t i = 0; i < n; i += BLOCK, at += n_words * BLOCK) {
    if (ahead) ahead->step(n_words);
    for (int v = 0; v < VECTORS; ++v) {
      const LaneShorts sums = __builtin_convertvector(distances_of<W>(at + v * LANES, n_words, query), LaneShorts);
      std::memcpy(distances + i + v * LANES, &sums, sizeof sums);
    }
  }
  for (int64_t i = 0; i < rows.start - base; ++i) distances[i] = UNUSED;
  for (int64_t i = n; i < capacity; ++i) distances[i] = UNUSED;
  if (codes.kept)
    for (int64_t i = 0; i < n; ++i)
      if (!is_kept(codes, base + i)) distances[i] = UNUSED;
  visit_lowest(distances, capacity, k,
               [&](int64_t i) { results.offer(visit.query, distances[i], base + i, visit.cell); });
}

// The scores of the cells that are considered for a batch of queries.
class Scores {
 public:
  struct Run {  // the cells of a group, for a query
    int64_t query, group, at;
  };

  Scores(const Probe& probe, const Queries& queries, int64_t n_words)
      : runs_(queries.n * probe.n_groups, Content::undefined), first_runs(queries.n + 1), starts(queries.n + 1) {
    Array<const Word*> words(queries.n);
    for (int64_t q = 0; q < queries.n; ++q) words[q] = queries.words + q * n_words;
    choose_groups(probe, queries.n, n_words, words.data());
    scores = new (std::align_val_t(64)) uint16_t[starts[queries.n] + SHORTS];
    score_cells(probe, queries.n, n_words, words.data());
  }
  ~Scores() { ::operator delete[](scores, std::align_val_t(64)); }

  // The cell of a score; `run` is a run of the query that is not after it.
  int64_t cell(const Probe& probe, int64_t at, int64_t& run, int64_t query) const {
    while (run + 1 < first_runs[query + 1] && runs_[run + 1].at <= at) ++run;
    return probe.firsts[runs_[run].group] + at - runs_[run].at;
  }

 private:
  void choose_groups(const Probe& probe, int64_t n, int64_t n_words, const Word* const* words) {
    const int64_t n_groups = probe.groups.n, capacity = score_capacity(n_groups);
    Array<uint16_t> group_scores(min(n, int64_t(4)) * capacity);
    uint16_t* rows[4];
    int64_t n_runs = 0, at = 0;
    for (int64_t first = 0; first < n; first += 4) {
      const int64_t m = min(int64_t(4), n - first);
      for (int64_t i = 0; i < m; ++i) {
        rows[i] = group_scores + i * capacity;
        for (int64_t j = n_groups; j < capacity; ++j) rows[i][j] = UNUSED;
      }
      score(probe.groups, n_words, 0, n_groups, m, words + first, rows);
      for (int64_t i = 0; i < m; ++i) {
        first_runs[first + i] = n_runs, starts[first + i] = at;
        visit_lowest(rows[i], capacity, probe.n_groups, [&](int64_t group) {
          runs_[n_runs++] = {first + i, group, at};
          at += probe.firsts[group + 1] - probe.firsts[group];
        });
        at = score_capacity(at);
      }
    }
    first_runs[n] = n_runs, starts[n] = at;
  }

  // Scores the cells of each group for all queries that consider it.
  void score_cells(const Probe& probe, int64_t n, int64_t n_words, const Word* const* words) {
    const int64_t n_groups = probe.groups.n, n_runs = first_runs[n];
    Array<int64_t> ends(n_groups + 1), order(n_runs);
    for (int64_t i = 0; i < n_runs; ++i) ++ends[runs_[i].group + 1];
    for (int64_t g = 0; g < n_groups; ++g) ends[g + 1] += ends[g];
    for (int64_t i = 0; i < n_runs; ++i) order[ends[runs_[i].group]++] = i;
    for (int64_t g = 0, first = 0; g < n_groups; first = ends[g++]) {
      const Word* some[4];
      uint16_t* rows[4];
      for (; first < ends[g]; first += 4) {
        const int64_t m = min(int64_t(4), ends[g] - first);
        for (int64_t i = 0; i < m; ++i) {
          const Run& run = runs_[order[first + i]];
          some[i] = words[run.query], rows[i] = scores + run.at;
        }
        score(probe.cells, n_words, probe.firsts[g], probe.firsts[g + 1], m, some, rows);
      }
    }
    for (int64_t q = 0; q < n; ++q) {  // between the end of the last run and the next query
      const Run& run = runs_[first_runs[q + 1] - 1];
      int64_t at = starts[q];
      if (first_runs[q + 1] > first_runs[q]) at = run.at + probe.firsts[run.group + 1] - probe.firsts[run.group];
      for (; at < starts[q + 1]; ++at) scores[at] = UNUSED;
    }
  }

  Array<Run> runs_;

 public:
  Array<int64_t> first_runs, starts;  // of each query: its runs, and where its scores begin
  uint16_t* scores = nullptr;
};

// The cells to scan: first the nearest of each query, then the others by cell.
int64_t choose_cells(const Probe& probe, const Scores& scores, int64_t n_queries, int64_t n_cells, Visit* visits,
                     Visit* unsorted, int64_t& n_first) {
  int64_t n = 0;
  n_first = 0;
  for (int64_t q = 0; q < n_queries; ++q) {
    uint16_t* own = scores.scores + scores.starts[q];
    const int64_t size = scores.starts[q + 1] - scores.starts[q], before = n;
    if (!size) continue;
    int64_t run = scores.first_runs[q];
    const int64_t nearest = find_lowest(own, size);
    if (own[nearest] == UNUSED) continue;
    visits[n_first++] = {scores.cell(probe, scores.starts[q] + nearest, run, q), q};
    own[nearest] = UNUSED;
    visit_lowest(own, size, probe.n_cells - 1, [&](int64_t i) { unsorted[n++] = {i, q}; });
    int64_t last = size;
    for (int64_t i = before; i < n; ++i) {
      const int64_t at = unsorted[i].cell;
      if (at < last) run = scores.first_runs[q];  // the ties at the limit come last
      last = at;
      unsorted[i].cell = scores.cell(probe, scores.starts[q] + at, run, q);
    }
  }
  if (n_queries == 1) {
    std::memcpy(visits + n_first, unsorted, n * sizeof(Visit));
    return n_first + n;
  }
  Array<int64_t> ends(n_cells + 1);
  for (int64_t i = 0; i < n; ++i) ++ends[unsorted[i].cell + 1];
  for (int64_t c = 0; c < n_cells; ++c) ends[c + 1] += ends[c];
  for (int64_t i = 0; i < n; ++i) visits[n_first + ends[unsorted[i].cell]++] = unsorted[i];
  return n_first + n;
}

template <int W>
void scan_cells(const Codes& codes, const Cells& cells, const Queries& queries, const Visit* visits, int64_t n_first,
                int64_t n, int64_t k, NearestByPosition& results, int64_t* compared) {
  Prefetcher prefetcher(codes, cells, visits, n);
  Array<uint16_t> distances(MAX_FIRST + SHORTS + BLOCK, Content::undefined);
  for (int64_t i = 0, last = -1; i < n;) {
    const Visit* own = visits + i;
    Prefetcher* ahead = own->cell != last ? &prefetcher : nullptr;
    const RowRun rows = rows_of(cells, own->cell);
    const int64_t size = rows.stop - rows.start;
    int64_t m = 1;  // queries of this cell
    if (i < n_first && size > 0 && size <= MAX_FIRST - BLOCK) {
      scan_first<W>(codes, cells, queries, *own, k, distances.data(), results, ahead);
    } else {
      while (W && m < SHARED && i + m < n && own[m].cell == own->cell) ++m;
      switch (m) {
        case 1: scan_cell<W, 1>(codes, cells, queries, own, results, ahead); break;
        case 2: scan_cell<W, W ? min(int64_t(2), SHARED) : 1>(codes, cells, queries, own, results, ahead); break;
        case 3: scan_cell<W, W ? min(int64_t(3), SHARED) : 1>(codes, cells, queries, own, results, ahead); break;
        default: scan_cell<W, W ? SHARED : 1>(codes, cells, queries, own, results, ahead);
      }
    }
    for (int64_t j = 0; j < m; ++j) compared[own[j].query] += size;
    last = own->cell, i += m;
  }
}

}  // namespace

namespace LEVEL {

void nearest_in_cells(const Codes& codes, const Cells& cells, const Probe& probe, const Queries& queries, int64_t k,
                      int32_t* distances, int64_t* positions, int64_t* sizes, int64_t* compared) {
  Array<int64_t> bounds(queries.n);
  for (int64_t q = 0; q < queries.n; ++q) bounds[q] = 64 * codes.n_words + 1, compared[q] = 0;
  NearestByPosition results(cells, queries.n, codes.n_words, k, bounds.data());
  const Scores scores(probe, queries, codes.n_words);
  const int64_t most = queries.n * (min(probe.n_cells, cells.n) + 1);
  Array<Visit> visits(most, Content::undefined), unsorted(most, Content::undefined);
  int64_t n_first;
  const int64_t n = choose_cells(probe, scores, queries.n, cells.n, visits.data(), unsorted.data(), n_first);
  const auto scan = [&](auto n_words) {
    scan_cells<decltype(n_words)::value>(codes, cells, queries, visits.data(), n_first, n, k, results, compared);
  };
  switch (codes.n_words) {
    case 1: scan(Constant<1>{}); break;
    case 2: scan(Constant<2>{}); break;
    case 4: scan(Constant<4>{}); break;
    case 8: scan(Constant<8>{}); break;
    default: scan(Constant<0>{});
  }
  for (int64_t q = 0; q < queries.n; ++q) sizes[q] = results.write(q, distances + q * k, positions + q * k);
}

void positions_of(const Cells& cells, const int64_t* rows, int64_t n, int64_t* positions) {
  for (int64_t i = 0; i < n; ++i) positions[i] = position_of(cells, rows[i]);
}

}  // namespace LEVEL
