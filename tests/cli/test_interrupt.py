"""Ctrl-C: exit code 130, no traceback, and no half-written file, at any moment."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
from interrupting import run_interrupted

import kdiffhash
from kdiffhash.datasets.scene import write_scene

N_MOMENTS = int(os.environ.get("KDIFFHASH_MOMENTS", "6"))  # per command; the soak tries more
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT to send")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Rows, a model, codes, an index, two photographs and two scenes."""
    folder = tmp_path_factory.mktemp("inputs")
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(500), 4)
    X = (rng.normal(size=(500, 128))[y] + 0.3 * rng.normal(size=(2000, 128))).astype(np.float32)
    np.savez(folder / "rows.npz", X=X, y=y)
    model = kdiffhash.KernelLDAHash(64, n_basis=300, random_state=0).fit(X, y)
    model.save(folder / "model")
    (folder / "shards").mkdir()
    for i in range(5):
        np.save(folder / "shards" / f"{i}.npy", X[400 * i : 400 * (i + 1)])
    codes = rng.integers(0, 256, (200_000, 8), dtype=np.uint8)
    np.save(folder / "codes.npy", codes)
    np.save(folder / "queries.npy", codes[:2000])
    with kdiffhash.HammingIndex.open(folder / "x.index", "a", n_bits=64) as index:
        index.add(codes)
    image = cv2.resize(rng.integers(0, 256, (60, 80), dtype=np.uint8), (640, 480))
    (folder / "photos").mkdir()
    for name in "ab":
        cv2.imwrite(str(folder / "photos" / f"{name}.png"), image)
    for name in ("train", "test"):
        points = np.repeat(np.arange(150), 4)
        descriptors = np.clip(
            rng.gamma(0.8, 40, (150, 128))[points] + 30 * rng.normal(size=(600, 128)), 0, 255
        )
        write_scene(
            folder / name,
            rng.integers(0, 256, (600, 64, 64)).astype(np.uint8),
            points,
            np.tile(np.arange(4), 150),
            descriptors=descriptors.astype(np.uint8),
            frames=np.ones((600, 4)),
            meta={},
        )
    return folder


def is_whole_index(path):
    with kdiffhash.HammingIndex.open(path) as index:
        return len(index) == 200_000 and not kdiffhash.HammingIndex.verify(path)


def is_whole_array(path):
    return np.load(path).shape == (400 if path.parent.name == "codes" else 2000, 8)


def can_be_parsed(path):
    if path.suffix == ".json":
        json.loads(path.read_text())
    elif path.suffix == ".npz":
        with np.load(path) as file:
            assert all(file[name] is not None for name in file)
    elif path.suffix == ".png":
        assert cv2.imread(str(path)) is not None
    elif path.suffix == ".html":
        assert path.read_text().rstrip().endswith("</html>")
    return True


