"""Imports go from higher to lower layers only, in the order shown in docs/design.md."""

from __future__ import annotations

import ast
from pathlib import Path

import kdiffhash

ROOT = Path(kdiffhash.__file__).parent
LAYERS = [
    *("_core", "_util", "codes", "learn", "evaluate", "hashers", "shards", "search", "engines"),
    *("datasets", "vision", "study", "cli"),
]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path) -> list[tuple[int, str]]:
    """Return the relative imports of a file: line numbers and names relative to kdiffhash."""
    package = path.relative_to(ROOT).parent.parts
    imports = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - (node.level - 1)]
            target = (*base, *(node.module or "").split(".")) if node.module else base
            names = [(*target, alias.name) for alias in node.names] if not target else [target]
            imports += [(node.lineno, ".".join(name)) for name in names]
    return imports


def test_every_package_has_a_layer():
    top = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert top - {"__init__", "__main__", "__pycache__", "_core"} <= set(LAYERS)


def test_no_module_imports_from_a_layer_above_its_own():
    upward = []
    for path in sorted(ROOT.rglob("*.py")):
        own = module_name(path).partition(".")[0]
        if own in ("", "__main__"):
            continue  # the package itself may import from every layer
        for line, name in imported_modules(path):
            layer = name.partition(".")[0]
            if layer in LAYERS and LAYERS.index(layer) > LAYERS.index(own):
                upward.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert upward == []


def test_there_are_no_circular_imports():
    """Imports inside of functions count as well; those under TYPE_CHECKING do not."""
    graph: dict[str, set[str]] = {}
    names = {module_name(path): path for path in ROOT.rglob("*.py")}
    for name, path in names.items():
        type_checking = {
            line
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        used = {target for line, target in imported_modules(path) if line not in type_checking}
        graph[name] = {
            target for target in used if target in names and names[target].name != "__init__.py"
        }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for target in sorted(graph[name]):
                visit(target, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_no_two_modules_share_a_name():
    """Module names are unique, apart from `__init__`."""
    names = [path.stem for path in ROOT.rglob("*.py") if path.stem != "__init__"]
    assert sorted({name for name in names if names.count(name) > 1}) == []
