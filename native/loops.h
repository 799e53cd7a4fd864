// What the module calls, compiled once for each instruction set. Shapes are checked before.
#pragma once

#include "simd.h"

// ---- search -------------------------------------------------------------------------------------

struct Codes {
  const uint64_t* blocks;  // [block of 8 codes][word][code], zeros beyond the last code
  int64_t n_words;
  const uint8_t* kept;  // a bit for each row that counts, lowest first; null if all do
  int64_t first, last;  // rows to look at; `first` begins a block
};

struct Queries {
  const uint64_t* words;  // [query][word]
  int64_t n;
};

struct Place {  // where a range search goes on when its room is full
  int64_t row, query;
};

struct Hits {  // rows within the limits of queries
  int64_t* queries;
  int64_t* rows;
  int32_t* distances;
  int64_t room, size;
};

enum class Way { lanes, slices };

struct Tables {  // lookup tables of multi-index hashing, one for each part of a code
  int64_t n_parts;
  const int64_t *begins, *widths, *firsts;  // bits of a part; where its table begins in `starts`
  const uint32_t* starts;
  const uint32_t* rows;  // [part][place]
  int64_t n_rows;
};

struct Flips {  // bits to flip in each part
  const uint32_t* values;
  const int64_t *firsts, *counts, *most;
};

// ---- learning -----------------------------------------------------------------------------------

struct Directions {
  const float* directions;  // [bit][feature]
  const float* thresholds;
  int64_t n_bits;
};

struct Members {  // of pairs
  const int32_t *left, *right;
  int64_t n;
};

struct Cut {
  int64_t place, positives, negatives;  // rank below which it lies; pairs that it separates
};

constexpr int64_t BLOCK = 8;          // codes of a block
constexpr int64_t GRAM_BLOCK = 1024;  // pairs of a block of a Gram matrix
constexpr int GRAM_PANEL = 16;        // columns of a panel of a Gram matrix

namespace {
constexpr int64_t PANEL = 2 * FLOATS;  // columns of a panel of a product
}

