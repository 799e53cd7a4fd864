"""Damaged COLMAP databases, features files of hloc and photo indexes.

Every case runs in a child process, which repeats the damage from a seed: a crash of COLMAP, HDF5 or
OpenCV costs one case.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
from common import Tally, attack, mutate, run_isolated

from kdiffhash import BaseHasher, HashedSIFT, load_pretrained, match_codes
from kdiffhash.codes import Codes

N_BITS = 64
TABLES = ("cameras", "images", "keypoints", "descriptors", "matches", "two_view_geometries")
INTEGERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 17, 18, 128, 2**20, 2**31 - 2)
INTEGERS += (2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1)
OTHERS = (None, 1.5, float("inf"), "", "12", "a.png", "a\0b", "ä" * 300, b"", b"\0" * 7, b"\0" * 8)


@attack("COLMAP databases, damaged values and bytes", 2000)
def colmap_databases(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    make_databases(folder)
    cases = [(str(folder), int(seed)) for seed in rng.integers(2**62, size=tries)]
    run_isolated(check_database, cases, tally)


def make_databases(folder: Path) -> None:
    """Write a database with three cameras, and one whose tables have no constraints."""
    import pycolmap

    options = pycolmap.SyntheticDatasetOptions(
        num_rigs=3, num_cameras_per_rig=1, num_frames_per_rig=1, num_points3D=40
    )
    strict, free = folder / "strict.db", folder / "free.db"
    with pycolmap.Database.open(strict) as database:
        pycolmap.synthesize_dataset(options, database)
        for a, b in combinations((1, 2, 3), 2):
            geometry = database.read_two_view_geometry(a, b)
            if hasattr(geometry, "camera1"):
                geometry.camera1, geometry.camera2 = map(database.read_camera, (a, b))
                database.delete_two_view_geometry(a, b)
                database.write_two_view_geometry(a, b, geometry)
    with closing(sqlite3.connect(strict)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
    shutil.copy(strict, free)
    with closing(sqlite3.connect(free)) as database, database:
        for table in TABLES:
            database.execute(f"CREATE TABLE new AS SELECT * FROM {table}")
            database.execute(f"DROP TABLE {table}")
            database.execute(f"ALTER TABLE new RENAME TO {table}")


def check_database(case: tuple[str, int]) -> bool:
    """Damage a database and match it: it must be refused and unchanged, or matched rightly."""
    from kdiffhash.vision import colmap

    folder, seed = Path(case[0]), case[1]
    rng = np.random.default_rng(seed)
    path = folder / f"{os.getpid()}.db"
    for old in folder.glob(f"{path.name}*"):
        old.unlink()
    shutil.copy(folder / str(rng.choice(["strict.db", "free.db"])), path)
    by_value = rng.random() < 0.7
    if by_value:
        for _ in range(int(rng.integers(1, 3))):
            damage_values(path, rng)
    else:
        path.write_bytes(mutate(path.read_bytes(), rng))
    before = path.read_bytes()
    model = load_model()
    try:
        images = colmap.read_images(path, model)
        matched = colmap.verify_pairs(colmap.match_images(images, n_jobs=1), n_jobs=1)
        tables = dump(path, ("cameras", "images", "keypoints", "descriptors"))
        colmap.write_matches(path, matched)
    except colmap.DatabaseError:
        if path.read_bytes() != before:
            raise AssertionError("a refused database was changed") from None
        raise
    if dump(path, tuple(tables)) != tables:
        raise AssertionError("other tables were changed")
    check_matches(path, model)
    if by_value:
        try:
            read_by_colmap(path)
        except Exception as error:
            raise AssertionError(f"COLMAP cannot read it: {error}") from error
    return True


def damage_values(path: Path, rng: np.random.Generator) -> None:
    """Set a value, or delete, repeat or rename something, where the constraints allow it."""
    table = str(rng.choice(TABLES))
    with closing(sqlite3.connect(path)) as database, database:
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        rows = [row[0] for row in database.execute(f"SELECT rowid FROM {table}")] if columns else []
        if not rows:
            return
        column, row = str(rng.choice(columns)), int(rng.choice(rows))
        kind = rng.integers(20)
        statements = {
            0: f"DELETE FROM {table} WHERE rowid = {row}",
            1: f"INSERT INTO {table} SELECT * FROM {table} WHERE rowid = {row}",
            2: f"ALTER TABLE {table} RENAME COLUMN {column} TO other",
            3: f"ALTER TABLE {table} RENAME TO other",
            4: f"ALTER TABLE {table} ADD COLUMN other INTEGER",
        }
        database.execute("PRAGMA ignore_check_constraints = ON")
        try:
            if kind in statements:
                database.execute(statements[int(kind)])
                return
            (old,) = database.execute(
                f"SELECT {column} FROM {table} WHERE rowid = ?", (row,)
            ).fetchone()
            where = "" if rng.random() < 0.2 else f"WHERE rowid = {row}"
            database.execute(f"UPDATE {table} SET {column} = ? {where}", (bad_value(old, rng),))
        except (sqlite3.IntegrityError, sqlite3.OperationalError):
            return  # the database stays as it is, which is a case of its own


def bad_value(old: object, rng: np.random.Generator) -> object:
    """Return a value that is sometimes of the wrong type, size or length, sometimes only other."""
    if isinstance(old, bytes) and rng.random() < 0.8:
        word = np.array([rng.choice([np.nan, np.inf, -1.0, 0.0, 1e300])]).tobytes()
        at = 8 * int(rng.integers(max(1, len(old) // 8)))
        choices = [
            old[: int(rng.integers(len(old) + 1))],
            old[: 8 * int(rng.integers(len(old) // 8 + 1))],
            old + rng.bytes(int(rng.choice([1, 4, 8, 16, 64]))),
            old + old,
            old[:at] + word + old[at + 8 :],
            mutate(old, rng),
            rng.bytes(len(old)),
        ]
        return choices[int(rng.integers(len(choices)))]
    if isinstance(old, int) and rng.random() < 0.8:
        return int(rng.choice(INTEGERS)) if rng.random() < 0.8 else old + int(rng.integers(-2, 3))
    return OTHERS[int(rng.integers(len(OTHERS)))]


def dump(path: Path, tables: tuple[str, ...]) -> dict[str, list[object]]:
    """Return all rows of these tables."""
    with closing(sqlite3.connect(path)) as database:
        return {t: database.execute(f"SELECT * FROM {t} ORDER BY 1").fetchall() for t in tables}


def check_matches(path: Path, model: BaseHasher) -> None:
    """Compare the matches in a database with those of its descriptors, read by plain SQL."""
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute(
            "SELECT image_id, d.rows, d.data FROM images JOIN descriptors d USING (image_id) "
            "JOIN keypoints USING (image_id) ORDER BY image_id"
        ).fetchall()
        written = dict(database.execute("SELECT pair_id, data FROM matches"))
    codes = {number: encode(model, data or b"", n) for number, n, data in rows}
    for a, b in combinations(codes, 2):
        expected = match_codes(codes[a], codes[b], ratio=0.74).pairs.astype(np.uint32)
        found = np.frombuffer(written[a * (2**31 - 1) + b] or b"", np.uint32).reshape(-1, 2)
        np.testing.assert_array_equal(found, expected)


def encode(model: BaseHasher, data: bytes, n: int) -> Codes:
    """Return the codes of a blob of descriptors."""
    if n == 0:
        return np.empty((0, N_BITS // 8), np.uint8)
    return model.transform(np.frombuffer(data, np.uint8).reshape(n, -1))


def read_by_colmap(path: Path) -> None:
    """Let COLMAP read what was checked: it must not crash."""
    import pycolmap

    with closing(pycolmap.Database.open(path)) as database:
        database.read_all_cameras()
        database.read_all_matches()
        database.read_two_view_geometries()
        for image in database.read_all_images():
            database.read_keypoints(image.image_id)


@cache
def load_model() -> BaseHasher:
    return load_pretrained("rootsift", N_BITS)


@attack("hloc features files, damaged bytes", 1500)
def hloc_files(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    make_features(folder)
    cases = [(str(folder), int(seed)) for seed in rng.integers(2**62, size=tries)]
    run_isolated(check_features, cases, tally)


def make_features(folder: Path) -> None:
    """Write a features file in the layout of hloc, one in HDF5's newer format, and one of codes."""
    import h5py

    from kdiffhash.vision.hloc import encode_features

    rng = np.random.default_rng(0)
    for name, version in (("old.h5", "earliest"), ("new.h5", "latest")):
        with h5py.File(folder / name, "w", libver=version) as file:
            for image in ("a.jpg", "db/b.jpg", "db/c.jpg"):
                file[f"{image}/keypoints"] = rng.uniform(0, 99, (6, 2)).astype(np.float32)
                rows = rng.gamma(0.4, 60, (128, 6))
                file[f"{image}/descriptors"] = np.sqrt(rows / rows.sum(0)).astype(np.float32)
                file[f"{image}/image_size"] = np.array([640, 480])
    encode_features(folder / "old.h5", folder / "codes.h5", load_model())


