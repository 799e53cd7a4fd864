"""Partitions of an index in the memory of workers, reloaded when workers leave or join.

Each partition is pinned to one thread of one worker. Dask would repeat a pinned task only on the
same worker, and wait forever if that worker is lost. So the client keeps track of the workers
itself: it moves the partitions of a lost worker to the remaining ones, and some partitions to
workers that join.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from ..._util.extras import need
from ...search import HammingIndex
from .cluster import (
    POLL,
    ClusterError,
    call_in_thread,
    identity,
    translate_errors,
    wait_for_workers,
    worker_threads,
)

PER_THREAD = 4  # initial partitions per thread, so that workers that join can take some over
_MAX_LOSSES = 5  # how often one call may lose the same partition with its worker
_SMALL = 2**16  # bytes up to which an argument is sent with every task

Slot = tuple[str, int]  # address of a worker, number of a thread


@dataclass(frozen=True, eq=False)
class Partition:
    """Codes in the memory of a worker, and their digest."""

    index: HammingIndex
    digest: bytes

    @classmethod
    def of(cls, index: HammingIndex) -> Partition:
        """Return an index as a partition."""
        digest = hashlib.blake2b(digest_size=16)
        for segment in index._segments:
            digest.update(repr((segment.n_rows, segment.first_id)).encode())
            for array in (segment.blocks, segment.listed, segment.kept):
                if array is not None:
                    digest.update(np.ascontiguousarray(array).data)
        return cls(index, digest.digest())


@dataclass(eq=False)
class _Call:
    """The state of a function call on all partitions."""

    submit: Callable[..., Any]
    waiting: set[int]  # partitions that still need a task
    running: dict[Any, tuple[str, list[int]]] = field(default_factory=dict)
    outcomes: SimpleQueue[tuple[Any, Future[Any]]] = field(default_factory=SimpleQueue)
    results: list[Any] = field(default_factory=list)
    losses: Counter[int] = field(default_factory=Counter)  # by partition


class Partitions:
    """All partitions of an index, and the workers that hold them.

    Parameters
    ----------
    client : distributed.Client
    loaders : list of callable
        One per partition: ``loader(workers=[address])`` submits a task that returns a `Partition`.
        Each task needs a new key, because Dask remembers the workers of a known key.
    source : object
        Name of the codes in error messages.
    """

    def __init__(self, client: Any, loaders: list[Callable[..., Any]], source: Any) -> None:
        self._client, self._loaders, self._source = client, loaders, source
        self._slots: list[Slot | None] = [None] * len(loaders)
        self._futures: list[Any] = [None] * len(loaders)
        self._digests: list[bytes | None] = [None] * len(loaders)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Release the memory of the workers."""
        with self._lock:
            self._loaders, self._slots, self._futures = [], [], []

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call a function on the indexes of each thread: ``function(indexes, *arguments)``.

        Returns one result per thread that holds partitions, in no particular order.
        """
        submit = partial(self._client.submit, pure=False)
        with translate_errors():
            sent = [
                submit(identity, x) if getattr(x, "nbytes", 0) > _SMALL else x for x in arguments
            ]
            call = _Call(
                lambda futures, address: submit(
                    _apply, function, futures, *sent, workers=[address]
                ),
                set(range(len(self._digests))),
            )
            try:
                while call.waiting or call.running:
                    self._submit(call)
                    self._collect(call)
            except BaseException:
                if call.running and self._client.status == "running":
                    self._client.cancel(list(call.running))
                raise
        return call.results

    def _submit(self, call: _Call) -> None:
        """Submit tasks for the waiting partitions, one per thread that holds any."""
        if not call.waiting:
            return
        self._check_open()
        threads = wait_for_workers(self._client)
        with self._lock:
            self._check_open()
            self._place(threads)
            groups: dict[Slot, list[int]] = {}
            for number in sorted(call.waiting):
                groups.setdefault(self._slots[number], []).append(number)  # type: ignore[arg-type]
            futures = list(self._futures)
        for (address, _), group in groups.items():
            task = call.submit([futures[number] for number in group], address)
            call.running[task] = address, group
            call_in_thread(task.result, done=partial(_put, call.outcomes, task))
        call.waiting.clear()

    def _check_open(self) -> None:
        if not self._loaders:
            raise ValueError("this ClusterIndex is closed; create it again")

    def _collect(self, call: _Call) -> None:
        """Collect one result, or find the tasks that were lost with their workers."""
        try:
            task, outcome = call.outcomes.get(timeout=POLL)
        except Empty:
            threads = worker_threads(self._client)
            for task, (address, _) in list(call.running.items()):
                if address not in threads:
                    self._handle_loss(call, task)
            return
        if task not in call.running:
            return  # its worker was lost
        try:
            digests, result = outcome.result()
        except (CancelledError, need("distributed", "dask").KilledWorker):
            worker_threads(self._client)  # raises if the scheduler is lost
            self._handle_loss(call, task)
            return
        for number, digest in zip(call.running.pop(task)[1], digests, strict=True):
            if self._digests[number] not in (None, digest):
                raise ClusterError(
                    f"{self._source} has been changed since its codes were loaded; create the "
                    "ClusterIndex again"
                )
            self._digests[number] = digest
        call.results.append(result)

    def _handle_loss(self, call: _Call, task: Any) -> None:
        """Mark the partitions of a lost task as waiting, so that they are reloaded."""
        address, group = call.running.pop(task)
        call.losses.update(group)
        if max(call.losses.values()) > _MAX_LOSSES:
            raise ClusterError(
                f"the same codes were lost with their workers {_MAX_LOSSES + 1} times, the last "
                f"time on {address}; check that the workers have enough memory"
            )
        with self._lock:
            self._check_open()
            lost = [task]
            for number in group:
                if (slot := self._slots[number]) is not None and slot[0] == address:
                    lost.append(self._futures[number])
                    self._slots[number] = self._futures[number] = None
        with suppress(CancelledError):
            self._client.cancel([future for future in lost if future is not None])
        call.waiting |= set(group)

    def _place(self, threads: dict[str, int]) -> None:
        """Distribute partitions evenly over threads, and start loading those that are missing."""
        slots = [(address, i) for address, n in sorted(threads.items()) for i in range(n)]
        load = Counter(slot for slot in self._slots if slot in set(slots))
        held: dict[Slot, list[int]] = {slot: [] for slot in slots}
        for number, slot in enumerate(self._slots):
            future = self._futures[number]
            if future is not None and future.status in ("error", "cancelled", "lost"):
                self._futures[number] = None
            if slot not in held:
                slot = min(slots, key=lambda slot: load[slot])
                load[slot] += 1
                self._slots[number], self._futures[number] = slot, None
            held[slot].append(number)
        while True:
            fullest, emptiest = max(slots, key=load.__getitem__), min(slots, key=load.__getitem__)
            if load[fullest] - load[emptiest] < 2:
                break
            number = held[fullest].pop()
            held[emptiest].append(number)
            load[fullest], load[emptiest] = load[fullest] - 1, load[emptiest] + 1
            self._slots[number] = emptiest
            if fullest[0] != emptiest[0]:
                self._futures[number] = None
        for number, slot in enumerate(self._slots):
            if self._futures[number] is None and slot is not None:
                self._futures[number] = self._loaders[number](workers=[slot[0]])

    def workers(self) -> set[str]:
        """Return the addresses of the workers that hold partitions."""
        return {slot[0] for slot in self._slots if slot is not None}


def _put(outcomes: SimpleQueue[Any], task: Any, outcome: Future[Any]) -> None:
    outcomes.put((task, outcome))


def _apply(
    function: Callable[..., Any], partitions: list[Partition], *arguments: Any
) -> tuple[list[bytes], Any]:
    """Return the digests of partitions, and the result of a function on their indexes."""
    indexes = [partition.index for partition in partitions]
    return [partition.digest for partition in partitions], function(indexes, *arguments)


with suppress(ImportError):  # tells the scheduler how much memory a partition takes
    from dask.sizeof import sizeof

    @sizeof.register(Partition)  # type: ignore[no-untyped-call]
    def _size(partition: Partition) -> int:
        return partition.index.nbytes
