"""Positive and negative pairs of rows: drawing them from labels, and checking given ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Pairs = NDArray[np.int64]
Similar = NDArray[np.bool_]


class Labels(NamedTuple):
    """Labels of all rows, and their groups if pairs must span two groups.

    If `of_pairs`, rows have equal labels if given pairs or groups connect them. Such labels say
    which rows are not negatives of each other, but positive pairs are not drawn from them.
    """

    ids: NDArray[np.int64]
    groups: NDArray[np.int64] | None = None
    of_pairs: bool = False

    @classmethod
    def of(cls, y: ArrayLike, groups: ArrayLike | None, n_rows: int) -> Labels:
        """Check labels and groups of `n_rows` rows and number them."""
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
        Labels. Two rows with the same label form a positive pair, others a negative pair.
    n_positives : int, default=100_000
        Number of positive pairs. They are all different; if there are fewer, all are returned.
    n_negatives : int, default=200_000
        Number of negative pairs. They may repeat.
    groups : array of shape (n,) or None, default=None
        For instance the photograph that each row comes from. If given, the two rows of a pair are
        always from different groups.
    uniform_over : {"pairs", "objects"}, default="pairs"
        ``"pairs"`` draws all positive pairs with equal probability, so that an object with k rows
        counts k(k-1)/2 times. ``"objects"`` draws all objects with equal probability; positive
        pairs may then repeat.
    random_state : int, numpy.random.Generator or None, default=None
        Seed; an int makes the result reproducible.

    Returns
    -------
    pairs : int64 array of shape (p, 2)
        Row numbers; positive pairs come first.
    similar : bool array of shape (p,)
        True for positive pairs.

    Raises
    ------
    ValueError
        If there is no positive or no negative pair, or an argument is invalid.

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
        raise ValueError("y is empty; give at least three labels, two of them equal")
    if group is not None and group.max() == 0:
        raise ValueError(
            "all rows are in one group, so no pair spans two groups; omit groups, or give several"
        )
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
    pairs: ArrayLike, similar: ArrayLike, n_rows: int | tuple[int, int], names: Sequence[str] = "XX"
) -> tuple[Pairs, Similar]:
    """Return given pairs as arrays after checking them.

    Parameters
    ----------
    pairs : int array of shape (p, 2)
        Row numbers.
    similar : bool array of shape (p,)
        True for positive pairs.
    n_rows : int or tuple of two int
        Number of rows, or of rows in each of the two sets that the members come from.
    names : sequence of two str, default="XX"
        Names of the two sets in error messages.

    Returns
    -------
    pairs : int64 array of shape (p, 2)
    similar : bool array of shape (p,)

    Raises
    ------
    ValueError
        If a shape, a type or a row number is invalid.
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
            raise ValueError(
                "similar must be True (same object) or False for each pair, got other values"
            )
        flags = flags.astype(bool)
    if len(rows) == 0:
        raise ValueError("pairs is empty; give at least one positive and one negative pair")
    counts = np.broadcast_to(n_rows, 2)
    if rows.min() < 0 or (rows.max(axis=0) >= counts).any():
        bad, side = np.argwhere((rows < 0) | (rows >= counts))[0]
        raise ValueError(
            f"pair {bad} is {rows[bad].tolist()}, but {names[side]} has rows 0 to "
            f"{counts[side] - 1}"
        )
    return rows.astype(np.int64, copy=False), flags


def check_both_kinds(n_positives: int, n_negatives: int) -> None:
    """Raise ValueError unless there are positive and negative pairs."""
    if n_positives == 0:
        raise ValueError("no pair is similar; give pairs that should match as well")
    if n_negatives == 0:
        raise ValueError("every pair is similar; give pairs that should not match as well")


def distinct_rows(pairs: Pairs) -> tuple[NDArray[np.int64], Pairs]:
    """Return the distinct rows of pairs, and the pairs as positions among these rows."""
    rows, members = np.unique(pairs, return_inverse=True)
    return rows, members.reshape(-1, 2)


class SidedPairs(NamedTuple):
    """Pairs between the rows of two sets, which are numbered consecutively.

    Row j of the second set has the number n + j, where n is the number of rows of the first.
    """

    pairs: Pairs
    similar: Similar
    labels: NDArray[np.int64]  # of all rows; rows with equal labels are not negatives


