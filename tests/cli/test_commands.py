"""`kdiffhash train`, `encode`, `eval` and `info`, and errors of the command line."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import kdiffhash
from kdiffhash.cli.inputs import pairs_of, read_all


@pytest.fixture(scope="module")
def folder(objects, tmp_path_factory, command):
    root = tmp_path_factory.mktemp("cli")
    X, y = objects
    np.save(root / "x.npy", X)
    np.save(root / "y.npy", y)
    np.savez(root / "all.npz", X=X, y=y)
    pairs, similar = kdiffhash.draw_pairs(y, 500, 900, random_state=0)
    np.savez_compressed(root / "pairs.npz", X=X, pairs=pairs, similar=similar)
    scene = root / "scene"
    scene.mkdir()
    np.save(scene / "sift.npy", np.clip(20 * X + 100, 0, 255).astype(np.uint8))
    lines = [f"{label} {i % 4}" for i, label in enumerate(y)]
    (scene / "info.txt").write_text("\n".join(lines) + "\n")
    tests = [f"{4 * t} {t} 0 {4 * t + 1} {t} 0" for t in range(150)]
    tests += [f"{4 * t} {t} 0 {4 * t + 5} {t + 1} 0" for t in range(149)]
    (scene / "m50_299_299_0.txt").write_text("\n".join(tests) + "\n")
    command("train", root / "x.npy", "--labels", root / "y.npy", "-o", root / "model", "--bits", 20)
    return root


def test_train_gives_the_same_model_as_python(folder, objects):
    X, y = objects
    model = kdiffhash.load(folder / "model")
    expected = kdiffhash.KernelLDAHash(20, random_state=0).fit(X, y)
    np.testing.assert_array_equal(model.transform(X), expected.transform(X))


@pytest.mark.parametrize("method", ["kernel-lda", "kernel-diff", "lda", "diff", "boosted", "itq"])
def test_train_supports_every_method(folder, method, tmp_path, command):
    arguments = ["--method", method, "--bits", 8, "--positives", 500, "--negatives", 500]
    result = command("train", folder / "all.npz", "-o", tmp_path / "m", *arguments, "--json")
    assert result["bits"] == 8
    assert result["preprocess"] is None
    assert kdiffhash.load(tmp_path / "m").n_bits_ == 8


def test_train_on_explicit_pairs_and_on_scenes(folder, tmp_path, command):
    result = command(
        "train", folder / "pairs.npz", "-o", tmp_path / "m", "--method", "lda", "--json"
    )
    assert result["trained_on_pairs"] == 1400
    scene = folder / "scene"
    result = command("train", scene, scene, "-o", tmp_path / "m", "--across-groups", "--json")
    assert result["preprocess"] == "hellinger"
    assert result["trained_on_rows"] == 1200


@pytest.mark.parametrize("n_scenes", [1, 2])
def test_patches_of_uncertain_label_are_in_no_training_pair(n_scenes, tmp_path):
    rng = np.random.default_rng(0)
    paths, masks, points = [], [], np.repeat(np.arange(30), 4)
    for i in range(n_scenes):
        path = tmp_path / f"scene{i}"
        path.mkdir()
        np.savetxt(path / "info.txt", np.column_stack([points, np.tile(np.arange(4), 30)]), "%d")
        np.save(path / "sift.npy", rng.integers(256, size=(120, 16), dtype=np.uint8))
        masks.append(rng.random(120) < 0.6)
        np.save(path / "confident.npy", masks[-1])
        paths.append(path)
    (tmp_path / "certain").mkdir()  # a scene without the file: all of its labels are certain
    for name in ("info.txt", "sift.npy"):
        (tmp_path / "certain" / name).write_bytes((paths[0] / name).read_bytes())
    if n_scenes > 1:
        paths, masks = [*paths, tmp_path / "certain"], [*masks, np.ones(120, bool)]
    data = read_all(paths, None, "sift")
    for across_groups in (False, True):
        pairs, similar = pairs_of(data, 10_000, 5000, across_groups, 0)
        # Enough pairs are drawn to meet every row that may be drawn, and no other.
        np.testing.assert_array_equal(np.unique(pairs), np.flatnonzero(np.concatenate(masks)))
        objects = np.arange(len(data.rows)) // 4
        np.testing.assert_array_equal(objects[pairs[:, 0]] == objects[pairs[:, 1]], similar)


@pytest.mark.parametrize("name", ["x.npy", "all.npz", "pairs.npz"])
def test_encode_gives_the_same_codes_as_python(folder, objects, tmp_path, name, command):
    result = command("encode", folder / "model", folder / name, "-o", tmp_path / "c.npy", "--json")
    assert result["shape"] == [600, 3]
    codes = np.load(tmp_path / "c.npy")
    np.testing.assert_array_equal(codes, kdiffhash.load(folder / "model").transform(objects[0]))
    command("encode", folder / "model", folder / name, "-o", tmp_path / "s.npy", "--bits", 10)
    assert np.load(tmp_path / "s.npy").shape == (600, 2)


def test_eval_gives_the_same_rates_as_python(folder, objects, command):
    X, y = objects
    arguments = ["--positives", 900, "--negatives", 5000, "--bits", 8, "--json"]
    result = command("eval", folder / "model", folder / "all.npz", *arguments)
    pairs, similar = kdiffhash.draw_pairs(y, 900, 5000, random_state=0)
    hasher = kdiffhash.load(folder / "model")
    curve = kdiffhash.roc(hasher.pair_distance(X, pairs), similar)
    by_name = {(row["method"], row["n_bits"]): row for row in result["rows"]}
    row = by_name["KernelLDAHash", 20]
    assert row["fnr_at_1e-2"] == pytest.approx(curve.fnr_at(0.01))
    assert row["fpr95"] == pytest.approx(curve.fpr95)
    assert row["fpr95_interval"][0] <= row["fpr95"] <= row["fpr95_interval"][1]
    assert row["fnr_at_1e-4"] is None  # too few negative pairs to measure it
    euclidean = np.linalg.norm(X[pairs[:, 0]] - X[pairs[:, 1]], axis=1)
    euclidean_curve = kdiffhash.roc(euclidean, similar)
    assert by_name["Euclidean", 384]["auc"] == pytest.approx(euclidean_curve.auc)
    assert ("KernelLDAHash", 8) in by_name


def test_eval_on_a_scene_uses_its_test_list(folder, tmp_path, command):
    command("train", folder / "scene", "-o", tmp_path / "m", "--bits", 16)
    result = command("eval", tmp_path / "m", folder / "scene", "--negatives", 4000, "--json")
    assert (result["positives"], result["negatives"]) == (150, 4000)
    text = command("eval", tmp_path / "m", folder / "scene", "--negatives", 4000, "--resamples", 0)
    assert "Euclidean" in text


def test_info_describes_a_model_file(folder, command):
    result = command("info", folder / "model", "--json")
    assert result["class"] == "KernelLDAHash"
    assert (result["bits"], result["bytes_per_code"], result["input_features"]) == (20, 3, 12)
    assert result["parameters"]["n_basis"] == 1000
    assert "KernelLDAHash" in command("info", folder / "model")


def test_info_agrees_with_python_for_every_class(objects, tmp_path, command):
    X, y = objects
    pairs, similar = kdiffhash.draw_pairs(y, 300, 300, random_state=0)
    cross = kdiffhash.CrossDiffHash(8, random_state=0).fit_pairs(X, pairs, similar, Y=X[:, :9])
    cross.save(tmp_path / "cross")
    info = command("info", tmp_path / "cross", "--json")
    assert info["class"] == "CrossDiffHash"
    assert info["input_features"] == {"x": 12, "y": 9}
    assert (info["bits"], info["bytes_per_code"]) == (8, 1)
    for hasher in (
        kdiffhash.ITQHash(8, preprocess="unit"),
        kdiffhash.BoostedHash(9),
        kdiffhash.LDAHash(8),
    ):
        hasher.set_params(random_state=0).fit(X, y).save(tmp_path / "m")
        info = command("info", tmp_path / "m", "--json")
        assert info["class"] == type(hasher).__name__
        assert info["preprocess"] == hasher.preprocess
        not_stored = ("n_jobs", "verbose")
        stored = {name: v for name, v in hasher.get_params().items() if name not in not_stored}
        assert info["parameters"] == stored
        if hasattr(hasher, "bit_fnr_"):
            assert info["mean_bit_fnr"] == pytest.approx(hasher.bit_fnr_.mean())


def test_info_describes_the_installation(command, folder):
    info = command("info", "--system", "--json")
    assert info["kdiffhash"] == kdiffhash.__version__
    assert info["numpy"] == np.__version__
    assert info["instruction_set"] in ("base", "avx2", "avx512")
    assert info["threads"] >= 1
    assert "instruction set" in command("info", "--system")
    both = command("info", folder / "model", "--system", "--json")
    assert both["class"] == "KernelLDAHash"
    assert both["threads"] == info["threads"]
    assert "--system" in command("info", fail=True)


def test_commands_on_codes_import_neither_scikit_learn_nor_scipy(folder, tmp_path):
    codes = np.random.default_rng(0).integers(0, 256, (50, 8), dtype=np.uint8)
    np.save(tmp_path / "codes.npy", codes)
    code = """
