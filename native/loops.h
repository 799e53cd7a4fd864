// The functions that the module calls, compiled once for each instruction set. The module has checked all shapes.
#pragma once

#include "simd.h"

// ---- search -------------------------------------------------------------------------------------

struct Codes {
  const uint64_t* blocks;  // [block of 8 codes][word][code], zeros beyond the last code
  int64_t n_words;
  // One bit per row, lowest bit first; null if all rows are kept. Kept rows are the ones to search: they have not been
  // removed and, in a search among allowed ids, are allowed.
  const uint8_t* kept;
  int64_t start, stop;  // the rows to scan, without row `stop`; `start` is a multiple of 8
};

struct Queries {
  const uint64_t* words;  // [query][word]
  int64_t n;
};

struct Position {  // where to resume a range search that stopped because its buffers were full
  int64_t row, query;
};

struct Hits {  // results of a range search
  int64_t* queries;
  int64_t* rows;
  int32_t* distances;
  int64_t capacity, size;
};

enum class Kernel { lanes, slices };

// Rows that are grouped by cell. The position of a row is its rank among the ids; in a cell, positions ascend. Their
// lower 16 bits are stored by row. The upper bits of a cell's positions are a string of ones and zeros: the one of its
// row number i is bit i + (position >> 16).
struct Cells {
  int64_t n, n_rows;
  const int64_t* starts;  // first row of each cell, and the number of rows; checked where they are used
  const uint16_t* low;    // [row]
  const uint64_t* high;   // the bits of cell c begin at bit starts[c] + c * n_high
  int64_t n_high;         // number of values of the upper bits
};

// Means of codes, by bit: the majority bit, and a weight from 0 to 3. The score of a centre is its bias plus, shifted,
// the weights of the bits in which a query differs from the majority. Unused centres have no weights and the bias
// 65535.
struct Centres {
  const uint64_t* planes;  // [block of 8 centres][word][majority, weight & 1, weight & 2][centre]
  const uint16_t* bias;
  int64_t n;  // a multiple of 8
  int shift;
};

struct Probe {  // what is searched: the nearest cells among those in the nearest groups of cells
  Centres groups, cells;
  const int64_t* firsts;  // first cell of each group, and the number of cells; multiples of 8
  int64_t n_groups, n_cells;
};

struct Tables {  // lookup tables of multi-index hashing, one for each substring of a code
  int64_t n_substrings;
  const int64_t *begins, *widths;  // first bit and number of bits of each substring
  const int64_t* firsts;           // where the table of each substring begins in `starts`
  const uint32_t* starts;          // where the rows of each value begin in `rows`
  const uint32_t* rows;            // [substring][entry]
  int64_t n_rows;
};

struct Flips {  // bits to flip in each substring of a query
  const uint32_t* masks;
  const int64_t *firsts, *counts;  // the masks of each substring
  const int64_t* radii;            // the most bits that are flipped in each substring
};

// ---- learning -----------------------------------------------------------------------------------

struct Directions {
  const float* directions;  // [bit][feature]
  const float* thresholds;
  int64_t n_bits;
};

struct Members {  // row numbers of both members of pairs
  const int32_t *left, *right;
  int64_t n;
};

struct Threshold {
  int64_t rank;                  // the threshold lies between the values of this rank and the next
  int64_t positives, negatives;  // pairs that it separates
};

constexpr int64_t BLOCK = 8;          // codes per block
constexpr int64_t GRAM_BLOCK = 1024;  // pairs that are added to a Gram matrix at a time
constexpr int GRAM_PANEL = 16;        // columns per panel of a Gram matrix

namespace {
constexpr int64_t PANEL = 2 * FLOATS;  // columns per panel of a product
}

