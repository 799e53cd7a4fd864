"""Preprocessing of rows, before learning and before encoding.

A model stores its `preprocess`, so that rows to be encoded are treated like the training rows:

- None: no preprocessing;
- ``"unit"``: each row is scaled to Euclidean length 1;
- ``"hellinger"``: each row is scaled to sum 1, followed by square roots (turns SIFT into RootSIFT).

Rows of zeros stay zero.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .._core import squared_norms

Preprocess = Literal["unit", "hellinger"] | None


def check_preprocess(preprocess: object) -> None:
    """Raise ValueError for an unknown kind of preprocessing."""
    if preprocess not in (None, "unit", "hellinger"):
        raise ValueError(f"preprocess must be None, 'unit' or 'hellinger', got {preprocess!r}")


def prepare_rows(
    rows: NDArray[Any],
    out: NDArray[np.float32],
    preprocess: Preprocess,
    shift: NDArray[np.float32] | None,
    first_row: int = 0,
) -> None:
    """Write preprocessed rows, minus `shift`, to `out`.

    Without preprocessing, the shift is subtracted from float64 and large integers before they are
    rounded to float32, so that a large common offset costs no precision.

    Parameters
    ----------
    rows : array of shape (n, d)
    out : float32 array of shape (n, d)
    preprocess : {None, "unit", "hellinger"}
    shift : float32 array of shape (d,) or None
    first_row : int, default=0
        Number of the first row, for error messages.

    Raises
    ------
    ValueError
        If a row has NaN, infinity, or a value too large for float32; with ``"hellinger"`` also if
        a row has a negative value.
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
            f"Input X contains {what} in row {first_row + bad}; remove or repair such rows"
        )
    if preprocess == "unit":
        _divide(out, np.abs(out).max(axis=1))  # so that squares stay in range
        squares = np.empty(len(out), np.float32)
        squared_norms(np.ascontiguousarray(out), out.shape[1], len(out), squares)
        _divide(out, np.sqrt(squares))
    elif preprocess == "hellinger":
        if out.size and out.min() < 0:
            bad = int(np.flatnonzero((out < 0).any(axis=1))[0])
            raise ValueError(
                f"Negative values in data: preprocess='hellinger' accepts none, but row "
                f"{first_row + bad} has one; use 'unit' or None"
            )
        _divide(out, out.sum(axis=1))
        np.sqrt(out, out=out)
    if shift is not None:
        out -= shift


def preprocess_rows(rows: NDArray[Any], preprocess: Preprocess) -> NDArray[np.float32]:
    """Return a preprocessed float32 copy of all rows, shape (n, d)."""
    out = np.empty(rows.shape, np.float32)
    prepare_rows(rows, out, preprocess, None)
    return out


def _divide(rows: NDArray[np.float32], by: NDArray[np.float32]) -> None:
    """Divide each row in place by its number, unless that is 0."""
    rows /= np.where(by > 0, by, 1).astype(np.float32)[:, None]
