"""Docstrings of public names: parameters agree with signatures, and examples run."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
MODULES = (
    "kdiffhash",
    "kdiffhash.datasets",
    "kdiffhash.engines.dask",
    "kdiffhash.engines.faiss",
    "kdiffhash.engines.onnx",
    "kdiffhash.engines.postgres",
    "kdiffhash.evaluate",
    "kdiffhash.search",
    "kdiffhash.shards",
    "kdiffhash.study",
    "kdiffhash.study.baselines",
    "kdiffhash.vision",
)


class Documented(NamedTuple):
    """An entry of a Parameters section."""

    name: str
    type: str
    default: str | None  # the text after "default=", or "optional"


def resolve(name: str) -> Any:
    """Return the object with a dotted name."""
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def public_names(module_name: str) -> list[str]:
    """Return the dotted names that a module exports: `__all__`, or what it defines."""
    module = import_module(module_name)
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and (value.__module__ == module_name or hasattr(module, "__path__"))
    ]
    return [f"{module_name}.{name}" for name in names]


def names_on_api_page() -> list[str]:
    return re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(), flags=re.MULTILINE)


def public_objects() -> dict[str, Any]:
    """Return all public classes and functions by the name of their definition."""
    names = [*(name for module in MODULES for name in public_names(module)), *names_on_api_page()]
    found = (resolve(name) for name in names)
    return {
        f"{value.__module__}.{value.__qualname__}": value
        for value in found
        if inspect.isclass(value) or inspect.isfunction(value)
    }


def public_methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the methods and properties that a class has from classes of this package."""
    for base in cls.__mro__:
        if base.__module__.startswith("kdiffhash"):
            for name, value in vars(base).items():
                callable_ = inspect.isfunction(value) or isinstance(
                    value, classmethod | staticmethod
                )
                if not name.startswith("_") and (callable_ or isinstance(value, property)):
                    yield f"{base.__module__}.{base.__qualname__}.{name}", value


def section(doc: str | None, title: str) -> list[str]:
    """Return the lines of one section of a numpydoc docstring."""
    lines = inspect.cleandoc(doc or "").splitlines()
    heads = [i for i, line in enumerate(lines[1:]) if re.fullmatch(r"-{3,}", line)]
    for head, following in pairwise([*heads, len(lines)]):
        if lines[head] == title:
            return lines[head + 2 : following]
    return []


def documented(doc: str | None, title: str = "Parameters") -> list[Documented]:
    """Return the entries of a section; ``a, b : int`` counts as two."""
    found = []
    for line in section(doc, title):
        if line and not line.startswith(" "):
            names, _, kind = line.partition(" : ")
            match = re.search(r",\s*(?:default=(?P<value>.+)|(?P<optional>optional))$", kind)
            default = (match["value"] or match["optional"]) if match else None
            type_ = kind[: match.start()] if match else kind
            found += [Documented(name, type_, default) for name in names.split(", ")]
    return found


def signature(function: Any) -> list[inspect.Parameter]:
    """Return the parameters of a function or constructor, without self and cls."""
    function = getattr(function, "__func__", function)
    parameters = list(inspect.signature(function).parameters.values())
    return [p for p in parameters if p.name not in ("self", "cls")]


def constructor(cls: type) -> list[inspect.Parameter]:
    """Return the parameters of a class; none for exceptions, protocols and abstract bases."""
    own = [base for base in cls.__mro__ if base.__module__.startswith("kdiffhash")]
    is_tuple = issubclass(cls, tuple)
    defined = any("__init__" in vars(base) for base in own)
    if getattr(cls, "_is_protocol", False) or not (is_tuple or defined):
        return []
    return signature(cls)


