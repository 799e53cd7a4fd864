"""Pair sets: which rows show the same object, and which do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Pairs = NDArray[np.int64]
Similar = NDArray[np.bool_]


class Labels(NamedTuple):
    """The object that each row belongs to, and its group (photograph) if pairs span groups."""

    ids: NDArray[np.int64]
    groups: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, y: ArrayLike, groups: ArrayLike | None, n_rows: int) -> Labels:
        """Checked labels of `n_rows` rows."""
        labels = cls(as_ids(y, "y"), None if groups is None else as_ids(groups, "groups"))
        if len(labels.ids) != n_rows:
            raise ValueError(f"X has {n_rows} rows, but y has {len(labels.ids)} labels")
        if labels.groups is not None and len(labels.groups) != n_rows:
            raise ValueError(f"X has {n_rows} rows, but groups has {len(labels.groups)} entries")
        return labels


def draw_pairs(
    y: ArrayLike,
    n_positives: int = 100_000,
    n_negatives: int = 200_000,
    *,
    groups: ArrayLike | None = None,
    uniform_over: Literal["pairs", "objects"] = "pairs",
    random_state: int | np.random.Generator | None = None,
) -> tuple[Pairs, Similar]:
    """Draw positive and negative pairs of rows from labels.

    Parameters
    ----------
    y : array of shape (n,)
        Which object each row shows. Rows with equal labels make positive pairs.
    n_positives, n_negatives : int
        How many pairs of each kind. Positives are all different; where there are no more than
        `n_positives` of them, all are taken. Negatives may repeat.
    groups : array of shape (n,), optional
        For instance the photograph that each row comes from. If given, both members of a pair
        come from different groups.
    uniform_over : {"pairs", "objects"}
        ``"pairs"`` gives each positive pair the same chance, so that an object seen k times weighs
        k(k-1)/2; ``"objects"`` gives each object the same chance (pairs may then repeat).
    random_state : int or numpy Generator, optional

    Returns
    -------
    pairs : int64 array of shape (p, 2)
        Row numbers; the positives come first.
    similar : bool array of shape (p,)

    Examples
    --------
    >>> from kdiffhash import draw_pairs
    >>> pairs, similar = draw_pairs(["cat", "dog", "cat"], 5, 2, random_state=0)
    >>> pairs[similar]
    array([[0, 2]])
    >>> similar
    array([ True, False, False])
    """
    objects = as_ids(y, "y")
    group = None if groups is None else as_ids(groups, "groups")
    if group is not None and len(group) != len(objects):
        raise ValueError(f"groups has {len(group)} entries, y has {len(objects)}")
    if len(objects) == 0:
        raise ValueError("y is empty; there is nothing to draw pairs from")
    if group is not None and group.max() == 0:
        raise ValueError("all rows are in one group, so no pair spans two groups")
    for name, count in (("n_positives", n_positives), ("n_negatives", n_negatives)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    rng = np.random.default_rng(random_state)
    if uniform_over == "pairs":
        positives = _distinct_positives(objects, group, n_positives, rng)
    elif uniform_over == "objects":
        positives = _positives_by_object(objects, group, n_positives, rng)
    else:
        raise ValueError(f"uniform_over must be 'pairs' or 'objects', got {uniform_over!r}")
    negatives = _negatives(objects, group, n_negatives, rng)
    pairs = np.concatenate([positives, negatives])
    return pairs, np.arange(len(pairs)) < len(positives)


def check_pairs(
    pairs: ArrayLike, similar: ArrayLike, n_rows: int | tuple[int, int], names: str = "XX"
) -> tuple[Pairs, Similar]:
    """Return explicit pairs as arrays, or say what is wrong with them.

    Members may come from two sets, each with a number of rows and a name of one letter.
    """
    rows, flags = np.asarray(pairs), np.asarray(similar)
    if rows.ndim != 2 or rows.shape[1] != 2:
        raise ValueError(f"pairs must have shape (p, 2), got {rows.shape}")
    if rows.dtype.kind not in "iu":
        raise ValueError(f"pairs must hold row numbers (integers), got {rows.dtype}")
    if flags.shape != (len(rows),):
        raise ValueError(f"similar must have shape ({len(rows)},), got {flags.shape}")
    if flags.dtype != np.bool_:
        if not np.all((flags == 0) | (flags == 1)):
            raise ValueError("similar must be True (same object) or False, one for each pair")
        flags = flags.astype(bool)
    if len(rows) == 0:
        raise ValueError("pairs is empty; at least one pair of each kind is needed")
    counts = np.broadcast_to(n_rows, 2)
    if rows.min() < 0 or (rows.max(axis=0) >= counts).any():
        bad, side = np.argwhere((rows < 0) | (rows >= counts))[0]
        raise ValueError(
            f"pair {bad} is {rows[bad].tolist()}, but {names[side]} has rows 0 to "
            f"{counts[side] - 1}"
        )
    return rows.astype(np.int64, copy=False), flags


def check_both_kinds(n_positives: int, n_negatives: int) -> None:
    """Refuse to learn from one kind of pairs alone."""
    if n_positives == 0:
        raise ValueError("no pair is similar; learning needs pairs that should match")
    if n_negatives == 0:
        raise ValueError("every pair is similar; learning needs pairs that should not match")


def distinct_rows(pairs: Pairs) -> tuple[NDArray[np.int64], Pairs]:
    """The rows that are in pairs, each once, and the pairs as places among them."""
    rows, members = np.unique(pairs, return_inverse=True)
    return rows, members.reshape(-1, 2)


def labels_joined_by(positives: Pairs, n_rows: int) -> NDArray[np.int64]:
    """A label for each row, if positive pairs are all that is known: rows they join share one."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(len(positives), bool), positives.T), (n_rows, n_rows))
    labels: NDArray[np.int64] = connected_components(links, directed=False)[1].astype(np.int64)
    return labels


