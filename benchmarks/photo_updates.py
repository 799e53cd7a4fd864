"""Time of updating and searching an index of 100,000 photographs, with synthetic codes.

The photographs of the index exist as rows and random codes only. A folder with a few real images is
added, changed and removed, which is what an update costs beside reading photographs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from support.harness import arguments, log, report
from support.markdown import duration, machine_note, size, table

from kdiffhash import HashedSIFT
from kdiffhash.vision import Photo, PhotoIndex
from kdiffhash.vision.photo_index import _add_photos

N_KEYPOINTS, BATCH, N_BITS, N_NEW = 100, 5000, 128, 8


def fill(index: PhotoIndex, n: int, rng: np.random.Generator) -> None:
    """Add n photographs with random codes and keypoints."""
    with index._open_database() as connection, index._open_codes("a") as codes:
        for first in range(0, n, BATCH):
            batch, states = [], {}
            for number in range(first, min(first + BATCH, n)):
                path = f"/photographs/{number}.jpg"
                points = rng.random((N_KEYPOINTS, 2), np.float32)
                values = rng.integers(0, 256, (N_KEYPOINTS, N_BITS // 8), dtype=np.uint8)
                batch.append((path, Photo(path, np.empty((0, 0), np.uint8), points, values)))
                states[path] = (number, number)
            _add_photos(codes, connection, batch, states)


def write_images(folder: Path, rng: np.random.Generator) -> None:
    """Write small images of noise."""
    import cv2

    folder.mkdir(exist_ok=True)
    for i in range(N_NEW):
        noise = rng.integers(0, 256, (120, 160), dtype=np.uint8)
        cv2.imwrite(str(folder / f"{i}.png"), cv2.GaussianBlur(noise, (0, 0), 1.5))


def timed(work: Callable[[Path], Any], path: Path) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    work(path)
    return time.perf_counter() - start


def main() -> None:
    options = arguments(__doc__, photos="1000,10000,100000")
    rows = []
    for n in map(int, options.photos.split(",")):
        rng = np.random.default_rng(0)
        with tempfile.TemporaryDirectory() as scratch:
            index = PhotoIndex(Path(scratch) / "x.index", HashedSIFT(N_BITS, N_KEYPOINTS))
            folder = Path(scratch) / "photos"
            write_images(folder, rng)
            seconds = {"first": timed(index.update, folder)}
            fill(index, n, rng)
            write_images(folder, rng)
            seconds["changed"] = timed(index.update, folder)
            seconds["unchanged"] = timed(index.update, folder)
            seconds["search"] = timed(index.search, folder / "0.png")
            n_bytes = sum(path.stat().st_size for path in index.folder.iterdir())
        rows.append({"photos": n, **seconds, "bytes": n_bytes})
        log(rows[-1])
    report("photo_updates", {"rows": rows, "keypoints": N_KEYPOINTS}, options)


def tables(result: dict[str, Any]) -> dict[str, str]:
    rows = [
        [
            f"{row['photos']:,}",
            *(duration(row[name]) for name in ("unchanged", "changed", "search")),
            size(row["bytes"]),
        ]
        for row in result["rows"]
    ]
    header = [
        "photographs",
        "update, nothing changed",
        f"update, {N_NEW} photographs changed",
        "search",
        "size of the index",
    ]
    note = (
        f"An index with random codes, {result['keypoints']} keypoints of {N_BITS} bits per "
        f"photograph. {machine_note(result)}. (`python benchmarks/photo_updates.py`)"
    )
    return {"photo-updates": note + "\n\n" + table(header, rows)}


if __name__ == "__main__":
    main()
