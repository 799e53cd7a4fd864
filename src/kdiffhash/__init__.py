"""Learn compact binary codes from pairs that should match and pairs that should not.

>>> from sklearn.datasets import load_digits
>>> import kdiffhash
>>> X, y = load_digits(return_X_y=True)
>>> hasher = kdiffhash.KernelDiffHash(n_bits=64, n_basis=200, random_state=0).fit(X, y)
>>> hasher.transform(X).shape, hasher.transform(X).dtype
((1797, 8), dtype('uint8'))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers see; at run time `__getattr__` imports the same names
    from .calibration import Calibration as Calibration
    from .codes import hamming as hamming
    from .codes import pack as pack
    from .codes import unpack as unpack
    from .datasets import load_scene as load_scene
    from .datasets import load_views as load_views
    from .errors import KdiffhashError as KdiffhashError
    from .hashers import PAPER_SETTING as PAPER_SETTING
    from .hashers import BaseHasher as BaseHasher
    from .hashers import BoostedHash as BoostedHash
    from .hashers import ConstantBitWarning as ConstantBitWarning
    from .hashers import CrossDiffHash as CrossDiffHash
    from .hashers import DiffHash as DiffHash
    from .hashers import ITQHash as ITQHash
    from .hashers import KernelDiffHash as KernelDiffHash
    from .hashers import KernelLDAHash as KernelLDAHash
    from .hashers import LDAHash as LDAHash
    from .metrics import Interval as Interval
    from .metrics import Roc as Roc
    from .metrics import bootstrap as bootstrap
    from .metrics import bootstrap_difference as bootstrap_difference
    from .metrics import fnr_at_fpr as fnr_at_fpr
    from .metrics import roc as roc
    from .model_file import ModelFileError as ModelFileError
    from .model_file import load as load
    from .moments import PairMoments as PairMoments
    from .pairs import draw_pairs as draw_pairs
    from .pretrained import load_pretrained as load_pretrained
    from .search import HammingIndex as HammingIndex
    from .search import IndexFileError as IndexFileError
    from .search import match_codes as match_codes
    from .sequential import SequentialMatcher as SequentialMatcher
    from .vision import HashedFeatures as HashedFeatures
    from .vision import HashedSIFT as HashedSIFT

__version__ = "0.1.0"

_HOMES = {
    "calibration": ["Calibration"],
    "codes": ["hamming", "pack", "unpack"],
    "datasets": ["load_scene", "load_views"],
    "errors": ["KdiffhashError"],
    "hashers": [
        "PAPER_SETTING",
        "BaseHasher",
        "BoostedHash",
        "ConstantBitWarning",
        "CrossDiffHash",
        "DiffHash",
        "ITQHash",
        "KernelDiffHash",
        "KernelLDAHash",
        "LDAHash",
    ],
    "metrics": ["Interval", "Roc", "bootstrap", "bootstrap_difference", "fnr_at_fpr", "roc"],
    "model_file": ["ModelFileError", "load"],
    "moments": ["PairMoments"],
    "pairs": ["draw_pairs"],
    "pretrained": ["load_pretrained"],
    "search": ["HammingIndex", "IndexFileError", "match_codes"],
    "sequential": ["SequentialMatcher"],
    "vision": ["HashedFeatures", "HashedSIFT"],
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = ["__version__", *_HOME_OF]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that `import kdiffhash` stays quick."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'kdiffhash' has no attribute {name!r}")
    module = import_module(f".{_HOME_OF[name]}", __name__)
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
