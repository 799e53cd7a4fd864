"""Read codes from files, and write search results to a file or the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .guard import Inputs, check_writable


def code_width(path: Path) -> int:
    """Return the number of bytes per code in a file or folder."""
    from ..shards import open_shards

    return open_shards(path).shape[1]


def code_count(path: Path) -> int:
    """Return the number of codes in a file or folder."""
    from ..shards import open_shards

    return len(open_shards(path))


def code_chunks(path: Path, n_codes: int, title: str) -> Iterator[Any]:
    """Yield the codes in a file or folder, `n_codes` at a time, with a progress bar."""
    from .._util.progress import progress
    from ..shards import open_shards

    codes = open_shards(path)
    with progress(len(codes), title) as advance:
        for chunk in codes.chunks(n_codes):
            yield chunk
            advance(len(chunk))


def bits_and_model(paths: list[Path], model: Path | None, bits: int | None) -> tuple[int, Any]:
    """Return the length of the codes, and their model or its fingerprint (None if unknown).

    Both come from `model` and `bits` if given, otherwise from the records in the folders of codes.
    A model that produces longer codes is truncated. Codes of different models are refused.
    """
    from ..codes import n_bytes
    from ..search.checks import check_model
    from ..shards.code_folder import read_record

    made_by: Any = None
    if model is not None:  # loading a model imports scikit-learn
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
    """Raise if codes or queries are known to come from another model than those in a store."""
    from ..search.checks import check_model

    check_model(store.model, bits_and_model(paths, model, store.n_bits)[1], where)


def check_out(
    out: Path | None, *inputs: Inputs, suffixes: tuple[str, ...] = (".npz", ".npy")
) -> None:
    """Raise before the work starts if the results could not be written or replace an input."""
    if out is not None:
        if out.suffix not in suffixes:
            raise ValueError(f"--out must end in {' or '.join(suffixes)}, got {out}")
        check_writable(out, *inputs)


def output_results(
    summary: dict[str, Any],
    arrays: dict[str, Any],
    row: Callable[[int], dict[str, Any]],
    n_rows: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Write results to `out` (.npz, or .npy for the first array alone), or print them by row."""
    import numpy as np

    from .._util.files import replacing
    from .output import show

    if out is None:
        shown = n_rows if as_json else min(n_rows, 20)
        if shown < n_rows:
            summary = {**summary, "shown": f"the first {shown} rows; --out FILE.npz writes all"}
        rows = [row(i) for i in range(shown)]
        if not as_json:
            rows = [{name: _join_list(value) for name, value in row.items()} for row in rows]
        show({**summary, "rows": rows}, as_json)
        return
    arrays = {name: storable(array) for name, array in arrays.items()}
    with replacing(out) as temporary, temporary.open("wb") as file:
        if out.suffix == ".npz":
            np.savez(file, **arrays)
        else:
            np.save(file, next(iter(arrays.values())))
    show({**summary, "written": str(out)}, as_json)


def storable(array: Any) -> Any:
    """Return string ids as text of fixed width, which NumPy reads without unpickling."""
    return array.astype(str) if array.dtype == object else array


def output_neighbours(
    summary: dict[str, Any],
    batches: list[tuple[Any, Any]],
    queries: Path,
    out: Path | None,
    as_json: bool,
) -> None:
    """Write or print the distances and ids of a search, given one pair of arrays per batch."""
    import numpy as np

    if not batches:
        raise ValueError(f"{queries} contains no codes to search for")
    arrays = {
        "ids": np.concatenate([ids for _, ids in batches]),
        "distances": np.concatenate([distances for distances, _ in batches]),
    }

    def row(q: int) -> dict[str, Any]:
        return {"query": q, **{name: array[q].tolist() for name, array in arrays.items()}}

    n = len(arrays["ids"])
    output_results({**summary, "queries": n}, arrays, row, n, out, as_json)


def _join_list(value: Any) -> Any:
    """Return a list as text separated by commas, and any other value unchanged."""
    if not isinstance(value, list):
        return value
    return ", ".join(f"{item:.4g}" if isinstance(item, float) else str(item) for item in value)
