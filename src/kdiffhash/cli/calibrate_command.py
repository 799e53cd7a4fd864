"""`kdiffhash calibrate`: the distance threshold for a wanted false positive rate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .options import Json

_TRUTH = {"1": True, "true": True, "0": False, "false": False}


def calibrate(
    codes: Annotated[
        Path,
        typer.Argument(
            help="Codes of any origin: a file of uint8 rows, or a folder of such files.",
            metavar="CODES",
        ),
    ],
    pairs: Annotated[
        Path,
        typer.Option(
            help="Pairs of rows: .csv with columns a, b and similar (1 or 0), or .npz with arrays "
            "pairs and similar."
        ),
    ],
    fpr: Annotated[float, typer.Option(help="Wanted false positive rate.")],
    at_scale: Annotated[
        int | None,
        typer.Option(min=2, help="Estimate the number of false pairs among this many codes."),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    as_json: Json = False,
) -> None:
    """Find the distance threshold for a wanted false positive rate.

    The result can be used as the radius of kdiffhash index radius and kdiffhash index duplicates.
    """
    import numpy as np

    from .. import calibrate as find_threshold
    from ..evaluate.calibration import distinct_pairs
    from ..learn.pairs import check_pairs, distinct_rows
    from ..shards import open_shards
    from .output import show

    rows = open_shards(codes)
    if rows.dtype != np.uint8:
        raise ValueError(
            f"{codes} has rows of {rows.dtype}, codes are packed uint8 rows; pack bits with "
            "numpy.packbits(bits, axis=1)"
        )
    try:
        given = check_pairs(*_read_pairs(pairs), len(rows), (str(codes), str(codes)))
        distinct, similar = distinct_pairs(*given)
    except ValueError as error:
        named = str(error).startswith(str(pairs))
        raise ValueError(str(error) if named else f"{pairs}: {error}") from None
    used, members = distinct_rows(distinct)
    found = find_threshold(rows.read(used), similar, pairs=members, fpr=fpr, confidence=confidence)
    result: dict[str, Any] = {
        "codes": str(codes),
        "bits": 8 * rows.shape[1],
        "positives": int(similar.sum()),
        "negatives": int((~similar).sum()),
        "distance": found.distance,
        "distance_interval": list(found.distance_interval),
        "fpr": found.fpr,
        "fpr_interval": list(found.fpr_interval),
        "recall": found.tpr,
        "recall_interval": list(found.tpr_interval),
        "confidence": found.confidence,
    }
    if at_scale is not None:
        expected = found.expected_false_pairs(at_scale)
        result |= {
            "at_scale": at_scale,
            "false_pairs": expected.value,
            "false_pairs_interval": [expected.low, expected.high],
        }
    show(result, as_json)


def _read_pairs(path: Path) -> tuple[Any, Any]:
    """Read row numbers and whether they are similar from a .csv or .npz file."""
    import numpy as np

    from .._util.text import read_csv
    from ..shards.numpy_files import read_npz

    if path.suffix == ".npz":
        arrays = read_npz(path, ("pairs", "similar"))
        if len(arrays) < 2:
            raise ValueError(f"{path} must have arrays pairs and similar, it has {list(arrays)}")
        return arrays["pairs"], arrays["similar"]
    if path.suffix != ".csv":
        raise ValueError(f"--pairs must end in .csv or .npz, got {path}")
    pairs: list[tuple[int, int]] = []
    similar: list[bool] = []
    lines = read_csv(path)
    header = [name.strip().lower() for name in next(lines, (1, []))[1]]
    if missing := {"a", "b", "similar"} - set(header):
        raise ValueError(
            f"{path} has no column {' and no column '.join(sorted(missing))}; the first line "
            "must name the columns, for example a,b,similar"
        )
    columns = [header.index(name) for name in ("a", "b", "similar")]
    for number, line in lines:
        if not line:
            continue
        try:
            a, b, flag = (line[column].strip() for column in columns)
            pairs.append((int(a), int(b)))
            similar.append(_TRUTH[flag.lower()])
        except (ValueError, LookupError):
            raise ValueError(
                f"{path}, line {number}: {','.join(line)[:60]!r} is not a pair; give two row "
                "numbers, and 1 or 0 for similar"
            ) from None
    try:
        return np.array(pairs, np.int64).reshape(-1, 2), np.array(similar, bool)
    except OverflowError:
        raise ValueError("a row number is larger than 64 bits") from None
