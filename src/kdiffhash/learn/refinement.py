"""Refinement of a closed-form hash by stochastic gradient descent on a loss of ranks.

The closed forms minimise a quadratic form of projections. What matters in the end is how often the
distance of a positive pair exceeds that of a negative pair. Each step takes a batch of positive
pairs, whose members are compared with each other by soft bits ``tanh(slope * (projection -
threshold))`` or by hard bits with the gradient of soft ones. Adam then updates directions,
thresholds and the basis rows of a Gaussian kernel with the gradient of a loss (see `losses.py`):

- of the hardest negative, for pairs whose members are of one kind: pairs drawn from labels, or
  given as pairs of rows of one array;
- of the ranking, for pairs of two kinds, queries and documents.

The loss is summed over prefixes of 32, 64, 128, ... bits, so that every prefix becomes a
good code.

Some objects are held out as a validation set. The result is the hash with the lowest error on this
set, and refinement stops early if that error no longer decreases.

Matrix products use one BLAS thread on tiles of fixed size, so the result does not depend on the
number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._util.progress import progress
from .._util.threads import one_blas_thread
from .encoder import compute_features
from .kernels import FeatureMap, GaussianMap, IdentityMap
from .losses import (
    Batch,
    HardestNegativeLoss,
    Loss,
    NeighborLoss,
    RankingLoss,
    multiply,
    run_rows,
)
from .moments import covariance
from .pairs import Pairs

Float32Array = NDArray[np.float32]
Int64Array = NDArray[np.int64]

_WHITENING_ROWS = 20_000  # rows from which the whitening of features is estimated
_WHITENING_FLOOR = 1e-6  # minimum eigenvalue of the features' covariance, relative to the largest
_OLD_SHARE = 0.3  # of the features of shorter prefixes, relative to new ones, in added bits
_RIDGE = 0.3  # of the variance within pairs, relative to the mean variance between rows
_VALIDATION_INTERVAL = 50  # steps between evaluations on the validation set
_VALIDATION_BATCHES = 4  # maximum size of the validation set, in batches


@dataclass(frozen=True)
class Refinement:
    """Settings of refinement. Hashers set `steps`; the defaults suit all data tried so far.

    Attributes
    ----------
    steps : int
        Maximum number of steps, one batch each.
    batch_size : int
        Number of positive pairs in a batch.
    learning_rate : float
        Initial learning rate of the thresholds and of the directions (with respect to features that
        are whitened, or half whitened unless the goal is labels); it decays to zero on a cosine
        schedule.
    basis_learning_rate : float
        Initial learning rate of the basis rows, relative to the standard deviation of their columns
        (averaged over columns); it decays in the same way. 0 keeps the basis fixed.
    slope : float
        Slope of the soft bits.
    sharpness : float
        Sharpness of `HardestNegativeLoss`, or of the targets of `NeighborLoss`.
    margin : float
        Margin of the loss, as a fraction of bits.
    shortest_prefix : int or None
        Length of the shortest prefix in the loss. Each further prefix is twice as long; the last is
        the whole code. None: only the whole code is in the loss.
    validation_fraction : float
        Fraction of the objects that is held out as the validation set. The result is the hash with
        the lowest error on it, possibly the initial one, except with ``goal="ranking"``, where the
        initial one has been fitted to these objects too closely. With fewer than two held-out
        objects there is no validation set, and the result is the hash after the last step.
    patience : int
        Early stopping: the number of consecutive evaluations without improvement after which
        refinement stops. There is one evaluation every 50 steps.
    goal : {"labels", "ranking", "neighbors"}
        ``"labels"``: `HardestNegativeLoss`. ``"ranking"``: `RankingLoss`, for which the first
        members of pairs are queries and the second ones documents. ``"neighbors"``: `NeighborLoss`
        for rows without labels; each row is paired with itself.
    temperature : float
        Temperature of `RankingLoss` and `NeighborLoss`.

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
    shortest_prefix: int | None = 32
    validation_fraction: float = 0.05
    patience: int = 10
    goal: Literal["labels", "ranking", "neighbors"] = "labels"
    temperature: float = 40.0

    @classmethod
    def for_ranking(cls, steps: int) -> Refinement:
        """Return the settings for pairs of queries and documents, chosen on text embeddings.

        Parameters
        ----------
        steps : int
            Maximum number of steps.

        Returns
        -------
        settings : Refinement
        """
        return cls(steps, batch_size=1024, learning_rate=1e-2, shortest_prefix=64, goal="ranking")

    @classmethod
    def for_neighbors(cls, steps: int) -> Refinement:
        """Return the settings for rows without labels, chosen on text embeddings.

        Parameters
        ----------
        steps : int
            Maximum number of steps.

        Returns
        -------
        settings : Refinement
        """
        return cls(
            steps,
            learning_rate=1e-2,
            shortest_prefix=None,
            goal="neighbors",
            temperature=30.0,
            sharpness=50.0,
        )

    def prefixes(self, n_bits: int) -> Int64Array:
        """Return the lengths of the prefixes in the loss, in ascending order.

        Parameters
        ----------
        n_bits : int
            Length of the codes.

        Returns
        -------
        lengths : int64 array
        """
        if self.shortest_prefix is None:
            return np.array([n_bits])
        n_shorter = max(0, int(np.ceil(np.log2(n_bits / self.shortest_prefix))))
        return np.array([*(self.shortest_prefix << k for k in range(n_shorter)), n_bits])

    def loss(self, n_bits: int, n_jobs: int | None) -> Loss:
        """Return the loss for codes of a length.

        Parameters
        ----------
        n_bits : int
            Length of the codes.
        n_jobs : int or None
            Number of threads; None takes all cores available to the process.

        Returns
        -------
        loss : Loss
        """
        prefixes = self.prefixes(n_bits)
        if self.goal == "ranking":
            return RankingLoss(prefixes, self.slope, n_jobs, self.temperature)
        if self.goal == "neighbors":
            return NeighborLoss(prefixes, self.slope, n_jobs, self.temperature, self.sharpness)
        return HardestNegativeLoss(prefixes, self.slope, n_jobs, self.sharpness, self.margin)


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
    directions: Float32Array
    thresholds: Float32Array


