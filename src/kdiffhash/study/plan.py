"""What a study does: scenes, methods, lengths and numbers of pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..datasets import Scene, load_scene
from ..pairs import Pairs, Similar

LENGTHS = (32, 64, 128, 256, 512)
ALPHAS = (0.5, 1.0, 2.0, 5.0, 25.0, 100.0, 1000.0, float("inf"))


@dataclass(frozen=True)
class Plan:
    """Everything that the results of a study depend on.

    A scene that is both trained on and tested on is split by its points: one half to train, the
    other to test, whichever scene it is tested against. So a column of the train-test matrix always
    has the same test pairs.
    """

    train: tuple[str, ...]
    test: tuple[str, ...]
    methods: tuple[str, ...]
    lengths: tuple[int, ...] = LENGTHS
    n_positives: int = 100_000
    n_negatives: int = 200_000
    n_test_negatives: int = 1_000_000
    n_resamples: int = 200
    n_basis: int = 1000
    longest_slow: int = 512
    refine_steps: int = 1000
    grid_positives: int = 20_000
    grid_negatives: int = 40_000
    grid_basis: int = 400
    n_queries: int = 400
    n_shown: int = 16
    hog_points: int = 3000
    seed: int = 0

    @property
    def split(self) -> set[str]:
        """Scenes that are trained and tested on."""
        return set(self.train) & set(self.test)


def quick(plan: Plan) -> Plan:
    """The plan for a first look: fewer pairs, basis rows and resamples."""
    return replace(
        plan,
        n_positives=30_000,
        n_negatives=60_000,
        n_test_negatives=200_000,
        n_resamples=60,
        n_basis=600,
        longest_slow=128,
        refine_steps=200,
        grid_positives=10_000,
        grid_negatives=20_000,
        grid_basis=200,
        n_queries=200,
        hog_points=600,
    )


@dataclass(frozen=True, eq=False)
class TrainSet:
    """What is learned from: pairs of a scene, or of half of one."""

    name: str
    scene: Scene
    pairs: Pairs
    similar: Similar


class TestSet(TrainSet):
    """What is tested on."""

    __test__ = False  # not a test of pytest's

    @cached_property
    def digest(self) -> str:
        """Tells these pairs apart from others."""
        content = hashlib.sha256(self.things.tobytes())
        content.update(self.pairs.tobytes())
        return content.hexdigest()[:16]

    @cached_property
    def things(self) -> NDArray[np.int64]:
        """The points of each pair."""
        return self.scene.points[self.pairs]


def load_train(plan: Plan, name: str) -> TrainSet:
    """A training scene and its pairs."""
    scene = _part(plan, name, 0)
    pairs, similar = scene.draw_pairs(plan.n_positives, plan.n_negatives, random_state=plan.seed)
    return TrainSet(name_of(name), scene, pairs, similar)


def load_test(plan: Plan, name: str) -> TestSet:
    """A test scene and its pairs; too few positives are an error."""
    scene = _part(plan, name, 1)
    pairs, similar = scene.test_pairs(plan.n_test_negatives, random_state=plan.seed + 1)
    if similar.sum() < 100:
        raise ValueError(
            f"{name} has {similar.sum()} positive test pairs; at least 100 are needed to measure"
        )
    return TestSet(name_of(name), scene, pairs, similar)


def name_of(scene: str) -> str:
    """A scene's short name."""
    return Path(scene).name


def _part(plan: Plan, name: str, which: int) -> Scene:
    scene = load_scene(name)
    return scene.split(random_state=plan.seed)[which] if name in plan.split else scene


def subset(scene: Scene, n_points: int, seed: int) -> Scene:
    """Some points of a scene."""
    ids = np.unique(scene.points)
    if len(ids) <= n_points:
        return scene
    return scene.split(n_points / len(ids), random_state=seed)[1]


def describe(names: Sequence[str]) -> str:
    """Names as a list in a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
