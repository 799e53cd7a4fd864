"""Hashers that follow from the moments of pairs: one pass for moments, one for thresholds."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import validate_data

from ..encode import Encoder, compute_features, compute_moment_features
from ..kernels import GaussianMap, IdentityMap
from ..moments import PairMoments
from ..pairs import (
    Pairs,
    Similar,
    Things,
    check_both_kinds,
    check_pairs,
    draw_pairs,
    things_joined_by,
)
from ..parallel import one_blas_thread
from ..preprocess import preprocess_rows
from ..refinement import Hash, Refinement, refine
from ..thresholds import ThresholdSearch, rates_at
from .base import BaseHasher

_FOUND_BY_SEARCH = ("thresholds_", "bit_fnr_", "bit_fpr_", "bit_ones_")
_FEATURE_BYTES = 2**30  # features of a batch that are kept at once; more are made in portions


@dataclass
class _Stream:
    """What has been learned of the pairs seen so far."""

    positive: PairMoments
    negative: PairMoments
    search: ThresholdSearch = field(default_factory=ThresholdSearch)


class ClosedFormHasher(BaseHasher):
    """Base class of the hashers whose directions are, or start as, eigenvectors of pair moments.

    Fitting is a stream of one batch: `partial_fit_pairs` adds up moments, the first
    `partial_fit_thresholds` solves for the directions, and the thresholds are found when they are
    first needed.
    """

    threshold_weight: float
    refine: int

    _fitted: ClassVar[tuple[str, ...]] = ("directions_", *_FOUND_BY_SEARCH)
    _per_bit: ClassVar[tuple[str, ...]] = _fitted
    _reads_some_rows: ClassVar[bool] = True
    _stream: _Stream | None = None

    bit_fnr_: NDArray[np.float64]
    bit_fpr_: NDArray[np.float64]
    bit_ones_: NDArray[np.float64]

    def _fit_checked(
        self, X: NDArray[Any], pairs: Pairs, similar: Similar, things: Things | None
    ) -> Self:
        check_both_kinds(int(similar.sum()), int((~similar).sum()))
        self._start(X)
        self._add_moments(X, pairs, similar)
        self._solve()
        self._add_thresholds(X, pairs, similar)
        if self.refine:
            try:
                self._refine(X, pairs, similar, things)
            except BaseException:
                self._forget()  # directions without thresholds are no hash
                raise
        else:
            self._finish()
        self._stream = None
        return self

    def _refine(
        self, X: NDArray[Any], pairs: Pairs, similar: Similar, things: Things | None
    ) -> None:
        """Descend from the closed form on; thresholds, and basis rows of a Gaussian, move along."""
        found = self._current_stream().search.solve(self.threshold_weight, self.n_jobs)
        self._stream = None  # its projections take memory that is needed now
        settings, rng = Refinement(int(self.refine)), self._rng("refine")
        if things is None:
            used, members = _distinct(pairs[similar])
            ids = things_joined_by(members, len(used))
        else:
            n_wanted = settings.steps * settings.batch
            drawn, flags = draw_pairs(
                things.ids, n_wanted, 1, groups=things.groups, random_state=rng
            )
            used, members = _distinct(drawn[flags])
            ids = things.ids[used]
        features = self._feature_map()
        if isinstance(features, IdentityMap):  # an offset is taken away in full precision
            rows = compute_features(X[used], self.preprocess, features, self.n_jobs)
            features = IdentityMap(np.zeros_like(features.shift))
        else:
            rows = preprocess_rows(X[used], self.preprocess)
        start = Hash(features, self.directions_, found.thresholds)
        result = refine(start, rows, members, ids, settings, rng, self.n_jobs)
        self.directions_ = result.directions
        if isinstance(result.features, GaussianMap):
            self.basis_ = result.features.basis
        used, members = _distinct(pairs)
        encoder = Encoder(self.preprocess, self._feature_map(), self.directions_, result.thresholds)
        codes = encoder.encode(X[used], self.n_jobs)
        self._take_bit_rates(rates_at(result.thresholds, codes, members, similar))

    def partial_fit_pairs(self, X: ArrayLike, pairs: ArrayLike, similar: ArrayLike) -> Self:
        """First pass over data larger than memory: add the moments of a batch of pairs.

        The first batch after construction or after a fit fixes what the features depend on (the
        offset; basis, gamma and metric of a kernel, unless they are given). After all batches, go
        over the same batches again with `partial_fit_thresholds`. The result is that of one fit on
        everything with the same basis and gamma.

        Parameters
        ----------
        X : array of shape (n, d)
            The rows of this batch.
        pairs : int array of shape (p, 2)
            Row numbers within this batch.
        similar : bool array of shape (p,)

        Returns
        -------
        self
        """
        if self.refine:
            raise ValueError(
                f"refine={self.refine} needs all pairs at once: use fit or fit_pairs, or refine=0"
            )
        first = self._stream is None
        if first:
            self._forget()
        rows = validate_data(self, X, dtype="numeric", reset=first)
        checked, flags = check_pairs(pairs, similar, len(rows))
        if first:
            self._start(rows)
        self._forget_solution()
        self._add_moments(rows, checked, flags)
        return self

    def partial_fit_thresholds(self, X: ArrayLike, pairs: ArrayLike, similar: ArrayLike) -> Self:
        """Second pass: add a batch of pairs to the search for thresholds.

        Parameters as in `partial_fit_pairs`. The hasher can be used after any batch; its thresholds
        are then the best for the batches added so far.
        """
        if self._stream is None:
            raise NotFittedError("call partial_fit_pairs on all batches before this second pass")
        rows = validate_data(self, X, dtype="numeric", reset=False)
        checked, flags = check_pairs(pairs, similar, len(rows))
        if "directions_" not in self.__dict__:
            self._solve()
        self._add_thresholds(rows, checked, flags)
        return self

    # -- the steps ------------------------------------------------------------------------------

    def _start(self, X: NDArray[Any]) -> None:
        """Forget what was learned, and fix the features by the rows of the first batch."""
        self._check_params()
        self._forget()
        with one_blas_thread():
            self._fix_features(X)
        width = self._feature_map().width
        if self.n_bits is not None and self.n_bits > width:
            raise ValueError(self._too_many_bits(self.n_bits, width))
        zeros = PairMoments.zeros(width, cross=self._needs_cross)
        self._stream = _Stream(zeros, zeros)

    def _forget(self) -> None:
        super()._forget()
        self._stream = None

    def _forget_solution(self) -> None:
        for name in self._per_bit:
            self.__dict__.pop(name, None)
        if self._stream is not None:
            self._stream.search = ThresholdSearch()

    def _add_moments(self, X: NDArray[Any], pairs: Pairs, similar: Similar) -> None:
        positive, negative = self._moments(X, pairs, similar)
        stream = self._current_stream()
        stream.positive += positive
        stream.negative += negative

    def _moments(
        self, X: NDArray[Any], pairs: Pairs, similar: Similar
    ) -> tuple[PairMoments, PairMoments]:
        """Moments of the similar and of the dissimilar pairs."""
        features = self._feature_map()
        zeros = PairMoments.zeros(features.width, cross=self._needs_cross)
        sums = {True: zeros, False: zeros}
        for rows, members, flags in _portions(pairs, similar, features.width):
            values = compute_moment_features(X[rows], self.preprocess, features, self.n_jobs)
            for flag in sums:
                chosen = members[flags == flag]
                if len(chosen):
                    sums[flag] += PairMoments.of(
                        values, chosen, cross=self._needs_cross, n_jobs=self.n_jobs
                    )
        return sums[True], sums[False]

    def _solve(self) -> None:
        stream = self._current_stream()
        check_both_kinds(stream.positive.n_pairs, stream.negative.n_pairs)
        width = self._feature_map().width
        n_bits = min(128, width) if self.n_bits is None else int(self.n_bits)
        directions = self._directions(stream.positive, stream.negative, n_bits)
        self.directions_ = directions.astype(np.float32)

    def _add_thresholds(self, X: NDArray[Any], pairs: Pairs, similar: Similar) -> None:
        rows, members = _distinct(pairs)
        columns = self._columns(X[rows])
        for name in _FOUND_BY_SEARCH:
            self.__dict__.pop(name, None)
        self._current_stream().search.add(columns, members, similar)

    def _columns(self, X: NDArray[Any]) -> NDArray[np.float32]:
        """Projections, shape (n_bits, n), that thresholds are found for."""
        nothing = np.zeros(len(self.directions_), np.float32)
        encoder = Encoder(self.preprocess, self._feature_map(), self.directions_, nothing)
        return encoder.raw_columns(X, self.n_jobs)

    def _finish(self) -> None:
        search = self._current_stream().search
        self._take_bit_rates(search.solve(self.threshold_weight, self.n_jobs))

    def __getattr__(self, name: str) -> Any:
        """Find the thresholds that are still owed to a stream when someone asks for them."""
        if name in _FOUND_BY_SEARCH and "directions_" in self.__dict__ and self._stream is not None:
            try:
                self._finish()
            except ValueError as error:  # pairs of one kind only, so far
                raise AttributeError(f"{name} cannot be found yet: {error}") from error
            return self.__dict__[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle a stream that goes on, but not the statistics of a finished one."""
        state: dict[str, Any] = super().__getstate__()
        return {**state, "_stream": None} if "thresholds_" in self.__dict__ else state

    def _current_stream(self) -> _Stream:
        stream = self._stream
        if stream is None:
            raise NotFittedError("no pairs have been seen")
        return stream

    # -- for subclasses -------------------------------------------------------------------------

    def _check_params(self) -> None:
        super()._check_params()
        if not 0 < self.threshold_weight < np.inf:
            raise ValueError(f"threshold_weight must be above 0, got {self.threshold_weight}")
        if not isinstance(self.refine, int | np.integer) or self.refine < 0:
            raise ValueError(f"refine must be a number of steps from 0, got {self.refine!r}")

    @property
    def _needs_cross(self) -> bool:
        """Whether the directions follow from cross moments."""
        return False

    @abstractmethod
    def _fix_features(self, X: NDArray[Any]) -> None:
        """Set the fitted attributes that the feature map is made of."""

    @abstractmethod
    def _directions(
        self, positive: PairMoments, negative: PairMoments, n_bits: int
    ) -> NDArray[np.float64]:
        """The directions, shape (n_bits, width of the feature map), best first."""

    @abstractmethod
    def _too_many_bits(self, n_bits: int, width: int) -> str:
        """What to say when more bits are asked for than there are features."""


def _distinct(pairs: Pairs) -> tuple[NDArray[np.int64], Pairs]:
    """The rows that are in pairs, each once, and the pairs as places among them."""
    rows, members = np.unique(pairs, return_inverse=True)
    return rows, members.reshape(-1, 2)


def _portions(
    pairs: Pairs, similar: Similar, width: int
) -> list[tuple[NDArray[np.int64], Pairs, Similar]]:
    """Pairs in portions whose features fit in memory: distinct rows, pairs among them, flags.

    One portion if the features of all distinct rows fit; else runs of consecutive pairs.
    """

    def portion(start: int, stop: int) -> tuple[NDArray[np.int64], Pairs, Similar]:
        return *_distinct(pairs[start:stop]), similar[start:stop]

    whole = portion(0, len(pairs))
    if len(whole[0]) * width * 4 <= _FEATURE_BYTES:
        return [whole]
    step = max(1, _FEATURE_BYTES // (2 * width * 4))
    return [portion(i, min(i + step, len(pairs))) for i in range(0, len(pairs), step)]
