"""Losses of refinement: of the hardest negative, and of the ranking of a batch.

A batch has n members: the first members of all pairs, followed by the second ones in the same
order. A loss takes their projections and returns its gradient with respect to them. Every loss is
summed over prefixes of the code, so that every prefix becomes a good code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._util.threads import run_tiles
from .kernels import LOG2_E

Float32Array = NDArray[np.float32]
Int64Array = NDArray[np.int64]

_TILE = 256  # rows per tile of a product
_TILE_BITS = 32  # bits per tile of the gradient with respect to soft bits


def multiply(a: Float32Array, b: Float32Array, n_jobs: int | None) -> Float32Array:
    """Compute ``a @ b`` on several threads; the result does not depend on their number."""
    out = np.empty((len(a), b.shape[1]), np.float32)

    def work(start: int, stop: int) -> None:
        np.matmul(a[start:stop], b, out=out[start:stop])

    run_rows(work, len(a), n_jobs)
    return out


def run_rows(work: Callable[[int, int], None], n_rows: int, n_jobs: int | None) -> None:
    """Call ``work(start, stop)`` for each tile of rows, on several threads."""
    run_tiles(lambda: work, n_rows, _TILE, n_jobs)


class Batch(NamedTuple):
    """Labels and preprocessed rows of the members of a batch; negatives have other labels."""

    labels: Int64Array
    rows: Float32Array


@dataclass(frozen=True)
class Loss(ABC):
    """A loss on the projections of a batch.

    Attributes
    ----------
    prefixes : int64 array
        Lengths of the prefixes in ascending order; the last is the whole code.
    slope : float
        Slope of the soft bits ``tanh(slope * (projection - threshold))``.
    n_jobs : int or None
        Number of threads; None uses all cores. The result does not depend on it.
    """

    prefixes: Int64Array
    slope: float
    n_jobs: int | None

    @abstractmethod
    def gradient(
        self, projections: Float32Array, thresholds: Float32Array, batch: Batch
    ) -> Float32Array:
        """Return the gradient with respect to the projections, shape (n, n_bits).

        Parameters
        ----------
        projections : float32 array of shape (n, n_bits)
            Projections of the members of a batch.
        thresholds : float32 array of shape (n_bits,)
        batch : Batch
            Labels and rows of the members.
        """

    @abstractmethod
    def error(self, projections: Float32Array, thresholds: Float32Array, batch: Batch) -> float:
        """Return the error of the hard bits, by which the best hash is chosen."""

    def _soft_bits(self, projections: Float32Array, thresholds: Float32Array) -> Float32Array:
        soft = np.empty_like(projections)
        factor = 2 * self.slope * LOG2_E

        def work(start: int, stop: int) -> None:
            _core.soft_bits(projections[start:stop], thresholds, factor, soft[start:stop])

        run_rows(work, len(projections), self.n_jobs)
        return soft


@dataclass(frozen=True)
class HardestNegativeLoss(Loss):
    """Mean of ``softplus(sharpness * (d(x, partner) - d(x, hardest negative) + margin))``.

    d is the fraction of soft bits that differ, and the hardest negative of a member x is the
    nearest member with another label.

    Attributes
    ----------
    sharpness : float
    margin : float
        As a fraction of bits.
    """

    sharpness: float
    margin: float

    def gradient(
        self, projections: Float32Array, thresholds: Float32Array, batch: Batch
    ) -> Float32Array:
        """Return the gradient with respect to the projections, shape (n, n_bits)."""
        soft = self._soft_bits(projections, thresholds)
        nearest, excess = self._hardest_negatives(soft, batch.labels)
        scaled = np.maximum(self.sharpness * (excess + self.margin), -80)
        slopes = self.sharpness / (1 + np.exp(-scaled)) / (2 * len(soft) * self.prefixes[:, None])
        slopes = slopes.astype(np.float32)
        gradient = np.zeros_like(soft)

        def work(start: int, stop: int) -> None:
            _core.add_gradient(soft, nearest, slopes, self.prefixes, start, stop, gradient)

        run_tiles(lambda: work, soft.shape[1], _TILE_BITS, self.n_jobs)
        gradient *= np.float32(self.slope) * (1 - soft * soft)
        return gradient

    def error(self, projections: Float32Array, thresholds: Float32Array, batch: Batch) -> float:
        """Return the fraction of (member, prefix) in which the hardest negative is nearer.

        Nearer than the partner, that is; ties count half.
        """
        bits = np.where(projections > thresholds, np.float32(1), np.float32(-1))
        _, excess = self._hardest_negatives(bits, batch.labels)
        return float((excess > 0).mean() + (excess == 0).mean() / 2)

    def _hardest_negatives(
        self, soft: Float32Array, labels: Int64Array
    ) -> tuple[NDArray[np.int32], Float32Array]:
        """Find the hardest negative of each member, for each prefix.

        Returns
        -------
        nearest : int32 array of shape (n_prefixes, n)
            Position, in the batch, of the nearest member with another label.
        excess : float32 array of shape (n_prefixes, n)
            Distance of the partner minus distance of the negative, as a fraction of bits.
        """
        n = len(soft)
        nearest = np.empty((len(self.prefixes), n), np.int32)
        excess = np.empty((len(self.prefixes), n), np.float32)

        def work(start: int, stop: int) -> None:
            similarity = np.zeros((stop - start, n), np.float32)
            partner_similarity, negative_similarity = np.zeros((2, stop - start), np.float32)
            low = 0
            for k, high in enumerate(self.prefixes):
                similarity += soft[start:stop, low:high] @ soft[:, low:high].T
                if k == 0:
                    _core.mask_same_label(similarity, start, labels)
                _core.add_partner_similarity(soft, low, high, start, partner_similarity)
                _core.find_largest(similarity, nearest[k, start:stop], negative_similarity)
                excess[k, start:stop] = (negative_similarity - partner_similarity) / (2 * high)
                low = high

        run_rows(work, n, self.n_jobs)
        return nearest, excess


@dataclass(frozen=True)
class RankingLoss(Loss):
    """Cross-entropy of finding the partner of each query among the documents of a batch.

    The first members of the pairs are queries, the second ones documents. Documents are given by
    their bits b, queries once by their bits and once by their centred projections q (projections
    minus thresholds), as in searches with float queries. The logits are the cosines

        ``temperature * (b . b') / n_bits``   and   ``temperature * (q . b') / (|q| sqrt(n_bits))``.

    The loss is the mean of two cross-entropies: of documents given a query, and of queries given a
    document. Rows with the label of a query or document other than its partner are left out. Bits
    are hard, but have the gradient of soft bits (straight-through estimation).

    Attributes
    ----------
    temperature : float
        What the cosines are multiplied by.
    """

    temperature: float

    def gradient(
        self, projections: Float32Array, thresholds: Float32Array, batch: Batch
    ) -> Float32Array:
        """Return the gradient with respect to the projections, shape (n, n_bits)."""
        half = len(projections) // 2
        floats, bits = self._centred(projections, thresholds)
        queries, documents = bits[:half], bits[half:]
        excluded, targets = self._targets(batch)
        by_bit, by_float = np.empty_like(bits), np.empty_like(queries)
        # The logits' gradients, times the scale of the logits. A bit is in its own prefix and in
        # all longer ones, so these are summed up from the longest prefix to the shortest.
        pull, float_pull = np.zeros((2, half, half), np.float32)
        shrinkage = np.zeros((half, 1), np.float32)  # from the division by |q|
        for low, high, products, float_products, lengths in reversed(
            list(self._products(floats, queries, documents))
        ):
            scale = np.float32(self.temperature / high)
            pull += scale * self._cross_entropy(scale * products, excluded, targets)[1]
            scales = np.float32(self.temperature / np.sqrt(high)) / lengths
            logits = scales * float_products
            gradient = self._cross_entropy(logits, excluded, targets)[1]
            float_pull += scales * gradient
            shrinkage += (gradient * logits).sum(axis=1, keepdims=True) / lengths**2
            own = slice(low, high)
            by_bit[:half, own] = multiply(pull, documents[:, own], self.n_jobs)
            by_bit[half:, own] = multiply(pull.T, queries[:, own], self.n_jobs)
            by_bit[half:, own] += multiply(float_pull.T, floats[:, own], self.n_jobs)
            by_float[:, own] = multiply(float_pull, documents[:, own], self.n_jobs)
            by_float[:, own] -= shrinkage * floats[:, own]
        soft = self._soft_bits(projections, thresholds)
        by_bit *= np.float32(self.slope) * (1 - soft * soft)
        by_bit[:half] += by_float
        return by_bit

    def error(self, projections: Float32Array, thresholds: Float32Array, batch: Batch) -> float:
        """Return the loss."""
        half = len(projections) // 2
        floats, bits = self._centred(projections, thresholds)
        excluded, targets = self._targets(batch)
        total = 0.0
        for _, high, products, float_products, lengths in self._products(
            floats, bits[:half], bits[half:]
        ):
            logits = np.float32(self.temperature / high) * products
            total += self._cross_entropy(logits, excluded, targets)[0]
            scales = np.float32(self.temperature / np.sqrt(high)) / lengths
            total += self._cross_entropy(scales * float_products, excluded, targets)[0]
        return total

    def _centred(
        self, projections: Float32Array, thresholds: Float32Array
    ) -> tuple[Float32Array, Float32Array]:
        """Return the centred projections of the queries, and the bits of all members as -1, 1."""
        centred = projections - thresholds
        bits = np.where(centred > 0, np.float32(1), np.float32(-1))
        return centred[: len(centred) // 2], bits

    def _products(
        self, floats: Float32Array, queries: Float32Array, documents: Float32Array
    ) -> Iterator[tuple[int, int, Float32Array, Float32Array, Float32Array]]:
        """Yield products of queries and documents for each prefix, and the lengths |q|.

        Also the range of bits that the prefix has in addition to the previous one.
        """
        n, low = len(queries), 0
        products, float_products = np.zeros((2, n, n), np.float32)
        squares = np.zeros((n, 1), np.float32)
        for high in self.prefixes:
            own = slice(low, high)
            products = products + multiply(queries[:, own], documents[:, own].T, self.n_jobs)
            float_products = float_products + multiply(
                floats[:, own], documents[:, own].T, self.n_jobs
            )
            squares = squares + np.square(floats[:, own]).sum(axis=1, keepdims=True)
            yield low, int(high), products, float_products, np.sqrt(np.maximum(squares, 1e-30))
            low = high

    def _targets(self, batch: Batch) -> tuple[NDArray[np.bool_], Float32Array]:
        """Return which documents are left out for a query, and the weights of the others."""
        queries, documents = np.split(batch.labels, 2)
        excluded = np.equal.outer(queries, documents)
        np.fill_diagonal(excluded, False)
        return excluded, np.eye(len(queries), dtype=np.float32)

    def _cross_entropy(
        self, logits: Float32Array, excluded: NDArray[np.bool_], targets: Float32Array
    ) -> tuple[float, Float32Array]:
        """Return the loss and its gradient with respect to the logits."""
        n = len(logits)
        shares = np.empty_like(logits)

        def exponentiate(start: int, stop: int) -> None:  # logits are at most the temperature
            tile = logits[start:stop] - np.float32(self.temperature)
            tile[excluded[start:stop]] = -np.inf
            np.exp(tile, out=shares[start:stop])

        run_rows(exponentiate, n, self.n_jobs)
        by_row = shares.sum(axis=1, keepdims=True)
        by_column = shares.sum(axis=0, keepdims=True)
        sums = np.log(by_row.ravel()).astype(np.float64) + np.log(by_column.ravel())
        own = np.multiply(targets, logits, dtype=np.float64).sum() / n
        loss = float(sums.mean() / 2 + self.temperature - own)
        shares *= np.float32(0.5 / n) / by_row + np.float32(0.5 / n) / by_column
        shares -= np.float32(1 / n) * targets
        return loss, shares


@dataclass(frozen=True)
class NeighborLoss(RankingLoss):
    """`RankingLoss` whose targets are the similarities of the rows, for rows without labels.

    Both members of a pair are the same row. Instead of one document, the target of a query is a
    distribution over the other rows of the batch: the softmax of the cosine similarities of the
    rows, multiplied by `sharpness`. So codes learn to keep the order of neighbours (distillation).

    Attributes
    ----------
    sharpness : float
    """

    sharpness: float

    def _targets(self, batch: Batch) -> tuple[NDArray[np.bool_], Float32Array]:
        """Return that no row is its own neighbour, and the weights of the other rows."""
        rows = batch.rows[: len(batch.rows) // 2]
        lengths = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
        rows = rows / np.maximum(lengths, 1e-30)
        weights = multiply(rows, np.ascontiguousarray(rows.T), self.n_jobs)
        itself = np.equal.outer(*np.split(batch.labels, 2))
        weights = np.exp(np.float32(self.sharpness) * (weights - 1))
        weights[itself] = 0
        weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-30)
        return itself, np.asarray((weights + weights.T) / 2)
