// Float queries: the k nearest codes of a query that is given by its projections, and the distances of chosen codes.
//
// A code is compared with the signs of the projections, and each bit that differs counts as much as the absolute value
// of its projection, its weight. Weights are summed in double precision, from the first bit to the last, and the sum is
// rounded once, so a distance does not depend on the instruction set. Unless the weights of a query differ by many
// orders of magnitude, all such sums are exact, so that their order does not matter: then the sums of the four weights
// of a nibble are tabulated.
//
// The scan adds small integers instead. The 16 possible sums of the four weights of a nibble are scaled, rounded down
// and tabulated as bytes. Codes are transposed so that a vector holds the same nibble of many codes, and one shuffle
// looks up all of its sums. Their total is a lower bound of the scaled distance. Only codes whose total does not exceed
// the bound of the query are candidates, and their exact distance is computed.

#include "cells.h"

namespace {

constexpr int NIBBLES = 16;                // of a word, and values of a nibble
constexpr int GROUP = 4;                   // lookups that are added as bytes
constexpr double MAX_ENTRY = 255 / GROUP;  // so that such a sum fits into a byte
constexpr double MAX_TOTAL = UINT16_MAX;   // and all of them into 16 bits
constexpr int STRIPS = 2;                  // vectors that a table is used for while it is in a register
constexpr int64_t STRIP = 8 * LANES;       // codes of a vector, one per byte
constexpr int64_t BATCH = STRIPS * STRIP;  // codes that are compared together
constexpr double MARGIN = 1 + 1.0 / (1 << 20), SMALLEST = 1e-44;  // more than float rounding can change a distance

// The projections of the queries, prepared for comparisons.
class FloatQueries {
 public:
  FloatQueries(const float* projections, int64_t n, int64_t n_bits, int64_t n_words)
      : n_words_(n_words),
        signs_(n * n_words),
        weights_(n * n_words * 64),
        is_exact_(n),
        sums_(n * n_words * NIBBLES * 16) {
    // Bit i of a code is in byte i / 8, most significant bit first, as numpy.packbits writes it.
    for (int64_t q = 0; q < n; ++q) {
      for (int64_t i = 0; i < n_bits; ++i) {
        const float value = projections[q * n_bits + i];
        ((uint8_t*)(signs_ + q * n_words))[i / 8] |= uint8_t((value > 0) << (7 - i % 8));
        weights_[q * n_words * 64 + i] = __builtin_fabsf(value);
      }
      is_exact_[q] = sums_are_exact(q);
      if (is_exact_[q]) tabulate_sums(q);
    }
  }

  // The distance of a code, whose words are `stride` apart. Spare bits have no weight.
  float distance(int64_t q, const Word* code, int64_t stride) const {
    if (is_exact_[q]) {
      double totals[4] = {};
      const double* sums = sums_ + q * n_words_ * NIBBLES * 16;
      for (int64_t w = 0; w < n_words_; ++w) {
        const Word differing = code[w * stride] ^ signs_[q * n_words_ + w];
        for (int i = 0; i < NIBBLES; ++i, sums += 16) totals[i % 4] += sums[differing >> 4 * i & 15];
      }
      return float((totals[0] + totals[1]) + (totals[2] + totals[3]));
    }
    double total = 0;
    for (int64_t w = 0; w < n_words_; ++w) {
      // With the bytes reversed, the first bit is the highest.
      Word differing = __builtin_bswap64(code[w * stride] ^ signs_[q * n_words_ + w]);
      while (differing) {
        const int bit = __builtin_clzll(differing);
        total += double(weights_[(q * n_words_ + w) * 64 + bit]);
        differing ^= Word(1) << (63 - bit);
      }
    }
    return float(total);
  }

  // Writes the tables of a query, [nibble][value of the nibble], and returns the scale of their entries. The nibbles of
  // a byte are the lower one, which has the last four bits, and the upper one.
  double tabulate(int64_t q, uint8_t* tables) const {
    const int64_t n_nibbles = n_words_ * NIBBLES;
    const float* weights = weights_ + q * n_words_ * 64;
    double largest = 0, total = 0;
    for (int64_t nibble = 0; nibble < n_nibbles; ++nibble) {
      const double sum = sum_of(weights + (nibble ^ 1) * 4, 15);
      largest = max(largest, sum);
      total += sum;
    }
    const double scale = total > 0 ? min(MAX_ENTRY / largest, MAX_TOTAL / total) : 1;
    for (int64_t nibble = 0; nibble < n_nibbles; ++nibble) {
      const int byte = ((const uint8_t*)(signs_ + q * n_words_))[nibble / 2];
      const int sign = nibble % 2 ? byte >> 4 : byte & 15;
      for (int value = 0; value < 16; ++value)
        *tables++ = uint8_t(min(sum_of(weights + (nibble ^ 1) * 4, value ^ sign) * scale, MAX_ENTRY));
    }
    return scale;
  }

