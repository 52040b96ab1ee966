"""Rules about acceptance: nothing, next to nothing or everything accepted, a decline, a mixed definition of the rate.

This module is responsible for A101 to A105. How lines are read, weighed and cut into levels is the accept question's
(:mod:`logscope.queries.acceptance`): these rules look at its answer, ``life.acceptance``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logscope.model import Place
from logscope.queries.acceptance import DEFAULT_ROUNDS
from logscope.queries.acceptance.rates import mixed
from logscope.queries.acceptance.series import BARELY, DECLINE_Z, STRETCH_ROUNDS
from logscope.queries.words import and_list, count
from logscope.rules.registry import Checked, rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logscope.model import Finding
    from logscope.queries.acceptance import Key, Series
    from logscope.queries.acceptance.series import Decline, Level, Stretch
    from logscope.rules.evidence import Life, View
    from logscope.rules.registry import Rule

_NEEDS = "statistics lines with an accept len ('Decode batch', 'SpecDecoding metrics')"
# A fall of less than 15 % is a note when it is clear, and at least this large.
_SLIGHT = 0.05
# An accept len above this is more than one token.
_ONE = 1.5
# What may move together with a fall of acceptance: name of a level's column, words, relative change worth saying.
_BESIDE = (
    ("running", "running requests", 0.2),
    ("usage", "token usage", 0.1),
    ("context", "tokens in the cache", 0.2),
    ("cached", "cached prompt tokens", 0.5),
)


def _nothing(_view: View) -> None:
    """Keep nothing: what lines say of acceptance is kept once for all questions."""


def _series(life: Life) -> list[tuple[Key, Series]]:
    """Return the processes of a life that report an accept len."""
    mine = (life.segment.file, life.segment.number)
    return [(key, one) for key, one in life.acceptance.series.items() if key[:2] == mine and one.stats.sums["lengths"]]


def _lines(_part: None, life: Life) -> Checked:
    return Checked(int(sum(one.stats.sums["lengths"] for _, one in _series(life))), "line")


def _of(key: Key, life: Life) -> str:
    """Return which process it is, where there are several."""
    return f" of {key.name}" if len(_series(life)) > 1 and key.name else ""


def _extreme(known: Rule, life: Life, name: str, what: str, **texts: str) -> Iterator[Finding]:
    """Yield a finding for each process with a long stretch at an extreme; a note for a single short line."""
    for key, series in _series(life):
        stretches = series.long(getattr(series, name))
        if not stretches:
            continue
        longest: Stretch = max(stretches, key=lambda stretch: stretch.rounds)
        bonus = "bonus token" if longest.length < _ONE else "bonus tokens"
        fields = {
            "length": f"{longest.length:.2f}",
            "lines": count(longest.lines, "line"),
            "of": _of(key, life),
            "bonus": bonus,
        }
        more = f"; {len(stretches) - 1} more such stretches" if len(stretches) > 1 else ""
        yield known.finding(
            what.format(**fields),
            Place(key.file, longest.first_line),
            severity="note" if longest.lines < 2 and not longest.counted else None,
            expected=texts["expected"].format(**fields),
            actual=f"{longest.length:.2f}",
            evidence=_where(longest, series) + more,
            help=texts["help"],
        )


def _where(stretch: Stretch, series: Series) -> str:
    assumed = not stretch.counted and not series.rounds_per_line
    interval = f", {DEFAULT_ROUNDS} rounds a line assumed" if assumed else ""
    where = f"line {stretch.first_line}"
    if stretch.last_line != stretch.first_line:
        where = f"lines {stretch.first_line} to {stretch.last_line}"
    since = f", since {stretch.first_time}" if stretch.first_time else ""
    short = "; the run is shorter than the usual 80 rounds: this is every line it prints"
    brief = short if series.rounds < STRETCH_ROUNDS else ""
    share = f"{stretch.lines:,} of {count(int(series.stats.sums['lengths']), 'line')}"
    return f"{where}{since}: {share}, about {stretch.rounds:,.0f} rounds{interval}{brief}"


@rule("A101", "nothing-accepted", "warning", group="acceptance", needs=_NEEDS)
def nothing_accepted(view: View) -> None:
    """accept len is 1.00 over a stretch: no draft token is accepted."""
    _nothing(view)


@nothing_accepted.answer
def _(_part: None, life: Life) -> Iterator[Finding]:
    yield from _extreme(
        nothing_accepted,
        life,
        "floor",
        "Nothing is accepted{of}: accept len is {length} over {lines}.",
        expected="above {length} ({length} is the {bonus} alone)",
        help="if the hidden states are consistent, look at the vocabulary map (d2t) or the draft's weights",
    )


@rule("A102", "at-ceiling", "warning", group="acceptance", needs=_NEEDS)
def at_ceiling(view: View) -> None:
    """accept len is at its maximum over a stretch: too good to be true, or a trivial prompt."""
    _nothing(view)


@at_ceiling.answer
def _(_part: None, life: Life) -> Iterator[Finding]:
    yield from _extreme(
        at_ceiling,
        life,
        "ceiling",
        "Everything is accepted{of}: accept len stands at its maximum of {length} over {lines}.",
        expected="below the maximum, unless the text is trivial",
        help="look at the answers: NaN logits accept everything (a text of one repeated token), and so does a prompt"
        " whose answer is certain",
    )


@rule("A103", "decline", "warning", group="acceptance", needs=_NEEDS)
def falling(view: View) -> None:
    """Acceptance falls steadily or steps down, and stays down."""
    _nothing(view)


@falling.answer
def _(_part: None, life: Life) -> Iterator[Finding]:
    for key, series in _series(life):
        fall: Decline | None = series.decline
        if fall is None or (fall.low is None and not (fall.z < -DECLINE_Z and fall.change <= -_SLIGHT)):
            continue
        means = ", ".join(f"{level.mean:.2f}" for level in series.levels if level.start >= fall.before.start)
        begin = f"line {fall.begin.first_line}" + (f" ({fall.begin.time})" if fall.begin.time else "")
        last = fall.after.rounds if fall.low is None else fall.low_rounds
        yield falling.finding(
            f"Acceptance falls{_of(key, life)} from {fall.before.mean:.2f} to {fall.after.mean:.2f}"
            f" ({fall.change:+.0%}), beginning at {begin}.",
            Place(key.file, fall.begin.first_line),
            severity=None if fall.lasting else "note",
            expected=f"accept len {fall.before.mean:.2f}, as until line {fall.before.last_line}",
            actual=f"{fall.low_mean:.2f} over the last {last:,.0f} rounds",
            evidence=f"levels {means}; rank trend z = {fall.z:+.1f}; {_beside(fall.before, fall.after)}",
            help="compare what else changed there: requests, context, cache; `logscope accept` shows all",
        )


def _beside(before: Level, after: Level) -> str:
    """Say what changed with a fall, and what did not."""
    moved, still = [], []
    for column, words, least in _BESIDE:
        one, other = getattr(before, column), getattr(after, column)
        if one is None or other is None:
            continue
        if abs(other - one) >= least * max(abs(one), 1e-9):
            moved.append(f"{words} {one:.3g} to {other:.3g}")
        else:
            still.append(words)
    parts = [f"beside it: {and_list(moved)}"] if moved else []
    parts += [f"unchanged: {and_list(still)}"] if still else []
    return "; ".join(parts) or "nothing else is printed beside it"


@rule(
    "A104",
    "rate-definition",
    "warning",
    group="acceptance",
    needs="statistics lines with both an accept len and an accept rate",
)
def rate_definition(view: View) -> None:
    """One log mixes definitions of accept rate."""
    _nothing(view)


def _rates(life: Life) -> list[Any]:
    mine = (life.segment.file, life.segment.number)
    return [(server, rates) for server, rates in life.acceptance.rates.items() if server[:2] == mine]


@rate_definition.answer
def _(_part: None, life: Life) -> Iterator[Finding]:
    for server, rates in _rates(life):
        verdicts: Sequence[Any] = life.acceptance.verdicts(server)
        if not mixed(list(verdicts)):
            continue
        ranges = [
            f"{verdict.definition} ({verdict.rule}) in lines {found.first_line} to {found.last_line}"
            for found, verdict in zip(rates.ranges, verdicts, strict=True)
        ]
        yield rate_definition.finding(
            "The log mixes definitions of accept rate: its rates must not be averaged or compared.",
            Place(server.file, rates.ranges[1].first_line),
            expected="one definition",
            actual=and_list(sorted({verdict.definition for verdict in verdicts})),
            evidence="; ".join(ranges[:6]) + (f"; {len(ranges) - 6} more" if len(ranges) > 6 else ""),
            help="accept len means the same throughout: compare that",
        )


@rate_definition.checked
def _(_part: None, life: Life) -> Checked:
    return Checked(sum(found.lines for _, rates in _rates(life) for found in rates.ranges), "line")


@rule("A105", "barely-accepted", "warning", group="acceptance", needs=_NEEDS)
def barely_accepted(view: View) -> None:
    """Next to nothing is accepted: less than the draft's own steps cost."""
    _nothing(view)


@barely_accepted.answer
def _(_part: None, life: Life) -> Iterator[Finding]:
    for key, series in _series(life):
        found = series.barely
        # A stretch of exactly nothing is A101's.
        if found is None or series.long(series.floor):
            continue
        bound = series.bonus + found.bound
        yield barely_accepted.finding(
            f"Next to nothing is accepted{_of(key, life)}: accept len is {series.bonus + found.accepted:.3f}, below the"
            f" {bound:.2f} that {found.steps:.3g} draft steps cost.",
            Place(key.file, series.stats.first_line),
            expected=f"above {bound:.2f} ({BARELY:.0%} of a target pass for each of {found.steps:.3g} draft steps)",
            actual=f"{series.bonus + found.accepted:.3f}",
            evidence=f"{found.accepted:.3f} draft tokens accepted a verify over {found.verifies:,.0f} verifies, lines"
            f" {series.stats.first_line} to {series.stats.last_line}",
            help="the draft does not fit its target: compare checkpoint, quantisation, vocabulary map (d2t) and layers",
        )


for _rule in (nothing_accepted, at_ceiling, falling, barely_accepted):
    _rule.checked(_lines)
