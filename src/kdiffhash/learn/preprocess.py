"""What is done to each row before anything is learned from it.

A model carries its `preprocess`, so that nobody encodes the wrong input:

- None: the values as they are;
- ``"unit"``: each row scaled to Euclidean length 1;
- ``"hellinger"``: each row scaled to sum 1, then square roots (on SIFT this is RootSIFT).

Rows of zeros stay zeros.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .._core import squared_norms

Preprocess = Literal["unit", "hellinger"] | None


def check_preprocess(preprocess: object) -> None:
    """Refuse an unknown name."""
    if preprocess not in (None, "unit", "hellinger"):
        raise ValueError(f"preprocess must be None, 'unit' or 'hellinger', got {preprocess!r}")


def prepare_rows(
    rows: NDArray[Any],
    out: NDArray[np.float32],
    preprocess: Preprocess,
    shift: NDArray[np.float32] | None,
    first_row: int = 0,
) -> None:
    """Write preprocessed rows, minus `shift`, into `out`, shape (n, d).

    The shift is taken from float64 and large integers before they are rounded, so that a large
    common offset costs no precision. `first_row` is the number of the first row in error messages.
    """
    exact = rows.dtype.itemsize >= 4 and rows.dtype != np.float32
    if preprocess is None and shift is not None and exact:
        np.subtract(rows, shift, out=out, casting="same_kind")
        shift = None
    else:
        with np.errstate(over="ignore"):
            out[...] = rows
    if rows.dtype.kind == "f" and not np.isfinite(out).all():
        bad = int(np.flatnonzero(~np.isfinite(out).all(axis=1))[0])
        what = "NaN" if np.isnan(rows[bad]).any() else "infinity or a value too large for float32"
        raise ValueError(
            f"Input X contains {what} in row {first_row + bad}; drop or repair such rows"
        )
    if preprocess == "unit":
        _divide(out, np.abs(out).max(axis=1))  # squares of what is left stay in range
        squares = np.empty(len(out), np.float32)
        squared_norms(np.ascontiguousarray(out), out.shape[1], len(out), squares)
        _divide(out, np.sqrt(squares))
    elif preprocess == "hellinger":
        if out.size and out.min() < 0:
            bad = int(np.flatnonzero((out < 0).any(axis=1))[0])
            raise ValueError(
                f"Negative values in data: preprocess='hellinger' takes none, but row "
                f"{first_row + bad} has one; use 'unit' or None"
            )
        _divide(out, out.sum(axis=1))
        np.sqrt(out, out=out)
    if shift is not None:
        out -= shift


def preprocess_rows(rows: NDArray[Any], preprocess: Preprocess) -> NDArray[np.float32]:
    """Preprocessed copy of all rows, shape (n, d)."""
    out = np.empty(rows.shape, np.float32)
    prepare_rows(rows, out, preprocess, None)
    return out


def _divide(rows: NDArray[np.float32], by: NDArray[np.float32]) -> None:
    rows /= np.where(by > 0, by, 1).astype(np.float32)[:, None]