 private:
  // Whether all sums of weights are exact in double precision: every weight is a multiple of the last place of the
  // smallest one, and the total is less than 2^52 of these.
  bool sums_are_exact(int64_t q) const {
    double total = 0, smallest = 0;
    for (int64_t i = q * n_words_ * 64; i < (q + 1) * n_words_ * 64; ++i) {
      const double weight = weights_[i];
      total += weight;
      if (weight > 0 && (weight < smallest || smallest == 0)) smallest = weight;
    }
    // The last place of a float is at least 2^-24 of it, and at least 2^-149.
    return total < 0x1p52 * max(smallest * 0x1p-24, 0x1p-149);
  }

  // Writes [nibble][value of the nibble], the nibbles in the order of `tabulate`.
  void tabulate_sums(int64_t q) {
    double* sums = sums_ + q * n_words_ * NIBBLES * 16;
    const float* weights = weights_ + q * n_words_ * 64;
    for (int64_t nibble = 0; nibble < n_words_ * NIBBLES; ++nibble, sums += 16)
      for (int value = 1; value < 16; ++value)
        sums[value] = sums[value & (value - 1)] + double(weights[(nibble ^ 1) * 4 + 3 - __builtin_ctz(value)]);
  }

  // The sum of those of four weights whose bit is set; the first has the highest bit.
  static double sum_of(const float* weights, int bits) {
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += bits >> (3 - i) & 1 ? double(weights[i]) : 0;
    return sum;
  }

  const int64_t n_words_;
  Array<Word> signs_;     // [query][word]: 1 for positive projections
  Array<float> weights_;  // [query][bit]
  Array<bool> is_exact_;
  Array<double> sums_;  // [query][nibble][value of the nibble]
};

// The k nearest rows of each query so far, in a heap whose root is the farthest. At equal distance, a higher row counts
// as farther.
class NearestHeap {
 public:
  NearestHeap(int64_t n_queries, int64_t k, const float* bounds)
      : k_(k), bounds_(n_queries), sizes_(n_queries), hits_(n_queries * k) {
    for (int64_t q = 0; q < n_queries; ++q) bounds_[q] = bounds[q];
  }

  // No row that is farther than this is accepted.
  float bound(int64_t q) const { return bounds_[q]; }

  // Returns whether the row is accepted and the bound may be lower now.
  bool offer(int64_t q, float distance, int64_t row) {
    const Hit hit = {distance, row};
    Hit* hits = hits_ + q * k_;
    if (sizes_[q] < k_) {
      if (!(distance < bounds_[q])) return false;
      int64_t at = sizes_[q]++;
      for (; at > 0 && is_nearer(hits[(at - 1) / 2], hit); at = (at - 1) / 2) hits[at] = hits[(at - 1) / 2];
      hits[at] = hit;
      if (sizes_[q] < k_) return false;
    } else {
      if (!is_nearer(hit, hits[0])) return false;
      replace_root(hits, k_, hit);
    }
    bounds_[q] = hits[0].distance;
    return true;
  }

  // Writes the rows, nearest first, and returns their number.
  int64_t write(int64_t q, float* distances, int64_t* rows) {
    Hit* hits = hits_ + q * k_;
    for (int64_t last = sizes_[q] - 1; last >= 0; --last) {
      distances[last] = hits[0].distance, rows[last] = hits[0].row;
      replace_root(hits, last, hits[last]);
    }
    return sizes_[q];
  }

 private:
  struct Hit {
    float distance;
    int64_t row;
  };

  static bool is_nearer(const Hit& a, const Hit& b) {
    return a.distance < b.distance || (a.distance == b.distance && a.row < b.row);
  }

  static void replace_root(Hit* hits, int64_t size, const Hit hit) {
    int64_t at = 0;
    for (int64_t child = 1; child < size; child = 2 * at + 1) {
      if (child + 1 < size && is_nearer(hits[child], hits[child + 1])) ++child;
      if (!is_nearer(hit, hits[child])) break;
      hits[at] = hits[child];
      at = child;
    }
    hits[at] = hit;
  }

  const int64_t k_;
  Array<float> bounds_;
  Array<int64_t> sizes_;
  Array<Hit> hits_;
};

// Transposes one word of a strip of codes: nibbles[STRIPS * i] has nibble i of all codes. Byte p of a vector belongs to
// code p % 8 * LANES + p / 8. `stride` is the distance, in words, between consecutive blocks.
void load_nibbles(const Word* word, int64_t stride, Plane* nibbles) {
  Plane v[8];
  for (int i = 0; i < 8; ++i) {
    const Word* at = word + i / VECTORS * stride + i % VECTORS * LANES;
    v[i] = *(const UnalignedPlane*)at;
    __builtin_prefetch(at + BATCH / BLOCK * stride);
  }
  exchange_eight(v, 32, BYTE_MASKS);
  const Plane low = broadcast(Word(0x0F0F0F0F0F0F0F0F));
  for (int i = 0; i < 8; ++i) {
    nibbles[STRIPS * 2 * i] = v[i] & low;
    nibbles[STRIPS * (2 * i + 1)] = v[i] >> 4 & low;
  }
}

// The totals of a batch of codes. Lanes have 16 bits: those of `both` are sums of a code with an even number plus 256
// times those of the next code, modulo 2^16; those of `odd` are sums of the latter.
struct Totals {
  Shorts both[STRIPS] = {}, odd[STRIPS] = {};

