"""Packed codes and Hamming distances."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kdiffhash import hamming, pack, unpack
from kdiffhash.codes import as_words, truncate

bit_rows = st.tuples(st.integers(0, 5), st.integers(1, 70)).flatmap(
    lambda shape: arrays(np.bool_, shape)
)


def test_first_bit_is_most_significant_and_spare_bits_are_zero():
    assert pack([1, 0, 0, 0, 0, 0, 0, 0, 1]).tolist() == [0b10000000, 0b10000000]


@given(bit_rows)
def test_unpack_inverts_pack(bits):
    codes = pack(bits)
    assert codes.shape == (len(bits), -(-bits.shape[1] // 8))
    np.testing.assert_array_equal(unpack(codes, bits.shape[1]), bits)


@given(bit_rows, st.data())
def test_hamming_counts_differing_bits(bits, data):
    other = data.draw(arrays(np.bool_, bits.shape))
    np.testing.assert_array_equal(hamming(pack(bits), pack(other)), (bits != other).sum(axis=1))


@given(st.integers(1, 70).flatmap(lambda n: arrays(np.bool_, (3, n))))
def test_hamming_is_a_metric(bits):
    codes = pack(bits)
    d = hamming(codes[:, None], codes)
    assert (np.diag(d) == 0).all()
    assert (d == d.T).all()
    assert d[0, 2] <= d[0, 1] + d[1, 2]


@given(bit_rows, st.data())
def test_truncate_returns_the_first_bits(bits, data):
    n = data.draw(st.integers(1, bits.shape[1]))
    np.testing.assert_array_equal(truncate(pack(bits), n), pack(bits[:, :n]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pack([0, 2]), "0 or 1"),
        (lambda: pack(3), "at least one bit"),
        (lambda: unpack(np.zeros((2, 2), np.uint8), 20), "take 3 bytes"),
        (lambda: unpack(np.full((1, 1), 255, np.uint8), 4), "beyond n_bits=4"),
        (lambda: hamming(np.zeros((1, 2)), np.zeros((1, 2))), "packed uint8"),
        (lambda: hamming(np.zeros((1, 2), np.uint8), np.zeros((1, 3), np.uint8)), "2 and 3 bytes"),
        (lambda: truncate(np.zeros((1, 2), np.uint8), 17), "1..16"),
    ],
)
def test_invalid_input_raises_value_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("n_bytes", [1, 4, 8, 13, 64])
def test_words_agree_with_int_from_bytes(width, n_bytes):
    codes = np.random.default_rng(n_bytes).integers(0, 256, (7, n_bytes), dtype=np.uint8)
    size = width // 8
    padded = [bytes(code) + bytes(-n_bytes % size) for code in codes]
    expected = [
        [int.from_bytes(row[i : i + size], "little") for i in range(0, len(row), size)]
        for row in padded
    ]
    unaligned = np.frombuffer(b"x" + codes.tobytes(), np.uint8)[1:].reshape(codes.shape)
    for array in (codes, unaligned, np.asfortranarray(codes)):
        words = as_words(array, width)
        assert words.tolist() == expected
        assert words.dtype == f"u{size}"
        assert words.flags.carray
