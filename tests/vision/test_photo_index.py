"""The photo index, `kdiffhash photos`, and the results page."""

from __future__ import annotations

import base64
import os
import re
import shutil
import sqlite3
from contextlib import closing
from functools import partial

import cv2
import numpy as np
import pytest

from kdiffhash import HammingIndex, HashedFeatures, HashedSIFT, load_pretrained
from kdiffhash.hashers.fingerprint import fingerprint
from kdiffhash.vision import PhotoIndex, match_photos, photo_database, photo_index, read_photo

NAMES = ("camera", "coins", "astronaut", "chelsea", "coffee", "brick")


@pytest.fixture(scope="module")
def collection(tmp_path_factory, image_named, warp):
    """A folder with six photographs, their index, and a query that shows one of them."""
    root = tmp_path_factory.mktemp("collection")
    for name in NAMES:
        path = root / "photos" / ("inner" if name == "coins" else "") / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), image_named(name))
    cv2.imwrite(str(root / "query.jpg"), warp(image_named("astronaut")))
    make_index(root).update(root / "photos")
    return root


@pytest.fixture
def folder(collection, tmp_path):
    """A copy of the collection that a test may change."""
    root = tmp_path / "collection"
    shutil.copytree(collection, root, ignore=shutil.ignore_patterns("x.index"))
    make_index(root).update(root / "photos")
    return root


@pytest.fixture
def run(command):
    return partial(command, "photos")


def make_index(root, *, size=300, n_features=300, n_bits=128, name="x.index"):
    return PhotoIndex(root / name, HashedSIFT(n_bits, n_features), size=size)


def found_names(index, query):
    """Return the names of the photographs that a search returns."""
    return [found.path.stem for found in index.search(query)]


def counts(update):
    """Return the numbers of added, unchanged and removed photographs."""
    return update.added, update.unchanged, update.removed


def test_the_photograph_of_the_same_object_is_found_first(collection, homography, agree):
    index = make_index(collection)
    assert len(index) == 6
    first, *others = index.search(collection / "query.jpg")
    assert first.path == (collection / "photos" / "astronaut.png").resolve()
    assert first.n_inliers == first.matches.inliers.sum() > 50
    assert all(one.n_inliers < first.n_inliers / 3 for one in others)
    assert all(one.votes < first.votes for one in others)
    assert first.is_verified
    assert [one.is_verified for one in others] == [one.n_inliers >= 15 for one in others]
    scale = np.diag([300 / 360, 300 / 360, 1])
    reduced = np.linalg.inv(scale @ homography @ np.linalg.inv(scale))
    good = first.matches.inliers
    assert agree(first.matches.left[good], first.matches.right[good], reduced).mean() > 0.95


def test_search_returns_the_matches_of_match_photos(collection):
    index = make_index(collection)
    query = read_photo(collection / "query.jpg", index.features, index.size)
    for geometry in ("fundamental", "homography", "none"):
        for found in index.search(query, best=2, geometry=geometry):
            other = read_photo(found.path, index.features, index.size)
            expected = match_photos(query, other, geometry=geometry)
            np.testing.assert_array_equal(found.matches.pairs, expected.pairs)
            np.testing.assert_array_equal(found.matches.right, expected.right)
            np.testing.assert_array_equal(found.matches.inliers, expected.inliers)


def test_votes_agree_with_a_plain_loop(collection):
    index = make_index(collection)
    query = read_photo(collection / "query.jpg", index.features, index.size)
    paths = sorted((collection / "photos").rglob("*.png"))
    photos = [read_photo(path, index.features, index.size) for path in paths]
    photo_of_code = np.repeat(np.arange(6), [len(photo.codes) for photo in photos])
    codes = np.concatenate([photo.codes for photo in photos])
    expected = np.zeros(6)
    for code in query.codes:
        distances = np.bitwise_count(codes ^ code).sum(axis=1)
        nearest = np.argsort(distances, kind="stable")[:8]
        for photo in set(photo_of_code[nearest].tolist()):
            nearest_of_photo = distances[nearest][photo_of_code[nearest] == photo]
            expected[photo] += max(0, 1 - nearest_of_photo.min() / 32)
    votes = {found.path.name: found.votes for found in index.search(query)}
    assert votes.keys() == {p.name for p, n in zip(paths, expected) if n > 0}
    for path, n in zip(paths, expected):
        assert votes.get(path.name, 0) == pytest.approx(n)


