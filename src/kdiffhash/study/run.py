"""Run a study: measure every method in every train-test case, then judge the paper's claims."""

from __future__ import annotations

import shlex
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from .._util.extras import need
from .._util.progress import progress
from ..datasets import find_scene
from ..datasets.scene import read_meta
from ..hashers import ConstantBitWarning
from . import single_case
from .cache import Store
from .claims import decide
from .measure import measure, over_seeds
from .methods import METHODS, Method, find_method
from .plan import LENGTHS, Plan, TestSet, TrainSet, load_test, load_train, name_of, quick_plan
from .report import write_report
from .results import Results, write_results
from .train import Trained, train

Case = tuple[str, str]  # trained on, tested on

#: Kinds of the published scenes, which have no notes of their own.
_KINDS = {
    "trevi": "architecture",
    "notredame": "architecture",
    "halfdome": "natural",
    "liberty": "architecture",
    "yosemite": "natural",
}


def run_study(
    out: str | Path,
    *,
    train_scenes: Sequence[str] = (),
    test_scenes: Sequence[str] = (),
    cases: Sequence[tuple[str, str]] = (),
    methods: Sequence[str] = (),
    lengths: Sequence[int] = LENGTHS,
    n_seeds: int | None = None,
    quick: bool = False,
    seed: int = 0,
    command: str = "",
    verbose: bool = False,
) -> Results:
    """Run the paper's experiments and write tables, figures and a report page.

    Parameters
    ----------
    out : path
        Folder of the report. Finished steps are stored in its subfolder `work`, and an interrupted
        study resumes from there.
    train_scenes, test_scenes : sequences of str, default=()
        Scenes by path or name; the embedded set by default. A scene in both is split into two
        halves.
    cases : sequence of (str, str), default=()
        Train-test cases to measure, in place of every training scene with every test scene.
    methods : sequence of str, default=()
        See `methods.find_method`; all known methods by default.
    lengths : sequence of int, default=(32, 64, 128, 256, 512)
        Code lengths in bits.
    n_seeds : int, optional
        Number of training seeds, by default 5, or 1 with `quick`.
    quick : bool, default=False
        Use fewer pairs, basis rows and resamples.
    seed : int, default=0
        The first training seed; also draws test pairs and resamples.
    command : str, default=""
        The command that repeats the study, for the report; made from the arguments by default.
    verbose : bool, default=False
        Show a progress bar on a terminal.

    Returns
    -------
    results : Results

    Examples
    --------
    >>> from kdiffhash.study import run_study
    >>> results = run_study("report", quick=True)  # doctest: +SKIP
    >>> results.rate("views-train", "views-test", "kdif", 128, "fnr_at_1e-3")  # doctest: +SKIP
    """
    need("matplotlib", "study")
    need("jinja2", "study")
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(f"--out: {folder} cannot be written to ({error.strerror})") from error
    if cases:
        train_scenes = list(dict.fromkeys(case[0] for case in cases))
        test_scenes = list(dict.fromkeys(case[1] for case in cases))
    if bool(train_scenes) != bool(test_scenes):
        raise ValueError("give both train and test scenes, or neither for the embedded set")
    if not lengths or min(lengths) < 1:
        raise ValueError("lengths must be positive numbers of bits")
    n_seeds = (1 if quick else 5) if n_seeds is None else n_seeds
    if n_seeds < 1:
        raise ValueError(f"n_seeds must be at least 1, got {n_seeds}")
    chosen, notes = _default_methods(quick)
    if methods:
        chosen, notes = _find_methods(methods), []
    plan = Plan(
        _find_scenes(train_scenes or ("views-train",)),
        _find_scenes(test_scenes or ("views-test",)),
        tuple(chosen),
        tuple(sorted(set(lengths))),
        cases=tuple((_find_scenes([a])[0], _find_scenes([b])[0]) for a, b in cases),
        n_seeds=n_seeds,
        seed=seed,
    )
    all_scenes = {*plan.train, *plan.test}
    if len({name_of(scene) for scene in all_scenes}) < len(all_scenes):
        raise ValueError(f"two scenes have the same name: {', '.join(sorted(all_scenes))}")
    results = Results(quick_plan(plan) if quick else plan, chosen, notes=notes)
    words = ["kdiffhash", "study"]
    for option, values in (
        ("--train", train_scenes),
        ("--test", test_scenes),
        ("--methods", methods),
        ("--bits", map(str, plan.lengths)),
    ):
        words += [option, *values] if values else []
    words += ["--quick"] if quick else []
    words += ["--seeds", str(n_seeds), "--seed", str(seed), "--out", "report"]
    results.command = command or shlex.join(words)
    store = Store(folder / "work")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConstantBitWarning)  # of settings that are only tried
        _measure_all(results, store, verbose)
    if not results.measured:
        reasons = "; ".join(f"{e['where']}: {e['error']}" for e in results.errors)
        raise ValueError(f"nothing could be measured ({reasons})")
    results.extras["claims"] = decide(results)
    write_results(results, folder)
    write_report(results, folder)
    return results


