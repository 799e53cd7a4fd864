"""Commands in a locked-down container: another user, no home, and a read-only file system."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np
import pytest

import kdiffhash
from kdiffhash.datasets.scene import write_scene

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="uses users and mounts of Linux")

UID = 54321  # a user without an entry in /etc/passwd, hence without a home folder


@pytest.fixture(scope="module")
def container(objects):
    """A read-only folder of inputs, and writable folders; pytest's own are closed to others."""
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    for name in ("data", "out", "tmp", "cache", "home"):
        (root / name).mkdir()
    data = root / "data"
    X, y = objects
    np.savez(data / "rows.npz", X=X, y=y)
    np.savez(data / "test.npz", X=X, y=y + y.max() + 1)  # eval warns of the labels of training
    kdiffhash.LDAHash(8, random_state=0).fit(X, y).save(data / "model")
    rng = np.random.default_rng(0)
    np.save(data / "codes.npy", rng.integers(0, 256, (100, 8), dtype=np.uint8))
    with kdiffhash.HammingIndex.open(data / "x.index", "a", n_bits=64) as index:
        index.add(np.load(data / "codes.npy"))
    (data / "photos").mkdir()
    image = cv2.resize(rng.integers(0, 256, (60, 80), dtype=np.uint8), (640, 480))
    for name in "ab":
        cv2.imwrite(str(data / "photos" / f"{name}.png"), image)
    points = np.repeat(np.arange(150), 4)
    for name in ("train", "test"):
        write_scene(
            data / name,
            rng.integers(0, 256, (600, 64, 64)).astype(np.uint8),
            points,
            np.tile(np.arange(4), 150),
            descriptors=rng.integers(0, 256, (150, 128)).astype(np.uint8)[points],
            frames=np.ones((600, 4)),
            meta={},
        )
    for path in (data, *data.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    for name in ("out", "tmp", "cache", "home"):
        (root / name).chmod(0o777)
    yield root
    for path in (data, *data.rglob("*")):
        path.chmod(0o755)
    shutil.rmtree(root)


def confine(root: Path) -> list[str]:
    """Return the start of a command line that gives up root's rights and mounts all read-only."""
    if os.geteuid() != 0:
        return []  # the folders of this user that matter are read-only already
    if shutil.which("setpriv") is None:
        pytest.skip("root cannot become another user without setpriv")
    # The interpreter may be in a folder that only root can read; reading it is not the point here.
    caps = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    user = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", *caps]
    writable = [shlex.quote(str(root / name)) for name in ("out", "tmp", "cache", "home")]
    mounts = [f"mount --bind {folder} {folder}" for folder in writable]
    script = " && ".join([*mounts, "mount -o bind,remount,ro /", 'exec "$@"'])
    unshare = ["unshare", "--mount", "sh", "-c", script, "sh"]
    works = (
        shutil.which("unshare") and not subprocess.run([*unshare, "true"], check=False).returncode
    )
    return [*unshare, *user] if works else user


@pytest.fixture(scope="module")
def run(container):
    start = confine(container)

    def run(*arguments, **environment):
        kept = {
            "PATH": os.environ["PATH"],
            "TMPDIR": str(container / "tmp"),
        }
        return subprocess.run(
            [*start, sys.executable, "-c", "from kdiffhash.cli import main; main()"]
            + [str(argument).replace("OUT", str(container / "out")) for argument in arguments],
            cwd=container / "data",
            env=kept | {name: str(value) for name, value in environment.items()},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


COMMANDS = [
    "train rows.npz -o OUT/model --bits 8",
    "encode OUT/model rows.npz -o OUT/codes.npy",
    "eval OUT/model test.npz",
    "info OUT/model --system",
    "index build codes.npy -o OUT/x.index",
    "index add OUT/x.index codes.npy",
    "index remove OUT/x.index 3",
    "index compact OUT/x.index",
    "index verify x.index",
    "index info x.index",
    "index search x.index codes.npy -o OUT/found.npz",
    "index radius x.index codes.npy -r 3",
    "index duplicates x.index",
    "match photos/a.png photos/b.png -o OUT/m.png",
    "photos index photos --index OUT/photos",
    "photos search photos/a.png --index OUT/photos -o OUT/page.html",
    "data info train",
]
STUDY = "study --train train --test test --methods sift --bits 16 --quick -o OUT/study"


@pytest.mark.slow
def test_commands_write_only_to_their_outputs(run, container):
    """HOME could be written to, but nothing is."""
    for command in COMMANDS:
        done = run(*command.split(), HOME=container / "home")
        assert done.returncode == 0, (command, done.stderr)
        assert done.stderr == "", command
    assert list((container / "home").iterdir()) == []
    assert list((container / "tmp").iterdir()) == []
    assert list((container / "cache").iterdir()) == []


def test_existing_folder_in_a_read_only_folder_takes_codes(run, container):
    folder = container / "cache" / "codes"
    folder.mkdir()
    folder.chmod(0o777)
    (container / "cache").chmod(0o555)
    try:
        done = run("encode", "model", "rows.npz", "-o", folder)
        assert done.returncode == 0, done.stderr
        assert np.load(folder / "rows.npy").shape == (600, 1)
    finally:
        (container / "cache").chmod(0o777)
        shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["", "cache"])
def test_study_writes_only_to_the_output_and_the_cache(run, container, cache):
    environment = {"KDIFFHASH_CACHE": container / cache} if cache else {}
    home = {"HOME": container / "home"} if cache else {}
    done = run(*STUDY.split(), **environment, **home)
    assert done.returncode == 0, done.stderr
    assert "matplotlib" not in done.stderr.lower()
    assert (container / "out" / "study" / "index.html").is_file()
    assert list((container / "home").iterdir()) == []
    assert list((container / "tmp").iterdir()) == []


def test_missing_cache_folder_is_reported_with_the_variable_that_sets_it(run, container):
    for command in ("train views-train -o OUT/m", "data fetch x --from model"):
        done = run(*command.split())
        assert done.returncode == 1
        assert done.stderr.startswith("error: the cache folder"), done.stderr
        assert "KDIFFHASH_CACHE" in done.stderr
        assert done.stderr.count("\n") == 1
        closed = container / "data" / "cache"
        done = run(*command.split(), KDIFFHASH_CACHE=closed)
        assert done.returncode == 1
        assert f"the cache folder {closed} cannot be written to" in done.stderr
        assert "set the environment variable KDIFFHASH_CACHE" in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (container / "data" / "~").exists()
    assert "no scene 'typo'" in run("train", "typo", "-o", "OUT/m").stderr


@pytest.mark.parametrize(
    ("command", "folder"),
    [
        ("train rows.npz -o model2", "."),
        ("encode model rows.npz -o codes2.npy", "."),
        ("encode model rows.npz -o codes2", "."),
        ("index build codes.npy -o y.index", "."),
        ("index add x.index codes.npy", "x.index"),
        ("index search x.index codes.npy -o found.npz", "."),
        ("match photos/a.png photos/b.png -o photos/m.png", "photos"),
        ("photos index photos --index photos.index", "photos.index"),
        ("study --quick -o report", "report"),
        ("data describe train --descriptor hog", "train"),
    ],
)
def test_output_that_cannot_be_written_is_reported_in_one_sentence(run, command, folder):
    done = run(*command.split())
    assert done.returncode == 1
    assert done.stderr.startswith("error: "), done.stderr
    assert folder in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
