"""The pairs of images to match: all of them, or those listed in a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import combinations

from .._util.text import read_text


def image_pairs(
    names: Sequence[str], listed: str | os.PathLike[str] | None = None
) -> list[tuple[str, str]]:
    """Return all pairs of names, or those listed in a file with two names per line.

    The file has the format of COLMAP's match lists and of hloc's pairs files. Empty lines, lines
    that start with # and repeated pairs (in either order) are skipped.
    """
    if listed is None:
        return list(combinations(names, 2))
    known = set(names)
    pairs: dict[frozenset[str], tuple[str, str]] = {}
    for number, line in enumerate(read_text(listed).splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{os.fspath(listed)}, line {number}"
        if len(words) != 2:
            raise ValueError(f"{where}: expected two image names, got {line.strip()[:80]!r}")
        a, b = words
        for name in words:
            if name not in known:
                raise ValueError(f"{where}: no image with descriptors is named {name!r}")
        if a == b:
            raise ValueError(f"{where}: {a} is paired with itself")
        pairs.setdefault(frozenset(words), (a, b))
    if not pairs:
        raise ValueError(f"{os.fspath(listed)} lists no pairs")
    return list(pairs.values())
