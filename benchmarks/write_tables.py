"""Write the tables in README.md and docs/*.md from the results stored in benchmarks/results.

A table stands between `<!-- table: NAME -->` and `<!-- end of NAME -->`. The benchmark that stores
a result also formats its tables: its function `tables(result)` returns Markdown by NAME, or by
PAGE:NAME for a table that differs on one page. The place of a table that is called like a benchmark
without a stored result stays as it is. With --check no page is written, and the exit code is 1 if a
page does not match the results.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

from support.harness import RESULTS, load
from support.headline_table import SOURCES, headline_table

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"<!-- table: ([\w-]+) -->\n.*?<!-- end of \1 -->", re.DOTALL)


def all_tables() -> dict[str, str]:
    """Return the tables of all benchmarks that have a stored result."""
    tables: dict[str, str] = {}
    for path in sorted(RESULTS.glob("*.json")):
        benchmark = import_module(path.stem)
        if hasattr(benchmark, "tables"):
            tables |= benchmark.tables(load(path.stem))
    if all((RESULTS / f"{name}.json").exists() for name in SOURCES):
        tables["headline"] = headline_table(load)
    return tables


def has_no_result(name: str) -> bool:
    """Return whether a benchmark of this name exists and has not been run."""
    script = Path(__file__).with_name(f"{name}.py")
    return script.exists() and not (RESULTS / f"{name}.json").exists()


def main() -> None:
    tables, used, outdated = all_tables(), set(), []
    for page in PAGES:
        name = str(page.relative_to(ROOT))

        def block(match: re.Match[str], name: str = name) -> str:
            key = f"{name}:{match[1]}" if f"{name}:{match[1]}" in tables else match[1]
            if key not in tables:
                if has_no_result(key):
                    return match[0]
                sys.exit(f"{name} has a place for table {key!r}, but no benchmark writes it")
            used.add(key)
            return f"<!-- table: {match[1]} -->\n{tables[key]}\n<!-- end of {match[1]} -->"

        old = page.read_text()
        text = BLOCK.sub(block, old)
        if text.count("<!-- table: ") != len(BLOCK.findall(text)):
            sys.exit(f"{name} has a table without its end mark, <!-- end of NAME -->")
        if text != old and "--check" in sys.argv:
            outdated.append(name)
        elif text != old:
            page.write_text(text)
            print(f"updated the tables in {name}")
    if tables.keys() - used:
        sys.exit(f"no page has a place for {', '.join(sorted(tables.keys() - used))}")
    if outdated:
        sys.exit(f"outdated tables in {', '.join(outdated)}: run python benchmarks/write_tables.py")


if __name__ == "__main__":
    main()
