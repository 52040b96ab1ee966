"""The columns of the tables and their types, and of the frames that users see.

This module is responsible for naming every column and every polars type once. It must not know how a table is filled or
what is asked of it.

Closed sets of words are ``Enum``, the open ones (event, site) ``Categorical``: both are numbers inside. Lines count
from 1, offsets are bytes of the decompressed log, widths and rows are axes as printed. Row numbers of other tables
(``first``, ``join``, ``record``, ``print``, ``said``, ...) count within the same batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import polars as pl

from logscope.model import DURING, PHASES, ROLES, Evidence, Intact

if TYPE_CHECKING:
    from collections.abc import Mapping

ROLE = pl.Enum(ROLES)
PHASE = pl.Enum(PHASES)
STAGE = pl.Enum(DURING)
EVIDENCE = pl.Enum(get_args(Evidence))
INTACT = pl.Enum(get_args(Intact))
KIND = pl.Enum(("event", "unparsed"))
HOW = pl.Enum(("norm and head", "norm", "head"))
NAME = pl.Categorical()
VALUES = pl.List(pl.Float64)

# What the tables say of a state that a draft pass should have read.
_STATE: dict[str, Any] = {
    "norm": pl.Float64, "slack": pl.Float64, "key": pl.UInt64, "rows": pl.Int64, "width": pl.Int64, "line": pl.Int64,
    "rounded": pl.Boolean,
}  # fmt: skip


def _schema(columns: Mapping[str, Any]) -> pl.Schema:
    """``pl.Schema`` of plain types and of types with a parameter side by side, which it takes and does not declare."""
    return pl.Schema(columns)


# One row a forward pass, in the order of first lines. `key` is unique in a run and rises; `number` is the public one.
# `first` to `last` are its records; the other row numbers are its first usable record of that kind.
PASSES = _schema(
    {
        "key": pl.Int64, "file": pl.UInt16, "segment": pl.Int32, "group": pl.Int32, "number": pl.Int64, "role": ROLE,
        "phase": PHASE, "evidence": EVIDENCE, "why": pl.String, "during": STAGE, "complete": pl.Boolean,
        "line": pl.Int64, "offset": pl.Int64, "time": pl.String, "rows": pl.Int64, "hidden": pl.Int64,
        "states": pl.Int32, "captures": pl.Int32, "layers": pl.List(pl.Int32), "copies": pl.Int16, "expected": pl.Int16,
        "differ": pl.Int16, "wide": pl.Boolean, "printed": pl.Boolean, "region": pl.String, "first": pl.Int64,
        "last": pl.Int64, "join": pl.Int64, "input": pl.Int64, "fc": pl.Int64, "end": pl.Int64,
        **{f"due_{name}": dtype for name, dtype in _STATE.items()},
        "due_fresh": pl.Boolean, "ago": pl.Int32, "traced": pl.Boolean, "how": HOW,
        **{f"own_{name}": dtype for name, dtype in _STATE.items()},
    }
)  # fmt: skip
# One row a record of a pass, all its copies together, in the order of passes and, within one, of the forward.
RECORDS = _schema(
    {
        "pass": pl.Int64, "file": pl.UInt16, "segment": pl.Int32, "line": pl.Int64, "offset": pl.Int64, "event": NAME,
        "site": NAME, "role": ROLE, "layer": pl.Int32, "rows": pl.Int64, "width": pl.Int64, "norm": pl.Float64,
        "slack": pl.Float64, "derived": pl.Boolean, "values": VALUES, "values_key": pl.UInt64, "rounded": pl.Boolean,
        "num_aux": pl.Int32, "mode": pl.String, "embeds": pl.Int64, "residual_none": pl.Boolean, "intact": INTACT,
        "usable": pl.Boolean, "copies": pl.Int16, "differ": pl.Int16, "head": pl.UInt32, "length": pl.UInt32,
        "print": pl.Int64,
    }
)  # fmt: skip
# One row a printed line of a record, in file order. From `norm` on null where it says word for word what the first
# print of its record says; `same` is False where this writer printed another value.
PRINTS = _schema(
    {
        "record": pl.Int64, "line": pl.Int64, "offset": pl.Int64, "prefix": pl.UInt32, "same": pl.Boolean,
        "norm": pl.Float64, "slack": pl.Float64, "values": VALUES, "values_key": pl.UInt64, "head": pl.UInt32,
        "length": pl.UInt32,
    }
)  # fmt: skip
# What server lines print so often that it is read in bulk: (column, type, field, aliases).
SERVER_VALUES: dict[str, Any] = {
    "accept_len": pl.Float64, "accept_rate": pl.Float64, "gen_throughput": pl.Float64, "token_usage": pl.Float64,
    "running": pl.Int64, "queue": pl.Int64, "token": pl.Int64, "new_token": pl.Int64, "new_seq": pl.Int64,
    "iteration": pl.Int64, "graph": pl.Boolean,
}  # fmt: skip
# Which fields of a line fill those columns, the first that is printed.
SERVER_FIELDS = {
    "running": ("running_req",),
    "queue": ("queue_req",),
    "graph": ("cuda_graph", "npu graph", "cpu graph"),
}
# One row a server line, an unparsed or a stray debug record, in file order. `time` is the last one printed up to it.
SERVER = _schema(
    {
        "file": pl.UInt16, "segment": pl.Int32, "during": STAGE, "line": pl.Int64, "offset": pl.Int64,
        "prefix": pl.UInt32, "time": pl.String, "kind": KIND, "event": NAME, "site": NAME, "intact": INTACT,
        "said": pl.UInt32,
        **SERVER_VALUES,
    }
)  # fmt: skip
TABLES = {"passes": PASSES, "records": RECORDS, "prints": PRINTS, "server": SERVER}
# Columns that are row numbers: of another table, or of a list that stands beside the tables.
INDICES = {
    "passes": {
        "file": "files", "group": "groups", **dict.fromkeys(("first", "last", "join", "input", "fc", "end"), "records")
    },
    "records": {"file": "files", "head": "heads", "print": "prints"},
    "prints": {"record": "records", "prefix": "prefixes", "head": "heads"},
    "server": {"file": "files", "prefix": "prefixes", "said": "said"},
}  # fmt: skip

# What is said, as columns; of heads norm, slack, first values and length are null or 0.
PAYLOADS = _schema(
    {
        "kind": pl.String, "event": pl.String, "site": pl.String, "role": pl.String, "layer": pl.Int64,
        "shape": pl.List(pl.Int64), "norm": pl.Float64, "norm_resolution": pl.Float64, "norm_derived": pl.Boolean,
        "head": VALUES, "head_resolution": VALUES, "mode": pl.String, "fields": pl.String, "intact": pl.String,
        "reason": pl.String, "column": pl.Int64, "length": pl.Int64,
    }
)  # fmt: skip

PREFIXES = _schema(
    {
        "time": pl.String, "origin": pl.String, "pid": pl.Int64, "dp_rank": pl.Int32, "pp_rank": pl.Int32,
        "tp_rank": pl.Int32, "ep_rank": pl.Int32, "extra": pl.String, "peeled": pl.Boolean,
    }
)  # fmt: skip

# Prints and server rows together, in file order: `ref` is the row of the record or, behind them, of the server line.
LINES = _schema({"ref": pl.Int64, **PRINTS})

# -- what users see (docs/reference/frames.md) ----------------------------------------------------------------------

PREFIX = _schema(
    {
        "time": pl.Datetime("us"), "time_printed": pl.String, "origin": pl.String, "pid": pl.Int64, "dp_rank": pl.Int32,
        "pp_rank": pl.Int32, "tp_rank": pl.Int32, "ep_rank": pl.Int32,
    }
)  # fmt: skip
EVENTS = _schema(
    {
        "file": pl.String, "line": pl.Int64, "offset": pl.Int64, "segment": pl.Int32, "during": pl.String,
        **PREFIX,
        "site": pl.String, "event": pl.String, "role": pl.String, "phase": pl.String, "evidence": pl.String,
        "pass": pl.Int64, "layer": pl.Int64, "rows": pl.Int64, "width": pl.Int64, "shape": pl.String,
        "norm": pl.Float64, "head": VALUES, "capture_hidden_mode": pl.String, "accept_len": pl.Float64,
        "intact": pl.String, "fields": pl.String,
    }
)  # fmt: skip
FORWARDS = _schema(
    {
        "file": pl.String, "line": pl.Int64, "segment": pl.Int32, "pass": pl.Int64, "role": pl.String,
        "phase": pl.String, "evidence": pl.String, "reason": pl.String, "during": pl.String, "complete": pl.Boolean,
        "time": pl.Datetime("us"), "time_printed": pl.String, "rows": pl.Int64, "hidden_captures": pl.Int32,
        "layers": pl.List(pl.Int64), "joined_width": pl.Int64, "joined_norm": pl.Float64, "mode": pl.String,
        "input_width": pl.Int64, "input_norm": pl.Float64, "copies": pl.Int32, "expected_copies": pl.Int32,
        "variants": pl.Int32,
    }
)  # fmt: skip
UNPARSED = _schema(
    {
        "file": pl.String, "line": pl.Int64, "offset": pl.Int64, "anchor": pl.String, "column": pl.Int64,
        "reason": pl.String,
    }
)  # fmt: skip


def series(name: str, values: Any, dtype: Any) -> pl.Series:
    """Return a column of a type; an Enum also from an array of the numbers of its words (a list or array of ints)."""
    if isinstance(values, pl.Series):
        return values.cast(dtype).alias(name)
    if isinstance(dtype, pl.Enum) and isinstance(values, np.ndarray) and values.dtype.kind in "iu":
        return pl.Series(name, dtype.categories, dtype=dtype).gather(values)
    return pl.Series(name, values, dtype=dtype)


def frame(schema: pl.Schema, columns: Mapping[str, Any]) -> pl.DataFrame:
    """Return a frame of a schema from columns (arrays, lists, series) of one length; those not given are null.

    Raises what polars raises for a column that is not of its type, and KeyError for one that the schema does not have.
    """
    made = {name: series(name, values, schema[name]) for name, values in columns.items()}
    height = max(map(len, made.values()), default=0)
    for name in schema.keys() - made.keys():
        made[name] = pl.Series(name, [None], schema[name]).new_from_index(0, height)
    return pl.DataFrame([made[name] for name in schema])
