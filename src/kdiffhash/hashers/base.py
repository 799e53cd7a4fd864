"""Base class of all hashers: draw pairs, encode, evaluate, truncate, save."""

from __future__ import annotations

import copy
import warnings
from abc import abstractmethod
from typing import Any, ClassVar, Self, cast
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ..codes import Codes, hamming, n_bytes
from ..evaluate.calibration import Calibration, calibrate
from ..evaluate.roc import roc
from ..learn.encoder import Encoder
from ..learn.kernels import FeatureMap
from ..learn.pairs import (
    Labels,
    Pairs,
    Similar,
    check_pairs,
    distinct_rows,
    draw_pairs,
    pairs_of_sides,
)
from ..learn.preprocess import Preprocess, check_preprocess
from ..learn.rows import Gathered, RowSource, Stacked, check_source, gather, is_source
from ..learn.thresholds import BitRates
from .model_file import Arrays, Header, Model
from .serialization import from_file, to_file

_encoders: WeakKeyDictionary[BaseHasher, Encoder] = WeakKeyDictionary()  # of fitted hashers
_SPREAD_ROWS = 5000  # training rows on which the spread of projections is measured
_NEARLY_CONSTANT = 1e-3  # a bit whose rarer value has a smaller share than this is reported


class ConstantBitWarning(UserWarning):
    """Warning that some bits have (nearly) the same value on all training rows.

    Examples
    --------
    >>> import warnings
    >>> from kdiffhash import ConstantBitWarning
    >>> warnings.simplefilter("ignore", ConstantBitWarning)  # where constant bits are expected
    """


