"""The estimators, one family a file."""

from .base import BaseHasher, ConstantBitWarning
from .baselines import ITQHash, RandomHyperplaneHash
from .boosted import BoostedHash
from .kernel import PAPER_SETTING, KernelDiffHash, KernelLDAHash
from .linear import DiffHash, LDAHash

__all__ = [
    "PAPER_SETTING",
    "BaseHasher",
    "BoostedHash",
    "ConstantBitWarning",
    "DiffHash",
    "ITQHash",
    "KernelDiffHash",
    "KernelLDAHash",
    "LDAHash",
    "RandomHyperplaneHash",
]
