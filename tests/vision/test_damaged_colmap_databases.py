"""COLMAP databases with values that do not fit: refused before pycolmap sees them.

COLMAP reads beyond an array, and the process dies, where a camera has too few parameters.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
import pytest

from kdiffhash import KdiffhashError, load_pretrained
from kdiffhash.vision import colmap

pycolmap = pytest.importorskip("pycolmap")

TABLES = ("cameras", "images", "keypoints", "descriptors", "matches", "two_view_geometries")
LIMIT = 2147483647  # COLMAP's limit for image ids
N_PARAMETERS = {  # as documented under https://colmap.github.io/cameras.html
    "SIMPLE_PINHOLE": 3,
    "PINHOLE": 4,
    "SIMPLE_RADIAL": 4,
    "RADIAL": 5,
    "OPENCV": 8,
    "OPENCV_FISHEYE": 8,
    "FULL_OPENCV": 12,
    "FOV": 5,
    "SIMPLE_RADIAL_FISHEYE": 4,
    "RADIAL_FISHEYE": 5,
    "THIN_PRISM_FISHEYE": 12,
    "RAD_TAN_THIN_PRISM_FISHEYE": 16,
}


@pytest.fixture(scope="module")
def model():
    return load_pretrained("rootsift", 64)


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory):
    """The bytes of a database with 3 images (ids 1 to 3), 3 cameras, matches and geometries."""
    path = tmp_path_factory.mktemp("synthetic") / "database.db"
    options = pycolmap.SyntheticDatasetOptions(
        num_rigs=3, num_cameras_per_rig=1, num_frames_per_rig=1, num_points3D=40
    )
    with closing(pycolmap.Database.open(path)) as database:
        pycolmap.synthesize_dataset(options, database)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
    return path.read_bytes()


@pytest.fixture
def database(synthetic, tmp_path):
    path = tmp_path / "database.db"
    path.write_bytes(synthetic)
    return path


def execute(path, *statements):
    with closing(sqlite3.connect(path)) as database, database:
        return [database.execute(one).fetchall() for one in statements][-1]


def drop_constraints(path):
    """Make the tables anew without keys and constraints, as another program could write them."""
    for table in TABLES:
        execute(
            path,
            f"CREATE TABLE new AS SELECT * FROM {table}",
            f"DROP TABLE {table}",
            f"ALTER TABLE new RENAME TO {table}",
        )


def match(path, model):
    """Match, verify and write; return the number of matches of each pair."""
    matched = colmap.verify_pairs(colmap.match_images(colmap.read_images(path, model)))
    colmap.write_matches(path, matched)
    return [len(pair.matches) for pair in matched]


NAN32, NAN64 = np.float32(np.nan).tobytes().hex(), np.float64(np.nan).tobytes().hex()
FLOAT64 = "0000000000000840"
DAMAGE = {
    "empty parameters": ("UPDATE cameras SET params = x''", "has 0 parameters"),
    "no parameters": ("UPDATE cameras SET params = NULL", "must be float64"),
    "a parameter too few": (
        "UPDATE cameras SET params = substr(params, 1, 24)",
        r"has 3 parameters, but SIMPLE_RADIAL has 4 \(f, cx, cy, k\)",
    ),
    "a parameter too many": (
        f"UPDATE cameras SET params = x'{5 * FLOAT64}' WHERE camera_id = 2",
        "camera 2 has 5 parameters",
    ),
    "half a parameter": ("UPDATE cameras SET params = substr(params, 1, 28)", "must be float64"),
    "parameters as text": ("UPDATE cameras SET params = '1 2 3 4'", "must be float64"),
    "a parameter that is not finite": (
        f"UPDATE cameras SET params = x'{3 * FLOAT64}{NAN64}'",
        "not finite",
    ),
    "an unknown camera model": ("UPDATE cameras SET model = 99", "has the model 99"),
    "an invalid camera model": ("UPDATE cameras SET model = -1", "has the model -1"),
    "a camera model for fewer parameters": ("UPDATE cameras SET model = 0", "has 4 parameters"),
    "a camera without pixels": ("UPDATE cameras SET width = 0", "0 x 768 pixels"),
    "a negative width": ("UPDATE cameras SET width = -5", "-5 x 768 pixels"),
    "a huge camera id": (
        f"UPDATE cameras SET camera_id = {2**32 - 1} WHERE camera_id = 1",
        "ids must be integers",
    ),
    "keypoints of 3 columns": (
        "UPDATE keypoints SET cols = 3, data = substr(data, 1, rows * 12)",
        "have 3 columns",
    ),
    "keypoints that are not finite": (
        f"UPDATE keypoints SET rows = 1, cols = 2, data = x'00000000{NAN32}'",
        "not finite",
    ),
    "a negative number of keypoints": ("UPDATE keypoints SET rows = -1", "have -1 rows"),
    "a huge number of keypoints": ("UPDATE keypoints SET rows = 1 << 62", "rows and 6 columns"),
    "a number of keypoints as text": ("UPDATE keypoints SET rows = 'many'", "have 'many' rows"),
    "no keypoint data": ("UPDATE keypoints SET data = NULL", "got 0 bytes"),
    "keypoint data as text that is not UTF-8": (
        "UPDATE keypoints SET data = data || data, rows = 2 * rows",
        "do not match",
    ),
    "keypoint data as text": ("UPDATE keypoints SET data = 'text'", "got 'text'"),
    "more keypoints than descriptors": (
        "UPDATE keypoints SET data = zeroblob(48 * rows), rows = 2 * rows",
        "has 100 keypoints, but 50 descriptors",
    ),
    "descriptor columns that are not integers": (
        "UPDATE descriptors SET cols = 1.5",
        "1.5 columns",
    ),
    "no descriptor data": ("UPDATE descriptors SET data = NULL", "got 0 bytes"),
    "keypoints of an image without descriptors": (
        "DELETE FROM descriptors WHERE image_id = 3; UPDATE keypoints SET rows = 7 "
        "WHERE image_id = 3",
        "keypoints of .* do not match",
    ),
    "an image without camera": ("UPDATE images SET camera_id = 9", "has no camera"),
    "an image id at the limit": (
        f"UPDATE images SET image_id = {LIMIT} WHERE image_id = 3",
        f"image id {LIMIT}",
    ),
    "a negative image id": ("UPDATE images SET image_id = -1 WHERE image_id = 1", "image id -1"),
    "two images with one id": ("UPDATE images SET image_id = 2 WHERE image_id = 3", "unique"),
    "two images with one name": ("UPDATE images SET name = 'a.png'", "names must be unique"),
    "no name": ("UPDATE images SET name = NULL", "the name None"),
    "an empty name": ("UPDATE images SET name = '' WHERE image_id = 1", "the name ''"),
    "a name of bytes": ("UPDATE images SET name = x'00ff' WHERE image_id = 1", "the name b"),
    "a name that is not UTF-8": (
        "UPDATE images SET name = CAST(x'ff' AS TEXT) WHERE image_id = 1",
        r"the name '\\udcff'",
    ),
    "truncated matches": ("UPDATE matches SET data = substr(data, 1, 20)", "got 20 bytes"),
    "matches of 3 columns": (
        "UPDATE matches SET rows = 2, cols = 3, data = substr(data, 1, 24)",
        "3 columns instead of 2",
    ),
    "matches without data": ("UPDATE matches SET data = NULL", "got 0 bytes"),
    "matches of keypoints that do not exist": (
        f"UPDATE matches SET rows = 1, data = x'00000000{(50).to_bytes(4, 'little').hex()}'",
        "keypoints that do not exist",
    ),
    "a negative pair": ("UPDATE matches SET pair_id = -5 WHERE rowid = 1", "must be an integer"),
    "inliers of keypoints that do not exist": (
        "UPDATE two_view_geometries SET rows = 1, data = x'ffffffff00000000'",
        "keypoints that do not exist",
    ),
    "a short fundamental matrix": (
        "UPDATE two_view_geometries SET F = substr(F, 1, 64)",
        "F must have 72 bytes",
    ),
    "a rotation as text": ("UPDATE two_view_geometries SET qvec = 'none'", "qvec must have 32"),
    "an unknown configuration": (
        "UPDATE two_view_geometries SET config = 99",
        "99 is not a configuration",
    ),
    "a view in place of a table": (
        "ALTER TABLE cameras RENAME TO other; CREATE VIEW cameras AS SELECT * FROM other",
        "not a COLMAP database",
    ),
    "a missing column": ("ALTER TABLE cameras DROP COLUMN params", "lacks the columns params"),
    "codes without a length": (
        "CREATE TABLE kdiffhash (model TEXT, bits INTEGER); "
        "INSERT INTO kdiffhash VALUES ('', NULL)",
        "not recorded",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_databases_are_refused_and_unchanged(name, database, model, tmp_path):
    statements, message = DAMAGE[name]
    drop_constraints(database)
    assert match(database, model)  # the damage alone is the reason for the error
    execute(database, *statements.split("; "))
    before = database.read_bytes()
    with pytest.raises(colmap.DatabaseError, match=message) as error:
        match(database, model)
    assert str(database) in str(error.value)
    assert "\n" not in str(error.value)
    assert isinstance(error.value, KdiffhashError)
    assert database.read_bytes() == before
    with pytest.raises(colmap.DatabaseError):
        colmap.shrink_database(database, tmp_path / "small.db", model)
    assert not (tmp_path / "small.db").exists()


def test_a_lost_page_is_noticed(database, model):
    """The rows on a page are out of order; a lookup by key would just not find some of them."""
    content = database.read_bytes()
    size = int.from_bytes(content[16:18], "big")
    (root,) = execute(database, "SELECT rootpage FROM sqlite_master WHERE name = 'keypoints'")[0]
    page = bytearray(content[(root - 1) * size : root * size])
    assert page[0] in (5, 13)  # an interior page or a leaf of a table
    cells = 12 if page[0] == 5 else 8
    page[cells : cells + 4] = page[cells + 2 : cells + 4] + page[cells : cells + 2]
    database.write_bytes(content[: (root - 1) * size] + page + content[root * size :])
    with pytest.raises(colmap.DatabaseError, match="is damaged"):
        match(database, model)


def test_the_command_reports_a_damaged_camera_in_one_sentence(database, command):
    execute(database, "UPDATE cameras SET params = x''")
    output = partial(command, "colmap")("match", database, fail=True)
    assert "camera 1 has 0 parameters, but SIMPLE_RADIAL has 4" in output


@pytest.mark.parametrize("kind", N_PARAMETERS)
def test_a_camera_needs_the_number_of_parameters_of_its_model(kind, database, model):
    number = int(getattr(pycolmap.CameraModelId, kind))
    for n in (N_PARAMETERS[kind] - 1, N_PARAMETERS[kind] + 1):
        execute(database, f"UPDATE cameras SET model = {number}, params = x'{n * FLOAT64}'")
        with pytest.raises(colmap.DatabaseError, match=f"has {n} parameters, but {kind} has"):
            colmap.read_images(database, model)
    values = N_PARAMETERS[kind] * FLOAT64
    execute(database, f"UPDATE cameras SET params = x'{values}'")
    for image in colmap.read_images(database, model):
        assert image.camera.model.name == kind
        assert image.camera.params.tolist() == [3.0] * N_PARAMETERS[kind]


@pytest.mark.skipif(
    not hasattr(pycolmap.TwoViewGeometry, "camera1"), reason="pycolmap stores no such cameras"
)
@pytest.mark.parametrize("length", [0, 10, 33, 57, 64, 66])
def test_a_damaged_camera_of_a_geometry_is_refused(database, model, length):
    with closing(pycolmap.Database.open(database)) as opened:
        geometry, camera = opened.read_two_view_geometry(1, 2), opened.read_camera(1)
        geometry.camera1 = geometry.camera2 = camera
        opened.delete_two_view_geometry(1, 2)
        opened.write_two_view_geometry(1, 2, geometry)
    assert match(database, model)
    execute(
        database,
        f"UPDATE two_view_geometries SET camera1 = zeroblob({length})",
    )
    with pytest.raises(colmap.DatabaseError, match="camera1"):
        match(database, model)


def test_keypoints_may_have_2_4_or_6_columns(database, model):
    expected = match(database, model)
    ((points,), *_) = execute(database, "SELECT data FROM keypoints ORDER BY image_id")
    six = np.frombuffer(points, np.float32).reshape(-1, 6)
    for columns in (4, 2):
        for number, n, data in execute(database, "SELECT image_id, rows, data FROM keypoints"):
            fewer = np.frombuffer(data, np.float32).reshape(n, -1)[:, :columns]
            execute(
                database,
                f"UPDATE keypoints SET cols = {columns}, data = x'{fewer.tobytes().hex()}' "
                f"WHERE image_id = {number}",
            )
        assert match(database, model) == expected
        first = colmap.read_images(database, model)[0]
        np.testing.assert_array_equal(first.points, six[:, :2])


def test_the_largest_image_ids_of_colmap_are_written_and_read(database, model):
    expected = match(database, model)
    for table in ("images", "keypoints", "descriptors"):
        for old, new in ((3, LIMIT - 1), (2, LIMIT - 2), (1, 0)):
            execute(database, f"UPDATE {table} SET image_id = {new} WHERE image_id = {old}")
    execute(database, "DELETE FROM matches", "DELETE FROM two_view_geometries")
    assert match(database, model) == expected
    written = [number for (number,) in execute(database, "SELECT pair_id FROM matches ORDER BY 1")]
    ids = (0, LIMIT - 2, LIMIT - 1)
    assert written == [a * LIMIT + b for a, b in combinations(ids, 2)]
    with closing(pycolmap.Database.open(database)) as opened:
        pairs = list(combinations(ids, 2))
        assert [len(opened.read_matches(a, b)) for a, b in pairs] == expected


def test_columns_in_another_order_are_written_by_name(database, model):
    expected = match(database, model)
    tables = {name: execute(database, f"SELECT * FROM {name}") for name in TABLES}
    columns = [row[1] for row in execute(database, "PRAGMA table_info(two_view_geometries)")]
    execute(
        database,
        f"CREATE TABLE new AS SELECT {', '.join(reversed(columns))}, 1 AS mine "
        "FROM two_view_geometries",
        "DROP TABLE two_view_geometries",
        "ALTER TABLE new RENAME TO two_view_geometries",
    )
    assert match(database, model) == expected
    found = execute(database, f"SELECT {', '.join(columns)} FROM two_view_geometries ORDER BY 1")
    found = [row[columns.index("pair_id") :] for row in found]
    assert sorted(found) == sorted(tables["two_view_geometries"])


def test_verification_refuses_cameras_and_matches_that_do_not_fit(database, model):
    first = colmap.match_images(colmap.read_images(database, model))[0]
    camera = pycolmap.Camera(model=0, width=9, height=9, params=[1.0])
    bad = replace(first, a=replace(first.a, camera=camera))
    with pytest.raises(colmap.DatabaseError, match="has 1 parameters, but SIMPLE_PINHOLE has 3"):
        colmap.verify_pairs([bad])
    bad = replace(first, matches=np.array([[0, len(first.b.points)]], np.uint32))
    with pytest.raises(colmap.DatabaseError, match=f"keypoints that {first.b.name} does not have"):
        colmap.verify_pairs([bad])


def test_codes_of_another_width_are_refused(database, model, tmp_path):
    small = tmp_path / "small.db"
    colmap.shrink_database(database, small, model)
    assert match(small, model) == match(database, model)
    execute(small, "UPDATE descriptors SET cols = 4, data = substr(data, 1, 4 * rows)")
    with pytest.raises(colmap.DatabaseError, match="64 bits take 8 bytes per code, got 4"):
        colmap.read_images(small, model)
