"""No command replaces one of its inputs, under whatever name it is given."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import typer

import kdiffhash
from kdiffhash.cli.commands import app

OUTPUTS = {"out", "backup", "keep", "drop", "plot"}  # parameters that name an output


@pytest.fixture(scope="module")
def originals(tmp_path_factory, objects):
    """One file or folder for each kind of input."""
    folder = tmp_path_factory.mktemp("originals")
    X, y = objects
    np.save(folder / "rows.npy", X)
    np.save(folder / "rows.labels.npy", y)
    np.savez(folder / "labelled.npz", X=X, y=y)
    (folder / "shards").mkdir()
    np.save(folder / "shards" / "a.npy", X)
    kdiffhash.LDAHash(8, random_state=0).fit(X, y).save(folder / "model.npy")
    for name in ("model", "rows"):  # a plot must end in .svg
        shutil.copy(folder / f"{name}.npy", folder / f"{name}.svg")
    np.save(folder / "codes.npy", np.arange(40, dtype=np.uint8).reshape(10, 4))
    np.save(folder / "ids.npy", np.arange(10))
    np.save(folder / "projections.npy", np.zeros((10, 32), np.float32))
    with kdiffhash.HammingIndex.open(folder / "index.npz", "a", n_bits=32) as index:
        index.add(np.load(folder / "codes.npy"))
    for name in ("a.png", "b.png"):
        cv2.imwrite(str(folder / name), np.zeros((64, 64), np.uint8))
    return folder


CASES = [  # arguments of a command; {} marks the input that is given as the output as well
    ["train", "{rows.npy}", "-o"],
    ["train", "rows.npy", "--labels", "{rows.labels.npy}", "-o"],
    ["train", "labelled.npz", "{labelled.npz}", "-o"],
    ["encode", "model.npy", "{rows.npy}", "-o"],
    ["encode", "{model.npy}", "rows.npy", "-o"],
    ["eval", "{model.svg}", "rows.npy", "--retrieval", "--queries", "rows.npy", "--plot"],
    ["eval", "model.svg", "{rows.svg}", "--retrieval", "--queries", "rows.npy", "--plot"],
    ["export", "{model.npy}", "-o"],
    ["index", "build", "{codes.npy}", "-o"],
    ["index", "build", "codes.npy", "--ids", "{ids.npy}", "-o"],
    ["index", "build", "codes.npy", "--model", "{model.npy}", "-o"],
    ["index", "search", "index.npz", "{codes.npy}", "-o"],
    ["index", "search", "{index.npz}", "codes.npy", "-o"],
    ["index", "search", "index.npz", "codes.npy", "--allowed", "{ids.npy}", "-o"],
    ["index", "search", "index.npz", "codes.npy", "--model", "{model.npy}", "-o"],
    [
        *("index", "search", "index.npz", "codes.npy", "--rerank-projections"),
        *("{projections.npy}", "-o"),
    ],
    ["index", "radius", "{index.npz}", "codes.npy", "-r", "3", "-o"],
    ["index", "radius", "index.npz", "{labelled.npz}", "-r", "3", "-o"],
    ["index", "duplicates", "{index.npz}", "-o"],
    ["index", "repair", "{index.npz}", "-o"],
    ["match", "{a.png}", "b.png", "-o"],
    ["match", "a.png", "{b.png}", "-o"],
    ["colmap", "match", "{codes.npy}", "--backup"],
    ["colmap", "match", "index.npz", "--pairs", "{codes.npy}", "--backup"],
    ["colmap", "shrink", "{codes.npy}", "-o"],
    ["colmap", "train", "{codes.npy}", "-o"],
    ["hloc", "encode", "{codes.npy}", "-o"],
    ["hloc", "encode", "codes.npy", "--model", "{model.npy}", "-o"],
    ["hloc", "match", "{codes.npy}", "-o"],
    ["hloc", "match", "codes.npy", "--pairs", "{ids.npy}", "-o"],
    ["pg", "search", "{codes.npy}", "--dsn", "postgresql://nobody@127.0.0.1:9/x", "-o"],
    ["sqlite", "search", "{codes.npy}", "--database", "codes.db", "-o"],
    ["sqlite", "search", "codes.npy", "--database", "{index.npz}", "-o"],
    ["data", "build", "{shards}", "-o"],
    ["study", "--train", "{shards}", "--test", "rows.npy", "-o"],
]


def name_directly(path: Path) -> Path:
    return path


def name_by_a_detour(path: Path) -> Path:
    return path.parent / "shards" / ".." / path.name


def name_by_a_symbolic_link(path: Path) -> Path:
    link = path.with_name(f"link{path.suffix}")
    link.symlink_to(path)
    return link


def name_by_a_hard_link(path: Path) -> Path:
    link = path.with_name(f"link{path.suffix}")
    if path.is_dir():
        pytest.skip("folders have no hard links")
    os.link(path, link)
    return link


NAMES = [name_directly, name_by_a_detour, name_by_a_symbolic_link, name_by_a_hard_link]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def copy_of(originals, folder):
    return shutil.copytree(originals, folder / "data")


@pytest.mark.parametrize("other_name", NAMES)
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_output_onto_an_input_is_refused(case, other_name, originals, tmp_path, command):
    folder = copy_of(originals, tmp_path)
    (taken,) = [word[1:-1] for word in case if word.startswith("{")]
    out = other_name(folder / taken)
    before = contents(folder)
    given = [word.strip("{}") for word in case]
    arguments = [folder / word if (folder / word).exists() else word for word in given]
    assert "is also an input" in command(*arguments, out, fail=True)
    assert contents(folder) == before


@pytest.mark.parametrize("other_name", NAMES)
def test_output_onto_a_file_in_an_input_folder_is_refused(
    other_name, originals, tmp_path, command, monkeypatch
):
    folder = copy_of(originals, tmp_path)
    out = (
        other_name(folder / "shards" / "a.npy")
        if other_name is not name_by_a_detour
        else (folder / "shards" / ".." / "shards" / "a.npy")
    )
    if other_name is name_by_a_hard_link:
        out = out.rename(folder / "elsewhere.npy")
    before = contents(folder)
    error = command("encode", folder / "model.npy", folder / "shards", "-o", out, fail=True)
    assert "is in the folder" in error
    monkeypatch.setenv("KDIFFHASH_SCENES", str(folder))  # a scene that is given by its name
    (folder / "shards" / "info.txt").write_text("0 0\n" * 600)
    (folder / "shards" / "a.npy").rename(folder / "shards" / "sift.npy")
    out = folder / "shards" / "sift.npy"
    error = command("encode", folder / "model.npy", "shards", "-o", out, fail=True)
    assert "is in the folder" in error
    assert (folder / "shards" / "sift.npy").read_bytes() == before["a.npy"]


def test_codes_of_a_folder_are_not_written_to_the_folder_itself(originals, tmp_path, command):
    folder = copy_of(originals, tmp_path)
    before = contents(folder)
    for out in (folder / "shards", name_by_a_symbolic_link(folder / "shards")):
        error = command("encode", folder / "model.npy", folder / "shards", "-o", out, fail=True)
        assert "is also an input" in error
    assert contents(folder) == before


def test_labels_next_to_a_file_of_rows_are_not_replaced(originals, tmp_path, command):
    folder = copy_of(originals, tmp_path)
    out = folder / "rows.labels.npy"
    before = out.read_bytes()
    for arguments in (["train"], ["encode", folder / "model.npy"]):
        assert "is also an input" in command(*arguments, folder / "rows.npy", "-o", out, fail=True)
    assert out.read_bytes() == before


def test_new_file_in_an_input_folder_and_existing_other_file_are_written(
    originals, tmp_path, command
):
    folder = copy_of(originals, tmp_path)
    (tmp_path / "old.npy").write_bytes(b"old")
    for out in (folder / "shards" / "new.npy", tmp_path / "old.npy"):
        command("encode", folder / "model.npy", folder / "rows.npy", "-o", out)
        assert np.load(out).shape == (600, 1)


def test_every_command_with_an_output_has_a_case():
    writing = set()

    def walk(command, names):
        for name, child in getattr(command, "commands", {}).items():
            walk(child, (*names, name))
        if OUTPUTS & {parameter.name for parameter in command.params}:
            writing.add(names)

    walk(typer.main.get_command(app), ())
    cases = [" ".join(case) for case in CASES]
    for names in writing - {("photos", "search")}:  # its page ends in .html, which it never reads
        assert any(case.startswith(" ".join(names)) for case in cases), names
