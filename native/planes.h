// Bit-sliced Hamming distance: bits at the same position of all planes belong to the same code of a slab.
//
// Plane b of a word holds bit b of all codes of the slab. Distances are sums over planes. They are computed with full
// adders on counters that are planes themselves: two ternary operations (five binary ones) add a plane for all codes.
//
// Bits are added two at a time, together with the parity of the previous sum: parity + bit + bit = 2 * carry + parity'.
// The query only determines which of the three inputs are inverted. The carries of all eight cases are tabulated once
// per slab, and each query reads the entry it needs. Only carries are summed, 32 for a word. The last parity is
// dropped, so the sum is half the distance, rounded down. The filter therefore accepts a few codes too many; the exact
// distance of each candidate is computed afterwards.
//
// A counter starts at 2^TOP minus half the bound, rounded up, so that plane TOP is set for the codes that have reached
// the bound. Bits are counted in stages. Once all codes of the slab have reached the bound of a query, the remaining
// stages are skipped for this query.
#pragma once

#include "loops.h"

namespace {

constexpr int64_t SLAB = 64 * LANES;    // codes that are counted together
constexpr int VECTORS = BLOCK / LANES;  // vectors that hold one word of all codes of a block
constexpr int BIT_PAIRS = 32;           // per word
constexpr int CASES = 8;                // two query bits and a parity
constexpr int64_t QUERY_BATCH = 64;     // queries that are compared with a slab together

// One step of a bit-matrix transpose. Swaps `high & mask` with `(low >> shift) & mask`.
INLINE void exchange(Plane& low, Plane& high, int shift, Word mask) {
  const Plane difference = ((low >> shift) ^ high) & broadcast(mask);
  high ^= difference;
  low ^= difference << shift;
}

// Three steps of the transpose on eight planes: between planes that are 4, 2 and 1 apart.
INLINE void exchange_eight(Plane* v, int shift, const Word* masks) {
  for (int i = 0; i < 4; ++i) exchange(v[i], v[i + 4], shift, masks[0]);
  for (int i = 0; i < 4; ++i) exchange(v[i + (i & 2)], v[i + (i & 2) + 2], shift / 2, masks[1]);
  for (int i = 0; i < 8; i += 2) exchange(v[i], v[i + 1], shift / 4, masks[2]);
}

constexpr Word BYTE_MASKS[] = {0x00000000FFFFFFFF, 0x0000FFFF0000FFFF, 0x00FF00FF00FF00FF};
constexpr Word BIT_MASKS[] = {0x0F0F0F0F0F0F0F0F, 0x3333333333333333, 0x5555555555555555};

// Tabulates the carries of all bit pairs of one word of the codes, in all cases. `stride` is the distance, in words,
// between consecutive blocks. Bit i of lane l of a plane belongs to code LANES * i + l. `parity` is passed on to the
// next word.
void tabulate(const Word* word, int64_t stride, Plane& parity, Plane* table) {
  Plane transposed[64];
  for (int first = 0; first < 8; ++first) {
    Plane v[8];
    for (int i = 0; i < 8; ++i) {
      const int at = first + 8 * i;
      v[i] = *(const UnalignedPlane*)(word + at / VECTORS * stride + at % VECTORS * LANES);
    }
    exchange_eight(v, 32, BYTE_MASKS);
    for (int i = 0; i < 8; ++i) transposed[first + 8 * i] = v[i];
  }
  for (int first = 0; first < 64; first += 8) {
    Plane v[8];
    for (int i = 0; i < 8; ++i) v[i] = transposed[first + i];
    exchange_eight(v, 4, BIT_MASKS);
    for (int i = 0; i < 8; i += 2) {
      for (int c = 0; c < CASES / 2; ++c) {
        Plane a = c & 1 ? ~v[i] : v[i];
        const Plane carry = full_add(a, c & 2 ? ~v[i + 1] : v[i + 1], parity);
        table[c] = carry;
        table[CASES - 1 - c] = ~carry;  // inverting all three inputs inverts the carry
      }
      parity ^= v[i] ^ v[i + 1];
      table += CASES;
    }
  }
}

// Writes, for each bit pair of a query, which of the eight cases applies. A case is stored as the offset, in words, of
// its plane among the planes that are tabulated for the bit pair.
void find_cases(const Word* query, int64_t n_words, uint8_t* cases) {
  int parity = 0;
  for (int64_t w = 0; w < n_words; ++w) {
    for (int i = 0; i < BIT_PAIRS; ++i) {
      const int bits = int(query[w] >> 2 * i & 3);
      *cases++ = uint8_t((bits | parity << 2) * LANES);
      parity ^= (bits ^ bits >> 1) & 1;
    }
  }
}

// Adds the carries of 2^LOG2_PAIRS bit pairs, from FIRST on, to the lowest LOG2_PAIRS planes of a counter, and returns
// the carry out.
template <int LOG2_PAIRS, int FIRST = 0>
INLINE Plane add(const Plane* table, const uint8_t* cases, Plane* counter) {
  if constexpr (LOG2_PAIRS == 0) {
    return *(const Plane*)((const Word*)(table + FIRST * CASES) + cases[FIRST]);
  } else {
    const Plane a = add<LOG2_PAIRS - 1, FIRST>(table, cases, counter);
    const Plane b = add<LOG2_PAIRS - 1, FIRST + (1 << (LOG2_PAIRS - 1))>(table, cases, counter);
    return full_add(counter[LOG2_PAIRS - 1], a, b);
  }
}

// Adds a stage of 2^LOG2_PAIRS bit pairs to a counter of planes 0 to TOP.
template <int LOG2_PAIRS, int TOP>
INLINE void count(const Plane* table, const uint8_t* cases, Plane* counter) {
  Plane carry = add<LOG2_PAIRS>(table, cases, counter);
  for (int i = LOG2_PAIRS; i <= TOP; ++i) {
    const Plane sum = counter[i];
    counter[i] = sum ^ carry;
    carry &= sum;
  }
}

// Calls visit(row), in order, for the rows of the slab whose bit is not set; `base` is the first row of the slab.
template <class Visit>
INLINE void visit_unset(const Plane& reached, int64_t base, Visit visit) {
  Word unset = 0;
  for (int i = 0; i < LANES; ++i) unset |= ~reached[i];
  for (; unset; unset &= unset - 1) {
    const int bit = __builtin_ctzll(unset);
    for (unsigned lanes = lanes_with(~reached, bit); lanes; lanes &= lanes - 1)
      visit(base + LANES * bit + __builtin_ctz(lanes));
  }
}

// Finds candidates slab by slab for batches of queries. A stage has 2^LOG2_PAIRS bit pairs, a counter has planes 0 to
// TOP, and 2^TOP must exceed half of any distance.
template <int LOG2_PAIRS, int TOP>
class SlabFilter {
 public:
  SlabFilter(const Codes& codes, const Queries& queries)
      : codes_(codes),
        n_stages_(codes.n_words * BIT_PAIRS >> LOG2_PAIRS),
        n_bit_pairs_(BIT_PAIRS * codes.n_words),
        end_((codes.stop + BLOCK - 1) / BLOCK * BLOCK),
        cases_(queries.n * n_bit_pairs_),
        padded_(SLAB * codes.n_words),
        initial_((n_bit_pairs_ + 2) * N_PLANES),
        tables_(n_stages_ * STAGE_PLANES),
        counters_(QUERY_BATCH * N_PLANES),
        reached_(QUERY_BATCH) {
    for (int64_t q = 0; q < queries.n; ++q)
      find_cases(queries.words + q * codes.n_words, codes.n_words, cases_ + q * n_bit_pairs_);
    for (int64_t half = 0; half < n_bit_pairs_ + 2; ++half)
      for (int p = 0; p < N_PLANES; ++p) initial_[half * N_PLANES + p] = -(((Word(1) << TOP) - half) >> p & 1);
  }