def displayed(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    return stars.get(parameter.kind, "") + parameter.name


def disagreements(
    parameters: list[inspect.Parameter], entries: list[Documented], module: str
) -> list[str]:
    """Return what differs between a signature and the documented parameters."""
    constants = vars(import_module(module))
    names, written = [displayed(p) for p in parameters], [entry.name for entry in entries]
    if names != written:
        return [f"parameters are {names}, documented are {written}"]
    problems = []
    for parameter, entry in zip(parameters, entries, strict=True):
        if not entry.type:
            problems.append(f"{entry.name} has no type")
        choices = re.match(r"\{([^,}]+)", entry.type)
        if choices and entry.default not in (None, choices[1]):  # mkdocstrings shows the first one
            problems.append(f"{entry.name}: put the default {entry.default} first in the braces")
        if choices and not entry.type.endswith("}"):
            problems.append(f"{entry.name}: text after the braces is not shown on the API page")
        if re.search(r"\bdefault\b|\boptional\b", entry.type):
            problems.append(f"{entry.name}: write 'TYPE, default=VALUE', not {entry.type!r}")
        elif parameter.default is parameter.empty:
            if entry.default is not None:
                problems.append(f"{entry.name} has no default, documented is {entry.default}")
        elif not states(entry.default, parameter.default, constants):
            problems.append(
                f"{entry.name} has default {parameter.default!r}, documented is {entry.default}"
            )
    return problems


def states(text: str | None, default: Any, constants: dict[str, Any]) -> bool:
    """Return whether a documented default, a literal or a constant, is the real one."""
    if text is None:
        return False
    if text == "optional":
        return default is None or callable(default)
    if text in constants:
        return constants[text] == default
    try:
        return ast.literal_eval(text) == default
    except ValueError:  # inf
        return text == repr(default)


def runs_more_than_imports(doc: str | None) -> bool:
    examples = doctest.DocTestParser().get_examples("\n".join(section(doc, "Examples")))
    statements = [one.source for one in examples if doctest.SKIP not in one.options]
    return not all(statement.startswith(("import ", "from ")) for statement in statements)


OBJECTS = public_objects()
CLASSES = {name: value for name, value in OBJECTS.items() if inspect.isclass(value)}
METHODS = dict(pair for cls in CLASSES.values() for pair in public_methods(cls))
#: Examples of these are not run: they need a server, a download, photographs or many minutes.
NOT_RUN = {
    "kdiffhash.datasets.build.build_scene",
    "kdiffhash.datasets.fetch.fetch_scene",
    "kdiffhash.datasets.named_scenes.describe_scene",
    "kdiffhash.datasets.views.load_views",
    "kdiffhash.engines.dask.cluster.connect",
    "kdiffhash.engines.audit.audit_postgres",
    "kdiffhash.engines.postgres.PostgresStore",
    "kdiffhash.study.paper_runs.run_paper_study",
    "kdiffhash.study.run.run_study",
    "kdiffhash.vision.colmap_training.read_tracks",
    "kdiffhash.vision.pair_selection.likely_pairs",
}


@pytest.mark.parametrize("name", OBJECTS)
def test_parameters_of_public_classes_and_functions_are_documented(name):
    value = OBJECTS[name]
    parameters = constructor(value) if inspect.isclass(value) else signature(value)
    entries = documented(value.__doc__)
    is_record = is_dataclass(value) or (inspect.isclass(value) and issubclass(value, tuple))
    parameters = [parameter for parameter in parameters if not parameter.name.startswith("_")]
    if is_record and not entries:  # its fields are documented as attributes, without defaults
        entries = documented(value.__doc__, "Attributes")[: len(parameters)]
        parameters = [parameter.replace(default=parameter.empty) for parameter in parameters]
    assert disagreements(parameters, entries, value.__module__) == []


@pytest.mark.parametrize("name", METHODS)
def test_parameters_of_public_methods_are_documented(name):
    value = METHODS[name]
    assert value.__doc__, "has no docstring"
    if not isinstance(value, property):
        entries = documented(value.__doc__)
        assert disagreements(signature(value), entries, value.__module__) == []


@pytest.mark.parametrize("name", OBJECTS)
def test_public_classes_and_functions_have_an_example(name):
    doc = OBJECTS[name].__doc__
    assert section(doc, "Examples"), "has no Examples section"
    assert runs_more_than_imports(doc) or name in NOT_RUN


def test_public_names_are_on_the_api_page():
    on_page = {id(resolve(name)) for name in names_on_api_page()}
    missing = [name for name, value in OBJECTS.items() if id(value) not in on_page]
    assert missing == []


def test_disagreements_are_detected():
    """The checks above find missing, reordered, untyped and wrongly described parameters."""

    def function(a, b=3, *, c="x", d=None, **rest):
        """Do nothing.

        Parameters
        ----------
        %s
        """

    def found(*lines):
        doc = function.__doc__.replace("%s", "\n        ".join(lines))
        return disagreements(signature(function), documented(doc), __name__)

    good = ("a : int", "b : int, default=3", 'c : {"x", "y"}, default="x"')
    good = (*good, "d : str, optional", "**rest : any")
    assert found(*good) == []
    for position, line in (
        (0, "a"),
        (0, "a : int, default=1"),
        (0, "z : int"),
        (1, "b : int"),
        (1, "b : int, default=4"),
        (1, "b : int, default 3"),
        (2, 'c : {"y", "x"}, default="x"'),
        (2, 'c : {"x", "y"} or array, default="x"'),
        (3, "d : str"),
    ):
        assert found(*good[:position], line, *good[position + 1 :]), line
    assert found(*good[:-1])
    assert found(*good[1::-1], *good[2:])
