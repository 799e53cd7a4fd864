"""The estimators, one family per file."""

from .base import BaseHasher, ConstantBitWarning
from .boosted import BoostedHash
from .cross import CrossDiffHash
from .itq import ITQHash
from .kernel import PAPER_SETTING, KernelDiffHash, KernelLDAHash
from .linear import DiffHash, LDAHash

__all__ = [
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
]
