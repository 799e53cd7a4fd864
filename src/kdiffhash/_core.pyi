"""The compiled core: `native/` documents the loops, `native/module.cpp` checks their arguments."""

import numpy as np
from numpy.typing import NDArray

I16 = NDArray[np.int16]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

level: str
panel: int
max_hits_per_step: int
gram_panel: int

def nearest(
    blocks: U64,
    n_rows: int,
    kept: U8 | None,
    start: int,
    stop: int,
    queries: U64,
    slices: bool,
    bounds: I64,
    distances: I32,
    rows: I64,
    sizes: I64,
    /,
) -> None: ...
def nearest_by_position(
    blocks: U64,
    n_rows: int,
    kept: U8 | None,
    start: int,
    stop: int,
    starts: I64,
    low: U16,
    high: U64,
    queries: U64,
    slices: bool,
    bounds: I64,
    distances: I32,
    positions: I64,
    sizes: I64,
    /,
) -> None: ...
class SearchableCells: ...

def searchable_cells(
    blocks: U64,
    n_rows: int,
    starts: I64,
    low: U16,
    high: U64,
    group_planes: U64,
    group_bias: U16,
    planes: U64,
    bias: U16,
    firsts: I64,
    /,
) -> SearchableCells: ...
def nearest_in_cells(
    cells: SearchableCells,
    kept: U8 | None,
    n_groups: int,
    n_cells: int,
    queries: U64,
    distances: I32,
    positions: I64,
    sizes: I64,
    compared: I64,
    /,
) -> tuple[int, int]: ...
def positions_of(starts: I64, low: U16, high: U64, rows: I64, positions: I64, /) -> None: ...
def order_rows(starts: I64, cells_to_rows: U32, low: U16, high: U64, /) -> None: ...
def score_centres(planes: U64, bias: U16, codes: U64, scores: U16, /) -> None: ...
def assign_cells(
    group_planes: U64,
    group_bias: U16,
    planes: U64,
    bias: U16,
    firsts: I64,
    n_groups: int,
    codes: U64,
    cells: U32,
    /,
) -> None: ...
def add_bits(codes: U64, cells: U32, sums: I32, /) -> None: ...
def scatter(codes: U64, rows: U32, start: int, blocks: U64, /) -> None: ...
def range_search(
    blocks: U64,
    n_rows: int,
    kept: U8 | None,
    stop: int,
    queries: U64,
    slices: bool,
    bounds: I64,
    row: int,
    query: int,
    query_index: I64,
    rows: I64,
    distances: I32,
    /,
) -> tuple[int, int, int]: ...
def merge_nearest(
    a_distances: I32,
    a_ids: I64,
    a_sizes: I64,
    b_distances: I32,
    b_ids: I64,
    b_sizes: I64,
    distances: I32,
    ids: I64,
    sizes: I64,
    /,
) -> None: ...
def match(
    blocks: U64,
    n_rows: int,
    queries: U64,
    exact_second: bool,
    bounds: I64,
    bound_of: I64,
    best: I64,
    second: I64,
    rows: I64,
    /,
) -> None: ...
def find_rivals(
    blocks: U64, n_rows: int, queries: U64, excluded: I64, bounds: I64, /
) -> None: ...
def substring_values(
    blocks: U64, n_words: int, n_rows: int, rows: I64, begin: int, width: int, out: I64, /
) -> None: ...
def build_table(
    blocks: U64, n_words: int, begin: int, width: int, starts: U32, rows: U32, /
) -> None: ...
def look_up(
    blocks: U64,
    kept: U8 | None,
    begins: I64,
    widths: I64,
    firsts: I64,
    starts: U32,
    rows: U32,
    masks: U32,
    mask_firsts: I64,
    mask_counts: I64,
    radii: I64,
    radius: int,
    queries: U64,
    after: I64,
    first: int,
    query_index: I64,
    found_rows: I64,
    distances: I32,
    /,
) -> tuple[int, int]: ...
def nearest_weighted(
    blocks: U64,
    n_rows: int,
    kept: U8 | None,
    start: int,
    stop: int,
    starts: I64 | None,
    low: U16 | None,
    high: U64 | None,
    projections: F32,
    bounds: F32,
    distances: F32,
    rows: I64,
    sizes: I64,
    /,
) -> None: ...
def weighted_distances(words: U64, projections: F32, out: F32, /) -> None: ...
def decide(
    a: U32,
    b: U32,
    left: I64,
    right: I64,
    accept: I32,
    reject: I32,
    similar: Bool,
    words_read: U16,
    /,
) -> None: ...
def multiply(a: F32, panels: F32, n_rows: int, out: F32, /) -> None: ...
def squared_norms(rows: F32, width: int, n_rows: int, out: F32, /) -> None: ...
def exp2_of_expanded_square(
    products: F32, row_terms: F32, column_terms: F32, n_rows: int, /
) -> None: ...
def pack_above(values: F32, thresholds: F32, codes: U8, /) -> None: ...
def recompute_sums(
    projections: F32,
    features: F32,
    directions: F32,
    thresholds: F32,
    sum_bound: F32,
    feature_bound: F32,
    ambiguous: Bool,
    /,
) -> int: ...
def recompute_rows(
    projections: F32,
    rows: I64,
    features: F64,
    directions: F32,
    thresholds: F32,
    feature_bound: F32,
    /,
) -> None: ...
def gaussians(rows: F64, basis: F64, factor: float, out: F64, /) -> None: ...
def add_gram(features: I16, left: I64, right: I64, sign: int, shift: int, out: I64, /) -> None: ...
def rank(values: F32, ranks: I32, distinct: F32, /) -> int: ...
def best_threshold(
    ranks: I32,
    distinct: F32,
    positives: I32,
    negatives: I32,
    positive_weight: float,
    negative_weight: float,
    /,
) -> tuple[int, int, int]: ...
def best_weighted_threshold(
    ranks: I32, n_distinct: int, pairs: I32, weights: F64, /
) -> tuple[int, float]: ...
def soft_bits(projections: F32, thresholds: F32, factor: float, out: F32, /) -> None: ...
def mask_same_label(similarity: F32, first: int, labels: I64, /) -> None: ...
def find_largest(similarity: F32, where: I32, value: F32, /) -> None: ...
def add_partner_similarity(soft: F32, low: int, high: int, first: int, out: F32, /) -> None: ...
def add_gradient(
    soft: F32, nearest: I32, slopes: F32, prefixes: I64, low: int, high: int, out: F32, /
) -> None: ...
def adam_step(
    values: F32, gradient: F32, mean: F32, square: F32, step: float, scale: float, /
) -> None: ...
