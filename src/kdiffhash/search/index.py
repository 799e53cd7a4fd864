"""The index: codes with ids, in memory or in a file, searched exactly by Hamming distance."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._numba.rerank import weigh_differing
from ..codes import Codes, as_words, check_codes
from ..parallel import run_tiles
from . import passes, tables
from .index_file import MAX_BITS, REMOVED, VERSION, IndexFile, damage, write_file
from .segment import Ids, Segment, Words, join, make_segment, n_words, to_codes

_BATCH = 2**20  # rows of a segment that `save` and `compact` write
_MAPS = 64  # maps of a file that a writer holds before it makes one of them
_SMALL = 2**20  # rows up to which a segment in memory is joined with the next


class Within(NamedTuple):
    """What `HammingIndex.search_radius` found.

    Query i has the ids ``ids[starts[i] : starts[i + 1]]``, nearest first.
    """

    starts: NDArray[np.int64]
    ids: NDArray[np.int64]
    distances: NDArray[np.int32]


class HammingIndex:
    """Exact search by Hamming distance.

    All results are exact. Equal distances are ordered by the lower id.

    Parameters
    ----------
    codes : uint8 array of shape (n, n_bytes), optional
        Codes to start with.
    ids : int array of shape (n,), optional
        Their ids; by default 0, 1, ...
    n_bits : int, optional
        Length of the codes, from 1 to 4096; by default eight times their bytes.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import HammingIndex
    >>> codes = np.array([[0b11110000], [0b11111111], [0b00000000]], np.uint8)
    >>> index = HammingIndex(codes)
    >>> distances, ids = index.search(codes[:1], k=2)
    >>> distances, ids
    (array([[0, 4]], dtype=int32), array([[0, 1]]))
    """

    def __init__(
        self,
        codes: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        *,
        n_bits: int | None = None,
    ) -> None:
        if codes is None and n_bits is None:
            raise ValueError("an empty index needs n_bits, the length of the codes to come")
        if codes is None and ids is not None:
            raise ValueError("ids came without codes")
        if n_bits is None:
            n_bits = 8 * _check_rows(codes).shape[1]
        self.n_bits = _check_n_bits(n_bits)
        self._file: IndexFile | None = None
        # Never changed in place: searches on other threads go on with the list they have.
        self._segments: list[Segment] = []
        self._n_loaded = 0  # parts of the file that are in the segments
        self._changing = threading.RLock()
        self._next_id = 0
        if codes is not None:
            self.add(codes, ids)

    # -- files ----------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        mode: Literal["r", "a"] = "r",
        *,
        n_bits: int | None = None,
    ) -> Self:
        """Open an index file; its codes stay on disk, mapped into memory.

        Parameters
        ----------
        path : path
        mode : "r" or "a"
            "r" reads what is there now (see `refresh`). "a" also allows `add`, `remove` and
            `compact`; each is written through before it returns, and one process at a time may
            have the file open so.
        n_bits : int, optional
            With "a": make a new file for codes of this length if there is none.

        Returns
        -------
        index : HammingIndex
            Works in a ``with`` statement, which closes it.
        """
        if mode not in ("r", "a"):
            raise ValueError(f"mode must be 'r' or 'a', got {mode!r}")
        path = Path(path)
        if mode == "a" and n_bits is not None and not path.exists():
            file = IndexFile.create(path, _check_n_bits(n_bits))
        else:
            file = IndexFile(path, writable=mode == "a")
        if n_bits is not None and n_bits != file.n_bits:
            file.close()
            raise ValueError(f"{path} holds codes of {file.n_bits} bits, not {n_bits}")
        index = cls(n_bits=file.n_bits)
        try:
            index._load(file)
        except BaseException:
            file.close()
            raise
        index._file = file
        return index

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to a file, which takes the place of any that is there.

        Removed rows are left out.
        """
        write_file(Path(path), self.n_bits, self._batches(), self._next_id)

    def close(self) -> None:
        """Let the file go; an index in memory has nothing to close."""
        if self._file is not None:
            self._file.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process an index file is opened anew, for reading."""
        if self._file is not None:
            return type(self).open, (str(self._file.path.resolve()),)
        return _unpickled, (type(self), self.n_bits, self._segments, self._next_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def refresh(self) -> None:
        """See what another process has added or removed since the file was opened."""
        if self._file is None:
            return
        with self._changing:
            if self._file.refresh():
                self._n_loaded = 0
            self._load(self._file)

    def compact(self) -> None:
        """Drop removed rows for good, and join small batches.

        Readers that have the file open go on with the old one until they refresh.
        """
        with self._changing:
            if self._file is None:
                self._segments = list(self._batches())
                return
            self._file.replace(self._batches())
            self._n_loaded = 0
            self._load(self._file)

    @staticmethod
    def verify(path: str | os.PathLike[str]) -> list[str]:
        """Read every byte of an index file; a sentence for each damage that was found."""
        return [found for found in damage(Path(path)) if found is not None]

    def _load(self, file: IndexFile) -> None:
        """Take over the parts of the file that are not here yet, all at once."""
        if file.n_maps > _MAPS:
            file.forget_maps()
            self._n_loaded = 0
        segments = self._segments if self._n_loaded else []
        for part in file.parts[self._n_loaded :]:
            if part.kind == REMOVED:
                segments = _without(segments, file.read_removed(part))
            else:
                segments = _with(segments, file.read_rows(part))
        self._segments, self._n_loaded = segments, len(file.parts)
        self._next_id = file.slot.next_id

    def _batches(self) -> Iterator[Segment]:
        """The kept rows as segments of a good size."""
        words: list[Words] = []
        ids: list[Ids] = []
        for segment in self._segments:
            for start in range(0, segment.n_rows, _BATCH):
                rows = segment.kept_rows(start, min(start + _BATCH, segment.n_rows))
                words.append(segment.words_of(rows))
                ids.append(segment.ids_of(rows))
                if sum(map(len, ids)) >= _BATCH:
                    yield make_segment(np.concatenate(words), np.concatenate(ids))
                    words, ids = [], []
        if sum(map(len, ids)):
            yield make_segment(np.concatenate(words), np.concatenate(ids))

    def part(self, number: int, of: int) -> HammingIndex:
        """A new index in memory with one of `of` runs of about as many codes, from number 0 on."""
        if not 0 <= number < of:
            raise ValueError(f"number must lie in 0..{of - 1}, got {number}")
        starts = np.cumsum([0, *(segment.n_rows for segment in self._segments)]).tolist()
        first, last = (starts[-1] * i // of for i in (number, number + 1))
        chosen = type(self)(n_bits=self.n_bits)
        for segment, start in zip(self._segments, starts):
            begin, end = max(first - start, 0), min(last - start, segment.n_rows)
            rows = segment.kept_rows(begin, max(begin, end))
            if len(rows):
                copy = make_segment(segment.words_of(rows), segment.ids_of(rows))
                chosen._segments = [*chosen._segments, copy]
        chosen._next_id = self._next_id
        return chosen

    # -- what is in it --------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of codes."""
        return sum(segment.n_kept for segment in self._segments)

    def __repr__(self) -> str:
        where = "" if self._file is None else f", {str(self._file.path)!r}"
        return f"<HammingIndex of {len(self)} codes of {self.n_bits} bits{where}>"

    def info(self) -> dict[str, Any]:
        """What the index holds, in numbers."""
        result: dict[str, Any] = {"codes": len(self), "bits": self.n_bits}
        if self._file is not None:
            slot, parts = self._file.slot, self._file.parts
            rows = sum(part.n for part in parts if part.kind != REMOVED)
            result |= {"removed": rows - len(self), "batches": slot.n_segments}
            result |= {"bytes": slot.end, "format": VERSION}
        return result

    @property
    def sequence(self) -> int:
        """A number that grows with every change of the file that was seen; 0 in memory."""
        return 0 if self._file is None else self._file.slot.sequence

    @property
    def nbytes(self) -> int:
        """Bytes of the codes, and of ids that do not simply count up."""
        return sum(
            segment.blocks.nbytes + (0 if segment.listed is None else segment.listed.nbytes)
            for segment in self._segments
        )

    @property
    def ids(self) -> NDArray[np.int64]:
        """All ids, rising."""
        parts = [segment.ids_of(segment.kept_rows()) for segment in self._segments]
        return np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    def add(self, codes: ArrayLike, ids: ArrayLike | None = None) -> NDArray[np.int64]:
        """Add codes.

        Parameters
        ----------
        codes : uint8 array of shape (n, n_bytes)
        ids : int array of shape (n,), optional
            None of them may be in the index yet. By default they follow the highest id that the
            index ever had.

        Returns
        -------
        ids : int64 array of shape (n,)
        """
        array = self._check_codes(codes)
        with self._changing:
            if ids is None:
                if self._next_id + len(array) > 2**63 - 1:
                    raise ValueError("there are no ids left above the highest; give ids")
                chosen = np.arange(self._next_id, self._next_id + len(array), dtype=np.int64)
            else:
                chosen = self._check_new_ids(ids, len(array))
            if not len(array):
                return chosen
            segment = make_segment(as_words(array), chosen)
            next_id = max(self._next_id, segment.last_id + 1)
            if self._file is not None:
                self._file.add_rows(segment, next_id)
                self._load(self._file)
            else:
                self._segments, self._next_id = _with(self._segments, segment), next_id
            return chosen

    def remove(self, ids: ArrayLike) -> None:
        """Remove codes by their ids, all of which must be there."""
        chosen = _check_ids(ids)
        with self._changing:
            missing = chosen[~self._contains(chosen)]
            if len(missing):
                raise KeyError(f"{len(missing)} ids are not in the index, among them {missing[0]}")
            if not len(chosen):
                return
            if self._file is not None:
                self._file.add_removal(np.unique(chosen))
                self._load(self._file)
            else:
                self._segments = _without(self._segments, chosen)

    def get(self, ids: ArrayLike) -> Codes:
        """Codes by their ids, all of which must be there.

        Parameters
        ----------
        ids : int array of shape (n,)

        Returns
        -------
        codes : uint8 array of shape (n, n_bytes)
        """
        chosen = _check_ids(ids)
        words, found = _words_by_id(self._segments, self.n_bits, chosen)
        if not found.all():
            raise KeyError(
                f"{(~found).sum()} ids are not in the index, among them {chosen[~found][0]}"
            )
        return to_codes(words, self.n_bits)

    def __contains__(self, id: object) -> bool:
        """Whether a code has this id."""
        if not isinstance(id, int | np.integer) or not -(2**63) <= id < 2**63:
            return False
        return bool(self._contains(np.array([id], np.int64))[0])

    # -- searching ------------------------------------------------------------------------------

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        *,
        allowed: ArrayLike | None = None,
        rerank: tuple[ArrayLike, int] | None = None,
        n_jobs: int | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Find the k nearest codes of each query.

        Parameters
        ----------
        queries : uint8 array of shape (n, n_bytes)
        k : int
        allowed : array, optional
            Search among these ids only; or, as booleans, one for each of `ids`.
        rerank : (projections, factor), optional
            Take the ``factor * k`` nearest codes and order them anew by the queries' `projections`,
            shape (n, n_bits), as `BaseHasher.project` gives them: bits that differ count as much
            as the query's projection is away from zero.
        n_jobs : int, optional
            By default all that this process may use.

        Returns
        -------
        distances : array of shape (n, m)
            int32 Hamming distances; after re-ranking, float32 sums of projections. m is k, or the
            number of codes searched if that is less.
        ids : int64 array of shape (n, m)
        """
        words = self._query_words(queries)
        if not isinstance(k, int | np.integer) or k < 1:
            raise ValueError(f"k must be a whole number above zero, got {k!r}")
        k = int(k)  # small NumPy numbers would overflow
        segments = self._segments if allowed is None else self._restricted(allowed)
        n_codes = sum(segment.n_kept for segment in segments)
        if rerank is None:
            return passes.nearest(segments, words, min(k, n_codes), n_jobs)
        projections, factor = self._check_rerank(rerank, len(words))
        many = min(k * factor, n_codes)
        _, ids = passes.nearest(segments, words, many, n_jobs)
        return _ordered_anew(segments, projections, ids, min(k, n_codes), n_jobs)

    def search_radius(
        self, queries: ArrayLike, radius: int, *, n_jobs: int | None = None
    ) -> Within:
        """Find all codes within a distance of each query.

        Parameters
        ----------
        queries : uint8 array of shape (n, n_bytes)
        radius : int
            The greatest distance that counts.
        n_jobs : int, optional

        Returns
        -------
        starts : int64 array of shape (n + 1,)
            Query i has entries ``starts[i]`` to ``starts[i + 1]`` of the arrays below, nearest
            first.
        ids : int64 array
        distances : int32 array

        Notes
        -----
        Memory is that of the result, twice while it is put in order.
        """
        words = self._query_words(queries)
        radius = self._check_radius(radius)
        found = list(tables.within(self._segments, words, radius, self.n_bits, n_jobs))
        owners, ids, distances = _concatenated(found)
        order = np.lexsort((ids, distances, owners))
        starts = np.zeros(len(words) + 1, np.int64)
        np.cumsum(np.bincount(owners, minlength=len(words)), out=starts[1:])
        return Within(starts, ids[order], distances[order])

    def pairs_within(
        self, radius: int, *, n_jobs: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Find all pairs of codes within a distance of each other: near duplicates.

        Parameters
        ----------
        radius : int
            The greatest distance that counts.
        n_jobs : int, optional

        Returns
        -------
        pairs : int64 array of shape (p, 2)
            Ids, the lower one first, in rising order.
        distances : int32 array of shape (p,)
        """
        radius = self._check_radius(radius)
        found = list(tables.pairs_within(self._segments, radius, self.n_bits, n_jobs))
        first, second, distances = _concatenated(found)
        pairs = np.stack([np.minimum(first, second), np.maximum(first, second)], axis=1)
        order = np.lexsort((pairs[:, 1], pairs[:, 0]))
        return pairs[order], distances[order]

    # -- inside ---------------------------------------------------------------------------------

    def _contains(self, ids: Ids) -> NDArray[np.bool_]:
        found = np.zeros(len(ids), bool)
        for segment in self._segments:
            found |= segment.rows_of(ids) >= 0
        return found

    def _restricted(self, allowed: ArrayLike) -> list[Segment]:
        """Segments in which only allowed rows count."""
        array = np.asarray(allowed)
        if array.dtype == np.bool_:
            if array.shape != (len(self),):
                raise ValueError(
                    f"allowed has shape {array.shape}, but there are {len(self)} codes; give one "
                    "boolean for each of index.ids, or a list of ids"
                )
            ids = self.ids[array]
        else:
            ids = np.unique(_check_ids(array))
        segments = []
        for segment in self._segments:
            rows = segment.rows_of(ids)
            rows = rows[rows >= 0]
            if not len(rows):
                continue
            if 2 * len(rows) < segment.n_rows:  # quicker to copy than to pass over the others
                segments.append(make_segment(segment.words_of(rows), segment.ids_of(rows)))
            else:
                bits = np.zeros(segment.n_rows, bool)
                bits[rows] = True
                segments.append(replace(segment, kept=np.packbits(bits, bitorder="little")))
        return segments

    def _check_codes(self, codes: ArrayLike) -> Codes:
        array = _check_rows(codes)
        try:
            return check_codes(array, self.n_bits)
        except ValueError as error:
            raise ValueError(f"the index holds codes of {self.n_bits} bits: {error}") from None

    def _query_words(self, queries: ArrayLike) -> Words:
        return as_words(self._check_codes(queries))

    def _check_new_ids(self, ids: ArrayLike, n: int) -> Ids:
        chosen = _check_ids(ids)
        if len(chosen) != n:
            raise ValueError(f"{n} codes came with {len(chosen)} ids; give one for each")
        if len(np.unique(chosen)) < n:
            raise ValueError("some ids came twice; give each code its own")
        there = chosen[self._contains(chosen)]
        if len(there):
            raise ValueError(
                f"{len(there)} ids are in the index already, among them {there[0]}; remove them "
                "first, or leave ids out"
            )
        if len(chosen) and chosen.max() == 2**63 - 1:
            raise ValueError(f"ids must be below {2**63 - 1}")
        return chosen

    def _check_radius(self, radius: int) -> int:
        if not isinstance(radius, int | np.integer) or radius < 0:
            raise ValueError(f"radius must be a whole number, zero or more, got {radius!r}")
        return min(int(radius), self.n_bits)

    def _check_rerank(
        self, rerank: tuple[ArrayLike, int], n: int
    ) -> tuple[NDArray[np.float32], int]:
        projections, factor = rerank
        array = np.ascontiguousarray(projections, np.float32)
        if array.shape != (n, self.n_bits):
            raise ValueError(
                f"rerank needs projections of shape ({n}, {self.n_bits}), got {array.shape}; "
                "use hasher.project(rows) on the same rows as the queries"
            )
        if not np.isfinite(array).all():
            raise ValueError("rerank projections must be finite numbers")
        if not isinstance(factor, int | np.integer) or factor < 1:
            raise ValueError(f"rerank factor must be a whole number above zero, got {factor!r}")
        return array, int(factor)


