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
        Name on the command line and in files.
    title : str
        Name in tables and figures.
    make : function or None
        Makes an estimator from `n_bits`, `random_state` and settings. None: descriptors are
        compared as they are, by Euclidean distance.
    grid : mapping
        Settings to choose from on training data: values for each parameter, the default first.
    settings : mapping
        Fixed settings.
    takes : tuple of str
        Settings that come from the plan: `n_basis`, `refine`.
    preprocess : None, "unit" or "hellinger"
        Preprocessing of descriptors that are not learned from. "hellinger" turns SIFT into
        RootSIFT.
    one_bit_per_feature : bool
        Codes are at most as long as the input is wide.
    max_bits : int or None
        Longest code, where training time grows too fast with the length.
    nested : bool
        Prefixes of its codes are its shorter codes; otherwise it is trained for each length.
    descriptor : str
        Which descriptors it compares: the name of the scene's file without `.npy`.
    is_slow : bool
        Codes are at most `Plan.longest_slow` bits long.
    in_quick : bool
        Part of a quick study.
    budget : str
        What it learns from, if not from the same pairs as the other methods.
    needs : str
        Module of an optional extra that it needs.
    version : str
        Digest of the file of a user's own method, so that a changed file is measured again.
    """

    name: str
    title: str
    make: MakeHasher | None = None
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    takes: tuple[str, ...] = ()
    preprocess: Preprocess = None
    one_bit_per_feature: bool = False
    max_bits: int | None = None
    nested: bool = True
    descriptor: str = "sift"
    is_slow: bool = False
    in_quick: bool = True
    budget: str = ""
    needs: str = ""
    version: str = ""

    @property
    def key(self) -> list[Any]:
        """What its results depend on."""
        return [self.name, dict(self.settings), dict(self.grid), self.descriptor, self.version]

    @property
    def is_learned(self) -> bool:
        """Whether there is something to train."""
        return self.make is not None

    @property
    def is_available(self) -> bool:
        """Whether the optional extra that it needs is installed."""
        return not self.needs or importlib.util.find_spec(self.needs) is not None


_ROOT: Mapping[str, Any] = {"preprocess": "hellinger"}
_ALPHAS = (2.0, 1.0, 1.5, 3.0, 5.0)
_RIDGES = (1e-3, 3e-4, 3e-3)
_BANDWIDTHS = ("median", "median/30", "0.1*median", "0.3*median", "3*median")
_ROWS_ONLY = "training rows without pairs"

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("sift", "SIFT"),
        Method("rootsift", "RootSIFT", preprocess="hellinger"),
        Method(
            "metric",
            "learned float, same pairs",
            baselines.MahalanobisMetric,
            grid={"ridge": _RIDGES},
            settings=_ROOT,
        ),
        Method(
            "dif-paper",
            "DIF, paper's setting",
            hashers.DiffHash,
            settings={"moment": "cross", "alpha": 25.0},
            one_bit_per_feature=True,
        ),
        Method(
            "kdif-paper",
            "kDIF, paper's setting",
            hashers.KernelDiffHash,
            grid={"gamma": _BANDWIDTHS},
            settings={key: value for key, value in PAPER_SETTING.items() if key != "gamma"},
            takes=("n_basis",),
        ),
        Method(
            "lda-paper",
            "LDA-hash, raw SIFT",
            hashers.LDAHash,
            grid={"ridge": _RIDGES},
            one_bit_per_feature=True,
        ),
        Method(
            "boosted-paper",
            "boosted SSH, raw SIFT",
            hashers.BoostedHash,
            settings={"weak": "projection"},
            is_slow=True,
        ),
        Method(
            "dif",
            "DIF",
            hashers.DiffHash,
            grid={"alpha": _ALPHAS},
            settings=_ROOT,
            one_bit_per_feature=True,
        ),
        Method(
            "kdif",
            "kDIF",
            hashers.KernelDiffHash,
            grid={"alpha": _ALPHAS},
            settings=_ROOT,
            takes=("n_basis",),
        ),
        Method(
            "lda",
            "LDA-hash",
            hashers.LDAHash,
            grid={"ridge": _RIDGES},
            settings=_ROOT,
            one_bit_per_feature=True,
        ),
        Method(
            "kernel-lda",
            "kernel LDA-hash",
            hashers.KernelLDAHash,
            settings=_ROOT,
            takes=("n_basis",),
        ),
        Method(
            "refined",
            "kernel LDA-hash, refined",
            hashers.KernelLDAHash,
            settings=_ROOT,
            takes=("n_basis", "refine"),
        ),
        Method(
            "boosted",
            "boosted SSH",
            hashers.BoostedHash,
            settings={**_ROOT, "weak": "projection"},
            is_slow=True,
        ),
        Method(
            "sdh",
            "SDH",
            baselines.SDHHash,
            grid={"nu": (1e-5, 1e-2)},
            settings=_ROOT,
            nested=False,
            is_slow=True,
            budget="20,000 rows with the labels that the same pairs imply",
        ),
        Method(
            "ksh",
            "KSH",
            baselines.KSHHash,
            grid={"n_rows": (1000, 3000)},
            settings=_ROOT,
            nested=False,
            max_bits=128,
            in_quick=False,
            budget="1,000 or 3,000 rows with the labels that the same pairs imply",
        ),
        Method(
            "random",
            "random hyperplanes",
            baselines.RandomHyperplaneHash,
            settings=_ROOT,
            budget="the mean of the training rows, no pairs",
        ),
        Method(
            "itq",
            "ITQ",
            hashers.ITQHash,
            settings=_ROOT,
            one_bit_per_feature=True,
            nested=False,
            budget=_ROWS_ONLY,
        ),
        Method(
            "pca",
            "PCA-hash",
            baselines.PCAHash,
            settings=_ROOT,
            one_bit_per_feature=True,
            budget=_ROWS_ONLY,
        ),
        Method(
            "spectral",
            "spectral hashing",
            baselines.SpectralHash,
            settings=_ROOT,
            nested=False,
            budget=_ROWS_ONLY,
        ),
        Method(
            "sklsh",
            "SKLSH",
            baselines.SKLSHHash,
            grid={"gamma_factor": (1.0, 0.3, 3.0)},
            settings=_ROOT,
            budget=_ROWS_ONLY,
        ),
        Method(
            "klsh",
            "KLSH",
            baselines.KLSHHash,
            grid={"gamma_factor": (1.0, 0.3, 3.0)},
            settings=_ROOT,
            budget=_ROWS_ONLY,
        ),
        Method(
            "pq",
            "product quantisation",
            baselines.ProductQuantizer,
            settings=_ROOT,
            nested=False,
            in_quick=False,
            budget=_ROWS_ONLY,
            needs="faiss",
        ),
    )
}


def find_method(text: str) -> Method:
    """Return a method by its name, or a user-defined one.

    Parameters
    ----------
    text : str
        One of the following forms:

        - a name in `METHODS`;
        - `package.module:Name` or `file.py:Name`: a class or function that returns an estimator
          with `fit_pairs(X, pairs, similar)` or `fit(X, y)`, and `transform`, which returns packed
          codes (uint8) or real-valued rows;
        - `model.safetensors`: a trained model;
        - any other word: a descriptor, `WORD.npy` in the test scenes, compared by Euclidean
          distance.

    Returns
    -------
    method : Method
        The method.

    Examples
    --------
    >>> from kdiffhash.study.methods import find_method
    >>> find_method("kernel-lda").name
    'kernel-lda'
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
        return Method(name, name, make=with_known_arguments(make), nested=False, version=version)
    if text.isidentifier() or text.replace("-", "").isalnum():
        return Method(text, f"{text}, Euclidean", descriptor=text)
    raise ValueError(
        f"unknown method {text!r}; known are {', '.join(METHODS)}, or package.module:Name, "
        "file.py:Name, model.safetensors, or the name of a descriptor file in the scenes"
    )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _import(text: str) -> tuple[MakeHasher, str | None]:
    """Return the class or function that a text names, and its file."""
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


def with_known_arguments(make: MakeHasher) -> MakeHasher:
    """Pass an estimator only those arguments that it accepts."""
    parameters = inspect.signature(make).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())

    def made(**arguments: Any) -> Any:
        known = {k: v for k, v in arguments.items() if takes_all or k in parameters}
        return make(**known)

    return made
