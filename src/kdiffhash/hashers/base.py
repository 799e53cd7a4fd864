"""What all hashers share: drawing pairs, encoding, measuring, shortening, saving."""

from __future__ import annotations

import copy
import os
import warnings
from abc import abstractmethod
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ..calibration import Calibration, calibrate
from ..codes import Codes, hamming, n_bytes
from ..encode import Encoder
from ..kernels import FeatureMap
from ..metrics import roc
from ..pairs import Pairs, Similar, Things, as_ids, check_pairs, draw_pairs
from ..preprocess import Preprocess, check_preprocess
from ..shards import Shards
from ..thresholds import BitRates

_NEARLY_CONSTANT = 1e-3  # share of rows on the rarer side of a bit that is called constant


class ConstantBitWarning(UserWarning):
    """Some bits have (nearly) the same value on all training rows."""


class BaseHasher(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base class of all hashers.

    A fitted hasher has `directions_`, shape (n_bits, number of features), and `thresholds_`, shape
    (n_bits,): bit i of a row is 1 where the row's features, multiplied with direction i, are above
    threshold i.
    """

    n_bits: int | None
    preprocess: Preprocess
    random_state: int | np.random.RandomState | None
    n_jobs: int | None
    n_positives: int
    n_negatives: int

    n_features_in_: int
    directions_: NDArray[np.float32]
    thresholds_: NDArray[np.float32]

    #: Fitted attributes that make the hash; `model_file` stores those that are set.
    _fitted: ClassVar[tuple[str, ...]] = ("directions_", "thresholds_")
    #: Whether prefixes of its codes are good codes.
    _nested: ClassVar[bool] = True
    #: Whether fitting asks for rows by their numbers and never for all of them.
    _reads_some_rows: ClassVar[bool] = False
    #: Fitted attributes with one entry a bit, which `truncate` shortens.
    _per_bit: ClassVar[tuple[str, ...]] = ("directions_", "thresholds_")

    # -- learning -------------------------------------------------------------------------------

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Learn from labelled rows; pairs are drawn from the labels.

        Parameters
        ----------
        X : array of shape (n, d)
        y : array of shape (n,)
            Which thing each row shows.
        groups : array of shape (n,), optional
            If given, pairs are drawn across groups only (see `draw_pairs`).

        Returns
        -------
        self
        """
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: "
                "the id of the thing that each row shows"
            )
        self._forget()
        rows, labels = validate_data(
            self, X, y, dtype="numeric", y_numeric=False, ensure_min_samples=2
        )
        pairs, similar = draw_pairs(
            labels,
            self.n_positives,
            self.n_negatives,
            groups=groups,
            random_state=self._rng("pairs"),
        )
        things = Things(as_ids(labels, "y"), None if groups is None else as_ids(groups, "groups"))
        return self._fit_checked(rows, pairs, similar, things)

    def fit_pairs(
        self,
        X: ArrayLike | Shards,
        pairs: ArrayLike,
        similar: ArrayLike,
        y: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Learn from explicit pairs.

        Parameters
        ----------
        X : array of shape (n, d)
        pairs : int array of shape (p, 2)
            Row numbers of both members of each pair.
        similar : bool array of shape (p,)
            True where both members show the same thing.
        y : array of shape (n,), optional
            Which thing each row shows, if that is known. Refinement uses it: it draws more similar
            pairs, and looks for negatives among rows of other things. Without y, rows
            show the same thing if similar pairs join them.
        groups : array of shape (n,), optional
            With y: draw those pairs across groups only, as in `fit`.

        Returns
        -------
        self

        Notes
        -----
        X may be `kdiffhash.shards.open_shards` of a folder that is larger than memory; the closed
        forms read only those of its rows that are in pairs or in the basis.
        """
        self._forget()
        if isinstance(X, Shards) and self._reads_some_rows:
            rows: Any = X
            self.n_features_in_ = X.shape[1]
        else:
            rows = validate_data(self, X, dtype="numeric", ensure_min_samples=2)
        things = None
        if y is not None:
            things = Things(as_ids(y, "y"), None if groups is None else as_ids(groups, "groups"))
            if len(things.ids) != len(rows):
                raise ValueError(f"X has {len(rows)} rows, but y has {len(things.ids)} labels")
        return self._fit_checked(rows, *check_pairs(pairs, similar, len(rows)), things)

    @abstractmethod
    def _fit_checked(
        self, X: NDArray[Any], pairs: Pairs, similar: Similar, things: Things | None
    ) -> Self:
        """Learn from checked input: set `directions_`, `thresholds_` and what the features need."""

    # -- encoding -------------------------------------------------------------------------------

    def transform(self, X: ArrayLike) -> Codes:
        """Encode rows.

        Parameters
        ----------
        X : array of shape (n, d)
            float, uint8 or other numbers, in memory or memory-mapped.

        Returns
        -------
        codes : uint8 array of shape (n, ceil(n_bits / 8))
            Packed as by `numpy.packbits`, spare bits zero.
        """
        check_is_fitted(self)
        return self._encoder().encode(self._check_rows(X), self.n_jobs)

    def project(self, X: ArrayLike) -> NDArray[np.float32]:
        """The real numbers whose signs are the bits.

        Parameters
        ----------
        X : array of shape (n, d)

        Returns
        -------
        projections : float32 array of shape (n, n_bits)
            Bit i is 1 where column i is above zero.
        """
        check_is_fitted(self)
        encoder = self._encoder()
        projections = encoder.raw_projections(self._check_rows(X), self.n_jobs)
        projections -= encoder.thresholds
        return projections

    def pair_distance(self, X: ArrayLike, pairs: ArrayLike) -> NDArray[np.int64]:
        """Hamming distance between the codes of pairs of rows.

        Parameters
        ----------
        X : array of shape (n, d)
        pairs : int array of shape (p, 2)

        Returns
        -------
        distances : int64 array of shape (p,)
        """
        check_is_fitted(self)
        rows, numbers = self._check_rows(X), np.atleast_1d(np.asarray(pairs))
        checked, _ = check_pairs(numbers, np.ones(len(numbers), bool), len(rows))
        used, members = np.unique(checked, return_inverse=True)
        codes = self._encoder().encode(rows[used], self.n_jobs)
        left, right = members.reshape(-1, 2).T
        return hamming(codes[left], codes[right])

    # -- measuring ------------------------------------------------------------------------------

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Share of similar pairs found at a false-positive rate of 1 %; higher is better.

        Pairs are drawn from the labels with a fixed seed. In a search over parameters, keep the
        rows of a thing together, for instance with ``GroupKFold`` and ``groups=y``.
        """
        if len(np.asarray(y)) != len(np.asarray(X)):
            raise ValueError(f"X has {len(np.asarray(X))} rows, y has {len(np.asarray(y))} labels")
        pairs, similar = draw_pairs(y, self.n_positives, self.n_negatives, random_state=0)
        return 1 - roc(self.pair_distance(X, pairs), similar).fnr_at(0.01)

    def calibrate_threshold(
        self,
        X: ArrayLike,
        pairs: ArrayLike,
        similar: ArrayLike,
        *,
        fpr: float,
        confidence: float = 0.95,
    ) -> Calibration:
        """Find the distance that gives a wanted false-positive rate.

        Use pairs of things that the hasher was not trained on, and pairs that are as hard to tell
        apart as those it will see. Intervals take pairs as independent: let no row be in many.

        Parameters
        ----------
        X : array of shape (n, d)
        pairs : int array of shape (p, 2)
        similar : bool array of shape (p,)
        fpr : float
            The false-positive rate that is acceptable. One that the number of dissimilar pairs
            cannot resolve is refused.
        confidence : float

        Returns
        -------
        calibration : Calibration
            With `distance`, `fpr`, `tpr` and their intervals.
        """
        distances = self.pair_distance(X, pairs)
        _, flags = check_pairs(pairs, similar, len(cast(Any, X)))
        return calibrate(distances, flags, fpr, confidence)

    # -- shortening and saving ------------------------------------------------------------------

    def truncate(self, n_bits: int) -> Self:
        """A hasher of the first `n_bits` bits; its codes are prefixes of this one's codes."""
        check_is_fitted(self)
        if not isinstance(n_bits, int | np.integer) or not 1 <= n_bits <= self.n_bits_:
            raise ValueError(f"n_bits must lie in 1..{self.n_bits_}, got {n_bits}")
        names = [name for name in self._per_bit if hasattr(self, name)]
        short = copy.copy(self)
        short.n_bits = int(n_bits)
        for name in names:
            setattr(short, name, getattr(self, name)[:n_bits].copy())
        return short

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file (safetensors with a JSON header)."""
        from ..model_file import save

        check_is_fitted(self)
        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model file of this class; `kdiffhash.load` reads any class."""
        from ..model_file import load

        model = load(path)
        if not isinstance(model, cls):
            raise ValueError(
                f"{os.fspath(path)} holds a {type(model).__name__}, not a {cls.__name__}; "
                "kdiffhash.load reads any model"
            )
        return model

    @property
    def n_bits_(self) -> int:
        """Number of bits of the fitted hasher."""
        check_is_fitted(self)
        return len(self.directions_)

    # -- for subclasses -------------------------------------------------------------------------

    @abstractmethod
    def _feature_map(self) -> FeatureMap:
        """The feature map of the fitted hasher."""

    def _encoder(self) -> Encoder:
        return Encoder(self.preprocess, self._feature_map(), self.directions_, self.thresholds_)

    def _forget(self) -> None:
        """Drop what was learned, so that a fit that fails leaves no mixture of old and new."""
        for name in self._fitted:
            self.__dict__.pop(name, None)

    def _check_rows(self, X: ArrayLike) -> NDArray[Any]:
        """Check the shape; values are checked tile by tile, so that big files are read once."""
        rows: NDArray[Any] = validate_data(
            self, X, reset=False, dtype="numeric", ensure_all_finite=False
        )
        if rows.dtype.kind not in "biuf":
            raise ValueError(f"X must hold numbers, got {rows.dtype}")
        return rows

    def _check_params(self) -> None:
        check_preprocess(self.preprocess)
        if self.n_bits is not None and (
            not isinstance(self.n_bits, int | np.integer) or self.n_bits < 1
        ):
            raise ValueError(f"n_bits must be a whole number from 1, or None; got {self.n_bits!r}")

    def _rng(self, purpose: str) -> np.random.Generator:
        """Random numbers for one purpose; the same ones for the same `random_state`."""
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31)
        return np.random.default_rng([int(seed), *purpose.encode()])

    def _take_bit_rates(self, rates: BitRates) -> None:
        """Store what the threshold search found, and report bits that say nothing."""
        self.thresholds_ = rates.thresholds
        self.bit_fnr_, self.bit_fpr_, self.bit_ones_ = rates.fnr, rates.fpr, rates.ones
        constant = np.flatnonzero(np.minimum(rates.ones, 1 - rates.ones) < _NEARLY_CONSTANT)
        if len(constant):
            shown = ", ".join(map(str, constant[:8])) + (", ..." if len(constant) > 8 else "")
            warnings.warn(
                f"{len(constant)} of {len(rates.ones)} bits are constant, or nearly so, on the "
                f"training rows (bits {shown}): use fewer bits, another threshold_weight, or drop "
                "constant and repeated features",
                ConstantBitWarning,
                stacklevel=5,
            )

    @property
    def _n_features_out(self) -> int:
        return n_bytes(self.n_bits_)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "directions_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = []
        tags.input_tags.positive_only = self.preprocess == "hellinger"
        return tags
