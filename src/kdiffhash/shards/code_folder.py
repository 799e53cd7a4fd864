"""A folder with one file of codes per shard, and a record of the model that produced them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._util.files import open_npy, replacing
from ..codes import n_bytes
from ..hashers.fingerprint import fingerprint, is_same_model
from .shard import LABEL_FILES, Shard, Shards

if TYPE_CHECKING:  # reading codes does not need scikit-learn
    from ..hashers import BaseHasher

CHUNK = 24_000  # rows encoded at a time; a multiple of all tile heights
_RECORD = "codes.json"


def write_codes(
    hasher: BaseHasher,
    chunks: Iterable[Any],
    n_rows: int,
    out: Path,
    where: str,
    advance: Callable[[int], None] = lambda _: None,
) -> None:
    """Encode chunks of rows into an .npy file, which is created atomically.

    `where` names the source in error messages; `advance` is called with the number of rows encoded
    since the last call.
    """
    header = {"descr": "|u1", "fortran_order": False, "shape": (n_rows, n_bytes(hasher.n_bits_))}
    done = 0
    with replacing(out) as temporary, temporary.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for chunk in chunks:
            try:
                file.write(hasher.transform(chunk).data)
            except ValueError as error:
                name = f"{where} (counting from row {done})" if done else where
                raise ValueError(f"{name}: {error}") from error
            done += len(chunk)
            advance(len(chunk))
        if done != n_rows:
            raise ValueError(
                f"{where} changed while it was read: {n_rows} rows at first, then {done}; "
                "encode it again"
            )


def write_shard(hasher: BaseHasher, shard: Shard, out: Path) -> int:
    """Encode one shard and return its number of rows."""
    write_codes(hasher, shard.chunks(CHUNK), len(shard), out, str(shard.path))
    return len(shard)


def shards_to_write(hasher: BaseHasher, rows: Shards, folder: Path) -> list[tuple[Shard, Path]]:
    """Return the shards without up-to-date codes in the folder, and the files to write.

    Codes are up to date if the file of the same name has as many rows and is not older. The folder
    is created if necessary, and refused if it has codes of another model.
    """
    targets = [folder / f"{file.path.stem}.npy" for file in rows.files]
    uses = Counter(targets)
    for file, target in zip(rows.files, targets):
        if uses[target] > 1:
            raise ValueError(
                f"the codes of several shards would go to {target.name}; rename one of the shards"
            )
        if target.name.endswith(LABEL_FILES):
            raise ValueError(
                f"{file.path}: {target.name} is reserved for labels and groups; rename the shard"
            )
        if target.resolve() == file.path.resolve():
            raise ValueError(
                f"{folder} holds the shards themselves; write the codes to another folder"
            )
    folder.mkdir(exist_ok=True)
    for other in sorted(set(folder.glob("*.npy")) - set(targets)):
        raise ValueError(f"{other} has no corresponding shard and would shift the ids; remove it")
    path = folder / _RECORD
    known = read_record(folder)
    is_same = known.get("bits") == hasher.n_bits_ and is_same_model(hasher, known.get("model", ""))
    if path.exists() and not is_same:
        raise ValueError(
            f"{folder} has codes of another model or length; "
            "write to another folder, or remove this one"
        )
    if not path.exists():
        if any(target.exists() for target in targets):
            raise ValueError(
                f"{folder} has files of the same names but no {_RECORD}; write to another folder"
            )
        with replacing(path) as temporary:
            record = {"model": fingerprint(hasher), "bits": hasher.n_bits_}
            temporary.write_text(json.dumps(record))
    return [
        (file, target) for file, target in zip(rows.files, targets) if not _is_done(file, target)
    ]


def read_record(folder: Path) -> dict[str, Any]:
    """Return the record of a folder: `model`, a fingerprint, and `bits`; empty if there is none."""
    path = folder / _RECORD
    try:
        found = json.loads(path.read_text()) if path.is_file() else {}
    except (ValueError, RecursionError):
        found = {}
    return found if isinstance(found, dict) else {}


def _is_done(file: Shard, target: Path) -> bool:
    """Return whether the codes of a shard are complete and not older than the shard."""
    if not target.exists() or target.stat().st_mtime_ns < file.path.stat().st_mtime_ns:
        return False
    try:
        return len(open_npy(target)) == len(file)
    except (ValueError, TypeError):  # incomplete
        return False
