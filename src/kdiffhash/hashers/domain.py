"""Whether rows are like those that a hasher was trained on, as their projections show.

Codes belong to the domain they were learned on. On rows of the same kind, each bit is 1 about as
often as on the training rows, and its projections vary about as much. Both are compared over all
bits. The limits lie above everything measured on validation rows of the same domain, and between
photographs of different places, and below everything measured on texts of other kinds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .base import BaseHasher

_MAX_ONES, _MAX_SPREAD = 0.09, 0.25
_MIN_ROWS = 100  # with fewer rows, chance differences are as large as those of other domains
_MAX_ROWS = 20_000  # a sample of this size suffices


@dataclass(frozen=True)
class DomainShift:
    """How far rows are from the training rows of a hasher.

    Attributes
    ----------
    ones : float
        Root mean square difference, over bits, between the share of rows for which the bit is 1 and
        that of the training rows. Differences to be expected by chance are subtracted.
    spread : float or None
        Root mean square, over bits, of the logarithm of the ratio between the standard deviation of
        the projections and that of the training rows. None if the model does not record it.
    is_far : bool
        Whether `ones` is above 0.09 or `spread` above 0.25, which rows of the training domain
        hardly reach.

    Examples
    --------
    >>> from kdiffhash.hashers.domain import DomainShift
    >>> DomainShift(ones=0.02, spread=0.31).is_far
    True
    """

    ones: float
    spread: float | None

    @property
    def is_far(self) -> bool:
        """Whether the rows are far from the training rows."""
        return self.ones > _MAX_ONES or (self.spread is not None and self.spread > _MAX_SPREAD)


def domain_shift(hasher: BaseHasher, X: ArrayLike) -> DomainShift | None:
    """Compare the projections of rows with those of the training rows.

    Parameters
    ----------
    hasher : BaseHasher
        A fitted hasher.
    X : array of shape (n, d)
        Rows, for example those to be searched. Of more than 20,000, an even sample is used.

    Returns
    -------
    shift : DomainShift or None
        None if there are fewer than 100 rows, or if the model does not record what it was trained
        on, as in old files of some classes.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import ITQHash
    >>> from kdiffhash.hashers.domain import domain_shift
    >>> rng = np.random.default_rng(0)
    >>> hasher = ITQHash(8, random_state=0).fit(rng.normal(size=(2000, 16)))
    >>> domain_shift(hasher, rng.normal(size=(1000, 16))).is_far
    False
    >>> domain_shift(hasher, rng.normal(size=(1000, 16)) + 1).is_far
    True
    """
    rows = np.asarray(X)
    known: NDArray[np.float64] | None = getattr(hasher, "bit_ones_", None)
    if known is None or len(rows) < _MIN_ROWS:
        return None
    projections = hasher.project(rows[:: -(-len(rows) // _MAX_ROWS)]).astype(np.float64)
    ones = (projections > 0).mean(axis=0)
    by_chance = np.mean(ones * (1 - ones)) / len(projections)
    difference = np.sqrt(max(0.0, np.mean((ones - known) ** 2) - by_chance))
    spread: NDArray[np.float64] | None = getattr(hasher, "bit_spread_", None)
    if spread is None:
        return DomainShift(float(difference), None)
    # Constant bits have no spread, and bits that vary less than rounding errors have none either.
    varies = spread > 1e-6 * spread.max(initial=0.0)
    now = np.maximum(projections.std(axis=0)[varies], 1e-6 * spread[varies])
    logs = np.log(now / spread[varies])
    return DomainShift(float(difference), float(np.sqrt(np.mean(logs**2))) if len(logs) else None)