def _unpickled(
    kind: type[HammingIndex], n_bits: int, segments: list[Segment], next_id: int
) -> HammingIndex:
    index = kind(n_bits=n_bits)
    index._segments, index._next_id = segments, next_id
    return index


def _check_n_bits(n_bits: int) -> int:
    if not isinstance(n_bits, int | np.integer) or not 1 <= n_bits <= MAX_BITS:
        raise ValueError(f"n_bits must be a whole number from 1 to {MAX_BITS}, got {n_bits!r}")
    return int(n_bits)


def _check_rows(codes: ArrayLike | None) -> Codes:
    array = check_codes(codes if codes is not None else [])
    if array.ndim != 2 or not array.shape[1]:
        raise ValueError(f"codes must be rows, shape (n, n_bytes), got shape {array.shape}")
    return array


def _check_ids(ids: ArrayLike) -> Ids:
    array = np.asarray(ids)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"ids must be whole numbers, shape (n,), got {array.dtype} of shape {array.shape}"
        )
    if array.dtype.kind == "u" and array.size and array.max() > np.uint64(2**63 - 1):
        raise ValueError("ids must fit into 64 bits with sign")
    return array.astype(np.int64)


def _concatenated(found: Iterable[tuple[Ids, Ids, NDArray[np.int32]]]) -> tuple[Any, Any, Any]:
    kinds = (np.int64, np.int64, np.int32)
    columns = list(zip(*found)) or [(), (), ()]
    return tuple(  # type: ignore[return-value]
        np.concatenate([np.empty(0, kind), *column]) for kind, column in zip(kinds, columns)
    )


