"""Learn compact binary codes from pairs that should match and pairs that should not.

>>> from sklearn.datasets import load_digits
>>> import kdiffhash
>>> X, y = load_digits(return_X_y=True)
>>> hasher = kdiffhash.KernelDiffHash(n_bits=64, n_basis=200, random_state=0).fit(X, y)
>>> hasher.transform(X).shape, hasher.transform(X).dtype
((1797, 8), dtype('uint8'))
"""

from __future__ import annotations

import os as _os
from typing import TYPE_CHECKING

from ._util.lazy import lazy_names

if TYPE_CHECKING:  # for type checkers; at run time `__getattr__` imports these names on first use
    from ._util.errors import KdiffhashError as KdiffhashError
    from .codes import hamming as hamming
    from .codes import pack as pack
    from .codes import unpack as unpack
    from .datasets import load_scene as load_scene
    from .datasets import load_views as load_views
    from .evaluate.bootstrap import Interval as Interval
    from .evaluate.bootstrap import bootstrap as bootstrap
    from .evaluate.bootstrap import bootstrap_difference as bootstrap_difference
    from .evaluate.calibration import Calibration as Calibration
    from .evaluate.calibration import calibrate as calibrate
    from .evaluate.roc import Roc as Roc
    from .evaluate.roc import fnr_at_fpr as fnr_at_fpr
    from .evaluate.roc import roc as roc
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
    from .hashers import ModelFileError as ModelFileError
    from .hashers import SequentialMatcher as SequentialMatcher
    from .hashers import load as load
    from .hashers import load_pretrained as load_pretrained
    from .learn.moments import PairMoments as PairMoments
    from .learn.pairs import draw_pairs as draw_pairs
    from .search import HammingIndex as HammingIndex
    from .search import IndexFileError as IndexFileError
    from .search import match_codes as match_codes
    from .vision import HashedFeatures as HashedFeatures
    from .vision import HashedSIFT as HashedSIFT

__version__ = "0.2.0"

_names, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "codes": ["hamming", "pack", "unpack"],
        "_util.errors": ["KdiffhashError"],
        "learn.moments": ["PairMoments"],
        "learn.pairs": ["draw_pairs"],
        "evaluate.bootstrap": ["Interval", "bootstrap", "bootstrap_difference"],
        "evaluate.calibration": ["Calibration", "calibrate"],
        "evaluate.roc": ["Roc", "fnr_at_fpr", "roc"],
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
            "ModelFileError",
            "SequentialMatcher",
            "load",
            "load_pretrained",
        ],
        "search": ["HammingIndex", "IndexFileError", "match_codes"],
        "datasets": ["load_scene", "load_views"],
        "vision": ["HashedFeatures", "HashedSIFT"],
    },
)
__all__ = ["__version__", *_names]

if _asked := _os.environ.get("KDIFFHASH_CPU"):  # otherwise the core is loaded on first use
    from ._util.cpu import warn_if_lower as _warn_if_lower

    _warn_if_lower(_asked)
