"""The tutorial on text embeddings finds the same rows in SQLite and in a real PostgreSQL server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "embeddings-sqlite.md"


@pytest.mark.slow
def test_tutorial_on_text_embeddings_runs_with_postgres(dsn, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KDIFFHASH_PG_DSN", dsn)
    blocks = re.findall(r"```py(?:thon)?\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert "PostgresStore" in blocks[-1]
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), namespace)