  // Tabulates the carries of the slab that begins with row `base`.
  void load_slab(int64_t base) {
    const int64_t n_words = codes_.n_words;
    const Word* slab = codes_.blocks + base * n_words;
    if (base + SLAB > end_) {
      std::memcpy(padded_.data(), slab, (end_ - base) * n_words * sizeof(Word));
      slab = padded_.data();
    } else {
      for (int64_t i = 0; i < SLAB * n_words; i += 8) __builtin_prefetch(slab + SLAB * n_words + i);
    }
    Plane parity = {};
    for (int64_t w = 0; w < n_words; ++w)
      tabulate(slab + w * BLOCK, n_words * BLOCK, parity, tables_ + w * BIT_PAIRS * CASES);
  }

  // Calls visit(query, row) for the candidates of the `n` queries from `first` on: the rows of the slab whose distance
  // may be below the bound of the query. Queries and rows are visited in ascending order. Rows after the last one to
  // scan may be visited too.
  template <class Visit>
  void find_candidates(int64_t base, int64_t first, int64_t n, const int64_t* bounds, Visit visit) {
    int64_t active[QUERY_BATCH + 1], n_active = 0;  // queries whose bound not all codes have reached
    for (int64_t i = 0; i < n; ++i) {
      Plane counter[N_PLANES];
      const Word* start = initial_ + (bounds[first + i] + 1) / 2 * N_PLANES;
      for (int p = 0; p < N_PLANES; ++p) counter[p] = broadcast(start[p]);
      count<LOG2_PAIRS, TOP>(tables_.data(), cases_ + (first + i) * n_bit_pairs_, counter);
      if (n_stages_ > 1)
        for (int p = 0; p < TOP; ++p) counters_[i * N_PLANES + p] = counter[p];
      reached_[i] = counter[TOP];
      active[n_active] = i;
      n_active += any(~counter[TOP]);
    }
    for (int64_t stage = 1; stage < n_stages_; ++stage) {
      int64_t n_remaining = 0;
      for (int64_t j = 0; j < n_active; ++j) {
        const int64_t i = active[j];
        Plane counter[N_PLANES];
        for (int p = 0; p < TOP; ++p) counter[p] = counters_[i * N_PLANES + p];
        counter[TOP] = reached_[i];
        count<LOG2_PAIRS, TOP>(tables_ + stage * STAGE_PLANES,
                               cases_ + (first + i) * n_bit_pairs_ + (stage << LOG2_PAIRS), counter);
        for (int p = 0; p < TOP; ++p) counters_[i * N_PLANES + p] = counter[p];
        reached_[i] = counter[TOP];
        active[n_remaining] = i;
        n_remaining += any(~counter[TOP]);
      }
      n_active = n_remaining;
    }
    for (int64_t j = 0; j < n_active; ++j)
      visit_unset(reached_[active[j]], base, [&](int64_t row) { visit(first + active[j], row); });
  }

