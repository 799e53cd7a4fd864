"""Model files: round trips, damage detection, fingerprints."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import kdiffhash
from kdiffhash import (
    CrossDiffHash,
    DiffHash,
    KernelDiffHash,
    LDAHash,
    ModelFileError,
    SequentialMatcher,
)
from kdiffhash.hashers import model_file
from kdiffhash.hashers.fingerprint import fingerprint, is_same_model

DATA = Path(__file__).parent.parent / "data"


@pytest.fixture
def saved(objects, tmp_path):
    hasher = KernelDiffHash(20, n_basis=50, alpha=np.inf, random_state=0).fit(*objects)
    hasher.save(tmp_path / "model.safetensors")
    return hasher, tmp_path / "model.safetensors"


def test_array_infinite_and_nested_parameters_are_restored(objects, tmp_path):
    X, y = objects
    hasher = KernelDiffHash(
        8, kernel="poly", kernel_params={"degree": 2}, alpha=np.inf, basis=X[:30].copy()
    ).fit(X, y)
    hasher.save(tmp_path / "m")
    again = KernelDiffHash.load(tmp_path / "m")
    assert again.alpha == np.inf
    assert again.kernel_params == {"degree": 2}
    np.testing.assert_array_equal(again.basis, X[:30])
    np.testing.assert_array_equal(again.transform(X), hasher.transform(X))


def test_feature_names_are_restored(objects, tmp_path):
    import pandas as pd

    frame = pd.DataFrame(objects[0], columns=[f"f{i}" for i in range(12)])
    hasher = LDAHash(4).fit(frame, objects[1])
    hasher.save(tmp_path / "m")
    again = kdiffhash.load(tmp_path / "m")
    np.testing.assert_array_equal(again.transform(frame), hasher.transform(frame))
    with pytest.raises(ValueError, match="feature names"):
        again.transform(frame.rename(columns={"f0": "other"}))


def test_the_header_is_plain_json(saved):
    content = saved[1].read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["kdiffhash"])
    assert header["class"] == "KernelDiffHash"
    assert header["format"] == 1
    assert header["params"]["n_bits"] == 20


def test_truncated_files_are_refused(saved):
    content = saved[1].read_bytes()
    for size in [*range(64), *range(64, len(content), 997), len(content) - 1]:
        saved[1].write_bytes(content[:size])
        with pytest.raises(ModelFileError):
            kdiffhash.load(saved[1])


def test_edited_files_are_refused(saved):
    content = bytearray(saved[1].read_bytes())
    rng = np.random.default_rng(0)
    for at in [*range(0, 2000, 13), *rng.integers(len(content), size=60)]:
        edited = content.copy()
        edited[at] ^= 1 << int(rng.integers(7))
        saved[1].write_bytes(edited)
        try:
            again = kdiffhash.load(saved[1])
        except (ModelFileError, OSError):
            continue
        # A flip that does not change the parsed JSON (in white space) does not change the model.
        np.testing.assert_array_equal(again.directions_, saved[0].directions_)
        assert again.get_params() == {**saved[0].get_params(), "n_jobs": None}


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x80\x04\x95pickle", b"PK\x03\x04"])
def test_foreign_files_are_refused(tmp_path, content):
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(ModelFileError, match="not a model file"):
        kdiffhash.load(tmp_path / "m")


def test_other_safetensors_newer_formats_and_folders_are_refused(saved, tmp_path):
    save_file({"a": np.zeros(3)}, tmp_path / "other")
    with pytest.raises(ModelFileError, match="was not written by kdiffhash"):
        kdiffhash.load(tmp_path / "other")
    arrays = load_file(saved[1])
    save_file(arrays, tmp_path / "new", metadata={"kdiffhash": '{"format": 99}'})
    with pytest.raises(ModelFileError, match="upgrade kdiffhash"):
        kdiffhash.load(tmp_path / "new")
    with pytest.raises(ModelFileError, match="folder"):
        kdiffhash.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        kdiffhash.load(tmp_path / "none")
    with pytest.raises(ValueError, match="holds a KernelDiffHash"):
        DiffHash.load(saved[1])


def forge(saved, tmp_path, change):
    """Return a file with a valid checksum whose header or arrays were changed."""
    header, arrays = model_file.read_model_file(saved[1])
    change(header, arrays)
    header["sha256"] = model_file.checksum(header, arrays)
    save_file(arrays, tmp_path / "forged", metadata={"kdiffhash": json.dumps(header)})
    return tmp_path / "forged"


@pytest.mark.parametrize(
    "change",
    [
        lambda h, a: a.update(basis_=np.zeros((50, 3000), np.float32)),
        lambda h, a: a.update(basis_=a["basis_"][:49]),
        lambda h, a: a.update(metric_=np.zeros((12, 2), np.float32)),
        lambda h, a: a.update(directions_=a["directions_"].astype(np.float64)),
        lambda h, a: a.update(thresholds_=np.full(20, np.nan, np.float32)),
        lambda h, a: a.update(thresholds_=np.zeros(20, np.int8)),
        lambda h, a: a.pop("directions_"),
        lambda h, a: h["params"].update(preprocess="hellingr"),
        lambda h, a: h["params"].update(surprise=1),
        lambda h, a: h["scalars"].update(gamma_="abc"),
        lambda h, a: h["scalars"].update(gamma_=-1.0),
        lambda h, a: h["scalars"].update(gamma_=float("nan")),
        lambda h, a: h["scalars"].update(gamma_=10**400),
        lambda h, a: a.update(basis_=a["basis_"][0]),
        lambda h, a: a.update(bit_fnr_=a["bit_fnr_"][:3]),
        lambda h, a: h["scalars"].update(n_features_in_=2),
        lambda h, a: h.update({"class": "BaseHasher"}),
        lambda h, a: h.pop("params"),
        lambda h, a: h["params"].update(n_jobs=10**6),
        lambda h, a: h["params"].update(verbose=True),
        lambda h, a: a.update({"param.n_jobs": np.ones(3)}),
        lambda h, a: a.update({"param.basis": np.ones(3)}),
        lambda h, a: h["params"].update(kernel_params={"dict": {"degree": 2}}),
        lambda h, a: h["params"].update(kernel="poly", kernel_params={"dict": {"degre": 2}}),
        lambda h, a: h["params"].update(kernel="poly", kernel_params={"dict": {"degree": "2"}}),
        lambda h, a: h["params"].update(kernel="poly", kernel_params={"dict": {"coef0": 10**400}}),
        lambda h, a: h["params"].update(kernel="poly", kernel_params=[2]),
        lambda h, a: h["params"].update(kernel="mahalanobis"),  # but no metric_
        lambda h, a: h["params"].update(n_positives=-1),
        lambda h, a: h["params"].update(random_state="abc"),
        lambda h, a: h["params"].update(n_basis=1.5),
        lambda h, a: h["params"].update(gamma=10**400),
        lambda h, a: h["params"].update(alpha={"float": "nan"}),
        lambda h, a: h["params"].update(alpha={"other": 1}),
        lambda h, a: h["scalars"].update(gamma_=1e300),
        lambda h, a: h["scalars"].update(gamma_=True),
        lambda h, a: h["scalars"].update(n_features_in_=True),
        lambda h, a: h["scalars"].update(feature_names_in_=["a"]),
        lambda h, a: h["scalars"].update(feature_names_in_=12 * [1]),
        lambda h, a: h.update({"class": ["KernelDiffHash"]}),
        lambda h, a: h.update(format=0),
        lambda h, a: h.update(scalars=[]),
        lambda h, a: a.update(bit_fpr_=np.full(20, 2.0)),
        lambda h, a: a.update(bit_ones_=np.full(20, np.nan)),
        lambda h, a: a.update(bit_spread_=np.full(20, np.inf)),
        lambda h, a: a.update(bit_spread_=-np.ones(20)),
        lambda h, a: a.update(thresholds_=a["thresholds_"][:, None]),
        lambda h, a: a.update(
            directions_=np.empty((10**12, 0), np.float32), basis_=np.empty((0, 12), np.float32)
        ),
    ],
)
def test_inconsistent_files_with_a_valid_checksum_are_refused(saved, tmp_path, change):
    with pytest.raises(ModelFileError):
        kdiffhash.load(forge(saved, tmp_path, change))


def test_names_in_a_file_cannot_replace_methods(saved, tmp_path, objects):
    path = forge(saved, tmp_path, lambda h, a: h["scalars"].update(transform=3))
    np.testing.assert_array_equal(
        kdiffhash.load(path).transform(objects[0]), saved[0].transform(objects[0])
    )


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2", "F8_E8M0", "U8"])
def test_arrays_of_types_that_no_model_has_are_refused(saved, kind):
    """The file claims that the bytes of a float32 array are numbers of one byte each."""
    content = saved[1].read_bytes()
    size = int.from_bytes(content[:8], "little")
    outer = json.loads(content[8 : 8 + size])
    n_bits = outer["thresholds_"]["shape"][0]
    outer["thresholds_"].update(dtype=kind, shape=[4 * n_bits])
    text = json.dumps(outer).encode()
    saved[1].write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])
    with pytest.raises(ModelFileError, match=r"is damaged|checksum"):
        kdiffhash.load(saved[1])


def test_pipes_are_refused_without_waiting_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not a regular file"):
        kdiffhash.load(tmp_path / "pipe")


def test_a_model_that_could_not_be_loaded_is_not_saved(saved):
    hasher, path = saved
    before = path.read_bytes()
    hasher.thresholds_ = np.full(20, np.nan, np.float32)
    with pytest.raises(ValueError, match="thresholds_ must have values from"):
        hasher.save(path)
    assert path.read_bytes() == before


def test_kernel_params_that_a_kernel_does_not_have_are_refused_by_fit(objects):
    for kernel, params, message in [
        ("poly", {"degre": 2}, "takes only coef0, degree, gamma"),
        ("linear", {"gamma": 2.0}, "takes none"),
        ("laplacian", {"gamma": -1.0}, "must be a finite number above 0, got -1.0"),
        ("sigmoid", {"coef0": "1"}, "must be a finite number, got '1'"),
    ]:
        hasher = KernelDiffHash(4, kernel=kernel, kernel_params=params, n_basis=20)
        with pytest.raises(ValueError, match=message):
            hasher.fit(*objects)


def test_a_deeply_nested_header_is_refused(saved, tmp_path):
    save_file({"a": np.zeros(3)}, tmp_path / "deep", metadata={"kdiffhash": "[" * 200_000})
    with pytest.raises(ModelFileError, match="damaged header"):
        kdiffhash.load(tmp_path / "deep")


def test_several_threads_can_save_to_one_path(saved):
    hasher, path = saved
    content = path.read_bytes()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: hasher.save(path), range(40)))
    assert path.read_bytes() == content
    assert len(list(path.parent.iterdir())) == 1


def test_symbolic_links_are_kept_and_special_files_refused(saved, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(saved[1])
    saved[0].save(link)
    assert link.is_symlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not a regular file"):
        saved[0].save(tmp_path / "pipe")


def test_a_basis_given_as_a_list_is_saved(objects, tmp_path):
    X, y = objects
    hasher = KernelDiffHash(8, basis=X[:20].tolist()).fit(X, y)
    hasher.save(tmp_path / "m")
    np.testing.assert_array_equal(kdiffhash.load(tmp_path / "m").transform(X), hasher.transform(X))


def test_functions_cannot_be_saved(objects, tmp_path):
    hasher = KernelDiffHash(8, kernel=lambda a, b: a @ b.T, n_basis=20).fit(*objects)
    with pytest.raises(ValueError, match="cannot be stored"):
        hasher.save(tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_old_file_intact(saved, objects):
    """A limit on file size simulates a full disk: writing fails half-way."""
    path = saved[1]
    before = path.read_bytes()
    code = f"""
