"""Exact search by Hamming distance: in memory, on disk, and between two sets of codes."""

from .code_store import CodeStore as CodeStore
from .code_store import Upserted as Upserted
from .groups import Groups as Groups
from .index import HammingIndex as HammingIndex
from .index_error import IndexFileError as IndexFileError
from .matching import Matches as Matches
from .matching import match_codes as match_codes