// Every function of the loops: its result, its name and its arguments.
#define FOR_ALL_LOOPS(LOOP)                                                                                           \
  LOOP(void, nearest,                                                                                                 \
       (const Codes&, const Queries&, int64_t k, Way, int64_t* limits, int32_t* distances, int64_t* rows,             \
        int64_t* sizes))                                                                                              \
  LOOP(Place, within, (const Codes&, const Queries&, Way, const int64_t* limits, Place, Hits&))                       \
  LOOP(void, merge_nearest,                                                                                           \
       (int64_t n, int64_t k, const int32_t* const distances[2], const int64_t* const ids[2],                         \
        const int64_t* const sizes[2], int32_t*, int64_t*, int64_t*))                                                 \
  LOOP(void, match,                                                                                                   \
       (const Codes&, const Queries&, int64_t* limits, const int64_t* limit_of, int64_t* best, int64_t* second,       \
        int64_t* rows))                                                                                               \
  LOOP(void, part_values, (const Codes&, const int64_t* rows, int64_t n, int64_t begin, int64_t width, int64_t*))     \
  LOOP(void, list_rows, (const Codes&, int64_t begin, int64_t width, uint32_t* starts, uint32_t* rows))               \
  LOOP(int64_t, look_up,                                                                                              \
       (const Codes&, const Tables&, const Flips&, int64_t radius, const Queries&, const int64_t* after,              \
        int64_t first, Hits&))                                                                                        \
  LOOP(void, all_distances,                                                                                           \
       (const uint64_t* a, int64_t n, const uint64_t* columns, int64_t m, int64_t n_words, uint16_t* out))            \
  LOOP(void, weight_differing,                                                                                        \
       (const uint64_t* words, const float* projections, int64_t n, int64_t m, int64_t n_words, int64_t n_bits,       \
        float* out))                                                                                                  \
  LOOP(void, decide,                                                                                                  \
       (const uint32_t* a, const uint32_t* b, const int64_t* left, const int64_t* right, int64_t n, int64_t n_parts,  \
        const int32_t* accept, const int32_t* reject, bool*, uint16_t*))                                              \
  LOOP(void, multiply,                                                                                                \
       (const float* a, int64_t a_stride, int64_t n_rows, const float* panels, int64_t n_panels, int64_t depth,       \
        float* out))                                                                                                  \
  LOOP(void, squared_norms, (const float* rows, int64_t stride, int64_t n_rows, int64_t width, float* out))           \
  LOOP(void, exp2_of_expanded_square,                                                                                 \
       (float*, int64_t stride, int64_t n_rows, int64_t width, const float* row_terms, const float* column_terms))    \
  LOOP(void, pack_above,                                                                                              \
       (const float*, int64_t stride, int64_t n_rows, const float* thresholds, int64_t n_bits, uint8_t* codes))       \
  LOOP(int64_t, recompute_sums,                                                                                       \
       (float* projections, int64_t stride, int64_t n_rows, const float* features, int64_t n_features,                \
        int64_t features_stride, const Directions&, const float* near, const float* very_near, bool* ambiguous))      \
  LOOP(void, recompute_rows,                                                                                          \
       (float* projections, int64_t stride, const int64_t* places, int64_t n, const double* features,                 \
        int64_t n_features, const Directions&, const float*))                                                         \
  LOOP(void, gaussians,                                                                                               \
       (const double* rows, int64_t n_rows, const double* basis, int64_t n_basis, int64_t width, double factor,       \
        double* out))                                                                                                 \
  LOOP(void, add_gram,                                                                                                \
       (const int16_t* features, int64_t width, const int64_t* left, const int64_t* right, int64_t n_pairs, int sign, \
        int shift, int64_t* out))                                                                                     \
  LOOP(int64_t, rank, (const float* values, int64_t n, int32_t* ranks, float* distinct))                              \
  LOOP(Cut, best_cut,                                                                                                 \
       (const int32_t* ranks, const float* distinct, int64_t n_distinct, const Members&, const Members&,              \
        double positive_weight, double negative_weight))                                                              \
  LOOP(double, best_weighted_cut,                                                                                     \
       (const int32_t* ranks, int64_t n_distinct, const Members&, const double* weights, int64_t* cut))               \
  LOOP(void, soft_bits,                                                                                               \
       (const float*, int64_t n_rows, int64_t n_bits, const float* thresholds, float factor, float* out))             \
  LOOP(void, hide_same, (float* similarity, int64_t n_rows, int64_t n, int64_t first, const int64_t* labels))         \
  LOOP(void, find_largest, (const float*, int64_t n_rows, int64_t n, int32_t* where, float* value))                   \
  LOOP(void, add_partners,                                                                                            \
       (const float* soft, int64_t n, int64_t n_bits, int64_t low, int64_t high, int64_t first, int64_t n_rows,       \
        float* out))                                                                                                  \
  LOOP(void, add_gradient,                                                                                            \
       (const float* soft, int64_t n, int64_t n_bits, const int32_t* nearest, const float* slopes,                    \
        const int64_t* prefixes, int64_t n_prefixes, int64_t low, int64_t high, float* out))                          \
  LOOP(void, adam_step,                                                                                               \
       (float* values, const float* gradient, float* mean, float* square, int64_t n, float size, float scale))

struct Loops {
  const char* name;
  int panel;       // columns of a panel of a product
  int64_t margin;  // hits that one step of a range search can have, at most
#define MEMBER(result, name, arguments) result(*name) arguments;
  FOR_ALL_LOOPS(MEMBER)
#undef MEMBER
};

#if defined(LEVEL)
namespace LEVEL {
#define DECLARE(result, name, arguments) result name arguments;
FOR_ALL_LOOPS(DECLARE)
#undef DECLARE
extern const Loops loops;
}  // namespace LEVEL
#endif
