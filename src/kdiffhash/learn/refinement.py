"""Refinement of a closed-form hash by stochastic gradient descent on a ranking loss.

The closed forms minimise a quadratic form of projections. What matters in the end is how often the
Hamming distance of a positive pair exceeds that of a negative pair. Each step takes a batch of
positive pairs, computes soft bits ``tanh(slope * (projection - threshold))`` and finds, for each
row x of the batch, the nearest row of another object in the batch (the hardest negative). Adam then
updates directions, thresholds and the basis rows of a Gaussian kernel by the gradient of the loss

    mean of softplus(sharpness * (d(x, partner) - d(x, hardest negative) + margin)),

where d is the share of bits that differ. The loss is summed over prefixes of 32, 64, 128, ... bits,
so that every prefix becomes a good code.

Some objects are held out as a validation set. Their error selects the best hash and stops the
descent early.

Matrix products use one BLAS thread on blocks of fixed size, so the result does not depend on the
number of threads.
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

_BLOCK = 256  # rows per block of a product
_COLUMNS = 32  # bits per block of the gradient by soft bits
_WHITENING_ROWS = 20_000  # rows from which the whitening of features is estimated
_WHITENING_FLOOR = 1e-6  # for eigenvalues of the features' covariance, relative to the largest
_VALIDATION_INTERVAL = 50  # steps between evaluations on the validation set
_VALIDATION_BATCHES = 4  # maximum size of the validation set, in batches


@dataclass(frozen=True)
class Refinement:
    """Settings of the descent. Hashers set `steps`; the defaults suit all data tried so far.

    Attributes
    ----------
    steps : int
        Maximum number of steps, one batch each.
    batch_size : int
        Number of positive pairs in a batch.
    learning_rate : float
        Initial learning rate of directions, on whitened features, and of thresholds. It decays to
        zero along a cosine.
    basis_learning_rate : float
        Initial learning rate of basis rows, relative to the mean standard deviation of their
        entries, with the same decay. 0 keeps the basis fixed.
    slope : float
        Slope of the soft bits.
    sharpness : float
        Sharpness of the loss.
    margin : float
        Margin of the loss, as a share of bits.
    shortest_prefix : int
        Length of the shortest prefix in the loss. Each further prefix is twice as long; the last is
        the whole code.
    validation_fraction : float
        Share of the objects that is held out as the validation set. The result is the hash with the
        lowest error on it, possibly the initial one. If this is fewer than two objects, there is no
        validation set, and the result is the hash after the last step.
    patience : int
        Early stopping: the number of consecutive evaluations without improvement, one every 50
        steps, after which the descent stops.

    Examples
    --------
    >>> from kdiffhash.learn.refinement import Refinement
    >>> Refinement(steps=1000).batch_size
    512
    """

    steps: int
    batch_size: int = 512
    learning_rate: float = 1e-3
    basis_learning_rate: float = 1.5e-3
    slope: float = 1.0
    sharpness: float = 30.0
    margin: float = 0.1
    shortest_prefix: int = 32
    validation_fraction: float = 0.05
    patience: int = 10


@dataclass(frozen=True)
class Hash:
    """The parameters of a hash that refinement changes.

    Attributes
    ----------
    features : FeatureMap
        The map from rows to features; the basis of a `GaussianMap` is refined too.
    directions : float32 array of shape (n_bits, features.width)
    thresholds : float32 array of shape (n_bits,)
    """

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
    """Refine a hash by gradient descent.

    Parameters
    ----------
    start : Hash
        The initial hash.
    rows : float32 array of shape (n, d)
        Preprocessed rows.
    positives : int array of shape (p, 2)
        Positive pairs of rows.
    objects : int array of shape (n,)
        Labels of the rows. Negatives are rows of other objects in the same batch.
    settings : Refinement
    rng : numpy.random.Generator
        Draws the validation set, the rows for whitening, and the batches.
    n_jobs : int or None, default=None
        Number of threads; None uses all cores. The result does not depend on it.
    verbose : bool, default=False
        Show progress on a terminal.

    Returns
    -------
    best : Hash
        The hash with the lowest error on the validation set.

    Raises
    ------
    ValueError
        If all positive pairs belong to one object.
    """
    pair_objects = objects[positives[:, 0]]
    if (pair_objects == pair_objects[0]).all():
        raise ValueError(
            "all positive pairs belong to one object, but refinement needs rows of other objects "
            "as negatives; give pairs of several objects, pass y to fit_pairs, or set refine=0"
        )
    training, validation = _split_off_validation(positives, pair_objects, settings, rng)
    with one_blas_thread(), progress(settings.steps, "refining", verbose) as advance:
        descent = _Descent(start, rows, settings, rng, n_jobs)
        best, lowest_error = start, descent.validation_error(validation, objects)
        n_without_improvement = 0
        for number in range(settings.steps):
            batch = rng.choice(
                len(training), min(settings.batch_size, len(training)), replace=False
            )
            descent.step(_members(training[batch]), objects, number)
            advance(1)
            last = number + 1 == settings.steps
            if not validation and last:
                best = descent.hash()
            elif validation and (last or (number + 1) % _VALIDATION_INTERVAL == 0):
                error = descent.validation_error(validation, objects)
                n_without_improvement += 1
                if error < lowest_error:
                    best, lowest_error, n_without_improvement = descent.hash(), error, 0
                elif n_without_improvement == settings.patience:
                    break
    return best


def _split_off_validation(
    positives: Pairs, pair_objects: Ids, settings: Refinement, rng: np.random.Generator
) -> tuple[Pairs, list[Ids]]:
    """Return the training pairs, and batches of rows of the objects that are held out."""
    distinct = np.unique(pair_objects)
    held_out = rng.permutation(distinct)[: int(settings.validation_fraction * len(distinct))]
    if len(held_out) < 2:
        return positives, []
    is_held_out = np.isin(pair_objects, held_out)
    max_pairs = _VALIDATION_BATCHES * settings.batch_size
    chosen = rng.permutation(positives[is_held_out])[:max_pairs]
    batches = np.array_split(chosen, -(-len(chosen) // settings.batch_size))
    return positives[~is_held_out], [_members(batch) for batch in batches]


def _members(pairs: Pairs) -> Ids:
    """Return the first members of all pairs, followed by the second ones.

    In an array of n members, the partner of member i is therefore member (i + n / 2) mod n.
    """
    return pairs.T.ravel()


@dataclass
class _Parameter:
    """Values that are learned, with Adam's running moments of their gradients."""

    values: Rows
    learning_rate: float
    mean: Rows = field(init=False)
    square: Rows = field(init=False)

    def __post_init__(self) -> None:
        self.mean, self.square = np.zeros((2, self.values.size), np.float32)

    def move(self, gradient: Rows, number: int, share: float) -> None:
        """Make step `number`, counted from 0, at a share of the learning rate."""
        size = share * self.learning_rate / (1 - 0.9 ** (number + 1))  # Adam's usual constants
        scale = 1 / (1 - 0.999 ** (number + 1))
        flat = np.ascontiguousarray(gradient).reshape(-1)
        _core.adam_step(self.values.reshape(-1), flat, self.mean, self.square, size, scale)


