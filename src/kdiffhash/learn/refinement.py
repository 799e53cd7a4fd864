"""Refinement: from the closed form on, descend on the loss that a hash is judged by.

The closed forms minimise a quadratic form of projections. What counts is how often the Hamming
distance of a similar pair exceeds that of a dissimilar one. A step of refinement takes a batch of
similar pairs, computes soft bits ``tanh(slope * projection)``, finds for each member the nearest
item of another object, and moves directions, thresholds and the basis rows of a Gaussian kernel
against the gradient of

    mean of softplus(sharpness * (d(x, partner) - d(x, nearest other) + margin))

where d is the share of bits that differ. The loss is summed over prefixes of 32, 64, 128, ... bits,
so that every prefix becomes a good code.

Products are made by one BLAS thread each, on blocks that do not depend on the number of threads, so
neither does the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._util.progress import progress
from .._util.threads import one_blas_thread, run_tiles
from .encoder import compute_features
from .kernels import LOG2_E, FeatureMap, GaussianMap, Rows
from .moments import covariance
from .pairs import Pairs

Ids = NDArray[np.int64]

_BLOCK = 256  # rows of a block of a product
_COLUMNS = 32  # soft bits of a block of their gradient
_WHITENING_ROWS = 20_000
_WHITENING_FLOOR = 1e-6  # of the largest eigenvalue of the features' covariance
_SPACING = 50  # steps from one look at the objects kept aside to the next
_CHECKS = 4  # batches of them


@dataclass(frozen=True)
class Refinement:
    """How to descend. A hasher sets `steps`; the rest suits whatever was tried.

    Attributes
    ----------
    steps : int
        Batches to learn from, at most.
    batch : int
        Similar pairs of a batch.
    rate, basis_rate : float
        Size of the first steps: of directions on whitened features, and of basis rows relative to
        the spread of their entries. Both fall to zero along a cosine. With a `basis_rate` of 0 the
        basis stays.
    slope, sharpness, margin : float
        Of the loss, see above.
    shortest : int
        The first prefix of the loss; each next one is twice as long, the last is the whole code.
    kept_aside : float
        Share of the objects that are not learned from, but judged by: what comes out is the hash
        under which fewest of them have another one nearer than their partner, which may be the one
        to start with. Where that share is less than two objects, it is the last one.
    patience : int
        Stop after so many looks at them, one every 50 steps, without gain.
    """

    steps: int
    batch: int = 512
    rate: float = 1e-3
    basis_rate: float = 1.5e-3
    slope: float = 1.0
    sharpness: float = 30.0
    margin: float = 0.1
    shortest: int = 32
    kept_aside: float = 0.05
    patience: int = 10


@dataclass(frozen=True)
class Hash:
    """What refinement changes: features, directions (n_bits, width), thresholds (n_bits,)."""

    features: FeatureMap
    directions: Rows
    thresholds: Rows


def refine(
    start: Hash,
    rows: Rows,
    positives: Pairs,
    objects: Ids,
    settings: Refinement,
    rng: np.random.Generator,
    n_jobs: int | None = None,
    verbose: bool = False,
) -> Hash:
    """A better hash, by descent from `start`.

    Parameters
    ----------
    start : Hash
    rows : float32 array of shape (n, d)
        Preprocessed.
    positives : int array of shape (p, 2)
        Similar pairs of rows.
    objects : int array of shape (n,)
        Which object each row shows.
    settings : Refinement
    rng : numpy Generator
    n_jobs : int, optional
        Threads; they do not change the result.
    verbose : bool
        Show the progress on a terminal.

    Returns
    -------
    Hash
    """
    shown = objects[positives[:, 0]]
    if (shown == shown[0]).all():
        raise ValueError(
            "all similar pairs show one object, and refinement finds its negatives among other "
            "objects; give pairs of several objects, or y with fit_pairs, or refine=0"
        )
    learn, checks = _keep_aside(positives, shown, settings, rng)
    with one_blas_thread(), progress(settings.steps, "refining", verbose) as advance:
        descending = _Descent(start, rows, settings, rng, n_jobs)
        best, least, fruitless = start, descending.error_of_bits(checks, objects), 0
        for number in range(settings.steps):
            batch = rng.choice(len(learn), min(settings.batch, len(learn)), replace=False)
            descending.step(_members(learn[batch]), objects, number)
            advance(1)
            last = number + 1 == settings.steps
            if not checks and last:
                best = descending.hash()
            elif checks and (last or (number + 1) % _SPACING == 0):
                error = descending.error_of_bits(checks, objects)
                fruitless += 1
                if error < least:
                    best, least, fruitless = descending.hash(), error, 0
                elif fruitless == settings.patience:
                    break
    return best


def _keep_aside(
    positives: Pairs, shown: Ids, settings: Refinement, rng: np.random.Generator
) -> tuple[Pairs, list[Ids]]:
    """Pairs to learn from, and batches of items of other objects to judge by."""
    known = np.unique(shown)
    aside = rng.permutation(known)[: int(settings.kept_aside * len(known))]
    if len(aside) < 2:
        return positives, []
    judged = np.isin(shown, aside)
    chosen = rng.permutation(positives[judged])[: _CHECKS * settings.batch]
    parts = np.array_split(chosen, -(-len(chosen) // settings.batch))
    return positives[~judged], [_members(part) for part in parts]


def _members(pairs: Pairs) -> Ids:
    """The first members of all pairs, then the second ones: partners are half of all apart."""
    return pairs.T.ravel()


@dataclass
class _Parameter:
    """Numbers that are learned, with what Adam remembers of their gradients."""

    values: Rows
    rate: float
    mean: Rows = field(init=False)
    square: Rows = field(init=False)

    def __post_init__(self) -> None:
        self.mean, self.square = np.zeros((2, self.values.size), np.float32)

    def move(self, gradient: Rows, number: int, share: float) -> None:
        """Step `number`, counted from 0, with a share of the rate."""
        size = share * self.rate / (1 - 0.9 ** (number + 1))  # Adam with its usual constants
        scale = 1 / (1 - 0.999 ** (number + 1))
        flat = np.ascontiguousarray(gradient).reshape(-1)
        _core.adam_step(self.values.reshape(-1), flat, self.mean, self.square, size, scale)


class _Descent:
    """A hash on its way: directions on whitened features, their offsets, basis rows."""

    def __init__(
        self,
        start: Hash,
        rows: Rows,
        settings: Refinement,
        rng: np.random.Generator,
        n_jobs: int | None,
    ) -> None:
        self.rows, self.settings, self.n_jobs = rows, settings, n_jobs
        n_bits = len(start.directions)
        n_shorter = max(0, int(np.ceil(np.log2(n_bits / settings.shortest))))
        self.prefixes = np.array([settings.shortest << k for k in range(n_shorter)] + [n_bits])

        some = np.sort(rng.choice(len(rows), min(_WHITENING_ROWS, len(rows)), replace=False))
        values = compute_features(rows[some], None, start.features, n_jobs)
        self.mean = values.mean(axis=0, dtype=np.float64).astype(np.float32)
        spread = covariance(values, n_jobs)
        sizes, axes = np.linalg.eigh(spread)
        roots = np.sqrt(np.maximum(sizes, max(_WHITENING_FLOOR * sizes[-1], 1e-30)))
        self.whiten = np.asarray((axes / roots) @ axes.T, np.float32)

        # Projections of variance 1 to begin with, so that the slope means the same for all bits.
        directions = start.directions.astype(np.float64)
        scales = np.sqrt(((directions @ axes) ** 2 * roots**2).sum(axis=1))
        directions /= np.maximum(scales, 1e-30)[:, None]
        offsets = start.thresholds / np.maximum(scales, 1e-30) - directions @ self.mean
        white = (directions @ axes * roots) @ axes.T
        self.white = _Parameter(np.ascontiguousarray(white, np.float32), settings.rate)
        self.offsets = _Parameter(offsets.astype(np.float32), settings.rate)
        self.features, self.basis, self.metric = start.features, None, None
        if isinstance(start.features, GaussianMap) and settings.basis_rate > 0:
            basis = start.features.basis.copy()
            rate = settings.basis_rate * float(basis.std(axis=0).mean())
            self.basis = _Parameter(basis, rate)
            if start.features.metric is not None:
                self.metric = start.features.metric @ start.features.metric.T
        self._follow()

    def _follow(self) -> None:
        """Features, and directions and thresholds on them, from those on whitened features."""
        if self.basis is not None and isinstance(self.features, GaussianMap):
            self.features = replace(self.features, basis=self.basis.values)
        self.directions = self._product(self.white.values, self.whiten)
        self.thresholds = self.offsets.values + self.directions @ self.mean

    def hash(self) -> Hash:
        """The hash as it is now."""
        features = self.features
        if isinstance(features, GaussianMap):
            features = replace(features, basis=features.basis.copy())
        return Hash(features, self.directions, self.thresholds)

    def step(self, items: Ids, objects: Ids, number: int) -> None:
        """Move against the gradient on one batch of rows."""
        share = (1 + np.cos(np.pi * number / self.settings.steps)) / 2
        for parameter, gradient in self.gradients(items, objects):
            parameter.move(gradient, number, share)
        self._follow()

    def gradients(self, items: Ids, objects: Ids) -> list[tuple[_Parameter, Rows]]:
        """What is learned, each with the gradient of the loss on one batch."""
        batch = self.rows[items]
        values = compute_features(batch, None, self.features, self.n_jobs)
        soft = self._soft_bits(values)
        by_projection = self._by_projection(soft, *self._compare(soft, objects[items]))
        by_offset = -by_projection.sum(axis=0)
        by_direction = self._product(by_projection.T, values)
        by_direction += np.outer(by_offset, self.mean)
        found = [(self.white, self._product(by_direction, self.whiten)), (self.offsets, by_offset)]
        if self.basis is not None:
            found.append((self.basis, self._by_basis(batch, values, by_projection)))
        return found

    def error_of_bits(self, batches: list[Ids], objects: Ids) -> float:
        """How often another object is nearer than the partner, by all prefixes; ties count half."""
        total = 0.0
        for items in batches:
            values = compute_features(self.rows[items], None, self.features, self.n_jobs)
            above = self._product(values, self.directions.T) > self.thresholds
            bits = np.where(above, np.float32(1), np.float32(-1))
            excess = self._compare(bits, objects[items])[1]
            total += float((excess > 0).mean() + (excess == 0).mean() / 2)
        return total

    def _soft_bits(self, values: Rows) -> Rows:
        """``tanh(slope * (projection - threshold))``, from an exponential of its size."""
        soft = np.empty((len(values), len(self.directions)), np.float32)
        factor = 2 * self.settings.slope * LOG2_E

        def work(start: int, stop: int) -> None:
            projections = values[start:stop] @ self.directions.T
            _core.soft_bits(projections, self.thresholds, factor, soft[start:stop])

        self._run(work, len(values))
        return soft

    def _compare(self, soft: Rows, objects: Ids) -> tuple[NDArray[np.int32], Rows]:
        """The nearest other object of each item, and how much nearer than the partner it is.

        Both of shape (prefixes, items), the latter in shares of bits.
        """
        n = len(soft)
        nearest = np.empty((len(self.prefixes), n), np.int32)
        excess = np.empty((len(self.prefixes), n), np.float32)

        def work(start: int, stop: int) -> None:
            similarity = np.zeros((stop - start, n), np.float32)
            to_partner, to_other = np.zeros((2, stop - start), np.float32)
            low = 0
            for k, high in enumerate(self.prefixes):
                similarity += soft[start:stop, low:high] @ soft[:, low:high].T
                if k == 0:
                    _core.hide_same(similarity, start, objects)
                _core.add_partners(soft, low, high, start, to_partner)
                _core.find_largest(similarity, nearest[k, start:stop], to_other)
                excess[k, start:stop] = (to_other - to_partner) / (2 * high)
                low = high

        self._run(work, n)
        return nearest, excess

    def _by_projection(self, soft: Rows, nearest: NDArray[np.int32], excess: Rows) -> Rows:
        """Gradient by projections, shape (items, n_bits)."""
        sharpness = self.settings.sharpness
        scaled = np.maximum(sharpness * (excess + self.settings.margin), -80)
        slopes = sharpness / (1 + np.exp(-scaled)) / (2 * len(soft) * self.prefixes[:, None])
        slopes = slopes.astype(np.float32)
        gradient = np.zeros_like(soft)

        def work(start: int, stop: int) -> None:
            _core.add_gradient(soft, nearest, slopes, self.prefixes, start, stop, gradient)

        run_tiles(lambda: work, soft.shape[1], _COLUMNS, self.n_jobs)
        gradient *= np.float32(self.settings.slope) * (1 - soft * soft)
        return gradient

    def _by_basis(self, batch: Rows, values: Rows, by_projection: Rows) -> Rows:
        """Gradient by basis rows b: the sum of 2 gamma c (x - b) over rows x, in the metric.

        c is the gradient by the kernel's value, times that value.
        """
        features = self.features
        if not isinstance(features, GaussianMap):
            raise TypeError("only the basis of a Gaussian is learned")
        weights = np.empty_like(values)

        def work(start: int, stop: int) -> None:
            np.matmul(by_projection[start:stop], self.directions, out=weights[start:stop])
            weights[start:stop] *= values[start:stop]

        self._run(work, len(values))
        shift = features.shift
        gradient = self._product(weights.T, batch - shift)
        gradient -= weights.sum(axis=0)[:, None] * (features.basis - shift)
        gradient *= np.float32(2 * features.gamma)
        if self.metric is not None:
            gradient = self._product(gradient, self.metric)
        return gradient

    def _product(self, a: Rows, b: Rows) -> Rows:
        out = np.empty((len(a), b.shape[1]), np.float32)

        def work(start: int, stop: int) -> None:
            np.matmul(a[start:stop], b, out=out[start:stop])

        self._run(work, len(a))
        return out

    def _run(self, work: Callable[[int, int], None], n_rows: int) -> None:
        run_tiles(lambda: work, n_rows, _BLOCK, self.n_jobs)
