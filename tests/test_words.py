"""One word for one concept, in code, messages and pages alike."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "native", "docs", "examples", "benchmarks", "tests")
SUFFIXES = {".py", ".pyi", ".md", ".cpp", ".h", ".html", ".js"}
FILES = sorted(
    path
    for path in (
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*")),
    )
    if path.suffix in SUFFIXES and path != Path(__file__)
)
UNIT = "(line|row|bit|worker|thread|descriptor|query)"
REPLACED = {  # what is not said, and what is said instead
    r"things?\b(?<!nothing)": "label, object",
    r"kept aside|judged by": "held-out set, validation set",
    r"fruitless": "early stopping, patience",
    r"falling ridge|ridge that falls": "decaying regularisation",
    r"weigh(s|ed|ing)?": "to weight",
    r"lent rows?": "remote rows",
    r"as quick(ly)? as|times as quick(ly)?|as quick": "n times faster, n times the throughput",
    rf"a {UNIT} (a|each) (row|bit|core|thread|patch|query)": "one worker per core",
    r"doubt(s|ful)?|settle[sd]?": "ambiguous bits, recompute",
    r"pairs_within|search_within|Sink": "range search, results",
    r"order(ed)? anew": "re-rank",
    r"gone on with": "resume",
    r"rooms of the code": "code layout",
}


@pytest.mark.parametrize("pattern", REPLACED)
def test_words_that_the_glossary_replaces_are_not_used(pattern):
    word = re.compile(rf"\b({pattern})\b", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:90]}"
        for path in FILES
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if word.search(line)
    ]
    assert not found, f"say {REPLACED[pattern]}:\n" + "\n".join(found)
