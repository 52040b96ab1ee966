"""Grammars: which texts begin a record or stand before one, and the exact reading of one text.

The rooms: ``literals`` one printed value; ``prefixes`` what stands before a record; ``records`` one record's text to
one payload, with the place where reading stops; ``files`` grammar files to one :class:`Grammar`; ``proof`` the checks
of a user's file. This package is responsible for one text at a time: it must not know lines, blocks, runs or answers.
Names are resolved when they are first used; only ``proof`` imports anything heavy.

What scanners use of a :class:`Grammar`:

``find(text, start, end)``
    where the next anchor stands, and which; texts have one character per byte (latin-1).
``read(text, at, anchor, limit, reach)``
    the record there, as a :class:`Reading`: ``payload``, ``end``, ``open`` (what more text could finish), ``dialect``.
``anchors``, ``strict``, ``steady``, ``hot``
    dialects by anchor, the first asked first; anchors whose every text is a record, read or not; anchors none of whose
    patterns names a digit (texts that differ in digits only are read alike); the anchor of most records of a large log.
``undigited_finder``, ``digited_finder``
    the anchors over bytes without their digits (what it does not find holds no anchor); the same for
    anchors that have digits (where it finds something, other digits can make an anchor).
``peel(text, at)``, ``peel_back(text)``
    the prefix that begins, or ends, there: the forms known to all and those that the files teach.
``begin_file()``
    tries patterns again that took too long in another file.

Beside them :class:`Anchored` (where records of one text end, which anchors are quoted) and the functions below.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logscope.grammar.files import SHIPPED, Grammar, GrammarFile, available, find_shipped, join, load, load_file
    from logscope.grammar.literals import as_text, exact_in_half_precision
    from logscope.grammar.prefixes import peel, peel_back, strip_colours
    from logscope.grammar.records import LONGEST_BEFORE, READERS, Anchored, Dialect, Reading, inside_quotes

# Seconds one pattern of a grammar may take on one text: no pattern can hang logscope.
TIME_LIMIT = 0.25
# So many texts it may take longer on, in one file; it is not tried on any other.
OVERTIMES = 4

__all__ = [
    "LONGEST_BEFORE", "OVERTIMES", "READERS", "SHIPPED", "TIME_LIMIT", "Anchored", "Dialect", "Grammar", "GrammarFile",
    "Reading", "as_text", "available", "exact_in_half_precision", "find_shipped", "inside_quotes", "join", "load",
    "load_file", "peel", "peel_back", "strip_colours",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Resolve a public name on first use."""
    for room in ("literals", "prefixes", "records", "files") if name in __all__ else ():
        module = import_module(f"logscope.grammar.{room}")
        if name in vars(module):
            return getattr(module, name)
    raise AttributeError(f"module 'logscope.grammar' has no attribute '{name}'")
