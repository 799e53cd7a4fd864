"""Files of rows that were damaged or made to do harm: refused before memory is allocated."""

import io
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from kdiffhash.shards import open_shards, shard

h5py = pytest.importorskip("h5py")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

X = np.arange(60, dtype=np.float32).reshape(20, 3)


def npy(header, content=b""):
    """Return an .npy file with any text as header."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content


def header_of(shape, kind="<f4"):
    return f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}"


def npz(path, compression=zipfile.ZIP_STORED, **members):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def as_npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def read(path):
    rows = open_shards(path)
    return list(rows.chunks(7)), rows.labels(), rows.groups()


BAD_HEADERS = [
    header_of((10**12, 0)),
    header_of((10**12, 4)),
    header_of((2**62, 2**62)),
    header_of((-1, 4)),
    header_of((3, 4))[:-3],  # an unclosed bracket: the tokenizer's error
    "(" * 3000,
    "'''",
    "\0",
    header_of((3, 2**21)),
    header_of((3, 4), "|O"),
    header_of((-1,), "<U0"),  # NumPy divides by the size of an item
]


@pytest.mark.parametrize("header", BAD_HEADERS, ids=lambda header: header[:40])
@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_headers_that_do_not_fit_the_file_are_refused_in_one_line(header, kind, tmp_path):
    path = tmp_path / f"rows.{kind}"
    content = npy(header, bytes(48))
    if kind == "npy":
        path.write_bytes(content)
    else:
        npz(path, X=content)
    with pytest.raises(ValueError, match=f"rows.{kind}") as error:
        read(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["npy", "npz", "parquet", "h5"])
def test_pipes_devices_and_folders_are_refused_without_waiting(kind, tmp_path):
    os.mkfifo(tmp_path / f"pipe.{kind}")
    (tmp_path / f"device.{kind}").symlink_to("/dev/zero")
    for name in ("pipe", "device"):
        with pytest.raises(ValueError, match="not a regular file"):
            open_shards(tmp_path / f"{name}.{kind}")


def test_a_pipe_in_place_of_labels_is_refused_without_waiting(tmp_path):
    np.save(tmp_path / "a.npy", X)
    os.mkfifo(tmp_path / "a.labels.npy")
    with pytest.raises(ValueError, match="not a regular file"):
        open_shards(tmp_path / "a.npy").labels()


def test_an_archive_that_unpacks_to_far_more_than_its_size_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(shard, "_FREE_BYTES", 10_000)
    labels = as_npy(np.zeros(200_000))
    path = npz(tmp_path / "bomb.npz", zipfile.ZIP_DEFLATED, X=as_npy(X), y=labels)
    assert len(labels) > 100 * path.stat().st_size
    with pytest.raises(ValueError, match=r"y takes 1600000 bytes in memory.*store it uncompressed"):
        read(path)
    stored = npz(tmp_path / "stored.npz", X=as_npy(np.zeros((200_000, 1))), y=labels)
    assert len(read(stored)[1]) == 200_000


def test_a_bomb_is_refused_before_memory_is_allocated(tmp_path):
    """Two gigabytes of labels in two megabytes; the process may have one gigabyte more."""
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("X.npy", as_npy(X))
        with archive.open("y.npy", "w", force_zip64=True) as member:
            member.write(npy(header_of((2**31,), "|u1")))
            for _ in range(2**31 >> 24):
                member.write(bytes(1 << 24))
    code = f"""
import resource
from pathlib import Path
from kdiffhash.shards import open_shards
rows = open_shards({str(path)!r})
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
try:
    rows.labels()
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "takes 2147483648 bytes in memory" in done.stdout


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_arrays_of_one_name_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "two.npz", "w") as archive:
        for value in (0, 1):
            archive.writestr("X.npy", as_npy(X + value))
    with pytest.raises(ValueError, match="same name"):
        open_shards(tmp_path / "two.npz")


