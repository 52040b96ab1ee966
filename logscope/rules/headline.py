"""Which finding is the cause and which ones it explains: the headline of ``check``.

This module is responsible for ranking findings by causality, never by their number, and for the one sentence that
names the most likely cause. It must not look at a run: it sees findings and what was checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from logscope.queries.words import and_list, count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from logscope.model import Finding

# From the set-up down to what a person notices. Among findings that nothing explains, the earlier one is named.
ORDER = (
    "H105", "S101", "H104", "S104", "H103", "H102", "H101",
    "N102", "N103", "N107", "N101", "R101", "S103", "S102",
    "N104", "N105", "N106", "N201",
    "C101", "E102", "E101",
    "A102", "A101", "A105", "A103", "A104",
    "L101", "L102", "L103", "L104",
)  # fmt: skip
_LOW = frozenset({"A101", "A103", "A105"})
# cause -> what follows from it.
EXPLAINS: Mapping[str, frozenset[str]] = {
    "C101": frozenset({"H103", "S101", "N101"}),
    "H105": frozenset({"S101", "H103", "E101", "E102"}) | _LOW,
    "H104": frozenset({"E101", "E102"}) | _LOW,
    # Other layers break a server by their number only: by the width of what they are joined to.
    "H103": frozenset({"S101", "S104", "E102"}) | _LOW,
    # A state too many is the embedding's: both codes name one fault, and the width is what stops the draft.
    "S101": frozenset({"H104", "S104", "E101", "E102", "L104"}) | _LOW,
    "S104": frozenset({"S102"}) | _LOW,
    "H102": frozenset({"S102", "N105", "N106", "E101", "E102"}) | _LOW,
    "H101": frozenset({"N106"}) | _LOW,
    "S102": frozenset({"E101", "E102", "N104", "N106"}) | _LOW,
    "S103": frozenset({"R101", "E101", "E102"}),
    "R101": _LOW,
    "N101": frozenset({"A102", "E101", "N102", "N104", "N105", "N106"}) | _LOW,
    "N102": frozenset({"N103", "N104", "N105"}) | _LOW,
    "N103": frozenset({"N104", "N105"}) | _LOW,
    "N104": frozenset({"N105", "N106"}) | _LOW,
    "N105": frozenset({"N106"}) | _LOW,
    "N106": _LOW,
    "N107": frozenset({"N104", "N105"}) | _LOW,
    "E102": frozenset({"E101"}),
    "L103": frozenset({"H101"}),
}
# What a check without --select and --ignore asks at least.
_WHOLE = frozenset({"S101", "H103", "N101", "N106", "A101"})
_IDENTITIES = ("N104", "N105", "N106")
# Rules that can look at every target pass; one that saw less than a quarter of them is named in the verdict.
_OF_TARGETS = ("S101", "H102", "H103", "H104", "N104", "N105")
_FEW = 4
_STRENGTH = {"error": 0, "warning": 1, "note": 2}
_EFFECTS = {
    "A101": "that nothing is accepted",
    "A105": "that next to nothing is accepted",
    "A102": "that everything is accepted, which is no good sign",
    "A103": "the fall of acceptance",
    "E101": "the exception",
    "E102": "the size error",
    "S101": "the joined width",
    "S104": "the skipped fc",
    "S102": "the rows",
    "N101": "the non-finite values",
    "N104": "the norms that do not add up",
    "N105": "the join's first values",
    "N106": "the draft's input",
    "H103": "the captured layers",
}


# Which server life a finding is about, by the finding's identity: a file and a segment of it.
Lives: TypeAlias = "Mapping[int, tuple[str, int]]"


def ranked(findings: Iterable[Finding], lives: Lives | None = None) -> list[Finding]:
    """Return findings, the most causal first: what nothing explains, the strong before the weak, then by ORDER.

    A finding explains others of its own server life only: another server's fault is no cause.
    """
    every = list(findings)
    follows = explained(every, lives or {})

    def key(finding: Finding) -> tuple[int, int, int, str, int]:
        place = finding.where
        return (
            _STRENGTH[finding.severity],
            int(id(finding) in follows),
            ORDER.index(finding.rule),
            "" if place is None else place.file,
            0 if place is None else place.line,
        )

    return sorted(every, key=key)


def explained(findings: Sequence[Finding], lives: Lives) -> dict[int, str]:
    """Return by identity the findings that another of the same life, itself not a mere note, explains, and its rule."""
    causes = [finding for finding in findings if finding.severity != "note" and finding.rule in EXPLAINS]
    return {
        id(finding): cause.rule
        for finding in findings
        for cause in reversed(causes)
        if finding.rule in EXPLAINS[cause.rule] and _together(cause, finding, lives)
    }


def _together(one: Finding, other: Finding, lives: Lives) -> bool:
    """Tell whether two findings are about the same server life, as far as it is known."""
    first, second = lives.get(id(one)), lives.get(id(other))
    return first is None or second is None or first == second


class Looked(NamedTuple):
    """What was looked at: by rule how much, passes of target and draft, rules that could not be decided.

    ``blocked`` says why passes were not judged at all, ``reserve`` what speaks against calling a log healthy.
    """

    checked: Mapping[str, int]
    passes: tuple[int, int]
    unchecked: int
    blocked: str | None = None
    reserve: Sequence[str] = ()


def headline(findings: Sequence[Finding], looked: Looked, lives: Lives | None = None) -> str:
    """Return the one sentence of a check; ``findings`` are ranked."""
    serious = [finding for finding in findings if finding.severity != "note"]
    checked = looked.checked
    if serious:
        return _cause(serious, checked, lives or {})
    number = sum(1 for times in checked.values() if times)
    if not any(checked.get(code) for code in ORDER if code[0] in "SHNAR"):
        if not checked.keys() >= _WHOLE:
            return f"Nothing is found by the rules that were selected; {looked.unchecked} of them could not be decided."
        text = "Nothing that a rule could judge is in this log: no hidden states and no accept len were printed."
        return _but("Hidden states are printed, and cannot be judged", looked) if looked.blocked else text
    target, draft = looked.passes
    passes = f"{count(target, 'target pass')} and {count(draft, 'draft pass')}"
    what = passes if (target or draft) and not looked.blocked else "the server's lines"
    few = [code for code in _OF_TARGETS if 0 < _FEW * checked.get(code, 0) < target]
    part = f"; {and_list(few)} looked at {count(max(checked[code] for code in few), 'pass')} at most" if few else ""
    notes = f"; {count(len(findings), 'note')}" if findings else ""
    rest = f"; {looked.unchecked} could not be decided" if looked.unchecked else ""
    text = f"{number} rules looked at {what}{part}{rest}{notes}"
    if looked.blocked or looked.reserve:
        return _but(f"Nothing is found, which proves little: {text}", looked)
    return f"No fault found: {text}."


def _but(text: str, looked: Looked) -> str:
    return f"{text}. {'. '.join(_capital(one) for one in (*filter(None, [looked.blocked]), *looked.reserve))}."


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _cause(serious: Sequence[Finding], checked: Mapping[str, int], lives: Lives) -> str:
    first = serious[0]
    elsewhere = sum(1 for finding in serious if not _together(first, finding, lives))
    serious = [finding for finding in serious if _together(first, finding, lives)]
    codes = {finding.rule for finding in serious}
    if first.rule == "A101" and not codes & {*_IDENTITIES, "N101", "H103", "S101"}:
        held = [code for code in _IDENTITIES if checked.get(code)]
        if len(held) == len(_IDENTITIES):
            joins, reads = count(checked["N104"], "pass"), count(checked["N106"], "case")
            return (
                f"{first.message.rstrip('.')}, and the hidden states are consistent: joined states are their captures"
                f" in {joins}, and the draft read them in {reads}. Look at the vocabulary map (d2t) or the draft's"
                " weights."
            )
    follows = EXPLAINS.get(first.rule, frozenset())
    follows = follows.union(*(EXPLAINS.get(code, frozenset()) for code in follows & codes))
    effects = [code for code in ORDER if code in codes & follows - {first.rule}]
    same = {finding.rule for finding in serious if finding.where == first.where}
    words = [f"{_EFFECTS[code]} ({code})" for code in effects if code in _EFFECTS and code not in same & {"E101"}]
    text = first.message.rstrip(".")
    if words:
        text += f"; it explains {and_list(words)}"
    others = sorted(codes - set(effects) - {first.rule, "L101", "L102"}, key=ORDER.index)
    if others:
        text += f". Besides: {', '.join(others)}"
    if elsewhere:
        text += f". Besides, {count(elsewhere, 'finding')} about other servers, which this explains nothing of"
    return f"{text}."