def _with(segments: list[Segment], segment: Segment) -> list[Segment]:
    """Segments and one more, joined with others in memory that are not much larger."""
    segments = list(segments)
    while (
        segments
        and segments[-1].n_rows <= min(2 * segment.n_rows, _SMALL)
        and not (segments[-1].mapped or segment.mapped)
    ):
        segment = join(segments.pop(), segment)
    return [*segments, segment]


def _without(segments: list[Segment], ids: Ids) -> list[Segment]:
    """Segments in which some ids count no more."""
    left = []
    for segment in segments:
        rows = segment.rows_of(ids)
        if np.any(rows >= 0):
            segment = segment.without(rows[rows >= 0])
        if segment.n_kept:
            left.append(segment)
    return left


def _words_by_id(segments: list[Segment], n_bits: int, ids: Ids) -> tuple[Words, NDArray[np.bool_]]:
    """Codes by ids, as words, and which of the ids are there."""
    words = np.zeros((len(ids), n_words(n_bits)), np.uint64)
    found = np.zeros(len(ids), bool)
    for segment in segments:
        rows = segment.rows_of(ids)
        here = rows >= 0
        words[here] = segment.words_of(rows[here])
        found |= here
    return words, found


def _ordered_anew(
    segments: list[Segment],
    projections: NDArray[np.float32],
    ids: Ids,
    k: int,
    n_jobs: int | None,
) -> tuple[NDArray[np.float32], Ids]:
    """The k of some ids whose differing bits have the least projections."""
    n, many = ids.shape
    distances, chosen = np.empty((n, k), np.float32), np.empty((n, k), np.int64)

    def work(start: int, stop: int) -> None:
        some = ids[start:stop]
        words, _ = _words_by_id(segments, projections.shape[1], some.reshape(-1))
        weights = np.empty(some.shape, np.float32)
        weigh_differing(words.reshape(*some.shape, -1), projections[start:stop], weights)
        order = np.lexsort((some, weights))[:, :k]
        distances[start:stop] = np.take_along_axis(weights, order, axis=1)
        chosen[start:stop] = np.take_along_axis(some, order, axis=1)

    if n and many:
        run_tiles(lambda: work, n, 64, n_jobs)
    return distances, chosen
