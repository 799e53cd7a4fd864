"""The index: codes with ids, in memory or in a file, searched by Hamming distance."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..codes import Codes, as_words
from . import checks, probe
from .build_cells import CellsDoNotHelpError, Layout, Source, in_memory, lay_out, layout_of, windows
from .cells_payload import CellContent
from .code_store import Upserted
from .index_file import Content, IndexFile, write_file
from .index_format import MAX_BITS, PLAIN_VERSION, VERSION, Head, damage
from .index_payload import ROWS, STRINGS
from .index_search import IndexSearch, Snapshot
from .segment import (
    Ids,
    Removals,
    Segment,
    SegmentIds,
    all_ids,
    make_segment,
    merge,
    to_codes,
    with_rows,
    without_ids,
    words_by_id,
)
from .string_ids import IdBlock, StringIds, new_block

if TYPE_CHECKING:
    from .checks import Model

_MAX_MAPS = 64  # memory maps that a writer accumulates before it maps the whole file again


class HammingIndex(IndexSearch):
    """Codes with ids, searched by Hamming distance.

    Searches are exact, unless `search` is asked for a recall (see `build_cells`). At equal distance
    the lower id comes first; of string ids, the one that was added first. Implements `CodeStore`.

    Parameters
    ----------
    codes : uint8 array of shape (n, n_bytes) or None, default=None
        Initial codes.
    ids : array of shape (n,) or None, default=None
        Their ids, integers or strings; None assigns 0, 1, ... An index has ids of one kind.
    n_bits : int or None, default=None
        Length of the codes, from 1 to 4096. None takes the length of the model's codes, or 8 bits
        per byte of `codes`.
    model : BaseHasher or str or None, default=None
        The fitted hasher that produces the codes, or its fingerprint. The index stores the
        fingerprint and refuses codes of another model.

    Attributes
    ----------
    n_bits : int
        Length of the codes in bits.
    model : str or None
        Fingerprint of the model that produced the codes; None if unknown.

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
    >>> named = HammingIndex(codes, ids=["cat.jpg", "dog.jpg", "cat-2.jpg"])
    >>> named.search(codes[0], k=2)[1].tolist()
    ['cat.jpg', 'dog.jpg']
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
            raise ValueError("ids were given without codes; pass both, or neither")
        if n_bits is None and not isinstance(model, str | None):
            n_bits = model.n_bits_
        if n_bits is None:
            if codes is None:
                raise ValueError(
                    "an empty index needs n_bits, the length of the codes that will be added"
                )
            n_bits = 8 * checks.check_rows(codes).shape[1]
        self.n_bits = checks.check_n_bits(n_bits, MAX_BITS)
        self.model = checks.fingerprint_of(model, self.n_bits)
        self._file: IndexFile | None = None
        self._snapshot = Snapshot([])
        self._n_loaded = 0  # batches of the file that are in the segments
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
        """Open an index file; the codes are memory-mapped.

        Parameters
        ----------
        path : path
            The index file.
        mode : {"r", "a"}, default="r"
            "r" reads the current state of the file (see `refresh`). "a" also allows `add`,
            `upsert`, `remove` and `compact`, which are durable when they return; only one writer
            can have the file open at a time.
        n_bits : int or None, default=None
            With "a": create a file for codes of this length if there is none.
        model : BaseHasher or str or None, default=None
            The model that produces the codes and the queries, or its fingerprint. A new file
            stores the fingerprint; a file with a different one is refused. A file without a
            fingerprint is not checked.

        Returns
        -------
        index : HammingIndex
            A context manager that closes the file on exit.

        Raises
        ------
        IndexFileError
            If the file is not an index or is damaged.
        BlockingIOError
            If another writer has the file open.

        Examples
        --------
        >>> import tempfile
        >>> import numpy as np
        >>> from kdiffhash import HammingIndex
        >>> path = tempfile.mkdtemp() + "/codes.index"
        >>> with HammingIndex.open(path, "a", n_bits=64) as index:
        ...     ids = index.add(np.zeros((3, 8), np.uint8))
        >>> with HammingIndex.open(path) as index:
        ...     len(index)
        3
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
            if mode == "a":
                file.clean_up()
        except BaseException:
            file.close()
            raise
        index._file = file
        return index

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to a file, atomically replacing an existing one.

        Cells are built again if codes were added or removed since.

        Parameters
        ----------
        path : path
            File to write.
        """
        snapshot, next_id = self._snapshot, self._next_id
        strings = snapshot.strings is not None
        cells, content = probe.cells_of(snapshot.segments), self._content()
        if cells is not None:
            source = Source(snapshot.segments, self.n_bits)
            with contextlib.suppress(CellsDoNotHelpError):
                content = self._with_cells(source, layout_of(source, None))
        version = PLAIN_VERSION if cells is None and not strings else VERSION
        head = Head(version, self.n_bits, self.model, string_ids=strings)
        write_file(Path(path), head, content, 0 if strings else next_id)

    def close(self) -> None:
        """Close the file, if there is one, after changes that are running on other threads."""
        with self._changing:
            if self._file is not None:
                self._file.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle an index file as its path; unpickling opens it for reading."""
        if self._file is not None:
            return type(self).open, (str(self._file.path.resolve()),)
        segments = [replace(segment, tables={}, collision_rates={}) for segment in self._segments]
        state = (self.n_bits, self.model, self._snapshot._replace(segments=segments))
        return _in_memory, (type(self), *state, self._next_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def refresh(self) -> None:
        """Load what a writer has added or removed since the file was opened."""
        with self._changing:
            if self._file is not None:
                self._n_loaded = 0 if self._file.refresh() else self._n_loaded
                self._load(self._file)

    def build_cells(self, n_cells: int | None = None, *, n_jobs: int | None = None) -> bool:
        """Group the codes by similarity, so that `search` can search the nearest cells only.

        Recall is measured with stored codes as queries; `search` relies on these measurements.
        Codes that are added later are compared with every query, until `compact` puts them into
        cells, too. A file is rewritten in format 4 and replaced atomically.

        Parameters
        ----------
        n_cells : int or None, default=None
            Approximate number of cells. None makes cells of about 256 codes.
        n_jobs : int or None, default=None
            Number of threads; None uses all cores available to this process. The cells do not
            depend on it.

        Returns
        -------
        built : bool
            Whether the index has cells now. If searching cells would be no faster than an exact
            search, as with few codes or uniform random ones, a warning says so, cells that the
            index had are removed, and all searches are exact.

        Examples
        --------
        >>> import numpy as np
        >>> from kdiffhash import HammingIndex
        >>> rng = np.random.default_rng(0)
        >>> centres = rng.integers(0, 256, (1000, 16), dtype=np.uint8)
        >>> noise = np.packbits(rng.random((30_000, 128)) < 0.1, axis=1)
        >>> index = HammingIndex(centres[rng.integers(0, 1000, 30_000)] ^ noise)
        >>> index.build_cells()
        True
        >>> distances, ids = index.search(centres[:5], k=10, recall=0.95)
        >>> index.explain(k=10, recall=0.95)["method"]
        'cells'
        """
        if n_cells is not None:
            n_cells = checks.check_count(n_cells, "n_cells")
        with self._changing:
            return self._build_cells(n_cells, n_jobs)

    def _build_cells(self, n_cells: int | None, n_jobs: int | None) -> bool:
        if self._file is not None:
            self._file.check_changeable()
        source = Source(self._segments, self.n_bits)
        try:
            layout = lay_out(source, n_cells, n_jobs)
        except CellsDoNotHelpError as error:
            warnings.warn(f"{error}; all searches are exact", UserWarning, stacklevel=3)
            if probe.cells_of(self._segments) is not None:
                self._merge()
            return False
        if self._file is not None:
            content = self._with_cells(source, layout)
            self._rewrite(self._file.head._replace(version=VERSION), content)
            return True
        self._snapshot = self._snapshot._replace(segments=[in_memory(source, layout)])
        return True

    def compact(self) -> None:
        """Reclaim the space of removed codes and merge small batches.

        Cells are built again, with all codes. The file is rewritten and replaced atomically.
        Readers that have it open keep the old version until they call `refresh`.
        """
        with self._changing:
            cells = probe.cells_of(self._segments)
            if cells is None:
                self._merge()
            else:
                self._build_cells(cells.n_cells_for(len(self)), None)

    def _merge(self) -> None:
        """Merge all batches, without cells."""
        if self._file is not None:
            head = self._file.head
            self._rewrite(head._replace(version=max(head.version, PLAIN_VERSION)))
            return
        segments: list[Segment] = []
        strings = None if self._snapshot.strings is None else StringIds()
        for piece in self._content():
            if isinstance(piece, Segment):
                segments.append(piece)
            elif isinstance(piece, IdBlock) and strings is not None:
                strings = strings.with_block(piece)
        self._snapshot = Snapshot(segments, strings)
        if strings is not None:
            self._next_id = len(self)

    def _content(self) -> Content:
        """Yield what a new file without cells holds: rows, after the string ids they have."""
        segments, strings = self._snapshot
        first = 0
        for segment in merge(segments):
            if strings is None:
                yield segment
                continue
            yield strings.renumbered(first, segment.ids_of(np.arange(segment.n_rows)))
            yield replace(segment, first_id=first, listed=None, runs=None)
            first += segment.n_rows

    def _with_cells(self, source: Source, layout: Layout) -> Content:
        """Yield what a new file with cells holds."""
        strings, ids, first = self._snapshot.strings, layout.ids, 0
        if strings is not None:
            for _, own in source.chunks():
                yield strings.renumbered(first, own)
                first += len(own)
            ids = SegmentIds(0)
        yield CellContent(layout.cells, layout.rows, ids, windows(source, layout.rows))

    def _rewrite(self, head: Head, content: Content | None = None) -> None:
        """Replace the file by a new one with the same content."""
        if self._file is not None:
            content = self._content() if content is None else content
            self._file.replace(content, head, 0 if head.string_ids else self._next_id)
            self._n_loaded = 0
            self._load(self._file)

    @staticmethod
    def verify(path: str | os.PathLike[str]) -> list[str]:
        """Check every byte of an index file.

        Parameters
        ----------
        path : path
            The index file.

        Returns
        -------
        problems : list of str
            One sentence for each problem found; empty if the file is intact.
        """
        return list(damage(Path(path)))

    def _load(self, file: IndexFile) -> None:
        """Load the batches of the file that are not in the segments yet."""
        if file.n_maps > _MAX_MAPS:
            file.forget_maps()
            self._n_loaded = 0
        segments, strings = self._snapshot if self._n_loaded else ([], None)
        if strings is None and file.head.string_ids:
            strings = StringIds()
        new = list(enumerate(file.batches[self._n_loaded :], self._n_loaded))
        removals = [(i, file.read_removed(batch)) for i, batch in new if batch.n_ids_removed]
        removed = Removals.of(removals)
        if removals:
            segments = without_ids(segments, removed.ids)
        for i, batch in new:
            if batch.kind == STRINGS and strings is not None:
                strings = strings.with_block(file.read_strings(batch))
            elif batch.kind in ROWS:
                segment = removed.apply(file.read_rows(batch), i)
                segments = with_rows(segments, segment) if segment.n_kept else segments
        self._snapshot, self._n_loaded = Snapshot(segments, strings), len(file.batches)
        self._next_id, self.model = file.slot.next_id, file.head.model

    def _chunk(self, number: int, of: int) -> HammingIndex:
        """Return an index in memory with chunk `number` of `of` chunks of similar size.

        Of string ids, it has the numbers.
        """
        chunk = Snapshot(list(merge(self._segments, number, of)))
        return _in_memory(type(self), self.n_bits, self.model, chunk, self._next_id)

    @property
    def _state(self) -> Any:
        """Value that differs between any two states of the file; None in memory."""
        return None if self._file is None else self._file.state

    # -- content --------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of codes."""
        return self._snapshot.n_codes

    @property
    def _segments(self) -> list[Segment]:
        return self._snapshot.segments

    def __repr__(self) -> str:
        where = "" if self._file is None else f", {str(self._file.path)!r}"
        return f"<HammingIndex of {len(self)} codes of {self.n_bits} bits{where}>"

    def info(self) -> dict[str, Any]:
        """Return the number and length of the codes, their model, and the state of the file.

        Returns
        -------
        info : dict
            ``codes``, ``bits``, ``model`` and ``ids`` ("integers" or "strings"); for a file also
            ``removed``, ``batches``, ``bytes`` and ``format``. With cells also ``cells``, their
            number, and ``outside_cells``, the number of codes added since.
        """
        result = {"codes": len(self), "bits": self.n_bits, "model": self.model}
        result["ids"] = "integers" if self._snapshot.strings is None else "strings"
        if self._file is not None:
            slot, batches = self._file.slot, self._file.batches
            rows = sum(batch.n for batch in batches if batch.kind in ROWS)
            result |= {"removed": rows - len(self), "batches": slot.n_batches}
            result |= {"bytes": slot.end, "format": self._file.head.version}
        return result | probe.describe(self._segments)

    @property
    def nbytes(self) -> int:
        """Bytes of the codes, of ids that are not consecutive, and of cells."""
        segments, strings = self._snapshot
        n_bytes = 0 if strings is None else strings.nbytes
        return n_bytes + sum(segment.nbytes for segment in segments)

    @property
    def ids(self) -> NDArray[Any]:
        """All ids: int64, ascending; or strings (dtype object), in the order of adding."""
        snapshot = self._snapshot
        return snapshot.public(all_ids(snapshot.segments))

    def add(
        self, codes: ArrayLike, ids: ArrayLike | None = None, *, model: Model | None = None
    ) -> NDArray[Any]:
        """Add codes: all of them, or none if an error is raised.

        Parameters
        ----------
        codes : uint8 array of shape (n, n_bytes)
            Packed codes.
        ids : array of shape (n,) or None, default=None
            Integers or strings; each must be new. The first codes decide of which kind the ids of
            the index are. None assigns consecutive integers above the highest one that the index
            has ever had.
        model : BaseHasher or str or None, default=None
            The model that produced the codes, or its fingerprint; refused if it is not the model
            of the index.

        Returns
        -------
        ids : array of shape (n,)
            The ids of the new codes: int64, or strings (dtype object).
        """
        array = checks.check_rows(codes, self.n_bits)
        checks.check_model(self.model, model, "the index")
        with self._changing:
            chosen, strings, stored = self._new_ids(ids, len(array))
            checks.refuse_stored(self._snapshot.public(stored))
            self._commit(array, chosen, strings, stored)
            return chosen if strings is None else np.array(strings, object)

    def upsert(self, codes: ArrayLike, ids: ArrayLike, *, model: Model | None = None) -> Upserted:
        """Add codes, overwriting those with the same ids: all of them, or none on an error.

        A string id that is stored moves to the end of the order of adding. The first `upsert` that
        overwrites codes in a file of format 3 or below rewrites it in format 4.

        Parameters
        ----------
        codes : uint8 array of shape (n, n_bytes)
            Packed codes.
        ids : array of shape (n,)
            Integers or strings, all different.
        model : BaseHasher or str or None, default=None
            The model that produced the codes, or its fingerprint; refused if it is not the model
            of the index.

        Returns
        -------
        added : int
            Number of codes whose ids were not stored.
        replaced : int
            Number of codes whose ids were stored.

        Examples
        --------
        >>> import numpy as np
        >>> from kdiffhash import HammingIndex
        >>> index = HammingIndex(np.zeros((2, 8), np.uint8), ids=["a.txt", "b.txt"])
        >>> index.upsert(np.ones((2, 8), np.uint8), ["b.txt", "c.txt"])
        Upserted(added=1, replaced=1)
        >>> index.ids.tolist()
        ['a.txt', 'b.txt', 'c.txt']
        """
        array = checks.check_rows(codes, self.n_bits)
        checks.check_model(self.model, model, "the index")
        if ids is None:
            raise ValueError("upsert needs the ids of the codes; to have new ones assigned use add")
        with self._changing:
            chosen, strings, stored = self._new_ids(ids, len(array))
            self._commit(array, chosen, strings, stored)
            return Upserted(len(array) - len(stored), len(stored))

    def _new_ids(self, ids: ArrayLike | None, n: int) -> tuple[Ids, list[str] | None, Ids]:
        """Return ids for new rows, the strings that they stand for, and the ids of stored rows.

        The latter are those that have the same ids or strings.
        """
        snapshot, strings = self._snapshot, checks.are_strings(ids)
        if snapshot.strings is not None and not strings:
            if n or not checks.is_empty(ids):
                raise ValueError("the ids of this index are strings; pass one string per code")
            return np.empty(0, np.int64), [], np.empty(0, np.int64)
        if strings and snapshot.strings is None and (len(self) or self._next_id):
            raise ValueError(
                "the ids of this index are integers, but strings were given; use another index"
            )
        if ids is None or not strings:
            chosen = checks.check_new_ids(ids, n, self._next_id)
            return chosen, None, chosen[:0] if ids is None else chosen[snapshot.stored(chosen)]
        texts, first = checks.check_new_strings(ids, n), self._next_id
        known = np.empty(0, np.int64)
        if snapshot.strings is not None:
            known, _ = snapshot.numbers(texts)
        return np.arange(first, first + n), texts, known[known >= 0]

    def _commit(self, codes: Codes, ids: Ids, strings: list[str] | None, removed: Ids) -> None:
        """Remove rows and add others in one step."""
        if not len(codes):
            return
        segment = make_segment(as_words(codes), ids)
        block = None if strings is None else new_block(int(ids[0]), strings)
        next_id, file = max(self._next_id, segment.last_id + 1), self._file
        if file is None:
            segments, known = self._snapshot
            if block is not None:
                known = (known or StringIds()).with_block(block)
            segments = with_rows(without_ids(segments, removed), segment)
            self._snapshot, self._next_id = Snapshot(segments, known), next_id
            return
        newer = file.head._replace(version=VERSION, string_ids=block is not None)
        if file.head != newer and (block is not None or len(removed)):
            self._rewrite(newer)
        if block is not None:  # without rows, these strings have no effect
            file.add_strings(block)
            self._load(file)
        file.add_rows(segment, next_id, np.sort(removed))
        self._load(file)

    def remove(self, ids: ArrayLike) -> None:
        """Remove codes by id.

        Parameters
        ----------
        ids : array of shape (n,), or one id
            All of them must be stored.
        """
        with self._changing:
            chosen, given = self._snapshot.numbers(ids)
            checks.refuse_missing(given[~self._snapshot.stored(chosen)])
            if not len(chosen):
                return
            if self._file is not None:
                self._file.add_removal(np.unique(chosen))
                self._load(self._file)
            else:
                segments = without_ids(self._segments, chosen)
                self._snapshot = self._snapshot._replace(segments=segments)

    def get(self, ids: ArrayLike) -> Codes:
        """Return codes by id.

        Parameters
        ----------
        ids : array of shape (n,), or one id
            All of them must be stored.

        Returns
        -------
        codes : uint8 array of shape (n, n_bytes), or (n_bytes,) for one id
            Packed codes, in the order of `ids`.
        """
        snapshot = self._snapshot
        chosen, given = snapshot.numbers(ids)
        words, found = words_by_id(snapshot.segments, self.n_bits, chosen)
        checks.refuse_missing(given[~found])
        codes = to_codes(words, self.n_bits)
        return codes[0] if checks.is_single(ids) else codes

    def __contains__(self, id: object) -> bool:
        """Return whether a code with this id is stored."""
        snapshot = self._snapshot
        if snapshot.strings is not None:
            if not isinstance(id, str) or not id or not checks.is_encodable(id):
                return False
        elif not isinstance(id, int | np.integer) or not -(2**63) <= id < 2**63:
            return False
        one = np.array([id], np.int64 if snapshot.strings is None else object)
        return bool(snapshot.stored(snapshot.numbers(one)[0])[0])


def _in_memory(
    kind: type[HammingIndex], n_bits: int, model: str | None, snapshot: Snapshot, next_id: int
) -> HammingIndex:
    index = kind(n_bits=n_bits, model=model)
    index._snapshot, index._next_id = snapshot, next_id
    return index
