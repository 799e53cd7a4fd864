"""What commands print: values with units, and tables that fit the terminal."""

from __future__ import annotations

import json

import pytest

from kdiffhash.cli.output import duration, show, size, text


def printed(capsys, result, as_json=False):
    show(result, as_json)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        *(
            (2e-6, "2 µs"),
            (0.0137, "13.7 ms"),
            (0.4, "400 ms"),
            (0.99999, "1 s"),
            (4.567, "4.57 s"),
        ),
        *((99.96, "1 min 40 s"), (125.2, "2 min 5 s"), (7384, "2 h 3 min")),
    ],
)
def test_times_have_a_unit_that_fits(seconds, expected):
    assert duration(seconds) == expected


@pytest.mark.parametrize(
    ("n_bytes", "expected"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (123_456, "123 kB"), (2.5e12, "2.5 TB")],
)
def test_sizes_have_a_unit_that_fits(n_bytes, expected):
    assert size(n_bytes) == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        *(
            ("codes", 1_234_567, "1,234,567"),
            ("id", 1_234_567, "1234567"),
            ("n", 13_730.0, "13,730"),
        ),
        *(("rate", 0.00012345, "0.0001234"), ("rows_per_second", 81234.5, "81,234/s")),
        *(("votes", 1531.6, "1532"), ("votes", 81234.6, "81,235"), ("votes", 0.25, "0.25")),
        *(
            ("is_far", True, "yes"),
            ("is_far", False, "no"),
            ("model", None, "-"),
            ("damage", [], "none"),
        ),
        *(("fpr_interval", [0.1, 0.2], "0.1 to 0.2"), ("files", ["a", "b"], "a, b")),
        ("seconds", {"encoding": 1.5, "matching": 0.02}, "encoding 1.5 s, matching 20 ms"),
    ],
)
def test_values_as_text(name, value, expected):
    assert text(value, name) == expected


def test_json_has_numbers_booleans_and_lists(capsys):
    result = {"seconds": 1.25, "is_far": False, "damage": [], "model": None, "fpr": float("inf")}
    shown = json.loads(printed(capsys, result, as_json=True))
    assert shown == {**result, "fpr": "inf"}


@pytest.mark.parametrize("width", [80, 120])
def test_long_paths_are_folded_and_leave_the_other_columns_whole(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    path = "/photos/" + "a-long-folder/" * 12 + "1.jpg"
    row = {"photograph": path, "verified": True, "inliers": 1234, "matches": 5678, "votes": 90.5}
    out = printed(capsys, {"rows": [row]})
    assert max(map(len, out.splitlines())) <= width
    for part in ("verified", "inliers", "matches", "votes", "1234", "5678", "90.5", "yes"):
        assert part in out
    end = out.splitlines()[1].index("verified")
    assert "".join(line[:end].strip() for line in out.splitlines()[3:]) == path


def test_the_tables_of_eval_fit_80_columns(capsys, monkeypatch):
    from kdiffhash.cli.evaluation import readable
    from kdiffhash.cli.retrieval_evaluation import MEASURES
    from kdiffhash.cli.retrieval_evaluation import readable as readable_retrieval

    monkeypatch.setenv("COLUMNS", "80")
    row = {"method": "Euclidean, hellinger", "n_bits": 1024, "auc": 0.98765}
    for rate in ("fnr_at_1e-2", "fnr_at_1e-3", "fnr_at_1e-4", "fpr95"):
        row |= {rate: 0.4567, f"{rate}_interval": [0.4321, 0.4987]}
    row["fnr_at_1e-2_interval"] = row["fnr_at_1e-4_interval"] = None
    out = printed(capsys, readable({"domain_shift": {}, "rows": [row]}))
    assert max(map(len, out.splitlines())) <= 80
    assert "FPR95" in out.splitlines()[2]  # as a table, with the values in one line
    assert "45.7 %" in out
    assert "(43.2-49.9)" in out
    row = {"method": "bits, float query", "bits": 2048}
    for measure in (*MEASURES, "kept_recall_at_10"):
        row |= {measure: 1.0, f"{measure}_interval": [0.9, 1.0]}
    out = printed(capsys, readable_retrieval({"rows": [row]}))
    assert max(map(len, out.splitlines())) <= 80
    assert "256 B   100.0" in out


def test_many_columns_are_printed_one_below_the_other_on_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    row = {f"column_{i}": 10**12 + i for i in range(6)}
    out = printed(capsys, {"rows": [row]})
    assert max(map(len, out.splitlines())) <= 40
    assert [line.split()[-1] for line in out.splitlines()[1:]] == [f"{v:,}" for v in row.values()]
