"""Codes from files, and what was found for them to files or to the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def code_width(path: Path) -> int:
    """Bytes of the codes in a file or folder."""
    from ..shards import open_shards

    return open_shards(path).shape[1]


def code_count(path: Path) -> int:
    """Number of codes in a file or folder."""
    from ..shards import open_shards

    return len(open_shards(path))


def code_blocks(path: Path, block: int, what: str) -> Iterator[Any]:
    """Codes from a file or folder, block by block, with a progress bar."""
    from .._util.progress import progress
    from ..shards import open_shards

    codes = open_shards(path)
    with progress(len(codes), what) as advance:
        for some in codes.blocks(block):
            yield some
            advance(len(some))


def bits_and_model(paths: list[Path], model: Path | None, bits: int | None) -> tuple[int, Any]:
    """Length and model of codes, from the model's file or as their folders tell; None if neither.

    A model that makes longer codes is shortened. Codes of different models are refused.
    """
    from ..codes import n_bytes
    from ..search.checks import check_model
    from ..shards.code_folder import read_record

    made_by: Any = None
    if model is not None:  # without one, scikit-learn is not needed
        from .. import BaseHasher

        made_by = BaseHasher.load(model)
    if bits is None:
        width, known = code_width(paths[0]), read_record(paths[0]).get("bits", 0)
        known = known if made_by is None else made_by.n_bits_
        bits = known if n_bytes(known) == width else 8 * width
    if made_by is not None and bits < made_by.n_bits_:
        made_by = made_by.truncate(bits)
    for path in paths:
        stored = read_record(path).get("model")
        check_model(stored, made_by, path)
        made_by = stored if made_by is None else made_by
    return bits, made_by


def refuse_other_model(store: Any, where: Any, paths: list[Path], model: Path | None) -> None:
    """Refuse codes, or queries, that are known to be of another model than those of a store."""
    from ..search.checks import check_model

    check_model(store.model, bits_and_model(paths, model, store.n_bits)[1], where)


def check_out(out: Path | None, kinds: tuple[str, ...] = (".npz", ".npy")) -> None:
    """Refuse a file that could not be written at the end."""
    from .model_commands import check_writable

    if out is not None:
        if out.suffix not in kinds:
            raise ValueError(f"--out must end in {' or '.join(kinds)}: {out}")
        check_writable(out)


def tell(
    summary: dict[str, Any],
    arrays: dict[str, Any],
    row: Callable[[int], dict[str, Any]],
    n_rows: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Write what was found (.npz; the first array alone as .npy), or print it row by row."""
    import numpy as np

    from .._util.files import replacing
    from .output import show

    if out is None:
        shown = n_rows if as_json else min(n_rows, 20)
        if shown < n_rows:
            summary = {**summary, "shown": f"the first {shown}; --out FILE.npz writes all"}
        rows = [row(i) for i in range(shown)]
        if not as_json:
            rows = [{name: _listed(value) for name, value in row.items()} for row in rows]
        show({**summary, "rows": rows}, as_json)
        return
    with replacing(out) as temporary, temporary.open("wb") as file:
        if out.suffix == ".npz":
            np.savez(file, **arrays)
        else:
            np.save(file, next(iter(arrays.values())))
    show({**summary, "written": str(out)}, as_json)


def tell_nearest(
    summary: dict[str, Any],
    found: list[tuple[Any, Any]],
    queries: Path,
    out: Path | None,
    as_json: bool,
) -> None:
    """Write or print distances and ids that were found block by block."""
    import numpy as np

    if not found:
        raise ValueError(f"{queries} holds no codes")
    arrays = {
        "ids": np.concatenate([ids for _, ids in found]),
        "distances": np.concatenate([distances for distances, _ in found]),
    }

    def row(q: int) -> dict[str, Any]:
        return {"query": q, **{name: array[q].tolist() for name, array in arrays.items()}}

    n = len(arrays["ids"])
    tell({**summary, "queries": n}, arrays, row, n, out, as_json)


def _listed(value: Any) -> Any:
    """Lists as a person reads them."""
    if not isinstance(value, list):
        return value
    return ", ".join(f"{item:.4g}" if isinstance(item, float) else str(item) for item in value)
