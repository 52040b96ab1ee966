"""What a stretch of one log says, as columns: the value that goes from the scan to whoever finds passes.

This module is responsible for :class:`Chunk` and its columns. It must not know how bytes are read nor what any record
means. Chunks travel between processes as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from logscope.model import Accounting, Payload, Prefix

if TYPE_CHECKING:
    from collections.abc import Sequence

# Columns of a print: where it stands, and which prefix, text and payload it has. ``text`` names the record's own text
# by 64 bits of a hash, the same for equal texts of any chunk; ``prefix`` and ``payload`` count in the chunk.
PRINTS = {"line": np.int64, "offset": np.int64, "prefix": np.int32, "payload": np.int32, "text": np.uint64}
# Columns of a payload: which head it has, and what changes from print to print. ``slack`` is half the last printed
# digit of the norm, -1 where none is printed; ``count`` says how many of the ``values`` were printed; ``key`` is equal
# where these are equal.
PAYLOADS: dict[str, Any] = {
    "head": np.int32, "norm": np.float64, "slack": np.float64, "key": np.uint64, "count": np.int16, "rounded": np.bool_,
    "length": np.int32,
}  # fmt: skip
VALUES = 5  # first values kept in columns; a record that prints more keeps the rest in its head
_SALT = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F])
_SALT = _SALT.astype(np.uint64)


def columns(kinds: dict[str, Any], count: int = 0) -> dict[str, np.ndarray]:
    """Return empty columns of these kinds."""
    return {name: np.zeros(count, kind) for name, kind in kinds.items()}


def value_keys(values: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return a key for each row of first values: equal for equal numbers (nan equals nan), else different."""
    with np.errstate(invalid="ignore"):
        plain = np.where(np.isnan(values), np.nan, values + 0.0)
    with np.errstate(over="ignore"):
        mixed = (plain.view(np.uint64) ^ (plain.view(np.uint64) >> np.uint64(29))) * _SALT
        keys: np.ndarray = np.bitwise_xor.reduce(mixed * (mixed | np.uint64(1)), axis=1) + count.astype(np.uint64)
    return keys


@dataclass(slots=True, eq=False)
class Lines:
    """Server lines and whatever belongs to no print: what each says is a payload, or its text to be read when asked.

    ``said`` holds a :class:`~logscope.model.Payload`, or a pair (payload of its kind, text).
    """

    line: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    prefix: list[int] = field(default_factory=list)
    said: list[Any] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.line)


@dataclass(slots=True, eq=False)
class Chunk:
    """What a stretch of one log says.

    prints
        debug records, in file order: columns :data:`PRINTS`.
    payloads, values, heads
        what distinct texts of them say: columns :data:`PAYLOADS`, first values (rows of :data:`VALUES`, nan where not
        printed), and payloads without norm and first values, which many share.
    prefixes
        what stands before records.
    lines
        all other records, in file order; marks (text that is no record but tells where we are) among them.
    accounting, invalid_lines, size
        counts; the first lines with bytes that are not UTF-8; bytes read.
    end
        the offset behind it.
    """

    prints: dict[str, np.ndarray]
    payloads: dict[str, np.ndarray]
    values: np.ndarray
    heads: list[Payload]
    prefixes: list[Prefix]
    lines: Lines
    accounting: Accounting = field(default_factory=Accounting)
    invalid_lines: list[int] = field(default_factory=list)
    size: int = 0
    end: int = 0

    @classmethod
    def empty(cls) -> Chunk:
        """Return a chunk that says nothing."""
        return cls(columns(PRINTS), columns(PAYLOADS), np.zeros((0, VALUES)), [], [], Lines())

    def payload(self, row: int) -> Payload:
        """Return what one payload says, as one object."""
        table = self.payloads
        values = self.values[row, : int(table["count"][row])].tolist()
        own = float(table["norm"][row]), float(table["slack"][row]), values, int(table["length"][row])
        return whole(self.heads[table["head"][row]], *own)


def joined(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the rows of several sets of columns, one behind the other."""
    if len(parts) == 1:
        return dict(parts[0])
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def taken(table: dict[str, np.ndarray], rows: Any) -> dict[str, np.ndarray]:
    """Return some rows of columns (the columns themselves where these are all, in order): a slice, a mask, places."""
    if not isinstance(rows, slice):
        if rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
            # Neighbours are copied at once.
            some = slice(int(rows[0]), int(rows[-1]) + 1)
            return {name: column[some].copy() if len(column) > len(rows) else column for name, column in table.items()}
    return {name: column[rows] for name, column in table.items()}


def whole(head: Payload, norm: float, slack: float, values: Sequence[float], length: int) -> Payload:
    """Return a payload from what many share and what is its own; ``slack`` -1: no norm is printed."""
    if head.norm is None and head.head is None:
        return head
    if head.head is not None and len(head.head) > len(values):
        values = head.head  # more are printed than columns hold: such a head is one record's
    return head.filled(None if slack < 0 else norm, max(slack, 0.0), values or None, length)
