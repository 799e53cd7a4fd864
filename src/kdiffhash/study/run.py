"""Running a study: every method on every train-test pair, then what follows from it."""

from __future__ import annotations

import csv
import json
import shlex
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.extras import need
from .._util.files import json_ready, replacing
from .._util.progress import progress
from ..datasets import find_scene
from ..datasets.scene import read_meta
from ..evaluate.bootstrap import interval_of
from ..evaluate.roc import RATES
from ..hashers import ConstantBitWarning
from . import single_case as extra
from .cache import Arrays, Store
from .claims import decide
from .measure import measure
from .methods import METHODS, Method, find_method
from .plan import LENGTHS, Plan, TestSet, TrainSet, load_test, load_train, name_of, quick
from .train import Trained, train


@dataclass
class Results:
    """All that a study has found.

    Attributes
    ----------
    measured : dict
        Arrays of `measure` by train scene, test scene and method; methods that are not trained have
        an entry for each train scene.
    trained : dict
        Trained methods by train scene and method.
    errors : list
        What could not be done: where, and why.
    extras : dict
        Rates by alpha, rates on HOG, first matches, costs of comparing.
    """

    plan: Plan
    methods: dict[str, Method]
    measured: dict[tuple[str, str, str], Arrays] = field(default_factory=dict)
    trained: dict[tuple[str, str], Trained] = field(default_factory=dict)
    errors: list[dict[str, str]] = field(default_factory=list)
    extras: dict[str, Any] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    command: str = ""

    @property
    def lengths(self) -> list[int]:
        """Lengths of all codes that were measured."""
        codes = [arrays["n_bits"] for arrays in self.measured.values() if arrays["is_code"]]
        return np.unique(np.concatenate(codes)).tolist() if codes else []

    @property
    def cases(self) -> list[tuple[str, str]]:
        """Train-test pairs that were measured."""
        return list(dict.fromkeys((train, test) for train, test, _ in self.measured))

    def rate(
        self, train: str, test: str, method: str, n_bits: int | None, rate: str
    ) -> tuple[float, NDArray[np.float64]] | None:
        """A rate and its resampled values; of the only length if `n_bits` is None."""
        arrays = self.measured.get((train, test, method))
        if arrays is None:
            return None
        lengths = arrays["n_bits"].tolist()
        if n_bits is None:
            n_bits = lengths[-1]
        if n_bits not in lengths:
            return None
        i, j = lengths.index(n_bits), list(RATES).index(rate)
        return float(arrays["values"][i, j]), arrays["samples"][:, i, j]

    def table(self) -> list[dict[str, Any]]:
        """A row for each train scene, test scene, method and length."""
        times = self.extras.get("times", {})
        rows = []
        for (train_name, test_name, name), arrays in self.measured.items():
            floats = "euclidean" if name in ("sift", "rootsift") else ""
            for i, n_bits in enumerate(arrays["n_bits"].tolist()):
                row: dict[str, Any] = {
                    "train": train_name,
                    "test": test_name,
                    "method": name,
                    "title": self.methods[name].title,
                    "n_bits": n_bits,
                }
                for j, rate in enumerate(RATES):
                    found = interval_of(arrays["values"][i, j], arrays["samples"][:, i, j])
                    row[rate] = found.value
                    row[f"{rate}_low"], row[f"{rate}_high"] = found.low, found.high
                row["encode_ns"] = float(arrays["encode_ns"])
                row["compare_ns"] = times.get(str(n_bits) if arrays["is_code"] else floats)
                rows.append(row)
        return rows


def run_study(
    out: str | Path,
    *,
    train_scenes: Sequence[str] = (),
    test_scenes: Sequence[str] = (),
    methods: Sequence[str] = (),
    lengths: Sequence[int] = LENGTHS,
    first_look: bool = False,
    seed: int = 0,
    verbose: bool = False,
) -> Results:
    """Run the paper's experiments and write tables, figures and a report page.

    Parameters
    ----------
    out : path
        Folder of the report; finished parts are kept in its subfolder `work`, and a study that was
        interrupted goes on from there.
    train_scenes, test_scenes : sequences of str
        Scenes by path or name; the embedded set by default. A scene in both is split by points.
    methods : sequence of str
        See `methods.find_method`; all known ones by default.
    lengths : sequence of int
        Code lengths in bits.
    first_look : bool
        Fewer pairs, basis rows and resamples.
    seed : int
    verbose : bool
        Show progress on a terminal.

    Returns
    -------
    Results
    """
    need("matplotlib", "study")
    need("jinja2", "study")
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(f"--out: {folder} cannot be written to ({error.strerror})") from error
    if bool(train_scenes) != bool(test_scenes):
        raise ValueError("give both train and test scenes, or neither for the embedded set")
    if not lengths or min(lengths) < 1:
        raise ValueError("lengths must be positive numbers of bits")
    known = [name for name, method in METHODS.items() if not (first_look and method.is_slow)]
    chosen = _find_methods(methods or known)
    plan = Plan(
        _find_scenes(train_scenes or ("views-train",)),
        _find_scenes(test_scenes or ("views-test",)),
        tuple(chosen),
        tuple(sorted(set(lengths))),
        seed=seed,
    )
    all_scenes = {*plan.train, *plan.test}
    if len({name_of(scene) for scene in all_scenes}) < len(all_scenes):
        raise ValueError(f"two scenes have the same name: {', '.join(sorted(all_scenes))}")
    results = Results(quick(plan) if first_look else plan, chosen)
    words = ["kdiffhash", "study"]
    for option, values in (
        ("--train", train_scenes),
        ("--test", test_scenes),
        ("--methods", methods),
        ("--bits", map(str, plan.lengths)),
    ):
        words += [option, *values] if values else []
    words += [*(["--quick"] if first_look else []), "--seed", str(seed), "--out", "report"]
    results.command = shlex.join(words)
    store = Store(folder / "work")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConstantBitWarning)  # of settings that are only tried
        _measure_all(results, store, verbose)
    if not results.measured:
        reasons = "; ".join(f"{e['where']}: {e['error']}" for e in results.errors)
        raise ValueError(f"nothing could be measured ({reasons})")
    results.extras["claims"] = [asdict(claim) for claim in decide(results)]
    write_results(results, folder)
    from .report import write_report

    write_report(results, folder)
    return results


