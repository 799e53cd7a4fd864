"""What was written is there after a power loss: a few attacks of the soak test."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[1] / "soak"


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("cc"), reason="needs Linux and cc")
@pytest.mark.parametrize(
    ("name", "scale", "extra"),
    [
        ("SQLite stores: power loss", 0.02, None),
        ("scenes: power loss while one is unpacked or written", 0.08, None),
        ("COLMAP databases: power loss", 0.08, "pycolmap"),
        ("photo indexes: power loss", 0.08, "cv2"),
    ],
)
def test_what_was_written_survives_a_power_loss(tmp_path, name, scale, extra):
    if extra is not None:
        pytest.importorskip(extra)
    out = tmp_path / "result.json"
    command = [sys.executable, str(SOAK / "run.py"), "--only", name, "--scale", str(scale)]
    done = subprocess.run(
        [*command, "--jobs", "1", "--out", str(out)], capture_output=True, text=True, check=False
    )
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["wrong"], row["crashed"]) == (0, 0), row["notes"]
    assert row["right"] >= 20
    assert done.returncode == 0
