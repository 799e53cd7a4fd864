"""Choose settings for one method on one scene, and train it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from .. import load
from .cache import Store, stamp
from .methods import Method, with_known_arguments
from .plan import Plan, TrainSet, split_by
from .selection import Setting, choose_setting


@dataclass(frozen=True)
class Trained:
    """A trained method.

    Attributes
    ----------
    seconds : float
        Training time, without the choice of settings.
    lengths : list of int
        Lengths that were trained for; a nested method has its longest only.
    choice : dict
        The chosen settings, and the grid with the error of each on the validation set.
    key : str
        Digest of the training data and settings.
    """

    seconds: float
    lengths: list[int]
    choice: dict[str, Any]
    key: str
    _load: Callable[[], dict[int, Any]] = field(repr=False, default=dict)

    @cached_property
    def hashers(self) -> dict[int, Any]:
        """Trained estimators by length, loaded or trained when they are first used."""
        return self._load()


def lengths_of(method: Method, plan: Plan, width: int) -> list[int]:
    """Return the code lengths at which a method is tested."""
    limits = [max(plan.lengths)]
    limits += [width] if method.one_bit_per_feature else []
    limits += [plan.longest_slow] if method.is_slow else []
    limits += [method.max_bits] if method.max_bits else []
    return [length for length in plan.lengths if length <= min(limits)]


def budget_of(method: Method, plan: Plan) -> str:
    """Return what a method is trained on, in words; equal budgets read alike."""
    if not method.is_learned:
        return "not trained"
    equal = f"{plan.n_positives:,} positive and {plan.n_negatives:,} negative pairs"
    return method.budget or equal


def train(
    method: Method, data: TrainSet, plan: Plan, store: Store, choice: dict[str, Any] | None = None
) -> Trained:
    """Train a method, or find the stored model.

    `plan.seed` is the training seed; `choice` the settings chosen with another seed, if any.
    """
    depends_on = {
        "choice": choice and choice["settings"],
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

    def fit(chosen: dict[str, Any]) -> dict[int, Any]:
        settings = chosen["settings"]
        return {n: _fit(method, data, n, settings, plan.n_basis, plan) for n in wanted}

    known = store.read_json(note)
    if known is not None:
        stored: dict[str, Any] = known

        def restore() -> dict[int, Any]:
            if all(path.is_file() for path in files.values()):
                return {length: load(path) for length, path in files.items()}
            return fit(stored["choice"])  # an estimator that cannot be saved

        return Trained(**stored, key=note.stem, _load=restore)
    choice = choice or _choose(method, data, plan)
    start = time.perf_counter()
    hashers = fit(choice)
    known = {"seconds": time.perf_counter() - start, "lengths": wanted, "choice": choice}
    if all(type(hasher).__module__.startswith("kdiffhash.") for hasher in hashers.values()):
        for length, path in files.items():
            if hasattr(hashers[length], "save"):
                hashers[length].save(path)
        store.write_json(note, known)
    return Trained(**known, key=note.stem, _load=lambda: hashers)


def _choose(method: Method, data: TrainSet, plan: Plan) -> dict[str, Any]:
    """Choose the setting with the lowest mean FNR on held-out training points.

    The mean is over all lengths of the method. A method that is trained for each length is
    validated at one: its longest up to 128 bits.
    """
    if not method.grid:
        return {"settings": {}, "grid": []}
    by: Literal["blocks", "points"] = "blocks" if split_by(data.scene) == "blocks" else "points"
    learn, validate = data.scene.split(0.3, by=by, random_state=plan.seed + 2)
    pairs, similar = learn.draw_pairs(
        plan.grid_positives, plan.grid_negatives, random_state=plan.seed
    )
    train_set = TrainSet(data.name, learn, pairs, similar)
    pairs, similar = validate.draw_pairs(
        plan.grid_positives, 2 * plan.grid_negatives, random_state=plan.seed
    )
    lengths = lengths_of(method, plan, learn.descriptors.shape[1])
    if not method.nested:
        lengths = [length for length in lengths if length <= 128][-1:] or lengths[:1]

    def fit(setting: Setting) -> Any:
        return _fit(method, train_set, lengths[-1], setting, plan.grid_basis, plan)

    best, table = choose_setting(method.grid, fit, validate.descriptors, pairs, similar, lengths)
    return {"settings": best, "grid": table}


def _fit(
    method: Method, data: TrainSet, length: int, setting: Setting, n_basis: int, plan: Plan
) -> Any:
    if method.make is None:
        raise ValueError(f"{method.title} is not trained")
    arguments = {**method.settings, **setting, "n_bits": length, "random_state": plan.seed}
    if "n_basis" in method.takes:
        arguments["n_basis"] = min(max(n_basis, length), len(data.scene))
    if "refine" in method.takes:
        arguments["refine"] = plan.refine_steps
    hasher = with_known_arguments(method.make)(**arguments)
    if hasattr(hasher, "n_bits_"):  # loaded from a model file
        return hasher
    if hasattr(hasher, "fit_pairs"):
        return hasher.fit_pairs(data.scene.descriptors, data.pairs, data.similar)
    return hasher.fit(np.asarray(data.scene.descriptors), data.scene.points)