  INLINE void add_word(const Plane* nibbles, const uint8_t* tables) {
    for (int first = 0; first < NIBBLES; first += GROUP) {
      Bytes table[GROUP];
      for (int i = 0; i < GROUP; ++i) table[i] = repeat_16(tables + (first + i) * 16);
#pragma GCC unroll 2
      for (int s = 0; s < STRIPS; ++s) {
        Bytes sums = shuffle(table[0], (Bytes)nibbles[STRIPS * first + s]);
        for (int i = 1; i < GROUP; ++i) sums += shuffle(table[i], (Bytes)nibbles[STRIPS * (first + i) + s]);
        both[s] += (Shorts)sums;
        odd[s] += (Shorts)sums >> 8;
      }
    }
  }

  // Whether each code, one per byte, has a total of at most `limit`: 255 or 0.
  INLINE Bytes is_below(int strip, uint16_t limit) const {
    const Shorts limits = limit - Shorts{}, even = both[strip] - (odd[strip] << 8);
    const Shorts even_below = (Shorts)(even <= limits), odd_below = (Shorts)(odd[strip] <= limits);
    return (Bytes)((even_below & 255) | (odd_below << 8));
  }

  INLINE bool any_below(uint16_t limit) const {
    Bytes below = {};
    for (int s = 0; s < STRIPS; ++s) below |= is_below(s, limit);
    return any((Plane)below);
  }
};

// The largest total that a row within the bound can have.
uint16_t limit_of(float bound, double scale) {
  return uint16_t(min((double(bound) * MARGIN + SMALLEST) * scale, MAX_TOTAL));
}

}  // namespace

namespace LEVEL {

void nearest_weighted(const Codes& codes, const Cells* cells, const float* projections, int64_t n, int64_t n_bits,
                      int64_t k, const float* bounds, float* distances, int64_t* rows, int64_t* sizes) {
  const int64_t n_words = codes.n_words, end = (codes.stop + BLOCK - 1) / BLOCK * BLOCK;
  const FloatQueries queries(projections, n, n_bits, n_words);
  NearestHeap results(n, k, bounds);
  Array<uint8_t> tables(n * n_words * NIBBLES * 16);
  Array<Plane> nibbles(n_words * NIBBLES * STRIPS);
  Array<Word> padded(BATCH * n_words);
  Array<double> scales(n);
  Array<uint16_t> limits(n);
  for (int64_t q = 0; q < n; ++q) {
    scales[q] = queries.tabulate(q, tables + q * n_words * NIBBLES * 16);
    limits[q] = limit_of(results.bound(q), scales[q]);
  }
  for (int64_t base = codes.start; base < codes.stop; base += BATCH) {
    const Word* batch = codes.blocks + base * n_words;
    if (base + BATCH > end) {
      std::memcpy(padded.data(), batch, (end - base) * n_words * sizeof(Word));
      batch = padded.data();
    }
    for (int s = 0; s < STRIPS; ++s)
      for (int64_t w = 0; w < n_words; ++w)
        load_nibbles(batch + s * STRIP * n_words + w * BLOCK, n_words * BLOCK, nibbles + w * NIBBLES * STRIPS + s);
    for (int64_t q = 0; q < n; ++q) {
      Totals totals;
      const uint8_t* own_tables = tables + q * n_words * NIBBLES * 16;
      bool is_candidate = true;
      for (int64_t w = 0; w < n_words && is_candidate; ++w) {
        totals.add_word(nibbles + w * NIBBLES * STRIPS, own_tables + w * NIBBLES * 16);
        if (w % 2 || w + 1 == n_words) is_candidate = totals.any_below(limits[q]);
      }
      if (!is_candidate) continue;
      for (int s = 0; s < STRIPS; ++s) {
        const Bytes below = totals.is_below(s, limits[q]);
        if (!any((Plane)below)) continue;
        for (int64_t i = 0; i < STRIP; ++i) {
          const int64_t row = base + s * STRIP + i;
          if (!below[i % LANES * 8 + i / LANES] || !is_kept(codes, row)) continue;
          const Word* code = codes.blocks + row / BLOCK * n_words * BLOCK + row % BLOCK;
          const float d = queries.distance(q, code, BLOCK);
          if (d <= results.bound(q) && results.offer(q, d, cells ? position_of(*cells, row) : row))
            limits[q] = limit_of(results.bound(q), scales[q]);
        }
      }
    }
  }
  for (int64_t q = 0; q < n; ++q) sizes[q] = results.write(q, distances + q * k, rows + q * k);
}

void weighted_distances(const uint64_t* words, const float* projections, int64_t n, int64_t m, int64_t n_words,
                        int64_t n_bits, float* out) {
  const FloatQueries queries(projections, n, n_bits, n_words);
  for (int64_t q = 0; q < n; ++q)
    for (int64_t i = q * m; i < (q + 1) * m; ++i) out[i] = queries.distance(q, words + i * n_words, 1);
}

}  // namespace LEVEL
