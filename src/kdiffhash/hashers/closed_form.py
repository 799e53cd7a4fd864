"""Base class of the hashers whose directions are computed in one step.

The directions are eigenvectors of matrices that follow from averages over pairs (the moments, see
`learn/moments.py`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .._util.progress import next_step, steps
from .._util.threads import n_threads, one_blas_thread
from ..learn.encoder import Encoder, compute_features
from ..learn.kernels import FeatureMap, GaussianMap, IdentityMap
from ..learn.moments import PairMoments
from ..learn.pairs import (
    Labels,
    Pairs,
    Similar,
    check_both_kinds,
    distinct_rows,
    draw_pairs,
    labels_from_pairs,
)
from ..learn.preprocess import preprocess_rows
from ..learn.refinement import Hash, Refinement, refine
from ..learn.rows import Numbers, gather
from ..learn.thresholds import BitRates, find_thresholds, rates_at
from .base import BaseHasher

_FEATURE_BYTES = 2**30  # memory for features; beyond it, moments are summed over batches of pairs


class ClosedFormHasher(BaseHasher):
    """Base class of the hashers whose directions are computed in one step from pair moments.

    The features of a row are the row itself or its kernel values against the basis rows. The
    directions are eigenvectors computed from the moments of these features, averages over pairs
    (see `learn/moments.py`). With ``refine > 0`` the eigenvectors are the starting point of a
    gradient descent.

    Attributes
    ----------
    threshold_weight : float
        Weight of the FNR relative to the FPR when a threshold is chosen.
    refine : int
        Maximum number of gradient steps; 0 disables refinement.
    nested : bool
        Whether refinement makes every prefix a good code.
    verbose : bool
        Show the progress of refinement on a terminal.
    directions_ : float32 array of shape (n_bits, n_features)
        One projection direction per bit.
    thresholds_ : float32 array of shape (n_bits,)
        One threshold per bit.
    bit_fnr_ : float64 array of shape (n_bits,)
        False negative rate of each bit on the training pairs.
    bit_fpr_ : float64 array of shape (n_bits,)
        False positive rate of each bit on the training pairs.
    bit_ones_ : float64 array of shape (n_bits,)
        Share of training rows for which the bit is 1.
    bit_spread_ : float64 array of shape (n_bits,)
        Standard deviation of the projections of training rows.

    Examples
    --------
    >>> from kdiffhash import BoostedHash, KernelDiffHash
    >>> from kdiffhash.hashers.closed_form import ClosedFormHasher
    >>> isinstance(KernelDiffHash(), ClosedFormHasher), isinstance(BoostedHash(), ClosedFormHasher)
    (True, False)
    """

    threshold_weight: float
    refine: int
    nested: bool
    verbose: bool

    bit_fnr_: NDArray[np.float64]
    bit_fpr_: NDArray[np.float64]
    bit_ones_: NDArray[np.float64]

    _fitted: ClassVar[tuple[str, ...]] = (
        "directions_",
        "thresholds_",
        "bit_fnr_",
        "bit_fpr_",
        "bit_ones_",
        "bit_spread_",
    )
    _per_bit: ClassVar[tuple[str, ...]] = _fitted

    def _learn(self, X: Any, pairs: Pairs, similar: Similar, labels: Labels | None) -> None:
        """Gather rows, compute features, moments, directions and thresholds, and refine them."""
        check_both_kinds(int(similar.sum()), int((~similar).sum()))
        refinement = self._draw_refinement(pairs, similar, labels) if self.refine else None
        samples = self._draw_samples(len(X))
        refinement_pairs = () if refinement is None else (refinement.positives,)
        with steps(self._shares(len(pairs), X.shape[1]), "learning", self.verbose):
            rows, rates = self._solve(X, pairs, similar, samples, refinement_pairs)
        if refinement is not None:
            rates = self._refine(rates, rows, refinement, pairs, similar)
        self._take_bit_rates(rates)
        self._record_spread(rows, pairs)

    def _shares(self, n_pairs: int, width: int) -> dict[str, float]:
        """Return how long each step takes relative to the others, as measured on SIFT."""
        width = int(getattr(self, "n_basis", None) or width)
        n_bits = 128 if self.n_bits is None else int(self.n_bits)
        rows = 2e-9 * min(2 * n_pairs, 100_000)
        return {
            "gathering rows": 0.2,
            "computing features": 4 * rows * width,
            "summing pairs": 8e-12 * n_pairs * width**2,
            "solving for directions": 1e-9 * width**3 * n_threads(self.n_jobs),  # on one thread
            "projecting rows": 3 * rows * width,
            "choosing thresholds": 1e-8 * n_pairs * n_bits,
        }

    def _solve(
        self,
        X: Any,
        pairs: Pairs,
        similar: Similar,
        samples: dict[str, Numbers],
        refinement_pairs: tuple[Pairs, ...],
    ) -> tuple[Any, BitRates]:
        """Gather rows and solve for directions and thresholds; return the rows and error rates."""
        next_step("gathering rows")
        rows = gather(X, pairs, *samples.values(), *refinement_pairs)
        with one_blas_thread():
            self._fit_feature_map(rows, samples)
        features = self._feature_map()
        n_bits = min(128, features.width) if self.n_bits is None else int(self.n_bits)
        if n_bits > features.width:
            raise ValueError(self._too_many_bits(n_bits, features.width))
        positive, negative = self._moments(rows, features, pairs, similar)
        next_step("solving for directions")
        self.directions_ = self._directions(positive, negative, n_bits).astype(np.float32)

        next_step("projecting rows")
        # Each distinct row once; `members` are the pairs as positions in `used`.
        used, members = distinct_rows(pairs)
        encoder = Encoder(self.preprocess, features, self.directions_)
        projections = encoder.columns(rows[used], self.n_jobs)
        next_step("choosing thresholds")
        rates = find_thresholds(projections, members, similar, self.threshold_weight, self.n_jobs)
        return rows, rates

    def _moments(
        self, rows: Any, features: FeatureMap, pairs: Pairs, similar: Similar
    ) -> tuple[PairMoments, PairMoments]:
        """Return the moments of the positive and of the negative pairs."""
        zeros = PairMoments.zeros(features.width, cross=self._needs_cross)
        sums = {True: zeros, False: zeros}
        fixed_point = features.in_unit_interval
        for used, members, is_positive in _batches_of(pairs, similar, features.width):
            next_step("computing features", len(members) / len(pairs))
            values = compute_features(
                rows[used], self.preprocess, features, self.n_jobs, fixed_point=fixed_point
            )
            for kind in sums:
                chosen = members[is_positive == kind]
                if len(chosen):
                    part, n_passes = len(chosen) / len(pairs), 2 if self._needs_cross else 1
                    next_step("summing pairs", part, n_passes)
                    sums[kind] += PairMoments.of(
                        values, chosen, cross=self._needs_cross, n_jobs=self.n_jobs
                    )
        return sums[True], sums[False]

    # -- refinement -----------------------------------------------------------------------------

    def _draw_refinement(
        self, pairs: Pairs, similar: Similar, labels: Labels | None
    ) -> _RefinementPairs:
        """Draw positive pairs for refinement from the labels, or use the given pairs."""
        of_sides = labels is not None and labels.of_pairs
        make, rng = Refinement.for_ranking if of_sides else Refinement, self._rng("refine")
        settings = make(int(self.refine))
        if not self.nested:
            settings = replace(settings, shortest_prefix=None)
        if labels is None:
            return _RefinementPairs(settings, rng, pairs[similar], None)
        if labels.of_pairs:
            return _RefinementPairs(settings, rng, pairs[similar], labels.ids)
        drawn, is_positive = draw_pairs(
            labels.ids,
            n_positives=settings.steps * settings.batch_size,
            n_negatives=1,  # the minimum; it is discarded
            groups=labels.groups,
            random_state=rng,
        )
        return _RefinementPairs(settings, rng, drawn[is_positive], labels.ids)

    def _refine(
        self,
        rates: BitRates,
        rows: Any,
        refinement: _RefinementPairs,
        pairs: Pairs,
        similar: Similar,
    ) -> BitRates:
        """Refine directions, thresholds and the basis of a Gaussian kernel by gradient descent.

        Return the new thresholds and their error rates on the training pairs.
        """
        used, members = distinct_rows(refinement.positives)
        if refinement.labels is None:
            labels = labels_from_pairs(members, len(used))
        else:
            labels = refinement.labels[used]
        features = self._feature_map()
        if isinstance(features, IdentityMap):  # subtract the offset in full precision
            prepared = compute_features(rows[used], self.preprocess, features, self.n_jobs)
            features = IdentityMap(np.zeros_like(features.shift))
        else:
            prepared = preprocess_rows(rows[used], self.preprocess)
        start = Hash(features, self.directions_, rates.thresholds)
        result = refine(
            *(start, prepared, members, labels, refinement.settings, refinement.rng),
            n_jobs=self.n_jobs,
            verbose=self.verbose,
        )
        self.directions_ = result.directions
        if isinstance(result.features, GaussianMap):
            self.basis_ = result.features.basis
        used, members = distinct_rows(pairs)
        encoder = Encoder(self.preprocess, self._feature_map(), self.directions_, result.thresholds)
        codes = encoder.encode(rows[used], self.n_jobs)
        return rates_at(result.thresholds, codes, members, similar)

    # -- for subclasses -------------------------------------------------------------------------

    def _check_params(self) -> None:
        super()._check_params()
        if not 0 < self.threshold_weight < np.inf:
            raise ValueError(
                f"threshold_weight must be a positive, finite number, got {self.threshold_weight}"
            )
        if not isinstance(self.refine, int | np.integer) or self.refine < 0:
            raise ValueError(f"refine must be a non-negative integer, got {self.refine!r}")
        if not isinstance(self.nested, bool | np.bool_):
            raise ValueError(f"nested must be True or False, got {self.nested!r}")

    @property
    def _needs_cross(self) -> bool:
        """Whether the moments of x z^T are needed besides those of x - z."""
        return False

    @abstractmethod
    def _draw_samples(self, n_rows: int) -> dict[str, Numbers]:
        """Draw the rows from which the feature map is estimated: row numbers by purpose."""

    @abstractmethod
    def _fit_feature_map(self, rows: Any, samples: dict[str, Numbers]) -> None:
        """Set the fitted attributes of the feature map."""

    @abstractmethod
    def _directions(
        self, positive: PairMoments, negative: PairMoments, n_bits: int
    ) -> NDArray[np.float64]:
        """Return directions of shape (n_bits, width of the feature map), best first."""

    @abstractmethod
    def _too_many_bits(self, n_bits: int, width: int) -> str:
        """Return the error message for more bits than features."""


@dataclass(frozen=True)
class _RefinementPairs:
    """What refinement starts from: settings, generator, positive pairs, and labels if known."""

    settings: Refinement
    rng: np.random.Generator
    positives: Pairs
    labels: Numbers | None  # of all rows


def _batches_of(
    pairs: Pairs, similar: Similar, width: int
) -> Iterator[tuple[Numbers, Pairs, Similar]]:
    """Split pairs into batches whose features fit in memory.

    There is one batch if the features of all distinct rows fit; otherwise each batch is a run of
    consecutive pairs. Yields, for each batch, its distinct rows, its pairs as positions among these
    rows, and which of the pairs are positive.
    """
    fits = len(np.unique(pairs)) * width * 4 <= _FEATURE_BYTES
    step = len(pairs) if fits else max(1, _FEATURE_BYTES // (2 * width * 4))
    for start in range(0, len(pairs), step):
        yield *distinct_rows(pairs[start : start + step]), similar[start : start + step]
