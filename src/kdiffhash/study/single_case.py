"""Experiments besides the error rates of each method: alpha, other descriptors, first matches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..datasets import Scene, describe_patches, find_scene, load_scene
from ..datasets.sheets import find_sheets
from ..evaluate.bootstrap import combine_seeds, enough_objects_each, interval_of, resample_rates
from ..evaluate.pair_distances import code_distances, euclidean
from ..evaluate.roc import RATES
from ..hashers import PAPER_SETTING, KernelDiffHash
from ..learn.pairs import Similar, draw_pairs
from ..learn.preprocess import preprocess_rows
from .cache import Store, stamp
from .first_matches import draw_queries, first_by_codes, first_by_rows, precision, time_comparisons
from .plan import ALPHAS, Plan, TestSet, TrainSet, subset
from .results import Results

_SWEEP_RATES = ("fnr_at_1e-3", "fpr95")
_BASELINES = {"paper": ("kdif-paper", "SIFT"), "recommended": ("kdif", "RootSIFT")}


def measure_once(
    name: str,
    measure: Callable[[TrainSet, TestSet, Plan], Any],
    data: TrainSet,
    test: TestSet,
    plan: Plan,
    store: Store,
) -> Any:
    """Return the result of an experiment on one train-test case, stored or measured now."""
    scenes = (data.scene.path, test.scene.path)
    return store.keep(
        f"{name}-{data.name}-to-{test.name}",
        lambda: measure(data, test, plan),
        plan={**asdict(plan), "train": (), "test": (), "methods": (), "cases": ()},
        scenes=scenes,
        files=stamp(*[folder / name for folder in scenes for name in ("sift.npy", "info.txt")]),
        test=test.digest,
    )


def sweep_alpha(
    data: TrainSet, test: TestSet, plan: Plan, gamma: float | None = None
) -> dict[str, Any]:
    """Measure kDIF at 128 bits against alpha, in the paper's and in the recommended setting.

    `gamma` is the bandwidth that was chosen for the paper's setting. All alphas see the same pairs
    and the same resamples of the objects; one training seed.
    """
    n_bits = min(128, max(plan.lengths))
    n_basis = min(max(plan.n_basis, n_bits), len(data.scene))
    settings: dict[str, dict[str, Any]] = {
        "paper": {**PAPER_SETTING, **({"gamma": gamma} if gamma else {})},
        "recommended": {"preprocess": "hellinger"},
    }
    found: dict[str, Any] = {"n_bits": n_bits, "alphas": [str(a) for a in ALPHAS], "settings": {}}
    for name, setting in settings.items():
        distances = []
        for alpha in ALPHAS:
            arguments = {**setting, "alpha": alpha, "n_basis": n_basis}
            hasher = KernelDiffHash(n_bits, **arguments, random_state=plan.seed)
            hasher.fit_pairs(data.scene.descriptors, data.pairs, data.similar)
            distances.append(hasher.pair_distance(test.scene.descriptors, test.pairs))
        values, samples = resample_rates(
            [RATES[rate] for rate in _SWEEP_RATES],
            distances,
            test.similar,
            test.objects,
            n_resamples=plan.n_resamples,
            random_state=plan.seed,
        )
        at = ALPHAS.index(25.0)
        gaps = {
            str(alpha): interval_of(
                values[i, 0] - values[at, 0], samples[:, i, 0] - samples[:, at, 0]
            )
            for i, alpha in enumerate(ALPHAS)
            if i != at
        }
        found["settings"][name] = {
            **{rate: values[:, j].tolist() for j, rate in enumerate(_SWEEP_RATES)},
            "is_reliable": _enough(distances, test.similar, test.objects),
            "minus_25": {alpha: [gap.value, gap.low, gap.high] for alpha, gap in gaps.items()},
        }
    return found


def _enough(distances: list[NDArray[Any]], similar: Similar, objects: NDArray[np.int64]) -> bool:
    """Return whether there are enough objects for the confidence intervals at 0.1 % FPR."""
    return bool(enough_objects_each([RATES["fnr_at_1e-3"]], distances, similar, objects).all())


def other_descriptors(data: TrainSet, test: TestSet, plan: Plan) -> list[dict[str, Any]] | None:
    """Measure kDIF on HOG and TFeat, where both scenes allow, against their Euclidean distance."""
    found = []
    if find_sheets(data.scene.path) and find_sheets(test.scene.path):
        scenes = [subset(scene, plan.hog_points, 0) for scene in (data.scene, test.scene)]
        rows = [describe_patches(scene.patches, "hog") for scene in scenes]
        found.append(_other_descriptor("HOG", scenes, rows, plan))
    if all((one.scene.path / "tfeat.npy").is_file() for one in (data, test)):
        scenes = [data.scene, test.scene]
        rows = [np.load(scene.path / "tfeat.npy", mmap_mode="r") for scene in scenes]
        rows = [all_rows[_rows_of(scene)] for scene, all_rows in zip(scenes, rows)]
        found.append(_other_descriptor("TFeat", scenes, rows, plan))
    return found or None


def _rows_of(scene: Scene) -> NDArray[np.int64]:
    return np.arange(len(scene)) if scene.rows is None else scene.rows


def _other_descriptor(
    name: str, scenes: list[Scene], rows: list[NDArray[Any]], plan: Plan
) -> dict[str, Any]:
    n_bits = min(256, max(plan.lengths))
    pairs, similar = draw_pairs(
        scenes[0].points, plan.n_positives, plan.n_negatives, random_state=plan.seed
    )
    n_basis = min(max(plan.n_basis, n_bits), len(rows[0]))
    hasher = KernelDiffHash(n_bits, n_basis=n_basis, random_state=plan.seed)
    hasher.fit_pairs(rows[0], pairs, similar)
    pairs, similar = draw_pairs(scenes[1].points, 50_000, 200_000, random_state=plan.seed)
    codes = hasher.transform(rows[1])
    distances: list[NDArray[Any]] = [
        code_distances(codes, pairs),
        euclidean(rows[1], pairs, None),
    ]
    objects = scenes[1].points[pairs]
    values, samples = resample_rates(
        [RATES["fnr_at_1e-3"], RATES["fpr95"]],
        distances,
        similar,
        objects,
        n_resamples=plan.n_resamples,
        random_state=plan.seed,
    )
    gap = interval_of(values[0, 0] - values[1, 0], samples[:, 0, 0] - samples[:, 1, 0])
    return {
        "descriptor": name,
        "n_bits": n_bits,
        "float_bits": 8 * rows[0].dtype.itemsize * rows[0].shape[1],
        "n_patches": [len(scene) for scene in scenes],
        "kdif": {"fnr_at_1e-3": values[0, 0], "fpr95": values[0, 1]},
        "euclidean": {"fnr_at_1e-3": values[1, 0], "fpr95": values[1, 1]},
        "difference": [gap.value, gap.low, gap.high],
        "is_reliable": _enough(distances, similar, objects),
    }


def first_matches(
    results: Results, tests: Mapping[tuple[str, str], TestSet]
) -> dict[str, Any] | None:
    """Measure the precision of the first five matches in each case, and make a gallery."""
    cases = [_first_matches_of(results, case[0], tests[case]) for case in results.cases]
    found: dict[str, Any] = {"cases": [case for case in cases if case is not None]}
    if not found["cases"]:
        return None
    # Rather a scene that was not trained on: a scene of sheets may contain training patches.
    for train, test in sorted(results.cases, key=lambda case: case[0] == case[1]):
        scene = _with_patches(tests[train, test].scene)
        if scene is not None:
            found["gallery"] = _gallery(results, train, scene)
            break
    return found


def _first_matches_of(results: Results, train: str, test: TestSet) -> dict[str, Any] | None:
    """Precision of kDIF minus that of the float descriptor, over queries and training seeds."""
    plan, scene = results.plan, test.scene
    usable = np.arange(len(scene)) if scene.confident is None else np.flatnonzero(scene.confident)
    points, rows = scene.points[usable], np.asarray(scene.descriptors)[usable]
    queries = draw_queries(points, plan.n_queries, plan.seed)
    floats = {"SIFT": rows, "RootSIFT": preprocess_rows(rows, "hellinger")}
    scores = {
        name: precision(points, queries, first_by_rows(one, queries)[0])
        for name, one in floats.items()
    }
    case: dict[str, Any] = {"train": train, "test": test.name, "n_queries": len(queries)}
    means = {name: float(one.mean()) for name, one in scores.items()}
    rng = np.random.default_rng(plan.seed)
    again = rng.integers(len(queries), size=(2000, len(queries)))
    for column, (method, baseline) in _BASELINES.items():
        gaps = []
        for trained in results.trained.get((train, method), []):
            _, hasher = max(trained.hashers.items())
            found, _ = first_by_codes(hasher.transform(rows), queries)
            gaps.append(precision(points, queries, found) - scores[baseline])
        if gaps:
            means[results.methods[method].title] = means[baseline] + float(np.mean(gaps))
            value, samples = combine_seeds(
                [gap.mean() for gap in gaps],
                [gap[again].mean(axis=1) for gap in gaps],
                random_state=plan.seed,
            )
            interval = interval_of(float(value), samples)
            case[column] = [interval.value, interval.low, interval.high]
    case["precision_at_5"] = means
    return case if any(column in case for column in _BASELINES) else None


def _with_patches(scene: Scene) -> Scene | None:
    """Return the scene, or the one named NAME-sheets that holds some of its patches."""
    if find_sheets(scene.path):
        return scene
    try:
        return load_scene(find_scene(f"{scene.path}-sheets"))
    except (FileNotFoundError, ValueError):
        return None


def _gallery(results: Results, train: str, scene: Scene) -> dict[str, Any]:
    """First matches of some queries by each method, and one positive and one negative pair.

    Patches of uncertain label are left out: they cannot be marked correct or wrong.
    """
    if scene.confident is not None:
        scene = scene.select(np.flatnonzero(scene.confident))
    queries = draw_queries(scene.points, results.plan.n_shown, results.plan.seed)
    rows = np.asarray(scene.descriptors)
    found = {
        "SIFT": first_by_rows(rows, queries),
        "RootSIFT": first_by_rows(preprocess_rows(rows, "hellinger"), queries),
    }
    codes: dict[str, NDArray[np.uint8]] = {}
    for name in ("kdif-paper", "kdif", "refined"):
        for trained in results.trained.get((train, name), [])[:1]:
            longest, hasher = max(trained.hashers.items())
            codes[name] = hasher.transform(rows)
            title = f"{results.methods[name].title}, {longest} bits"
            found[title] = first_by_codes(codes[name], queries)
    shown = []
    for i, query in enumerate(queries.tolist()):
        matches: dict[str, list[dict[str, Any]]] = {name: [] for name in found}
        for name, (neighbours, distances) in found.items():
            for row, distance in zip(neighbours[i].tolist(), distances[i].tolist()):
                correct = bool(scene.points[row] == scene.points[query])
                match = {"row": row, "distance": float(distance), "correct": correct}
                matches[name].append(match)
        shown.append({"row": query, "matches": matches})
    needed = np.unique(np.concatenate([queries, *[one[0].ravel() for one in found.values()]]))
    gallery: dict[str, Any] = {
        "scene": scene.name,
        "patches": dict(zip(needed.tolist(), scene.patches[needed])),
        "queries": shown,
    }
    if codes:
        gallery["pair"] = _example_pair(scene, next(iter(codes.values())))
    return gallery


def _example_pair(scene: Scene, codes: NDArray[np.uint8]) -> dict[str, Any]:
    """Return Figure 1: a patch, a matching and a non-matching one, their SIFT and 32-bit codes."""
    pairs, similar = scene.draw_pairs(50, 50, random_state=0)
    first, second = pairs[similar][0]
    others = pairs[~similar].ravel()
    third = others[scene.points[others] != scene.points[first]][0]
    rows = np.array([first, second, third])
    return {
        "patches": scene.patches[rows],
        "descriptors": np.asarray(scene.descriptors)[rows],
        "bits": np.unpackbits(codes[rows], axis=1)[:, :32],
    }


def comparison_times(test: TestSet, plan: Plan, store: Store) -> dict[str, Any]:
    """Measure nanoseconds per comparison, and their ratio to a Euclidean one, by length."""
    rows = np.asarray(test.scene.descriptors[:20_000])
    return dict(
        store.keep(
            "times",
            lambda: time_comparisons(rows, list(plan.lengths)),
            lengths=plan.lengths,
            scene=test.scene.path,
        )
    )