def test_best_limits_the_number_of_results(collection):
    assert len(make_index(collection).search(collection / "query.jpg", best=1)) == 1


def test_open_restores_model_and_settings(collection):
    index = PhotoIndex.open(collection / "x.index")
    assert (index.size, index.features.options) == (300, {"n_features": 300})
    assert index.features.model.n_bits_ == 128
    assert found_names(index, collection / "query.jpg")[0] == "astronaut"
    assert counts(index.update(collection / "photos")) == (0, 6, 0)


def test_unchanged_photographs_are_not_read_again(folder, monkeypatch):
    index = make_index(folder)
    before = (folder / "x.index" / "codes.index").read_bytes()
    monkeypatch.setattr(photo_index, "read_photo", None)
    done = []
    assert counts(index.update(folder / "photos", advance=done.append)) == (0, 6, 0)
    assert sum(done) == 6
    assert (folder / "x.index" / "codes.index").read_bytes() == before


def test_update_handles_changed_added_and_removed_photographs(folder, image_named):
    index, photos = make_index(folder), folder / "photos"
    cv2.imwrite(str(photos / "camera.png"), image_named("gravel")[:200])
    (photos / "new").mkdir()
    cv2.imwrite(str(photos / "new" / "rocket.png"), image_named("rocket"))
    (photos / "brick.png").unlink()
    assert counts(index.update(photos)) == (2, 4, 1)
    assert len(index) == 6
    assert found_names(index, photos / "new" / "rocket.png")[0] == "rocket"
    assert found_names(index, photos / "camera.png")[0] == "camera"
    cv2.imwrite(str(folder / "old.png"), image_named("camera"))
    assert "brick" not in found_names(index, folder / "query.jpg")
    old = read_photo(folder / "old.png", index.features, index.size)
    assert all(one.n_inliers < 30 for one in index.search(old))
    with HammingIndex.open(folder / "x.index" / "codes.index") as codes:
        photographs = [
            read_photo(path, index.features, index.size) for path in photos.rglob("*.png")
        ]
        assert len(codes) == sum(len(photo.codes) for photo in photographs)


def test_a_photograph_with_a_new_modification_time_is_read_again(folder):
    path = folder / "photos" / "coffee.png"
    os.utime(path, ns=(10**18, 10**18))
    index = make_index(folder)
    assert counts(index.update(folder / "photos")) == (1, 5, 0)
    assert found_names(index, path)[0] == "coffee"
    assert counts(index.update(folder / "photos")) == (0, 6, 0)


def test_updating_one_folder_keeps_photographs_of_other_folders(folder, write, image_named):
    index = make_index(folder)
    other = write("other/gravel.png", image_named("gravel")[:150]).parent
    assert counts(index.update(other)) == (1, 0, 0)
    assert counts(index.update(folder / "photos" / "inner")) == (0, 1, 0)
    assert len(index) == 7
    (other / "gravel.png").rename(other / "stones.png")
    assert counts(index.update(other)) == (1, 0, 1)
    assert counts(index.update(folder / "photos")) == (0, 6, 0)


def test_unreadable_photographs_are_skipped_and_reported(folder, image_named):
    index, photos = make_index(folder), folder / "photos"
    (photos / "aaa.jpg").write_text("not a photograph")
    (photos / "coffee.png").write_bytes((photos / "coffee.png").read_bytes()[:5000])
    (photos / "notes.txt").write_text("not a photograph")
    (photos / "folder.png").mkdir()
    (photos / "link.png").symlink_to(photos / "nowhere.png")
    cv2.imwrite(str(photos / "zzz.png"), image_named("gravel")[:100])
    done = index.update(photos)
    assert counts(done) == (1, 5, 0)
    bad = [str((photos / name).resolve()) for name in ("aaa.jpg", "coffee.png")]
    assert sorted(done.unreadable) == bad
    assert all("is not a readable image" in message for message in done.unreadable.values())
    assert len(index) == 6
    assert "coffee" not in found_names(index, folder / "query.jpg")
    cv2.imwrite(str(photos / "coffee.png"), image_named("coffee"))
    assert counts(index.update(photos)) == (1, 6, 0)