def check_features(case: tuple[str, int]) -> bool:
    """Damage a features file and match it: it must be refused, or matched as it now reads."""
    import h5py

    from kdiffhash.vision.hloc import encode_features, match_features

    os.fsync = lambda _: None  # in this child process; power failures are another attack
    folder, seed = Path(case[0]), case[1]
    rng = np.random.default_rng(seed)
    kind = str(rng.choice(["old.h5", "new.h5", "codes.h5"]))
    path, out = folder / f"{os.getpid()}.h5", folder / f"{os.getpid()}.out"
    path.write_bytes(mutate((folder / kind).read_bytes(), rng))
    out.write_text("mine")
    model = load_model()
    try:
        if kind != "codes.h5":
            encode_features(path, out, model)
        counts = match_features(path, out, model)
    except ValueError:
        if kind == "codes.h5" and out.read_text() != "mine":
            raise AssertionError("a failed command replaced its output") from None
        raise
    codes = {}
    with h5py.File(path if kind != "codes.h5" else folder / kind) as file:
        for image in sorted({name for pair in counts for name in pair}):
            rows = file[image]["descriptors"][()].T
            codes[image] = rows if kind == "codes.h5" else model.transform(rows)
    with h5py.File(out) as file:
        for a, b in combinations(codes, 2):
            expected = np.full(len(codes[a]), -1)
            pairs = match_codes(codes[a], codes[b], ratio=0.74).pairs
            expected[pairs[:, 0]] = pairs[:, 1]
            found = file[f"{a.replace('/', '-')}/{b.replace('/', '-')}/matches0"][()]
            np.testing.assert_array_equal(found, expected)
    return True


