"""The pretrained model, and model files with float16 arrays."""

from __future__ import annotations

import json
from importlib.resources import files

import numpy as np
import pytest

import kdiffhash
from kdiffhash import KernelLDAHash, LDAHash, ModelFileError, fnr_at_fpr, load_pretrained
from kdiffhash.datasets import load_scene

FILE = files("kdiffhash") / "hashers" / "models" / "sift.safetensors"


def header_of(content):
    size = int.from_bytes(content[:8], "little")
    return json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["kdiffhash"])


def root_sift(rows):
    rows = np.asarray(rows, np.float64)
    return np.sqrt(rows / np.maximum(rows.sum(axis=1, keepdims=True), 1)).astype(np.float32)


def n_differing(a, b):
    return int(np.bitwise_count(a ^ b).sum())


@pytest.fixture(scope="module")
def sift():
    """Return random rows that are as sparse as SIFT, with values up to 255."""
    rows = np.random.default_rng(0).gamma(0.4, 60, (3000, 128))
    return np.minimum(rows, 255).astype(np.uint8)


def test_pretrained_model_is_small_and_has_512_bits():
    assert len(FILE.read_bytes()) < 2_000_000
    assert header_of(FILE.read_bytes())["format"] == 2
    hasher = load_pretrained()
    assert isinstance(hasher, KernelLDAHash)
    assert (hasher.n_features_in_, hasher.n_bits_) == (128, 512)
    assert (hasher.directions_.dtype, hasher.basis_.dtype) == (np.float32, np.float32)


@pytest.mark.parametrize("name", ["sift", "rootsift"])
def test_shorter_codes_are_prefixes(name, sift):
    whole = np.unpackbits(load_pretrained(name).transform(sift), axis=1)
    for n_bits in (1, 64, 100, 256):
        hasher = load_pretrained(name, n_bits)
        assert hasher.n_bits_ == hasher.n_bits == n_bits
        expected = np.packbits(whole[:, :n_bits], axis=1)
        np.testing.assert_array_equal(hasher.transform(sift), expected)


def test_rootsift_of_any_scale_gives_the_codes_of_sift(sift):
    sift = np.maximum(sift, 1)
    expected = load_pretrained("sift").transform(sift)
    rooted, hasher = root_sift(sift), load_pretrained("rootsift")
    codes = hasher.transform(rooted)
    assert n_differing(codes, expected) < 1e-4 * 512 * len(sift)
    assert n_differing(hasher.transform(rooted * np.float32(512)), codes) < 1e-4 * 512 * len(sift)


def test_loaded_models_are_independent(sift):
    first = load_pretrained("sift", 64)
    codes = first.transform(sift)
    load_pretrained("rootsift", 64)
    load_pretrained("sift", 8)
    assert first.preprocess == "hellinger"
    assert load_pretrained("rootsift").preprocess == "unit"
    np.testing.assert_array_equal(first.transform(sift), codes)


def test_pretrained_model_can_be_saved_and_loaded(sift, tmp_path):
    hasher = load_pretrained("rootsift", 200)
    hasher.save(tmp_path / "model")
    again = kdiffhash.load(tmp_path / "model")
    np.testing.assert_array_equal(again.transform(sift), hasher.transform(sift))


def test_unknown_names_and_lengths_raise_an_error():
    with pytest.raises(ValueError, match=r"'surf'.*sift, rootsift"):
        load_pretrained("surf")
    for n_bits in (0, 513, 12.5):
        with pytest.raises(ValueError, match=r"from 1 to 512"):
            load_pretrained("sift", n_bits)


