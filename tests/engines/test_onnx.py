"""ONNX graphs, run by onnxruntime and compared with `transform`."""

from __future__ import annotations

import numpy as np
import pytest

from kdiffhash import BoostedHash, ITQHash, KernelDiffHash, KernelLDAHash, LDAHash
from kdiffhash.engines.onnx import export

onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
pytest.importorskip("onnx", reason="needs onnx")


def run(path, X):
    """Return the codes that onnxruntime computes."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(["codes"], {"rows": np.asarray(X, np.float32)})[0]


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(300), 4)
    X = np.abs(rng.normal(size=(300, 20))[y] + 0.3 * rng.normal(size=(1200, 20))) + 3
    return X.astype(np.float32), y


@pytest.mark.parametrize(
    "hasher",
    [
        LDAHash(20),
        LDAHash(13, preprocess="unit"),
        LDAHash(16, preprocess="hellinger", refine=10),
        ITQHash(16),
        BoostedHash(5, n_positives=1000, n_negatives=1000),
        KernelLDAHash(50, n_basis=80, ridge=0.1),
        KernelDiffHash(40, n_basis=80, kernel="mahalanobis", preprocess="unit"),
    ],
    ids=lambda h: f"{type(h).__name__}-{h.preprocess}",
)
def test_graph_computes_the_codes_of_transform(tmp_path, rows, hasher):
    X, y = rows
    hasher.set_params(random_state=0).fit(X, y)
    export(hasher, tmp_path / "model.onnx")
    codes, expected = run(tmp_path / "model.onnx", X), hasher.transform(X)
    assert codes.dtype == np.uint8
    assert codes.shape == expected.shape
    # Rounding may flip one bit in a million; there are fewer than a million bits here.
    np.testing.assert_array_equal(codes, expected)


def test_rows_of_zeros_have_the_codes_of_transform(tmp_path, rows):
    X, y = rows
    hasher = LDAHash(16, preprocess="hellinger", random_state=0).fit(X, y)
    export(hasher, tmp_path / "model.onnx")
    zeros = np.zeros((3, X.shape[1]), np.float32)
    np.testing.assert_array_equal(run(tmp_path / "model.onnx", zeros), hasher.transform(zeros))


def test_other_kernels_are_refused(tmp_path, rows):
    X, y = rows
    hasher = KernelLDAHash(8, kernel="laplacian", n_basis=20, random_state=0).fit(X, y)
    with pytest.raises(ValueError, match="kernel='laplacian' cannot be exported to ONNX"):
        export(hasher, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_export_command_writes_a_graph(tmp_path, rows, command):
    X, y = rows
    hasher = LDAHash(16, random_state=0).fit(X, y)
    hasher.save(tmp_path / "model.safetensors")
    target = tmp_path / "model.onnx"
    model = tmp_path / "model.safetensors"
    assert command("export", model, "-o", target, "--bits", 8, "--json")["bits"] == 8
    np.testing.assert_array_equal(run(target, X), hasher.truncate(8).transform(X))
