"""Rules about exceptions: which one was first, and what the sizes of a size error mean.

This module is responsible for E101 and E102 as rules. How errors are grouped, relayed ones put under their origin and
sizes read is the errors query's (:mod:`logscope.queries.errors`), whose fold the rules share through the scene.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from logscope.queries.errors import first_error, size_error
from logscope.rules.base import Checked, Rule, register

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logscope.model import Finding, ServerEvent
    from logscope.rules.base import View


class _Failure(Rule):
    """What the rules of this module share: everything that is printed could have been an error."""

    def see(self, view: View) -> None:  # noqa: ARG002 - one of many that see a pass
        """Count a pass."""
        self.looked += 1

    def server(self, event: ServerEvent) -> None:  # noqa: ARG002 - as above
        """Count a line."""
        self.looked += 1

    def checked(self) -> Checked:
        """Return the passes and lines among which errors were looked for."""
        return Checked(self.looked, "record")


@register("E101", "first-error", "error", group="failures", needs="records")
class FirstError(_Failure):
    """The first error of a server life and its process, not the ones that only relay it."""

    def findings(self) -> Iterator[Finding]:
        """Answer with the first group of equal errors."""
        self.scene.failures.groups()
        for life in self.scene.failures.lives.values():
            for group in list(life.groups.values())[:1]:
                found = first_error(group, life.plan)
                help_ = "`logscope errors` shows what the process did before, and what only followed"
                yield replace(found, message=_sentence(found.message), help=found.help or help_)


@register("E102", "matmul", "error", group="failures", needs="records")
class SizeError(_Failure):
    """A size error, both sides named as k x hidden, rows told apart from states."""

    def findings(self) -> Iterator[Finding]:
        """Answer once for each size error that could be read."""
        for group in self.scene.failures.groups():
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
                    help="compare what the target captures with what the draft takes (S101, H103, `logscope captures`)",
                )


def _sentence(text: str) -> str:
    """Return a text as one sentence: a capital first, a full stop last."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
