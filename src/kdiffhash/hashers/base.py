"""What all hashers share: drawing pairs, encoding, measuring, shortening, saving."""

from __future__ import annotations

import copy
import warnings
from abc import abstractmethod
from typing import Any, ClassVar, Self, cast
from weakref import WeakKeyDictionary

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
from ..model_file import Arrays, Header, Model
from ..pairs import Labels, Pairs, Similar, check_pairs, distinct_rows, draw_pairs
from ..preprocess import Preprocess, check_preprocess
from ..rows import RowSource, check_source, is_source
from ..thresholds import BitRates
from .stored import from_file, to_file

_encoders: WeakKeyDictionary[BaseHasher, Encoder] = WeakKeyDictionary()  # of fitted hashers
_NEARLY_CONSTANT = 1e-3  # share of rows on the rarer side of a bit that is called constant


class ConstantBitWarning(UserWarning):
    """Some bits have (nearly) the same value on all training rows."""


class BaseHasher(Model, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
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
    #: Fitted attributes with one entry a bit, which `truncate` shortens.
    _per_bit: ClassVar[tuple[str, ...]] = ("directions_", "thresholds_")

    # -- learning -------------------------------------------------------------------------------

    def fit(self, X: Any, y: ArrayLike | None = None, groups: ArrayLike | None = None) -> Self:
        """Learn from labelled rows; pairs are drawn from the labels.

        Parameters
        ----------
        X : array of shape (n, d)
            Or a memory map, `kdiffhash.shards.open_shards` of a folder, or a dask array. Of these,
            only the rows that learning needs are read.
        y : array of shape (n,)
            Which object each row belongs to. Shards may have labels of their own.
        groups : array of shape (n,), optional
            If given, pairs are drawn across groups only (see `draw_pairs`).

        Returns
        -------
        self
        """
        if y is None and isinstance(X, RowSource):
            y = X.labels()
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: "
                "the object that each row belongs to"
            )
        self._forget()
        rows, y = self._check_training_rows(X, y)
        labels = Labels.of(y, groups, len(rows))
        pairs, similar = draw_pairs(
            labels.ids,
            self.n_positives,
            self.n_negatives,
            groups=labels.groups,
            random_state=self._rng("pairs"),
        )
        return self._fit_checked(rows, pairs, similar, labels)

    def fit_pairs(
        self,
        X: Any,
        pairs: ArrayLike,
        similar: ArrayLike,
        y: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Learn from explicit pairs.

        Parameters
        ----------
        X : array of shape (n, d)
            Or a source of rows, as in `fit`.
        pairs : int array of shape (p, 2)
            Row numbers of both members of each pair.
        similar : bool array of shape (p,)
            True where both members belong to the same object.
        y : array of shape (n,), optional
            Which object each row belongs to, if that is known. Refinement uses it: it draws more
            positive pairs, and looks for negatives among rows of other objects. Without y, rows
            that positive pairs join belong together.
        groups : array of shape (n,), optional
            With y: draw those pairs across groups only, as in `fit`.

        Returns
        -------
        self
        """
        self._forget()
        rows, _ = self._check_training_rows(X)
        if groups is not None and y is None:
            raise ValueError("groups came without y; they say which pairs of labelled rows to draw")
        labels = None if y is None else Labels.of(y, groups, len(rows))
        return self._fit_checked(rows, *check_pairs(pairs, similar, len(rows)), labels)

    def _fit_checked(self, X: Any, pairs: Pairs, similar: Similar, labels: Labels | None) -> Self:
        """Learn all, or nothing: a fit that fails leaves no half-learned hash."""
        try:
            self._check_params()
            self._learn(X, pairs, similar, labels)
        except BaseException:
            self._forget()
            raise
        return self

    @abstractmethod
    def _learn(self, X: Any, pairs: Pairs, similar: Similar, labels: Labels | None) -> None:
        """Learn from checked input: set `directions_`, `thresholds_` and what the features need.

        X is indexed by row numbers; where it is not in memory, each read costs time.
        """

    def _check_training_rows(self, X: Any, y: Any = None) -> tuple[Any, Any]:
        """Rows and labels of the same number; a source of rows is checked when it is read."""
        if is_source(X):
            check_source(X)
            self.n_features_in_ = int(X.shape[1])
            self.__dict__.pop("feature_names_in_", None)
            return X, y
        if y is None:
            return validate_data(self, X, dtype="numeric", ensure_min_samples=2), None
        rows, labels = validate_data(
            self, X, y, dtype="numeric", y_numeric=False, ensure_min_samples=2
        )
        return rows, labels

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
        projections = self._encoder().project(self._check_rows(X), self.n_jobs)
        projections -= self.thresholds_
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
        used, members = distinct_rows(checked)
        codes = self._encoder().encode(rows[used], self.n_jobs)
        left, right = members.T
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

    def _to_file(self) -> tuple[Header, Arrays]:
        check_is_fitted(self)
        return to_file(self)

    @classmethod
    def _from_file(cls, header: Header, arrays: Arrays) -> Self:
        return from_file(cls, header, arrays)

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
        """The prepared encoder, made when it is first needed and dropped by `__setattr__`."""
        encoder = _encoders.get(self)
        if encoder is None:
            for name in self._fitted:  # changed in place, they would no longer be what is encoded
                value = getattr(self, name, None)
                if isinstance(value, np.ndarray):
                    value.flags.writeable = False
            encoder = Encoder(
                self.preprocess, self._feature_map(), self.directions_, self.thresholds_
            )
            _encoders[self] = encoder
        return encoder

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a parameter or a fitted attribute; codes follow it from then on."""
        super().__setattr__(name, value)
        if name not in ("n_jobs", "verbose"):
            _encoders.pop(self, None)

    def _forget(self) -> None:
        """Drop what was learned, so that a fit that fails leaves no mixture of old and new."""
        _encoders.pop(self, None)
        for name in self._fitted:
            self.__dict__.pop(name, None)

    def _check_rows(self, X: ArrayLike) -> NDArray[Any]:
        """Check the shape; values are checked tile by tile, so that big files are read once."""
        if (
            type(X) is np.ndarray
            and X.ndim == 2
            and X.shape[1] == self.n_features_in_
            and X.dtype.kind in "biuf"
            and len(X)
            and not hasattr(self, "feature_names_in_")
        ):
            return X  # as the check below would find, in a tenth of the time of encoding a row
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