import sys
from kdiffhash import cli
try:
    cli.main()
except SystemExit as end:
    assert not end.code
print("heavy:", [name for name in ("sklearn", "scipy", "joblib", "pandas") if name in sys.modules])
"""
    for arguments in (
        ["--help"],
        ["info", folder / "model"],
        ["info", "--system"],
        ["index", "--help"],
        ["index", "build", "codes.npy", "-o", "x.index"],
        ["index", "add", "x.index", "codes.npy"],
        ["index", "search", "x.index", "codes.npy", "-k", "3"],
        ["index", "radius", "x.index", "codes.npy", "--radius", "9"],
        ["index", "duplicates", "x.index", "--radius", "0"],
        ["index", "verify", "x.index"],
        ["index", "info", "x.index"],
        ["index", "compact", "x.index"],
    ):
        line = [sys.executable, "-c", code, *map(str, arguments)]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "heavy: []", arguments


def test_info_prints_paths_with_brackets_and_infinite_parameters(objects, tmp_path, command):
    path = tmp_path / "a[/b].safetensors"  # looks like markup of rich
    path.parent.mkdir()
    kdiffhash.DiffHash(4, alpha=np.inf).fit(*objects).save(path)
    assert command("info", path, "--json")["parameters"]["alpha"] == "inf"
    assert "b].safetensors" in command("info", path)


def test_help_and_version_are_printed(command):
    assert command("--version").strip() == f"kdiffhash {kdiffhash.__version__}"
    for name in ("train", "encode", "eval", "info"):
        assert name in command("--help")
        assert "--json" in command(name, "--help")


def test_invalid_input_is_reported_in_one_sentence(folder, tmp_path, command):
    model, x, out = folder / "model", folder / "x.npy", tmp_path / "out.npy"
    np.save(tmp_path / "narrow.npy", np.zeros((5, 3)))
    np.save(tmp_path / "flat.npy", np.zeros(5))
    nan = np.zeros((30_000, 12))
    nan[0, 3] = np.nan
    np.save(tmp_path / "nan.npy", nan)
    np.save(tmp_path / "one_label.npy", np.zeros(600))
    np.save(tmp_path / "three_labels.npy", np.zeros(3))
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    np.savez(tmp_path / "none.npz", q=np.zeros(3))
    (tmp_path / "misnamed.npy").write_bytes((folder / "all.npz").read_bytes())
    (tmp_path / "misnamed.npz").write_bytes(x.read_bytes())
    (tmp_path / "rows.csv").write_text("1,2,3")
    flipped = bytearray((folder / "all.npz").read_bytes())
    flipped[3000] ^= 255  # inside the array, so that the checksum of the archive fails
    (tmp_path / "flipped.npz").write_bytes(flipped)
    (tmp_path / "cut.npy").write_bytes(x.read_bytes()[:500])
    (tmp_path / "cut.npz").write_bytes((folder / "all.npz").read_bytes()[:500])
    cases = [
        (["encode", model, tmp_path / "narrow.npy", "-o", out], "expecting 12 features"),
        (["encode", model, tmp_path / "flat.npy", "-o", out], "must hold rows"),
        (["encode", model, tmp_path / "nan.npy", "-o", out], "NaN in row 0"),
        (["encode", model, tmp_path / "cut.npy", "-o", out], "not a readable"),
        (["encode", model, tmp_path / "cut.npz", "-o", out], "cut.npz"),
        (["encode", model, tmp_path / "objects.npy", "-o", out], "not a readable"),
        (["encode", model, tmp_path / "none.npz", "-o", out], "must have an array named X"),
        (["encode", model, tmp_path / "missing.npy", "-o", out], "No such file"),
        (["encode", model, x, "-o", tmp_path / "nowhere" / "c.npy"], "does not exist"),
        (["encode", model, x, "-o", tmp_path / "c.txt"], "must end in .npy"),
        (["encode", x, x, "-o", out], "not a model file"),
        (["encode", model, x, "-o", out, "--bits", 21], "from 1 to 20"),
        (["encode", model, tmp_path / "misnamed.npy", "-o", out], "is an .npz file"),
        (["train", tmp_path / "misnamed.npz", "-o", tmp_path / "m"], "rename it to .npy"),
        (["encode", model, tmp_path / "flipped.npz", "-o", out], "flipped.npz"),
        (["encode", model, tmp_path / "rows.csv", "-o", out], "rows are read from"),
        (["eval", model, folder / "all.npz", "--bits", 24], "the model has 20 bits"),
        (
            ["train", folder / "pairs.npz", "-o", tmp_path / "m", "--across-groups"],
            "explicit pairs",
        ),
        (["eval", model, x], "--labels"),
        (["train", x, "-o", tmp_path / "m"], "--labels"),
        (["train", x, "--labels", tmp_path / "one_label.npy", "-o", tmp_path / "m"], "one class"),
        (["train", x, "--labels", tmp_path / "three_labels.npy", "-o", tmp_path / "m"], "600 rows"),
        (["train", folder / "all.npz", "-o", tmp_path / "m", "--bits", 2000], "raise n_basis"),
        (["train", folder / "all.npz", "-o", tmp_path / "m", "--across-groups"], "needs groups"),
        (["train", "no-such-scene", "-o", tmp_path / "m"], "no scene"),
        (["info", tmp_path], "folder"),
        (["train", x], "out"),
        (["nonsense"], "No such command"),
    ]
    for arguments, message in cases:
        assert message in command(*arguments, fail=True).replace("\n", " "), arguments
    assert not out.exists()
    assert not (tmp_path / "m").exists()


def test_full_disk_leaves_the_existing_codes_unchanged(folder, tmp_path):
    out = tmp_path / "codes.npy"
    out.write_bytes(b"old codes")
    code = f"""