def test_unwritten_parts_of_hdf5_datasets_are_refused(tmp_path):
    with h5py.File(tmp_path / "chunks.h5", "w") as file:
        rows = file.create_dataset("X", (10**12, 4), "f4", chunks=(1000, 4))
        rows[:1000] = 1
    with h5py.File(tmp_path / "contiguous.h5", "w") as file:
        file.create_dataset("X", (10**6, 4), "f4")
    with h5py.File(tmp_path / "image.h5", "w") as file:
        file.create_dataset("a.jpg/descriptors", (128, 10**9), "f4", chunks=(128, 100))
    for name in ("chunks", "contiguous", "image"):
        with pytest.raises(ValueError, match=rf"{name}\.h5: parts of .* were never written"):
            open_shards(tmp_path / f"{name}.h5")
    with h5py.File(tmp_path / "whole.h5", "w") as file:
        file.create_dataset("X", data=X, chunks=(7, 2), compression="gzip")
    np.testing.assert_array_equal(np.concatenate(read(tmp_path / "whole.h5")[0]), X)


def test_large_compressed_chunks_of_hdf5_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(shard, "_FREE_BYTES", 10_000)
    with h5py.File(tmp_path / "bomb.h5", "w") as file:
        shape = (2**12, 2**10)
        file.create_dataset("X", data=np.zeros(shape, np.uint8), chunks=shape, compression="gzip")
    with pytest.raises(ValueError, match="a chunk of /X takes 4194304 bytes in memory"):
        open_shards(tmp_path / "bomb.h5")


def test_links_and_virtual_datasets_are_refused_without_opening_what_they_name(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    layout = h5py.VirtualLayout((10, 2), "f4")
    layout[:] = h5py.VirtualSource(str(tmp_path / "pipe"), "X", (10, 2))
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        file.create_virtual_dataset("X", layout)
    with h5py.File(tmp_path / "external.h5", "w") as file:
        file["X"] = h5py.ExternalLink(str(tmp_path / "pipe"), "/X")
    with h5py.File(tmp_path / "soft.h5", "w") as file:
        file["there"] = h5py.ExternalLink(str(tmp_path / "pipe"), "/")
        file["X"] = h5py.SoftLink("/there/X")
    with h5py.File(tmp_path / "labels.h5", "w") as file:
        file["X"], file["y"] = X, h5py.ExternalLink(str(tmp_path / "pipe"), "/y")
    for name in ("virtual", "external", "soft", "labels"):
        with pytest.raises(ValueError, match=rf"{name}\.h5: .* refers to another file"):
            read(tmp_path / f"{name}.h5")


def test_labels_of_odd_types_are_refused(tmp_path):
    with h5py.File(tmp_path / "lists.h5", "w") as file:
        file["X"] = X
        file.create_dataset("y", (20,), h5py.vlen_dtype(np.int32))[0] = [1, 2]
    with h5py.File(tmp_path / "records.h5", "w") as file:
        file["X"], file["y"] = X, np.zeros(20, [("a", "f4")])
    for name in ("lists", "records"):
        with pytest.raises(ValueError, match=rf"{name}\.h5: y has values of type"):
            read(tmp_path / f"{name}.h5")


def test_one_long_label_does_not_multiply_by_the_number_of_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(shard, "_FREE_BYTES", 10_000)
    labels = ["a" * 2000, *["b"] * 1999]
    rows = pa.array([[1.0]] * 2000)
    pq.write_table(pa.table({"X": rows, "y": labels}), tmp_path / "long.parquet")
    with h5py.File(tmp_path / "long.h5", "w") as file:
        file["X"], file["y"] = np.ones((2000, 1), np.uint8), labels
    for name in ("long.parquet", "long.h5"):
        with pytest.raises(ValueError, match="y takes 16000000 bytes in memory"):
            read(tmp_path / name)


def test_a_file_that_lost_rows_after_it_was_opened_does_not_give_made_up_rows(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"X": pa.array(list(X))}), path)
    rows = open_shards(path)
    pq.write_table(pa.table({"X": pa.array(list(X[:5]))}), path)
    with pytest.raises(ValueError, match="fewer rows than it says"):
        np.asarray(rows)
    with pytest.raises(ValueError, match="has 5 rows, but says that it has 20"):
        list(rows.chunks(3))


def test_parquet_rows_without_numbers_are_refused(tmp_path):
    pq.write_table(pa.table({"X": pa.array([[]] * 5, pa.list_(pa.int8()))}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="rows of 0 numbers"):
        open_shards(tmp_path / "a.parquet")
