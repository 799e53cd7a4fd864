"""Choose settings for one method on one scene, and train it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import load
from .cache import Store, stamp
from .methods import MakeHasher, Method
from .plan import Plan, TrainSet
from .selection import Setting, choose_setting


@dataclass(frozen=True)
class Trained:
    """A trained method.

    Attributes
    ----------
    hashers : dict
        Trained estimators by length; a nested method has its longest only.
    seconds : float
        Training time, without the choice of settings.
    choice : dict
        The chosen settings, and the grid with the rate of each on held-out training points.
    key : str
        Digest of the training data and settings.
    """

    hashers: dict[int, Any]
    seconds: float
    choice: dict[str, Any]
    key: str = ""


def lengths_of(method: Method, plan: Plan, width: int) -> list[int]:
    """Return the code lengths at which a method is tested."""
    longest = width if method.one_bit_a_feature else max(plan.lengths)
    if method.name in ("boosted", "boosted-paper", "sdh"):
        longest = plan.longest_slow
    if method.name == "ksh":  # one model per length, and time grows with its square
        longest = min(128, longest)
    return [length for length in plan.lengths if length <= longest]


def budget_of(method: Method, plan: Plan) -> str:
    """Return what a method is trained on, in words; equal budgets read alike."""
    if not method.is_learned:
        return "not trained"
    special = {
        "random": "no pairs: the mean of the training rows",
        "itq": "no pairs: all training rows without labels",
        "sdh": "labelled rows: 20,000, joined by the same pairs",
        "ksh": "labelled rows: 1,000 or 3,000, joined by the same pairs",
    }
    equal = f"{plan.n_positives:,} positive and {plan.n_negatives:,} negative pairs"
    return special.get(method.name, equal)


def train(
    method: Method, data: TrainSet, plan: Plan, store: Store, choice: dict[str, Any] | None = None
) -> Trained:
    """Train a method, or load the stored model.

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
    known = store.read_json(note)
    if known is not None and all(path.is_file() for path in files.values()):
        return Trained({n: load(path) for n, path in files.items()}, **known, key=note.stem)
    choice = choice or _choose(method, data, plan)
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
    """Choose the setting with the lowest mean FNR on held-out training points.

    The mean is over lengths up to 128 bits, or the longest of them for a method that is trained for
    each length.
    """
    if not method.grid:
        return {"settings": {}, "grid": []}
    learn, check = data.scene.split(0.3, random_state=plan.seed + 2)
    pairs, similar = learn.draw_pairs(
        plan.grid_positives, plan.grid_negatives, random_state=plan.seed
    )
    kept = TrainSet(data.name, learn, pairs, similar)
    pairs, similar = check.draw_pairs(
        plan.grid_positives, 2 * plan.grid_negatives, random_state=plan.seed
    )
    lengths = lengths_of(method, plan, learn.descriptors.shape[1])
    lengths = [length for length in lengths if length <= 128] or lengths[:1]
    if not method.nested:
        lengths = lengths[-1:]

    def fit(setting: Setting) -> Any:
        return _fit(method, kept, lengths[-1], setting, plan.grid_basis, plan)

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
    factor = arguments.pop("gamma_factor", None)
    if factor is not None:
        arguments["gamma"] = factor * _median_bandwidth(method.make, arguments, data)
    if method.name == "refined":
        arguments["refine"] = plan.refine_steps
    hasher = method.make(**arguments)
    if hasattr(hasher, "n_bits_"):  # loaded from a model file
        return hasher
    if hasattr(hasher, "fit_pairs"):
        return hasher.fit_pairs(data.scene.descriptors, data.pairs, data.similar)
    return hasher.fit(np.asarray(data.scene.descriptors), data.scene.points)


def _median_bandwidth(make: MakeHasher, arguments: Setting, data: TrainSet) -> float:
    """Return one over the median squared distance, from a fit of one bit to a few pairs."""
    ends = np.flatnonzero(np.diff(data.similar, prepend=~data.similar[:1]))
    few = np.unique(
        np.concatenate([np.arange(i, min(i + 200, len(data.similar))) for i in ends.tolist()])
    )
    hasher = make(**{**arguments, "n_bits": 1, "gamma": "median"})
    hasher.fit_pairs(data.scene.descriptors, data.pairs[few], data.similar[few])
    return float(hasher.gamma_)