import resource, signal, sys
from kdiffhash.cli import main
import kdiffhash.hashers, kdiffhash.hashers.model_file, kdiffhash.cli.inputs, rich.console
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
sys.argv = ["kdiffhash", "encode", {str(folder / "model")!r}, {str(folder / "x.npy")!r},
            "-o", {str(out)!r}]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "error: File too large" in done.stderr
    assert out.read_bytes() == b"old codes"
    assert [p.name for p in tmp_path.iterdir()] == ["codes.npy"]


def test_eval_warns_about_the_training_data_and_too_few_pairs(folder, tmp_path, command, capfd):
    def run(*words):
        line = [sys.executable, "-m", "kdiffhash", *map(str, words), "--resamples", "0"]
        return subprocess.run(line, capture_output=True, text=True, check=True).stderr

    model = tmp_path / "model"
    command("train", folder / "all.npz", "-o", model, "--method", "lda", "--bits", 8)
    result = command("eval", model, folder / "all.npz", "--resamples", 0, "--json")
    assert result["training_data"] is True
    assert "was trained on this data" in run("eval", model, folder / "all.npz")
    assert "trained on this data" not in run("eval", model, folder / "all.npz", "--quiet")
    X, y = np.load(folder / "x.npy"), np.load(folder / "y.npy")
    np.savez(tmp_path / "other.npz", X=X[::2], y=y[::2])
    other = run("eval", model, tmp_path / "other.npz", "--negatives", "2000")
    assert "trained on this data" not in other
    assert "2,000 negative pairs are too few" in other
    assert "0.01 %; it takes at least --negatives 30000" in other
    # Several training sets are recorded one by one, and the model is otherwise the same.
    other, plain = tmp_path / "other.npz", kdiffhash.load(model)
    command("train", other, folder / "all.npz", "-o", model, "--method", "lda", "--bits", 8)
    assert "was trained on this data" in run("eval", model, other)
    kdiffhash.LDAHash(8, random_state=0).fit(X, y).save(tmp_path / "plain")
    np.testing.assert_array_equal(
        plain.transform(X), kdiffhash.load(tmp_path / "plain").transform(X)
    )


