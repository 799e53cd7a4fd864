"""Power loss while files other than index files are written: outputs, folders and databases.

What a call wrote must be there, whole, once it has returned; before that, the old or the new state.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from attack_data_files import scene_files
from attack_index import in_memory
from attack_sqlite import change, content_of
from attack_vision import load_model, make_databases, make_features, make_photos, search_photos
from common import RIGHT, WRONG, Tally, attack, outcome_of
from power_loss import Recorder, crash_states, write_state

from kdiffhash import HammingIndex, LDAHash
from kdiffhash._util.files import replacing
from kdiffhash.engines.sqlite import SQLiteStore

Check = Callable[[Path, bool], bool]  # of a folder after a power loss; has the call returned?
_STATES = 25  # power losses of each recorded call


def lose_power(
    disk: Path, write: Callable[[], object], check: Check, rng: np.random.Generator, tally: Tally
) -> None:
    """Record a call that writes to a folder, and check states of the folder after power losses."""
    with Recorder(disk) as recorder:
        write()
        recorder.mark()
    for files, marks in crash_states(recorder, rng, _STATES):
        with in_memory() as name:
            write_state(files, Path(name))
            outcome, note = outcome_of(lambda name=name, marks=marks: check(Path(name), marks > 0))
        names = sorted(files)
        tally.count(RIGHT if outcome == RIGHT else WRONG, f"{names}, {marks} returned: {note}")


def _single_files(folder: Path) -> list[tuple[str, Callable[[Path, int], object]]]:
    """What writes a single file: its name, and a function of path and version."""
    from kdiffhash.cli.code_files import output_results
    from kdiffhash.cli.duplicates_command import _write_rows
    from kdiffhash.cli.id_files import write_ids
    from kdiffhash.engines.onnx import export
    from kdiffhash.shards.code_folder import write_codes
    from kdiffhash.vision import Photo, match_photos, write_image, write_matches
    from kdiffhash.vision.colmap import shrink_database
    from kdiffhash.vision.hloc import encode_features, match_features
    from kdiffhash.vision.results_page import write_page

    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 8))
    models = [LDAHash(n_bits=8, random_state=i).fit(X, np.arange(60) // 3) for i in range(2)]
    arrays = [rng.integers(0, 256, (900, 8), dtype=np.uint8) for _ in range(2)]
    make_features(folder)
    make_databases(folder)
    points = rng.uniform(0, 60, (2, 40, 2)).astype(np.float32)
    images = rng.integers(0, 256, (2, 64, 64), dtype=np.uint8)
    photos = [Photo(*one) for one in zip("ab", images, points, arrays[0][:80].reshape(2, 40, 8))]
    matches = [match_photos(photo, photo, geometry="none") for photo in photos]

    def save_text(path: Path, version: int) -> None:
        with replacing(path) as temporary:
            temporary.write_text(f"version {version}\n" * 3000)

    def save_results(path: Path, version: int) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            output_results({}, {"ids": arrays[version]}, lambda i: {}, 0, path, True)

    return [
        ("model.safetensors", lambda path, i: models[i].save(path)),
        ("codes.index", lambda path, i: HammingIndex(arrays[i]).save(path)),
        ("found.npz", save_results),
        ("report.txt", save_text),
        ("codes.npy", lambda path, i: write_codes(models[i], [X[:40], X[40:]], 60, path, "X")),
        ("keep.txt", lambda path, i: write_ids(path, np.arange(i, 5000))),
        ("pairs.csv", lambda path, i: _write_rows(path, ("a",), ({"a": i} for _ in range(900)))),
        ("codes.h5", lambda path, _: encode_features(folder / "old.h5", path, load_model())),
        ("matches.h5", lambda path, _: match_features(folder / "codes.h5", path, load_model())),
        *(
            (f"matches.{kind}", lambda path, i: write_matches(path, *2 * [photos[i]], matches[i]))
            for kind in ("npz", "csv", "json")
        ),
        ("drawn.png", lambda path, i: write_image(images[i], path)),
        ("page.html", lambda path, i: write_page(path, photos[i], [])),
        ("model.onnx", lambda path, i: export(models[i], path)),
        ("codes.db", lambda path, _: shrink_database(folder / "strict.db", path, load_model())),
    ]


@attack("other files: power loss while one is written", 4000, pieces=2, records=True)
def single_files(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    """The old file or the new one is there, whole; after the call returned, the new one."""
    writers, turn = _single_files(folder), 0
    while tally.tries < tries:
        (name, write), replaces = writers[turn % len(writers)], turn // len(writers) % 2
        turn += 1
        with in_memory() as disk:
            path = Path(disk) / name
            if replaces:
                write(path, 0)
            old = path.read_bytes() if replaces else None

            check = partial(_is_whole, path, old)
            lose_power(Path(disk), partial(write, path, 1), check, rng, tally)


def _is_whole(path: Path, old: bytes | None, crashed: Path, done: bool) -> bool:
    found, new = crashed / path.name, path.read_bytes()
    content = found.read_bytes() if found.exists() else None
    return content == new if done else content in (old, new)


# -- databases ------------------------------------------------------------------------------------


@attack("SQLite stores: power loss", 3000, pieces=2, records=True)
def sqlite_stores(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    """Every state holds what was committed, with a rollback journal and with a write-ahead log."""
    number, n_files = int(rng.integers(2**31)), 0
    while tally.tries < tries:
        with in_memory() as disk:
            path, content = Path(disk) / "codes.db", {}
            n_files += 1
            with SQLiteStore(path).create(64):
                pass
            with closing(sqlite3.connect(path)) as connection:
                mode = ("DELETE", "WAL")[n_files % 2]
                connection.execute(f"PRAGMA journal_mode = {mode}")
            allowed = [content]
            with Recorder(Path(disk)) as recorder, SQLiteStore(path) as store:
                for _ in range(6):
                    content = change(store, number, content)
                    number += 1
                    recorder.mark()
                    allowed.append(content)
            for files, marks in crash_states(recorder, rng, 60):
                check = partial(_holds, files, allowed[marks : marks + 2])
                outcome, note = outcome_of(check)
                note = f"{mode}, change {number}, {marks}, {sorted(files)}: {note}"
                tally.count(RIGHT if outcome == RIGHT else WRONG, note)


def _holds(files: dict[str, bytes], allowed: list[dict[int, bytes]]) -> bool:
    """Put the files of a crash state in a folder, and read and write the store there."""
    with in_memory() as name:
        write_state(files, Path(name))
        path = Path(name) / "codes.db"
        found = content_of(path)
        if found not in allowed:
            return False
        with SQLiteStore(path) as store:
            store.add(np.zeros((1, 8), np.uint8), [-7])
        return content_of(path) == {**found, -7: bytes(8)}


@attack("COLMAP databases: power loss", 300, records=True)
def colmap(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    """Matches are all written or not at all; other tables stay as they are."""
    from kdiffhash.vision import colmap

    make_databases(folder)
    images = colmap.read_images(folder / "strict.db", load_model())
    matched = colmap.match_images(images, n_jobs=1)

    def dump(path: Path) -> dict[str, list[Any]]:
        tables = ("cameras", "images", "keypoints", "descriptors", "matches")
        with closing(sqlite3.connect(path)) as database:
            return {t: database.execute(f"SELECT * FROM {t} ORDER BY 1").fetchall() for t in tables}

    before = dump(folder / "strict.db")
    while tally.tries < tries:
        with in_memory() as disk:
            path = Path(disk) / "x.db"
            shutil.copy(folder / "strict.db", path)
            chosen = [pair for pair in matched if rng.random() < 0.7] or matched[:1]

            def check(crashed: Path, done: bool, path: Path = path) -> bool:
                found, after = dump(crashed / "x.db"), dump(path)
                return found == after if done else found in (before, after)

            write = partial(colmap.write_matches, path, chosen)
            lose_power(Path(disk), write, check, rng, tally)


@attack("photo indexes: power loss", 300, records=True)
def photos(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    """An index that was updated is complete; an interrupted update can be repeated."""
    from kdiffhash import HashedSIFT
    from kdiffhash.vision import PhotoIndex

    make_photos(folder)
    expected = search_photos(folder / "whole", folder / "query.png")

    def update(index: Path) -> None:
        PhotoIndex(index, HashedSIFT(64, 40)).update(folder / "photos")

    def check(disk: Path, done: bool) -> bool:
        if not done:
            update(disk / "index")
        return search_photos(disk / "index", folder / "query.png") == expected

    while tally.tries < tries:
        with in_memory() as disk:
            index = Path(disk) / "index"
            if rng.random() < 0.5:  # an index without one of the photographs
                kept = folder / "photos" / "3.png"
                moved = kept.rename(folder / "3.png")
                update(index)
                moved.rename(kept)
            lose_power(Path(disk), partial(update, index), check, rng, tally)


# -- folders --------------------------------------------------------------------------------------


@attack("scenes: power loss while one is unpacked or written", 300, records=True)
def scenes(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    """A scene is there, whole, or not at all; after the call returned, it is there."""
    from kdiffhash.datasets import fetch_scene, load_scene
    from kdiffhash.datasets.scene import write_scene

    scene_files(folder / "scene")
    (folder / "scene" / "patches0000.bmp").unlink()
    archive = Path(shutil.make_archive(str(folder / "scene"), "zip", folder / "scene"))
    patches = np.random.default_rng(0).integers(0, 256, (40, 64, 64)).astype(np.uint8)
    points, photos = np.arange(40) // 4, np.arange(40) % 4 + 1
    frames = np.random.default_rng(1).random((40, 4)) + 1

    def unpack(disk: Path) -> None:
        fetch_scene("mine", archive=archive, cache=disk)

    def write(disk: Path) -> None:
        descriptors = np.ones((40, 128), np.uint8)
        options = {"descriptors": descriptors, "frames": frames, "meta": {}}
        write_scene(disk / "mine", patches, points, photos, **options)

    while tally.tries < tries:
        with in_memory() as name:
            disk = Path(name)
            act = (unpack, write)[int(rng.integers(2))]
            place = Path("scenes/mine" if act is unpack else "mine")

            def check(crashed: Path, done: bool, disk: Path = disk, place: Path = place) -> bool:
                new, found = disk / place, crashed / place
                if not (found / "info.txt").exists():
                    return not done
                load_scene(found)
                return all(
                    (found / file.name).read_bytes() == file.read_bytes() for file in new.iterdir()
                )

            lose_power(disk, partial(act, disk), check, rng, tally)


@attack("folders of codes: power loss", 300, records=True)
def code_folders(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    """Files of codes are whole, and encoding again completes the folder."""
    from kdiffhash.shards import open_shards
    from kdiffhash.shards.code_folder import shards_to_write, write_shard

    X = np.random.default_rng(0).normal(size=(90, 8)).astype(np.float32)
    model = LDAHash(n_bits=8, random_state=0).fit(X, np.arange(90) // 3)
    for i in range(3):
        np.save(folder / f"{i}.npy", X[30 * i : 30 * i + 30])
    rows, expected = open_shards(folder), model.transform(X)

    def encode(disk: Path) -> None:
        for shard, target in shards_to_write(model, rows, disk / "codes"):
            write_shard(model, shard, target)

    def check(disk: Path, done: bool) -> bool:
        for i in range(3):
            path = disk / "codes" / f"{i}.npy"
            if path.exists() and not np.array_equal(np.load(path), expected[30 * i : 30 * i + 30]):
                return False
        if not done:
            encode(disk)
        return np.array_equal(open_shards(disk / "codes")[np.arange(90)], expected)

    while tally.tries < tries:
        with in_memory() as disk:
            lose_power(Path(disk), partial(encode, Path(disk)), check, rng, tally)
