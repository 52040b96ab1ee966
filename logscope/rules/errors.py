"""Rules about exceptions: which one was first, and what the sizes of a size error mean.

This module is responsible for E101 and E102 as rules. How errors are grouped, relayed ones put under their origin and
sizes read is the errors question's (:mod:`logscope.queries.errors`): these rules look at its answer, ``life.failures``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from logscope.queries.errors import first_error, size_error
from logscope.rules.registry import Checked, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logscope.model import Finding
    from logscope.queries.errors import Group
    from logscope.rules.evidence import Life, View


_OF_STATES = "compare what the target captures with what the draft takes (S101, H103, `logscope captures`)"
_OF_WEIGHTS = "compare the checkpoint with what the server builds for it: packing, sharding, sizes in its config.json"


def _groups(life: Life) -> list[Group]:
    """Return the groups of equal errors of a life, the first one first."""
    return [] if life.failures is None else list(life.failures.groups.values())


@rule("E101", "first-error", "error", group="failures", needs="records")
def first_of_errors(view: View) -> int:
    """The first error of a server life and its process, not the ones that only relay it."""
    return view.size + view.server.height


@first_of_errors.answer
def _(_part: int, life: Life) -> Iterator[Finding]:
    for group in _groups(life)[:1]:
        found = first_error(group, life.failures.plan)
        help_ = "`logscope errors` shows what the process did before, and what only followed"
        yield replace(found, message=_sentence(found.message), help=found.help or help_)


@rule("E102", "matmul", "error", group="failures", needs="records")
def size_errors(view: View) -> int:
    """A size error, both sides named as k x hidden, rows told apart from states."""
    return view.size + view.server.height


@size_errors.answer
def _(_part: int, life: Life) -> Iterator[Finding]:
    for group in _groups(life):
        if group.reading is not None:
            found = size_error(group, group.reading)
            # The sizes are the message; how the unit is known, and what else it could be, is for who verifies.
            what, *how = found.message.split("; ")
            means = f"; {how.pop(0)}" if how else ""
            by = f"In {group.first.process}: " if group.first.process else ""
            yield replace(
                found,
                message=_sentence(f"{by}{what}{means}"),
                evidence="; ".join([*how, *([found.evidence] if found.evidence else [])]),
                help=_OF_STATES if group.reading.unit is not None else _OF_WEIGHTS,
            )


for _rule in (first_of_errors, size_errors):
    _rule.checked(lambda part, _life: Checked(part, "record"))


def _sentence(text: str) -> str:
    """Return a text as one sentence: a capital first, a full stop last."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
