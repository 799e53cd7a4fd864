"""Progress bars: shown on request on a terminal, and nowhere else."""

import re
import sys

import numpy as np
import pytest

from kdiffhash import KernelLDAHash
from kdiffhash._util import progress as progress_module
from kdiffhash._util.progress import is_shown, next_step, progress, report, shown, steps, waiting
from kdiffhash.cli.commands import app


class Terminal:
    """Standard error as a terminal, with all text written to it so far."""

    def __init__(self, capsys):
        self._capsys, self._drawn = capsys, ""

    @property
    def text(self):
        self._drawn += self._capsys.readouterr().err
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._drawn)  # without escape sequences


@pytest.fixture
def terminal(monkeypatch, capsys):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda _: True)  # the stream of capsys
    return Terminal(capsys)


@pytest.fixture
def pairs_file(tmp_path):
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(60), 4)
    path = tmp_path / "rows.npz"
    np.savez(path, X=rng.normal(size=(60, 8))[y] + 0.1 * rng.normal(size=(240, 8)), y=y)
    return path


def test_bar_on_a_terminal_advances(terminal):
    with progress(4, "counting", verbose=True) as advance:
        advance(1)
        advance(2)
    assert "counting" in terminal.text
    assert " 75%" in terminal.text
    assert "100%" not in terminal.text


def test_spinner_is_shown_on_a_terminal(terminal):
    with waiting("writing", verbose=True):
        pass
    assert "writing" in terminal.text


def test_nothing_is_shown_without_verbose(terminal):
    with progress(4, "counting") as advance, waiting("writing"):
        advance(1)
    assert terminal.text == ""


def test_nothing_is_written_to_a_pipe(terminal, monkeypatch):
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda _: False)
    with shown(), progress(4, "counting", verbose=True) as advance, waiting("writing", True):
        advance(4)
        assert not is_shown(verbose=True)
    assert terminal.text == ""


def test_shown_enables_bars_inside_its_context_only(terminal):
    with shown():
        assert is_shown()
        with shown():
            pass
        with progress(2, "inside") as advance:
            advance(1)
    assert "inside" in terminal.text
    assert " 50%" in terminal.text
    assert not is_shown()
    with progress(2, "after"):
        pass
    assert "after" not in terminal.text


def test_bar_inside_another_bar_is_not_shown(terminal):
    with progress(4, "outer", verbose=True) as advance:
        with progress(8, "inner", verbose=True) as inner, waiting("innermost", verbose=True):
            inner(8)
        advance(1)
    assert "outer" in terminal.text
    assert " 25%" in terminal.text
    assert "inner" not in terminal.text
    with progress(8, "later", verbose=True):
        pass
    assert "later" in terminal.text


def test_bars_work_after_an_exception_inside_a_bar(terminal):
    with pytest.raises(KeyError), shown(), progress(4, "broken"):
        raise KeyError
    assert not is_shown()
    with progress(4, "next", verbose=True) as advance:
        advance(4)
    assert "next" in terminal.text
    assert "100%" in terminal.text


def test_refinement_shows_a_bar_in_the_train_command_but_not_in_fit(terminal, pairs_file, tmp_path):
    with np.load(pairs_file) as file:
        KernelLDAHash(16, n_basis=40, refine=3, random_state=0).fit(file["X"], file["y"])
    assert terminal.text == ""
    command = ["train", str(pairs_file), "--out", str(tmp_path / "model.safetensors")]
    command += ["--bits", "16", "--basis", "40", "--refine", "3"]
    app([*command, "--json"], standalone_mode=False)
    assert terminal.text == ""
    app(command, standalone_mode=False)
    assert "refining" in terminal.text
    assert "100%" in terminal.text
    assert not is_shown()


def test_steps_share_one_bar(terminal):
    done = []
    with steps({"first": 1, "second": 3}, "both", verbose=True):
        next_step("first", 0.5)
        report(0.5)
        next_step("first", 0.5)
        next_step("second", n_passes=2)
        for _ in range(9):
            report(0.25)  # more than there is left
            done.append(progress_module._steps.left)
    assert done == [65.625, 56.25, 46.875, 37.5, 28.125, 18.75, 9.375, 0.0, 0.0]
    assert "both" in terminal.text
    assert "100%" in terminal.text
    report(1)  # without a bar
    next_step("third")


def test_training_shows_a_bar_that_advances(terminal, pairs_file, tmp_path):
    parts = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress_module._Steps, "report", lambda self, part: parts.append(part))
        command = ["train", str(pairs_file), "--out", str(tmp_path / "m"), "--basis", "40"]
        app([*command, "--bits", "16"], standalone_mode=False)
    assert "learning" in terminal.text
    assert len(parts) >= 20
