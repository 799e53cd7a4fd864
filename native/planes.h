// Bit-sliced counting: the differing bits of a whole slab of codes, with one code per bit of a plane.
//
// Plane b of a word holds bit b of all codes of the slab. Distances are sums over planes. They are computed with full
// adders on counters that are planes themselves: two ternary operations (five binary ones) add a plane for all codes.
//
// Bits are added two at a time, together with the parity that the previous sum left:
// parity + bit + bit = 2 * carry + parity'. The query only determines which of the three inputs are inverted. The
// carries of all eight cases are tabulated once per slab, and each query reads the entry it needs. Only carries are
// summed, 32 for a word. The last parity is dropped, so the sum is half the distance, rounded down. The filter
// therefore lets through a few codes too many, and the exact distance is computed for each candidate.
//
// A counter starts at 2^P - bound / 2, so that its top plane is set for the codes that have reached the bound. Bits are
// counted in chunks. Once all codes of the slab have reached the bound of a query, it skips the remaining chunks.
#pragma once

#include "loops.h"

namespace {

constexpr int64_t SLAB = 64 * LANES;    // codes that are counted together
constexpr int VECTORS = BLOCK / LANES;  // vectors that hold one word of all codes of a block
constexpr int BIT_PAIRS = 32;           // per word
constexpr int CASES = 8;                // two query bits and a parity
constexpr int64_t GROUP = 64;           // queries that are counted together

// One step of a bit-matrix transpose: exchanges the masked bits of `high` with the bits of `low` that are `shift`
// higher.
INLINE void exchange(Plane& low, Plane& high, int shift, Word mask) {
  const Plane moved = ((low >> shift) ^ high) & broadcast(mask);
  high ^= moved;
  low ^= moved << shift;
}

// Three steps of the transpose, over eight planes.
INLINE void exchange_eight(Plane* v, int shift, const Word* masks) {
  for (int i = 0; i < 4; ++i) exchange(v[i], v[i + 4], shift, masks[0]);
  for (int i = 0; i < 4; ++i) exchange(v[i + (i & 2)], v[i + (i & 2) + 2], shift / 2, masks[1]);
  for (int i = 0; i < 8; i += 2) exchange(v[i], v[i + 1], shift / 4, masks[2]);
}

constexpr Word BYTE_MASKS[] = {0x00000000FFFFFFFF, 0x0000FFFF0000FFFF, 0x00FF00FF00FF00FF};
constexpr Word BIT_MASKS[] = {0x0F0F0F0F0F0F0F0F, 0x3333333333333333, 0x5555555555555555};

// Tabulates the carries of all bit pairs of one word, in all cases. `stride` is the distance between the words of
// consecutive blocks. Bit i of lane l of a plane belongs to code LANES * i + l. `parity` is passed on to the next word.
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
        table[CASES - 1 - c] = ~carry;
      }
      parity ^= v[i] ^ v[i + 1];
      table += CASES;
    }
  }
}

// Writes the case of each bit pair of a query, as an offset in words into the entry of a table.
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

// Adds the carries of 2^L bit pairs, from FIRST on, to L planes of a counter, and returns the carry out.
template <int L, int FIRST = 0>
INLINE Plane add(const Plane* table, const uint8_t* cases, Plane* counter) {
  if constexpr (L == 0) {
    return *(const Plane*)((const Word*)(table + FIRST * CASES) + cases[FIRST]);
  } else {
    const Plane a = add<L - 1, FIRST>(table, cases, counter);
    const Plane b = add<L - 1, FIRST + (1 << (L - 1))>(table, cases, counter);
    return full_add(counter[L - 1], a, b);
  }
}

