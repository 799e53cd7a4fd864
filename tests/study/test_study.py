"""The study from end to end, on small scenes."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from small_scenes import make_scene, small

from kdiffhash import KernelDiffHash, hamming
from kdiffhash.cli.study_command import repeat_options
from kdiffhash.datasets import load_scene
from kdiffhash.study import run_study
from kdiffhash.study.methods import METHODS
from kdiffhash.study.plan import Plan, load_test, load_train
from kdiffhash.study.report import summary


def study(out, scenes, train=("hill",), test=("house",), **options):
    with mock.patch("kdiffhash.study.run.quick_plan", small):
        return run_study(
            out,
            train_scenes=[str(scenes / name) for name in train],
            test_scenes=[str(scenes / name) for name in test],
            quick=True,
            **options,
        )


def fnr(distances, similar, fpr):
    """FNR where a share of the negatives passes, by sorting; ties interpolated."""
    negatives, positives = np.sort(distances[~similar]), distances[similar]
    levels = np.unique(distances)
    passed = np.searchsorted(negatives, levels, side="right") / len(negatives)
    found = np.array([(positives <= level).mean() for level in levels])
    return 1 - np.interp(fpr, np.append(0, passed), np.append(0, found))


def test_every_method_is_measured_at_every_length(small_study):
    results, out = small_study
    assert results.errors == []
    content = json.loads((out / "results.json").read_text())
    seen = {(row["method"], row["n_bits"]) for row in content["rows"]}
    lengths = [32, 64, 128, 256, 512]
    expected = {("sift", 1024), ("rootsift", 1024), ("metric", 4096)}
    everywhere = ("kdif", "kernel-lda", "refined", "random", "spectral", "sklsh", "klsh")
    expected |= {(name, n) for name in everywhere for n in lengths}
    expected |= {
        (name, n) for name in ("dif", "dif-paper", "lda", "lda-paper") for n in lengths[:3]
    }
    expected |= {(name, n) for name in ("itq", "pca") for n in lengths[:3]}
    expected |= {("kdif-paper", n) for n in lengths}
    expected |= {(name, n) for name in ("boosted", "boosted-paper", "sdh") for n in (32, 64)}
    assert seen == expected
    for row in content["rows"]:
        for rate in ("fnr_at_1e-2", "fnr_at_1e-3", "fnr_at_1e-4", "fpr95", "auc"):
            assert 0 <= row[f"{rate}_low"] <= row[f"{rate}_high"] <= 1
        assert row["fnr_at_1e-2"] <= row["fnr_at_1e-3"] <= row["fnr_at_1e-4"]
    with (out / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(content["rows"])
    assert float(rows[0]["fpr95"]) == content["rows"][0]["fpr95"]


def test_rates_are_those_of_the_pairs(small_study, small_scenes):
    results, _ = small_study
    plan = results.plan
    test = load_test(plan, str(small_scenes / "house"))
    assert test.similar.sum() == 300 * 6
    assert (~test.similar).sum() == 20_000
    rows = np.asarray(test.scene.descriptors, float)
    a, b = test.pairs.T
    sift = np.linalg.norm(rows[a] - rows[b], axis=1)
    value, samples = results.rate("hill", "house", "sift", None, "fnr_at_1e-3")
    assert value == pytest.approx(fnr(sift, test.similar, 1e-3), abs=1e-9)
    assert len(samples) == 30
    chosen = results.trained["hill", "kdif"][0].choice["settings"]
    data = load_train(plan, str(small_scenes / "hill"))
    hasher = KernelDiffHash(
        512, n_basis=512, preprocess="hellinger", random_state=0, **chosen
    ).fit_pairs(data.scene.descriptors, data.pairs, data.similar)
    codes = hasher.transform(test.scene.descriptors)
    value, _ = results.rate("hill", "house", "kdif", 512, "fnr_at_1e-2")
    assert value == pytest.approx(fnr(hamming(codes[a], codes[b]), test.similar, 1e-2), abs=1e-9)


def test_results_contain_the_grid_and_the_choice(small_study):
    _, out = small_study
    settings = json.loads((out / "results.json").read_text())["settings"]
    for name, method in METHODS.items():
        if method.grid and method.in_quick:
            choice = settings[f"{name} on hill"]
            rates = [row["fnr_at_1e-3"] for row in choice["grid"]]
            assert len(rates) == np.prod([len(values) for values in method.grid.values()])
            assert choice["settings"] == choice["grid"][int(np.argmin(rates))]["settings"]


def test_axis_ticks_are_plain_numbers(small_study):
    (path,) = (small_study[1] / "figures").glob("roc-*.svg")
    found = re.findall(r"<!-- ([^a-z]+) -->", path.read_text())
    assert {"0.0001", "0.001", "0.01", "0.1", "1"} <= set(found)


def test_figures_are_written_as_png_svg_and_pdf(small_study):
    _, out = small_study
    names = {path.stem for path in (out / "figures").glob("*.svg")}
    case = "hill-to-house"
    paper = {f"paper-roc-{case}", f"paper-size-{case}"}
    assert names == {"pair", f"roc-{case}", f"size-{case}", "matches", "alpha", *paper}
    for name in names:
        assert (out / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert (out / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_figures_of_patches_show_certain_labels_only_and_say_if_they_are_recovered(
    small_scenes, tmp_path
):
    scene = make_scene(tmp_path / "tower", 60, 2)
    certain = scene.points % 3 > 0
    np.save(tmp_path / "tower" / "confident.npy", certain)
    (tmp_path / "tower" / "meta.json").write_text('{"labels": "recovered from their order"}')
    (tmp_path / "hill").symlink_to(small_scenes / "hill")
    results = study(
        tmp_path / "out",
        tmp_path,
        test=("tower",),
        methods=["sift", "dif-paper", "kdif-paper"],
        lengths=[32],
    )
    shown = results.extras["matches"]["gallery"]
    assert len(shown["queries"]) == 5
    uncertain = {patch.tobytes() for patch in scene.patches[np.flatnonzero(~certain)]}
    patches = [*shown["patches"].values(), *shown["pair"]["patches"]]
    assert not {patch.tobytes() for patch in patches} & uncertain
    for name in ("pair", "matches", "paper-roc-hill-to-tower", "size-hill-to-tower"):
        text = (tmp_path / "out" / "figures" / f"{name}.svg").read_text()
        assert "tower (labels recovered)" in text


def test_nothing_is_trained_or_measured_twice(small_study, small_scenes):
    _, out = small_study
    before = (out / "results.json").read_text()
    stamps = {path: path.stat().st_mtime_ns for path in (out / "work").iterdir()}
    broken = mock.Mock(side_effect=AssertionError("trained again"))
    with (
        mock.patch("kdiffhash.study.train._fit", broken),
        mock.patch("kdiffhash.study.measure._distances", broken),
    ):
        study(out, small_scenes)
    assert {path: path.stat().st_mtime_ns for path in (out / "work").iterdir()} == stamps
    assert (out / "results.json").read_text() == before


_SMALL = """
import sys
sys.path.insert(0, sys.argv[1])
from unittest import mock
from small_scenes import small
from kdiffhash.study import run_study
with mock.patch("kdiffhash.study.run.quick_plan", small):
    run_study(sys.argv[2], train_scenes=[sys.argv[3]], test_scenes=[sys.argv[4]],
              methods=["sift", "dif", "lda", "random"], lengths=[32, 64], quick=True)
