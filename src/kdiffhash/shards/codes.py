"""Codes of shards: a file of codes for each file of rows, in a folder that knows its model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..codes import n_bytes
from ..files import open_npy, replacing
from .shard import BESIDE, Shard, Shards

if TYPE_CHECKING:  # whoever reads codes only does not need scikit-learn
    from ..hashers import BaseHasher

BLOCK = 24_000  # rows that are encoded at once; a multiple of all tile heights
_RECORD = "codes.json"


def write_codes(
    hasher: BaseHasher,
    blocks: Iterable[Any],
    n_rows: int,
    out: Path,
    where: str,
    advance: Callable[[int], None] = lambda _: None,
) -> None:
    """Encode blocks of rows into an .npy file, which appears when it is whole.

    `where` names the rows in error messages; `advance` is told how many more are done.
    """
    header = {"descr": "|u1", "fortran_order": False, "shape": (n_rows, n_bytes(hasher.n_bits_))}
    done = 0
    with replacing(out) as temporary, temporary.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            try:
                file.write(hasher.transform(block).data)
            except ValueError as error:
                name = f"{where} (row numbers count from row {done})" if done else where
                raise ValueError(f"{name}: {error}") from error
            done += len(block)
            advance(len(block))
        if done != n_rows:
            raise ValueError(f"{where} changed while it was read: {n_rows} rows, then {done}")


def write_shard(hasher: BaseHasher, shard: Shard, out: Path) -> int:
    """Encode one shard; the number of its rows."""
    write_codes(hasher, shard.blocks(BLOCK), len(shard), out, str(shard.path))
    return len(shard)


def shards_to_write(hasher: BaseHasher, rows: Shards, folder: Path) -> list[tuple[Shard, Path]]:
    """Which shards have no codes in the folder yet, and the files their codes go to.

    A shard's codes are there if the file of the same name has as many rows and is no older. The
    folder is made if need be, and refused if it has codes of another model.
    """
    from ..hashers.stored import fingerprint, is_same_model

    targets = [folder / f"{file.path.stem}.npy" for file in rows.files]
    uses = Counter(targets)
    for file, target in zip(rows.files, targets):
        if uses[target] > 1:
            raise ValueError(f"several shards would have their codes in {target.name}; rename one")
        if target.name.endswith(BESIDE):
            raise ValueError(f"{file.path}: codes cannot be called {target.name}; rename the shard")
        if target.resolve() == file.path.resolve():
            raise ValueError(f"{folder} holds the rows; give the codes a folder of their own")
    folder.mkdir(exist_ok=True)
    for other in sorted(set(folder.glob("*.npy")) - set(targets)):
        raise ValueError(f"{other} belongs to none of the shards, and would shift ids; remove it")
    path = folder / _RECORD
    known = read_record(folder)
    is_same = known.get("bits") == hasher.n_bits_ and is_same_model(hasher, known.get("model", ""))
    if path.exists() and not is_same:
        raise ValueError(
            f"{folder} has codes of another model or length; choose another folder, or remove it"
        )
    if not path.exists():
        if any(target.exists() for target in targets):
            raise ValueError(f"{folder} has files of these names that are not known to be codes")
        with replacing(path) as temporary:
            record = {"model": fingerprint(hasher), "bits": hasher.n_bits_}
            temporary.write_text(json.dumps(record))
    return [
        (file, target) for file, target in zip(rows.files, targets) if not _is_done(file, target)
    ]


def read_record(folder: Path) -> dict[str, Any]:
    """What a folder tells of its codes: `model`, a fingerprint, and `bits`; of a file, nothing."""
    path = folder / _RECORD
    try:
        found = json.loads(path.read_text()) if path.is_file() else {}
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}


def _is_done(file: Shard, target: Path) -> bool:
    if not target.exists() or target.stat().st_mtime_ns < file.path.stat().st_mtime_ns:
        return False
    try:
        return len(open_npy(target)) == len(file)
    except (ValueError, TypeError):  # not whole
        return False