def as_ids(labels: ArrayLike, name: str) -> NDArray[np.int64]:
    """Labels of any kind as 0..k-1."""
    array = np.asarray(labels)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {array.shape}")
    if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
        raise ValueError(f"{name} contains NaN or infinity")
    try:
        return np.unique(array, return_inverse=True)[1].astype(np.int64)
    except TypeError:
        raise ValueError(f"{name} mixes kinds of labels that cannot be sorted") from None


def _distinct_positives(
    objects: NDArray[np.int64],
    group: NDArray[np.int64] | None,
    n_wanted: int,
    rng: np.random.Generator,
) -> Pairs:
    """Positives without repetition, each equally likely; all of them where there are few.

    Rows are sorted by object, then by group. A row is paired with the rows of its object that come
    after its group (after itself, without groups), so pairs can be numbered row after row.
    """
    n_rows = len(objects)
    block = np.arange(n_rows) if group is None else group
    order = np.lexsort((block, objects))
    position = np.arange(n_rows)
    end_of_object = _ends_of_runs(objects[order])
    end_of_block = (
        _ends_of_runs(objects[order], block[order]) if group is not None else position + 1
    )
    n_partners = end_of_object - end_of_block
    ends = np.cumsum(n_partners)
    n_possible = int(ends[-1]) if n_rows else 0
    if n_possible == 0:
        raise _no_positives(group)
    number = np.sort(rng.choice(n_possible, min(n_wanted, n_possible), replace=False))
    first = np.searchsorted(ends, number, side="right")
    second = end_of_block[first] + number - (ends[first] - n_partners[first])
    return np.sort(np.stack([order[first], order[second]], axis=1), axis=1)


