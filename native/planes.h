// Counting differing bits for a slab of codes at once, one code per bit of a plane.
//
// Plane b of a word has bit b of all codes of the slab. Distances are sums over planes, made by full adders on
// counters that are planes themselves: two operations of three operands, for all codes.
//
// Bits are added in couples, together with what the sum before them left over: rest + bit + bit is
// 2 * carry + rest. All that depends on the query is which of the three are inverted: the carries for the eight
// cases are tabulated once for a slab, and each query takes its own. Only carries are summed up, 32 for a word;
// the last rest is left out, so a sum is half the distance, rounded down: the filter lets a little too much
// through, and the exact distance is computed for each candidate.
//
// A counter starts at 2^P - limit / 2, so that its top plane is set where the limit is reached. Words are counted
// in chunks; a query whose codes have all reached the limit needs no further chunk.
#pragma once

#include "loops.h"

namespace {

constexpr int64_t SLAB = 64 * LANES;   // codes that are counted together
constexpr int PIECES = BLOCK / LANES;  // planes of a word of a block
constexpr int COUPLES = 32;            // of a word
constexpr int CASES = 8;
constexpr int64_t GROUP = 64;  // queries whose counters are kept at a time

// Rows and columns of bits change places in halves of halves.
INLINE void exchange(Plane& low, Plane& high, int shift, Word mask) {
  const Plane moved = ((low >> shift) ^ high) & all(mask);
  high ^= moved;
  low ^= moved << shift;
}

INLINE void exchange_eight(Plane* v, int shift, const Word* masks) {
  for (int i = 0; i < 4; ++i) exchange(v[i], v[i + 4], shift, masks[0]);
  for (int i = 0; i < 4; ++i) exchange(v[i + (i & 2)], v[i + (i & 2) + 2], shift / 2, masks[1]);
  for (int i = 0; i < 8; i += 2) exchange(v[i], v[i + 1], shift / 4, masks[2]);
}

constexpr Word BY_BYTES[] = {0x00000000FFFFFFFF, 0x0000FFFF0000FFFF, 0x00FF00FF00FF00FF};
constexpr Word BY_BITS[] = {0x0F0F0F0F0F0F0F0F, 0x3333333333333333, 0x5555555555555555};

// Writes the carries of the couples of one word, in all cases. The word of a block lies `stride` words after that
// of the block before; bit i of lane l of a plane is code LANES * i + l. `rest` goes on to the next word.
void tabulate(const Word* word, int64_t stride, Plane& rest, Plane* table) {
  Plane turned[64];
  for (int first = 0; first < 8; ++first) {
    Plane v[8];
    for (int i = 0; i < 8; ++i) {
      const int at = first + 8 * i;
      v[i] = *(const LoosePlane*)(word + at / PIECES * stride + at % PIECES * LANES);
    }
    exchange_eight(v, 32, BY_BYTES);
    for (int i = 0; i < 8; ++i) turned[first + 8 * i] = v[i];
  }
  for (int first = 0; first < 64; first += 8) {
    Plane v[8];
    for (int i = 0; i < 8; ++i) v[i] = turned[first + i];
    exchange_eight(v, 4, BY_BITS);
    for (int i = 0; i < 8; i += 2) {
      for (int c = 0; c < CASES / 2; ++c) {
        Plane a = c & 1 ? ~v[i] : v[i];
        const Plane carry = add_to(a, c & 2 ? ~v[i + 1] : v[i + 1], rest);
        table[c] = carry;
        table[CASES - 1 - c] = ~carry;
      }
      rest ^= v[i] ^ v[i + 1];
      table += CASES;
    }
  }
}

// Which case each couple of a query is, in words of a table.
void find_cases(const Word* query, int64_t n_words, uint8_t* cases) {
  int odd = 0;
  for (int64_t w = 0; w < n_words; ++w) {
    for (int i = 0; i < COUPLES; ++i) {
      const int bits = int(query[w] >> 2 * i & 3);
      *cases++ = uint8_t((bits | odd << 2) * LANES);
      odd ^= (bits ^ bits >> 1) & 1;
    }
  }
}

// Adds the carries of 2^L couples from FIRST on to L planes of a counter; what they carry on.
template <int L, int FIRST = 0>
INLINE Plane add(const Plane* table, const uint8_t* cases, Plane* counter) {
  if constexpr (L == 0) {
    return *(const Plane*)((const Word*)(table + FIRST * CASES) + cases[FIRST]);
  } else {
    const Plane a = add<L - 1, FIRST>(table, cases, counter);
    const Plane b = add<L - 1, FIRST + (1 << (L - 1))>(table, cases, counter);
    return add_to(counter[L - 1], a, b);
  }
}

// Counts a chunk of 2^L couples on P + 1 planes.
template <int L, int P>
INLINE void count(const Plane* table, const uint8_t* cases, Plane* counter) {
  Plane carry = add<L>(table, cases, counter);
  for (int i = L; i <= P; ++i) {
    const Plane sum = counter[i];
    counter[i] = sum ^ carry;
    carry &= sum;
  }
}

// Rows of the slab from `base` on whose bit is not set, in order.
template <class Visit>
INLINE void visit_unset(const Plane& reached, int64_t base, Visit visit) {
  Word some = 0;
  for (int i = 0; i < LANES; ++i) some |= ~reached[i];
  for (; some; some &= some - 1) {
    const int bit = __builtin_ctzll(some);
    for (unsigned lanes = lanes_with(~reached, bit); lanes; lanes &= lanes - 1)
      visit(base + LANES * bit + __builtin_ctz(lanes));
  }
}

template <int N>
struct Number {
  static constexpr int value = N;
};

// The slabs of some codes, counted for groups of queries. 2^L couples are a chunk, and 2^P is above half of any
// distance.
template <int L, int P>
class Counting {
 public:
  Counting(const Codes& codes, const Queries& queries)
      : codes_(codes),
        n_chunks_(codes.n_words * COUPLES >> L),
        n_couples_(COUPLES * codes.n_words),
        end_((codes.last + BLOCK - 1) / BLOCK * BLOCK),
        cases_(queries.n * n_couples_),
        padded_(SLAB * codes.n_words),
        starts_((n_couples_ + 2) * HEIGHT),
        tables_(n_chunks_ * SIZE),
        counters_(GROUP * HEIGHT),
        tops_(GROUP) {
    for (int64_t q = 0; q < queries.n; ++q)
      find_cases(queries.words + q * codes.n_words, codes.n_words, cases_ + q * n_couples_);
    for (int64_t half = 0; half < n_couples_ + 2; ++half)
      for (int p = 0; p < HEIGHT; ++p) starts_[half * HEIGHT + p] = -(((Word(1) << P) - half) >> p & 1);
  }

