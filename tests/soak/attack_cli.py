"""Attacks on the command line: Ctrl-C at random moments, and outputs that are inputs."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import cv2
import numpy as np
from common import CRASHED, REFUSED, RIGHT, WRONG, Tally, attack

import kdiffhash
from kdiffhash.engines.sqlite import SQLiteStore

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
from interrupting import run_interrupted

_LIMIT = 3.0  # seconds to the end after Ctrl-C; it takes less than one on an idle machine
_COMMANDS = [
    ["train", "rows.npz", "-o", "out/model", "--basis", "300"],
    ["train", "rows.npz", "-o", "out/model", "--basis", "100", "--refine", "30"],
    ["eval", "model", "rows.npz"],
    ["encode", "model", "rows.npz", "-o", "out/codes.npy"],
    ["encode", "model", "rows.npz", "-o", "out/codes"],
    ["index", "build", "codes.npy", "-o", "out/x.index"],
    ["index", "search", "x.index", "codes.npy", "-o", "out/found.npz"],
    ["index", "duplicates", "x.index", "--groups", "-r", "9", "--keep", "out/keep.txt"],
    ["sqlite", "import", "codes.npy", "--database", "out/x.db"],
    ["sqlite", "search", "codes.npy", "--database", "x.db", "-o", "out/found.npz"],
    ["match", "photos/a.png", "photos/b.png", "-o", "out/m.png"],
    ["photos", "index", "photos", "--index", "out/photos"],
]


def _make_inputs(folder: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(500), 4)
    X = (rng.normal(size=(500, 64))[y] + 0.3 * rng.normal(size=(2000, 64))).astype(np.float32)
    np.savez(folder / "rows.npz", X=X, y=y)
    kdiffhash.LDAHash(32, random_state=0).fit(X, y).save(folder / "model")
    (folder / "photos").mkdir()
    for name in "ab":
        image = cv2.resize(rng.integers(0, 256, (60, 80), dtype=np.uint8), (640, 480))
        cv2.imwrite(str(folder / "photos" / f"{name}.png"), image)
    codes = rng.integers(0, 256, (20_000, 8), dtype=np.uint8)
    np.save(folder / "codes.npy", codes)
    with kdiffhash.HammingIndex.open(folder / "x.index", "a", n_bits=64) as index:
        index.add(codes)
    with SQLiteStore(folder / "x.db").create(64) as store:
        store.add(codes)


def _is_whole(path: Path) -> bool:
    if path.parent.name == "photos":  # what is in it was committed
        with closing(sqlite3.connect(path.parent / "photos.sqlite")) as connection:
            return connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    if path.suffix == ".png":
        return cv2.imread(str(path)) is not None
    if path.name == "model":
        return kdiffhash.load(path).n_bits_ > 0
    if path.name == "x.index":
        with kdiffhash.HammingIndex.open(path) as index:
            return len(index) == 20_000 and not kdiffhash.HammingIndex.verify(path)
    if path.name.startswith("x.db"):  # or its journal, which undoes what was not committed
        with closing(sqlite3.connect(path.with_name("x.db"))) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
            query = "SELECT count(*) FROM codes"
            return not tables or connection.execute(query).fetchone()[0] in (0, 20_000)
    if path.name == "keep.txt":
        return path.read_text().endswith("\n")
    if path.suffix == ".npz":
        with np.load(path) as file:
            return file["ids"].shape == (20_000, 10)
    return path.suffix == ".json" or np.load(path).shape == (2000, 4)


@attack("Ctrl-C during a command", tries=30 * len(_COMMANDS), pieces=2)
def interrupt(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    """Refused: exit code 130 and no output. Right: a complete output."""
    _make_inputs(folder)
    durations: dict[int, float] = {}
    for turn in range(tries):
        number = turn % len(_COMMANDS)
        share = float(rng.uniform(0, 1.05))
        command = _COMMANDS[number]
        if number not in durations:
            (folder / "out").mkdir()
            durations[number] = run_interrupted(command, folder, None).seconds
            shutil.rmtree(folder / "out")
        (folder / "out").mkdir()
        note = f"{' '.join(command)} at {share:.3f}"
        try:
            ended = run_interrupted(command, folder, share * durations[number])
        except subprocess.TimeoutExpired:
            tally.count(CRASHED, f"{note}: no end")
            shutil.rmtree(folder / "out")
            continue
        files = [path for path in (folder / "out").rglob("*") if path.is_file()]
        note += f": {ended}, {files}"
        if ended.code not in (0, 130) or (ended.seconds > _LIMIT and ended.code):
            tally.count(CRASHED, note)
        elif "Traceback" in ended.stderr or not all(
            not path.name.startswith(".") and _is_whole(path) for path in files
        ):
            tally.count(WRONG, note)
        else:
            tally.count(REFUSED if ended.code else RIGHT)
        shutil.rmtree(folder / "out")


@attack("output that is an input", tries=500)
def overwrite(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    """Name inputs as outputs through random chains of symbolic links, hard links and detours."""
    from kdiffhash.cli.guard import check_writable

    inputs = [folder / name for name in ("a.npy", "b.npz", "c")]
    for path in inputs:
        path.touch()
    for number in range(tries):
        out = inputs[int(rng.integers(len(inputs)))]
        for step in range(int(rng.integers(4))):
            kind = rng.integers(3)
            link = folder / f"link-{number}-{step}"
            if kind == 0:
                link.symlink_to(os.path.relpath(out, folder) if rng.integers(2) else out)
                out = link
            elif kind == 1:
                os.link(out.resolve(), link)
                out = link
            else:
                (folder / "sub").mkdir(exist_ok=True)
                out = out.parent / "sub" / ".." / out.name
        try:
            check_writable(out, *inputs)
        except ValueError:
            tally.count(REFUSED)
        else:
            tally.count(WRONG, str(out))
