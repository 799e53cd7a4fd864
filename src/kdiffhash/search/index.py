"""The index: codes with ids, in memory or in a file, searched exactly by Hamming distance."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..codes import Codes, as_words
from . import checks, passes, tables
from .index_file import IndexFile, write_file
from .index_format import MAX_BITS, REMOVED, VERSION, Head, damage
from .rerank import check_rerank, rerank
from .segment import (
    Ids,
    Segment,
    all_ids,
    in_batches,
    make_segment,
    only_ids,
    to_codes,
    with_rows,
    without_ids,
    words_by_id,
)

if TYPE_CHECKING:
    from .checks import Model

_MAPS = 64  # maps of a file that a writer holds before it makes one of them


class HammingIndex:
    """Exact search by Hamming distance.

    All results are exact. Equal distances are ordered by the lower id. It is a `CodeStore`.

    Parameters
    ----------
    codes : uint8 array of shape (n, n_bytes), optional
        Codes to start with.
    ids : int array of shape (n,), optional
        Their ids; by default 0, 1, ...
    n_bits : int, optional
        Length of the codes, from 1 to 4096; by default that of the model's codes, or eight times
        their bytes.
    model : BaseHasher or str, optional
        The fitted hasher that makes the codes, or its fingerprint. The index keeps the fingerprint
        (``index.model``), also in its file, and refuses another model from then on.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import HammingIndex
    >>> codes = np.array([[0b11110000], [0b11111111], [0b00000000]], np.uint8)
    >>> index = HammingIndex(codes)
    >>> index.search(codes[:1], k=2)
    (array([[0, 4]], dtype=int32), array([[0, 1]]))
    >>> index.search(codes[0], k=2)
    (array([0, 4], dtype=int32), array([0, 1]))
    """

    def __init__(
        self,
        codes: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        *,
        n_bits: int | None = None,
        model: Model | None = None,
    ) -> None:
        if codes is None and ids is not None:
            raise ValueError("ids came without codes")
        if n_bits is None and not isinstance(model, str | None):
            n_bits = model.n_bits_
        if n_bits is None:
            if codes is None:
                raise ValueError("an empty index needs n_bits, the length of the codes to come")
            n_bits = 8 * checks.check_rows(codes).shape[1]
        self.n_bits = checks.check_n_bits(n_bits, MAX_BITS)
        self.model = checks.fingerprint_of(model, self.n_bits)
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
        model: Model | None = None,
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
        model : BaseHasher or str, optional
            The model that makes the codes and the queries, or its fingerprint. A new file keeps
            the fingerprint; a file that has another one is refused. A file without one is taken
            on trust.

        Returns
        -------
        index : HammingIndex
            Works in a ``with`` statement, which closes it.
        """
        if mode not in ("r", "a"):
            raise ValueError(f"mode must be 'r' or 'a', got {mode!r}")
        path = Path(path).absolute()
        if mode == "a" and n_bits is None and not path.exists():
            n_bits = getattr(model, "n_bits_", None)
        if mode == "a" and n_bits is not None and not path.exists():
            n_bits = checks.check_n_bits(n_bits, MAX_BITS)
            file = IndexFile.create(path, n_bits, checks.fingerprint_of(model, n_bits))
        else:
            file = IndexFile(path, writable=mode == "a")
        try:
            if n_bits is not None and n_bits != file.head.n_bits:
                raise ValueError(f"{path} holds codes of {file.head.n_bits} bits, not {n_bits}")
            checks.check_model(file.head.model, model, path)
            index = cls(n_bits=file.head.n_bits)
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
        head = Head(VERSION, self.n_bits, self.model)
        write_file(Path(path), head, in_batches(self._segments), self._next_id)

    def close(self) -> None:
        """Let the file go; an index in memory has nothing to close."""
        if self._file is not None:
            self._file.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process an index file is opened anew, for reading."""
        if self._file is not None:
            return type(self).open, (str(self._file.path.resolve()),)
        segments = [replace(segment, tables={}, shares={}) for segment in self._segments]
        state = (self.n_bits, self.model, segments, self._next_id)
        return _in_memory, (type(self), *state)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def refresh(self) -> None:
        """See what another process has added or removed since the file was opened."""
        with self._changing:
            if self._file is not None:
                self._n_loaded = 0 if self._file.refresh() else self._n_loaded
                self._load(self._file)

    def compact(self) -> None:
        """Drop removed rows for good, and join small batches.

        Readers that have the file open go on with the old one until they refresh.
        """
        with self._changing:
            if self._file is None:
                self._segments = list(in_batches(self._segments))
                return
            self._file.replace(in_batches(self._segments))
            self._n_loaded = 0
            self._load(self._file)

    @staticmethod
    def verify(path: str | os.PathLike[str]) -> list[str]:
        """Read every byte of an index file; a sentence for each damage that was found."""
        return list(damage(Path(path)))

    def _load(self, file: IndexFile) -> None:
        """Take over the parts of the file that are not here yet, all at once."""
        if file.n_maps > _MAPS:
            file.forget_maps()
            self._n_loaded = 0
        segments = self._segments if self._n_loaded else []
        for part in file.parts[self._n_loaded :]:
            if part.kind == REMOVED:
                segments = without_ids(segments, file.read_removed(part))
            else:
                segments = with_rows(segments, file.read_rows(part))
        self._segments, self._n_loaded = segments, len(file.parts)
        self._next_id, self.model = file.slot.next_id, file.head.model

    def _part(self, number: int, of: int) -> HammingIndex:
        """A new index in memory with one of `of` shares of about as many codes."""
        share = list(in_batches(self._segments, number, of))
        return _in_memory(type(self), self.n_bits, self.model, share, self._next_id)

    @property
    def _state(self) -> Any:
        """What tells the state of the file that was seen from any other; None in memory."""
        return None if self._file is None else (self._file.inode, *self._file.slot)

    # -- what is in it --------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of codes."""
        return sum(segment.n_kept for segment in self._segments)

    def __repr__(self) -> str:
        where = "" if self._file is None else f", {str(self._file.path)!r}"
        return f"<HammingIndex of {len(self)} codes of {self.n_bits} bits{where}>"

    def info(self) -> dict[str, Any]:
        """What the index holds: number and length of codes, the model, and the state of a file."""
        result = {"codes": len(self), "bits": self.n_bits, "model": self.model}
        if self._file is not None:
            slot, parts = self._file.slot, self._file.parts
            rows = sum(part.n for part in parts if part.kind != REMOVED)
            result |= {"removed": rows - len(self), "batches": slot.n_segments}
            result |= {"bytes": slot.end, "format": self._file.head.version}
        return result

    @property
    def nbytes(self) -> int:
        """Bytes of the codes, and of ids that do not simply count up."""
        return sum(segment.nbytes for segment in self._segments)

    @property
    def ids(self) -> NDArray[np.int64]:
        """All ids, rising."""
        return all_ids(self._segments)

    def add(
        self, codes: ArrayLike, ids: ArrayLike | None = None, *, model: Model | None = None
    ) -> NDArray[np.int64]:
        """Add codes, all or none, and return their ids; see `CodeStore.add`.

        Parameters
        ----------
        codes, ids
            By default ids follow the highest that the index ever had.
        model : BaseHasher or str, optional
            The model that made the codes, or its fingerprint; another one than that of the index
            is refused.
        """
        array = checks.check_rows(codes, self.n_bits)
        checks.check_model(self.model, model, "the index")
        with self._changing:
            chosen = checks.check_new_ids(ids, len(array), self._next_id)
            if ids is not None:
                checks.refuse_stored(chosen[self._stored(chosen)])
            if not len(array):
                return chosen
            segment = make_segment(as_words(array), chosen)
            next_id = max(self._next_id, segment.last_id + 1)
            if self._file is not None:
                self._file.add_rows(segment, next_id)
                self._load(self._file)
            else:
                self._segments, self._next_id = with_rows(self._segments, segment), next_id
            return chosen

    def remove(self, ids: ArrayLike) -> None:
        """Remove codes by their ids (or one id), all of which must be there."""
        chosen = checks.check_ids(ids)
        with self._changing:
            checks.refuse_missing(chosen[~self._stored(chosen)])
            if not len(chosen):
                return
            if self._file is not None:
                self._file.add_removal(np.unique(chosen))
                self._load(self._file)
            else:
                self._segments = without_ids(self._segments, chosen)

    def get(self, ids: ArrayLike) -> Codes:
        """Return codes by their ids, shape (n, n_bytes); for one id alone, shape (n_bytes,)."""
        chosen = checks.check_ids(ids)
        words, found = words_by_id(self._segments, self.n_bits, chosen)
        checks.refuse_missing(chosen[~found])
        codes = to_codes(words, self.n_bits)
        return codes if np.ndim(ids) else codes[0]

    def __contains__(self, id: object) -> bool:
        """Whether a code has this id."""
        if not isinstance(id, int | np.integer) or not -(2**63) <= id < 2**63:
            return False
        return bool(self._stored(np.array([id], np.int64))[0])

    def _stored(self, ids: Ids) -> NDArray[np.bool_]:
        """Which of some ids are there; no codes are read."""
        found = [segment.rows_of(ids) >= 0 for segment in self._segments]
        return np.any(found, axis=0) if found else np.zeros(len(ids), bool)

    # -- searching ------------------------------------------------------------------------------

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        *,
        allowed: ArrayLike | None = None,
        rerank_projections: ArrayLike | None = None,
        rerank_factor: int = 10,
        n_jobs: int | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Find the k nearest codes of each query.

        Parameters
        ----------
        queries : uint8 array of shape (n, n_bytes), or one code of shape (n_bytes,)
        k : int
        allowed : array, optional
            Search among these ids only; or, as booleans, one for each of `ids`.
        rerank_projections : float array of shape (n, n_bits), optional
            The queries' projections, as `BaseHasher.project` gives them. The ``rerank_factor * k``
            nearest codes are re-ranked by them: a bit that differs counts as much as the query's
            projection is away from zero.
        rerank_factor : int
            How many times k codes are re-ranked.
        n_jobs : int, optional
            By default all that this process may use.

        Returns
        -------
        distances : array of shape (n, m); (m,) for one code alone
            int32 Hamming distances; after re-ranking, float32 sums of projections. m is k, or the
            number of codes searched if that is less. The nearest come first.
        ids : int64 array of the same shape
        """
        codes, alone = checks.check_queries(queries, self.n_bits)
        k = checks.check_k(k)
        segments = self._segments if allowed is None else self._restricted(allowed)
        n_codes = sum(segment.n_kept for segment in segments)
        found: tuple[NDArray[Any], NDArray[np.int64]]
        if rerank_projections is None:
            found = passes.nearest(segments, as_words(codes), min(k, n_codes), n_jobs)
        else:
            shape = (len(codes), self.n_bits)
            projections = check_rerank(rerank_projections, rerank_factor, shape)
            many = min(k * int(rerank_factor), n_codes)
            _, ids = passes.nearest(segments, as_words(codes), many, n_jobs)
            found = rerank(segments, projections, ids, min(k, n_codes), n_jobs)
        return (found[0][0], found[1][0]) if alone else found

    def search_radius(
        self, queries: ArrayLike, radius: int, *, n_jobs: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """Find all codes within a radius: lims, distances, ids; see `CodeStore.search_radius`.

        Memory is that of the result, twice while it is put in order.
        """
        codes, _ = checks.check_queries(queries, self.n_bits)
        radius = checks.check_radius(radius, self.n_bits)
        found = tables.within(self._segments, as_words(codes), radius, self.n_bits, n_jobs)
        query_index, ids, distances = tables.concatenate(found)
        return checks.sort_by_query(query_index, distances, ids, len(codes))

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
        radius = checks.check_radius(radius, self.n_bits)
        found = tables.pairs_within(self._segments, radius, self.n_bits, n_jobs)
        first, second, distances = tables.concatenate(found)
        pairs = np.stack([np.minimum(first, second), np.maximum(first, second)], axis=1)
        order = np.lexsort((pairs[:, 1], pairs[:, 0]))
        return pairs[order], distances[order]

    def _restricted(self, allowed: ArrayLike) -> list[Segment]:
        """Segments in which only allowed rows count."""
        array, segments = np.asarray(allowed), self._segments
        if array.dtype != np.bool_:
            return only_ids(segments, np.unique(checks.check_ids(array)))
        ids = all_ids(segments)
        if array.shape != ids.shape:
            raise ValueError(
                f"allowed has shape {array.shape}; give one boolean for each of the {len(ids)} "
                "ids in index.ids, or a list of ids"
            )
        return only_ids(segments, ids[array])


def _in_memory(
    kind: type[HammingIndex], n_bits: int, model: str | None, segments: list[Segment], next_id: int
) -> HammingIndex:
    index = kind(n_bits=n_bits, model=model)
    index._segments, index._next_id = segments, next_id
    return index