"""


def without_times(path):
    content = json.loads(path.read_text())
    for row in content["rows"]:
        del row["encode_ns"], row["compare_ns"]
    for settings in content["settings"].values():
        del settings["seconds"]
    del content["comparison_times"]
    content["claims"] = [c for c in content["claims"] if "cheaper" not in c["claim"]]
    return content


@pytest.mark.slow
def test_a_killed_study_resumes(small_scenes, tmp_path):
    here = str(Path(__file__).parent)
    scenes = [str(small_scenes / name) for name in ("hill", "house")]

    def command(out):
        return [sys.executable, "-c", _SMALL, here, str(tmp_path / out), *scenes]

    process = subprocess.Popen(command("killed"))
    work = tmp_path / "killed" / "work"
    while not list(work.glob("dif-on-hill-*.json")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "results.json").exists()
    notes = [path.stem for path in work.glob("*-on-hill-*.json")]
    trained = {p: p.stat().st_mtime_ns for note in notes for p in work.glob(f"{note}.*")}
    assert len(trained) >= 2  # a note and a model
    subprocess.run(command("killed"), check=True)
    assert {path: path.stat().st_mtime_ns for path in trained} == trained
    subprocess.run(command("whole"), check=True)
    killed, whole = (without_times(tmp_path / out / "results.json") for out in ("killed", "whole"))
    assert killed == whole


def test_a_scene_that_is_trained_and_tested_on_is_split(small_scenes, tmp_path):
    names = tuple(str(small_scenes / name) for name in ("hill", "house"))
    plan = small(Plan(names, names[:1], ("sift",)))
    train, test = load_train(plan, names[0]), load_test(plan, names[0])
    assert not set(train.scene.points) & set(test.scene.points)
    assert len(train.scene) + len(test.scene) == 1200
    assert len(load_train(plan, names[1]).scene) == 1200
    results = study(
        tmp_path, small_scenes, ("hill", "house"), ("hill",), methods=["sift", "kdif"], lengths=[64]
    )
    assert results.cases == [("hill", "hill"), ("house", "hill")]
    (general,) = (c for c in results.extras["claims"] if c.claim.startswith("Codes generalise"))
    assert general.recommended["0.1 %"].mean is not None


def test_named_cases_test_on_whole_scenes_but_on_half_of_their_own(small_scenes, tmp_path):
    """notredame -> notredame and trevi -> notredame: only the first needs a half."""
    hill, house = (str((small_scenes / name).resolve()) for name in ("hill", "house"))
    with mock.patch("kdiffhash.study.run.quick_plan", small):
        results = run_study(
            tmp_path,
            cases=[(hill, hill), (house, hill)],
            methods=["sift", "kdif"],
            lengths=[64],
            quick=True,
        )
    assert results.cases == [("hill", "hill"), ("house", "hill")]
    own, other = (load_test(results.plan, hill, is_own=is_own) for is_own in (True, False))
    assert (len(own.scene), len(other.scene)) == (600, 1200)
    for case, test in zip(results.cases, (own, other)):
        rows = np.asarray(test.scene.descriptors, float)
        a, b = test.pairs.T
        sift = np.linalg.norm(rows[a] - rows[b], axis=1)
        value, _ = results.rate(*case, "sift", None, "fnr_at_1e-3")
        assert value == pytest.approx(fnr(sift, test.similar, 1e-3), abs=1e-9)
    # Rates on different pairs are not compared.
    (general,) = (c for c in results.extras["claims"] if c.claim.startswith("Codes generalise"))
    assert general.recommended[""].verdict == "not tested"


OWN = """
import numpy as np
class Signs:
    def __init__(self, n_bits=64): self.n_bits = n_bits
    def fit(self, X, y): self.mean = X.mean(0); return self
    def transform(self, X):
        return np.packbits((X > self.mean)[:, : self.n_bits], axis=1)