  // Makes the tables of the slab from row `base` on.
  void turn(int64_t base) {
    const int64_t n_words = codes_.n_words;
    const Word* slab = codes_.blocks + base * n_words;
    if (base + SLAB > end_) {
      std::memcpy(padded_ + 0, slab, (end_ - base) * n_words * sizeof(Word));
      slab = padded_ + 0;
    } else {
      for (int64_t i = 0; i < SLAB * n_words; i += 8) __builtin_prefetch(slab + SLAB * n_words + i);
    }
    Plane rest = {};
    for (int64_t w = 0; w < n_words; ++w)
      tabulate(slab + w * BLOCK, n_words * BLOCK, rest, tables_ + w * COUPLES * CASES);
  }

  // Calls visit(query, row), in order, for the rows of the slab that may be closer than the limit of one of `n`
  // queries from `first` on; rows beyond the last may be among them.
  template <class Visit>
  void find(int64_t base, int64_t first, int64_t n, const int64_t* limits, Visit visit) {
    int64_t left[GROUP + 1], n_left = 0;
    for (int64_t i = 0; i < n; ++i) {
      Plane counter[HEIGHT];
      const Word* start = starts_ + (limits[first + i] + 1) / 2 * HEIGHT;
      for (int p = 0; p < HEIGHT; ++p) counter[p] = all(start[p]);
      count<L, P>(tables_ + 0, cases_ + (first + i) * n_couples_, counter);
      if (n_chunks_ > 1)
        for (int p = 0; p < P; ++p) counters_[i * HEIGHT + p] = counter[p];
      tops_[i] = counter[P];
      left[n_left] = i;
      n_left += any(~counter[P]);
    }
    for (int64_t chunk = 1; chunk < n_chunks_; ++chunk) {
      int64_t still = 0;
      for (int64_t j = 0; j < n_left; ++j) {
        const int64_t i = left[j];
        Plane counter[HEIGHT];
        for (int p = 0; p < P; ++p) counter[p] = counters_[i * HEIGHT + p];
        counter[P] = tops_[i];
        count<L, P>(tables_ + chunk * SIZE, cases_ + (first + i) * n_couples_ + (chunk << L), counter);
        for (int p = 0; p < P; ++p) counters_[i * HEIGHT + p] = counter[p];
        tops_[i] = counter[P];
        left[still] = i;
        still += any(~counter[P]);
      }
      n_left = still;
    }
    for (int64_t j = 0; j < n_left; ++j)
      visit_unset(tops_[left[j]], base, [&](int64_t row) { visit(first + left[j], row); });
  }

 private:
  static constexpr int HEIGHT = P + 1;
  static constexpr int64_t SIZE = int64_t(CASES) << L;

  const Codes& codes_;
  const int64_t n_chunks_, n_couples_, end_;
  Array<uint8_t> cases_;
  Array<Word> padded_, starts_;
  Array<Plane> tables_, counters_, tops_;
};

// Calls use(counting) with the counting that fits the length of the codes.
template <int L, class Use>
INLINE void with_chunks(const Codes& codes, const Queries& queries, Use use) {
  const int64_t half = COUPLES * codes.n_words;  // 2^P must be above it
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

INLINE bool counts(const Codes& codes, int64_t row) {
  return row < codes.last && (!codes.kept || codes.kept[row >> 3] >> (row & 7) & 1);
}

}  // namespace
