"""The plan of a study: scenes, methods, code lengths and numbers of pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..datasets import Scene, load_scene
from ..learn.pairs import Pairs, Similar

LENGTHS = (32, 64, 128, 256, 512)
ALPHAS = (0.5, 1.0, 2.0, 5.0, 25.0, 100.0, 1000.0, float("inf"))


@dataclass(frozen=True)
class Plan:
    """Everything that the results of a study depend on.

    A scene that is both trained and tested on is split into two halves (see `split_by`): one half
    is trained on, the other is tested on. In a train-test matrix, methods trained on other scenes
    are tested on that half too, so that all rows of one column have the same test pairs. If `cases`
    names the cases, these methods are tested on the whole scene: low false positive rates need many
    objects.

    Each of the `n_seeds` training seeds, `seed` and those after it, draws its own training pairs,
    basis and initial values. Settings are chosen once, with the first seed.
    """

    train: tuple[str, ...]
    test: tuple[str, ...]
    methods: tuple[str, ...]
    lengths: tuple[int, ...] = LENGTHS
    cases: tuple[tuple[str, str], ...] = ()
    n_seeds: int = 1
    n_positives: int = 100_000
    n_negatives: int = 200_000
    n_test_negatives: int = 1_000_000
    n_resamples: int = 200
    n_basis: int = 1000
    longest_slow: int = 128
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

    @property
    def seeds(self) -> tuple[int, ...]:
        """Training seeds."""
        return tuple(range(self.seed, self.seed + self.n_seeds))

    def tests_of(self, train: str) -> list[str]:
        """Return the test scenes of a training scene: all of them unless `cases` names some."""
        if not self.cases:
            return list(self.test)
        return [test for name, test in self.cases if name == train]


def quick_plan(plan: Plan) -> Plan:
    """Return a smaller plan: fewer pairs, basis rows and resamples."""
    return replace(
        plan,
        n_positives=30_000,
        n_negatives=60_000,
        n_test_negatives=200_000,
        n_resamples=60,
        n_basis=600,
        refine_steps=200,
        grid_positives=10_000,
        grid_negatives=20_000,
        grid_basis=200,
        n_queries=200,
        hog_points=600,
    )


@dataclass(frozen=True, eq=False)
class TrainSet:
    """Training data: pairs of a scene, or of half of one."""

    name: str
    scene: Scene
    pairs: Pairs
    similar: Similar


class TestSet(TrainSet):
    """Test data: pairs of a scene, or of half of one."""

    __test__ = False  # pytest would collect it

    @cached_property
    def digest(self) -> str:
        """Digest of the pairs, for the names of cached results."""
        content = hashlib.sha256(self.objects.tobytes())
        content.update(self.pairs.tobytes())
        return content.hexdigest()[:16]

    @cached_property
    def objects(self) -> NDArray[np.int64]:
        """Point ids of both members of each pair."""
        return self.scene.points[self.pairs]


def load_train(plan: Plan, name: str, seed: int | None = None) -> TrainSet:
    """Load a training scene, without patches of uncertain label, and draw its pairs."""
    scene = _half(plan, name, 0)
    if scene.confident is not None:
        scene = scene.select(np.flatnonzero(scene.confident))
    seed = plan.seed if seed is None else seed
    pairs, similar = scene.draw_pairs(plan.n_positives, plan.n_negatives, random_state=seed)
    return TrainSet(name_of(name), scene, pairs, similar)


def load_test(plan: Plan, name: str, *, is_own: bool = True) -> TestSet:
    """Load a test scene and its pairs; fewer than 100 positive pairs are an error.

    `is_own` tells whether the methods to be tested were trained on the same scene.
    """
    scene = load_scene(name) if plan.cases and not is_own else _half(plan, name, 1)
    pairs, similar = scene.test_pairs(plan.n_test_negatives, random_state=plan.seed + 1)
    if similar.sum() < 100:
        raise ValueError(
            f"{name} has {similar.sum()} positive test pairs; at least 100 are needed to measure"
        )
    return TestSet(name_of(name), scene, pairs, similar)


def name_of(scene: str) -> str:
    """Return the short name of a scene."""
    return Path(scene).name


def split_by(scene: Scene) -> Literal["photos", "blocks", "points"]:
    """Return how a scene is halved.

    By photographs where the scene names them, since patches of one photograph overlap; otherwise in
    blocks, since neighbours in the file are neighbours in the scene. Scenes with fewer than 8
    photographs or 20 blocks are halved by points.
    """
    if scene.photos is not None and len(np.unique(scene.photos)) >= 8:
        return "photos"
    return "blocks" if scene.photos is None and len(scene) >= 20_000 else "points"


def _half(plan: Plan, name: str, which: int) -> Scene:
    scene = load_scene(name)
    if name not in plan.split:
        return scene
    return scene.split(by=split_by(scene), random_state=plan.seed)[which]


def subset(scene: Scene, n_points: int, seed: int) -> Scene:
    """Return the patches of a random subset of the points."""
    ids = np.unique(scene.points)
    if len(ids) <= n_points:
        return scene
    return scene.split(n_points / len(ids), random_state=seed)[1]


def describe(names: Sequence[str]) -> str:
    """Join names as in a sentence: a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
