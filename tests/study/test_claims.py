"""Verdicts, on rates made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kdiffhash.study.claims import decide
from kdiffhash.study.methods import METHODS
from kdiffhash.study.plan import Plan
from kdiffhash.study.run import Results
from kdiffhash.study.train import Trained


def arrays(lengths, fnr, spread=0.0, seed=0):
    """Rates of a method: the same FNR at every length, with resampled values around it."""
    noise = np.random.default_rng(seed).normal(size=(200, len(lengths), 5)) * spread
    values = np.full((len(lengths), 5), fnr)
    return {
        "n_bits": np.array(lengths),
        "is_code": np.array(True),
        "values": values,
        "samples": values + noise,
    }


def claims_of(rates, **extras):
    """Claims by their first words, for FNRs given as {method: fnr or (fnr, spread)}."""
    results = Results(Plan(("a",), ("b",), tuple(rates)), {n: METHODS[n] for n in rates})
    for i, (name, fnr) in enumerate(rates.items()):
        value, spread = fnr if isinstance(fnr, tuple) else (fnr, 0.001)
        lengths = [32, 64, 128, 256, 512] if METHODS[name].is_learned else [1024]
        results.measured["a", "b", name] = arrays(lengths, value, spread, i)
    results.extras.update(extras)
    return results, {claim.claim: claim for claim in decide(results)}


def verdict(claims, start):
    (claim,) = (claim for text, claim in claims.items() if text.startswith(start))
    return claim.verdict


@pytest.mark.parametrize(
    ("kdif", "expected"),
    [
        (0.2, "holds"),
        (0.4, "does not hold"),
        ((0.29, 0.05), "not decided by this data"),
    ],
)
def test_kdif_against_dif(kdif, expected):
    _, claims = claims_of({"kdif": kdif, "dif": 0.3})
    assert verdict(claims, "kDIF is better than DIF") == expected


def test_the_interval_is_that_of_the_mean_difference():
    results, claims = claims_of({"kdif": (0.2, 0.01), "dif": (0.3, 0.01)})
    (claim,) = (c for text, c in claims.items() if text.startswith("kDIF is better than DIF"))
    a, b = (results.measured["a", "b", name]["samples"][:, :3, 1] for name in ("kdif", "dif"))
    expected = np.quantile(100 * (a - b).mean(axis=1), [0.025, 0.975])
    np.testing.assert_allclose(claim.interval, [-10, *expected])


def test_dif_is_compared_with_its_best_peer():
    _, claims = claims_of({"dif": 0.3, "lda": 0.25, "random": 0.6})
    assert verdict(claims, "DIF is the best") == "does not hold"
    (claim,) = (c for text, c in claims.items() if text.startswith("DIF is the best"))
    assert "LDA-hash" in claim.found
    _, claims = claims_of({"dif": 0.3, "lda": 0.35, "random": 0.6})
    assert verdict(claims, "DIF is the best") == "not decided by this data"  # ITQ is missing
    _, claims = claims_of({"dif": 0.3, "lda": 0.35, "random": 0.6, "itq": 0.5})
    assert verdict(claims, "DIF is the best") == "holds"


def test_sift_is_beaten_at_256_and_512_bits():
    _, claims = claims_of({"kdif": 0.2, "sift": 0.5})
    assert verdict(claims, "kDIF beats raw SIFT") == "holds"
    assert verdict(claims, "what was learned on one scene") == "holds"
    _, claims = claims_of({"kdif": 0.2, "dif": 0.3})
    assert verdict(claims, "kDIF beats raw SIFT") == "not decided by this data"


def test_times_and_first_matches():
    times = {"euclidean": 8.0, "32": 0.5, "64": 1, "128": 2, "256": 4, "512": 5}
    matches = {"n_queries": 10, "judged": "kDIF, 512 bits", "difference": [-0.1, -0.2, -0.05]}
    hog = {"n_bits": 256, "float_bits": 9216, "difference": [-0.2, -0.3, 0.1]}
    _, claims = claims_of({"kdif": 0.2}, times=times, matches=matches, hog=hog)
    assert verdict(claims, "comparing codes") == "holds"
    assert verdict(claims, "first matches") == "does not hold"
    assert verdict(claims, "it works for another") == "not decided by this data"


def test_boosting():
    results, _ = claims_of({"kdif": 0.2, "boosted": 0.3})
    results.trained["a", "kdif"] = Trained({512: None}, 10.0, {})
    results.trained["a", "boosted"] = Trained({128: None}, 25.0, {})
    claims = {claim.claim: claim for claim in decide(results)}
    assert verdict(claims, "boosting is slower") == "holds"
    assert verdict(claims, "boosting needs longer") == "holds"


def test_nature_and_architecture():
    results = Results(Plan(("n", "h", "c"), ("h",), ("kdif",)), {"kdif": METHODS["kdif"]})
    results.measured["n", "h", "kdif"] = arrays([512], 0.3, 0.001)
    results.measured["c", "h", "kdif"] = arrays([512], 0.28, 0.001, 2)
    results.measured["h", "h", "kdif"] = arrays([512], 0.26, 0.001, 1)
    results.kinds = {"n": "natural", "h": "architecture", "c": "architecture"}
    claims = {claim.claim: claim for claim in decide(results)}
    assert verdict(claims, "for architecture") == "holds"
    assert verdict(claims, "it generalises") == "holds"  # 4 points are at most 5
    results.measured["n", "h", "kdif"] = arrays([512], 0.4, 0.001)
    claims = {claim.claim: claim for claim in decide(results)}
    assert verdict(claims, "it generalises") == "does not hold"
