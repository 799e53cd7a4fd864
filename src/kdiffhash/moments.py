"""Second-order statistics of a pair set, all that the closed-form hashes need to know of the data.

For a pair set S with members x, x' (the paper's notation, with the readings of the docs page
"Reading the paper"):

    difference  D = 1/|S|  sum (x - x')(x - x')'
    cross       C = 1/2|S| sum (x x'' + x' x')        (symmetrised)
    second      M = 1/2|S| sum (x x' + x'' x''')

They follow from the Gram matrices of x - x' and of x + x': D = 2M - 2C and S = 2M + 2C. Sums are
kept, not means, so that the statistics of shards add up to those of the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ._numba.gather import add_rounded_rows, combine_pairs, combine_rounded_pairs
from .pairs import Pairs
from .parallel import sum_tiles

_TILE = 2048  # pairs per product; part of the definition of a result, see `parallel`


@dataclass(frozen=True)
class PairMoments:
    """Mergeable second-order statistics of a set of pairs.

    Parameters
    ----------
    n_pairs : int
    member_sum : float64 array of shape (d,)
        Sum over both members of all pairs.
    difference_gram : float64 array of shape (d, d)
        Sum of the outer products of x - x'.
    total_gram : float64 array of shape (d, d) or None
        Sum of the outer products of x + x'. The difference moment alone does not need it.

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
        features: NDArray[np.float32],
        pairs: Pairs,
        *,
        cross: bool = True,
        grid: float | None = None,
        n_jobs: int | None = None,
    ) -> PairMoments:
        """Moments of the pairs of rows of `features`, shape (n, d).

        With `grid`, a power of two, features are first rounded to multiples of it. If they are
        below 1 and it is 2**-16, all sums over up to half a million pairs are exact, so that they
        do not depend on the order of the pairs, or on how these are split over batches or machines.
        """
        scale = np.float32(1 if grid is None else 1 / grid)

        def gram(sign: float) -> NDArray[np.float64]:
            width = features.shape[1]

            def make_term() -> Callable[[int, int], NDArray[np.float64]]:
                block, square = np.empty((_TILE, width)), np.empty((width, width))

                def term(start: int, stop: int) -> NDArray[np.float64]:
                    left, right = pairs[start:stop].T
                    rows = block[: stop - start]
                    if grid is None:
                        combine_pairs(features, left, right, sign, rows)
                    else:
                        combine_rounded_pairs(features, left, right, sign, scale, rows)
                    return np.matmul(rows.T, rows, out=square)

                return term

            return sum_tiles(make_term, len(pairs), _TILE, (width, width), n_jobs)

        unit = 1.0 if grid is None else grid
        return cls(
            n_pairs=len(pairs),
            member_sum=unit * _member_sum(features, pairs, scale, grid is not None, n_jobs),
            difference_gram=unit**2 * gram(-1.0),
            total_gram=unit**2 * gram(1.0) if cross else None,
        )

    @classmethod
    def zeros(cls, n_features: int, *, cross: bool = True) -> PairMoments:
        """Moments of no pairs, to add to."""
        square = (n_features, n_features)
        return cls(0, np.zeros(n_features), np.zeros(square), np.zeros(square) if cross else None)

    def __add__(self, other: PairMoments) -> PairMoments:
        """Moments of both pair sets together."""
        if self.member_sum.shape != other.member_sum.shape:
            raise ValueError(
                f"moments of {len(self.member_sum)} and {len(other.member_sum)} features "
                "do not add up"
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
        """Mean over the members of all pairs."""
        return self.member_sum / (2 * self._count)

    @property
    def difference(self) -> NDArray[np.float64]:
        """Difference moment D; the same around any centre."""
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
        """Cross moment of the members taken relative to `center`, shape (d,)."""
        shift = np.outer(center, self.mean)
        return self.cross - shift - shift.T + np.outer(center, center)

    @property
    def _count(self) -> int:
        if self.n_pairs == 0:
            raise ValueError("the moments of no pairs are not defined")
        return self.n_pairs

    @property
    def _total(self) -> NDArray[np.float64]:
        if self.total_gram is None:
            raise ValueError("these moments were made with cross=False")
        return self.total_gram


def _member_sum(
    features: NDArray[np.float32],
    pairs: Pairs,
    scale: np.float32,
    rounded: bool,
    n_jobs: int | None,
) -> NDArray[np.float64]:
    """Sum over the members of all pairs, from how often each row is one."""
    uses = np.bincount(pairs.ravel(), minlength=len(features)).astype(np.float64)

    def term(start: int, stop: int) -> NDArray[np.float64]:
        total = np.zeros(features.shape[1])
        if rounded:
            add_rounded_rows(features[start:stop], uses[start:stop], scale, total)
        else:
            total[:] = uses[start:stop] @ features[start:stop].astype(np.float64)
        return total

    return sum_tiles(lambda: term, len(features), _TILE, features.shape[1:], n_jobs)