def _default_methods(quick: bool) -> tuple[dict[str, Method], list[str]]:
    """Return all known methods whose extras are installed, and a note on the others."""
    known = {name: one for name, one in METHODS.items() if one.in_quick or not quick}
    left_out = [
        f"{one.title} (needs {one.needs})" for one in known.values() if not one.is_available
    ]
    notes = [f"Left out: {', '.join(left_out)}."] if left_out else []
    return {name: one for name, one in known.items() if one.is_available}, notes


def _find_methods(texts: Sequence[str]) -> dict[str, Method]:
    chosen: dict[str, Method] = {}
    for text in dict.fromkeys(texts):
        method = find_method(text)
        if method.name in chosen or (text not in METHODS and method.name in METHODS):
            raise ValueError(f"{text}: another method is called {method.name!r}; rename it")
        chosen[method.name] = method
    return chosen


def _find_scenes(names: Sequence[str]) -> tuple[str, ...]:
    """Return folders of scenes, so that a scene has one name; a missing one is reported later."""
    found = []
    for name in names:
        try:
            found.append(str(find_scene(name).resolve()))
        except FileNotFoundError:
            found.append(name)
    return tuple(dict.fromkeys(found))


def _measure_all(results: Results, store: Store, verbose: bool) -> None:
    plan = results.plan
    tests = _load_tests(results)
    learned = sum(method.is_learned for method in results.methods.values())
    n_steps = len(plan.train) * (len(results.methods) - learned + learned * plan.n_seeds)
    with progress(n_steps + 1, "study", verbose) as advance:
        for name in plan.train:
            load = partial(load_train, plan, name)
            first = _attempt(results, f"train scene {name}", load)
            if first is None:
                advance(n_steps // len(plan.train))
                continue
            results.kinds[first.name] = _kind(first)
            sets = [first, *(load_train(plan, name, seed) for seed in plan.seeds[1:])]
            tested = [one for (train_name, _), one in tests.items() if train_name == first.name]
            for method in results.methods.values():
                _measure_method(results, method, sets, tested, store, advance)
        _measure_extras(results, tests, store)
        advance(1)


def _load_tests(results: Results) -> dict[Case, TestSet]:
    """Load the test set of each train-test case; each is loaded once."""
    plan, cases = results.plan, {}
    loaded: dict[tuple[str, bool], TestSet | None] = {}
    for train_name in plan.train:
        for name in plan.tests_of(train_name):
            which = (name, train_name == name or not plan.cases)
            if which not in loaded:
                work = partial(load_test, plan, name, is_own=which[1])
                loaded[which] = test = _attempt(results, f"test scene {name}", work)
                if test is not None and test.name not in results.kinds:
                    results.kinds[test.name] = _kind(test)
                    results.notes += _notes_on(test)
            test = loaded[which]
            if test is not None:
                cases[name_of(train_name), test.name] = test
    return cases


def _measure_method(
    results: Results,
    method: Method,
    sets: list[TrainSet],
    tests: list[TestSet],
    store: Store,
    advance: Callable[[int], None],
) -> None:
    """Measure a method, trained with each seed, on all tests of a training scene."""
    name = sets[0].name
    plans = [replace(results.plan, seed=seed) for seed in results.plan.seeds]
    by_seed: list[Trained | None] = [None]
    if method.is_learned:
        by_seed = []
        for data, plan in zip(sets, plans):
            choice = by_seed[0].choice if by_seed and by_seed[0] else None
            work = partial(train, method, data, plan, store, choice)
            trained = _attempt(results, f"{method.title} trained on {name}", work)
            advance(1)
            if trained is None:
                advance(len(sets) - len(by_seed) - 1)
                return
            by_seed.append(trained)
        results.trained[name, method.name] = [one for one in by_seed if one is not None]
    else:
        advance(1)
    for test in tests:

        def measure_seeds(test: TestSet = test) -> Any:
            where = name if method.is_learned else ""
            arrays = [measure(method, one, test, results.plan, store, where) for one in by_seed]
            return over_seeds(arrays, results.plan.seed)

        arrays = _attempt(results, f"{method.title} on {test.name}", measure_seeds)
        if arrays is not None:
            results.measured[name, test.name, method.name] = arrays


def _measure_extras(results: Results, tests: dict[Case, TestSet], store: Store) -> None:
    """Run the other experiments: alpha, other descriptors, first matches, times."""
    if not results.measured:
        return
    plan, train_name = results.plan, results.cases[0][0]
    test = tests[results.cases[0]]
    data = load_train(plan, next(name for name in plan.train if name_of(name) == train_name))
    steps: dict[str, Callable[[], Any]] = {}
    pair = (data, test, plan, store)
    if "kdif-paper" in results.methods and "kdif" in results.methods:
        models = results.trained.get((train_name, "kdif-paper"))
        gamma = next(iter(models[0].hashers.values())).gamma_ if models else None
        sweep = partial(single_case.sweep_alpha, gamma=gamma)
        steps["alpha"] = partial(single_case.measure_once, "alpha", sweep, *pair)
    if "kdif" in results.methods:
        others = single_case.other_descriptors
        steps["descriptors"] = partial(single_case.measure_once, "descriptors", others, *pair)
    steps["matches"] = partial(single_case.first_matches, results, tests)
    steps["times"] = partial(single_case.comparison_times, test, plan, store)
    for name, step in steps.items():
        found = _attempt(results, name, step)
        if found is not None:
            results.extras[name] = found


def _attempt(results: Results, where: str, work: Callable[[], Any]) -> Any:
    """Return the result of a step, or None after recording its error, so that the rest goes on."""
    try:
        return work()
    except Exception as error:  # a user's own method may raise anything
        if isinstance(error, OSError) and error.errno == 28:  # a full disk stops the study
            raise
        failed = {"where": where, "error": str(error) or type(error).__name__}
        if failed not in results.errors:
            results.errors.append(failed)
            print(f"{where}: {error}", file=sys.stderr)
        return None


def _kind(data: TrainSet | TestSet) -> str:
    """Return "architecture" or "natural" for known scenes and those whose notes say so."""
    kind = str(read_meta(data.scene.path).get("kind_of_scene", "")).lower()
    if "architect" in kind:
        return "architecture"
    if kind.startswith(("natur", "terrain", "mountain")):
        return "natural"
    return _KINDS.get(data.name.removesuffix("-2007"), "")


def _notes_on(test: TestSet) -> list[str]:
    """Return what a reader must know about the labels of a scene."""
    labels = str(read_meta(test.scene.path).get("labels", ""))
    if labels.startswith("recovered"):
        return [f"{test.name}: labels recovered, pairs drawn from confident labels only."]
    return []
