"""The README's table: what kdiffhash can replace, with the condition of each comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .markdown import machine_note, table

SOURCES = ("untouched", "embeddings", "search")
SCENES = ("oxford-affine", "sceaux", "notredame-2007")
LENGTHS = (16, 32, 48)  # bytes
HEADER = ["in place of", "it has", "kdiffhash has", "measure, on which data"]


def headline_table(load: Callable[[str], dict[str, Any]]) -> str:
    """Return one line per baseline; `load` returns the stored result of a benchmark."""
    search = load("search")
    lines = [*_descriptors(load("untouched")), *_texts(load("embeddings")), _speed(search)]
    return f"{table(HEADER, lines)}\n\n{machine_note(search)}."


def _descriptors(result: dict[str, Any]) -> list[list[str]]:
    def rates(method: str, n_bits: int | None = None) -> str:
        own = {
            row["scene"]: row["fnr_at_1e-3"]
            for row in result["rows"]
            if row["method"] == method and n_bits in (None, row["n_bits"])
        }
        return " / ".join(f"{100 * own[scene]:.1f}" for scene in SCENES) + " %"

    ours = f"{rates('refined', 256)} (refined, 32 bytes)"
    data = f"FNR at 0.1 % FPR, lower is better: {' / '.join(SCENES)}"
    return [
        ["RootSIFT, 128 numbers", rates("rootsift"), ours, data],
        ["a float metric learned from the same pairs", rates("metric"), ours, "the same"],
        ["product quantisation, 32 bytes", rates("pq", 256), ours, "the same"],
    ]


def _texts(result: dict[str, Any]) -> list[list[str]]:
    def recalls(method: str, query: str, lengths: tuple[int, ...]) -> str:
        own = {
            row["bytes"]: row["recall_at_10"]
            for row in result["rows"]
            if (row["data"], row["method"], row["query"]) == ("debian", method, query)
        }
        return " / ".join(f"{own[n]:.3f}" for n in lengths)

    ours, all_lengths = result["recipe"], " / ".join(map(str, LENGTHS))
    data = "recall@10, higher is better: short and long texts embedded by MiniLM"
    signs, rabitq = "sign bits, centred", "RaBitQ after PCA, centred"
    return [
        [
            "sign bits of embeddings, 48 bytes",
            recalls(signs, "bits", (48,)),
            recalls(ours, "bits", (48,)),
            data,
        ],
        [
            f"RaBitQ, {all_lengths} bytes, float queries",
            recalls(rabitq, "float", LENGTHS),
            recalls(ours, "float", LENGTHS),
            "the same",
        ],
    ]


def _speed(result: dict[str, Any]) -> list[str]:
    (case,) = (
        case
        for case in result["cases"]
        if (case["data"], case["n_bits"], case["batch"], case["threads"]) == ("real", 256, 100, 1)
    )
    ours, ratio = case["queries_per_s"], case["ratio_to_faiss"]
    return [
        "`faiss.IndexBinaryFlat`, 256 bits",
        f"{ours / ratio:,.0f} queries/s",
        f"{ours:,.0f} queries/s, the same results",
        f"exact search of {case['n'] / 1e6:.0f} million codes of SIFT, one thread, batches of 100",
    ]