def refine(
    start: Hash,
    rows: Float32Array,
    positives: Pairs,
    labels: Int64Array,
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
    labels : int array of shape (n,)
        Labels of the rows. Negatives are rows with other labels in the same batch.
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
        The hash with the lowest error on the validation set, or the hash after the last step if
        there is no validation set.

    Raises
    ------
    ValueError
        If all positive pairs belong to one object.
    """
    pair_labels = labels[positives[:, 0]]
    if (pair_labels == pair_labels[0]).all():
        raise ValueError(
            "all positive pairs belong to one object, but refinement needs rows of other objects "
            "as negatives; give pairs of several objects, pass y to fit_pairs, or set refine=0"
        )
    training, validation = _split_off_validation(positives, pair_labels, settings, rng)
    with one_blas_thread(), progress(settings.steps, "refining", verbose) as advance:
        if settings.goal == "ranking":
            prefixes = settings.prefixes(len(start.directions))
            start = _rotated(start, rows, training, prefixes, rng, n_jobs)
        optimizer = _Optimizer(start, rows, settings, rng, n_jobs)
        best, lowest_error = start, np.inf
        if settings.goal != "ranking":  # else the start is fitted too closely to these objects
            lowest_error = optimizer.validation_error(validation, labels)
        n_without_improvement = 0
        for step in range(settings.steps):
            n_pairs = min(settings.batch_size, len(training))
            batch = rng.choice(len(training), n_pairs, replace=False)
            optimizer.step(_members_of(training[batch]), labels, step)
            advance(1)
            is_last = step + 1 == settings.steps
            if not validation and is_last:
                best = optimizer.hash()
            elif validation and (is_last or (step + 1) % _VALIDATION_INTERVAL == 0):
                error = optimizer.validation_error(validation, labels)
                n_without_improvement += 1
                if error < lowest_error:
                    best, lowest_error, n_without_improvement = optimizer.hash(), error, 0
                elif n_without_improvement == settings.patience:
                    break
    return best


def _members_of(pairs: Pairs) -> Int64Array:
    """Return the first members of all pairs, followed by the second ones.

    In an array of n members, the partner of member i is therefore member (i + n / 2) mod n.
    """
    return pairs.T.ravel()


def _split_off_validation(
    positives: Pairs, pair_labels: Int64Array, settings: Refinement, rng: np.random.Generator
) -> tuple[Pairs, list[Int64Array]]:
    """Return the training pairs, and the members of each batch of held-out pairs."""
    distinct = np.unique(pair_labels)
    held_out = rng.permutation(distinct)[: int(settings.validation_fraction * len(distinct))]
    if len(held_out) < 2:
        return positives, []
    is_held_out = np.isin(pair_labels, held_out)
    max_pairs = _VALIDATION_BATCHES * settings.batch_size
    chosen = rng.permutation(positives[is_held_out])[:max_pairs]
    batches = np.array_split(chosen, -(-len(chosen) // settings.batch_size))
    return positives[~is_held_out], [_members_of(batch) for batch in batches]


def _rotated(
    start: Hash,
    rows: Float32Array,
    positives: Pairs,
    prefixes: Int64Array,
    rng: np.random.Generator,
    n_jobs: int | None,
) -> Hash:
    """Replace the directions by random mixtures of them, which suits unweighted bits.

    A closed form begins with a few good directions and ends with weak ones. First each direction is
    divided by its (regularised) spread within positive pairs, so that those along which the members
    of a pair agree count most. Then the bits of the first prefix become random orthogonal mixtures
    of as many directions. The bits that a longer prefix adds contain the directions of the shorter
    ones too, with a smaller weight, because a bit of weak directions alone would be of little use.
    Projections get variance 1, and thresholds lie at their mean.
    """
    sample = rows[:: -(-len(rows) // _WHITENING_ROWS)]
    values = compute_features(sample, None, start.features, n_jobs)
    first, second = (
        compute_features(rows[members], None, start.features, n_jobs)
        for members in positives[:: -(-len(positives) // _WHITENING_ROWS)].T
    )
    transposed = np.ascontiguousarray(start.directions.T)
    within = np.square(multiply(first - second, transposed, n_jobs)).mean(axis=0, dtype=np.float64)
    if isinstance(start.features, IdentityMap):  # may have as many directions as features
        spread = 2 * values.var(axis=0, dtype=np.float64).mean()
        within += _RIDGE * spread * np.square(start.directions).sum(axis=1)
    directions = start.directions / np.sqrt(np.maximum(within, 1e-30))[:, None]

    rotated, low = np.empty(directions.shape), 0
    for high in prefixes:
        mixtures = rng.standard_normal((high - low, high))
        mixtures[:, :low] *= _OLD_SHARE
        rotated[low:high] = np.linalg.qr(mixtures.T)[0].T @ directions[:high]
        low = high
    projections = multiply(values, rotated.T.astype(np.float32), n_jobs)
    rotated /= np.maximum(projections.std(axis=0, dtype=np.float64), 1e-30)[:, None]
    thresholds = rotated @ values.mean(axis=0, dtype=np.float64)
    return Hash(start.features, rotated.astype(np.float32), thresholds.astype(np.float32))


@dataclass
class _Parameter:
    """Learned values, with Adam's running means of their gradient and of its square."""

    values: Float32Array
    learning_rate: float
    mean: Float32Array = field(init=False)
    square: Float32Array = field(init=False)

    def __post_init__(self) -> None:
        self.mean, self.square = np.zeros((2, self.values.size), np.float32)

    def update(self, gradient: Float32Array, step: int, decay: float) -> None:
        """Make a step of Adam, counted from 0, with the learning rate multiplied by `decay`."""
        # bias correction; beta1 = 0.9 and beta2 = 0.999 as in descent.cpp
        step_size = decay * self.learning_rate / (1 - 0.9 ** (step + 1))
        square_scale = 1 / (1 - 0.999 ** (step + 1))
        flat = np.ascontiguousarray(gradient).reshape(-1)
        values = self.values.reshape(-1)
        _core.adam_step(values, flat, self.mean, self.square, step_size, square_scale)


class _Optimizer:
    """Directions and centred thresholds on whitened features, and basis rows, during refinement.

    A centred threshold applies to the projection of features from which their mean is subtracted.
    """

    def __init__(
        self,
        start: Hash,
        rows: Float32Array,
        settings: Refinement,
        rng: np.random.Generator,
        n_jobs: int | None,
    ) -> None:
        self.rows, self.settings, self.n_jobs = rows, settings, n_jobs
        self.loss = settings.loss(len(start.directions), n_jobs)

        sample = np.sort(rng.choice(len(rows), min(_WHITENING_ROWS, len(rows)), replace=False))
        values = compute_features(rows[sample], None, start.features, n_jobs)
        self.feature_mean = values.mean(axis=0, dtype=np.float64).astype(np.float32)
        eigenvalues, eigenvectors = np.linalg.eigh(covariance(values, n_jobs))
        floor = max(_WHITENING_FLOOR * eigenvalues[-1], 1e-30)
        roots = np.sqrt(np.maximum(eigenvalues, floor))
        # Projections start with variance 1, so that the slope means the same for all bits.
        directions = start.directions.astype(np.float64)
        deviations = np.sqrt(((directions @ eigenvectors) ** 2 * roots**2).sum(axis=1))
        deviations = np.maximum(deviations, 1e-30)
        directions /= deviations[:, None]
        thresholds = start.thresholds / deviations - directions @ self.feature_mean
        if settings.goal != "labels":
            # Whitened embeddings are overfitted: their weakest components are mostly noise. So they
            # are whitened by half, and scaled such that an entry of a direction is about 1.
            roots = np.sqrt(roots)
            roots /= np.sqrt(np.mean((directions @ eigenvectors * roots) ** 2))
        whitened = (directions @ eigenvectors * roots) @ eigenvectors.T
        self.whitening = np.asarray((eigenvectors / roots) @ eigenvectors.T, np.float32)
        rate = settings.learning_rate
        self.whitened_directions = _Parameter(np.ascontiguousarray(whitened, np.float32), rate)
        self.centred_thresholds = _Parameter(thresholds.astype(np.float32), rate)
        self.features, self.basis, self.metric = start.features, None, None
        if isinstance(start.features, GaussianMap) and settings.basis_learning_rate > 0:
            basis = start.features.basis.copy()
            deviation = float(basis.std(axis=0).mean())
            self.basis = _Parameter(basis, settings.basis_learning_rate * deviation)
            if start.features.metric is not None:
                self.metric = start.features.metric @ start.features.metric.T
        self._update_hash()

    def _update_hash(self) -> None:
        """Set features, directions and thresholds from the learned parameters."""
        if self.basis is not None and isinstance(self.features, GaussianMap):
            self.features = replace(self.features, basis=self.basis.values)
        self.directions = multiply(self.whitened_directions.values, self.whitening, self.n_jobs)
        self.thresholds = self.centred_thresholds.values + self.directions @ self.feature_mean

    def hash(self) -> Hash:
        """Return the current hash."""
        features = self.features
        if isinstance(features, GaussianMap):
            features = replace(features, basis=features.basis.copy())
        return Hash(features, self.directions, self.thresholds)

    def step(self, members: Int64Array, labels: Int64Array, step: int) -> None:
        """Make one step on the members of a batch of pairs."""
        decay = (1 + np.cos(np.pi * step / self.settings.steps)) / 2
        for parameter, gradient in self.gradients(members, labels):
            parameter.update(gradient, step, decay)
        self._update_hash()

    def gradients(
        self, members: Int64Array, labels: Int64Array
    ) -> list[tuple[_Parameter, Float32Array]]:
        """Return each learned parameter with the gradient of the loss on a batch."""
        batch = self.rows[members]
        values = compute_features(batch, None, self.features, self.n_jobs)
        projections = multiply(values, self.directions.T, self.n_jobs)
        grad_projection = self.loss.gradient(
            projections, self.thresholds, Batch(labels[members], batch)
        )
        grad_threshold = -grad_projection.sum(axis=0)
        grad_direction = multiply(grad_projection.T, values, self.n_jobs)
        grad_direction += np.outer(grad_threshold, self.feature_mean)
        gradients = [
            (self.whitened_directions, multiply(grad_direction, self.whitening, self.n_jobs)),
            (self.centred_thresholds, grad_threshold),
        ]
        if self.basis is not None:
            gradients.append((self.basis, self._basis_gradient(batch, values, grad_projection)))
        return gradients

    def validation_error(self, batches: list[Int64Array], labels: Int64Array) -> float:
        """Return the validation error, computed with hard bits, summed over batches."""
        total = 0.0
        for members in batches:
            batch = Batch(labels[members], self.rows[members])
            values = compute_features(batch.rows, None, self.features, self.n_jobs)
            projections = multiply(values, self.directions.T, self.n_jobs)
            total += self.loss.error(projections, self.thresholds, batch)
        return total

    def _basis_gradient(
        self, batch: Float32Array, values: Float32Array, grad_projection: Float32Array
    ) -> Float32Array:
        """Compute the gradient with respect to basis rows.

        For basis row b it is the sum over rows x of 2 gamma c (x - b), multiplied by `self.metric`
        if there is one, where c is the kernel value k(x, b) times the gradient with respect to it.
        """
        features = self.features
        if not isinstance(features, GaussianMap):
            raise TypeError("only the basis of a Gaussian kernel can be refined")
        weights = np.empty_like(values)

        def work(start: int, stop: int) -> None:
            np.matmul(grad_projection[start:stop], self.directions, out=weights[start:stop])
            weights[start:stop] *= values[start:stop]

        run_rows(work, len(values), self.n_jobs)
        shift = features.shift
        gradient = multiply(weights.T, batch - shift, self.n_jobs)
        gradient -= weights.sum(axis=0)[:, None] * (features.basis - shift)
        gradient *= np.float32(2 * features.gamma)
        if self.metric is not None:
            gradient = multiply(gradient, self.metric, self.n_jobs)
        return gradient