def test_photographs_without_keypoints_are_indexed_but_not_searched(
    tmp_path, write, flat, collection
):
    index = make_index(tmp_path)
    photos = write("photos/flat.png", flat).parent
    assert counts(index.update(photos)) == (1, 0, 0)
    assert counts(index.update(photos)) == (0, 1, 0)
    assert index.search(collection / "query.jpg") == []
    with pytest.raises(ValueError, match=r"flat\.png has no keypoints"):
        make_index(collection).search(photos / "flat.png")


def fail_after(patch, after):
    """Use batches of two, and fail when writing the rows of the batch after the first `after`."""
    batches = []

    class FailingConnection(sqlite3.Connection):
        def executemany(self, statement, rows):
            if statement.startswith("INSERT INTO photos"):
                if len(batches) == after:
                    raise OSError("power failure")
                batches.append(rows)
            return super().executemany(statement, rows)

    patch.setattr(photo_index, "_PHOTOS_PER_TRANSACTION", 2)
    patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=FailingConnection))


@pytest.mark.parametrize("after", [0, 1])
def test_an_update_repairs_an_interrupted_one(folder, image_named, monkeypatch, after):
    index, photos = make_index(folder), folder / "photos"
    for i, name in enumerate(("gravel", "rocket", "grass")):
        cv2.imwrite(str(photos / f"new{i}.png"), image_named(name)[:200])
    cv2.imwrite(str(photos / "camera.png"), image_named("camera")[:300])
    with HammingIndex.open(folder / "x.index" / "codes.index") as codes:
        n_before = len(codes)
    with monkeypatch.context() as patch:
        fail_after(patch, after)
        with pytest.raises(OSError, match="power failure"):
            index.update(photos)
    with HammingIndex.open(folder / "x.index" / "codes.index") as codes:
        assert len(codes) > n_before
    assert len(index) == 5 + 2 * after
    assert found_names(index, folder / "query.jpg")[0] == "astronaut"
    assert counts(index.update(photos)) == (4 - 2 * after, 5 + 2 * after, 0)
    photographs = {path: read_photo(path, index.features, 300) for path in photos.rglob("*.png")}
    with HammingIndex.open(folder / "x.index" / "codes.index") as codes:
        assert len(codes) == sum(len(photo.codes) for photo in photographs.values())
    for path, photo in photographs.items():
        first = index.search(photo, best=1)[0]
        assert first.path == path.resolve()
        assert (first.matches.pairs[:, 0] == first.matches.pairs[:, 1]).all()
    assert counts(index.update(photos)) == (0, 9, 0)


def test_another_model_size_or_number_of_features_is_refused(folder):
    before = {p: p.read_bytes() for p in (folder / "x.index").iterdir()}
    others = {
        "model": {"n_bits": 64},
        "size": {"size": 200},
        "sift": {"n_features": 100},
    }
    for name, options in others.items():
        index = make_index(folder, **options)
        for work in (
            lambda index=index: index.update(folder / "photos"),
            lambda index=index: index.search(folder / "query.jpg"),
        ):
            with pytest.raises(ValueError, match=f"another {name}"):
                work()
    assert {p: p.read_bytes() for p in (folder / "x.index").iterdir()} == before


def test_old_fingerprints_of_the_same_model_are_accepted(folder, monkeypatch):
    index = make_index(folder)
    with HammingIndex.open(folder / "x.index" / "codes.index") as codes:
        assert codes.model == fingerprint(index.features.model)
    with (
        closing(sqlite3.connect(folder / "x.index" / "photos.sqlite")) as connection,
        photo_database.changing(connection),
    ):
        connection.execute("UPDATE settings SET value = 'old' WHERE name = 'model'")
    with pytest.raises(ValueError, match="another model"):
        index.update(folder / "photos")
    original = photo_index.is_same_model
    monkeypatch.setattr(
        photo_index,
        "is_same_model",
        lambda model, stored: stored == "old" or original(model, stored),
    )
    assert counts(index.update(folder / "photos")) == (0, 6, 0)
    assert found_names(index, folder / "query.jpg")[0] == "astronaut"