// Every function of the loops: return type, name and parameters.
#define FOR_ALL_LOOPS(LOOP)                                                                                            \
  LOOP(void, nearest,                                                                                                  \
       (const Codes&, const Queries&, int64_t k, Kernel, int64_t* bounds, int32_t* distances, int64_t* rows,           \
        int64_t* sizes))                                                                                               \
  LOOP(void, nearest_by_position,                                                                                      \
       (const Codes&, const Cells&, const Queries&, int64_t k, Kernel, int64_t* bounds, int32_t* distances,            \
        int64_t* positions, int64_t* sizes))                                                                           \
  LOOP(void, nearest_in_cells,                                                                                         \
       (const Codes&, const Cells&, const Probe&, const Queries&, int64_t k, int32_t* distances, int64_t* positions,   \
        int64_t* sizes, int64_t* compared))                                                                            \
  LOOP(void, positions_of, (const Cells&, const int64_t* rows, int64_t n, int64_t* positions))                         \
  LOOP(void, order_rows, (const Cells&, int64_t n, uint32_t* cells_to_rows, int64_t* next, uint16_t*, uint64_t*))      \
  LOOP(void, assign_cells, (const Queries&, int64_t n_words, const Probe&, uint32_t* cells))                           \
  LOOP(void, score_centres, (const Centres&, const Queries&, int64_t n_words, uint16_t* scores))                       \
  LOOP(void, add_bits, (const Queries&, int64_t n_words, const uint32_t* cells, int32_t* sums))                        \
  LOOP(void, scatter, (const Queries&, int64_t n_words, const uint32_t* rows, int64_t start, int64_t stop, uint64_t*)) \
  LOOP(Position, range_search, (const Codes&, const Queries&, Kernel, const int64_t* bounds, Position, Hits&))         \
  LOOP(void, merge_nearest,                                                                                            \
       (int64_t n, int64_t k, const int32_t* const distances[2], const int64_t* const ids[2],                          \
        const int64_t* const sizes[2], int32_t*, int64_t*, int64_t*))                                                  \
  LOOP(void, match,                                                                                                    \
       (const Codes&, const Queries&, bool exact_second, int64_t* bounds, const int64_t* bound_of, int64_t* best,      \
        int64_t* second, int64_t* rows))                                                                               \
  LOOP(void, find_rivals, (const Codes&, const Queries&, const int64_t* excluded, int64_t* bounds))                    \
  LOOP(void, substring_values, (const Codes&, const int64_t* rows, int64_t n, int64_t begin, int64_t width, int64_t*)) \
  LOOP(void, build_table, (const Codes&, int64_t begin, int64_t width, uint32_t* starts, uint32_t* rows))              \
  LOOP(int64_t, look_up,                                                                                               \
       (const Codes&, const Tables&, const Flips&, int64_t radius, const Queries&, const int64_t* after,               \
        int64_t first, Hits&))                                                                                         \
  LOOP(void, nearest_weighted,                                                                                         \
       (const Codes&, const Cells*, const float* projections, int64_t n, int64_t n_bits, int64_t k,                    \
        const float* bounds, float* distances, int64_t* rows, int64_t* sizes))                                         \
  LOOP(void, weighted_distances,                                                                                       \
       (const uint64_t* words, const float* projections, int64_t n, int64_t m, int64_t n_words, int64_t n_bits,        \
        float* out))                                                                                                   \
  LOOP(void, decide,                                                                                                   \
       (const uint32_t* a, const uint32_t* b, const int64_t* left, const int64_t* right, int64_t n, int64_t n_words,   \
        const int32_t* accept, const int32_t* reject, bool*, uint16_t*))                                               \
  LOOP(void, multiply,                                                                                                 \
       (const float* a, int64_t a_stride, int64_t n_rows, const float* panels, int64_t n_panels, int64_t depth,        \
        float* out))                                                                                                   \
  LOOP(void, squared_norms, (const float* rows, int64_t stride, int64_t n_rows, int64_t width, float* out))            \
  LOOP(void, exp2_of_expanded_square,                                                                                  \
       (float*, int64_t stride, int64_t n_rows, int64_t width, const float* row_terms, const float* column_terms))     \
  LOOP(void, pack_above,                                                                                               \
       (const float*, int64_t stride, int64_t n_rows, const float* thresholds, int64_t n_bits, uint8_t* codes))        \
  LOOP(int64_t, recompute_sums,                                                                                        \
       (float* projections, int64_t stride, int64_t n_rows, const float* features, int64_t n_features,                 \
        int64_t features_stride, const Directions&, const float* sum_bound, const float* feature_bound,                \
        bool* ambiguous))                                                                                              \
  LOOP(void, recompute_rows,                                                                                           \
       (float* projections, int64_t stride, const int64_t* rows, int64_t n, const double* features,                    \
        int64_t n_features, const Directions&, const float*))                                                          \
  LOOP(void, gaussians,                                                                                                \
       (const double* rows, int64_t n_rows, const double* basis, int64_t n_basis, int64_t width, double factor,        \
        double* out))                                                                                                  \
  LOOP(void, add_gram,                                                                                                 \
       (const int16_t* features, int64_t width, const int64_t* left, const int64_t* right, int64_t n_pairs, int sign,  \
        int shift, int64_t* out))                                                                                      \
  LOOP(int64_t, rank, (const float* values, int64_t n, int32_t* ranks, float* distinct))                               \
  LOOP(Threshold, best_threshold,                                                                                      \
       (const int32_t* ranks, const float* distinct, int64_t n_distinct, const Members&, const Members&,               \
        double positive_weight, double negative_weight))                                                               \
  LOOP(double, best_weighted_threshold,                                                                                \
       (const int32_t* ranks, int64_t n_distinct, const Members&, const double* weights, int64_t* rank))               \
  LOOP(void, soft_bits,                                                                                                \
       (const float*, int64_t n_rows, int64_t n_bits, const float* thresholds, float factor, float* out))              \
  LOOP(void, mask_same_label, (float* similarity, int64_t n_rows, int64_t n, int64_t first, const int64_t* labels))    \
  LOOP(void, find_largest, (const float*, int64_t n_rows, int64_t n, int32_t* where, float* value))                    \
  LOOP(void, add_partner_similarity,                                                                                   \
       (const float* soft, int64_t n, int64_t n_bits, int64_t low, int64_t high, int64_t first, int64_t n_rows,        \
        float* out))                                                                                                   \
  LOOP(void, add_gradient,                                                                                             \
       (const float* soft, int64_t n, int64_t n_bits, const int32_t* nearest, const float* slopes,                     \
        const int64_t* prefixes, int64_t n_prefixes, int64_t low, int64_t high, float* out))                           \
  LOOP(void, adam_step,                                                                                                \
       (float* values, const float* gradient, float* mean, float* square, int64_t n, float step, float scale))

struct Loops {
  const char* name;
  int panel;                  // columns per panel of a product
  int64_t max_hits_per_step;  // capacity that one step of a range search needs
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
