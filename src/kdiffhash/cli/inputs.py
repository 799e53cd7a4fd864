"""Reading descriptors, labels and pairs: `.npy`, `.npz` or a scene folder."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..datasets import Scene, load_scene
from ..files import open_npy
from ..pairs import Pairs, Similar, draw_pairs

Array = NDArray[Any]
_ROWS = ("X", "descriptors", "embeddings", "codes", "x", "arr_0")
_LABELS = ("y", "labels", "ids")


@dataclass(frozen=True)
class Data:
    """Rows, and what is known of them."""

    rows: Array
    labels: Array | None = None
    groups: Array | None = None
    pairs: Array | None = None
    similar: Array | None = None
    scene: Scene | None = None

    def need_labels(self, what: str) -> Array:
        """The labels, or an error that says where to give them."""
        if self.labels is None:
            raise ValueError(
                f"{what} needs the id of the thing each row shows: give --labels FILE.npy, an .npz "
                "with arrays X and y (or X, pairs and similar), or a scene folder"
            )
        return self.labels


def read_data(path: Path, labels: Path | None = None, descriptor: str = "sift") -> Data:
    """Open one input; `.npy` and scenes are memory-mapped."""
    if path.suffix == ".npy":
        data = Data(open_npy(path))
    elif path.suffix == ".npz":
        arrays = _read_npz(path)
        data = Data(
            _pick(arrays, _ROWS, path),
            labels=_find(arrays, _LABELS),
            groups=arrays.get("groups"),
            pairs=arrays.get("pairs"),
            similar=arrays.get("similar"),
        )
    elif path.is_file():
        raise ValueError(f"{path}: rows are read from .npy, .npz or a scene folder")
    else:
        scene = load_scene(path, descriptor)
        data = Data(scene.descriptors, labels=scene.points, groups=scene.photos, scene=scene)
    if labels is not None:
        data = replace(data, labels=open_npy(labels), scene=None)
    _check_rows(data.rows.shape, path)
    for name, values in (("labels", data.labels), ("groups", data.groups)):
        if values is not None and values.shape != (len(data.rows),):
            raise ValueError(
                f"{path} has {len(data.rows)} rows, but {name} of shape {values.shape}; one for "
                "each row is wanted"
            )
    return data


def read_all(paths: list[Path], labels: Path | None, descriptor: str) -> Data:
    """Open inputs together; the ids of different inputs are different things."""
    if len(paths) == 1:
        return read_data(paths[0], labels, descriptor)
    if labels is not None:
        raise ValueError("--labels goes with one input")
    parts = [read_data(path, descriptor=descriptor) for path in paths]
    if any(part.pairs is not None for part in parts):
        raise ValueError("explicit pairs go with one input")
    if len({part.rows.shape[1:] for part in parts}) > 1:
        widths = ", ".join(f"{p.name}: {part.rows.shape[1:]}" for p, part in zip(paths, parts))
        raise ValueError(f"inputs have rows of different widths ({widths})")
    labels_of = [part.need_labels("training") for part in parts]
    groups_of = [part.groups for part in parts]
    return Data(
        np.concatenate([part.rows for part in parts]),
        labels=_renumber(labels_of),
        groups=None if any(g is None for g in groups_of) else _renumber(groups_of),  # type: ignore[arg-type]
    )


def iter_rows(path: Path, block: int, descriptor: str) -> tuple[int, Iterator[Array]]:
    """Number of rows, and the rows in blocks, without reading a file as a whole."""
    if path.suffix == ".npz":
        return _stream_npz(path, block)
    rows = read_data(path, descriptor=descriptor).rows
    return len(rows), (np.asarray(rows[i : i + block]) for i in range(0, len(rows), block))


def pairs_of(
    data: Data, n_positives: int, n_negatives: int, across_groups: bool, seed: int
) -> tuple[Pairs, Similar]:
    """Explicit pairs if the input has them, else pairs drawn from its labels."""
    if data.pairs is not None:
        if across_groups:
            raise ValueError("--across-groups draws pairs, but the input has pairs of its own")
        if data.similar is None:
            raise ValueError("the input has pairs, but no array `similar` that says which match")
        from ..pairs import check_pairs

        return check_pairs(data.pairs, data.similar, len(data.rows))
    if across_groups and data.groups is None:
        raise ValueError("--across-groups needs groups (photos), and the input has none")
    return draw_pairs(
        data.need_labels("drawing pairs"),
        n_positives,
        n_negatives,
        groups=data.groups if across_groups else None,
        random_state=seed,
    )


def _read_npz(path: Path) -> dict[str, Array]:
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise ValueError("it holds a single array; name it .npy")
        with file:
            return dict(file)
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise ValueError(f"{path} is not a readable .npz file: {error}") from error


def _stream_npz(path: Path, block: int) -> tuple[int, Iterator[Array]]:
    """Read the rows of an .npz through its zip stream; only Fortran order must be read whole."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy"): name for name in archive.namelist()}
            member = names[next(name for name in _ROWS if name in names)]
            with archive.open(member) as stream:
                shape, fortran, dtype = _read_header(stream)
    except StopIteration:
        raise ValueError(
            f"{path} has none of the arrays {', '.join(_ROWS)}, only {', '.join(names)}"
        ) from None
    except (zipfile.BadZipFile, ValueError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a readable .npz file: {error}") from error
    _check_rows(shape, path)
    n_rows, width = shape

    def blocks() -> Iterator[Array]:
        if fortran:
            rows = _read_npz(path)[member.removesuffix(".npy")]
            yield from (rows[i : i + block] for i in range(0, n_rows, block))
            return
        with zipfile.ZipFile(path) as archive, archive.open(member) as stream:
            _read_header(stream)
            for start in range(0, n_rows, block):
                count = min(block, n_rows - start)
                wanted = count * width * dtype.itemsize
                try:
                    content = stream.read(wanted)
                except (zipfile.BadZipFile, zlib.error, EOFError) as error:
                    raise ValueError(f"{path} is damaged after row {start}: {error}") from error
                if len(content) < wanted:
                    raise ValueError(f"{path} is truncated after row {start}")
                yield np.frombuffer(content, dtype).reshape(count, width)

    return n_rows, blocks()


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in read:
        raise ValueError(f"unknown .npy version {version}")
    shape, fortran, dtype = read[version](stream)
    if dtype.hasobject:
        raise ValueError("arrays of Python objects are not read")
    return shape, fortran, dtype


def _check_rows(shape: tuple[int, ...], path: Path) -> None:
    if len(shape) != 2:
        raise ValueError(f"{path} must hold rows, shape (n, d), but has shape {shape}")


def _find(arrays: dict[str, Array], names: tuple[str, ...]) -> Array | None:
    return next((arrays[name] for name in names if name in arrays), None)


def _pick(arrays: dict[str, Array], names: tuple[str, ...], path: Path) -> Array:
    array = _find(arrays, names)
    if array is None:
        raise ValueError(f"{path} has none of the arrays {', '.join(names)}, only {list(arrays)}")
    return array


def _renumber(parts: list[Array]) -> NDArray[np.int64]:
    """Ids of several inputs as whole numbers that do not overlap."""
    out, start = [], 0
    for part in parts:
        ids = np.unique(part, return_inverse=True)[1]
        out.append(ids + start)
        start += int(ids.max(initial=-1)) + 1
    return np.concatenate(out).astype(np.int64)
