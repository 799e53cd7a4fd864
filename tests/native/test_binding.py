"""The core refuses invalid arguments: it never crashes, and never writes results to a copy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from calls import unaligned, valid_calls

from kdiffhash import _core

HERE = Path(__file__).parent


def test_every_invalid_call_is_refused():
    done = subprocess.run(
        [sys.executable, HERE / "calls.py"], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done.stderr[-3000:]
    untested, *failures, count = done.stdout.splitlines()
    assert untested == "functions without a test: []"
    assert failures == []
    assert int(count.split(":")[1]) > 5000


@pytest.mark.parametrize("name", valid_calls())
def test_results_are_written_to_the_arrays_that_were_passed(name):
    arguments = valid_calls()[name]
    outputs = [argument.value for argument in arguments if argument.out]
    before = [output.copy() for output in outputs]
    result = getattr(_core, name)(*(argument.value for argument in arguments))
    changed = [not np.array_equal(a, b) for a, b in zip(before, outputs)]
    assert any(changed) or result is not None


@pytest.mark.parametrize("name", valid_calls())
def test_unaligned_inputs_give_the_same_results(name):
    """Arrays that were received over a network may be unaligned."""
    aligned, arguments = valid_calls()[name], valid_calls()[name]
    values = [
        unaligned(argument.value)
        if isinstance(argument.value, np.ndarray) and not (argument.out or argument.strided)
        else argument.value
        for argument in arguments
    ]
    function = getattr(_core, name)
    result, expected = function(*values), function(*(argument.value for argument in aligned))
    assert result == expected or isinstance(result, _core.SearchableCells)
    for argument, value in zip(aligned, values):
        if not isinstance(value, _core.SearchableCells):
            np.testing.assert_array_equal(argument.value, value)
