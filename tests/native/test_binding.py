"""Wrong arguments of the core are refused: no crash, and no result that goes to a copy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from calls import not_aligned, valid_calls

from kdiffhash import _core

HERE = Path(__file__).parent


def test_every_wrong_call_is_refused():
    done = subprocess.run(
        [sys.executable, HERE / "calls.py"], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, *wrong, count = done.stdout.splitlines()
    assert first == "not in the table: []"
    assert wrong == []
    assert int(count.split(":")[1]) > 5000


@pytest.mark.parametrize("name", valid_calls())
def test_results_arrive_in_the_arrays_that_are_passed(name):
    """An array that would have to be copied is refused, so what is written is seen."""
    arguments = valid_calls()[name]
    outputs = [one.value for one in arguments if one.out]
    before = [output.copy() for output in outputs]
    result = getattr(_core, name)(*(one.value for one in arguments))
    changed = [not np.array_equal(a, b) for a, b in zip(before, outputs)]
    assert any(changed) or result is not None


@pytest.mark.parametrize("name", valid_calls())
def test_inputs_that_are_not_aligned_give_the_same(name):
    """As arrays are that come over a network."""
    wanted, given = valid_calls()[name], valid_calls()[name]
    values = [
        not_aligned(one.value)
        if isinstance(one.value, np.ndarray) and not one.out and not one.apart
        else one.value
        for one in given
    ]
    function = getattr(_core, name)
    assert function(*values) == function(*(one.value for one in wanted))
    for one, value in zip(wanted, values):
        np.testing.assert_array_equal(one.value, value)
