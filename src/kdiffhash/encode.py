"""From rows to features, projections and codes, tile by tile.

A tile of rows is converted to float32 and preprocessed, mapped to features, multiplied with the
directions, compared with the thresholds and packed, while it stays in the cache. A row's code does
not depend on the rows around it, nor on the number of threads.

With a Gaussian kernel a projection is a sum of a thousand products, each hundreds of times as large
as itself, and float32 leaves some bits in 100,000 to chance. Where it is that close to its
threshold, the sum is made again in double precision, and where it stays close, so are the features:
codes are those of exact arithmetic, but for less than one bit in a million.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._numba.doubt import settle_rows, settle_sums
from ._numba.product import empty_result, multiply, pack_panels
from ._numba.tiles import pack_above
from .codes import Codes, n_bytes
from .kernels import FeatureMap, GaussianMap, Rows
from .moments import to_fixed_point
from .parallel import run_tiles
from .preprocess import Preprocess, prepare_rows

# What errors hardly ever exceed where they matter, over the length of the direction, as measured on
# models of SIFT. Bits with larger ones are those of smooth directions, which no error turns.
_SUM_ERROR = 5e-8  # of a sum in float32, over the root of the number of features
_FEATURE_ERROR = 1.3e-7  # of an exact sum of float32 features


def compute_features(
    X: NDArray[Any], preprocess: Preprocess, features: FeatureMap, n_jobs: int | None = None
) -> Rows:
    """Features of all rows, shape (n, features.width)."""
    out = np.empty((len(X), features.width), np.float32)
    _store_features(X, preprocess, features, n_jobs, out, lambda values: values)
    return out


def compute_moment_features(
    X: NDArray[Any], preprocess: Preprocess, features: FeatureMap, n_jobs: int | None = None
) -> Rows | NDArray[np.int16]:
    """Features as `PairMoments.of` likes them best: in fixed point where they lie in [0, 1]."""
    if not features.in_unit_interval:
        return compute_features(X, preprocess, features, n_jobs)
    out = np.empty((len(X), features.width), np.int16)
    _store_features(X, preprocess, features, n_jobs, out, to_fixed_point)
    return out


def _store_features(
    X: NDArray[Any],
    preprocess: Preprocess,
    features: FeatureMap,
    n_jobs: int | None,
    out: NDArray[Any],
    convert: Callable[[Rows], NDArray[Any]],
) -> None:
    def store(start: int, stop: int, values: Rows) -> None:
        out[start:stop] = convert(values[: stop - start, : features.width])

    _for_feature_tiles(X, preprocess, features, n_jobs, lambda: store)


@dataclass(frozen=True)
class Encoder:
    """A learned hash in the form that is quick to apply.

    Parameters
    ----------
    preprocess : None, "unit" or "hellinger"
    features : FeatureMap
    directions : float32 array of shape (n_bits, features.width)
    thresholds : float32 array of shape (n_bits,)
        Bit i of a row is 1 where ``directions[i] @ features(row) > thresholds[i]``.
    """

    preprocess: Preprocess
    features: FeatureMap
    directions: NDArray[np.float32]
    thresholds: NDArray[np.float32]

    def raw_projections(self, X: NDArray[Any], n_jobs: int | None = None) -> Rows:
        """``features(X) @ directions.T``, the values that thresholds are compared with."""
        out = np.empty((len(X), len(self.directions)), np.float32)

        def store(start: int, stop: int, values: Rows) -> None:
            out[start:stop] = values[: stop - start]

        self._for_projection_tiles(X, n_jobs, store)
        return out

    def raw_columns(self, X: NDArray[Any], n_jobs: int | None = None) -> Rows:
        """The same for thresholds that are not known yet: one bit a row, shape (n_bits, n)."""
        out = np.empty((len(self.directions), len(X)), np.float32)

        def store(start: int, stop: int, values: Rows) -> None:
            out[:, start:stop] = values[: stop - start].T

        self._for_projection_tiles(X, n_jobs, store, settled=False)
        return out

    def encode(self, X: NDArray[Any], n_jobs: int | None = None) -> Codes:
        """Packed codes of all rows, shape (n, ceil(n_bits / 8))."""
        out = np.empty((len(X), n_bytes(len(self.thresholds))), np.uint8)

        def store(start: int, stop: int, values: Rows) -> None:
            pack_above(values, self.thresholds, out[start:stop])

        self._for_projection_tiles(X, n_jobs, store)
        return out

    def _for_projection_tiles(
        self,
        X: NDArray[Any],
        n_jobs: int | None,
        store: Callable[[int, int, Rows], None],
        settled: bool = True,
    ) -> None:
        """Hand the projections of each tile to `store`, in an array of at least that many rows."""
        panels = pack_panels(self.directions)
        settle = self._make_settle(X) if settled else None

        def make_consumer() -> Callable[[int, int, Rows], None]:
            projections = empty_result(self.features.tile, panels)

            def consume(start: int, stop: int, values: Rows) -> None:
                multiply(values, panels, stop - start, projections)
                wanted = projections[:, : len(self.directions)]
                if settle is not None:
                    settle(start, stop, wanted, values)
                store(start, stop, wanted)

            return consume

        _for_feature_tiles(X, self.preprocess, self.features, n_jobs, make_consumer)

    def _make_settle(self, X: NDArray[Any]) -> Callable[[int, int, Rows, Rows], None] | None:
        """A function that makes projections of a tile better where rounding could turn a bit."""
        if not isinstance(self.features, GaussianMap):
            return None
        lengths = np.sqrt(np.einsum("ij,ij->i", self.directions, self.directions))
        very_near = np.float32(_FEATURE_ERROR) * lengths
        near = very_near + np.float32(_SUM_ERROR * np.sqrt(self.features.width)) * lengths
        learned = self.directions, self.thresholds
        shift, in_double = self.features.shift, cache(self.features.in_double)

        def settle(start: int, stop: int, projections: Rows, values: Rows) -> None:
            doubtful = np.empty(stop - start, np.bool_)
            if not settle_sums(projections, values, *learned, near, very_near, doubtful):
                return
            places = np.flatnonzero(doubtful)
            rows = np.empty((len(places), X.shape[1]), np.float32)
            prepare_rows(X[start:stop][places], rows, self.preprocess, shift)
            settle_rows(projections, places, in_double()(rows), *learned, very_near)

        return settle


def _for_feature_tiles(
    X: NDArray[Any],
    preprocess: Preprocess,
    features: FeatureMap,
    n_jobs: int | None,
    make_consumer: Callable[[], Callable[[int, int, Rows], None]],
) -> None:
    """Hand the features of each tile to a consumer, one consumer a thread."""
    if X.shape[1] != features.input_width:
        raise ValueError(f"rows have {X.shape[1]} values, {features.input_width} are wanted")
    shift, start_thread = features.shift, features.make_worker()

    def make_worker() -> Callable[[int, int], None]:
        rows = np.zeros((features.tile, X.shape[1]), np.float32)
        to_features, consume = start_thread(), make_consumer()

        def work(start: int, stop: int) -> None:
            prepare_rows(X[start:stop], rows[: stop - start], preprocess, shift, start)
            consume(start, stop, to_features(rows, stop - start))

        return work

    run_tiles(make_worker, len(X), features.tile, n_jobs)
