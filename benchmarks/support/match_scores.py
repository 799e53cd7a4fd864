"""Mutual matches of photographs, scores that tell correct ones from wrong ones, and their quality.

A method is a way to describe keypoints; a test keeps the matches whose score is high enough. The
quality of both is the number of correct matches at the lowest threshold on the score at which
`PRECISION` of the matches are correct.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kdiffhash import HammingIndex

PRECISION = 0.90
TOLERANCE = 2.0  # pixels from the epipolar line, in both photographs
N_RESAMPLES = 1000
_FOLDS = 6


@dataclass(frozen=True)
class MutualMatches:
    """Mutual nearest neighbours of all pairs of photographs of a set.

    `pair` is the number of the pair of photographs; `distance` that of the match; `second` and
    `back` are the second-nearest distances in both directions.
    """

    pair: np.ndarray
    distance: np.ndarray
    second: np.ndarray
    back: np.ndarray
    correct: np.ndarray


def two_nearest(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the nearest row of b, its distance, and the second-nearest distance."""
    if a.dtype == np.uint8:
        distances, ids = HammingIndex(b).search(a, 2)
        return ids[:, 0], distances[:, 0].astype(float), distances[:, 1].astype(float)
    squares = (a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * a @ b.T
    two = np.argpartition(squares, 1, axis=1)[:, :2]
    values = np.take_along_axis(squares, two, 1)
    order = np.argsort(values, axis=1)
    values = np.sqrt(np.maximum(np.take_along_axis(values, order, 1), 0))
    return np.take_along_axis(two, order, 1)[:, 0], values[:, 0], values[:, 1]


def mutual_matches(
    pairs: list[tuple[int, int]],
    points: list[np.ndarray],
    descriptors: list[np.ndarray],
    error: Callable[[int, int, np.ndarray, np.ndarray], np.ndarray],
) -> MutualMatches:
    """Match pairs of photographs; `error` gives the error of positions in two photographs."""
    found = []
    for number, (a, b) in enumerate(pairs):
        nearest, distance, second = two_nearest(descriptors[a], descriptors[b])
        to, _, back = two_nearest(descriptors[b], descriptors[a])
        rows = np.flatnonzero(to[nearest] == np.arange(len(nearest)))
        matched = nearest[rows]
        correct = error(a, b, points[a][rows], points[b][matched]) < TOLERANCE
        found.append(
            (np.full(len(rows), number), distance[rows], second[rows], back[matched], correct)
        )
    return MutualMatches(*(np.concatenate(columns) for columns in zip(*found)))


def one_way(matches: MutualMatches) -> np.ndarray:
    """Return the score of the ratio test in one direction."""
    return -matches.distance / np.maximum(matches.second, 1e-9)


def smaller(matches: MutualMatches) -> np.ndarray:
    """Return the score of the ratio test against the smaller of both second distances."""
    return -matches.distance / np.maximum(np.minimum(matches.second, matches.back), 1e-9)


def two_way(matches: MutualMatches) -> np.ndarray:
    """Return the score of the ratio test against the mean of both second distances."""
    score = -2 * matches.distance / np.maximum(matches.second + matches.back, 1e-9)
    return np.where(matches.distance < np.minimum(matches.second, matches.back), score, -np.inf)


TESTS = {"one-way": one_way, "smaller second": smaller, "two-way": two_way}
LEARNED = ("likelihood ratio", "logistic regression")


def learned_scores(name: str, train: MutualMatches, test: MutualMatches) -> np.ndarray:
    """Return a score learned on one set; on that set itself, by cross-validation over its pairs."""
    if train is not test:
        return _fit(name, train, np.ones(len(train.pair), bool))(test)
    scores, fold = np.empty(len(train.pair)), train.pair % _FOLDS
    for held_out in range(_FOLDS):
        rows = fold == held_out
        scores[rows] = _fit(name, train, ~rows)(test)[rows]
    return scores


def _fit(name: str, matches: MutualMatches, rows: np.ndarray) -> Any:
    """Learn a function from the distances of a match to its score."""
    if name == "logistic regression":
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        model.fit(_distances(matches)[rows], matches.correct[rows])
        return lambda other: model.decision_function(_distances(other))
    from scipy.ndimage import gaussian_filter

    # The density of distance and mean second distance among correct and among wrong matches.
    top = np.quantile(_plane(matches)[rows], 0.999, axis=0)
    edges = [np.linspace(0, value, 81) for value in top]
    histograms = []
    for kind in (matches.correct, ~matches.correct):
        counts = np.histogram2d(*_plane(matches)[rows & kind].T, bins=edges)[0]
        histograms.append(gaussian_filter(counts / counts.sum(), 1.5) + 1e-8)
    log_ratio = np.log(histograms[0] / histograms[1])

    def score(other: MutualMatches) -> np.ndarray:
        x, y = (
            np.clip(np.digitize(values, edge) - 1, 0, 79)
            for values, edge in zip(_plane(other).T, edges)
        )
        return log_ratio[x, y]

    return score


def _distances(matches: MutualMatches) -> np.ndarray:
    low = np.minimum(matches.second, matches.back)
    return np.column_stack([matches.distance, low, matches.second + matches.back - low])


def _plane(matches: MutualMatches) -> np.ndarray:
    return np.column_stack([matches.distance, (matches.second + matches.back) / 2])


class Quality:
    """The number of correct matches of a method and a test, on a set and on resamples of it."""

    def __init__(self, matches: MutualMatches, scores: np.ndarray) -> None:
        order = np.argsort(-scores, kind="stable")
        self.pair, self.correct = matches.pair[order], matches.correct[order]
        ordered = scores[order]
        # A threshold is between different scores.
        self.last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))

    def correct_at_precision(self, counts: np.ndarray) -> tuple[float, float]:
        """Return correct matches and precision, if pair i was drawn counts[i] times."""
        weights = counts[self.pair]
        total = np.cumsum(weights)[self.last]
        correct = np.cumsum(weights * self.correct)[self.last]
        precision = correct / np.maximum(total, 1)
        reached = np.flatnonzero(precision >= PRECISION)
        best = reached[-1] if len(reached) else precision.argmax()
        return float(correct[best]), float(precision[best])


def relative_quality(ours: list[Quality], base: list[Quality], n_pairs: list[int]) -> np.ndarray:
    """Return the ratio to the baseline for each set, and last the mean of the sets.

    The first row is measured on all pairs of photographs, the others on resamples of them.
    """
    rng = np.random.default_rng(0)
    rows = []
    for i in range(1 + N_RESAMPLES):
        ratios = []
        for one, other, n in zip(ours, base, n_pairs):
            drawn = np.bincount(rng.integers(0, n, n), minlength=n) if i else np.ones(n, int)
            values = [quality.correct_at_precision(drawn)[0] for quality in (one, other)]
            ratios.append(values[0] / max(values[1], 1.0))
        rows.append([*ratios, float(np.mean(ratios))])
    return np.array(rows)
