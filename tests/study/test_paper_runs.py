"""The paper's own runs, on archives in the published format made from real patches."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock

import numpy as np
import pytest
from small_scenes import make_scene, small

from kdiffhash.datasets import fetch
from kdiffhash.datasets.sheets import write_sheets
from kdiffhash.study import run_paper_study
from kdiffhash.study.paper_runs import CASES

METHODS = ["sift", "rootsift", "dif-paper", "kdif-paper", "dif", "kdif"]


def run(out, source, **options):
    with mock.patch("kdiffhash.study.run.quick_plan", small):
        return run_paper_study(
            out, source, methods=METHODS, lengths=[32, 64], quick=True, **options
        )


@pytest.fixture(scope="module")
def archives(views, tmp_path_factory):
    """Three archives: sheets, info.txt whose photo ids are 0, and a list of test pairs."""
    folder = tmp_path_factory.mktemp("archives")
    ids = np.unique(views.train.points)
    for i, name in enumerate(("trevi", "halfdome", "notredame")):
        chosen = np.flatnonzero(np.isin(views.train.points, ids[200 * i : 200 * (i + 1)]))
        scene = tmp_path_factory.mktemp(name)
        write_sheets(scene, views.train.patches[chosen], "bmp")
        points = np.unique(views.train.points[chosen], return_inverse=True)[1]
        table = np.column_stack([points, np.zeros(len(points), int)])
        np.savetxt(scene / "info.txt", table, fmt="%d")
        pairs, _ = views.train.select(chosen).draw_pairs(300, 300, random_state=0)
        a, b = pairs.T
        zero = np.zeros_like(a)
        lines = np.column_stack([a, points[a], zero, b, points[b], zero])
        np.savetxt(scene / "m50_600_600_0.txt", lines, fmt="%d")
        with zipfile.ZipFile(folder / f"{name}.zip", "w") as file:
            for path in scene.iterdir():
                file.write(path, path.name)
    return folder


@pytest.fixture
def server(archives, monkeypatch):
    """A web server on loopback that publishes the archives."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    web = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=archives))
    thread = threading.Thread(target=web.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    published = {
        name: (
            f"http://127.0.0.1:{web.server_port}/{name.removesuffix('-2007')}.zip",
            hashlib.md5((archives / f"{name.removesuffix('-2007')}.zip").read_bytes()).hexdigest(),
        )
        for name in ("trevi", "halfdome", "notredame-2007")
    }
    monkeypatch.setattr(fetch, "PUBLISHED", published)
    yield web
    web.shutdown()
    web.server_close()
    thread.join()


@pytest.mark.slow
def test_the_papers_four_cases_run_on_fetched_archives(server, tmp_path, monkeypatch):
    monkeypatch.setenv("KDIFFHASH_CACHE", str(tmp_path / "cache"))
    results = run(tmp_path / "out", "published")
    assert results.errors == []
    assert set(results.cases) == set(CASES)
    # trevi and halfdome are trained and tested on, so they are halved; notredame is not.
    assert {name.rpartition("/")[2] for name in results.plan.split} == {"trevi", "halfdome"}
    assert results.kinds == {
        "trevi": "architecture",
        "halfdome": "natural",
        "notredame-2007": "architecture",
    }
    names = {path.stem for path in (tmp_path / "out" / "figures").glob("*.pdf")}
    assert {f"paper-roc-{train}-to-{test}" for train, test in CASES} <= names
    assert {"pair", "matches", "paper-size-trevi-to-notredame-2007"} <= names
    (claim,) = (c for c in results.extras["claims"] if c.claim.startswith("Training on nature"))
    where = [one.where for one in claim.paper["0.1 %"].comparisons]
    assert len(where) == 2  # both lengths
    assert all("halfdome" in text and "against training on trevi" in text for text in where)
    assert "--paper published" in (tmp_path / "out" / "index.html").read_text()


@pytest.mark.slow
def test_a_folder_of_archives_is_unpacked_once(archives, server, tmp_path):
    folder = tmp_path / "archives"
    folder.mkdir()
    for path in archives.glob("*.zip"):
        (folder / path.name).symlink_to(path)
    results = run(tmp_path / "out", folder)
    assert set(results.cases) == set(CASES)
    unpacked = folder / "unpacked" / "scenes" / "trevi" / "info.txt"
    stamp = unpacked.stat().st_mtime_ns
    again = run(tmp_path / "out", folder)
    assert unpacked.stat().st_mtime_ns == stamp
    key = ("trevi", "trevi", "kdif-paper", 64, "fnr_at_1e-3")
    assert again.rate(*key)[0] == results.rate(*key)[0]


def test_missing_archives_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"neither halfdome\.zip nor a scene halfdome"):
        run(tmp_path / "out", tmp_path)
    with pytest.raises(ValueError, match=r"is not a folder; give one with trevi\.zip"):
        run(tmp_path / "out", tmp_path / "nowhere")


def test_seeds_are_averaged_and_widen_intervals(tmp_path):
    for name, seed in (("halfdome", 0), ("trevi", 1), ("notredame", 2)):
        make_scene(tmp_path / name, 150, seed)
    results = run(tmp_path / "out", tmp_path, n_seeds=3)
    assert results.plan.seeds == (0, 1, 2)
    arrays = results.measured["trevi", "notredame", "kdif-paper"]
    assert arrays["seed_values"].shape[0] == 3
    np.testing.assert_allclose(arrays["values"], arrays["seed_values"].mean(axis=0))
    assert len({one.key for one in results.trained["trevi", "kdif-paper"]}) == 3
    assert len(np.unique(arrays["seed_values"][:, 0, 1])) > 1