import resource, signal, kdiffhash
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hasher = kdiffhash.load({str(path)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    hasher.save({str(path)!r})
except OSError as error:
    print("refused", error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "refused" in done.stdout
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["model_v1"])
def test_files_of_old_formats_stay_readable(name):
    expected = np.load(DATA / f"{name}.npz")
    hasher = kdiffhash.load(DATA / f"{name}.safetensors")
    np.testing.assert_allclose(hasher.project(expected["rows"]), expected["projections"], atol=1e-4)


# -- fingerprints ------------------------------------------------------------------------------

OLD_FINGERPRINTS = {  # as computed by version 0.1
    "model_v1": "c2b526dfcc498461bd78fd3da0c0eb84",
    ("sift", 128): "2880d152ee67eb5ea7c451a475c2be05",
    ("sift", 256): "bec1e621ebeafc7a5df893aa096a3fb2",
    ("rootsift", 256): "e42b4e9c7035454211f980b3cc9a5821",
}


def test_fingerprint_depends_only_on_what_determines_the_codes(objects, tmp_path):
    X, y = objects
    hasher = KernelDiffHash(8, n_basis=30, random_state=0).fit(X, y)
    original = fingerprint(hasher)
    hasher.save(tmp_path / "m")
    assert fingerprint(kdiffhash.load(tmp_path / "m")) == original
    for irrelevant in ({"n_positives": 7}, {"random_state": 3}, {"threshold_weight": 2.0}):
        assert fingerprint(copy.deepcopy(hasher).set_params(**irrelevant)) == original
    assert fingerprint(hasher.truncate(7)) != original
    assert fingerprint(KernelDiffHash(8, n_basis=30, random_state=1).fit(X, y)) != original
    for parameter in ({"kernel": "laplacian"}, {"preprocess": "unit"}):
        assert fingerprint(copy.deepcopy(hasher).set_params(**parameter)) != original
    moved = copy.deepcopy(hasher)
    moved.thresholds_ = np.nextafter(hasher.thresholds_, np.float32(9))
    assert fingerprint(moved) != original


def tanimoto(a, b):
    return a @ b.T


def test_fingerprint_of_a_kernel_function_uses_its_name(objects):
    X, y = objects
    one, other = (
        KernelDiffHash(4, n_basis=20, kernel=tanimoto, kernel_params=params, random_state=0)
        for params in (None, {})
    )
    assert fingerprint(one.fit(X, y)) == fingerprint(other.fit(X, y))


def test_half_accepts_a_collection_of_known_arrays_only(objects, tmp_path):
    hasher = LDAHash(4).fit(*objects)
    for wrong in ("directions_", ["direction_"]):
        with pytest.raises(ValueError, match="half must be a collection of names"):
            hasher.save(tmp_path / "m", half=wrong)


def test_models_for_sift_and_rootsift_have_the_same_fingerprint():
    sift, rootsift = (kdiffhash.load_pretrained(name, 256) for name in ("sift", "rootsift"))
    rows = np.random.default_rng(0).integers(0, 100, (200, 128))
    roots = np.sqrt(rows / rows.sum(axis=1, keepdims=True))
    np.testing.assert_array_equal(sift.transform(rows), rootsift.transform(roots))
    assert fingerprint(sift) == fingerprint(rootsift)
    assert is_same_model(rootsift, fingerprint(sift))


def test_old_fingerprints_are_accepted():
    hasher = kdiffhash.load(DATA / "model_v1.safetensors")
    assert is_same_model(hasher, OLD_FINGERPRINTS["model_v1"])
    assert not is_same_model(hasher, OLD_FINGERPRINTS["sift", 128])
    for name in ("sift", "rootsift"):
        hasher = kdiffhash.load_pretrained(name, 256)
        assert is_same_model(hasher, OLD_FINGERPRINTS["sift", 256])
        assert is_same_model(hasher, OLD_FINGERPRINTS["rootsift", 256])
        assert not is_same_model(hasher, OLD_FINGERPRINTS["sift", 128])
        assert is_same_model(hasher.truncate(128), OLD_FINGERPRINTS["sift", 128])


# -- other models -------------------------------------------------------------------------------


def test_cross_hasher_is_restored(objects, tmp_path):
    X, _ = objects
    Y = X @ np.random.default_rng(0).normal(size=(12, 9))
    model = CrossDiffHash(
        6, x=KernelDiffHash(n_basis=40), alpha=np.inf, n_negatives=900, random_state=0
    ).fit(X, Y)
    model.save(tmp_path / "m")
    again = kdiffhash.load(tmp_path / "m")
    assert isinstance(again, CrossDiffHash)
    for restored, original in zip(again.transform(X, Y), model.transform(X, Y)):
        np.testing.assert_array_equal(restored, original)
    assert (again.alpha, again.n_negatives, again.x.n_basis) == (np.inf, 900, 40)
    again.save(tmp_path / "again")
    assert (tmp_path / "m").read_bytes() == (tmp_path / "again").read_bytes()
    with pytest.raises(ValueError, match="holds a CrossDiffHash, not a LDAHash"):
        LDAHash.load(tmp_path / "m")


def test_sequential_matcher_is_restored(tmp_path):
    rng = np.random.default_rng(0)
    codes = rng.integers(256, size=(3000, 9), dtype=np.uint8)
    codes = np.concatenate([codes, codes ^ np.packbits(rng.random((3000, 72)) < 0.1, axis=1)])
    pairs = np.stack([np.arange(3000), np.arange(3000) + 3000], axis=1)
    pairs = np.concatenate([pairs, np.roll(pairs, 1, axis=0) * [1, 0] + [0, 7]])
    matcher = SequentialMatcher(fpr=1e-2).fit(codes, pairs, np.arange(6000) < 3000)
    matcher.save(tmp_path / "m")
    again = SequentialMatcher.load(tmp_path / "m")
    assert again.expected_ == matcher.expected_
    for restored, original in zip(
        again.decide(codes, codes, pairs), matcher.decide(codes, codes, pairs)
    ):
        np.testing.assert_array_equal(restored, original)
    with pytest.raises(ValueError, match="call fit first"):
        SequentialMatcher().save(tmp_path / "n")
    header, arrays = model_file.read_model_file(tmp_path / "m")
    arrays["accept_"] = arrays["accept_"][:1]
    model_file.write_model_file(
        tmp_path / "m", {k: header[k] for k in header if k != "format"}, arrays
    )
    with pytest.raises(ModelFileError, match=r"accept_ must hold int32 numbers in the shape \(3\)"):
        kdiffhash.load(tmp_path / "m")


@pytest.mark.parametrize(
    "change",
    [
        lambda h, a: h["params"].update(n_jobs=10**6),
        lambda h, a: h["params"].update(fpr=2),
        lambda h, a: h["scalars"].update(n_bits_="64"),
        lambda h, a: h["scalars"].update(n_bits_=10**400),
        lambda h, a: h["scalars"]["expected_"].update(fpr=None),
        lambda h, a: h["scalars"]["expected_"].update(fpr_interval=[0.1]),
        lambda h, a: h["scalars"]["expected_"].update(bits_similar=65),
        lambda h, a: a.update(accept_=a["accept_"] + np.int32(1000)),
        lambda h, a: a.pop("reject_"),
    ],
)
def test_matchers_with_wrong_insides_are_refused(tmp_path, change):
    rates = dict.fromkeys(("fpr", "fnr", "whole_fnr", "bits_similar", "bits_dissimilar"), 0.5)
    expected = {**rates, "fpr_interval": [0.0, 1.0], "fnr_interval": [0.0, 1.0]}
    scalars = {"n_bits_": 64, "expected_": expected}
    header = {"class": "SequentialMatcher", "params": {"fpr": 0.01, "fnr": None}}
    header["scalars"] = scalars
    arrays = {"accept_": np.array([3, 9], np.int32), "reject_": np.array([20, 10], np.int32)}
    model_file.write_model_file(tmp_path / "m", header, arrays)
    assert kdiffhash.load(tmp_path / "m").n_bits_ == 64
    change(header, arrays)
    model_file.write_model_file(tmp_path / "m", header, arrays)
    with pytest.raises(ModelFileError, match="does not describe a model"):
        kdiffhash.load(tmp_path / "m")


@pytest.mark.parametrize(
    "change",
    [
        lambda h, a: h["params"].update(n_jobs=10**6),
        lambda h, a: h["sides"]["x"]["params"].update(n_jobs=10**6),
        lambda h, a: h["sides"]["x"].update({"class": "LDAHash"}),
        lambda h, a: h["sides"].pop("y"),
        lambda h, a: h.update(sides=[1]),
        lambda h, a: a.update({"x.thresholds_": a["x.thresholds_"][:3]}),
    ],
)
def test_cross_hashers_with_wrong_insides_are_refused(objects, tmp_path, change):
    X, _ = objects
    CrossDiffHash(4, n_negatives=900, random_state=0).fit(X, X[:, :9]).save(tmp_path / "m")
    with pytest.raises(ModelFileError, match="does not describe a model"):
        kdiffhash.load(forge((None, tmp_path / "m"), tmp_path, change))
