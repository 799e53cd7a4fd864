"""All commands follow the same conventions: names of options, -h, help that fits a terminal."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import typer

import kdiffhash.cli
from kdiffhash.cli.app import Command, Group
from kdiffhash.cli.commands import app
from kdiffhash.cli.help_page import PANELS, choices_of, kinds_of, value_type

SYNONYMS = {  # what no option is called, and what it is called instead
    **dict.fromkeys(["--output", "--onnx", "--save", "--write"], "--out"),
    **dict.fromkeys(["--n-jobs", "--threads", "--workers", "--n-threads"], "--jobs"),
    **dict.fromkeys(["--n-bits", "--length", "--size-bits", "--prefix"], "--bits"),
    **dict.fromkeys(["--random-state", "--random-seed"], "--seed"),
    **dict.fromkeys(["--descriptors", "--kind"], "--descriptor"),
    **dict.fromkeys(["--format", "--as-json"], "--json"),
    **dict.fromkeys(["--silent", "--no-progress"], "--quiet"),
    **dict.fromkeys(["--neighbors", "--top-k", "--top"], "-k"),
    **dict.fromkeys(["--db", "--file"], "--database"),
}


def commands(command, path=()):
    """Yield all commands, with the words that call them."""
    if isinstance(command, Group):
        for name, child in command.commands.items():
            yield from commands(child, (*path, name))
    else:
        yield " ".join(path), command


TREE = typer.main.get_command(app)
COMMANDS = dict(commands(TREE))


def context(words):
    command, parent = TREE, TREE.context_class(TREE, info_name="kdiffhash")
    for word in words.split():
        command = command.commands[word]
        settings = command.context_settings
        parent = command.context_class(command, parent=parent, info_name=word, **settings)
    return parent


@pytest.fixture(params=COMMANDS)
def named(request):
    return request.param, COMMANDS[request.param]


def test_commands_and_groups_are_made_by_app(named):
    name, command = named
    assert isinstance(command, Command), f"{name}: use kdiffhash.cli.app.App, not typer.Typer"
    assert TREE.commands[name.split()[0]].rich_help_panel in PANELS


def test_options_have_the_names_they_have_elsewhere(named):
    name, command = named
    for parameter in command.params:
        for option in parameter.opts:
            assert option not in SYNONYMS, f"{name}: {option} is called {SYNONYMS[option]}"
            assert "_" not in option or not option.startswith("-")
        if "--out" in parameter.opts:
            assert "-o" in parameter.opts, f"{name}: --out has the short form -o"
    options = {option for parameter in command.params for option in parameter.opts}
    assert "--json" in options, f"{name}: add `as_json: Json = False`"


def test_an_option_accepts_the_same_type_in_every_command():
    types = {}
    for name, command in COMMANDS.items():
        kinds = kinds_of(command)
        for parameter in command.params:
            if parameter.param_type_name == "option" and not choices_of(kinds[parameter.name]):
                kind = value_type(kinds[parameter.name]).__name__
                types.setdefault(parameter.opts[0], {}).setdefault(kind, []).append(name)
    assert {option: found for option, found in types.items() if len(found) > 1} == {}


def test_every_parameter_is_described_in_a_sentence(named):
    name, command = named
    assert command.help
    for parameter in command.params:
        text = parameter.help or ""
        assert re.match(r"[A-Z.]|\w+( \w+)* [a-z]", text), f"{name} {parameter.name}: {text!r}"
        assert text.endswith((".", "...")), f"{name} {parameter.name}: {text!r}"


def test_help_fits_80_columns_and_names_values_in_words(named, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    name, command = named
    text = re.sub(r"\x1b\[\d*m", "", command.get_help(context(name)))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"Usage: kdiffhash {name}")
    assert not re.search(r"<\w+|\{\w|bool|int range|\[bold\]|list\[", text), text
    for option in ("-h, --help", "-q, --quiet", "-v, --verbose", "--json"):
        assert option in text


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_short_and_long_help(command, option):
    for words in ([], ["index"], ["index", "search"], ["train"]):
        assert command(*words, option).startswith("Usage: kdiffhash " + " ".join(words))


def test_first_page_lists_all_commands(command):
    text = command("-h")
    for name, child in TREE.commands.items():
        assert re.search(rf"^  {name}  +\w", text, re.MULTILINE), name
        assert child.rich_help_panel + ":" in text


def test_python_m_runs_the_command_line():
    line = [sys.executable, "-m", "kdiffhash", "--version"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout == f"kdiffhash {kdiffhash.__version__}\n"


def test_verbose_logs_steps_and_prints_tracebacks(objects, tmp_path, capfd):
    X, y = objects
    np.savez(tmp_path / "rows.npz", X=X, y=y)

    def run(*words):
        line = [sys.executable, "-m", "kdiffhash", *map(str, words)]
        return subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path)

    train = ["train", "rows.npz", "-o", "model", "--method", "lda", "--bits", "4"]
    done = run(*train, "-v")
    assert done.returncode == 0
    assert re.search(r"^\[ *\d+\.\d\d s\] learning", done.stderr, re.MULTILINE)
    assert done.stderr.splitlines()[-1].endswith("s] done")
    assert run(*train, "--quiet").stderr == ""
    failed = run("train", "rows.npz", "-o", "model", "--bits", "2000", "-v")
    assert (failed.returncode, "Traceback" in failed.stderr) == (1, True)
    failed = run("train", "rows.npz", "-o", "model", "--bits", "2000")
    assert (failed.returncode, "Traceback" in failed.stderr) == (1, False)
    failed = run("info", "model", "-q", "-v")
    assert "--quiet" in failed.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_and_choices(tmp_path):
    def complete(line):
        words = line.split(" ")
        environment = {
            **os.environ,
            "_KDIFFHASH_COMPLETE": "complete_bash",
            "COMP_WORDS": "\n".join(words),
            "COMP_CWORD": str(len(words) - 1),
        }
        code = "import sys; sys.argv = ['kdiffhash']; from kdiffhash.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        )
        return done.stdout.split()

    assert complete("kdiffhash tra") == ["train"]
    assert complete("kdiffhash index se") == ["search"]
    assert "--method" in complete("kdiffhash train --m")
    assert complete("kdiffhash train --method kernel-l") == ["kernel-lda"]
    assert {"--quiet", "--verbose"} <= set(complete("kdiffhash train --"))


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("File too large: /d/.codes.npy.0a1b2c3d.part", "File too large: /d/codes.npy"),
        ("Permission denied: .my.model.ffffffff.part", "Permission denied: my.model"),
        ("Permission denied: /cache/scenes/.trevi.lock", "Permission denied: /cache/scenes/trevi"),
        ("see part 3 of codes.part", "see part 3 of codes.part"),
    ],
)
def test_messages_name_the_output_and_not_its_temporary_file(message, expected):
    assert kdiffhash.cli.named_by_user(message) == expected


def test_scikit_learn_is_imported_while_progress_is_shown(objects, tmp_path):
    X, y = objects
    np.savez(tmp_path / "rows.npz", X=X, y=y)
    code = """
