"""The methods that `embeddings.py` compares, one line each in `METHODS`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from sklearn.base import clone

from kdiffhash import CrossDiffHash, DiffHash, ITQHash, KernelLDAHash, LDAHash

from .embeddings import TextPairs
from .searchers import Centred, Centring, Codes, Faiss, Floats, Projections

LENGTHS = (8, 16, 32, 48, 64)
FACTOR_BYTES = 8  # that RaBitQ stores for a vector besides its bits
OPQ_ITERATIONS = 10  # of 50, which take minutes
RIDGE, STEPS, ITQ_STEPS = 0.3, 100, 300  # chosen on training and validation pairs


Learn = Callable[[TextPairs, int], Any]  # from training pairs, for a number of bytes


@dataclass(frozen=True)
class Method:
    """A line of the table: what is learned, from what, and for which numbers of bytes."""

    name: str
    learned_from: str  # "pairs", "vectors", or "nothing"
    learn: Learn
    lengths: tuple[int, ...] = LENGTHS


def centred(learn: Learn, scaled: bool = True) -> Learn:
    """Let a method learn and search rows that are centred per side, then scaled to length 1."""

    @cache
    def centre(train: TextPairs) -> tuple[TextPairs, Centring]:
        centring = Centring(train.queries.mean(axis=0), train.documents.mean(axis=0), scaled)
        queries, documents = (
            centring.of_queries(train.queries),
            centring.of_documents(train.documents),
        )
        return replace(train, queries=queries, documents=documents), centring

    def learn_centred(train: TextPairs, n_bytes: int) -> Centred:
        rows, centring = centre(train)
        return Centred(learn(rows, n_bytes), centring)

    return learn_centred


def signs(_train: TextPairs, n_bytes: int) -> Codes:
    return Codes(Projections(None), Projections(None), 8 * n_bytes)


def random_rotation(train: TextPairs, n_bytes: int) -> Codes:
    """Directions are rows of random rotations, of as many as there are bits for."""
    rng, width = np.random.default_rng(0), train.queries.shape[1]
    rotations = [np.linalg.qr(rng.normal(size=(width, width)))[0] for _ in range(2)]
    hasher = Projections(np.concatenate(rotations)[: 8 * n_bytes].astype(np.float32))
    return Codes(hasher, hasher, 8 * n_bytes)


def itq(train: TextPairs, n_bytes: int, refine: int = 0) -> Codes:
    hasher = ITQHash(8 * n_bytes, refine=refine, random_state=0).fit(train.rows)
    return Codes(hasher, hasher, 8 * n_bytes)


def faiss_index(template: str, train: TextPairs, n_bytes: int) -> Faiss:
    """Train an index on the documents; D in the template are the dimensions of the bits."""
    import faiss

    bits = 8 * (n_bytes - FACTOR_BYTES)
    width = train.documents.shape[1]
    index = faiss.index_factory(width, template.format(M=n_bytes, D=bits))
    if "RaBitQ" in template:
        faiss.downcast_index(index.index).qb = 8  # bits of a query's numbers; 0 is not better
    if "OPQ" in template:
        faiss.downcast_VectorTransform(index.chain.at(0)).niter = OPQ_ITERATIONS
    index.train(train.documents)
    return Faiss(index, n_bytes)


def one_map(hasher: Any, longest: int = 48) -> Learn:
    """Learn one map for both sides at the longest length; shorter codes are prefixes."""

    @cache
    def learn_longest(train: TextPairs) -> tuple[Any, float]:
        start = time.perf_counter()
        return fit(hasher, train, longest), time.perf_counter() - start

    def learn(train: TextPairs, n_bytes: int) -> Codes:
        learned, fit_s = learn_longest(train)
        shorter = learned.truncate(8 * n_bytes)
        return Codes(shorter, shorter, 8 * n_bytes, fit_s)

    return centred(learn, scaled=False)


def one_map_per_length(hasher: Any) -> Learn:
    """Learn one map for both sides for each length."""

    def learn(train: TextPairs, n_bytes: int) -> Codes:
        learned = fit(hasher, train, n_bytes)
        return Codes(learned, learned, 8 * n_bytes)

    return centred(learn, scaled=False)


def fit(hasher: Any, train: TextPairs, n_bytes: int) -> Any:
    learned = clone(hasher).set_params(n_bits=8 * n_bytes, random_state=0)
    return learned.fit_pairs(train.queries, Y=train.documents, groups=train.sources)


def two_maps(train: TextPairs, n_bytes: int) -> Codes:
    model = CrossDiffHash(8 * n_bytes, random_state=0)
    model.fit_pairs(train.queries, Y=train.documents, groups=train.sources)
    return Codes(model.x_, model.y_, 8 * n_bytes)


UP_TO_48 = (8, 16, 32, 48)
PQ, OPQ = (partial(faiss_index, template) for template in ("PQ{M}x8", "OPQ{M},PQ{M}x8"))
RABITQ = partial(faiss_index, "PCAR{D},RaBitQ")
RABITQ_ALL = partial(faiss_index, "RR{D},RaBitQ")
RABITQ_LENGTHS = (16, 24, 32, 40, 48)
NESTED, KERNEL = (kind(ridge=RIDGE, refine=STEPS) for kind in (LDAHash, KernelLDAHash))
ONE_LENGTH = clone(NESTED).set_params(nested=False)

AS_THEY_ARE = (
    Method("float cosine", "nothing", lambda _train, n_bytes: Floats(n_bytes), (1536,)),
    Method("sign bits", "nothing", signs, (48,)),
    Method("ITQ", "vectors", itq, UP_TO_48),
    Method("ITQ, refined", "vectors", partial(itq, refine=ITQ_STEPS), UP_TO_48),
    Method("RaBitQ after PCA", "vectors", RABITQ, RABITQ_LENGTHS),
    Method("RaBitQ", "vectors", RABITQ_ALL, (56,)),
)
CENTRED_ONLY = (  # which is better
    Method("random rotation", "nothing", random_rotation),
    Method("PQ", "vectors", PQ, (64,)),
    Method("OPQ + PQ", "vectors", OPQ, UP_TO_48),
)
METHODS = (
    *AS_THEY_ARE,
    *(
        replace(m, name=f"{m.name}, centred", learned_from="vectors", learn=centred(m.learn))
        for m in (*AS_THEY_ARE, *CENTRED_ONLY)
    ),
    Method("DiffHash", "pairs", one_map(DiffHash()), UP_TO_48),
    Method("LDAHash", "pairs", one_map(LDAHash(ridge=RIDGE)), UP_TO_48),
    Method("KernelLDAHash", "pairs", one_map(KernelLDAHash(ridge=RIDGE), 64)),
    Method("CrossDiffHash", "pairs", centred(two_maps, scaled=False), UP_TO_48),
    Method("LDAHash, refined", "pairs", one_map_per_length(ONE_LENGTH), UP_TO_48),
    Method("LDAHash, refined, prefixes", "pairs", one_map(NESTED), UP_TO_48),
    Method("KernelLDAHash, refined, prefixes", "pairs", one_map(KERNEL, 64)),
)