@pytest.mark.parametrize("name", ["herz-jesus-p25", "castle-p30"])
@pytest.mark.slow
def test_fnr_is_below_rootsift_on_scenes_not_trained_on(scenes, name):
    scene = load_scene(name)
    pairs, similar = scene.test_pairs()
    members, positions = np.unique(pairs, return_inverse=True)
    left, right = positions.reshape(-1, 2).T
    rows = np.asarray(scene.descriptors)[members]
    rooted = root_sift(rows)
    codes = load_pretrained("sift", 256).transform(rows)
    float_distances = np.linalg.norm(rooted[left] - rooted[right], axis=1)
    distances = np.bitwise_count(codes[left] ^ codes[right]).sum(axis=1)
    assert fnr_at_fpr(distances, similar, 1e-3) < fnr_at_fpr(float_distances, similar, 1e-3)
    again = load_pretrained("rootsift", 256).transform(rooted)
    assert n_differing(codes, again) < 1e-4 * 256 * len(rows)


def rounded(objects, hasher):
    """Fit a hasher and round its arrays so that float16 represents them exactly."""
    hasher.fit(*objects)
    for name in {"basis_", "directions_"} & vars(hasher).keys():
        setattr(hasher, name, getattr(hasher, name).astype(np.float16).astype(np.float32))
    return hasher


def kernel_hasher(objects):
    return rounded(objects, KernelLDAHash(20, n_basis=50, random_state=0))


@pytest.mark.parametrize("kind", ["kernel", "linear"])
def test_float16_arrays_give_the_same_model_from_a_smaller_file(objects, tmp_path, kind):
    hasher = kernel_hasher(objects) if kind == "kernel" else rounded(objects, LDAHash(12))
    hasher.save(tmp_path / "whole")
    hasher.save(tmp_path / "half", half=("basis_", "directions_"))
    whole, half = ((tmp_path / name).read_bytes() for name in ("whole", "half"))
    n_halves = hasher.directions_.size + getattr(hasher, "basis_", np.empty(0)).size
    assert abs(len(whole) - len(half) - 2 * n_halves) < 100
    assert (header_of(whole)["format"], header_of(half)["format"]) == (1, 2)
    again = kdiffhash.load(tmp_path / "half")
    np.testing.assert_array_equal(again.transform(objects[0]), hasher.transform(objects[0]))
    for name in hasher._fitted:
        np.testing.assert_array_equal(getattr(again, name, None), getattr(hasher, name, None))
    again.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == whole


def test_values_that_float16_cannot_represent_are_refused(objects, tmp_path):
    hasher = kernel_hasher(objects)
    for name, value in (("directions_", 0.1), ("basis_", 2.0**-30)):
        good = getattr(hasher, name)
        setattr(hasher, name, good.copy())
        getattr(hasher, name)[3, 2] = value
        with pytest.raises(ValueError, match=f"{name} has values that float16"):
            hasher.save(tmp_path / "half", half=("basis_", "directions_"))
        setattr(hasher, name, good)
    assert not list(tmp_path.iterdir())


def test_damaged_files_are_refused(objects, tmp_path):
    path = tmp_path / "half"
    kernel_hasher(objects).save(path, half=("basis_", "directions_"))
    content = path.read_bytes()
    first = 8 + int.from_bytes(content[:8], "little")  # the first byte of the arrays
    for at in (first, (first + len(content)) // 2, len(content) - 1):
        damaged = bytearray(content)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ModelFileError, match="checksum"):
            kdiffhash.load(path)
    path.write_bytes(content.replace(b'\\"format\\": 2', b'\\"format\\": 3'))
    with pytest.raises(ModelFileError, match="upgrade"):
        kdiffhash.load(path)
    path.write_bytes(content.replace(b'\\"format\\": 2', b'\\"format\\": 1'))
    with pytest.raises(ModelFileError, match="checksum"):
        kdiffhash.load(path)


def test_no_basis_row_is_a_descriptor_of_a_scene(scenes):
    basis = {row.tobytes() for row in kdiffhash.load_pretrained().basis_.astype(np.float16)}
    for name in ("caliterra", "boruszyn", "brighton-beach"):
        rows = np.asarray(kdiffhash.load_scene(scenes / name).descriptors, np.float32)
        rows = np.sqrt(rows / np.maximum(rows.sum(axis=1, keepdims=True), 1)).astype(np.float16)
        assert not any(row.tobytes() in basis for row in rows)