def _ends_of_runs(*keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """For sorted rows: where the run of rows with the same keys ends, one past its last."""
    changes = np.zeros(len(keys[0]), bool)
    for key in keys:
        changes[1:] |= key[1:] != key[:-1]
    run = np.cumsum(changes)
    return np.cumsum(np.bincount(run))[run] if len(run) else run


def _positives_by_object(
    objects: NDArray[np.int64],
    group: NDArray[np.int64] | None,
    n_wanted: int,
    rng: np.random.Generator,
) -> Pairs:
    """Positives with each object equally likely, then each of its pairs equally likely."""
    order, start, size = _by_object(objects)
    usable = np.flatnonzero(size > 1)
    if group is not None and len(usable):
        # An object whose rows all lie in one group has no pair to give.
        low = np.minimum.reduceat(group[order], start)
        high = np.maximum.reduceat(group[order], start)
        usable = usable[low[usable] < high[usable]]
    if not len(usable):
        raise _no_positives(group)
    chosen = usable[rng.integers(len(usable), size=n_wanted)]
    pairs = np.empty((n_wanted, 2), np.int64)

    def draw(again: NDArray[np.int64]) -> None:
        mine = chosen[again]
        i, j = rng.integers(size[mine]), rng.integers(size[mine] - 1)
        j += j >= i
        pairs[again] = order[start[mine][:, None] + np.stack([i, j], axis=1)]

    draw(np.arange(n_wanted))
    if group is not None:
        _redraw(draw, lambda: group[pairs[:, 0]] == group[pairs[:, 1]])
    return pairs


def _negatives(
    objects: NDArray[np.int64],
    group: NDArray[np.int64] | None,
    n_wanted: int,
    rng: np.random.Generator,
) -> Pairs:
    """Negatives, each equally likely, with repetition.

    The first row is drawn by how many partners it has, the second from outside the first one's
    object, or from outside its group if that leaves fewer rows. Drawing both freely and rejecting
    would take for ever where one object or group holds nearly all rows.
    """
    n_rows = len(objects)
    keys = [objects] if group is None else [objects, group]
    sorted_by = [_by_object(key) for key in keys]
    sizes = np.stack([size[key] for key, (_, _, size) in zip(keys, sorted_by, strict=True)])
    n_partners = n_rows - sizes.sum(axis=0)
    if group is not None:  # rows of the same object and the same group were taken off twice
        _, cell, count = np.unique(
            objects * (group.max() + 1) + group, return_inverse=True, return_counts=True
        )
        n_partners += count[cell]
    ends = np.cumsum(n_partners)
    if ends[-1] == 0:
        if objects.max() == 0:
            raise ValueError(
                "y has one class; negative pairs need rows of at least two different objects"
            )
        raise ValueError("no two rows of different objects lie in different groups")
    first = np.searchsorted(ends, rng.integers(ends[-1], size=n_wanted), side="right")
    which = sizes[:, first].argmax(axis=0)  # leave out the larger of its object and its group
    second = np.empty_like(first)

    def draw(again: NDArray[np.int64]) -> None:
        for number, (key, (order, start, size)) in enumerate(zip(keys, sorted_by, strict=True)):
            mine = again[which[again] == number]
            own = key[first[mine]]
            place = rng.integers(n_rows - size[own])
            second[mine] = order[place + size[own] * (place >= start[own])]

    def wrong() -> NDArray[np.bool_]:
        return np.asarray(np.logical_or.reduce([key[first] == key[second] for key in keys]))

    draw(np.arange(n_wanted))
    _redraw(draw, wrong)
    return np.stack([first, second], axis=1)


def _by_object(
    objects: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Rows sorted by object, where each object starts among them, and how many rows it has."""
    order = np.argsort(objects, kind="stable")
    size = np.bincount(objects) if len(objects) else np.empty(0, np.int64)
    return order, np.cumsum(size) - size, size


def _redraw(
    draw: Callable[[NDArray[np.int64]], None], wrong: Callable[[], NDArray[np.bool_]]
) -> None:
    """Draw those pairs again (rejection) that are wrong, until none is."""
    for _ in range(10_000):
        again = np.flatnonzero(wrong())
        if not len(again):
            return
        draw(again)
    raise ValueError("pairs across groups are too rare to draw; drop groups?")


def _no_positives(group: NDArray[np.int64] | None) -> ValueError:
    if group is None:
        return ValueError("every row has a label of its own in y, so there are no positive pairs")
    return ValueError("no two rows of the same object lie in different groups; drop groups?")
