"""Choosing settings and training, for one method on one scene."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import load
from ..hashers import BaseHasher
from .choose import Setting, choose_setting
from .methods import Method
from .plan import Plan, TrainSet
from .store import Store, stamp


@dataclass(frozen=True)
class Trained:
    """A method that was trained.

    Attributes
    ----------
    hashers : dict
        Trained estimators by length; a nested method has one, its longest.
    seconds : float
        Time of the training, without the choice of settings.
    choice : dict
        The settings chosen, and the grid with the rate that each had on held-out training points.
    key : str
        Tells it apart from what was trained otherwise.
    """

    hashers: dict[int, Any]
    seconds: float
    choice: dict[str, Any]
    key: str = ""


def lengths_of(method: Method, plan: Plan, width: int) -> list[int]:
    """The code lengths that a method is tested at."""
    longest = width if method.one_bit_a_feature else max(plan.lengths)
    if method.name in ("boosted", "sdh"):
        longest = plan.longest_slow
    if method.name == "ksh":  # whose time grows with the square of the length, one model for each
        longest = min(128, longest)
    return [length for length in plan.lengths if length <= longest]


def train(method: Method, data: TrainSet, plan: Plan, store: Store) -> Trained:
    """Train a method, or take what was trained before."""
    depends_on = {
        "method": method.key,
        "train": [str(data.scene.path), len(data.scene)],
        "files": stamp(data.scene.path / "sift.npy", data.scene.path / "info.txt"),
        "pairs": [plan.n_positives, plan.n_negatives, plan.seed],
        "grid": [plan.grid_positives, plan.grid_negatives, plan.grid_basis],
        "n_basis": plan.n_basis,
        "lengths": plan.lengths,
        "longest_slow": plan.longest_slow,
        "refine_steps": plan.refine_steps,
    }
    note = store.path(f"{method.name}-on-{data.name}", "json", **depends_on)
    lengths = lengths_of(method, plan, data.scene.descriptors.shape[1])
    if not lengths:
        raise ValueError(f"none of the lengths {plan.lengths} fits {method.title}")
    wanted = lengths[-1:] if method.nested else lengths
    files = {length: note.with_suffix(f".{length}.safetensors") for length in wanted}
    known = store.read_json(note)
    if known is not None and all(path.is_file() for path in files.values()):
        return Trained({n: load(path) for n, path in files.items()}, **known, key=note.stem)
    choice = _choose(method, data, plan)
    hashers, seconds = {}, 0.0
    for length in wanted:
        start = time.perf_counter()
        hashers[length] = _fit(method, data, length, choice["settings"], plan.n_basis, plan)
        seconds += time.perf_counter() - start
    known = {"seconds": seconds, "choice": choice}
    if all(type(hasher).__module__.startswith("kdiffhash.") for hasher in hashers.values()):
        for length, path in files.items():
            hashers[length].save(path)
        store.write_json(note, known)
    return Trained(hashers, **known, key=note.stem)


def _choose(method: Method, data: TrainSet, plan: Plan) -> dict[str, Any]:
    """The setting that does best on held-out points.

    It is compared at the lengths up to 128 bits, or at the longest of them where a prefix is not a
    good shorter code.
    """
    if not method.grid:
        return {"settings": {}, "grid": []}
    learn, check = data.scene.split(0.3, random_state=plan.seed + 2)
    pairs, similar = learn.draw_pairs(
        plan.grid_positives, plan.grid_negatives, random_state=plan.seed
    )
    part = TrainSet(data.name, learn, pairs, similar)
    pairs, similar = check.draw_pairs(
        plan.grid_positives, 2 * plan.grid_negatives, random_state=plan.seed
    )
    lengths = lengths_of(method, plan, learn.descriptors.shape[1])
    lengths = [length for length in lengths if length <= 128] or lengths[:1]
    if not method.nested:
        lengths = lengths[-1:]

    def fit(setting: Setting) -> Any:
        return _fit(method, part, lengths[-1], setting, plan.grid_basis, plan)

    best, table = choose_setting(method.grid, fit, check.descriptors, pairs, similar, lengths)
    return {"settings": best, "grid": table}


def _fit(
    method: Method, data: TrainSet, length: int, setting: Setting, n_basis: int, plan: Plan
) -> Any:
    if method.make is None:
        raise ValueError(f"{method.title} is not trained")
    arguments = {**method.settings, **setting, "n_bits": length, "random_state": plan.seed}
    if method.name in ("kdif", "kdif-paper", "kernel-lda", "refined"):
        arguments["n_basis"] = min(max(n_basis, length), len(data.scene))
    if method.name == "refined":
        arguments["refine"] = plan.refine_steps
    hasher = method.make(**arguments)
    if hasattr(hasher, "n_bits_"):  # a model that was trained elsewhere
        return hasher
    if isinstance(hasher, BaseHasher):
        return hasher.fit_pairs(data.scene.descriptors, data.pairs, data.similar, data.scene.points)
    if hasattr(hasher, "fit_pairs"):
        return hasher.fit_pairs(data.scene.descriptors, data.pairs, data.similar)
    return hasher.fit(np.asarray(data.scene.descriptors), data.scene.points)