def test_an_index_of_other_features_is_not_opened_as_sift(tmp_path, collection):
    features = HashedFeatures(cv2.SIFT_create(nfeatures=100), load_pretrained("sift", 64))
    index = PhotoIndex(tmp_path / "x.index", features, size=None)
    assert counts(index.update(collection / "photos")) == (6, 0, 0)
    assert found_names(index, collection / "query.jpg")[0] == "astronaut"
    with pytest.raises(ValueError, match="another kind"):
        PhotoIndex.open(tmp_path / "x.index")


def test_full_size_and_all_keypoints_are_restored(tmp_path, collection):
    index = PhotoIndex(tmp_path / "x.index", HashedSIFT(64), size=None)
    index.update(collection / "photos" / "inner")
    again = PhotoIndex.open(tmp_path / "x.index")
    assert (again.size, again.features.options) == (None, {"n_features": 0})
    assert len(again) == 1


def test_a_folder_that_is_not_an_index_is_refused(tmp_path, collection):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "letter.txt").write_text("dear reader")
    with pytest.raises(ValueError, match="is not an index of photographs"):
        make_index(tmp_path, name="taken").update(collection / "photos")
    assert [p.name for p in (tmp_path / "taken").iterdir()] == ["letter.txt"]
    with pytest.raises(ValueError, match="is not an index of photographs"):
        make_index(tmp_path / "taken", name="letter.txt").update(collection / "photos")
    assert (tmp_path / "taken" / "letter.txt").read_text() == "dear reader"
    (tmp_path / "empty").mkdir()
    make_index(tmp_path, name="empty").update(collection / "photos" / "inner")
    assert (tmp_path / "empty" / "photos.sqlite").exists()


def test_a_folder_without_photographs_creates_no_index(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "notes.txt").touch()
    with pytest.raises(ValueError, match="no photographs in"):
        make_index(tmp_path).update(tmp_path / "photos")
    with pytest.raises(ValueError, match="not a folder"):
        make_index(tmp_path).update(tmp_path / "nowhere")
    assert [p.name for p in tmp_path.iterdir()] == ["photos"]


def test_a_missing_or_damaged_index_is_reported(folder, tmp_path):
    for work in (
        lambda: PhotoIndex.open(tmp_path / "nothing"),
        lambda: len(make_index(tmp_path)),
        lambda: make_index(tmp_path).search(folder / "query.jpg"),
    ):
        with pytest.raises(FileNotFoundError, match="no index of photographs"):
            work()
    assert not (tmp_path / "x.index").exists()
    (folder / "x.index" / "photos.sqlite").write_bytes(b"damaged" * 1000)
    with pytest.raises(ValueError, match=r"photos\.sqlite is damaged"):
        PhotoIndex.open(folder / "x.index")


CHANGES = (
    "UPDATE photos SET points = zeroblob(length(points)) WHERE path LIKE '%astronaut%'",
    "UPDATE photos SET points = substr(points, 1, 804) WHERE path LIKE '%astronaut%'",
    "UPDATE photos SET points = NULL WHERE path LIKE '%astronaut%'",
    "UPDATE photos SET path = '/other.png' WHERE path LIKE '%astronaut%'",
    "UPDATE photos SET crc = crc + 1",
    "UPDATE photos SET number = 77 WHERE path LIKE '%astronaut%'",
    "DELETE FROM photos WHERE path LIKE '%astronaut%'",
    "DELETE FROM photos",
    "UPDATE sqlite_sequence SET seq = 0",
    "UPDATE settings SET value = '400' WHERE name = 'size'",
    "UPDATE settings SET value = '{\"n_features\": 200}' WHERE name = 'sift'",
    "DELETE FROM settings WHERE name = 'checksum'",
)


@pytest.mark.parametrize("statement", CHANGES)
def test_a_database_whose_content_changed_is_refused(folder, run, statement):
    path = folder / "x.index" / "photos.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"photos\.sqlite is damaged") as error:
        PhotoIndex.open(folder / "x.index").search(folder / "query.jpg")
    assert "index the photographs again" in str(error.value)
    output = run("search", folder / "query.jpg", "--index", folder / "x.index", fail=True)
    assert "is damaged: its checksum does not match" in output
    assert path.read_bytes() == before


