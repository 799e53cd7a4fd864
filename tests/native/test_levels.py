"""All instruction sets that this CPU supports give the same results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kdiffhash
from kdiffhash import _core

HERE = Path(__file__).parent
LEVELS = ("base", "avx2", "avx512")
LOWER = LEVELS[: LEVELS.index(_core.level)]


def run_at(level, *arguments, **options):
    """Run Python with a chosen instruction set and return its output."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={k: v for k, v in os.environ.items() if "PYTEST" not in k} | {"KDIFFHASH_CPU": level},
        capture_output=True,
        text=True,
        **options,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("level", LOWER)
def test_a_lower_instruction_set_can_be_forced(level):
    code = "from kdiffhash import _core; print(_core.level)"
    assert run_at(level, "-c", code).strip() == level


def test_an_unknown_instruction_set_is_refused():
    if sys.platform == "darwin" or not LOWER:
        pytest.skip("there is only one instruction set")
    code = "import kdiffhash._core"
    env = os.environ | {"KDIFFHASH_CPU": "avx1024"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode
    assert "KDIFFHASH_CPU must be base, avx2 or avx512, got avx1024" in done.stderr


@pytest.mark.parametrize("level", LOWER)
def test_the_loops_pass_their_tests_with(level):
    if os.environ.get("KDIFFHASH_CPU"):
        pytest.skip("KDIFFHASH_CPU is already set")
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", HERE]
    assert "passed" in run_at(level, *tests, "--ignore", HERE / "test_levels.py")


ENCODE = """
import sys
import numpy as np
import kdiffhash

rng = np.random.default_rng(0)
rows = np.clip(rng.gamma(0.5, 40, (6000, 128)), 0, 255).astype(np.uint8)
codes = [kdiffhash.load_pretrained("sift", 512).transform(rows)]
model = kdiffhash.load(sys.argv[1])
model_rows = np.load(sys.argv[1].replace("safetensors", "npz"))["rows"]
random_rows = rng.normal(size=(20_000, model_rows.shape[1]))
codes.append(model.transform(np.concatenate([model_rows, random_rows])))
codes.append(kdiffhash.load(sys.argv[2]).transform(rows))
np.savez(sys.argv[3], *codes)
"""


@pytest.fixture(scope="module")
def codes(tmp_path_factory):
    """Codes of a pretrained, an old and a linear model, with each instruction set."""
    folder, model = tmp_path_factory.mktemp("codes"), HERE.parent / "data" / "model_v1.safetensors"
    rng, codes_at = np.random.default_rng(1), {}
    linear = kdiffhash.LDAHash(64, random_state=0)
    linear.fit(rng.gamma(0.5, 40, (2000, 128)).astype(np.float32), np.arange(2000) // 4)
    linear.save(folder / "linear.safetensors")
    for level in (*LOWER, _core.level):
        run_at(level, "-c", ENCODE, model, folder / "linear.safetensors", folder / f"{level}.npz")
        with np.load(folder / f"{level}.npz") as file:
            codes_at[level] = list(file.values())
    return codes_at


@pytest.mark.skipif(_core.level != "avx512", reason="this CPU has no AVX-512")
def test_codes_are_equal_on_avx2_and_avx512(codes):
    for a, b in zip(codes["avx2"], codes["avx512"]):
        np.testing.assert_array_equal(a, b)


@pytest.mark.skipif(not LOWER, reason="there is only one instruction set")
def test_codes_on_the_baseline_differ_in_less_than_one_bit_in_100_000(codes):
    """Baseline x86-64 has no fused multiply-add, so projections are rounded differently.

    With a Gaussian kernel, ambiguous bits are recomputed: of 20 million bits of the SIFT model
    none differed. Of 5 million bits of a linear model one did.
    """
    for a, b in zip(codes["base"], codes[_core.level]):
        assert np.bitwise_count(a ^ b).sum() < 8 * a.size / 100_000


@pytest.mark.parametrize("asked", ["avx2", "avx512"])
def test_an_instruction_set_that_the_cpu_lacks_is_named_in_a_warning(asked):
    code = (
        "import sys, types; sys.modules['kdiffhash._core'] = types.SimpleNamespace(level='avx2');"
        "import kdiffhash"
    )
    env = os.environ | {"KDIFFHASH_CPU": asked}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ("KDIFFHASH_CPU=avx512, but this CPU does not" in done.stderr) == (asked == "avx512")
