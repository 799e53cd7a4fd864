"""The methods that a study compares: those of the paper, baselines, and the user's own."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import hashers
from ..hashers import PAPER_SETTING, BaseHasher
from ..learn.preprocess import Preprocess
from . import baselines

MakeHasher = Callable[..., Any]


@dataclass(frozen=True)
class Method:
    """A way to compare descriptors.

    Attributes
    ----------
    name : str
        On the command line and in files.
    title : str
        In tables and figures.
    make : function or None
        Makes a hasher from `n_bits`, `random_state` and settings. None: descriptors are compared as
        they are, by Euclidean distance.
    grid : mapping
        Settings to choose from on training data: values for each parameter, the default first.
    settings : mapping
        Settings that are not chosen.
    preprocess : None, "unit" or "hellinger"
        What is done to descriptors first. On SIFT, "hellinger" makes RootSIFT.
    one_bit_a_feature : bool
        Codes are at most as long as the input is wide.
    nested : bool
        Prefixes of its codes are its shorter codes; else it is trained for each length.
    descriptor : str
        Which descriptors it compares: the scene's file of that name.
    is_slow : bool
        Not part of a first look.
    version : str
        Of the user's own method: a digest of its file, so that another one is measured anew.
    """

    name: str
    title: str
    make: MakeHasher | None = None
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    preprocess: Preprocess = None
    one_bit_a_feature: bool = False
    nested: bool = True
    descriptor: str = "sift"
    is_slow: bool = False
    version: str = ""

    @property
    def key(self) -> list[Any]:
        """What its results depend on."""
        return [self.name, dict(self.settings), dict(self.grid), self.descriptor, self.version]

    @property
    def is_learned(self) -> bool:
        """Whether there is something to train."""
        return self.make is not None


_ROOT: Mapping[str, Any] = {"preprocess": "hellinger"}
_ALPHAS = (2.0, 1.0, 1.5, 3.0, 5.0)
_RIDGES = (1e-3, 3e-4, 3e-3)
_FACTORS = (1.0, 1 / 30, 0.1, 0.3, 3.0)  # on one over the median squared distance

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("sift", "SIFT"),
        Method("rootsift", "RootSIFT", preprocess="hellinger"),
        Method(
            "dif-paper",
            "DIF, paper's setting",
            hashers.DiffHash,
            settings={"moment": "cross", "alpha": 25.0},
            one_bit_a_feature=True,
        ),
        Method(
            "kdif-paper",
            "kDIF, paper's setting",
            hashers.KernelDiffHash,
            grid={"gamma_factor": _FACTORS},
            settings=PAPER_SETTING,
        ),
        Method(
            "lda-paper",
            "LDA-hash, raw SIFT",
            hashers.LDAHash,
            grid={"ridge": _RIDGES},
            one_bit_a_feature=True,
        ),
        Method(
            "boosted-paper",
            "boosted SSH, raw SIFT",
            hashers.BoostedHash,
            settings={"weak": "projection"},
        ),
        Method(
            "dif",
            "DIF",
            hashers.DiffHash,
            grid={"alpha": _ALPHAS},
            settings=_ROOT,
            one_bit_a_feature=True,
        ),
        Method("kdif", "kDIF", hashers.KernelDiffHash, grid={"alpha": _ALPHAS}, settings=_ROOT),
        Method(
            "lda",
            "LDA-hash",
            hashers.LDAHash,
            grid={"ridge": _RIDGES},
            settings=_ROOT,
            one_bit_a_feature=True,
        ),
        Method(
            "kernel-lda",
            "kernel LDA-hash",
            hashers.KernelLDAHash,
            grid={"ridge": _RIDGES},
            settings={**_ROOT, "gamma": "median"},
        ),
        Method("refined", "kernel LDA-hash, refined", hashers.KernelLDAHash, settings=_ROOT),
        Method(
            "boosted",
            "boosted SSH",
            hashers.BoostedHash,
            grid={"weak": ("projection", "axis")},
            settings=_ROOT,
        ),
        Method("random", "random hyperplanes", baselines.RandomHyperplaneHash, settings=_ROOT),
        Method(
            "itq",
            "ITQ",
            hashers.ITQHash,
            settings=_ROOT,
            one_bit_a_feature=True,
            nested=False,
        ),
        Method(
            "sdh",
            "SDH",
            baselines.SDHHash,
            grid={"nu": (1e-5, 1e-2)},
            settings=_ROOT,
            nested=False,
        ),
        Method(
            "ksh",
            "KSH",
            baselines.KSHHash,
            grid={"n_rows": (1000, 3000)},
            settings=_ROOT,
            nested=False,
            is_slow=True,
        ),
    )
}


def find_method(text: str) -> Method:
    """A method by name, or the user's own.

    - a name in `METHODS`;
    - `package.module:Name` or `file.py:Name`: a class or function that makes an estimator with
      `fit_pairs(X, pairs, similar)` or `fit(X, y)`, and `transform`, which gives packed codes
      (uint8) or real rows;
    - `model.safetensors`: a trained model;
    - any other word: a descriptor, `WORD.npy` in the test scenes, compared by Euclidean distance.
    """
    if text in METHODS:
        return METHODS[text]
    if text.endswith(".safetensors"):
        model = BaseHasher.load(text)
        name = Path(text).stem
        nested = model._nested
        return Method(
            name, name, make=lambda **_: model, nested=nested, version=_digest(Path(text))
        )
    if ":" in text:
        make, source = _import(text)
        name = text.rpartition(":")[2]
        version = _digest(Path(source)) if source else ""
        return Method(name, name, make=_with_known_arguments(make), nested=False, version=version)
    if text.isidentifier() or text.replace("-", "").isalnum():
        return Method(text, f"{text}, Euclidean", descriptor=text)
    raise ValueError(
        f"unknown method {text!r}; known are {', '.join(METHODS)}, or package.module:Name, "
        "file.py:Name, model.safetensors, or the name of a descriptor file in the scenes"
    )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _import(text: str) -> tuple[MakeHasher, str | None]:
    """The class or function that a text names, and the file it is in."""
    where, _, name = text.rpartition(":")
    try:
        if where.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(where).stem, where)
            if spec is None or spec.loader is None:
                raise ImportError(f"{where} cannot be loaded")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
        made: MakeHasher = getattr(module, name)
    except (ImportError, OSError, AttributeError) as error:
        raise ValueError(f"method {text!r} cannot be imported: {error}") from error
    return made, module.__file__


def _with_known_arguments(make: MakeHasher) -> MakeHasher:
    """Call an estimator's class with those of our arguments that it knows."""
    parameters = inspect.signature(make).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())

    def made(**arguments: Any) -> Any:
        known = {k: v for k, v in arguments.items() if takes_all or k in parameters}
        return make(**known)

    return made
