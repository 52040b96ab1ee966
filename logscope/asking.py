"""One question, batch by batch: what every question has in common.

This module is responsible for :class:`Question`, the form of a question over tables, and for :class:`Asked`, which
gives it batches and keeps its parts few. It must not know any question, nor where batches come from.

A question is three functions: ``partial`` makes a small part of a batch, ``combine`` adds parts up (in any grouping),
``report`` says what all of it means. Parts travel between processes, so the same code serves a run, a stream, a
cluster and a growing log, in flat memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from logscope.report import Line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logscope.report import Context, Report
    from logscope.tables.tables import Tables

# Parts that are kept before they are added up.
_PARTS = 16


class Question(Protocol):
    """The form of a question over tables."""

    def partial(self, tables: Tables) -> Any:
        """Return what a batch contributes: small, and picklable."""

    def combine(self, parts: Sequence[Any]) -> Any:
        """Return one part that says what several say, in their order."""

    def report(self, part: Any, context: Context) -> Report:
        """Return the answer."""


class Summed:
    """A question whose part is a tuple of sums: each kind makes one of a batch (``of``), and adds them up (``sum``)."""

    kinds: tuple[Any, ...] = ()

    def partial(self, tables: Tables) -> tuple[Any, ...]:
        """Return what a batch contributes, one of each kind."""
        return tuple(kind.of(tables) for kind in self.kinds)

    def combine(self, parts: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
        """Add batches up."""
        return tuple(kind.sum([part[at] for part in parts]) for at, kind in enumerate(self.kinds))


class Asked:
    """A question while batches are given to it."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._parts: list[Any] = []
        self._early: list[Any] = []  # what is held of a log that is followed, as it stood last

    def add(self, tables: Tables) -> None:
        """Take the next batch; one that came early counts until the next one comes."""
        part = self._question.partial(tables)
        self._early = [part] if tables.early else []
        if tables.early:
            return
        self._parts.append(part)
        if len(self._parts) >= _PARTS:
            self._parts = [self._question.combine(self._parts)]

    def report(self, context: Context) -> Report:
        """Return the answer to all that was taken; of a log that is hardly known it says so first."""
        report = self._question.report(self._question.combine([*self._parts, *self._early]), context)
        if context.hardly_known and context.unread:
            lines = context.unread_lines()
            report.notes[0:0] = [f"{context.hardly_known}; of the lines {'; '.join(lines)}"]
            report.screen[0:0] = [Line("unknown", context.hardly_known, below=[*lines]), ""] if report.screen else []
            report.next = context.command("grammar suggest") or report.next
        return report