@pytest.mark.parametrize("at", range(0, 100, 9))
def test_a_changed_byte_is_refused_or_has_no_effect(collection, tmp_path, at):
    index = tmp_path / "x.index"
    shutil.copytree(collection / "x.index", index)
    content = bytearray((index / "photos.sqlite").read_bytes())
    content[at * len(content) // 100] ^= 0x10
    (index / "photos.sqlite").write_bytes(content)
    query = collection / "query.jpg"
    expected = [(one.path, one.votes) for one in make_index(collection).search(query)]
    reason, found = "", []
    try:
        found = [(one.path, one.votes) for one in PhotoIndex.open(index).search(query)]
    except ValueError as error:
        reason = str(error)
    assert found == expected or "photos.sqlite" in reason or "is not an index" in reason


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("size", "large"),
        ("size", None),
        ("sift", "[1]"),
        ("sift", "{"),
        ("sift", '{"no_such_option": 1}'),
        ("sift", '{"model": 1}'),
        ("sift", '{"nOctaveLayers": "many"}'),
    ],
)
def test_invalid_settings_with_a_valid_checksum_are_refused(folder, name, value):
    with (
        closing(sqlite3.connect(folder / "x.index" / "photos.sqlite")) as connection,
        photo_database.changing(connection),
    ):
        connection.execute("UPDATE settings SET value = ? WHERE name = ?", (value, name))
    with pytest.raises(ValueError, match="has invalid settings"):
        PhotoIndex.open(folder / "x.index")


def test_an_emptied_database_is_not_taken_for_a_new_index(folder):
    (folder / "x.index" / "photos.sqlite").write_bytes(b"")
    before = (folder / "x.index" / "codes.index").read_bytes()
    with pytest.raises(ValueError, match="is not an index of photographs"):
        make_index(folder).update(folder / "photos")
    assert (folder / "x.index" / "codes.index").read_bytes() == before


def test_an_index_without_checksums_is_refused(folder):
    with closing(sqlite3.connect(folder / "x.index" / "photos.sqlite")) as connection, connection:
        connection.execute("ALTER TABLE photos DROP COLUMN crc")
    for work in (
        lambda: PhotoIndex.open(folder / "x.index"),
        lambda: make_index(folder).update(folder / "photos"),
    ):
        with pytest.raises(ValueError, match="not an index of photographs of this version"):
            work()


def sources(page):
    """Return the src attributes of a page."""
    return re.findall(r"""src\s*=\s*["']?([^"'\s>]*)""", page)


def test_the_commands_index_and_search(collection, tmp_path, run):
    where = ("--index", tmp_path / "y.index")
    options = ("--features", 300, "--size", 300)
    output = run("index", collection / "photos", *where, *options, "--json")
    assert output.pop("seconds") >= 0
    assert output == {
        "index": str(tmp_path / "y.index"),
        "photographs": 6,
        "added": 6,
        "unchanged": 0,
        "removed": 0,
        "rows": [],
    }
    assert run("index", collection / "photos", *where, *options, "--json")["unchanged"] == 6
    page = tmp_path / "page.html"
    output = run("search", collection / "query.jpg", *where, "--best", 3, "-o", page, "--json")
    expected = make_index(collection).search(collection / "query.jpg", best=3)
    assert (output["query"], output["photographs"]) == (str(collection / "query.jpg"), 6)
    assert output["page"] == str(page.resolve())
    assert [row["photograph"] for row in output["rows"]] == [str(one.path) for one in expected]
    assert [row["verified"] for row in output["rows"]] == [one.is_verified for one in expected]
    assert [row["inliers"] for row in output["rows"]] == [one.n_inliers for one in expected]
    assert [row["matches"] for row in output["rows"]] == [len(o.matches.pairs) for o in expected]
    assert "photographs: 6" in run("search", collection / "query.jpg", *where, "-o", page)
    assert "unchanged: 6" in run("index", collection / "photos", *where, *options)


