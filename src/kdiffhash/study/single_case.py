"""Experiments on one train-test pair: alpha, another descriptor, first matches, costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..datasets import Scene, describe_patches
from ..datasets.sheets import find_sheets
from ..evaluate.bootstrap import interval_of, resample_rates
from ..evaluate.pair_distances import code_distances, euclidean
from ..evaluate.roc import RATES, roc
from ..hashers import KernelDiffHash
from ..learn.pairs import draw_pairs
from ..learn.preprocess import preprocess_rows
from .cache import Store, stamp
from .first_matches import draw_queries, first_by_codes, first_by_rows, precision, time_comparisons
from .plan import ALPHAS, Plan, TestSet, TrainSet, subset

if TYPE_CHECKING:
    from .run import Results


def measure_once(
    name: str,
    measure: Callable[[TrainSet, TestSet, Plan], Any],
    data: TrainSet,
    test: TestSet,
    plan: Plan,
    store: Store,
) -> Any:
    """What an experiment on one train-test pair gives, or gave before."""
    scenes = (data.scene.path, test.scene.path)
    return store.keep(
        f"{name}-{data.name}-to-{test.name}",
        lambda: measure(data, test, plan),
        plan={**asdict(plan), "train": (), "test": (), "methods": ()},
        scenes=scenes,
        files=stamp(*[folder / name for folder in scenes for name in ("sift.npy", "info.txt")]),
        test=test.digest,
    )


def sweep_alpha(data: TrainSet, test: TestSet, plan: Plan) -> dict[str, Any]:
    """FNR and FPR95 of kDIF at 128 bits against alpha, in the cross and the difference form."""
    n_bits = min(128, max(plan.lengths))
    pairs, similar = data.scene.draw_pairs(
        plan.grid_positives, plan.grid_negatives, random_state=plan.seed
    )
    few = test.similar | (np.cumsum(~test.similar) <= 200_000)
    found: dict[str, Any] = {"n_bits": n_bits, "alphas": [str(a) for a in ALPHAS], "forms": {}}
    for form in ("cross", "difference"):
        curves = []
        for alpha in ALPHAS:
            hasher = KernelDiffHash(
                n_bits,
                moment=form,
                alpha=alpha,
                n_basis=min(max(plan.grid_basis, n_bits), len(data.scene)),
                preprocess="hellinger",
                random_state=plan.seed,
            ).fit_pairs(data.scene.descriptors, pairs, similar)
            distances = hasher.pair_distance(test.scene.descriptors, test.pairs[few])
            curves.append(roc(distances, test.similar[few]))
        rates = ("fnr_at_1e-3", "fpr95")
        found["forms"][form] = {rate: [RATES[rate](one) for one in curves] for rate in rates}
    return found


def other_descriptor(data: TrainSet, test: TestSet, plan: Plan) -> dict[str, Any] | None:
    """kDIF on HOG beside the Euclidean distance of HOG, on some of the points."""
    if not find_sheets(data.scene.path) or not find_sheets(test.scene.path):
        return None
    n_bits = min(256, max(plan.lengths))
    learn, check = (subset(scene, plan.hog_points, 0) for scene in (data.scene, test.scene))
    rows = describe_patches(learn.patches, "hog")
    pairs, similar = draw_pairs(
        learn.points, plan.n_positives, plan.n_negatives, random_state=plan.seed
    )
    hasher = KernelDiffHash(
        n_bits, n_basis=min(max(plan.n_basis, n_bits), len(rows)), random_state=plan.seed
    ).fit_pairs(rows, pairs, similar)
    rows = describe_patches(check.patches, "hog")
    pairs, similar = draw_pairs(check.points, 50_000, 200_000, random_state=plan.seed)
    distances: list[NDArray[Any]] = [
        code_distances(hasher.transform(rows), pairs),
        euclidean(rows, pairs, None),
    ]
    values, samples = resample_rates(
        [RATES["fnr_at_1e-3"], RATES["fpr95"]],
        distances,
        similar,
        check.points[pairs],
        n_resamples=plan.n_resamples,
        random_state=plan.seed,
    )
    gap = interval_of(values[0, 0] - values[1, 0], samples[:, 0, 0] - samples[:, 1, 0])
    return {
        "descriptor": "HOG",
        "n_bits": n_bits,
        "float_bits": 32 * rows.shape[1],
        "n_patches": [len(learn), len(check)],
        "kdif": {"fnr_at_1e-3": values[0, 0], "fpr95": values[0, 1]},
        "euclidean": {"fnr_at_1e-3": values[1, 0], "fpr95": values[1, 1]},
        "difference": [gap.value, gap.low, gap.high],
    }


def first_matches(results: Results, data: TrainSet, test: TestSet) -> dict[str, Any] | None:
    """Precision of the first five matches, and a gallery of some queries."""
    plan, scene = results.plan, test.scene
    keys = [(data.name, name) for name in ("kdif", "kernel-lda", "refined")]
    named = {key[1]: results.trained[key] for key in keys if key in results.trained}
    if not named:
        return None
    queries = draw_queries(scene.points, plan.n_queries, plan.seed)
    rows = np.asarray(scene.descriptors)
    found = {"SIFT": first_by_rows(rows, queries)}
    found["RootSIFT"] = first_by_rows(preprocess_rows(rows, "hellinger"), queries)
    codes = {}
    for name, trained in named.items():
        longest, hasher = max(trained.hashers.items())
        codes[name] = hasher.transform(rows)
        title = f"{results.methods[name].title}, {longest} bits"
        found[title] = first_by_codes(codes[name], queries)
    scores = {name: precision(scene.points, queries, one[0]) for name, one in found.items()}
    judged = next(name for name in found if "bits" in name)
    gap = scores[judged] - scores["SIFT"]  # queries are resampled, each of a point of its own
    again = np.random.default_rng(plan.seed).integers(len(gap), size=(2000, len(gap)))
    difference = interval_of(float(gap.mean()), gap[again].mean(axis=1))
    result: dict[str, Any] = {
        "n_queries": len(queries),
        "judged": judged,
        "precision_at_5": {name: float(one.mean()) for name, one in scores.items()},
        "difference": [difference.value, difference.low, difference.high],
    }
    if find_sheets(scene.path):
        result["gallery"] = _gallery(scene, queries[: plan.n_shown], found)
        result["gallery"]["pair"] = _example_pair(scene, codes, test)
    return result


def _gallery(
    scene: Scene, queries: NDArray[np.int64], found: dict[str, tuple[Any, Any]]
) -> dict[str, Any]:
    n, shown = len(queries), []
    needed = np.unique(np.concatenate([queries, *[one[0][:n].ravel() for one in found.values()]]))
    for i, query in enumerate(queries.tolist()):
        matches: dict[str, list[dict[str, Any]]] = {name: [] for name in found}
        for name, (rows, distances) in found.items():
            for row, distance in zip(rows[i].tolist(), distances[i].tolist()):
                right = bool(scene.points[row] == scene.points[query])
                matches[name].append({"row": row, "distance": float(distance), "right": right})
        shown.append({"row": query, "matches": matches})
    return {"patches": dict(zip(needed.tolist(), scene.patches[needed])), "queries": shown}


def _example_pair(
    scene: Scene, codes: dict[str, NDArray[np.uint8]], test: TestSet
) -> dict[str, Any]:
    """A positive and a negative pair: patches, descriptors and the first 32 bits of a code."""
    rng = np.random.default_rng(0)
    positive = test.pairs[rng.choice(np.flatnonzero(test.similar))]
    negative = test.pairs[rng.choice(np.flatnonzero(~test.similar))]
    rows = np.array([*positive, *negative])
    some = codes.get("kdif", next(iter(codes.values())))
    return {
        "patches": scene.patches[rows],
        "descriptors": np.asarray(scene.descriptors[rows]),
        "bits": np.unpackbits(some[rows], axis=1)[:, :32],
    }


def comparison_times(test: TestSet, plan: Plan, store: Store) -> dict[str, float]:
    """Nanoseconds for a comparison, by length."""
    rows = np.asarray(test.scene.descriptors[:20_000])
    return dict(
        store.keep(
            "times",
            lambda: time_comparisons(rows, list(plan.lengths)),
            lengths=plan.lengths,
            scene=test.scene.path,
        )
    )
