"""`kdiffhash index cells`, and `index search --recall`."""

from __future__ import annotations

import json

import numpy as np
from typer.testing import CliRunner

from kdiffhash import HammingIndex
from kdiffhash.cli.commands import app


def run(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_cells_are_built_and_searched(tmp_path):
    rng = np.random.default_rng(0)
    centres = rng.integers(0, 256, (300, 16), dtype=np.uint8)
    noise = np.packbits(rng.random((21_000, 128)) < 0.05, axis=1)
    codes = centres[rng.integers(0, 300, 21_000)] ^ noise
    np.save(tmp_path / "queries.npy", codes[:50])
    path = tmp_path / "codes.index"
    HammingIndex(codes).save(path)
    search = ("index", "search", path, tmp_path / "queries.npy", "-k", 5, "--recall", 0.9, "--json")
    assert run(*search)["exact"] == "the index has no cells"
    built = run("index", "cells", path, "--json")
    assert built["codes"] == 21_000
    assert built["cells"] > 20
    assert built["share_compared_for_recall_0.9"] < 0.34
    found = run(*search)
    assert found["compared"] < 21_000 / 3
    assert found["cells_searched"] >= 1
    assert run("index", "info", path, "--json")["outside_cells"] == 0


def test_where_cells_do_not_help_the_file_stays_as_it_is(tmp_path):
    path = tmp_path / "codes.index"
    HammingIndex(np.zeros((9, 8), np.uint8)).save(path)
    before = path.read_bytes()
    result = run("index", "cells", path, "--json")
    assert result["cells"] == 0
    assert "from about 20,000 codes on" in result["reason"]
    assert path.read_bytes() == before
