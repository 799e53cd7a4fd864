"""Record in a model file which labels it was trained on, to notice tests on the same data."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from ..hashers.model_file import read_model_file, write_model_file

_KEY = "trained_on"  # in the header; readers of models ignore it


def labels_fingerprint(labels: Any) -> str:
    """Return a fingerprint of the labels of a data set, 16 hexadecimal digits."""
    array = np.asarray(labels)
    content = array.astype(np.int64) if array.dtype.kind in "biu" else array.astype(str)
    digest = hashlib.sha256(f"{content.dtype.kind}{content.shape}".encode())
    digest.update(np.ascontiguousarray(content).tobytes())
    return digest.hexdigest()[:16]


def record_labels(path: Path, labels: list[Any]) -> None:
    """Add the fingerprints of the labels of all training sets to a model file."""
    header, arrays = read_model_file(path)
    header[_KEY] = {"labels": [labels_fingerprint(own) for own in labels]}
    write_model_file(path, header, arrays)


def was_trained_on(path: Path, labels: Any) -> bool:
    """Return whether a model file records that it was trained on a set with these labels."""
    header, _ = read_model_file(path)
    recorded = header.get(_KEY, {})
    known = recorded.get("labels", []) if isinstance(recorded, dict) else []
    return labels is not None and labels_fingerprint(labels) in known