COMMANDS = {
    "train": (["train", "rows.npz", "-o", "out/model", "--basis", 300], kdiffhash.load),
    "encode a file": (["encode", "model", "rows.npz", "-o", "out/codes.npy"], is_whole_array),
    "encode a folder": (["encode", "model", "shards", "-o", "out/codes"], None),
    "eval": (["eval", "model", "rows.npz"], None),
    "index build": (["index", "build", "codes.npy", "-o", "out/x.index"], is_whole_index),
    "index search": (
        ["index", "search", "x.index", "queries.npy", "-o", "out/found.npz"],
        can_be_parsed,
    ),
    "match": (["match", "photos/a.png", "photos/b.png", "-o", "out/m.png"], can_be_parsed),
    "photos index": (["photos", "index", "photos", "--index", "out/photos"], None),
    "study": (
        [
            "study",
            "--train",
            "train",
            "--test",
            "test",
            "--methods",
            "sift",
            "dif",
            "--bits",
            "16",
            "--quick",
            "-o",
            "out",
        ],
        can_be_parsed,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_interrupted_command_exits_with_130_and_leaves_nothing_half_written(name, inputs, tmp_path):
    arguments, is_whole = COMMANDS[name]

    def prepare(number):
        folder = tmp_path / str(number)
        folder.mkdir()
        for path in inputs.iterdir():
            (folder / path.name).symlink_to(path)
        (folder / "out").mkdir()
        return folder

    complete = run_interrupted(arguments, prepare("complete"), None)
    assert complete.code == 0, complete.stderr
    rng = np.random.default_rng(list(name.encode()))
    delays = rng.uniform(0, complete.seconds, N_MOMENTS)

    def check(number):
        folder = prepare(number)
        ended = run_interrupted(arguments, folder, delays[number])
        assert ended.code in (0, 130), (delays[number], ended)
        assert "Traceback" not in ended.stderr
        if ended.code == 130:
            assert ended.stderr.endswith("interrupted\n")
        for path in (folder / "out").rglob("*"):
            assert not path.name.endswith(".part"), (delays[number], path)
            if is_whole is not None and path.is_file():
                assert is_whole(path), (delays[number], path)
        shutil.rmtree(folder)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(check, range(N_MOMENTS)))


HEADER = """
import os, signal, sys, threading, time
from pathlib import Path
from kdiffhash import cli
from kdiffhash._util.files import replacing
from kdiffhash._util.progress import progress, shown
def wait():
    os.write(1, b"ready\\n")
    while True:
        time.sleep(1)
def command():
"""


def run_program(lines, folder, n_signals=1, ignored=False):
    """Run code as a command; interrupt it once it has printed `ready`."""
    handler = "signal.SIG_IGN" if ignored else "signal.default_int_handler"
    end = f"\nsignal.signal(signal.SIGINT, {handler})\ncli.run = command\ncli.main()\n"
    process = subprocess.Popen(
        [sys.executable, "-c", HEADER + textwrap.indent(textwrap.dedent(lines), "    ") + end],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    for _ in range(n_signals):
        process.send_signal(signal.SIGINT)
    try:
        _, stderr = process.communicate("go\n", timeout=60)
    finally:
        process.kill()
    return process.returncode, stderr


INTERRUPTED = (130, "interrupted\n")


def test_code_that_swallows_the_interrupt_does_not_keep_the_process_alive(tmp_path):
    lines = """
        with replacing("out") as temporary:
            temporary.write_text("half")
            while True:
                try:
                    wait()
                except BaseException:
                    pass
    """
    assert run_program(lines, tmp_path) == INTERRUPTED
    assert list(tmp_path.iterdir()) == []


def test_running_threads_do_not_delay_the_exit(tmp_path):
    lines = """
        threading.Thread(target=time.sleep, args=(600,)).start()
        wait()
    """
    assert run_program(lines, tmp_path) == INTERRUPTED


def test_another_error_caused_by_the_interrupt_is_not_reported(tmp_path):
    lines = """
        class Noisy:
            def __del__(self):
                raise RuntimeError("in a destructor")
        try:
            wait()
        except KeyboardInterrupt:
            Noisy()
            raise ImportError("numpy could not be imported") from None
    """
    assert run_program(lines, tmp_path) == INTERRUPTED


def test_second_interrupt_does_not_disturb_the_clean_up(tmp_path):
    lines = """
        try:
            wait()
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            Path("cleaned").touch()
    """
    assert run_program(lines, tmp_path, n_signals=2) == INTERRUPTED
    assert (tmp_path / "cleaned").exists()


def test_interrupt_is_ignored_where_the_parent_process_ignores_it(tmp_path):
    lines = """
        print("ready", flush=True)
        sys.stdin.readline()  # comes after the signal
        Path("done").touch()
    """
    assert run_program(lines, tmp_path, ignored=True) == (0, "")
    assert (tmp_path / "done").exists()


def test_interrupt_after_the_command_while_python_shuts_down_is_ignored(tmp_path):
    lines = """
        import atexit
        atexit.register(Path("done").touch)
        atexit.register(os.kill, os.getpid(), signal.SIGINT)  # called first
        print("ready", flush=True)
    """
    assert run_program(lines, tmp_path, n_signals=0) == (0, "")
    assert (tmp_path / "done").exists()


def test_cursor_is_shown_again_after_a_progress_bar(tmp_path):
    pty = pytest.importorskip("pty")
    terminal, end = pty.openpty()
    code = HEADER + "    with shown(), progress(10, 'working'):\n        wait()\n"
    code += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}cli.run = command\ncli.main()"],
        env={**os.environ, "TERM": "xterm"},
        stdout=subprocess.PIPE,
        stderr=end,
    )
    os.close(end)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    text = b""
    with contextlib.suppress(OSError):  # the end of a terminal is an error on Linux
        while piece := os.read(terminal, 4096):
            text += piece
    os.close(terminal)
    assert process.wait(60) == 130
    assert b"working" in text
    assert text.rindex(b"\x1b[?25h") > text.rindex(b"\x1b[?25l")
    assert text.endswith(b"interrupted\r\n")
