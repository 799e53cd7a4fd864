"""Read rows, labels and pairs from a file, a folder of files, or a scene."""

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
    """Rows with their labels, groups or pairs, as far as the input has them.

    `confident` is False for rows whose label is uncertain: pairs are drawn from the others.
    """

    rows: Array | Shards
    labels: Array | None = None
    groups: Array | None = None
    pairs: Array | None = None
    similar: Array | None = None
    scene: Scene | None = None
    confident: Array | None = None

    def need_labels(self, purpose: str) -> Array:
        """Return the labels, or raise an error that says how to provide them."""
        if self.labels is None:
            raise ValueError(
                f"{purpose} needs a label for each row: give --labels FILE.npy, a file with arrays "
                "or columns X and y (or X, pairs and similar), a file NAME.labels.npy next to "
                "NAME.npy, or a scene"
            )
        return self.labels


def is_scene(path: Path) -> bool:
    """Return whether an input is a scene: a folder with `info.txt`, or the name of a scene."""
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
            f"{path} is neither a scene (it has no info.txt) nor a folder of files of rows; "
            "subfolders are not searched"
        ) from None
    return True


def paths_of(paths: list[Path]) -> list[Path]:
    """Return the paths of all inputs, with the folders of scenes that are given by name."""
    return [find_scene(path) if is_scene(path) else path for path in paths]


def shards_of(paths: list[Path], descriptor: str) -> Shards:
    """Return the files that hold the rows of all inputs."""
    files = []
    for path in paths:
        if is_scene(path):
            scene = load_scene(path, descriptor)
            _ = scene.descriptors  # raises if they are missing or damaged
            path = scene.path / f"{descriptor}.npy"
        files.append(path)
    return Shards(tuple(shard for file in files for shard in open_shards(file.absolute()).files))


def read_data(path: Path, labels: Path | None = None, descriptor: str = "sift") -> Data:
    """Open one input; its rows are read when they are used."""
    if is_scene(path):
        scene = load_scene(path, descriptor)
        labels_of_scene = _certain_labels(scene.points, scene.confident)
        data = Data(
            scene.descriptors,
            labels_of_scene,
            groups=scene.photos,
            scene=scene,
            confident=scene.confident,
        )
    else:
        rows = open_shards(path)
        data = Data(rows, labels=rows.labels() if labels is None else None, groups=rows.groups())
        if path.suffix == ".npz":
            explicit = read_npz(path, ("pairs", "similar"))
            data = replace(data, pairs=explicit.get("pairs"), similar=explicit.get("similar"))
    if labels is not None:
        data = replace(data, labels=open_npy(labels), scene=None, confident=None)
    if data.labels is not None and data.labels.shape != (len(data.rows),):
        raise ValueError(
            f"{path} has {len(data.rows)} rows, but labels of shape {data.labels.shape}; give one "
            "label per row"
        )
    return data


def _certain_labels(
    points: NDArray[np.int64], confident: NDArray[np.bool_] | None
) -> NDArray[np.int64]:
    """Give each patch whose point is uncertain a label of its own, so that nothing shares it."""
    if confident is None:
        return points
    return np.where(confident, points, points.max() + 1 + np.arange(len(points)))


def read_all(paths: list[Path], labels: Path | None, descriptor: str) -> Data:
    """Open several inputs as one; equal labels in different inputs are different objects."""
    if len(paths) == 1:
        return read_data(paths[0], labels, descriptor)
    if labels is not None:
        raise ValueError(f"--labels can be used with one input only, got {len(paths)}")
    inputs = [read_data(path, descriptor=descriptor) for path in paths]
    if any(data.pairs is not None for data in inputs):
        raise ValueError(
            f"explicit pairs can be used with one input only, got {len(paths)} inputs; train on "
            "the file with pairs alone"
        )
    if len({data.rows.shape[1] for data in inputs}) > 1:
        widths = ", ".join(f"{p.name}: {data.rows.shape[1]}" for p, data in zip(paths, inputs))
        raise ValueError(
            f"the inputs have different numbers of columns ({widths}); they must be the same"
        )
    labels_of = [data.need_labels("training") for data in inputs]
    groups_of = [data.groups for data in inputs if data.groups is not None]
    confident = None
    if any(data.confident is not None for data in inputs):
        confident = np.concatenate(
            [
                np.ones(len(data.rows), bool) if data.confident is None else data.confident
                for data in inputs
            ]
        )
    return Data(
        shards_of(paths, descriptor),
        confident=confident,
        labels=number_consecutively(labels_of),
        groups=number_consecutively(groups_of) if len(groups_of) == len(inputs) else None,
    )


def pairs_of(
    data: Data,
    n_positives: int,
    n_negatives: int,
    across_groups: bool,
    random_state: int | np.random.Generator,
) -> tuple[Pairs, Similar]:
    """Return the explicit pairs of the input, or draw pairs from its labels if it has none."""
    if data.pairs is not None:
        if across_groups:
            raise ValueError(
                "--across-groups applies to drawn pairs, but the input has explicit pairs; leave "
                "the option out"
            )
        if data.similar is None:
            raise ValueError(
                "the input has pairs but no array `similar`; add it, True for positive pairs"
            )
        return check_pairs(data.pairs, data.similar, len(data.rows))
    if across_groups and data.groups is None:
        raise ValueError(
            "--across-groups needs groups (photos), but the input has none; add them or leave the "
            "option out"
        )
    labels, groups = data.need_labels("drawing pairs"), data.groups if across_groups else None
    if data.confident is None:
        return draw_pairs(
            labels, n_positives, n_negatives, groups=groups, random_state=random_state
        )
    usable = np.flatnonzero(data.confident)
    pairs, similar = draw_pairs(
        labels[usable],
        n_positives,
        n_negatives,
        groups=None if groups is None else groups[usable],
        random_state=random_state,
    )
    return usable[pairs], similar
