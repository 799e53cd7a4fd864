"""What the stores in databases share: their error, their results, and checks of new rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import ArrayLike

from .._util.errors import KdiffhashError
from ..codes import Codes
from ..search import checks

if TYPE_CHECKING:
    from ..search.checks import Model

Data = Sequence[Mapping[str, Any] | None]


class StoreError(KdiffhashError, ValueError):
    """A statement failed, or the table is missing, has another length, or is not kdiffhash's.

    Examples
    --------
    >>> from kdiffhash import KdiffhashError
    >>> from kdiffhash.engines.postgres import StoreError
    >>> issubclass(StoreError, KdiffhashError), issubclass(StoreError, ValueError)
    (True, True)
    """


class Imported(NamedTuple):
    """The result of `PostgresStore.import_codes` and `SQLiteStore.import_codes`.

    Attributes
    ----------
    added : int
        Number of codes that were added.
    already_stored : int
        Number of codes that were already stored under the same ids.

    Examples
    --------
    >>> from kdiffhash.engines.postgres import Imported
    >>> added, already_stored = Imported(added=50_000, already_stored=0)
    >>> added
    50000
    """

    added: int
    already_stored: int


class Meta(NamedTuple):
    """What is recorded for a table: length of the codes, and fingerprint of the model."""

    n_bits: int
    model: str | None


def check_new(
    codes: ArrayLike, data: Data | None, meta: Meta, model: Model | None, where: str
) -> Codes:
    """Return new codes as an array, after checking their length, data and model."""
    checks.check_model(meta.model, model, where)
    array = checks.check_rows(codes, meta.n_bits)
    if data is None:
        return array
    if isinstance(data, str | Mapping | Set) or not hasattr(data, "__len__"):
        raise ValueError(
            f"data must be a sequence with one item per code, got {type(data).__name__}"
        )
    if len(data) != len(array):
        raise ValueError(
            f"got {len(array)} codes but data for {len(data)}; pass one item per code, or None"
        )
    return array


def encode_data(item: Mapping[str, Any], id_: int) -> str:
    """Return the data of a code as JSON."""
    try:
        return json.dumps(item, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the data of id {id_} cannot be stored as JSON: {error}") from None


def is_name(name: object) -> bool:
    """Return whether a database can name a table so: text in UTF-8 without a zero byte."""
    if not isinstance(name, str) or not name or "\0" in name:
        return False
    try:
        name.encode()  # fails for half of a surrogate pair
    except UnicodeEncodeError:
        return False
    return True


def refuse_other_code(id_: int) -> None:
    """Raise because an import has another code for an id that is stored."""
    raise ValueError(f"id {id_} is stored with a different code; use upsert to overwrite it")


def one_line(error: BaseException) -> str:
    """Return the message of an error in one line."""
    return str(error).strip().replace("\n", "; ") or type(error).__name__
