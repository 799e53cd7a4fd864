"""Preprocessing of rows, compared with values worked out by hand."""

import numpy as np
import pytest

from kdiffhash.learn.preprocess import prepare_rows, preprocess_rows


def test_hellinger_takes_square_roots_of_rows_scaled_to_sum_one():
    rows = np.array([[1, 3], [0, 0], [4, 0]], np.uint8)
    np.testing.assert_allclose(
        preprocess_rows(rows, "hellinger"), [[0.5, np.sqrt(0.75)], [0, 0], [1, 0]]
    )


def test_unit_scales_rows_to_length_one_except_zeros():
    rows = np.array([[3, 4], [0, 0], [-5, 12]])
    np.testing.assert_allclose(
        preprocess_rows(rows, "unit"), [[0.6, 0.8], [0, 0], [-5 / 13, 12 / 13]]
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("kind", [None, "unit", "hellinger"])
def test_result_does_not_depend_on_the_dtype(dtype, kind):
    rows = np.random.default_rng(0).integers(0, 200, (40, 7))
    np.testing.assert_array_equal(
        preprocess_rows(rows.astype(dtype), kind), preprocess_rows(rows.astype(np.float32), kind)
    )


def test_shift_is_subtracted_before_float64_is_rounded():
    rows = 1e9 + np.arange(6.0).reshape(3, 2) / 8
    out = np.empty((3, 2), np.float32)
    prepare_rows(rows, out, None, np.full(2, 1e9, np.float32))
    np.testing.assert_array_equal(out, rows - 1e9)


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (np.nan, None, "NaN in row 12"),
        (np.inf, "unit", "infinity"),
        (1e39, None, "too large for float32 in row 12"),
        (-1, "hellinger", "row 12 has one"),
    ],
)
def test_invalid_values_raise_error_that_names_the_row(value, kind, message):
    rows = np.ones((4, 3))
    rows[2, 1] = value
    with pytest.raises(ValueError, match=message):
        prepare_rows(rows, np.empty((4, 3), np.float32), kind, None, first_row=10)
