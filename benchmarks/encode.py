"""Throughput of encoding relative to its matrix products.

The products are n x d x l and n x l x m in float32, computed by NumPy's BLAS into preallocated
buffers, in blocks of the height that is fastest of several.
"""

from __future__ import annotations

import time
from typing import Any

import encode_memory
import fit
import numpy as np
from support.harness import arguments, interleaved, load, report
from support.markdown import machine_note, table
from threadpoolctl import threadpool_limits

from kdiffhash import load_pretrained
from kdiffhash.learn.encoder import Encoder
from kdiffhash.learn.kernels import GaussianMap

D = 128


def tables(result: dict[str, Any]) -> dict[str, str]:
    """Return one table for encoding, fitting and the memory of encoding."""
    rows = [
        [
            f"encode, {case['n_basis']} basis rows, {case['n_bits']} bits, "
            f"{case['threads']} thread{'s' if case['threads'] > 1 else ''}",
            f"{100 * case['fraction_of_sgemm']:.0f} % of the throughput of its matrix products",
            f"{case['vectors_per_s']:,.0f} vectors/s",
        ]
        for case in result["cases"]
    ]
    if "single_row_us" in result:
        latency = f"{result['single_row_us']:.0f} µs"
        rows.append(["encode one descriptor with the pretrained model, 512 bits", "", latency])
    rows += fit.table_rows(load("fit")) + encode_memory.table_rows(load("encode_memory"))
    header = ["task", "relative to its ceiling", "absolute"]
    other = machine_note(load("encode_memory")).removeprefix("Measured on ")
    note = f"{machine_note(result)}; memory-mapped descriptors on {other}."
    return {"speed": f"{table(header, rows)}\n\n{note}"}


def main() -> None:
    options = arguments(__doc__, n=200_000, repeats=5)
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 120, (options.n, D)).astype(np.float32)
    cases = []
    for n_basis, n_bits in ((1000, 128), (2000, 512)):
        basis = rng.integers(0, 120, (n_basis, D)).astype(np.float32)
        directions = rng.standard_normal((n_bits, n_basis)).astype(np.float32)
        thresholds = np.zeros(n_bits, np.float32)
        encoder = Encoder(None, GaussianMap(basis, 4e-6), directions, thresholds)
        encoder.encode(rows[:1000])  # warm up
        right, last = np.ascontiguousarray(basis.T), np.ascontiguousarray(directions.T)

        def products(block: int, right=right, last=last) -> None:
            features = np.empty((block, right.shape[1]), np.float32)
            projections = np.empty((block, last.shape[1]), np.float32)
            for i in range(0, len(rows), block):
                chunk = rows[i : i + block]
                np.matmul(chunk, right, out=features[: len(chunk)])
                np.matmul(features[: len(chunk)], last, out=projections[: len(chunk)])

        for threads in (1, 2):

            def limited(block: int, threads=threads, products=products) -> None:
                with threadpool_limits(threads):
                    products(block)

            functions = {
                f"sgemm {block}": lambda block=block, limited=limited: limited(block)
                for block in (256, 1024, 4096, 20_000)
            }
            functions["encode"] = lambda e=encoder, threads=threads: e.encode(rows, threads)
            seconds = interleaved(functions, options.repeats)
            product_seconds = min(value for name, value in seconds.items() if name != "encode")
            cases.append(
                {
                    "n_basis": n_basis,
                    "n_bits": n_bits,
                    "threads": threads,
                    "fraction_of_sgemm": product_seconds / seconds["encode"],
                    "vectors_per_s": options.n / seconds["encode"],
                    "sgemm_gflops": 2e-9 * options.n * n_basis * (D + n_bits) / product_seconds,
                }
            )
    single = single_row_us(rows[:1000].astype(np.uint8))
    report("encode", {"n": options.n, "d": D, "single_row_us": single, "cases": cases}, options)


def single_row_us(rows: np.ndarray) -> float:
    """Return the microseconds of `transform` for one descriptor with the pretrained model."""
    hasher = load_pretrained("sift")
    hasher.transform(rows[:1])
    seconds = []
    for i in range(len(rows)):
        start = time.perf_counter()
        hasher.transform(rows[i : i + 1])
        seconds.append(time.perf_counter() - start)
    return 1e6 * float(np.median(seconds))


if __name__ == "__main__":
    main()
