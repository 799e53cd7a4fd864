// Approximate search: the k nearest codes among those of the nearest cells.
//
// The centres of the groups of cells are scored first, then the cells of the nearest groups. The nearest cell of each
// query is scanned first, so that its bound falls early. The other cells are scanned in the order of the rows, each for
// all queries that need it, and codes are fetched into the cache ahead of the scan.

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
    step(0);
    for (int i = 0; i < 128; i += 8) step(8);
  }

  // Fetches some cache lines, perhaps beyond the end of a cell.
  INLINE void step(int64_t n_lines) {
    for (int64_t i = 0; i < n_lines; ++i) __builtin_prefetch(at_ + i * BLOCK, 0, 2);
    at_ += n_lines * BLOCK;
    while (at_ >= end_ && next_ < n_) {
      const int64_t cell = visits_[next_].cell;
      while (next_ < n_ && visits_[next_].cell == cell) ++next_;
      const RowRun rows = rows_of(cells_, cell);
      at_ = codes_.blocks + rows.start / BLOCK * BLOCK * codes_.n_words;
      end_ = codes_.blocks + (rows.stop + BLOCK - 1) / BLOCK * BLOCK * codes_.n_words;
    }
    if (at_ >= end_) at_ = end_;
  }

 private:
  const Codes& codes_;
  const Cells& cells_;
  const Visit* visits_;
  const int64_t n_;
  int64_t next_ = 0;
  const Word *at_ = codes_.blocks, *end_ = codes_.blocks;
};

// Compares a query with the codes of a cell. W is the number of words of a code, or 0 for any number.
template <int W>
INLINE void scan_cell(const Codes& codes, const Cells& cells, const Word* query, const Visit& visit,
                      NearestByPosition& results, Prefetcher* ahead) {
  const int64_t n_words = W ? W : codes.n_words, size = n_words * BLOCK;
  const auto [start, stop] = rows_of(cells, visit.cell);
  Plane bound = broadcast(Word(results.bounds[visit.query]));
  const auto sum = [&](const Word* at) __attribute__((always_inline)) {
    Plane total = {};
    for (int64_t first = 0; first < n_words; first += 16) {  // so that sums of bytes do not overflow
      OnesCounter ones;
      const int64_t end = W && W <= 16 ? n_words : min(n_words, first + 16);
      for (int64_t w = first; w < end; ++w) ones.add(*(const UnalignedPlane*)(at + w * BLOCK) ^ broadcast(query[w]));
      total += ones.total();
    }
    return total;
  };
  const auto offer = [&](Plane sums, int64_t row) __attribute__((always_inline)) {
    unsigned mask = lanes_below(sums, bound);
    if (!mask) return;
    alignas(64) Word distances[LANES];
    *(Plane*)distances = sums;
    for (; mask; mask &= mask - 1) {
      const int lane = __builtin_ctz(mask);
      if (row + lane >= start && row + lane < stop && is_kept(codes, row + lane))
        results.offer(visit.query, int(distances[lane]), row + lane, visit.cell);
    }
    bound = broadcast(Word(results.bounds[visit.query]));
  };
  int64_t row = start / BLOCK * BLOCK;
  const Word* at = codes.blocks + row * n_words;
  if (VECTORS == 1)  // two blocks at a time
    for (; row + BLOCK < stop; row += 2 * BLOCK, at += 2 * size) {
      if (ahead) ahead->step(2 * n_words);
      const Plane a = sum(at), b = sum(at + size);
      if (__builtin_expect(!(lanes_below(a, bound) | lanes_below(b, bound)), 1)) continue;
      offer(a, row);
      offer(b, row + BLOCK);
    }
  for (; row < stop; row += BLOCK, at += size) {
    if (ahead) ahead->step(n_words);
    const Plane a = sum(at), b = VECTORS == 1 ? a : sum(at + LANES);
    if (__builtin_expect(!(lanes_below(a, bound) | lanes_below(b, bound)), 1)) continue;
    offer(a, row);
    if (VECTORS == 2) offer(b, row + LANES);
  }
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
                     Visit* unsorted) {
  int64_t n_first = 0, n = 0;
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
void scan_cells(const Codes& codes, const Cells& cells, const Queries& queries, const Visit* visits, int64_t n,
                NearestByPosition& results, int64_t* compared) {
  Prefetcher ahead(codes, cells, visits, n);
  for (int64_t i = 0, last = -1; i < n; last = visits[i++].cell) {
    const Visit& visit = visits[i];
    scan_cell<W>(codes, cells, queries.words + visit.query * codes.n_words, visit, results,
                 visit.cell != last ? &ahead : nullptr);
    const auto [start, stop] = rows_of(cells, visit.cell);
    compared[visit.query] += stop - start;
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
  const int64_t n = choose_cells(probe, scores, queries.n, cells.n, visits.data(), unsorted.data());
  switch (codes.n_words) {
    case 1: scan_cells<1>(codes, cells, queries, visits.data(), n, results, compared); break;
    case 2: scan_cells<2>(codes, cells, queries, visits.data(), n, results, compared); break;
    case 4: scan_cells<4>(codes, cells, queries, visits.data(), n, results, compared); break;
    case 8: scan_cells<8>(codes, cells, queries, visits.data(), n, results, compared); break;
    default: scan_cells<0>(codes, cells, queries, visits.data(), n, results, compared);
  }
  for (int64_t q = 0; q < queries.n; ++q) sizes[q] = results.write(q, distances + q * k, positions + q * k);
}

void positions_of(const Cells& cells, const int64_t* rows, int64_t n, int64_t* positions) {
  for (int64_t i = 0; i < n; ++i) positions[i] = position_of(cells, rows[i]);
}

}  // namespace LEVEL