 private:
  static constexpr int N_PLANES = TOP + 1;                               // of a counter
  static constexpr int64_t STAGE_PLANES = int64_t(CASES) << LOG2_PAIRS;  // in the table of a stage

  const Codes& codes_;
  const int64_t n_stages_, n_bit_pairs_, end_;
  Array<uint8_t> cases_;   // [query][bit pair]
  Array<Word> padded_;     // the last slab, padded with zeros, if it is not full
  Array<Word> initial_;    // [half of the bound, rounded up][plane]: where a counter starts
  Array<Plane> tables_;    // [bit pair][case]
  Array<Plane> counters_;  // [query][plane]: counters between stages, without plane TOP
  Array<Plane> reached_;   // plane TOP of the counters, set for the codes that have reached the bound
};

// An integer as a type. The loops use no templates of the standard library, such as std::integral_constant (see
// simd.h).
template <int N>
struct Constant {
  static constexpr int value = N;
};

// Calls function(filter) for a filter whose counters have as many planes as the length of the codes requires.
template <int LOG2_PAIRS, class Function>
INLINE void with_stages(const Codes& codes, const Queries& queries, Function function) {
  const int64_t largest_count = BIT_PAIRS * codes.n_words;  // 2^TOP must be above it
  const auto run = [&](auto top) {
    SlabFilter<LOG2_PAIRS, decltype(top)::value> filter(codes, queries);
    function(filter);
  };
  if (largest_count < 64) return run(Constant<6>{});
  if (largest_count < 128) return run(Constant<7>{});
  if (largest_count < 256) return run(Constant<8>{});
  if (largest_count < 512) return run(Constant<9>{});
  run(Constant<16>{});
}

// Calls function(filter) for a filter with the longest stages, of 1, 2 or 4 words, that divide the length of the codes.
template <class Function>
INLINE void with_filter(const Codes& codes, const Queries& queries, Function function) {
  if (codes.n_words % 2) return with_stages<5>(codes, queries, function);
  if (codes.n_words % 4 == 0) return with_stages<7>(codes, queries, function);
  with_stages<6>(codes, queries, function);
}

INLINE int distance(const Codes& codes, int64_t row, const Word* query) {
  const Word* code = codes.blocks + row / BLOCK * codes.n_words * BLOCK + row % BLOCK;
  int ones = 0;
  for (int64_t w = 0; w < codes.n_words; ++w) ones += __builtin_popcountll(code[w * BLOCK] ^ query[w]);
  return ones;
}

// Whether a row is kept (see `Codes`) and not beyond the range to scan.
INLINE bool is_kept(const Codes& codes, int64_t row) {
  return row < codes.stop && (!codes.kept || codes.kept[row >> 3] >> (row & 7) & 1);
}

}  // namespace