class BaseHasher(Model, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base class of all hashers.

    Bit i of a row is 1 if the inner product of the row's features with ``directions_[i]`` is above
    ``thresholds_[i]``. The features are the row itself or, for kernel hashers, its kernel values
    with the basis.

    Attributes
    ----------
    directions_ : float32 array of shape (n_bits, n_features)
        One projection direction per bit.
    thresholds_ : float32 array of shape (n_bits,)
        One threshold per bit.
    bit_ones_ : float64 array of shape (n_bits,)
        Share of training rows for which the bit is 1.
    bit_spread_ : float64 array of shape (n_bits,)
        Standard deviation of the projections of training rows.
    n_features_in_ : int
        Number of columns of the training rows.
    n_bits_ : int
        Number of bits of the fitted hasher.

    Examples
    --------
    >>> from kdiffhash import BaseHasher, LDAHash
    >>> isinstance(LDAHash(), BaseHasher)
    True
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
    bit_ones_: NDArray[np.float64]
    bit_spread_: NDArray[np.float64]

    #: Fitted attributes that define the hash; a model file stores those that are set.
    _fitted: ClassVar[tuple[str, ...]] = ("directions_", "thresholds_", "bit_ones_", "bit_spread_")
    #: Whether a prefix of a code is a good shorter code.
    _nested: ClassVar[bool] = True
    #: Fitted attributes with one entry per bit, which `truncate` shortens.
    _per_bit: ClassVar[tuple[str, ...]] = _fitted

    # -- learning -------------------------------------------------------------------------------

    def fit(self, X: Any, y: ArrayLike | None = None, groups: ArrayLike | None = None) -> Self:
        """Learn from labelled rows; training pairs are drawn from the labels.

        Parameters
        ----------
        X : array of shape (n, d)
            Training rows: an array, a memory map, the result of `kdiffhash.shards.open_shards`, or
            a dask array. From the last three only the rows used for training are read.
        y : array of shape (n,) or None, default=None
            Label of each row: the object it belongs to. May be omitted only if X is a set of
            shards that store labels.
        groups : array of shape (n,) or None, default=None
            If given, both members of a pair come from different groups (see `draw_pairs`).

        Returns
        -------
        self : object
            The fitted hasher.
        """
        if y is None and isinstance(X, RowSource):
            y = X.labels()
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None; "
                "pass the label of each row, or call fit_pairs; ITQHash learns without labels"
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
        pairs: ArrayLike | None = None,
        similar: ArrayLike | None = None,
        y: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        *,
        Y: Any = None,
    ) -> Self:
        """Learn from pairs of rows of X, or of a row of X and a row of Y.

        Give Y if the members of a pair differ in kind, as queries and documents do, but can be
        compared: both are encoded by this hasher. `fit_pairs(queries, Y=documents)` learns from row
        i of both. If Y has other features than X, use `CrossDiffHash`.

        Parameters
        ----------
        X : array of shape (n, d)
            Training rows: an array, a memory map, the result of `kdiffhash.shards.open_shards`, or
            a dask array. From the last three only the rows used for training are read.
        pairs : int array of shape (p, 2) or None, default=None
            Row numbers of both members of each pair: of X, or of X and of Y. None, only together
            with Y, pairs row i of X with row i of Y.
        similar : bool array of shape (p,) or None, default=None
            True for positive pairs (both members belong to the same object). None, only together
            with Y, means that all pairs are positive; `n_negatives` negative pairs are drawn, half
            of them between rows of X and half between rows of Y.
        y : array of shape (n,) or None, default=None
            Labels, used by refinement only: it draws further positive pairs from them and takes
            negatives from rows with other labels. Without y, rows connected by positive pairs
            count as one object. Not together with Y.
        groups : array of shape (n,) or None, default=None
            Together with y: refinement draws pairs across groups only. Together with Y: rows of one
            group, for example versions of one text, are not used as negatives of each other. A row
            of Y belongs to the groups of its partners.
        Y : array of shape (m, d) or None, default=None
            The rows of the second members, for example documents, given in the same way as X.

        Returns
        -------
        self : object
            The fitted hasher.

        Examples
        --------
        >>> import numpy as np
        >>> from kdiffhash import DiffHash
        >>> rng = np.random.default_rng(0)
        >>> queries = rng.normal(size=(500, 16))
        >>> documents = queries + rng.normal(size=(500, 16))
        >>> hasher = DiffHash(8, random_state=0).fit_pairs(queries, Y=documents)
        >>> hasher.transform(documents).shape, hasher.project(queries).shape
        ((500, 1), (500, 8))
        """
        self._forget()
        if Y is not None:
            return self._fit_sides(X, Y, pairs, similar, y, groups)
        if pairs is None or similar is None:
            raise ValueError(
                "pairs and similar are needed for pairs of rows of X; to learn from row i of two "
                "arrays, call fit_pairs(X, Y=Y)"
            )
        rows, _ = self._check_training_rows(X)
        if groups is not None and y is None:
            raise ValueError(
                "groups were given without y; groups restrict the pairs drawn from labels, so pass "
                "y as well or leave groups out"
            )
        labels = None if y is None else Labels.of(y, groups, len(rows))
        return self._fit_checked(rows, *check_pairs(pairs, similar, len(rows)), labels)

    def _fit_sides(
        self,
        X: Any,
        Y: Any,
        pairs: ArrayLike | None,
        similar: ArrayLike | None,
        y: ArrayLike | None,
        groups: ArrayLike | None,
    ) -> Self:
        """Learn from pairs of a row of X and a row of Y."""
        if y is not None:
            raise ValueError(
                "y and Y were both given; with Y, the pairs tell which rows belong together, so "
                "leave y out"
            )
        first, _ = self._check_training_rows(X)
        if is_source(Y):
            check_source(Y, "Y")
            second = Y
        else:
            second = check_array(Y, dtype="numeric", ensure_min_samples=2, input_name="Y")
        if second.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {self.n_features_in_} features and Y has {second.shape[1]}; a hasher with "
                "one map needs equal features on both sides, so use CrossDiffHash"
            )
        n_rows = int(first.shape[0]), int(second.shape[0])
        rng = self._rng("pairs")
        found = pairs_of_sides(n_rows, pairs, similar, groups, self.n_negatives, rng)
        rows = Stacked(first, second)
        labels = Labels(found.labels, of_pairs=True)
        return self._fit_checked(rows, found.pairs, found.similar, labels)

    def _fit_checked(self, X: Any, pairs: Pairs, similar: Similar, labels: Labels | None) -> Self:
        """Learn from checked input; if that fails, leave the hasher unfitted."""
        try:
            self._check_params()
            self._learn(X, pairs, similar, labels)
            if not hasattr(self, "bit_spread_"):
                self._record_spread(X, pairs)
        except BaseException:
            self._forget()
            raise
        return self

    @abstractmethod
    def _learn(self, X: Any, pairs: Pairs, similar: Similar, labels: Labels | None) -> None:
        """Set `directions_`, `thresholds_` and the fitted attributes of the feature map.

        X is indexed by arrays of row numbers; if it is not in memory, every access is a read.
        """

    def _record_spread(self, X: Any, pairs: Pairs) -> None:
        """Record share of ones and spread of each bit, for comparison by `domain_shift`.

        They are measured on a sample of the rows in pairs, or of all rows if there are no pairs.
        Hashers that gather rows call this while they have them, so that none is read twice.
        """
        numbers = np.unique(pairs) if len(pairs) else np.arange(len(X))
        numbers = numbers[:: -(-len(numbers) // _SPREAD_ROWS)]
        rows = X if isinstance(X, Gathered) else gather(X, numbers)
        projections = self.project(rows[numbers]).astype(np.float64)
        self.bit_spread_ = projections.std(axis=0)
        if not hasattr(self, "bit_ones_"):
            self.bit_ones_ = (projections > 0).mean(axis=0)

    def _check_training_rows(self, X: Any, y: Any = None) -> tuple[Any, Any]:
        """Return checked rows and labels; rows outside of memory are checked when read."""
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
            Rows of any numeric type, in memory or memory-mapped.

        Returns
        -------
        codes : uint8 array of shape (n, ceil(n_bits / 8))
            Packed as by `numpy.packbits`; unused bits of the last byte are zero.
        """
        check_is_fitted(self)
        return self._encoder().encode(self._check_rows(X), self.n_jobs)

    def project(self, X: ArrayLike) -> NDArray[np.float32]:
        """Compute the real-valued projections whose signs are the bits.

        Parameters
        ----------
        X : array of shape (n, d)
            Rows of any numeric type, in memory or memory-mapped.

        Returns
        -------
        projections : float32 array of shape (n, n_bits)
            Bit i is 1 where column i is positive.
        """
        check_is_fitted(self)
        projections = self._encoder().project(self._check_rows(X), self.n_jobs)
        projections -= self.thresholds_
        return projections

    def pair_distance(self, X: ArrayLike, pairs: ArrayLike) -> NDArray[np.int64]:
        """Compute the Hamming distances between the codes of pairs of rows.

        Parameters
        ----------
        X : array of shape (n, d)
            Rows; only those that occur in a pair are encoded.
        pairs : int array of shape (p, 2)
            Row numbers of both members of each pair.

        Returns
        -------
        distances : int64 array of shape (p,)
            Hamming distance of each pair.
        """
        check_is_fitted(self)
        rows, numbers = self._check_rows(X), np.atleast_1d(np.asarray(pairs))
        checked, _ = check_pairs(numbers, np.ones(len(numbers), bool), len(rows))
        used, members = distinct_rows(checked)
        codes = self._encoder().encode(rows[used], self.n_jobs)
        left, right = members.T
        return hamming(codes[left], codes[right])

    # -- evaluation -----------------------------------------------------------------------------

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Compute the recall of positive pairs at a false positive rate of 1 %.

        Pairs are drawn from the labels with a fixed seed. In cross-validation keep the rows of an
        object in one fold, for instance with ``GroupKFold`` and ``groups=y``.

        Parameters
        ----------
        X : array of shape (n, d)
            Rows, preferably of objects that the hasher was not trained on.
        y : array of shape (n,)
            Label of each row.

        Returns
        -------
        recall : float
            Between 0 and 1; higher is better.
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
        """Find the distance threshold for a target false positive rate.

        Use pairs of objects that the hasher was not trained on and that are as hard to tell apart
        as those in the application. The confidence intervals assume independent pairs, so no row
        should occur in many of them.

        Parameters
        ----------
        X : array of shape (n, d)
            Rows; only those that occur in a pair are encoded.
        pairs : int array of shape (p, 2)
            Row numbers of both members of each pair.
        similar : bool array of shape (p,)
            True for positive pairs.
        fpr : float
            Target false positive rate, at least 3 / (number of negative pairs).
        confidence : float, default=0.95
            Level of the confidence intervals.

        Returns
        -------
        calibration : Calibration
            The threshold `distance`, `fpr` and `tpr`, each with a confidence interval.
        """
        distances = self.pair_distance(X, pairs)
        _, flags = check_pairs(pairs, similar, len(cast(Any, X)))
        return calibrate(distances, flags, fpr=fpr, confidence=confidence)

    # -- truncation and model files -------------------------------------------------------------

    def truncate(self, n_bits: int) -> Self:
        """Return a hasher of the first `n_bits` bits.

        Parameters
        ----------
        n_bits : int
            Length of the new hasher's codes, at most `n_bits_`.

        Returns
        -------
        hasher : object
            A hasher of the same class whose codes are prefixes of this hasher's codes.
        """
        check_is_fitted(self)
        if not isinstance(n_bits, int | np.integer) or not 1 <= n_bits <= self.n_bits_:
            raise ValueError(f"n_bits must be an integer from 1 to {self.n_bits_}, got {n_bits!r}")
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
        """Return the feature map of the fitted hasher."""

    def _encoder(self) -> Encoder:
        """Return the encoder, which is created on first use and invalidated by `__setattr__`."""
        encoder = _encoders.get(self)
        if encoder is None:
            for name in self._fitted:  # the encoder would not notice changes made in place
                value = getattr(self, name, None)
                if isinstance(value, np.ndarray):
                    value.flags.writeable = False
            encoder = Encoder(
                self.preprocess, self._feature_map(), self.directions_, self.thresholds_
            )
            _encoders[self] = encoder
        return encoder

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, and drop the encoder so that codes follow the new value."""
        super().__setattr__(name, value)
        if name not in ("n_jobs", "verbose"):
            _encoders.pop(self, None)

    def _forget(self) -> None:
        """Delete all fitted attributes, so that a failing fit leaves no mix of two models."""
        _encoders.pop(self, None)
        for name in self._fitted:
            self.__dict__.pop(name, None)

    def _check_rows(self, X: ArrayLike) -> NDArray[Any]:
        """Check the shape only; values are checked tile by tile, so large files are read once."""
        if (
            type(X) is np.ndarray
            and X.ndim == 2
            and X.shape[1] == self.n_features_in_
            and X.dtype.kind in "biuf"
            and len(X)
            and not hasattr(self, "feature_names_in_")
        ):
            return X  # the general check takes longer than encoding one row
        rows: NDArray[Any] = validate_data(
            self, X, reset=False, dtype="numeric", ensure_all_finite=False
        )
        if rows.dtype.kind not in "biuf":
            raise ValueError(f"X must be numeric (bool, int or float), got dtype {rows.dtype}")
        return rows

    def _check_params(self) -> None:
        check_preprocess(self.preprocess)
        if self.n_bits is not None and (
            not isinstance(self.n_bits, int | np.integer) or self.n_bits < 1
        ):
            raise ValueError(f"n_bits must be a positive integer or None, got {self.n_bits!r}")

    def _rng(self, purpose: str) -> np.random.Generator:
        """Return a generator for one purpose, determined by `random_state` and the purpose."""
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31)
        return np.random.default_rng([int(seed), *purpose.encode()])

    def _take_bit_rates(self, rates: BitRates) -> None:
        """Store thresholds and error rates per bit, and warn about constant bits."""
        self.thresholds_ = rates.thresholds
        self.bit_fnr_, self.bit_fpr_, self.bit_ones_ = rates.fnr, rates.fpr, rates.ones
        constant = np.flatnonzero(np.minimum(rates.ones, 1 - rates.ones) < _NEARLY_CONSTANT)
        if len(constant):
            shown = ", ".join(map(str, constant[:8])) + (", ..." if len(constant) > 8 else "")
            warnings.warn(
                f"{len(constant)} of {len(rates.ones)} bits are constant or nearly constant on "
                f"the training rows (bits {shown}); use fewer bits or another threshold_weight, or "
                "remove constant and duplicate features",
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
