"""The two doors of the tests: ``label(data)`` (what a log's records are, and their phases), ``answer(command, data)``.

Whatever stands behind them may change; a test that goes through a door says what a user relies on. ``Parser`` is the
scan alone: every record once, with its place and its damage.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from from_items import from_items

from logscope import grammar as grammars
from logscope.model import Accounting, Occurrence, Payload
from logscope.passes.finder import Finder
from logscope.passes.writers import Prints, gather
from logscope.reading import reader
from logscope.report import Context
from logscope.scan.chunk import Chunk
from logscope.scan.scanner import Scanner
from logscope.sources.blocks import Block
from logscope.tables.tables import Tables


@lru_cache(maxsize=1)
def grammar() -> Any:
    """Return the shipped grammars."""
    return grammars.load()


class Parser:
    """Blocks to occurrences: (line, offset, prefix, payload) of every record, in file order."""

    def __init__(self, known: Any = None, file: str = "x.log", *, quick: bool = True) -> None:
        self.grammar = known or grammar()
        self.file = file
        self.scanner = Scanner(self.grammar, exact=not quick)
        self.accounting = Accounting()
        self.invalid_lines: list[int] = []

    def feed(self, block: Block) -> list[Occurrence]:
        """Take a block; return what is complete."""
        chunk = self.scanner.feed(block)
        self.accounting.add(chunk.accounting)
        self.invalid_lines += chunk.invalid_lines
        return occurrences(chunk, reader(self.grammar))

    def close(self) -> list[Occurrence]:
        """Return what is left: nothing, behind a final block."""
        return []


def occurrences(chunk: Chunk, read: Any) -> list[Occurrence]:
    """Return what a chunk says, one record at a time."""
    found = []
    prints = chunk.prints
    for at in range(len(prints["line"])):
        number = int(prints["payload"][at])
        place = (int(prints["line"][at]), int(prints["offset"][at]), chunk.prefixes[prints["prefix"][at]])
        found.append((*place, chunk.payload(number)))
    lines = chunk.lines
    for line, offset, prefix, said in zip(lines.line, lines.offset, lines.prefix, lines.said, strict=True):
        payload = said if isinstance(said, Payload) else read(said[1])
        found.append((line, offset, chunk.prefixes[prefix], payload))
    return sorted(found, key=lambda one: one[1])


def tables(data: bytes, *, step: int | None = None, file: str = "log") -> Tables:
    """Return the tables of a log, read at once or in blocks of about ``step`` bytes."""
    return Tables.concat(batches(data, step=step, file=file))


def batches(data: bytes, *, step: int | None = None, file: str = "log", early: bool = False) -> list[Tables]:
    """Return the batches of tables that a log makes; ``early``: with what is held after each block."""
    scanner, finder, made = Scanner(grammar()), Finder(file, reader(grammar())), []
    at, line = 0, 1
    while True:
        end = len(data) if step is None or at + step >= len(data) else data.find(b"\n", at + step) + 1
        end = end or len(data)
        part = data[at:end]
        made.append(finder.add(scanner.feed(Block(file, at, line, part, final=end == len(data)))))
        if early:
            made.append(finder.early())
        line += part.count(b"\n")
        at = end
        if at == len(data):
            break
    made.append(finder.end())
    return [one for one in made if one is not None]


def answered(question: Any, items: Any, context: Context | None = None) -> Any:
    """Return the answer of a question to items (segments, forward passes, server lines) as one batch."""
    return question.report(question.combine([question.partial(from_items(items))]), context or Context())


def label(data: bytes, *, step: int | None = None) -> list[Any]:
    """Return the items of a log: segments, forward passes with their phases, server lines."""
    return list(tables(data, step=step).items())


def gathered(rows: list[tuple[Any, ...]], writers: int, *, buffered: bool) -> list[int]:
    """Return the record of each print (-1: in none, or in doubt); a row has the columns of ``writers.Prints``."""
    kinds = (np.uint64, np.int64, np.int64, np.bool_, np.bool_, np.bool_, np.bool_, np.int64, np.int64)
    columns = (np.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True))
    record, doubt, told = gather(Prints(*columns), writers, buffered=buffered, final=True)
    assert told == len(rows)
    return np.where(doubt, -1, record).tolist()


def answer(question: Any, *logs: str | bytes, step: int | None = None) -> Any:
    """Return the report of a question (an object with ``partial``) to logs, called ``x.log``, ``x1.log``, ..."""
    names = [f"x{at or ''}.log" for at in range(len(logs))]
    parts = []
    for name, log in zip(names, logs, strict=True):
        parts += batches(log.encode() if isinstance(log, str) else log, step=step, file=name)
    return question.report(question.combine([question.partial(part) for part in parts]), Context(names))
