"""Reading descriptors, labels and pairs: a file of rows, a folder of such files, or a scene."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.files import open_npy
from ..datasets import Scene, find_scene, load_scene
from ..learn.pairs import Pairs, Similar, check_pairs, draw_pairs
from ..shards import Shards, is_shards, open_shards
from ..shards.numpy_files import read_npz
from ..shards.shard import number_consecutively

Array = NDArray[Any]


@dataclass(frozen=True)
class Data:
    """Rows, and what is known of them."""

    rows: Array | Shards
    labels: Array | None = None
    groups: Array | None = None
    pairs: Array | None = None
    similar: Array | None = None
    scene: Scene | None = None

    def need_labels(self, what: str) -> Array:
        """The labels, or an error that says where to give them."""
        if self.labels is None:
            raise ValueError(
                f"{what} needs the id of the object each row shows: give --labels FILE.npy, files "
                "with arrays or columns X and y (or X, pairs and similar), NAME.labels.npy beside "
                "NAME.npy, or a scene folder"
            )
        return self.labels


def is_scene(path: Path) -> bool:
    """Whether an input is a scene: a folder with `info.txt`, or the name of one in SCENES."""
    if not path.is_dir():
        return not path.is_file() and not path.suffix
    if (path / "info.txt").exists():
        return True
    if is_shards(path):
        return False
    try:
        find_scene(path)
    except FileNotFoundError:
        raise ValueError(
            f"{path} has neither info.txt, as a scene has, nor files of rows; subfolders are not "
            "looked into"
        ) from None
    return True


def shards_of(paths: list[Path], descriptor: str) -> Shards:
    """Inputs as the files that their rows lie in."""
    files = []
    for path in paths:
        if is_scene(path):
            scene = load_scene(path, descriptor)
            _ = scene.descriptors  # says what is wrong with them
            path = scene.path / f"{descriptor}.npy"
        files.append(path)
    return Shards(tuple(shard for file in files for shard in open_shards(file.absolute()).files))


def read_data(path: Path, labels: Path | None = None, descriptor: str = "sift") -> Data:
    """Open one input; rows are read when they are used."""
    if is_scene(path):
        scene = load_scene(path, descriptor)
        data = Data(scene.descriptors, labels=scene.points, groups=scene.photos, scene=scene)
    else:
        rows = open_shards(path)
        data = Data(rows, labels=rows.labels() if labels is None else None, groups=rows.groups())
        if path.suffix == ".npz":
            explicit = read_npz(path, ("pairs", "similar"))
            data = replace(data, pairs=explicit.get("pairs"), similar=explicit.get("similar"))
    if labels is not None:
        data = replace(data, labels=open_npy(labels), scene=None)
    if data.labels is not None and data.labels.shape != (len(data.rows),):
        raise ValueError(
            f"{path} has {len(data.rows)} rows, but labels of shape {data.labels.shape}; one for "
            "each row is wanted"
        )
    return data


def read_all(paths: list[Path], labels: Path | None, descriptor: str) -> Data:
    """Open inputs together; the ids of different inputs are different objects."""
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
    groups_of = [part.groups for part in parts if part.groups is not None]
    return Data(
        shards_of(paths, descriptor),
        labels=number_consecutively(labels_of),
        groups=number_consecutively(groups_of) if len(groups_of) == len(parts) else None,
    )


def pairs_of(
    data: Data,
    n_positives: int,
    n_negatives: int,
    across_groups: bool,
    random_state: int | np.random.Generator,
) -> tuple[Pairs, Similar]:
    """Explicit pairs if the input has them, else pairs drawn from its labels."""
    if data.pairs is not None:
        if across_groups:
            raise ValueError("--across-groups draws pairs, but the input has pairs of its own")
        if data.similar is None:
            raise ValueError("the input has pairs, but no array `similar` that says which match")
        return check_pairs(data.pairs, data.similar, len(data.rows))
    if across_groups and data.groups is None:
        raise ValueError("--across-groups needs groups (photos), and the input has none")
    return draw_pairs(
        data.need_labels("drawing pairs"),
        n_positives,
        n_negatives,
        groups=data.groups if across_groups else None,
        random_state=random_state,
    )
