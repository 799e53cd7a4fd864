"""Small scenes and a study of them."""

from __future__ import annotations

import pytest
from small_scenes import make_scene, small

from kdiffhash.study import run_study


@pytest.fixture(scope="session")
def small_scenes(tmp_path_factory):
    root = tmp_path_factory.mktemp("scenes")
    make_scene(root / "hill", 300, 0)
    make_scene(root / "house", 300, 1)
    return root


@pytest.fixture(scope="session")
def small_study(small_scenes, tmp_path_factory):
    """A study of all methods on one pair of scenes."""
    from unittest import mock

    out = tmp_path_factory.mktemp("study") / "report"
    with mock.patch("kdiffhash.study.run.quick_plan", small):
        results = run_study(
            out,
            train_scenes=[str(small_scenes / "hill")],
            test_scenes=[str(small_scenes / "house")],
            quick=True,
        )
    return results, out
