"""Computation of features, projections and codes from rows, tile by tile.

A tile of rows is converted to float32, preprocessed, mapped to features, multiplied with the
directions, compared with the thresholds and packed while it stays in the cache. The code of a row
depends neither on the other rows nor on the number of threads.

With a Gaussian kernel, a projection is a sum of about a thousand terms that are hundreds of times
larger than the sum itself, and float32 would leave some bits in 100,000 to rounding. A projection
within its error bound of the threshold is therefore summed again in double precision, and if it is
still too close, its features are recomputed in double precision too. The codes are those of exact
arithmetic, except for less than one bit in a million.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core import pack_above, recompute_rows, recompute_sums
from .._util.files import scratch_array
from .._util.progress import report
from .._util.threads import run_tiles
from ..codes import Codes, n_bytes
from .kernels import FeatureMap, GaussianMap, Rows
from .moments import to_fixed_point
from .preprocess import Preprocess, prepare_rows
from .product import empty_result, multiply, pack_panels

# Error bounds relative to the norm of the direction, measured on models of SIFT. Hardly any larger
# error occurs except for smooth directions, where rounding does not flip bits.
_SUM_ERROR = 5e-8  # of a sum in float32, per square root of the number of features
_FEATURE_ERROR = 1.3e-7  # of an exact sum of float32 features


class _Worker:
    """Computes features of tiles of rows, with the buffers of one thread."""

    def __init__(self, preprocess: Preprocess, features: FeatureMap) -> None:
        self.preprocess, self.map = preprocess, features
        self.rows = np.zeros((features.tile, features.input_width), np.float32)
        self.to_features = features.start_thread()

    def features(self, X: NDArray[Any], start: int, stop: int) -> Rows:
        """Return the features of a tile; the array may have spare rows and columns."""
        prepare_rows(
            X[start:stop], self.rows[: stop - start], self.preprocess, self.map.shift, start
        )
        return self.to_features(self.rows, stop - start)


def compute_features(
    X: NDArray[Any],
    preprocess: Preprocess,
    features: FeatureMap,
    n_jobs: int | None = None,
    *,
    fixed_point: bool = False,
) -> NDArray[Any]:
    """Compute the features of all rows.

    Parameters
    ----------
    X : array of shape (n, d)
    preprocess : {None, "unit", "hellinger"}
        Preprocessing of each row.
    features : FeatureMap
        The map from rows to features.
    n_jobs : int or None, default=None
        Number of threads; None uses all cores.
    fixed_point : bool, default=False
        Return features in [0, 1] as int16 multiples of 2**-12 (see `PairMoments.of`).

    Returns
    -------
    values : float32 or int16 array of shape (n, features.width)
    """
    out = np.empty((len(X), features.width), np.int16 if fixed_point else np.float32)

    def make_worker() -> Callable[[int, int], None]:
        worker = _Worker(preprocess, features)

        def work(start: int, stop: int) -> None:
            values = worker.features(X, start, stop)[: stop - start, : features.width]
            out[start:stop] = to_fixed_point(values) if fixed_point else values
            report((stop - start) / len(X))

        return work

    _check_width(X, features)
    run_tiles(make_worker, len(X), features.tile, n_jobs)
    return out


@dataclass(frozen=True, eq=False)
class Encoder:
    """A learned hash function, prepared for encoding.

    What all calls share is computed once and reused.

    Parameters
    ----------
    preprocess : {None, "unit", "hellinger"}
        Preprocessing of each row.
    features : FeatureMap
        The map from rows to features.
    directions : float32 array of shape (n_bits, features.width)
        One direction per bit.
    thresholds : float32 array of shape (n_bits,) or None, default=None
        Bit i of a row is 1 if ``directions[i] @ features(row) > thresholds[i]``. None, while
        thresholds are not known yet, allows only projections, and these are not recomputed in
        double precision.
    """

    preprocess: Preprocess
    features: FeatureMap
    directions: Rows
    thresholds: Rows | None = None
    _idle: list[_EncodingWorker] = field(default_factory=list, init=False, repr=False)

    def encode(self, X: NDArray[Any], n_jobs: int | None = None) -> Codes:
        """Return the packed codes of all rows, shape (n, ceil(n_bits / 8))."""
        thresholds = self._required_thresholds()
        out = np.empty((len(X), n_bytes(len(self.directions))), np.uint8)

        def pack(start: int, projections: Rows) -> None:
            pack_above(projections, thresholds, out[start : start + len(projections)])

        self._for_tiles(X, pack, n_jobs)
        return out

    def _required_thresholds(self) -> Rows:
        if self.thresholds is None:
            raise ValueError("an encoder without thresholds cannot encode, only project")
        return self.thresholds

    def project(self, X: NDArray[Any], n_jobs: int | None = None) -> Rows:
        """Return the projections ``features(X) @ directions.T``, shape (n, n_bits)."""
        out = np.empty((len(X), len(self.directions)), np.float32)

        def store(start: int, projections: Rows) -> None:
            out[start : start + len(projections)] = projections

        self._for_tiles(X, store, n_jobs)
        return out

    def columns(self, X: NDArray[Any], n_jobs: int | None = None) -> Rows:
        """Return the projections by bit, shape (n_bits, n); above 1 GB in a temporary file."""
        out: Rows = scratch_array((len(self.directions), len(X)), np.float32)

        def store(start: int, projections: Rows) -> None:
            out[:, start : start + len(projections)] = projections.T

        self._for_tiles(X, store, n_jobs)
        return out

    def _for_tiles(
        self, X: NDArray[Any], use: Callable[[int, Rows], None], n_jobs: int | None
    ) -> None:
        """Call `use` for each tile with the number of its first row and its projections."""
        _check_width(X, self.features)
        busy: list[_EncodingWorker] = []

        def make_worker() -> Callable[[int, int], None]:
            try:
                worker = self._idle.pop()
            except IndexError:
                worker = _EncodingWorker(self)
            busy.append(worker)
            return lambda start, stop: use(start, worker.project(X, start, stop))

        run_tiles(make_worker, len(X), self.features.tile, n_jobs)
        self._idle.extend(busy)

    @cached_property
    def panels(self) -> Rows:
        """The directions, packed for the matrix product."""
        return pack_panels(self.directions)

    @cached_property
    def ambiguous(self) -> tuple[Rows, Rows]:
        """Distances from the threshold within which a bit is ambiguous, each of shape (n_bits,).

        The first is for float32 sums of float32 features, the second for exact sums of them.
        """
        lengths = np.sqrt(np.einsum("ij,ij->i", self.directions, self.directions))
        by_features = np.float32(_FEATURE_ERROR) * lengths
        by_sum = np.float32(_SUM_ERROR * np.sqrt(self.features.width)) * lengths
        return by_features + by_sum, by_features


class _EncodingWorker(_Worker):
    """A worker that also projects the features."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder.preprocess, encoder.features)
        self.encoder = encoder
        self.projections = empty_result(encoder.features.tile, encoder.panels)
        self.is_ambiguous = np.empty(encoder.features.tile, np.bool_)

    def project(self, X: NDArray[Any], start: int, stop: int) -> Rows:
        """Return the projections of a tile, shape (stop - start, n_bits)."""
        n, encoder = stop - start, self.encoder
        values = self.features(X, start, stop)
        multiply(values, encoder.panels, n, self.projections)
        projections = self.projections[:n, : len(encoder.directions)]
        if encoder.thresholds is not None and isinstance(self.map, GaussianMap):
            self._recompute_ambiguous(projections, values, X[start:stop], self.map)
        return projections

    def _recompute_ambiguous(
        self, projections: Rows, values: Rows, X: NDArray[Any], features: GaussianMap
    ) -> None:
        """Recompute projections in double precision where rounding could flip a bit."""
        sum_bound, feature_bound = self.encoder.ambiguous
        learned = self.encoder.directions, self.encoder._required_thresholds()
        flags = self.is_ambiguous[: len(projections)]
        if recompute_sums(projections, values, *learned, sum_bound, feature_bound, flags):
            places = np.flatnonzero(flags)
            rows = np.empty((len(places), X.shape[1]), np.float32)
            prepare_rows(X[places], rows, self.preprocess, features.shift)
            exact = features.in_double(rows)
            recompute_rows(projections, places, exact, *learned, feature_bound)


def _check_width(X: NDArray[Any], features: FeatureMap) -> None:
    if X.shape[1] != features.input_width:
        raise ValueError(
            f"rows have {X.shape[1]} values, but this model takes rows of {features.input_width}"
        )
