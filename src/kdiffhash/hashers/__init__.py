"""The estimators, one family per module, and their model files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._util.lazy import lazy_names

if TYPE_CHECKING:
    from .base import BaseHasher as BaseHasher
    from .base import ConstantBitWarning as ConstantBitWarning
    from .boosted import BoostedHash as BoostedHash
    from .cross import CrossDiffHash as CrossDiffHash
    from .itq import ITQHash as ITQHash
    from .kernel import PAPER_SETTING as PAPER_SETTING
    from .kernel import KernelDiffHash as KernelDiffHash
    from .kernel import KernelLDAHash as KernelLDAHash
    from .linear import DiffHash as DiffHash
    from .linear import LDAHash as LDAHash
    from .model_file import ModelFileError as ModelFileError
    from .model_file import load as load
    from .pretrained import load_pretrained as load_pretrained
    from .sequential_matcher import SequentialMatcher as SequentialMatcher

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "base": ["BaseHasher", "ConstantBitWarning"],
        "boosted": ["BoostedHash"],
        "cross": ["CrossDiffHash"],
        "itq": ["ITQHash"],
        "kernel": ["PAPER_SETTING", "KernelDiffHash", "KernelLDAHash"],
        "linear": ["DiffHash", "LDAHash"],
        "model_file": ["ModelFileError", "load"],
        "pretrained": ["load_pretrained"],
        "sequential_matcher": ["SequentialMatcher"],
    },
)
