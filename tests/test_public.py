"""The public names, the version, the import time, the wheel."""

import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

import kdiffhash

ROOT = Path(__file__).parent.parent


def test_public_names_are_these():
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
heavy = {"numba", "scipy", "sklearn", "numpy", "rich.progress"} & set(sys.modules)
print(sorted(heavy))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_every_extra_is_in_all():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    tools = {"docs", "test", "lint", "dev", "all"}
    assert {f"kdiffhash[{name}]" for name in extras if name not in tools} <= set(extras["all"])


@pytest.mark.slow
@pytest.mark.network
def test_the_wheel_works_in_an_empty_environment(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel]
    subprocess.run(install, check=True)
    code = """
import numpy as np, kdiffhash
X = np.random.default_rng(0).normal(size=(200, 8)); y = np.arange(200) // 4
hasher = kdiffhash.KernelLDAHash(16, n_basis=50).fit(X, y)
hasher.save("model.safetensors")
np.save("rows.npy", X)
print(hasher.transform(X).shape)
"""
    run = {"cwd": tmp_path, "capture_output": True, "text": True, "check": True}
    assert subprocess.run([python, "-c", code], **run).stdout.strip() == "(200, 2)"
    command = tmp_path / "env" / "bin" / "kdiffhash"
    version = subprocess.run([command, "--version"], **run).stdout
    assert version.strip() == f"kdiffhash {kdiffhash.__version__}"
    encode = [command, "encode", "model.safetensors", "rows.npy", "-o", "codes.npy", "--json"]
    assert '"bits": 16' in subprocess.run(encode, **run).stdout
