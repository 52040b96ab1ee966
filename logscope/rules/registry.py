"""What a rule is: its fixed code, its promise, what it looks at in a batch and what it says of all it looked at.

This module is responsible for the table of rules and for filling a rule's sentences with the values that show a fault.
It must not know any rule, nor how a batch becomes what rules look at (:mod:`logscope.rules.evidence`).

A rule is one decorated function ``look(view) -> part``. Parts add up in the order of the log
(:func:`~logscope.rules.evidence.add`), so memory is flat. The answer of most rules is the text given to the decorator,
with named fields of the first bad pass; a rule that says more has an ``answer(part, life)`` of its own::

    @rule("N102", "zero", "error", group="norms", needs="...", message="All values of {name} are zero in {pass_}.")
    def zero(view: View) -> Onset: ...

    @impossible_layer.answer
    def _(part: Any, life: Life) -> Iterator[Finding]: ...
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from logscope.model import Finding
from logscope.queries.words import count
from logscope.rules.evidence import Onset, pass_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logscope.model import Place, Severity
    from logscope.rules.evidence import Life, Seen, View

GROUPS = ("shapes", "captures", "norms", "ranks", "acceptance", "failures", "parsing")
_FAMILIES = "SHNARCEL"
_RULES: dict[str, Rule] = {}


class Checked(NamedTuple):
    """How much a rule looked at: a number, what was counted, and the worst value it saw (in words)."""

    looked: int
    unit: str = "pass"
    worst: str | None = None


class Rule:
    """One rule. ``says`` are the sentences of its finding: message, expected, actual, evidence, help."""

    def __init__(
        self, look: Callable[[View], Any], code: str, name: str, severity: Severity, group: str, needs: str, says: Any
    ) -> None:
        self.look, self.code, self.name, self.severity = look, code, name, severity
        self.group, self.needs, self.says = group, needs, says
        self.unit = "pass"
        self.__doc__ = look.__doc__
        self.findings: Callable[[Any, Life], Iterator[Finding]] = self.first_fault
        self.counted: Callable[[Any, Life], Checked] = self._counted
        self.reason: Callable[[Any, Life], str | None] = lambda _part, _life: None

    # What a rule says in its own way, each a decorator.

    def answer(self, function: Callable[[Any, Life], Iterator[Finding]]) -> Callable[[Any, Life], Iterator[Finding]]:
        """Take the function that yields this rule's findings."""
        self.findings = function
        return function

    def checked(self, function: Callable[[Any, Life], Checked]) -> Callable[[Any, Life], Checked]:
        """Take the function that says how much was looked at; 0: the rule could not be decided."""
        self.counted = function
        return function

    def why_not(self, function: Callable[[Any, Life], str | None]) -> Callable[[Any, Life], str | None]:
        """Take the function that says why it could not be decided; None: the log does not show what it needs."""
        self.reason = function
        return function

    def _counted(self, part: Any, _life: Life) -> Checked:
        return Checked(part.seen if isinstance(part, Onset) else int(bool(part)), self.unit)

    def because(self, part: Any, life: Life) -> str:
        """Return why the rule could not be decided."""
        return self.reason(part, life) or f"this log does not show what it needs: {self.needs}"

    def first_fault(self, onset: Onset | None, life: Life) -> Iterator[Finding]:
        """Yield the finding of an onset: of all writers, else of the one writer that differs."""
        told, alone = earliest(onset, life)
        if told is not None:
            yield self.told(told, alone=alone)

    def told(self, onset: Onset, *, alone: bool = False, **over: Any) -> Finding:
        """Return the finding of a fault: the rule's sentences filled with what its first pass shows."""
        first = onset.first
        known = {**self.says, **over}
        fields = {"pass_": pass_name(first), "onset": onset.words, **first.detail, **over}
        texts = {
            name: None if (text := known.get(name)) is None else text.format_map(fields)
            for name in ("message", "expected", "actual", "evidence", "help")
        }
        if alone:
            texts["message"] = f"{str(texts['message']).rstrip('.')}, on {writers(first)}."
        return self.finding(place=first.place, severity=known.get("severity"), **texts)

    def finding(
        self,
        message: str | None,
        place: Place | None,
        *,
        severity: Severity | None = None,
        expected: str | None = None,
        actual: str | None = None,
        evidence: str | None = None,
        help: str | None = None,  # noqa: A002 - the field's own name
    ) -> Finding:
        """Return a finding of this rule."""
        return Finding(self.code, severity or self.severity, message or "", place, expected, actual, evidence, help)


def earliest(onset: Onset | None, life: Life) -> tuple[Onset | None, bool]:
    """Return the onset that is told, and whether it is that of one writer alone: where this comes first, it is."""
    usual = onset if onset is not None and onset.bad else None
    one = onset.alone if onset is not None and life.copies_known else None
    if one is None or not one.bad:
        return usual, False
    alone = usual is None or not usual.bad or one.first.place.line < usual.first.place.line
    return (one, True) if alone else (usual, False)


def writers(seen: Seen) -> str:
    """Return ``1 writer of 4 (TP2)``: how many print what is faulty, and who where lines are marked."""
    bad, of, ranks = seen.detail.get("writers", (1, 0, ()))
    who = f" ({', '.join(ranks)})" if ranks else ""
    return f"{count(bad, 'writer')}{f' of {of}' if of else ''}{who}"


def rule(code: str, name: str, severity: Severity, *, group: str, needs: str, **says: Any) -> Callable[[Any], Rule]:
    """Register a rule under its fixed code.

    ``severity`` is what it answers with when nothing lessens it; ``needs`` says what the log, or the contract, must
    show for it to be decided, and becomes part of the reason when it is not.
    """

    def enter(look: Callable[[View], Any]) -> Rule:
        if code in _RULES:
            raise ValueError(f"two rules are called {code}")
        _RULES[code] = Rule(look, code, name, severity, group, needs, says)
        return _RULES[code]

    return enter


def rules() -> dict[str, Rule]:
    """Return every rule by code, in the order of the codes' families (S, H, N, A, R, C, E, L)."""
    return {code: _RULES[code] for code in sorted(_RULES, key=lambda code: (_FAMILIES.index(code[0]), code))}


def page(code: str) -> str:
    """Return the documentation page of a rule, Markdown.

    The pages of docs/rules are the one source: a wheel carries them beside this package, a checkout finds them there.
    """
    packed = resources.files("logscope.rules").joinpath("pages", f"{code}.md")
    if packed.is_file():
        return packed.read_text(encoding="utf-8")
    return (Path(__file__).parents[2] / "docs" / "rules" / f"{code}.md").read_text(encoding="utf-8")