class Halves:
    def fit(self, X, y): return self
    def transform(self, X): return X[:, :64].astype(np.float32)
class Broken:
    def fit(self, X, y): raise ValueError("it does not like hills")
    def transform(self, X): return X
"""


def test_user_methods_run_and_a_failing_one_is_reported(
    small_scenes, small_study, tmp_path, capsys
):
    (tmp_path / "own.py").write_text(OWN)
    model = next((small_study[1] / "work").glob("lda-on-hill*.safetensors"))
    for name in ("hill", "house"):
        scene = load_scene(small_scenes / name)
        np.save(scene.path / "mine.npy", np.asarray(scene.descriptors[:, :32], np.float32))
    own = [f"{tmp_path / 'own.py'}:{name}" for name in ("Signs", "Halves", "Broken")]
    out = tmp_path / "out"
    results = study(out, small_scenes, methods=["sift", *own, str(model), "mine"], lengths=[64])
    assert [error["where"] for error in results.errors] == ["Broken trained on hill"]
    assert "it does not like hills" in capsys.readouterr().err
    scene = load_scene(small_scenes / "house")
    pairs, similar = scene.test_pairs(20_000, random_state=1)
    rows = np.asarray(scene.descriptors)
    mean = np.asarray(load_scene(small_scenes / "hill").descriptors).mean(0)
    bits = rows[:, :64] > mean[:64]
    expected = fnr((bits[pairs[:, 0]] != bits[pairs[:, 1]]).sum(1), similar, 1e-2)
    assert results.rate("hill", "house", "Signs", 64, "fnr_at_1e-2")[0] == pytest.approx(expected)
    for name, width in (("Halves", 64), ("mine", 32)):
        gap = rows[pairs[:, 0], :width].astype(float) - rows[pairs[:, 1], :width]
        expected = fnr(np.linalg.norm(gap, axis=1), similar, 1e-2)
        found = results.rate("hill", "house", name, 32 * width, "fnr_at_1e-2")[0]
        assert found == pytest.approx(expected, abs=1e-3)
    at_once = small_study[0].rate("hill", "house", "lda", 64, "fnr_at_1e-3")
    assert results.rate("hill", "house", model.stem, 64, "fnr_at_1e-3")[0] == at_once[0]
    (table,) = summary(results)
    shown = {row["title"]: sorted(row["cells"]) for row in table["rows"]}
    assert shown["Signs"] == [64]
    assert shown["Halves"] == shown["SIFT"] == [0]  # not codes
    page = (out / "index.html").read_text()
    assert "it does not like hills" in page


def test_unusable_scenes_are_reported_and_the_rest_is_measured(small_scenes, tmp_path):
    make_scene(tmp_path / "tiny", 10, 5)
    (tmp_path / "house").symlink_to(small_scenes / "house")
    (tmp_path / "hill").symlink_to(small_scenes / "hill")
    results = study(
        tmp_path / "out",
        tmp_path,
        ("hill", "nowhere"),
        ("tiny", "house"),
        methods=["sift"],
        lengths=[32],
    )
    assert results.cases == [("hill", "house")]
    messages = " ".join(error["error"] for error in results.errors)
    assert "tiny has 60 positive test pairs; at least 100" in messages
    assert "no scene" in messages
    with pytest.raises(ValueError, match=r"nothing could be measured.*tiny has 60"):
        study(tmp_path / "out2", tmp_path, test=("tiny",), methods=["sift"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ["no such method!"]}, "unknown method 'no such method!'; known are sift"),
        ({"methods": ["nowhere.module:Name"]}, "cannot be imported"),
        ({"lengths": [0]}, "positive numbers"),
        ({"train_scenes": ["hill"]}, "both train and test"),
    ],
)
def test_invalid_arguments_are_reported_before_any_work(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run_study(tmp_path / "out", **options)


def test_an_unwritable_output_folder_is_reported(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be written to"):
        run_study(tmp_path / "file" / "out")


def test_different_spellings_of_a_path_are_one_scene(small_scenes, tmp_path):
    hill = small_scenes / "hill"
    spelled = f"{hill}/../hill/"
    with mock.patch("kdiffhash.study.run.quick_plan", small):
        results = run_study(
            tmp_path / "out",
            train_scenes=[str(hill)],
            test_scenes=[spelled],
            methods=["random"],
            lengths=[32],
            quick=True,
        )
    assert results.plan.split == {str(hill.resolve())}
    make_scene(tmp_path / "hill", 60, 9)
    with pytest.raises(ValueError, match="two scenes have the same name"):
        study(tmp_path / "out2", tmp_path, ("hill",), (str(hill),), methods=["random"])


def test_stored_steps_are_not_reused_for_other_data(tmp_path):
    make_scene(tmp_path / "a", 150, 1)
    make_scene(tmp_path / "b", 150, 2)
    few = {"methods": ["sift", "random"], "lengths": [32]}
    first = study(tmp_path / "out", tmp_path, ("a",), ("b",), **few)
    key = ("a", "b", "sift", None, "fpr95")
    split = study(tmp_path / "out", tmp_path, ("a", "b"), ("b",), **few)  # b is now halved
    fresh = study(tmp_path / "new", tmp_path, ("a", "b"), ("b",), **few)
    assert split.rate(*key)[0] == fresh.rate(*key)[0] != first.rate(*key)[0]
    make_scene(tmp_path / "b", 150, 3)  # another scene under the same name
    again = study(tmp_path / "out", tmp_path, ("a",), ("b",), **few)
    assert again.rate(*key)[0] != first.rate(*key)[0]


def test_special_characters_in_scene_names_are_escaped(tmp_path):
    for name in (r"x$\frac$<b>", "hill.v1", "hill.v2"):
        make_scene(tmp_path / name, 60, len(name))
    names = ("hill.v1", "hill.v2")
    study(tmp_path / "out", tmp_path, (r"x$\frac$<b>",), names, methods=["random"], lengths=[20])
    made = {path.name for path in (tmp_path / "out" / "figures").glob("roc-*.svg")}
    assert len(made) == 2
    page = (tmp_path / "out" / "index.html").read_text()
    assert "<b>" not in page


def test_two_methods_with_the_same_name_are_refused(tmp_path, small_study):
    model = next((small_study[1] / "work").glob("lda-on-hill*.safetensors"))
    copy = tmp_path / "lda.safetensors"
    copy.write_bytes(model.read_bytes())
    with pytest.raises(ValueError, match="another method is called 'lda'"):
        run_study(tmp_path / "out", methods=["sift", str(copy)])


@pytest.mark.slow
def test_the_command_line(small_scenes, tmp_path):
    command = [sys.executable, "-c", "from kdiffhash.cli import main; main()", "study", "--quick"]
    scenes = ["--train", small_scenes / "hill", "--test", small_scenes / "house"]
    few = ["--methods", "sift", "random", "--bits", "32", "64"]

    def run(*arguments):
        return subprocess.run(
            [*command, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
        )

    done = run(*scenes, *few, "--out", "report")
    assert done.returncode == 0, done.stderr
    assert "random hyperplanes" in done.stdout
    assert f"report: {tmp_path / 'report' / 'index.html'}" in done.stdout
    rows = json.loads((tmp_path / "report" / "results.json").read_text())["rows"]
    assert {(row["method"], row["n_bits"]) for row in rows} == {
        ("sift", 1024),
        ("random", 32),
        ("random", 64),
    }
    (tmp_path / "file").touch()
    failed = run(*scenes, *few, "--out", "file/report")
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: --out: file/report cannot be written to")


def test_options_take_several_values():
    words = ["study", "--test", "b", "c", "--quick", "--bits", "32", "64", "-o", "d"]
    expected = "study --test b --test c --quick --bits 32 --bits 64 -o d"
    assert " ".join(repeat_options(words)) == expected
    assert repeat_options(["train", "a", "b"]) == ["train", "a", "b"]