def pairs_of_sides(
    n_rows: tuple[int, int],
    pairs: ArrayLike | None,
    similar: ArrayLike | None,
    groups: ArrayLike | None,
    n_negatives: int,
    rng: np.random.Generator,
    *,
    across: bool = False,
) -> SidedPairs:
    """Check pairs between the rows of X and of Y, and draw negative pairs if none are given.

    Parameters
    ----------
    n_rows : tuple of two int
        Numbers of rows of X and of Y.
    pairs : int array of shape (p, 2) or None
        A row number of X and one of Y for each pair. None pairs row i of X with row i of Y.
    similar : bool array of shape (p,) or None
        True for positive pairs. None means that all pairs are positive; negative pairs are drawn.
    groups : array of shape (n_rows[0],) or None
        Group of each row of X. A row of Y belongs to the groups of its partners.
    n_negatives : int
        Number of negative pairs to draw. Their members are not connected by positive pairs and
        groups.
    rng : numpy.random.Generator
        Draws the negative pairs.
    across : bool, default=False
        Whether to draw negative pairs of a row of X and a row of Y, instead of half of them between
        rows of X and half between rows of Y.

    Returns
    -------
    pairs : SidedPairs
        Positive pairs come first if negative pairs are drawn.

    Raises
    ------
    ValueError
        If an argument is invalid, or no pair is positive or none can be negative.
    """
    n, m = n_rows
    if pairs is None:
        if n != m:
            raise ValueError(
                f"X has {n} rows and Y has {m}, but without pairs row i of X belongs to row i of "
                "Y; give pairs of row numbers, or arrays of equal length"
            )
        if similar is not None:
            raise ValueError("similar was given without pairs; give both or neither")
        pairs = np.repeat(np.arange(n), 2).reshape(-1, 2)
    flags = np.ones(len(np.asarray(pairs)), bool) if similar is None else similar
    checked, flags = check_pairs(pairs, flags, n_rows, "XY")
    checked = checked + np.array([0, n])
    links = checked[flags]
    if groups is not None:
        group = as_ids(groups, "groups")
        if len(group) != n:
            raise ValueError(f"X has {n} rows, but groups has {len(group)} entries")
        representative = np.unique(group, return_index=True)[1]
        links = np.concatenate([links, np.stack([np.arange(n), representative[group]], axis=1)])
    labels = labels_from_pairs(links, n + m)
    if similar is not None:
        check_both_kinds(int(flags.sum()), int((~flags).sum()))
        return SidedPairs(checked, flags, labels)
    drawn = _negatives_of_sides(labels, n, n_negatives, rng, across)
    both = np.concatenate([checked, drawn])
    return SidedPairs(both, np.arange(len(both)) < len(checked), labels)