def _find_methods(texts: Sequence[str]) -> dict[str, Method]:
    chosen: dict[str, Method] = {}
    for text in dict.fromkeys(texts):
        method = find_method(text)
        if method.name in chosen or (text not in METHODS and method.name in METHODS):
            raise ValueError(f"{text}: another method is called {method.name!r}; rename it")
        chosen[method.name] = method
    return chosen


def _find_scenes(names: Sequence[str]) -> tuple[str, ...]:
    """Folders of scenes, so that one scene has one name; a missing one is reported later."""
    found = []
    for name in names:
        try:
            found.append(str(find_scene(name).resolve()))
        except FileNotFoundError:
            found.append(name)
    return tuple(dict.fromkeys(found))


def _measure_all(results: Results, store: Store, verbose: bool) -> None:
    plan, tests = results.plan, []
    for name in plan.test:
        test = _attempt(results, f"test scene {name}", partial(load_test, plan, name))
        if test is not None:
            tests.append(test)
            results.kinds[test.name] = _kind(test)
    n_methods = len(results.methods)
    with progress(len(plan.train) * n_methods + 1, "study", verbose) as advance:
        for name in plan.train:
            data = _attempt(results, f"train scene {name}", partial(load_train, plan, name))
            if data is None:
                advance(n_methods)
                continue
            results.kinds[data.name] = _kind(data)
            for method in results.methods.values():
                _measure_method(results, method, data, tests, store)
                advance(1)
        _measure_extras(results, tests, store)


def _measure_method(
    results: Results, method: Method, data: TrainSet, tests: list[TestSet], store: Store
) -> None:
    plan = results.plan
    trained: Trained | None = None
    if method.is_learned:
        where = f"{method.title} trained on {data.name}"
        trained = _attempt(results, where, partial(train, method, data, plan, store))
        if trained is None:
            return
        results.trained[data.name, method.name] = trained
    for test in tests:
        arrays = _attempt(
            results,
            f"{method.title} on {test.name}",
            partial(measure, method, trained, test, plan, store, data.name if trained else ""),
        )
        if arrays is not None:
            results.measured[data.name, test.name, method.name] = arrays


def _measure_extras(results: Results, tests: list[TestSet], store: Store) -> None:
    """What needs one train-test pair: alpha, another descriptor, first matches, times."""
    if not results.measured:
        return
    plan, (train_name, test_name) = results.plan, results.cases[0]
    test = next(one for one in tests if one.name == test_name)
    data = load_train(plan, next(name for name in plan.train if name_of(name) == train_name))
    steps: dict[str, Callable[[], Any]] = {}
    if "kdif" in results.methods:
        pair = (data, test, plan, store)
        for name, work in (("alpha", extra.sweep_alpha), ("hog", extra.other_descriptor)):
            steps[name] = partial(extra.measure_once, name, work, *pair)
    steps["matches"] = partial(extra.first_matches, results, data, test)
    steps["times"] = partial(extra.comparison_times, test, plan, store)
    for name, step in steps.items():
        found = _attempt(results, name, step)
        if found is not None:
            results.extras[name] = found


def _attempt(results: Results, where: str, work: Callable[[], Any]) -> Any:
    """The result of some work, or None: what goes wrong is noted, and the rest stands."""
    try:
        return work()
    except Exception as error:  # a method of the user's may raise anything
        if isinstance(error, OSError) and error.errno == 28:  # a full disk stops all
            raise
        results.errors.append({"where": where, "error": str(error) or type(error).__name__})
        print(f"{where}: {error}", file=sys.stderr)
        return None


def _kind(data: TrainSet | TestSet) -> str:
    """The kind of a scene, where its notes tell: architecture or natural."""
    kind = str(read_meta(data.scene.path).get("kind_of_scene", "")).lower()
    if "architect" in kind:
        return "architecture"
    return "natural" if kind.startswith(("natur", "terrain", "mountain")) else ""


def write_results(results: Results, folder: Path) -> None:
    """Write `results.json` and `results.csv`."""
    rows = results.table()
    matches = results.extras.get("matches")
    if matches is not None:
        matches = {name: value for name, value in matches.items() if name != "gallery"}
    content = {
        "plan": asdict(results.plan),
        "settings": {
            f"{method} on {scene}": {**trained.choice, "seconds": round(trained.seconds, 3)}
            for (scene, method), trained in results.trained.items()
        },
        "rows": rows,
        "claims": results.extras["claims"],
        "alpha": results.extras.get("alpha"),
        "other_descriptor": results.extras.get("hog"),
        "first_matches": matches,
        "nanoseconds_to_compare": results.extras.get("times"),
        "errors": results.errors,
    }
    with replacing(folder / "results.json") as temporary:
        temporary.write_text(json.dumps(json_ready(content), indent=1, allow_nan=False) + "\n")
    with replacing(folder / "results.csv") as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
