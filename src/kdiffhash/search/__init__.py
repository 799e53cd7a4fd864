"""Exact search by Hamming distance: in memory, on disk, and between two sets."""

from .index import HammingIndex as HammingIndex
from .index_format import IndexFileError as IndexFileError
from .match import Matches as Matches
from .match import match_codes as match_codes
from .store import CodeStore as CodeStore
