"""What every attack of the soak test shares: counting outcomes, and surviving a crash.

An attack is a function that is given a seeded generator, a number of tries, a folder of its own and
a `Tally`. It damages a file, kills a process or sends nonsense, and then counts what happened:

- refused: an error of the documented kind, in one sentence;
- right: the operation succeeded and its result was checked;
- wrong: a wrong result, lost data, or an error of another kind;
- crashed: the process died by a signal, or did not answer in time.

`python tests/soak/run.py` runs all attacks; wrong and crashed must be 0.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

REFUSED, RIGHT, WRONG, CRASHED = "refused", "right", "wrong", "crashed"
DOCUMENTED = (ValueError, KeyError, OSError, ImportError)  # KdiffhashError derives from these


@dataclass
class Tally:
    """Outcomes of one attack."""

    attack: str
    refused: int = 0
    right: int = 0
    wrong: int = 0
    crashed: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def tries(self) -> int:
        """Number of tries counted."""
        return self.refused + self.right + self.wrong + self.crashed

    def add(self, other: Tally) -> None:
        """Add the outcomes of another piece of the same attack."""
        for name in (REFUSED, RIGHT, WRONG, CRASHED, "notes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def count(self, outcome: str, note: str = "") -> None:
        """Count one try; `note` says how to repeat a try that went wrong."""
        setattr(self, outcome, getattr(self, outcome) + 1)
        if outcome in (WRONG, CRASHED) and len(self.notes) < 20:
            self.notes.append(note)


@dataclass(frozen=True)
class Attack:
    """A named attack and the number of tries in a full run, which may be split into pieces.

    An attack that `records` runs with `record_writes.c` loaded, see `power_loss.py`.
    """

    name: str
    tries: int
    run: Callable[[np.random.Generator, int, Path, Tally], None]
    pieces: int = 1
    records: bool = False


ATTACKS: list[Attack] = []


def attack(name: str, tries: int, pieces: int = 1, records: bool = False) -> Callable[[Any], Any]:
    """Register a function as an attack (a decorator)."""

    def register(function: Any) -> Any:
        ATTACKS.append(Attack(name, tries, function, pieces, records))
        return function

    return register


def outcome_of(check: Callable[[], bool]) -> tuple[str, str]:
    """Call a check that returns whether the result was right; classify what happens."""
    try:
        return (RIGHT, "") if check() else (WRONG, "the result is wrong")
    except DOCUMENTED as error:
        text = str(error)
        if not text or ("\n" in text.strip() and len(text) > 2000):
            return WRONG, f"no sentence: {error!r}"
        return REFUSED, ""
    except BaseException:  # anything else would be a traceback for the user
        return WRONG, traceback.format_exc()[-1500:]


def run_isolated(
    check: Callable[[Any], bool], cases: Sequence[Any], tally: Tally, timeout: float = 180.0
) -> None:
    """Check each case in a child process, so that a crash costs one case and not the run.

    Parameters
    ----------
    check : function of a case
        A top-level function. Returns whether the result was right, or raises.
    cases : sequence
        What can be sent to a process: paths, seeds, bytes.
    tally : Tally
    timeout : float
        Seconds that a single case may take.
    """
    context = multiprocessing.get_context("spawn")
    done = 0
    while done < len(cases):
        here, there = context.Pipe()
        child = context.Process(target=_work, args=(check, cases[done:], there), daemon=True)
        child.start()
        there.close()
        for outcome, note in _answers(here, child, timeout):
            tally.count(outcome, f"{cases[done]!r}: {note}" if note else "")
            done += 1
        if done < len(cases):
            reason = "no answer" if child.is_alive() else f"exit code {child.exitcode}"
            tally.count(CRASHED, f"{cases[done]!r}: {reason}")
            done += 1
        child.kill()
        child.join()


def _work(check: Callable[[Any], bool], cases: Sequence[Any], pipe: Any) -> None:
    for case in cases:
        pipe.send(outcome_of(lambda case=case: check(case)))  # type: ignore[misc]


def _answers(pipe: Any, child: Any, timeout: float) -> Iterator[tuple[str, str]]:
    """Answers of a child process until it is done, dies or stops answering."""
    while pipe.poll(timeout):
        try:
            yield pipe.recv()
        except EOFError:
            child.join(5)
            return


def mutate(content: bytes, rng: np.random.Generator) -> bytes:
    """Damage a file in one of the ways that files get damaged: bits, bytes, length, order."""
    data = bytearray(content)
    kind = rng.integers(6)
    at = int(rng.integers(max(1, len(data))))
    if kind == 0 and data:  # a few flipped bits
        for place in rng.integers(len(data), size=int(rng.integers(1, 5))):
            data[place] ^= 1 << int(rng.integers(8))
    elif kind == 1:  # a byte or a word set to an extreme value
        size = int(rng.choice([1, 2, 4, 8]))
        data[at : at + size] = bytes([int(rng.choice([0, 127, 128, 255]))]) * size
    elif kind == 2:  # cut off
        del data[at:]
    elif kind == 3:  # a stretch removed
        del data[at : at + int(rng.integers(1, 64))]
    elif kind == 4:  # a stretch repeated or random bytes inserted
        data[at:at] = rng.bytes(int(rng.integers(1, 64)))
    else:  # two stretches exchanged
        other = int(rng.integers(max(1, len(data))))
        size = int(rng.integers(1, 32))
        data[at : at + size], data[other : other + size] = (
            data[other : other + size],
            data[at : at + size],
        )
    return bytes(data)