class _Descent:
    """State of the descent: directions and offsets on whitened features, and basis rows."""

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
        n_shorter = max(0, int(np.ceil(np.log2(n_bits / settings.shortest_prefix))))
        shorter = [settings.shortest_prefix << k for k in range(n_shorter)]
        self.prefixes = np.array([*shorter, n_bits])

        sample = np.sort(rng.choice(len(rows), min(_WHITENING_ROWS, len(rows)), replace=False))
        values = compute_features(rows[sample], None, start.features, n_jobs)
        self.mean = values.mean(axis=0, dtype=np.float64).astype(np.float32)
        spread = covariance(values, n_jobs)
        sizes, axes = np.linalg.eigh(spread)
        roots = np.sqrt(np.maximum(sizes, max(_WHITENING_FLOOR * sizes[-1], 1e-30)))
        self.whiten = np.asarray((axes / roots) @ axes.T, np.float32)

        # Projections start with variance 1, so that the slope means the same for all bits.
        directions = start.directions.astype(np.float64)
        scales = np.sqrt(((directions @ axes) ** 2 * roots**2).sum(axis=1))
        directions /= np.maximum(scales, 1e-30)[:, None]
        offsets = start.thresholds / np.maximum(scales, 1e-30) - directions @ self.mean
        white = (directions @ axes * roots) @ axes.T
        self.white = _Parameter(np.ascontiguousarray(white, np.float32), settings.learning_rate)
        self.offsets = _Parameter(offsets.astype(np.float32), settings.learning_rate)
        self.features, self.basis, self.metric = start.features, None, None
        if isinstance(start.features, GaussianMap) and settings.basis_learning_rate > 0:
            basis = start.features.basis.copy()
            spread_of_basis = float(basis.std(axis=0).mean())
            self.basis = _Parameter(basis, settings.basis_learning_rate * spread_of_basis)
            if start.features.metric is not None:
                self.metric = start.features.metric @ start.features.metric.T
        self._update_hash()

    def _update_hash(self) -> None:
        """Set features, directions and thresholds from the learned parameters."""
        if self.basis is not None and isinstance(self.features, GaussianMap):
            self.features = replace(self.features, basis=self.basis.values)
        self.directions = self._product(self.white.values, self.whiten)
        self.thresholds = self.offsets.values + self.directions @ self.mean

    def hash(self) -> Hash:
        """Return the current hash."""
        features = self.features
        if isinstance(features, GaussianMap):
            features = replace(features, basis=features.basis.copy())
        return Hash(features, self.directions, self.thresholds)

    def step(self, items: Ids, objects: Ids, number: int) -> None:
        """Make one step on a batch of rows."""
        share = (1 + np.cos(np.pi * number / self.settings.steps)) / 2
        for parameter, gradient in self.gradients(items, objects):
            parameter.move(gradient, number, share)
        self._update_hash()

    def gradients(self, items: Ids, objects: Ids) -> list[tuple[_Parameter, Rows]]:
        """Return each learned parameter with the gradient of the loss on a batch of rows."""
        batch = self.rows[items]
        values = compute_features(batch, None, self.features, self.n_jobs)
        soft = self._soft_bits(values)
        by_projection = self._by_projection(soft, *self._compare(soft, objects[items]))
        by_offset = -by_projection.sum(axis=0)
        by_direction = self._product(by_projection.T, values)
        by_direction += np.outer(by_offset, self.mean)
        gradients = [
            (self.white, self._product(by_direction, self.whiten)),
            (self.offsets, by_offset),
        ]
        if self.basis is not None:
            gradients.append((self.basis, self._by_basis(batch, values, by_projection)))
        return gradients

    def validation_error(self, batches: list[Ids], objects: Ids) -> float:
        """Return how often the hardest negative is nearer than the partner, with hard bits.

        The shares, over all prefixes, are summed over batches; ties count half.
        """
        total = 0.0
        for items in batches:
            values = compute_features(self.rows[items], None, self.features, self.n_jobs)
            above = self._product(values, self.directions.T) > self.thresholds
            bits = np.where(above, np.float32(1), np.float32(-1))
            excess = self._compare(bits, objects[items])[1]
            total += float((excess > 0).mean() + (excess == 0).mean() / 2)
        return total

    def _soft_bits(self, values: Rows) -> Rows:
        """Compute ``tanh(slope * (projection - threshold))``."""
        soft = np.empty((len(values), len(self.directions)), np.float32)
        factor = 2 * self.settings.slope * LOG2_E

        def work(start: int, stop: int) -> None:
            projections = values[start:stop] @ self.directions.T
            _core.soft_bits(projections, self.thresholds, factor, soft[start:stop])

        self._run(work, len(values))
        return soft

    def _compare(self, soft: Rows, objects: Ids) -> tuple[NDArray[np.int32], Rows]:
        """Find the hardest negative of each row, and how much nearer than the partner it is.

        Returns
        -------
        nearest : int32 array of shape (n_prefixes, n_items)
            Position, in the batch, of the nearest row of another object.
        excess : float32 array of shape (n_prefixes, n_items)
            Distance of the partner minus distance of the negative, as a share of bits.
        """
        n = len(soft)
        nearest = np.empty((len(self.prefixes), n), np.int32)
        excess = np.empty((len(self.prefixes), n), np.float32)

        def work(start: int, stop: int) -> None:
            similarity = np.zeros((stop - start, n), np.float32)
            to_partner, to_negative = np.zeros((2, stop - start), np.float32)
            low = 0
            for k, high in enumerate(self.prefixes):
                similarity += soft[start:stop, low:high] @ soft[:, low:high].T
                if k == 0:
                    _core.mask_same_label(similarity, start, objects)
                _core.add_partner_similarity(soft, low, high, start, to_partner)
                _core.find_largest(similarity, nearest[k, start:stop], to_negative)
                excess[k, start:stop] = (to_negative - to_partner) / (2 * high)
                low = high

        self._run(work, n)
        return nearest, excess

    def _by_projection(self, soft: Rows, nearest: NDArray[np.int32], excess: Rows) -> Rows:
        """Compute the gradient by projections, shape (n_items, n_bits)."""
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
        """Compute the gradient by basis rows.

        For basis row b it is the sum over rows x of 2 gamma c (x - b), mapped by the metric, where
        c is the gradient by the kernel value times the kernel value.
        """
        features = self.features
        if not isinstance(features, GaussianMap):
            raise TypeError("only the basis of a Gaussian kernel can be refined")
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
        """Compute ``a @ b`` on several threads."""
        out = np.empty((len(a), b.shape[1]), np.float32)

        def work(start: int, stop: int) -> None:
            np.matmul(a[start:stop], b, out=out[start:stop])

        self._run(work, len(a))
        return out

    def _run(self, work: Callable[[int, int], None], n_rows: int) -> None:
        run_tiles(lambda: work, n_rows, _BLOCK, self.n_jobs)