def test_train_warns_about_more_bits_than_classes(objects, tmp_path, command, capsys):
    X, y = objects
    np.savez(tmp_path / "few.npz", X=X, y=y % 5)
    line = [sys.executable, "-m", "kdiffhash", "train", "few.npz", "-o", "m", "--method", "lda"]
    done = subprocess.run(
        [*line, "--bits", "8"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "8 bits were learned from 5 classes" in done.stderr
    done = subprocess.run(
        [*line, "--bits", "4"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def test_floats_given_to_search_are_refused_with_what_to_do(folder, tmp_path, command):
    command("encode", folder / "model", folder / "x.npy", "-o", tmp_path / "codes.npy")
    command("index", "build", tmp_path / "codes.npy", "-o", tmp_path / "i", "--bits", 20)
    message = command("index", "search", tmp_path / "i", folder / "x.npy", fail=True)
    assert "kdiffhash encode" in message


def test_warnings_of_python_are_printed_in_one_line(objects, tmp_path):
    X, y = objects
    np.savez(tmp_path / "rows.npz", X=np.hstack([X[:, :2], np.zeros((len(X), 2))]), y=y)
    line = [sys.executable, "-m", "kdiffhash", "train", "rows.npz", "-o", "m", "--bits", "4"]
    run = [*line, "--method", "diff"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True)
    (warning,) = done.stderr.splitlines()
    assert warning.startswith("warning: ")
    assert "constant" in warning
    quiet = subprocess.run([*run, "-q"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert quiet.stderr == ""