import sys
from contextlib import contextmanager
from kdiffhash._util import progress

@contextmanager
def waiting(description, verbose=False):
    before = "sklearn" in sys.modules
    yield
    print(description, before, "sklearn" in sys.modules)

progress.waiting = waiting
from kdiffhash.cli.commands import app
app(sys.argv[1:])
"""
    run = [sys.executable, "-c", code, "train", "rows.npz", "-o", "m.model", "--bits", "8"]
    run += ["--basis", "50", "--json"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[:2] == ["reading False True", "drawing pairs True True"]


@pytest.mark.skipif(not shutil.which("setpriv") or os.getuid(), reason="needs root and setpriv")
@pytest.mark.parametrize("program", ["train", "encode", "index build"])
def test_an_output_that_may_not_be_written_is_named(objects, tmp_path, program):
    X, y = objects
    np.savez(tmp_path / "rows.npz", X=X, y=y)
    model = kdiffhash.LDAHash(8, random_state=0).fit(X, y)
    model.save(tmp_path / "model")
    np.save(tmp_path / "codes.npy", model.transform(X))
    closed = tmp_path / "closed"
    closed.mkdir()
    for folder in (*tmp_path.parents[:3], tmp_path):
        folder.chmod(0o755)
    closed.chmod(0o555)
    inputs = {"train": ["rows.npz", "--method", "lda"], "encode": ["model", "rows.npz"]}
    line = [*program.split(), *inputs.get(program, ["codes.npy"]), "-o", "closed/out.npy"]
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [*user, sys.executable, "-m", "kdiffhash", *line],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert done.returncode == 1
    assert "closed is not writable" in done.stderr
    assert ".part" not in done.stderr


@pytest.mark.parametrize(
    "command", ["train rows.npy -o m.model", "eval m.model rows.npy", "match A.jpg B.jpg"]
)
def test_progress_is_shown_before_scikit_learn_is_imported(command):
    """Which takes a second or more."""
    code = """
import sys
from kdiffhash._util import progress

def waiting(description):
    print(description, "sklearn" in sys.modules)
    raise SystemExit

progress.waiting = waiting
from kdiffhash.cli.commands import app
app(sys.argv[1:])
"""
    run = [sys.executable, "-c", code, *command.split()]
    out = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert out in ("reading False\n", "finding keypoints False\n")