def _negatives_of_sides(
    labels: NDArray[np.int64], n: int, n_pairs: int, rng: np.random.Generator, across: bool
) -> Pairs:
    """Draw negative pairs within or across two sides; the first side has n rows."""
    for name, own in (("X", labels[:n]), ("Y", labels[n:])):
        if (own == own[0]).all():
            raise ValueError(
                f"pairs and groups connect all rows of {name}, so there are no negative pairs; "
                "give rows of at least two objects in different groups"
            )
    if across:
        drawn = rng.integers([n, len(labels) - n], size=(n_pairs, 2)) + np.array([0, n])
        return np.asarray(drawn[labels[drawn[:, 0]] != labels[drawn[:, 1]]])
    halves = (0, labels[:n], n_pairs // 2), (n, labels[n:], -(-n_pairs // 2))
    return np.concatenate(
        [first + _negatives(as_ids(own, "labels"), None, k, rng) for first, own, k in halves]
    )


def labels_from_pairs(positives: Pairs, n_rows: int) -> NDArray[np.int64]:
    """Return a label for each row: rows connected by positive pairs share one."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(len(positives), bool), positives.T), (n_rows, n_rows))
    labels: NDArray[np.int64] = connected_components(links, directed=False)[1].astype(np.int64)
    return labels


def as_ids(labels: ArrayLike, name: str) -> NDArray[np.int64]:
    """Number labels of any type from 0 to k - 1, in sorted order."""
    array = np.asarray(labels)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {array.shape}")
    if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
        raise ValueError(f"{name} contains NaN or infinity; give each row a label")
    try:
        return np.unique(array, return_inverse=True)[1].astype(np.int64)
    except TypeError:
        raise ValueError(
            f"{name} mixes types that cannot be compared; use only strings or only numbers"
        ) from None


def _distinct_positives(
    objects: NDArray[np.int64],
    group: NDArray[np.int64] | None,
    n_pairs: int,
    rng: np.random.Generator,
) -> Pairs:
    """Draw distinct positive pairs with equal probability, or return all if there are fewer.

    Rows are sorted by object, then by group. Each row is paired with the rows of its object that
    come after its group (after the row itself, without groups), so that all pairs can be numbered
    consecutively.
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
    number = np.sort(rng.choice(n_possible, min(n_pairs, n_possible), replace=False))
    first = np.searchsorted(ends, number, side="right")
    second = end_of_block[first] + number - (ends[first] - n_partners[first])
    return np.sort(np.stack([order[first], order[second]], axis=1), axis=1)


def _ends_of_runs(*keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each sorted row the end (exclusive) of the run of rows with the same keys."""
    changes = np.zeros(len(keys[0]), bool)
    for key in keys:
        changes[1:] |= key[1:] != key[:-1]
    run = np.cumsum(changes)
    return np.cumsum(np.bincount(run))[run] if len(run) else run


def _positives_by_object(
    objects: NDArray[np.int64],
    group: NDArray[np.int64] | None,
    n_pairs: int,
    rng: np.random.Generator,
) -> Pairs:
    """Draw positive pairs: an object with equal probability, then one of its pairs."""
    order, start, size = _by_object(objects)
    usable = np.flatnonzero(size > 1)
    if group is not None and len(usable):
        # An object whose rows are all in one group has no pair.
        low = np.minimum.reduceat(group[order], start)
        high = np.maximum.reduceat(group[order], start)
        usable = usable[low[usable] < high[usable]]
    if not len(usable):
        raise _no_positives(group)
    chosen = usable[rng.integers(len(usable), size=n_pairs)]
    pairs = np.empty((n_pairs, 2), np.int64)

    def draw(numbers: NDArray[np.int64]) -> None:
        own = chosen[numbers]
        i, j = rng.integers(size[own]), rng.integers(size[own] - 1)
        j += j >= i
        pairs[numbers] = order[start[own][:, None] + np.stack([i, j], axis=1)]

    draw(np.arange(n_pairs))
    if group is not None:
        _redraw(draw, lambda: group[pairs[:, 0]] == group[pairs[:, 1]])
    return pairs


def _negatives(
    objects: NDArray[np.int64],
    group: NDArray[np.int64] | None,
    n_pairs: int,
    rng: np.random.Generator,
) -> Pairs:
    """Draw negative pairs with equal probability and with replacement.

    The first row is drawn in proportion to its number of partners. The second is drawn from outside
    the object of the first, or from outside its group if that leaves fewer rows, and rejected if it
    shares the other. Drawing both rows from all and rejecting would hardly ever succeed if one
    object or group had nearly all rows.
    """
    n_rows = len(objects)
    keys = [objects] if group is None else [objects, group]
    sorted_by = [_by_object(key) for key in keys]
    sizes = np.stack([size[key] for key, (_, _, size) in zip(keys, sorted_by, strict=True)])
    n_partners = n_rows - sizes.sum(axis=0)
    if group is not None:  # rows of the same object and the same group were subtracted twice
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
        raise ValueError("no two rows of different objects are in different groups; omit groups")
    first = np.searchsorted(ends, rng.integers(ends[-1], size=n_pairs), side="right")
    excluded = sizes[:, first].argmax(axis=0)  # the larger of the first row's object and group
    second = np.empty_like(first)

    def draw(numbers: NDArray[np.int64]) -> None:
        for k, (key, (order, start, size)) in enumerate(zip(keys, sorted_by, strict=True)):
            chosen = numbers[excluded[numbers] == k]
            own = key[first[chosen]]
            position = rng.integers(n_rows - size[own])
            second[chosen] = order[position + size[own] * (position >= start[own])]

    def invalid() -> NDArray[np.bool_]:
        return np.asarray(np.logical_or.reduce([key[first] == key[second] for key in keys]))

    draw(np.arange(n_pairs))
    _redraw(draw, invalid)
    return np.stack([first, second], axis=1)


def _by_object(
    objects: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return rows sorted by object, the start of each object among them, and its size."""
    order = np.argsort(objects, kind="stable")
    size = np.bincount(objects) if len(objects) else np.empty(0, np.int64)
    return order, np.cumsum(size) - size, size


def _redraw(
    draw: Callable[[NDArray[np.int64]], None], invalid: Callable[[], NDArray[np.bool_]]
) -> None:
    """Draw invalid pairs again until all are valid (rejection sampling)."""
    for _ in range(10_000):
        numbers = np.flatnonzero(invalid())
        if not len(numbers):
            return
        draw(numbers)
    raise ValueError("pairs of rows in different groups are too rare to be drawn; omit groups")


def _no_positives(group: NDArray[np.int64] | None) -> ValueError:
    if group is None:
        return ValueError(
            "all labels in y are different, so there are no positive pairs; rows of the same "
            "object must have the same label"
        )
    return ValueError("no two rows of the same object are in different groups; omit groups")