@attack("photo indexes, damaged bytes", 1000)
def photo_indexes(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    make_photos(folder)
    cases = [(str(folder), int(seed)) for seed in rng.integers(2**62, size=tries)]
    run_isolated(check_photos, cases, tally)


def make_photos(folder: Path) -> None:
    """Index four photographs; a crop of the third is the query."""
    import cv2

    from kdiffhash.vision import PhotoIndex

    rng = np.random.default_rng(0)
    (folder / "photos").mkdir()
    for i in range(4):
        blocks = rng.integers(0, 256, (15, 20), dtype=np.uint8)
        image = cv2.resize(blocks, (160, 120), interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(str(folder / "photos" / f"{i}.png"), image)
        if i == 2:
            cv2.imwrite(str(folder / "query.png"), image[8:, 8:])
    PhotoIndex(folder / "whole", HashedSIFT(N_BITS, 40)).update(folder / "photos")


def search_photos(index: Path, query: Path) -> list[tuple[Path, float, int]]:
    """Return path, votes and number of inliers of the photographs found."""
    from kdiffhash.vision import PhotoIndex

    return [(one.path, one.votes, one.n_inliers) for one in PhotoIndex.open(index).search(query)]


@cache
def expected_photos(folder: Path) -> list[tuple[Path, float, int]]:
    found = search_photos(folder / "whole", folder / "query.png")
    assert found[0][0].name == "2.png"
    return found


def check_photos(case: tuple[str, int]) -> bool:
    """Damage an index, search and update it: refused, or the results of the whole index."""
    from kdiffhash.vision import PhotoIndex

    os.fsync = lambda _: None
    folder, seed = Path(case[0]), case[1]
    rng = np.random.default_rng(seed)
    index = folder / f"index{os.getpid()}"
    shutil.rmtree(index, ignore_errors=True)
    shutil.copytree(folder / "whole", index)
    name = str(rng.choice(["photos.sqlite", "model.safetensors"], p=[0.9, 0.1]))
    (index / name).write_bytes(mutate((index / name).read_bytes(), rng))
    expected = expected_photos(folder)
    if rng.random() < 0.5:
        PhotoIndex(index, HashedSIFT(N_BITS, 40)).update(folder / "photos")
    return search_photos(index, folder / "query.png") == expected
