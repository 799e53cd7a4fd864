"""Second-order moments of a set of pairs, the only statistics that the closed forms need.

For p pairs with members x and z (see "Reading the paper" in the documentation):

    difference  D = 1/p  sum (x - z)(x - z).T
    cross       C = 1/2p sum (x z.T + z x.T)
    second      M = 1/2p sum (x x.T + z z.T)

They follow from the Gram matrices of x - z and x + z, which are p (2M - 2C) and p (2M + 2C). Sums
are stored instead of means, so that the moments of batches can be added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._util.progress import report
from .._util.threads import n_threads, run_tiles, sum_tiles
from .pairs import Pairs

FIXED_UNIT = 2.0**-12  # value of the integer 1 in fixed-point features
_LARGEST = 4095  # largest fixed-point feature, so that sums of 128 squares stay below 2**31
_TILE = 1024  # pairs per product; a change affects rounding, see `_util/threads.py`
_GRAM_TILE = 8192  # pairs per task


@dataclass(frozen=True)
class PairMoments:
    """Second-order moments of a set of pairs; moments of disjoint sets can be added.

    Parameters
    ----------
    n_pairs : int
        Number of pairs.
    member_sum : float64 array of shape (d,)
        Sum over both members of all pairs.
    difference_gram : float64 array of shape (d, d)
        Sum of the outer products of x - z.
    total_gram : float64 array of shape (d, d) or None
        Sum of the outer products of x + z; None if only the difference moment is needed.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import PairMoments
    >>> X = np.array([[0.0], [2.0], [3.0]], np.float32)
    >>> first = PairMoments.of(X, np.array([[0, 1]]))
    >>> both = first + PairMoments.of(X, np.array([[1, 2]]))
    >>> both.n_pairs, both.difference.item(), both.cross.item(), both.mean.item()
    (2, 2.5, 3.0, 1.75)
    """

    n_pairs: int
    member_sum: NDArray[np.float64]
    difference_gram: NDArray[np.float64]
    total_gram: NDArray[np.float64] | None

    @classmethod
    def of(
        cls,
        features: NDArray[np.float32] | NDArray[np.int16],
        pairs: Pairs,
        *,
        cross: bool = True,
        n_jobs: int | None = None,
    ) -> PairMoments:
        """Compute the moments of pairs of rows.

        Parameters
        ----------
        features : float32 or int16 array of shape (n, d)
            The rows. An int16 array holds fixed-point numbers in [0, 1], see `to_fixed_point`.
            Their sums are exact, so they depend neither on the order of the pairs nor on how pairs
            are split over batches, threads or machines. Computing them takes a third of the time.
        pairs : int64 array of shape (p, 2)
            Row numbers.
        cross : bool, default=True
            Whether to compute cross and second moments too, at twice the cost.
        n_jobs : int or None, default=None
            Number of threads; None uses all cores. The result does not depend on it.

        Returns
        -------
        moments : PairMoments

        Raises
        ------
        ValueError
            If a row number is out of range, or a fixed-point feature lies outside 0..4095.
        """
        if len(pairs) and (pairs.min() < 0 or pairs.max() >= len(features)):
            raise ValueError(
                f"pairs must hold row numbers from 0 to {len(features) - 1}, got {pairs.min()} to "
                f"{pairs.max()}"
            )
        if features.dtype == np.int16:
            return _fixed_point_moments(cast(NDArray[np.int16], features), pairs, cross, n_jobs)

        def sum_of_products(combine: np.ufunc) -> NDArray[np.float64]:
            def term(start: int, stop: int) -> NDArray[np.float64]:
                left = features[pairs[start:stop, 0]].astype(np.float64)
                block = combine(left, features[pairs[start:stop, 1]], out=left)
                report((stop - start) / len(pairs))
                return np.asarray(block.T @ block)

            return sum_tiles(lambda: term, len(pairs), _TILE, (features.shape[1],) * 2, n_jobs)

        return cls(
            n_pairs=len(pairs),
            member_sum=_member_sum(features, pairs, n_jobs),
            difference_gram=sum_of_products(np.subtract),
            total_gram=sum_of_products(np.add) if cross else None,
        )

    @classmethod
    def zeros(cls, n_features: int, *, cross: bool = True) -> PairMoments:
        """Return the moments of an empty set of pairs, to which others can be added.

        Parameters
        ----------
        n_features : int
            Number of features.
        cross : bool, default=True
            Whether there are cross and second moments.

        Returns
        -------
        moments : PairMoments
        """
        square = (n_features, n_features)
        return cls(0, np.zeros(n_features), np.zeros(square), np.zeros(square) if cross else None)

    def __add__(self, other: PairMoments) -> PairMoments:
        """Return the moments of both sets of pairs together."""
        if self.member_sum.shape != other.member_sum.shape:
            raise ValueError(
                f"moments of {len(self.member_sum)} and {len(other.member_sum)} features "
                "cannot be added; both must have the same number"
            )
        both = self.total_gram is not None and other.total_gram is not None
        return PairMoments(
            self.n_pairs + other.n_pairs,
            self.member_sum + other.member_sum,
            self.difference_gram + other.difference_gram,
            self.total_gram + other.total_gram if both else None,  # type: ignore[operator]
        )

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean over both members of all pairs."""
        return self.member_sum / (2 * self._count)

    @property
    def difference(self) -> NDArray[np.float64]:
        """Difference moment D; it does not depend on the centre."""
        return self.difference_gram / self._count

    @property
    def cross(self) -> NDArray[np.float64]:
        """Symmetrised cross moment C around the origin."""
        return (self._total - self.difference_gram) / (4 * self._count)

    @property
    def second(self) -> NDArray[np.float64]:
        """Second moment M of the members around the origin."""
        return (self._total + self.difference_gram) / (4 * self._count)

    def cross_about(self, center: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the cross moment around a centre.

        Parameters
        ----------
        center : float64 array of shape (d,)
            Subtracted from all members.

        Returns
        -------
        cross : float64 array of shape (d, d)
        """
        shift = np.outer(center, self.mean)
        return self.cross - shift - shift.T + np.outer(center, center)

    @property
    def _count(self) -> int:
        if self.n_pairs == 0:
            raise ValueError("moments of no pairs are undefined; add the moments of some pairs")
        return self.n_pairs

    @property
    def _total(self) -> NDArray[np.float64]:
        if self.total_gram is None:
            raise ValueError(
                "these moments were computed with cross=False; only `mean` and `difference` are "
                "available"
            )
        return self.total_gram


def to_fixed_point(features: NDArray[np.float32]) -> NDArray[np.int16]:
    """Round numbers in [0, 1] to multiples of 2**-12, at most 4095 of them.

    The rounding error is about a hundred times smaller than what distinguishes directions.
    """
    rounded = np.rint(features * np.float32(1 / FIXED_UNIT))
    return np.asarray(np.minimum(rounded, _LARGEST), np.int16)


def covariance(rows: NDArray[np.float32], n_jobs: int | None = None) -> NDArray[np.float64]:
    """Compute the covariance of the columns of `rows`, shape (n, d)."""
    mean = rows.mean(axis=0, dtype=np.float64)

    def term(start: int, stop: int) -> NDArray[np.float64]:
        block: NDArray[np.float64] = rows[start:stop] - mean
        return block.T @ block

    total = sum_tiles(lambda: term, len(rows), _TILE, (rows.shape[1],) * 2, n_jobs)
    return np.asarray(total / max(1, len(rows) - 1))


def _fixed_point_moments(
    features: NDArray[np.int16], pairs: Pairs, cross: bool, n_jobs: int | None
) -> PairMoments:
    if features.size and (features.min() < 0 or features.max() > _LARGEST):
        raise ValueError(
            f"fixed-point features must lie in 0..{_LARGEST}, got {features.min()} to "
            f"{features.max()}; convert features in [0, 1] with to_fixed_point"
        )
    n_pairs = len(pairs)
    members = _member_sum(features, pairs, n_jobs).astype(np.int64)  # exact: below 2**53
    difference = _fixed_point_gram(features, pairs, -1, 0, n_jobs)
    total = None
    if cross:
        # x + z is shifted by half of its range, to stay within 4095, and the sums are shifted back.
        shift = _LARGEST
        shifted = _fixed_point_gram(features, pairs, +1, shift, n_jobs)
        total = shifted + shift * (members[:, None] + members) - n_pairs * shift**2
    square = FIXED_UNIT**2
    return PairMoments(
        n_pairs,
        members.astype(np.float64) * FIXED_UNIT,
        difference.astype(np.float64) * square,
        None if total is None else total.astype(np.float64) * square,
    )


def _fixed_point_gram(
    features: NDArray[np.int16], pairs: Pairs, sign: int, shift: int, n_jobs: int | None
) -> NDArray[np.int64]:
    """Sum the outer products of ``x + sign * z - shift`` over all pairs, exactly."""
    width = features.shape[1]
    padded = -(-width // _core.gram_panel) * _core.gram_panel
    left, right = np.ascontiguousarray(pairs.T)
    totals: list[NDArray[np.int64]] = []

    def make_worker() -> Callable[[int, int], None]:
        total = np.zeros((padded, padded), np.int64)
        totals.append(total)

        def work(start: int, stop: int) -> None:
            _core.add_gram(features, left[start:stop], right[start:stop], sign, shift, total)
            report((stop - start) / len(pairs))

        return work

    run_tiles(make_worker, len(pairs), _GRAM_TILE, min(16, n_threads(n_jobs)))
    upper = np.triu(sum(totals, start=np.zeros_like(totals[0]))[:width, :width])
    return upper + np.triu(upper, 1).T


def _member_sum(features: NDArray[Any], pairs: Pairs, n_jobs: int | None) -> NDArray[np.float64]:
    """Sum the features over both members of all pairs."""
    counts = np.bincount(pairs.ravel(), minlength=len(features)).astype(np.float64)

    def term(start: int, stop: int) -> NDArray[np.float64]:
        return np.asarray(counts[start:stop] @ features[start:stop].astype(np.float64))

    return sum_tiles(lambda: term, len(features), _TILE, features.shape[1:], n_jobs)
