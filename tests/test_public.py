"""The public names, lazy imports, extras, and the wheel."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_readme import run_commands_of_the_readme

import kdiffhash

ROOT = Path(__file__).parent.parent


def test_public_names_do_not_change():
    assert sorted(kdiffhash.__all__) == sorted(
        [
            "BaseHasher",
            "BoostedHash",
            "Calibration",
            "ConstantBitWarning",
            "CrossDiffHash",
            "DiffHash",
            "HammingIndex",
            "HashedFeatures",
            "HashedSIFT",
            "ITQHash",
            "IndexFileError",
            "Interval",
            "KdiffhashError",
            "KernelDiffHash",
            "KernelLDAHash",
            "LDAHash",
            "ModelFileError",
            "PAPER_SETTING",
            "PairMoments",
            "Roc",
            "SequentialMatcher",
            "__version__",
            "bootstrap",
            "bootstrap_difference",
            "calibrate",
            "draw_pairs",
            "fnr_at_fpr",
            "hamming",
            "load",
            "load_pretrained",
            "load_scene",
            "load_views",
            "match_codes",
            "pack",
            "roc",
            "unpack",
        ]
    )
    for name in kdiffhash.__all__:
        assert getattr(kdiffhash, name) is not None
        assert name in dir(kdiffhash)


def test_import_and_help_load_nothing_heavy():
    code = """
import sys, kdiffhash, kdiffhash.cli
heavy = {"scipy", "sklearn", "numpy", "rich.progress"} & set(sys.modules)
print(sorted(heavy))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_every_extra_is_in_all():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    tools = {"docs", "test", "minilm", "lint", "dev", "all"}
    assert {f"kdiffhash[{name}]" for name in extras if name not in tools} <= set(extras["all"])


@pytest.mark.slow
@pytest.mark.network
def test_wheel_and_sdist_work_in_an_empty_environment(tmp_path):
    """The environment has no compiler and only the packages that the wheel depends on."""
    if "KDIFFHASH_DIST" in os.environ:  # built by `make dist`
        for folder in ("tree", "sdist"):
            shutil.copytree(os.environ["KDIFFHASH_DIST"], tmp_path / folder)
    build = [sys.executable, "-m", "build", "--no-isolation", "-Ccmake.define.OPTIMISE=-O0"]
    # A separate build folder, so that the one of the editable install is left alone.
    from_tree = ["--wheel", f"-Cbuild-dir={tmp_path / 'build'}"]
    for folder, options in (("tree", from_tree), ("sdist", [])):  # the second builds via the sdist
        if (tmp_path / folder).exists():
            continue
        command = [*build, "--outdir", str(tmp_path / folder), *options, str(ROOT)]
        subprocess.run(command, check=True, capture_output=True)
    (tree_wheel,), (wheel,) = ((tmp_path / f).glob("*.whl") for f in ("tree", "sdist"))
    assert _names(tree_wheel) == _names(wheel)
    (sdist,) = (tmp_path / "sdist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"native/module.cpp", "native/selftest.cpp", "CMakeLists.txt", "LICENSE"} <= names
    assert not {name for name in names if name.startswith((".ci", "build", ".venv"))}

    venv.create(tmp_path / "env", with_pip=True)
    bin_folder = tmp_path / "env" / "bin"
    pip = [bin_folder / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, wheel], check=True)
    kept_variables = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    env = kept_variables | {"PATH": str(bin_folder), "KDIFFHASH_CACHE": str(tmp_path / "cache")}
    assert not any(shutil.which(name, path=env["PATH"]) for name in ("cc", "gcc", "g++", "c++"))

    def run(program, *arguments):
        command = [bin_folder / program, *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    code = """
import numpy as np, kdiffhash
X = np.random.default_rng(0).normal(size=(200, 8)); y = np.arange(200) // 4
hasher = kdiffhash.KernelLDAHash(16, n_basis=50).fit(X, y)
hasher.save("model.safetensors")
np.save("rows.npy", X)
print(hasher.transform(X).shape, kdiffhash.__file__)
"""
    small = np.random.default_rng(0).integers(0, 256, (60, 80), dtype=np.uint8)
    large = Image.fromarray(small).resize((800, 600), Image.Resampling.BICUBIC)
    large.crop((0, 0, 700, 600)).save(tmp_path / "a.png")
    large.crop((60, 20, 800, 600)).save(tmp_path / "b.png")
    shape, installed = run("python", "-c", code).strip().rsplit(" ", 1)
    assert shape == "(200, 2)"
    assert Path(installed).is_relative_to(tmp_path)
    assert run("kdiffhash", "--version").strip() == f"kdiffhash {kdiffhash.__version__}"
    assert '"bits": 16' in run("kdiffhash", "info", "model.safetensors", "--json")
    run("kdiffhash", "encode", "model.safetensors", "rows.npy", "-o", "codes.npy")
    run("kdiffhash", "index", "build", "codes.npy", "-o", "rows.index")
    search = ["index", "search", "rows.index", "codes.npy", "-k", "3", "-o", "results.npz"]
    run("kdiffhash", *search)
    with np.load(tmp_path / "results.npz") as results:
        assert results["distances"].shape == (200, 3)
        assert (results["distances"][:, 0] == 0).all()
    match = [bin_folder / "kdiffhash", "match", "a.png", "b.png", "--json"]
    done = subprocess.run(match, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    hint = re.search(r"pip install '\S+\[vision\]'", done.stderr)
    assert hint, done.stderr
    subprocess.run(hint[0], shell=True, check=True, env=os.environ | env, capture_output=True)
    assert json.loads(run("kdiffhash", "match", "a.png", "b.png", "--json"))
    (tmp_path / "readme").mkdir()
    run_commands_of_the_readme(tmp_path / "readme", [str(bin_folder / "kdiffhash")], env)


def _names(wheel):
    """Return the sorted names of the files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return sorted(archive.namelist())
