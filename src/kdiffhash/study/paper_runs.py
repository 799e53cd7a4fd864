"""The paper's own runs: its scenes, its four train-test cases, its figures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..datasets import fetch_scene, find_scene
from ..datasets.descriptors import describe_folder
from .results import Results
from .run import run_study

#: The paper's cases: trained on, tested on.
CASES = (
    ("halfdome", "halfdome"),
    ("halfdome", "notredame-2007"),
    ("trevi", "trevi"),
    ("trevi", "notredame-2007"),
)
#: What can be run without the archives of trevi and halfdome: caliterra (nature) takes the place of
#: halfdome and herz-jesus-p25 (architecture) that of trevi.
STAND_IN_CASES = (
    ("notredame-2007", "notredame-2007"),
    ("caliterra", "notredame-2007"),
    ("herz-jesus-p25", "notredame-2007"),
)
STAND_IN = "notredame-2007"
PAPER_METHODS = (
    *("sift", "rootsift", "dif-paper", "kdif-paper", "lda-paper", "boosted-paper"),
    *("dif", "kdif", "lda", "boosted", "kernel-lda"),
)


def run_paper_study(
    out: str | Path,
    source: str | os.PathLike[str] = "published",
    *,
    methods: Sequence[str] = PAPER_METHODS,
    **options: Any,
) -> Results:
    """Repeat the paper's own experiments: its pairs, lengths, cases and figures.

    Parameters
    ----------
    out : path
        Folder of the report; an interrupted run resumes from it.
    source : str or path, default="published"
        - ``"published"``: fetch the archives of trevi, halfdome and notredame of 2007, or use the
          ones fetched before;
        - a folder with `trevi.zip`, `halfdome.zip` and `notredame.zip`, or with scenes of these
          names;
        - ``"notredame-2007"``: the cases that can be run on scenes at hand (`STAND_IN_CASES`).
    methods : sequence of str, default=PAPER_METHODS
        By default the paper's method, the recommended method, and the baselines that the paper's
        claims need.
    **options : any
        Passed to `run_study`: `n_seeds`, `lengths`, `quick`, `seed`, `verbose`.

    Returns
    -------
    results : Results

    Examples
    --------
    >>> from kdiffhash.study import run_paper_study
    >>> results = run_paper_study("report", "notredame-2007")  # doctest: +SKIP
    """
    cases: tuple[tuple[str, str], ...] = STAND_IN_CASES
    if os.fspath(source) != STAND_IN:
        scenes = {name: _scene_of(name, source) for name in ("halfdome", "trevi", STAND_IN)}
        cases = tuple((scenes[train], scenes[test]) for train, test in CASES)
    command = f"kdiffhash study --paper {os.fspath(source)} --out report"
    return run_study(out, cases=cases, methods=methods, command=command, **options)


def _scene_of(name: str, source: str | os.PathLike[str]) -> str:
    """Return the folder of one of the paper's scenes, unpacking or fetching it if necessary."""
    if os.fspath(source) == "published":
        return str(fetch_scene(name).path)
    folder, short = Path(source), name.removesuffix("-2007")
    if not folder.is_dir():
        raise ValueError(
            f"--paper: {folder} is not a folder; give one with trevi.zip, halfdome.zip and "
            f"notredame.zip, or {STAND_IN} for the scenes at hand"
        )
    for path in (folder / name, folder / short):
        if (path / "info.txt").is_file():
            found = find_scene(path)
            if not (found / "sift.npy").is_file():
                describe_folder(found)
            return str(found)
    archive = folder / f"{short}.zip"
    if not archive.is_file():
        raise ValueError(f"--paper: {folder} has neither {archive.name} nor a scene {short}")
    unpacked = folder / "unpacked"
    known = unpacked / "scenes" / name
    if (known / "info.txt").is_file():
        return str(known)
    return str(fetch_scene(name, archive=archive, cache=unpacked).path)
