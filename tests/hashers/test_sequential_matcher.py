"""The sequential test compared with a loop over bits, and its error rates on new pairs."""

from __future__ import annotations

import numpy as np
import pytest

from kdiffhash import SequentialMatcher, hamming
from kdiffhash.hashers.sequential_matcher import _log_likelihood_ratio


def make_pairs(n, seed, n_bits=256, low=0.02, high=0.3):
    """Return codes whose positive pairs differ in a share of bits that varies between pairs."""
    rng = np.random.default_rng(seed)
    bits = rng.random((n, n_bits)) < 0.5
    share = rng.uniform(low, high, size=(n, 1))
    codes = np.packbits(np.concatenate([bits, bits ^ (rng.random((n, n_bits)) < share)]), axis=1)
    positives = np.stack([np.arange(n), np.arange(n) + n], axis=1)
    first = rng.integers(n, size=5 * n)
    negatives = np.stack([first, n + (first + rng.integers(1, n, size=5 * n)) % n], axis=1)
    pairs = np.concatenate([positives, negatives])
    return codes, pairs, np.arange(len(pairs)) < n


@pytest.fixture(scope="module")
def matcher():
    return SequentialMatcher(fpr=1e-3).fit(*make_pairs(20_000, 0))


def decide_bit_by_bit(matcher, codes, pairs):
    """Apply the matcher's thresholds in a plain loop: decisions and number of bits read."""
    bits = np.unpackbits(codes, axis=1)
    n_bits = bits.shape[1]
    similar, bits_read = [], []
    for i, j in pairs:
        differing = np.cumsum(bits[i] != bits[j])
        for accept, reject, end in zip(
            matcher.accept_, matcher.reject_, range(32, n_bits + 32, 32)
        ):
            distance = differing[min(end, n_bits) - 1]
            if distance <= accept or distance >= reject:
                break
        similar.append(distance <= accept)
        bits_read.append(min(end, n_bits))
    return np.array(similar), np.array(bits_read)


def test_decisions_agree_with_a_loop_over_bits(matcher):
    codes, pairs, _ = make_pairs(300, 1)
    found = matcher.decide(codes, codes, pairs)
    similar, bits_read = decide_bit_by_bit(matcher, codes, pairs)
    np.testing.assert_array_equal(found.similar, similar)
    np.testing.assert_array_equal(found.bits_read, bits_read)


def test_error_rates_hold_on_new_pairs_with_few_bits_read(matcher):
    codes, pairs, similar = make_pairs(20_000, 2)
    found = matcher.decide(codes, codes, pairs)
    fpr, fnr = found.similar[~similar].mean(), 1 - found.similar[similar].mean()
    assert fpr == pytest.approx(1e-3, abs=4 * np.sqrt(1e-3 / 100_000))
    distances = hamming(codes[pairs[:, 0]], codes[pairs[:, 1]])
    threshold = np.sort(distances[~similar])[int(fpr * (~similar).sum())]
    fnr_of_whole_codes = (distances[similar] >= threshold).mean()
    assert fnr < fnr_of_whole_codes + 0.01
    assert found.bits_read[~similar].mean() < 100
    assert found.bits_read.mean() < 128
    assert matcher.expected_.fnr == pytest.approx(fnr, abs=0.015)
    assert matcher.expected_.bits_dissimilar == pytest.approx(
        found.bits_read[~similar].mean(), rel=0.05
    )


def test_result_does_not_depend_on_the_number_of_threads():
    codes, pairs, _ = make_pairs(500, 3)
    learned = make_pairs(4000, 0)
    one, three = (
        SequentialMatcher(1e-3, n_jobs=n_jobs).fit(*learned).decide(codes, codes, pairs)
        for n_jobs in (1, 3)
    )
    np.testing.assert_array_equal(one.similar, three.similar)
    np.testing.assert_array_equal(one.bits_read, three.bits_read)


def test_length_need_not_be_a_multiple_of_32_bits():
    codes, pairs, similar = make_pairs(2000, 0, n_bits=72)
    matcher = SequentialMatcher(fpr=0.02).fit(codes, pairs, similar)
    found = matcher.decide(codes[:2000], codes[2000:], pairs - [0, 2000])
    assert set(np.unique(found.bits_read)) <= {32, 64, 72}
    assert found.similar[~similar].mean() <= 0.02


def test_unreachable_fnr_raises_an_error():
    codes, pairs, similar = make_pairs(2000, 0, n_bits=64)
    with pytest.raises(ValueError, match=r"codes of 64 bits have a false .* use longer codes"):
        SequentialMatcher(fpr=1e-3, fnr=1e-3).fit(codes, pairs, similar)