// Adds a chunk of 2^L bit pairs to a counter of P + 1 planes.
template <int L, int P>
INLINE void count(const Plane* table, const uint8_t* cases, Plane* counter) {
  Plane carry = add<L>(table, cases, counter);
  for (int i = L; i <= P; ++i) {
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

template <int N>
struct Number {
  static constexpr int value = N;
};

// Counts the slabs of codes for groups of queries. A chunk has 2^L bit pairs; 2^P exceeds half of any distance.
template <int L, int P>
class Counting {
 public:
  Counting(const Codes& codes, const Queries& queries)
      : codes_(codes),
        n_chunks_(codes.n_words * BIT_PAIRS >> L),
        n_bit_pairs_(BIT_PAIRS * codes.n_words),
        end_((codes.last + BLOCK - 1) / BLOCK * BLOCK),
        cases_(queries.n * n_bit_pairs_),
        padded_(SLAB * codes.n_words),
        initial_((n_bit_pairs_ + 2) * HEIGHT),
        tables_(n_chunks_ * SIZE),
        counters_(GROUP * HEIGHT),
        tops_(GROUP) {
    for (int64_t q = 0; q < queries.n; ++q)
      find_cases(queries.words + q * codes.n_words, codes.n_words, cases_ + q * n_bit_pairs_);
    for (int64_t half = 0; half < n_bit_pairs_ + 2; ++half)
      for (int p = 0; p < HEIGHT; ++p) initial_[half * HEIGHT + p] = -(((Word(1) << P) - half) >> p & 1);
  }

  // Tabulates the slab that begins with row `base`.
  void load_slab(int64_t base) {
    const int64_t n_words = codes_.n_words;
    const Word* slab = codes_.blocks + base * n_words;
    if (base + SLAB > end_) {
      std::memcpy(padded_ + 0, slab, (end_ - base) * n_words * sizeof(Word));
      slab = padded_ + 0;
    } else {
      for (int64_t i = 0; i < SLAB * n_words; i += 8) __builtin_prefetch(slab + SLAB * n_words + i);
    }
    Plane parity = {};
    for (int64_t w = 0; w < n_words; ++w)
      tabulate(slab + w * BLOCK, n_words * BLOCK, parity, tables_ + w * BIT_PAIRS * CASES);
  }

  // Calls visit(query, row), in order, for the rows of the slab that may be below the bound of one of the `n` queries
  // from `first` on. Rows beyond the last one may be among them.
  template <class Visit>
  void find_candidates(int64_t base, int64_t first, int64_t n, const int64_t* bounds, Visit visit) {
    int64_t active[GROUP + 1], n_active = 0;  // queries with codes that have not reached the bound
    for (int64_t i = 0; i < n; ++i) {
      Plane counter[HEIGHT];
      const Word* start = initial_ + (bounds[first + i] + 1) / 2 * HEIGHT;
      for (int p = 0; p < HEIGHT; ++p) counter[p] = broadcast(start[p]);
      count<L, P>(tables_ + 0, cases_ + (first + i) * n_bit_pairs_, counter);
      if (n_chunks_ > 1)
        for (int p = 0; p < P; ++p) counters_[i * HEIGHT + p] = counter[p];
      tops_[i] = counter[P];
      active[n_active] = i;
      n_active += any(~counter[P]);
    }
    for (int64_t chunk = 1; chunk < n_chunks_; ++chunk) {
      int64_t n_remaining = 0;
      for (int64_t j = 0; j < n_active; ++j) {
        const int64_t i = active[j];
        Plane counter[HEIGHT];
        for (int p = 0; p < P; ++p) counter[p] = counters_[i * HEIGHT + p];
        counter[P] = tops_[i];
        count<L, P>(tables_ + chunk * SIZE, cases_ + (first + i) * n_bit_pairs_ + (chunk << L), counter);
        for (int p = 0; p < P; ++p) counters_[i * HEIGHT + p] = counter[p];
        tops_[i] = counter[P];
        active[n_remaining] = i;
        n_remaining += any(~counter[P]);
      }
      n_active = n_remaining;
    }
    for (int64_t j = 0; j < n_active; ++j)
      visit_unset(tops_[active[j]], base, [&](int64_t row) { visit(first + active[j], row); });
  }

 private:
  static constexpr int HEIGHT = P + 1;                  // planes of a counter
  static constexpr int64_t SIZE = int64_t(CASES) << L;  // planes in the table of a chunk

  const Codes& codes_;
  const int64_t n_chunks_, n_bit_pairs_, end_;
  Array<uint8_t> cases_;
  Array<Word> padded_, initial_;
  Array<Plane> tables_, counters_, tops_;
};

// Calls use(counting) with as many planes per counter as the length of the codes requires.
template <int L, class Use>
INLINE void with_chunks(const Codes& codes, const Queries& queries, Use use) {
  const int64_t half = BIT_PAIRS * codes.n_words;  // 2^P must be above it
  const auto run = [&](auto counting_planes) {
    Counting<L, decltype(counting_planes)::value> counting(codes, queries);
    use(counting);
  };
  if (half < 64) return run(Number<6>{});
  if (half < 128) return run(Number<7>{});
  if (half < 256) return run(Number<8>{});
  if (half < 512) return run(Number<9>{});
  run(Number<16>{});
}

// The same with the largest chunks, of 1, 2 or 4 words, that divide the length of the codes.
template <class Use>
INLINE void with_counting(const Codes& codes, const Queries& queries, Use use) {
  if (codes.n_words % 2) return with_chunks<5>(codes, queries, use);
  if (codes.n_words % 4 == 0) return with_chunks<7>(codes, queries, use);
  with_chunks<6>(codes, queries, use);
}

INLINE int distance(const Codes& codes, int64_t row, const Word* query) {
  const Word* code = codes.blocks + row / BLOCK * codes.n_words * BLOCK + row % BLOCK;
  int ones = 0;
  for (int64_t w = 0; w < codes.n_words; ++w) ones += __builtin_popcountll(code[w * BLOCK] ^ query[w]);
  return ones;
}

// Whether a row exists and is searched.
INLINE bool is_kept(const Codes& codes, int64_t row) {
  return row < codes.last && (!codes.kept || codes.kept[row >> 3] >> (row & 7) & 1);
}

}  // namespace
