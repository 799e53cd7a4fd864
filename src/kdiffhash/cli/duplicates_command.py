"""`kdiffhash index duplicates`: pairs or groups of near duplicates."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .code_files import check_out, output_results, storable
from .guard import check_writable
from .id_files import read_ids, write_ids
from .index_commands import IndexArgument, Out, Radius
from .options import Jobs, Json

if TYPE_CHECKING:
    from ..search import Groups

_SUFFIXES = (".csv", ".json", ".npz")


class GroupMethod(StrEnum):
    """How groups are formed."""

    connected = "connected"
    greedy = "greedy"


def duplicates(
    path: IndexArgument,
    radius: Radius = 0,
    groups: Annotated[
        bool, typer.Option("--groups", help="Find groups with a representative each, not pairs.")
    ] = False,
    method: Annotated[
        GroupMethod | None,
        typer.Option(
            help="With --groups: connected joins chains of near duplicates (default); greedy keeps "
            "a code unless it is within the radius of one that was kept before it."
        ),
    ] = None,
    priority: Annotated[
        Path | None,
        typer.Option(
            help="With --groups: ids, most important first (.npy, or text with one id per line). "
            "The first id of a group represents it; ids that are not listed follow, ascending."
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(help="With --groups: file for the ids to keep, one per line."),
    ] = None,
    drop: Annotated[
        Path | None,
        typer.Option(help="With --groups: file for the ids that another one represents."),
    ] = None,
    out: Out = None,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Find near duplicates: pairs of codes within a given distance, or groups of them.

    Pairs are written as arrays pairs and distances (.npz) or as text (.csv, .json). Groups are
    written as one line per code with its representative (.csv), as lists (.json), or as arrays ids,
    representatives and distances (.npz).
    """
    if not groups:
        for option, value in (
            *(("--method", method), ("--priority", priority)),
            *(("--keep", keep), ("--drop", drop)),
        ):
            if value is not None:
                raise ValueError(f"{option} applies to groups; add --groups or leave it out")
        check_out(out, path, suffixes=(".npz", ".npy", ".csv", ".json"))
        _find_pairs(path, radius, out, jobs, as_json)
        return
    check_out(out, path, priority, suffixes=_SUFFIXES)
    written: list[Path] = [] if out is None else [out]
    for option, file in (("--keep", keep), ("--drop", drop)):
        if file is not None:
            check_writable(file, path, priority, written, option=option)
            written.append(file)
    method = method or GroupMethod.connected
    _find_groups(path, radius, method.value, priority, keep, drop, out, jobs, as_json)


def _find_pairs(path: Path, radius: int, out: Path | None, jobs: int | None, as_json: bool) -> None:
    from .. import HammingIndex
    from .._util.progress import waiting
    from .output import show

    with HammingIndex.open(path) as index, waiting("comparing"):
        pairs, distances = index.duplicates(radius, n_jobs=jobs)
        n_codes = len(index)

    def row(i: int) -> dict[str, Any]:
        a, b = pairs[i].tolist()
        return {"a": a, "b": b, "distance": int(distances[i])}

    summary = {"index": str(path), "codes": n_codes, "radius": radius, "pairs": len(pairs)}
    if out is not None and out.suffix in (".csv", ".json"):
        _write_rows(out, ("a", "b", "distance"), (row(i) for i in range(len(pairs))))
        show({**summary, "written": str(out)}, as_json)
        return
    arrays = {"pairs": pairs, "distances": distances}
    output_results(summary, arrays, row, len(pairs), out, as_json)


def _find_groups(
    path: Path,
    radius: int,
    method: Any,
    priority: Path | None,
    keep: Path | None,
    drop: Path | None,
    out: Path | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    from .. import HammingIndex
    from .._util.progress import waiting
    from .output import show

    with HammingIndex.open(path) as index, waiting("comparing"):
        first = None if priority is None else read_ids(priority, index)
        try:
            found = index.groups(radius, method, priority=first, n_jobs=jobs)
        except KeyError as error:
            raise ValueError(f"{priority}: {error.args[0]}") from None
    for file, ids in ((keep, found.keep), (drop, found.drop)):
        if file is not None:
            write_ids(file, ids)
    summary: dict[str, Any] = {
        "index": str(path),
        "codes": len(found.distances),
        "radius": radius,
        "method": method,
        "groups": len(found),
        "keep": len(found.keep),
        "drop": len(found.drop),
    }
    if keep is not None:
        summary["keep_written"] = str(keep)
    if drop is not None:
        summary["drop_written"] = str(drop)
    if out is None:
        _show_groups(summary, found, as_json)
        return
    if out.suffix == ".csv":
        _write_rows(out, ("representative", "id", "distance"), _members(found))
    elif out.suffix == ".json":
        _write_rows(out, (), _lists(found))
    else:
        import numpy as np

        from .._util.files import replacing

        arrays: dict[str, Any] = {
            "ids": storable(found.ids),
            "representatives": storable(found.representatives),
            "distances": found.distances,
        }
        with replacing(out) as temporary, temporary.open("wb") as archive:
            np.savez(archive, **arrays)
    show({**summary, "written": str(out)}, as_json)


def _show_groups(summary: dict[str, Any], found: Groups, as_json: bool) -> None:
    """Print the groups: all of them as JSON, or the first 20 in a table."""
    from .output import show

    if as_json:
        show({**summary, "rows": list(_lists(found))}, True)
        return
    if len(found) > 20:
        summary = {**summary, "shown": "the first 20 groups; --out FILE.csv writes all"}
    rows = []
    for number, entry in enumerate(_lists(found)):
        if number == 20:
            break
        members = ", ".join(map(str, entry["ids"][1:11]))
        more = "" if len(entry["ids"]) <= 11 else ", ..."
        rows.append(
            {"representative": entry["representative"], "size": len(entry["ids"])}
            | {"others": members + more}
        )
    show({**summary, "rows": rows}, False)


def _lists(found: Groups) -> Iterator[dict[str, Any]]:
    for rows, members in zip(found.rows(), found):
        ids = members.tolist()
        yield {"representative": ids[0], "ids": ids, "distances": found.distances[rows].tolist()}


def _members(found: Groups) -> Iterator[dict[str, Any]]:
    for group in _lists(found):
        for id, distance in zip(group["ids"], group["distances"]):
            yield {"representative": group["representative"], "id": id, "distance": distance}


def _write_rows(path: Path, columns: tuple[str, ...], rows: Iterator[dict[str, Any]]) -> None:
    """Write rows as CSV, or as a JSON list with one row per line."""
    from .._util.files import replacing

    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        if path.suffix == ".csv":
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            return
        separator = "[\n"
        for row in rows:
            file.write(separator + json.dumps(row))
            separator = ",\n"
        file.write("[]\n" if separator == "[\n" else "\n]\n")
