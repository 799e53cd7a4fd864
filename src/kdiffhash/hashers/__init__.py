"""The estimators, one family a file."""

from .base import BaseHasher, ConstantBitWarning
from .baselines import ITQHash, RandomHyperplaneHash
from .boosted import BoostedHash
from .cross import CrossDiffHash
from .kernel import PAPER_SETTING, KernelDiffHash, KernelLDAHash
from .linear import DiffHash, LDAHash
from .peers import KSHHash, SDHHash

__all__ = [
    "PAPER_SETTING",
    "BaseHasher",
    "BoostedHash",
    "ConstantBitWarning",
    "CrossDiffHash",
    "DiffHash",
    "ITQHash",
    "KSHHash",
    "KernelDiffHash",
    "KernelLDAHash",
    "LDAHash",
    "RandomHyperplaneHash",
    "SDHHash",
]