def test_invalid_input_raises_an_error(matcher):
    codes, pairs, similar = make_pairs(100, 0)
    with pytest.raises(ValueError, match="cannot show a false positive rate"):
        SequentialMatcher(fpr=1e-4).fit(codes, pairs, similar)
    with pytest.raises(ValueError, match="fnr must lie between 0 and 1"):
        SequentialMatcher(fpr=0.05, fnr=2).fit(codes, pairs, similar)
    with pytest.raises(ValueError, match="no pair is similar"):
        SequentialMatcher(fpr=0.05).fit(codes, pairs, np.zeros(len(pairs), bool))
    with pytest.raises(ValueError, match="call fit first"):
        SequentialMatcher().decide(codes, codes, pairs)
    with pytest.raises(ValueError, match="256 bits take 32 bytes per code, got 16"):
        matcher.decide(codes[:, :16], codes, pairs)
    with pytest.raises(ValueError, match="but b has rows 0 to 99"):
        matcher.decide(codes, codes[:100], pairs)


@pytest.mark.parametrize(
    ("n_bits", "noise"), [(256, 0.0), (256, 0.02), (96, 0.05), (64, 0.15), (8, 0.0), (512, 0.3)]
)
def test_fit_works_for_any_length_and_noise(n_bits, noise):
    codes, pairs, similar = make_pairs(1000, 4, n_bits=n_bits, low=noise, high=noise)
    expected = (matcher := SequentialMatcher(fpr=0.01).fit(codes, pairs, similar)).expected_
    found, bits_read = decide_bit_by_bit(matcher, codes, pairs)
    assert expected.fpr == pytest.approx(found[~similar].mean())
    assert expected.fpr <= 0.01
    assert expected.fnr == pytest.approx(1 - found[similar].mean())
    assert expected.bits_similar == pytest.approx(bits_read[similar].mean())
    assert expected.bits_dissimilar == pytest.approx(bits_read[~similar].mean())
    distances = hamming(codes[pairs[:, 0]], codes[pairs[:, 1]])
    largest = np.sort(distances[~similar])[int(0.01 * (~similar).sum())] - 1
    assert expected.fnr <= (distances[similar] > largest).mean() + 0.01


def test_likelihood_ratio_of_binomial_distances():
    """For two binomials the log-likelihood ratio is a known linear function of the distance."""
    rng = np.random.default_rng(0)
    similar = np.arange(400_000) < 150_000  # the class balance must not matter
    distances = rng.binomial(32, np.where(similar, 0.2, 0.5)).astype(np.int32)
    ratio = _log_likelihood_ratio(distances, similar, 32)
    d = np.arange(33)
    expected = d * np.log(0.2 / 0.5) + (32 - d) * np.log(0.8 / 0.5)
    np.testing.assert_allclose(ratio[7:16], expected[7:16], atol=0.25)  # where both classes occur
    assert (np.diff(ratio) <= 0).all()
    uniform = np.where(similar, rng.integers(0, 33, 400_000), distances).astype(np.int32)
    clipped = _log_likelihood_ratio(uniform, similar, 32)  # the parabola would rise at the end
    assert (np.diff(clipped) <= 0).all()
    assert clipped[0] > 5
    assert clipped[-1] == clipped[-5] < 0
    separated = _log_likelihood_ratio(np.where(similar, 3, 20).astype(np.int32), similar, 32)
    assert (np.diff(separated) <= 0).all()
    assert separated[3] > 5
    assert separated[20] < -5


def test_groups_widen_the_intervals():
    scenes = [make_pairs(2000, seed, n_bits=128, high=high) for seed, high in ((0, 0.2), (1, 0.4))]
    codes = np.concatenate([scene[0] for scene in scenes])
    pairs = np.concatenate([scenes[0][1], scenes[1][1] + 4000])
    similar = np.concatenate([scene[2] for scene in scenes])
    groups = np.repeat(["easy", "hard"], [len(scene[1]) for scene in scenes])
    pooled = SequentialMatcher(0.01).fit(codes, pairs, similar).expected_
    grouped = SequentialMatcher(0.01).fit(codes, pairs, similar, groups=groups).expected_
    assert grouped.fnr == pooled.fnr
    assert grouped.fnr_interval[0] < pooled.fnr_interval[0] < pooled.fnr_interval[1]
    assert pooled.fnr_interval[1] < grouped.fnr_interval[1]
    with pytest.raises(ValueError, match="groups must have one entry"):
        SequentialMatcher(0.01).fit(codes, pairs, similar, groups=groups[:5])


def test_failing_fit_leaves_the_matcher_unchanged():
    codes, pairs, similar = make_pairs(2000, 0)
    matcher = SequentialMatcher(0.01).fit(codes, pairs, similar)
    before = matcher.decide(codes, codes, pairs)
    matcher.fnr = 0.01
    with pytest.raises(ValueError, match="codes of 32 bits have a false"):
        matcher.fit(*make_pairs(2000, 0, n_bits=32, low=0.4, high=0.5))
    after = matcher.decide(codes, codes, pairs)
    np.testing.assert_array_equal(before.similar, after.similar)
    assert len(matcher.decide(codes, codes, np.empty((0, 2), int)).similar) == 0
