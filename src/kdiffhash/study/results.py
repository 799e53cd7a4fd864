"""The results of a study, as tables and files."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.files import json_ready, replacing
from ..evaluate.bootstrap import interval_of
from ..evaluate.roc import RATES
from .cache import Arrays
from .methods import Method
from .plan import Plan
from .train import Trained, budget_of


@dataclass
class Results:
    """All measurements of a study.

    Attributes
    ----------
    plan : Plan
    methods : dict
        Methods by name.
    measured : dict
        Arrays of `measure.over_seeds` by training scene, test scene and method; methods that are
        not trained have one entry per training scene.
    trained : dict
        Trained methods, one per seed, by training scene and method.
    errors : list
        Steps that failed: where, and why.
    extras : dict
        Rates by alpha, other descriptors, first matches, comparison times, and the claims.
    kinds : dict
        "architecture", "natural" or "" by scene.
    notes : list
        Sentences about the data that every reader must know.
    command : str
        The command that repeats the study.

    Examples
    --------
    >>> from kdiffhash.study import Results
    >>> from kdiffhash.study.plan import Plan
    >>> Results(Plan(("a",), ("b",), ()), {}).cases
    []
    """

    plan: Plan
    methods: dict[str, Method]
    measured: dict[tuple[str, str, str], Arrays] = field(default_factory=dict)
    trained: dict[tuple[str, str], list[Trained]] = field(default_factory=dict)
    errors: list[dict[str, str]] = field(default_factory=list)
    extras: dict[str, Any] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    command: str = ""

    @property
    def lengths(self) -> list[int]:
        """Lengths of all codes that were measured."""
        codes = [arrays["n_bits"] for arrays in self.measured.values() if arrays["is_code"]]
        return np.unique(np.concatenate(codes)).tolist() if codes else []

    @property
    def cases(self) -> list[tuple[str, str]]:
        """Pairs of training and test scene that were measured."""
        return list(dict.fromkeys((train, test) for train, test, _ in self.measured))

    def rate(
        self, train: str, test: str, method: str, n_bits: int | None, rate: str
    ) -> tuple[float, NDArray[np.float64]] | None:
        """Return a rate and its resampled values.

        Parameters
        ----------
        train : str
            Training scene.
        test : str
            Test scene.
        method : str
            Name of the method.
        n_bits : int or None
            Length of the codes; None means the longest.
        rate : str
            Name of the rate, for example ``"fnr_at_1e-3"``.

        Returns
        -------
        value : tuple of (float, float64 array) or None
            The rate and its bootstrap samples; None if it was not measured.
        """
        found = self._find(train, test, method, n_bits, rate)
        if found is None:
            return None
        arrays, i, j = found
        return float(arrays["values"][i, j]), arrays["samples"][:, i, j]

    def is_reliable(
        self, train: str, test: str, method: str, n_bits: int | None, rate: str
    ) -> bool:
        """Return whether there are enough objects for the confidence interval of a rate.

        Parameters
        ----------
        train : str
            Training scene.
        test : str
            Test scene.
        method : str
            Name of the method.
        n_bits : int or None
            Length of the codes; None means the longest.
        rate : str
            Name of the rate, for example ``"fnr_at_1e-3"``.

        Returns
        -------
        reliable : bool
        """
        found = self._find(train, test, method, n_bits, rate)
        if found is None or "reliable" not in found[0]:
            return True
        arrays, i, j = found
        return bool(arrays["reliable"][i, j])

    def _find(
        self, train: str, test: str, method: str, n_bits: int | None, rate: str
    ) -> tuple[Arrays, int, int] | None:
        arrays = self.measured.get((train, test, method))
        if arrays is None:
            return None
        lengths = arrays["n_bits"].tolist()
        n_bits = lengths[-1] if n_bits is None else n_bits
        if n_bits not in lengths:
            return None
        return arrays, lengths.index(n_bits), list(RATES).index(rate)

    def table(self) -> list[dict[str, Any]]:
        """Return one row per training scene, test scene, method and length."""
        times = self.extras.get("times", {}).get("ns", {})
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
                    row[f"{rate}_reliable"] = bool(arrays["reliable"][i, j])
                row["encode_ns"] = float(arrays["encode_ns"])
                row["compare_ns"] = times.get(str(n_bits) if arrays["is_code"] else floats)
                rows.append(row)
        return rows


def write_results(results: Results, folder: Path) -> None:
    """Write `results.json` and `results.csv`."""
    rows = results.table()
    matches = results.extras.get("matches")
    if matches is not None:
        matches = {name: value for name, value in matches.items() if name != "gallery"}
    content = {
        "plan": asdict(results.plan),
        "notes": results.notes,
        "settings": {
            f"{method} on {scene}": {
                **by_seed[0].choice,
                "seconds": [round(one.seconds, 3) for one in by_seed],
                "budget": budget_of(results.methods[method], results.plan),
            }
            for (scene, method), by_seed in results.trained.items()
        },
        "rows": rows,
        "claims": [asdict(claim) for claim in results.extras["claims"]],
        "alpha": results.extras.get("alpha"),
        "other_descriptors": results.extras.get("descriptors"),
        "first_matches": matches,
        "comparison_times": results.extras.get("times"),
        "errors": results.errors,
    }
    with replacing(folder / "results.json") as temporary:
        temporary.write_text(json.dumps(json_ready(content), indent=1, allow_nan=False) + "\n")
    with replacing(folder / "results.csv") as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