def test_the_page_is_self_contained(collection, tmp_path, run):
    page = tmp_path / "page.html"
    run(
        "search",
        collection / "query.jpg",
        "--index",
        collection / "x.index",
        "--best",
        4,
        "-o",
        page,
    )
    text = page.read_text(encoding="utf-8")
    start = "data:image/jpeg;base64,"
    assert len(sources(text)) == 4
    assert all(source.startswith(start) for source in sources(text))
    assert not re.findall(r"(?:url\(|@import|<script|<link)", text)
    links = re.findall(r'href="([^"]*)"', text)
    assert len(links) == 4
    assert links[0] == (collection / "photos" / "astronaut.png").resolve().as_uri()
    pixels = np.frombuffer(base64.b64decode(sources(text)[0].removeprefix(start)), np.uint8)
    drawn = cv2.imdecode(pixels, cv2.IMREAD_COLOR).astype(int)
    assert drawn.shape == (300, 608, 3)
    assert (drawn[..., 1] > drawn[..., [0, 2]].max(axis=2) + 60).sum() > 1000
    assert text.index("astronaut.png") < text.index("<img")
    found = make_index(collection).search(collection / "query.jpg", best=4)
    verified, by_chance = text.split("<h2>Possibly by chance</h2>")
    assert "<h2>Verified</h2>" in verified
    assert verified.count("<article>") == sum(one.n_inliers >= 15 for one in found) > 0
    assert by_chance.count("<article>") == sum(one.n_inliers < 15 for one in found) > 0
    names = re.findall(r"<h3>\d\. <a [^>]*>([^<]*)", text)
    assert sorted(names) == sorted(one.path.name for one in found)


def test_links_are_relative_if_photographs_are_in_the_folder_of_the_page(folder, run):
    page = folder / "page.html"
    run("search", folder / "query.jpg", "--index", folder / "x.index", "--best", 1, "-o", page)
    assert 'href="photos/astronaut.png"' in page.read_text(encoding="utf-8")


def test_only_pages_of_results_are_overwritten(collection, tmp_path, run):
    page = tmp_path / "page.html"
    command = ("search", collection / "query.jpg", "--index", collection / "x.index", "-o", page)
    page.write_text("<!doctype html><p>mine</p>")
    assert "is not a page that kdiffhash wrote" in run(*command, fail=True)
    assert page.read_text() == "<!doctype html><p>mine</p>"
    run(*command, "--overwrite")
    assert "Verified" in page.read_text(encoding="utf-8")
    run(*command)  # replaces its own page


