"""Files of rows (.npy, .npz, Parquet, HDF5), scenes and their archives: damaged and hostile."""

from __future__ import annotations

import functools
import io
import math
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from bounded import limit_memory
from common import Tally, attack, mutate, run_isolated

from kdiffhash.datasets import fetch_scene, load_scene
from kdiffhash.datasets.sheets import write_sheets
from kdiffhash.shards import open_shards

N, WIDTH = 90, 6
KINDS = ["npy", "npy-fortran", "npz", "npz-deflated", "parquet", "parquet-lists", "h5", "h5-gzip"]


def content(n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels that every file holds."""
    return np.random.default_rng(0).random((n, WIDTH)).astype(np.float32), np.arange(n) // 3


def write_rows(folder: Path, kind: str) -> Path:
    """Write rows and labels to a file of some kind."""
    import h5py
    import pyarrow as pa
    import pyarrow.parquet as pq

    X, y = content()
    path = folder / f"{kind}.{kind.partition('-')[0]}"
    if path.suffix == ".npy":
        np.save(path, np.asfortranarray(X) if "fortran" in kind else X)
        np.save(path.with_suffix(".labels.npy"), y)
    elif path.suffix == ".npz":
        (np.savez_compressed if "deflated" in kind else np.savez)(path, X=X, y=y)
    elif path.suffix == ".parquet":
        form = pa.list_(pa.float32()) if "lists" in kind else pa.list_(pa.float32(), WIDTH)
        table = pa.table({"y": y, "X": pa.array(list(X), form)})
        pq.write_table(table, path, row_group_size=40)
    else:
        options: dict[str, Any] = {"chunks": (16, WIDTH), "compression": "gzip"}
        with h5py.File(path, "w") as file:
            file.create_dataset("X", data=X, **(options if "gzip" in kind else {}))
            file["y"] = y
    return path


@functools.cache
def original(path: Path) -> bytes:
    """Content of an undamaged file."""
    return path.read_bytes()


def check_rows(case: tuple[Path, int]) -> bool:
    """A damaged file of rows is refused, or gives as many valid rows and labels as it says.

    Most formats have no checksum, so other values, or rows cut into other shapes, are no error.
    """
    limit_memory()
    path, seed = case
    damaged = path.with_name(f"damaged-{path.name}")
    damaged.write_bytes(mutate(original(path), np.random.default_rng(seed)))
    labels = path.with_suffix(".labels.npy")
    if labels.exists():
        shutil.copyfile(labels, damaged.with_suffix(".labels.npy"))
    shards = open_shards(damaged)
    n, width = shards.shape
    if n * width > 100 * N * WIDTH:
        return False
    chunks = list(shards.chunks(37))
    y = shards.labels()
    if y is not None and len(y) != n:
        return False
    if n == 0:
        return True
    whole = np.concatenate(chunks)
    finite = np.isfinite(whole).all(axis=1)
    chosen = np.flatnonzero(finite)[::5]
    same = np.array_equal(shards[chosen], whole[chosen])
    is_zip = path.suffix == ".npz"  # checksums: contents are unchanged, or the file is refused
    return (
        same and whole.shape == (n, width) and (not is_zip or np.array_equal(whole, content()[0]))
    )


@attack("files of rows: damaged bytes", 12_000)
def damaged_rows(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    """Damaged files of rows are refused or read in full."""
    paths = [write_rows(folder, kind) for kind in KINDS]
    run_isolated(check_rows, cases_of(rng, tries, paths), tally)


# -- hostile files ------------------------------------------------------------------------------

SIZES = [0, 1, 3, 10**3, 10**6, 10**9, 10**12, 2**31, 2**62, 2**63, 2**64, 10**30, -1]
TYPES = ["<f4", "<f8", "|u1", ">i8", "|O", "<U9", "|S0", "<U0", "|V8", "<c8", "<f2", "<M8[ns]", "x"]
HEADERS = [
    "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)",
    "((((((((((" * 900,
    "{'descr': [('a', '<f4'), ('b', '|O')], 'fortran_order': False, 'shape': (3,), }",
    "{'descr': ('<f4', (1000000,)), 'fortran_order': False, 'shape': (2, 3), }",
    "{'descr': '<f4', 'fortran_order': 3, 'shape': (3, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (3L, 4L), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': 'abc', }",
    "'''",
    "\x00\x01",
    "__import__('os').abort()",
]


def npy_bytes(rng: np.random.Generator) -> bytes:
    """Return an .npy file with a header that was made up."""
    if rng.random() < 0.5:
        shape = tuple(SIZES[i] for i in rng.integers(len(SIZES), size=int(rng.integers(1, 4))))
        order = bool(rng.random() < 0.3)
        kind = TYPES[int(rng.integers(len(TYPES)))]
        header = f"{{'descr': {kind!r}, 'fortran_order': {order}, 'shape': {shape}, }}"
    else:
        header = HEADERS[int(rng.integers(len(HEADERS)))]
    text = header.encode() + b"\n"
    version = bytes([int(rng.choice([1, 2, 3, 9])), 0])
    size = len(text).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + version + size + text + rng.bytes(int(rng.choice([0, 48, 1000])))


def hostile_npy(path: Path, rng: np.random.Generator) -> Path:
    path = path.with_suffix(".npy")
    path.write_bytes(npy_bytes(rng))
    return path


def hostile_npz(path: Path, rng: np.random.Generator) -> Path:
    """Write an archive of made-up arrays, zip bombs among them."""
    path = path.with_suffix(".npz")
    method = int(rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2]))
    with zipfile.ZipFile(path, "w", method) as archive:
        for name in ("X", "y", "X" if rng.random() < 0.1 else "groups"):
            data = npy_bytes(rng)
            if rng.random() < 0.2:  # header and zeros agree
                n = int(rng.choice([1, 1000, 2_000_000]))
                out = io.BytesIO()
                shape = (n,) if name != "X" else (n, 1)
                header = {"descr": "|u1", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(out, header)
                data = out.getvalue() + bytes(n)
            archive.writestr(f"{name}.npy", data)
    return path


def hostile_h5(path: Path, rng: np.random.Generator) -> Path:
    """Write datasets that are elsewhere, unwritten, empty, of odd types or odd shapes."""
    import h5py

    path = path.with_suffix(".h5")
    fifo = path.with_name("fifo")
    if not fifo.exists():
        os.mkfifo(fifo)
    X, y = content()
    with h5py.File(path, "w") as file:
        for name in ("X", "y") if rng.random() < 0.6 else ("a.jpg/descriptors", "b/c/descriptors"):
            how = int(rng.integers(14))
            shape = tuple(int(s) for s in rng.choice([0, 1, 7, 10**6, 10**12], size=2))
            if how == 0:
                file[name] = h5py.ExternalLink(str(fifo), "/X")
            elif how == 1:
                file[name] = h5py.SoftLink("/elsewhere")
            elif how == 2:
                file.create_dataset(name, (10, 1), "f8", external=[(str(fifo), 0, 80)])
            elif how == 3:
                layout = h5py.VirtualLayout((10, 2), "f4")
                layout[:] = h5py.VirtualSource(str(fifo), "X", (10, 2))
                file.create_virtual_dataset(name, layout)
            elif how == 4:
                file.create_dataset(
                    name, shape, "f4", chunks=tuple(max(1, min(s, 9)) for s in shape)
                )
            elif how == 5 and math.prod(shape) < 2**60:
                file.create_dataset(name, shape, "f4")
            elif how == 6:
                file[name] = h5py.Empty("f4")
            elif how == 7:
                file[name] = np.array([["a", "b"]], object)
            elif how == 8:
                file.create_dataset(name, (3,), h5py.vlen_dtype(np.int32))[0] = [1, 2]
            elif how == 9:
                file[name] = np.zeros(4, [("a", "f4"), ("b", "i2")])
            elif how == 10:
                file[name] = np.zeros((5, 2), np.complex64)
            elif how == 11:
                file.create_dataset(
                    name, (2**11, 2**12), "u1", chunks=(2**11, 2**12), compression=1
                )
                file[name][0, 0] = 1
            elif how == 12:
                file[name] = X.astype(rng.choice(["f2", "f8", "i1", "u8", "?"]))
            else:
                file[name] = y if name == "y" else X.T if "/" in name else X
    return path


def hostile_parquet(path: Path, rng: np.random.Generator) -> Path:
    """Write columns of odd types, lengths and repetition."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = path.with_suffix(".parquet")
    n = int(rng.choice([0, 1, 5, 3000]))
    columns = [
        pa.array([[1.0, 2.0]] * n, pa.list_(pa.float16() if n == 0 else pa.float32())),
        pa.array([[1.0] * (i % 3) for i in range(n)], pa.list_(pa.float64())),
        pa.array([[]] * n, pa.list_(pa.int8())),
        pa.array([None] * n, pa.list_(pa.int8(), 3)),
        pa.array([[1.0, None]] * n, pa.list_(pa.float32())),
        pa.array([[True]] * n),
        pa.array([["a"]] * n),
        pa.array([[[1]]] * n),
        pa.array(["a" * (10**6 if i == 0 else 1) for i in range(n)]),
        pa.array([b"\xff"] * n),
        pa.array(list(range(n))),
        pa.array([None] * n),
        pa.array([[0] * 2000] * n, pa.list_(pa.int64(), 2000)),
        pa.array([[i] for i in range(n)], pa.large_list(pa.uint16())),
    ]
    chosen = rng.integers(len(columns), size=3)
    names = [str(name) for name in rng.permutation(["X", "y", "groups"])]
    table = pa.table({name: columns[i] for name, i in zip(names, chosen, strict=True)})
    pq.write_table(table, path, compression=str(rng.choice(["none", "gzip", "zstd"])))
    return path


HOSTILE = {"npy": hostile_npy, "npz": hostile_npz, "h5": hostile_h5, "parquet": hostile_parquet}


def check_hostile(case: tuple[Path, int]) -> bool:
    """A made-up file is refused, or all it says can be read in bounded memory."""
    folder, seed = case
    rng = np.random.default_rng(seed)
    kind = str(rng.choice(list(HOSTILE), p=[0.4, 0.2, 0.25, 0.15]))
    path = HOSTILE[kind](folder / "hostile", rng)
    limit_memory()
    shards = open_shards(path)
    n = sum(len(chunk) for chunk in shards.chunks(20_000))
    labels, groups = shards.labels(), shards.groups()
    return n == len(shards) and all(a is None or len(a) == n for a in (labels, groups))


@attack("files of rows: made to do harm", 4_000)
def hostile_rows(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    """Made-up files are refused or read in bounded memory and time."""
    run_isolated(check_hostile, cases_of(rng, tries, [folder]), tally)


# -- scenes -------------------------------------------------------------------------------------


def scene_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a small scene."""
    folder.mkdir(exist_ok=True)
    patches = np.random.default_rng(0).integers(0, 256, (40, 64, 64)).astype(np.uint8)
    write_sheets(folder, patches, "bmp")
    write_sheets(folder, patches, "png")
    np.savetxt(folder / "info.txt", np.column_stack([np.arange(40) // 4] * 2), fmt="%d")
    (folder / "m50_2_2_0.txt").write_text("0 0 0 1 0 0\n0 0 0 5 1 0\n")
    np.save(folder / "sift.npy", np.ones((40, 128), np.uint8))
    np.save(folder / "confident.npy", np.ones(40, bool))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@functools.cache
def scene_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a small scene, written once per process."""
    return scene_files(folder / f"scene-{os.getpid()}")


def check_scene(case: tuple[Path, int]) -> bool:
    """A scene with a damaged file is refused, or gives as many patches and rows as it says."""
    limit_memory()
    folder, seed = case
    rng = np.random.default_rng(seed)
    files = dict(scene_of(folder))
    files.pop("patches0000.png" if rng.random() < 0.5 else "patches0000.bmp")
    name = sorted(files)[int(rng.integers(len(files)))]
    data = files[name]
    head = data[:200] if rng.random() < 0.5 else data  # headers matter most
    files[name] = mutate(head, rng) + data[len(head) :]
    target = folder / f"damaged-{os.getpid()}"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for name, content in files.items():
        (target / name).write_bytes(content)
    scene = load_scene(target)
    pairs, similar = scene.test_pairs()
    patches = np.asarray(scene.patches)
    return (
        np.array_equal(scene.points[pairs[:, 0]] == scene.points[pairs[:, 1]], similar)
        and patches.shape == (len(scene), 64, 64)
        and len(scene.descriptors) == len(scene)
    )


@attack("scenes: damaged files", 2_000)
def damaged_scenes(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    """Scenes with damaged files are refused or read in full."""
    run_isolated(check_scene, cases_of(rng, tries, [folder]), tally)


ODD_NAMES = [
    *("INFO.TXT", "info.txt", "./info.txt", "a/../info.txt", "../x", "/tmp/x", "C:\\x", "..\\x"),
    *(
        "info.txt/x",
        "x" * 300,
        "",
        ".",
        "a\\b",
        "sub/info.txt",
        "SIFT.npy",
        "İnfo.txt",
        "sift.npy.",
    ),
]


def check_archive(case: tuple[Path, int]) -> bool:
    """A damaged or made-up archive is refused without a trace, or unpacked as it was packed."""
    limit_memory()
    folder, seed = case
    rng = np.random.default_rng(seed)
    files = scene_of(folder)
    names = ["info.txt", "m50_2_2_0.txt", "sift.npy"]
    if rng.random() < 0.1:
        names.append("patches0000.bmp")
    packed = [(name, files[name]) for name in names]
    is_odd = rng.random() < 0.3
    if is_odd:
        extra = ODD_NAMES[int(rng.integers(len(ODD_NAMES)))]
        packed.insert(int(rng.integers(4)), (extra, b"0 0\n"))
    out = io.BytesIO()
    method = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
    with zipfile.ZipFile(out, "w", method[int(rng.integers(4))]) as archive:
        for name, data in packed:
            archive.writestr(zipfile.ZipInfo(name), data, archive.compression)
    source, cache = folder / f"{os.getpid()}.zip", folder / f"cache-{os.getpid()}"
    source.write_bytes(out.getvalue() if is_odd else mutate(out.getvalue(), rng))
    shutil.rmtree(cache, ignore_errors=True)
    try:
        scene = fetch_scene("mine", archive=source, cache=cache)
    except (ValueError, OSError):
        if {path.name for path in cache.rglob("*")} - {"scenes", ".mine.lock"}:
            return False  # something was left behind
        raise
    unpacked = {path.name: path.read_bytes() for path in scene.path.iterdir() if path.is_file()}
    return all(unpacked.get(name) == files[name] for name in names)


@attack("archives of scenes: damaged, or with odd names", 2_500)
def archives(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    """Archives are refused or unpacked as they were packed."""
    run_isolated(check_archive, cases_of(rng, tries, [folder]), tally)


def cases_of(rng: np.random.Generator, tries: int, paths: list[Path]) -> list[tuple[Path, int]]:
    """Return pairs of a path and a seed."""
    numbers = rng.integers([len(paths), 2**62], size=(tries, 2))
    return [(paths[int(number)], int(seed)) for number, seed in numbers]
