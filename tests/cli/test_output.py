"""Tables that commands print."""

from __future__ import annotations

from kdiffhash.cli.output import show


def test_long_paths_are_folded_and_leave_the_other_columns_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    path = "/photos/" + "a-long-folder/" * 12 + "1.jpg"
    row = {"photograph": path, "verified": "yes", "inliers": 1234, "matches": 5678, "votes": 90.5}
    show({"rows": [row]}, as_json=False)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    for text in ("verified", "inliers", "matches", "votes", "1234", "5678", "90.5"):
        assert text in printed
    cells = [line.split("│")[1].strip() for line in printed.splitlines() if line.startswith("│")]
    assert "".join(cells) == path


def test_many_short_columns_are_printed_whole_on_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    row = {f"column_{i}": 10**12 + i for i in range(6)}
    show({"rows": [row]}, as_json=False)
    printed = capsys.readouterr().out
    assert all(str(value) in printed for value in row.values())