@pytest.mark.skipif(os.name == "nt", reason="not valid file names on Windows")
def test_names_on_the_page_are_escaped(tmp_path, write, image_named, run):
    name = """<b onclick='x'>&"1".png"""
    photos = write(f"photos/{name}", image_named()).parent
    query = write("<script>alert(1)<!--.png", image_named())
    where = ("--index", tmp_path / "x.index")
    run("index", photos, *where)
    run("search", query, *where, "-o", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "&lt;b onclick=&#x27;x&#x27;&gt;&amp;&quot;1&quot;.png" in text
    assert "&lt;script&gt;alert(1)&lt;!--.png" in text
    assert "<b onclick" not in text
    assert "<script" not in text
    assert "<!--" not in text
    assert all(source.startswith("data:") for source in sources(text))


def test_the_page_says_that_a_photograph_was_deleted(folder, run):
    (folder / "photos" / "astronaut.png").unlink()
    page = folder / "page.html"
    run("search", folder / "query.jpg", "--index", folder / "x.index", "--best", 2, "-o", page)
    text = page.read_text(encoding="utf-8")
    assert "No such file" in text
    assert len(sources(text)) == 1


def test_the_index_command_accepts_a_custom_model(collection, tmp_path, run):
    load_pretrained("sift", 64).save(tmp_path / "own")
    where = ("--index", tmp_path / "y.index")
    run("index", collection / "photos", *where, "--model", tmp_path / "own", "--features", 200)
    assert PhotoIndex.open(tmp_path / "y.index").features.model.n_bits_ == 64
    output = run("search", collection / "query.jpg", *where, "-o", tmp_path / "page.html", "--json")
    assert output["rows"][0]["photograph"].endswith("astronaut.png")


def test_a_search_without_results_writes_a_page(tmp_path, write, flat, collection, run):
    where = ("--index", tmp_path / "x.index")
    run("index", write("photos/flat.png", flat).parent, *where)
    output = run("search", collection / "query.jpg", *where, "-o", tmp_path / "page.html", "--json")
    assert output["rows"] == []
    assert "No photograph in the index" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_invalid_arguments_are_reported(collection, tmp_path, write, flat, run):
    page, where = tmp_path / "page.html", ("--index", collection / "x.index")
    plain = write("flat.png", flat)
    (tmp_path / "text.jpg").write_text("not a photograph")
    files = set(tmp_path.iterdir())
    assert "flat.png has no keypoints" in run("search", plain, *where, "-o", page, fail=True)
    output = run("search", tmp_path / "text.jpg", *where, "-o", page, fail=True)
    assert "text.jpg is not a readable image" in output
    assert "No such file" in run("search", tmp_path / "no.jpg", *where, "-o", page, fail=True)
    missing = ("--index", tmp_path / "no.index")
    output = run("search", collection / "query.jpg", *missing, "-o", page, fail=True)
    assert f"there is no index of photographs: {tmp_path / 'no.index'}" in output
    nowhere = tmp_path / "nowhere" / "page.html"
    assert "does not exist" in run("search", collection / "query.jpg", "-o", nowhere, fail=True)
    assert "not a folder" in run("index", tmp_path / "nowhere", *missing, fail=True)
    output = run("index", collection / "photos", *where, "--features", 300, fail=True)
    assert "another size (300, now 1600)" in output
    assert "is not an index of photographs" in run(
        "index", collection / "photos", "--index", tmp_path, fail=True
    )
    assert set(tmp_path.iterdir()) == files


def test_the_index_command_lists_unreadable_photographs(tmp_path, write, image_named, run):
    photos = write("photos/good.png", image_named()).parent
    (photos / "bad.jpg").write_text("not a photograph")
    output = run("index", photos, "--index", tmp_path / "x.index", "--json")
    assert (output["photographs"], output["added"]) == (1, 1)
    (row,) = output["rows"]
    assert row["unreadable"] == str((photos / "bad.jpg").resolve())
    assert "not a readable image" in row["why"]


def test_a_deleted_file_of_codes_is_rebuilt(folder):
    (folder / "x.index" / "codes.index").unlink()
    index = make_index(folder)
    assert counts(index.update(folder / "photos")) == (6, 0, 0)
    assert found_names(index, folder / "query.jpg")[0] == "astronaut"
    assert counts(index.update(folder / "photos")) == (0, 6, 0)


def test_numbers_of_photographs_are_never_reused(folder):
    index = make_index(folder)

    def numbers():
        with closing(sqlite3.connect(folder / "x.index" / "photos.sqlite")) as connection:
            return {number for (number,) in connection.execute("SELECT number FROM photos")}

    before = numbers()
    deleted = max((folder / "photos").glob("*.png"), key=lambda path: path.name)
    content = deleted.read_bytes()
    deleted.unlink()
    index.update(folder / "photos")
    deleted.write_bytes(content)
    index.update(folder / "photos")
    assert len(numbers()) == 6
    assert not (numbers() - before) & before
    assert max(numbers()) > max(before)


def test_sift_options_are_restored(tmp_path, collection):
    made = PhotoIndex(tmp_path / "x.index", HashedSIFT(64, 100, contrastThreshold=0.2))
    made.update(collection / "photos" / "inner")
    again = PhotoIndex.open(tmp_path / "x.index")
    path = collection / "query.jpg"
    sizes = [len(read_photo(path, one.features).codes) for one in (made, again)]
    assert sizes[0] == sizes[1] < 100


def test_a_database_of_another_program_is_left_unchanged(tmp_path, collection):
    folder = tmp_path / "mine"
    folder.mkdir()
    with closing(sqlite3.connect(folder / "photos.sqlite")) as mine:
        mine.execute("CREATE TABLE photos (title TEXT)")
        mine.commit()
    before = (folder / "photos.sqlite").read_bytes()
    with pytest.raises(ValueError, match="is not an index of photographs"):
        make_index(tmp_path, name="mine").update(collection / "photos")
    assert [path.name for path in folder.iterdir()] == ["photos.sqlite"]
    assert (folder / "photos.sqlite").read_bytes() == before


def test_updates_do_not_read_the_ids_of_all_codes(folder, monkeypatch):
    index, photos = make_index(folder), folder / "photos"
    (photos / "astronaut.png").unlink()
    shutil.copy(folder / "query.jpg", photos / "query.jpg")
    with monkeypatch.context() as patched:
        patched.setattr(HammingIndex, "ids", property(lambda _: pytest.fail("all ids were read")))
        update = index.update(photos)
    assert (update.added, update.unchanged, update.removed) == (1, 5, 1)
    assert index.search(folder / "query.jpg")[0].path == (photos / "query.jpg").resolve()
    assert make_index(folder).update(photos).unchanged == 6
