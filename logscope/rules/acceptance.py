"""Rules about acceptance: nothing accepted, everything accepted, a decline, a mixed definition of the rate.

This module is responsible for A101 to A104. How lines are read, weighed and cut into levels is the accept query's
(:mod:`logscope.queries.acceptance`), whose fold the rules of one segment share through the scene.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logscope.model import Place
from logscope.queries.acceptance.lines import DEFAULT_ROUNDS
from logscope.queries.acceptance.rates import mixed
from logscope.queries.acceptance.series import DECLINE_Z, STRETCH_ROUNDS
from logscope.queries.words import and_list, count
from logscope.rules.base import Checked, Rule, register

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logscope.model import Finding, Severity
    from logscope.queries.acceptance import Key, Series
    from logscope.queries.acceptance.series import Decline, Level, Stretch

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


class _Acceptance(Rule):
    """What the rules of this module share: the series of the segment."""

    @property
    def _all(self) -> list[tuple[Key, Series]]:
        return list(self.scene.accept.found.series.items())

    def checked(self) -> Checked:
        """Lines with an accept len."""
        return Checked(sum(series.stats.lines for _, series in self._all), "line")

    def _of(self, key: Key) -> str:
        """Return which process it is, where there are several."""
        return f" of {key.name}" if len(self._all) > 1 and key.name else ""

    def _longest(self, extreme: Callable[[Series], list[Stretch]]) -> Iterator[tuple[Key, Stretch, str]]:
        """Yield each process with its longest stretch at an extreme, and where its stretches are, in words."""
        for key, series in self._all:
            stretches = series.long(extreme(series))
            if stretches:
                longest = max(stretches, key=lambda stretch: stretch.rounds)
                more = f"; {len(stretches) - 1} more such stretches" if len(stretches) > 1 else ""
                yield key, longest, _stretch_words(longest, series) + more


def _stretch_words(stretch: Stretch, series: Series) -> str:
    assumed = series.stats.open_lines and not series.rounds_per_line
    interval = f", {DEFAULT_ROUNDS} rounds a line assumed" if assumed else ""
    where = f"line {stretch.first_line}"
    if stretch.last_line != stretch.first_line:
        where = f"lines {stretch.first_line} to {stretch.last_line}"
    since = f", since {stretch.first_time}" if stretch.first_time else ""
    short = "; the run is shorter than the usual 80 rounds: this is every line it prints"
    brief = short if series.rounds < STRETCH_ROUNDS else ""
    total = series.stats.lines
    share = f"{stretch.lines:,} of {count(total, 'line')}"
    return f"{where}{since}: {share}, about {stretch.rounds:,.0f} rounds{interval}{brief}"


def _bonus(stretch: Stretch) -> str:
    return "bonus token" if stretch.length < _ONE else "bonus tokens"


def _brief(stretch: Stretch) -> Severity | None:
    """Return ``note`` for a single short line: a few rounds may be lucky or unlucky."""
    return "note" if stretch.lines < 2 and not stretch.counted else None


@register("A101", "nothing-accepted", "warning", group="acceptance", needs=_NEEDS)
class NothingAccepted(_Acceptance):
    """accept len is 1.00 over a stretch: no draft token is accepted."""

    def findings(self) -> Iterator[Finding]:
        """Answer once for each process, with its longest stretch."""
        for key, longest, where in self._longest(lambda series: series.floor):
            yield self.finding(
                f"Nothing is accepted{self._of(key)}: accept len is {longest.length:.2f} over"
                f" {count(longest.lines, 'line')}.",
                Place(key.file, longest.first_line),
                severity=_brief(longest),
                expected=f"above {longest.length:.2f} ({longest.length:.2f} is the {_bonus(longest)} alone)",
                actual=f"{longest.length:.2f}",
                evidence=where,
                help="if the hidden states are consistent, look at the vocabulary map (d2t) or the draft's weights",
            )


@register("A102", "at-ceiling", "warning", group="acceptance", needs=_NEEDS)
class AtCeiling(_Acceptance):
    """accept len is at its maximum over a stretch: too good to be true, or a trivial prompt."""

    def findings(self) -> Iterator[Finding]:
        """Answer once for each process, with its longest stretch."""
        for key, longest, where in self._longest(lambda series: series.ceiling):
            yield self.finding(
                f"Everything is accepted{self._of(key)}: accept len stands at its maximum of"
                f" {longest.length:.2f} over {count(longest.lines, 'line')}.",
                Place(key.file, longest.first_line),
                severity=_brief(longest),
                expected="below the maximum, unless the text is trivial",
                actual=f"{longest.length:.2f}",
                evidence=where,
                help="look at the answers: NaN logits accept everything (a text of one repeated token), and so does a"
                " prompt whose answer is certain",
            )


@register("A103", "decline", "warning", group="acceptance", needs=_NEEDS)
class Falling(_Acceptance):
    """Acceptance falls steadily or steps down, and stays down."""

    def findings(self) -> Iterator[Finding]:
        """Answer once for each process whose acceptance falls to a lower level that lasts to the end."""
        for key, series in self._all:
            levels, fall = series.levels, series.decline
            if fall is None:
                continue
            if fall.low is None and not (fall.z < -DECLINE_Z and fall.change <= -_SLIGHT):
                continue
            means = ", ".join(f"{level.mean:.2f}" for level in levels if level.start >= fall.before.start)
            begin = f"line {fall.begin.first_line}" + (f" ({fall.begin.time})" if fall.begin.time else "")
            yield self.finding(
                f"Acceptance falls{self._of(key)} from {fall.before.mean:.2f} to"
                f" {fall.after.mean:.2f} ({fall.change:+.0%}), beginning at {begin}.",
                Place(key.file, fall.begin.first_line),
                severity=None if fall.lasting else "note",
                expected=f"accept len {fall.before.mean:.2f}, as until line {fall.before.last_line}",
                actual=f"{fall.low_mean:.2f} over the last {_last_rounds(fall):,.0f} rounds",
                evidence=f"levels {means}; rank trend z = {fall.z:+.1f}; {_beside(fall.before, fall.after)}",
                help="compare what else changed there: requests, context, cache; `logscope accept` shows all",
            )


def _last_rounds(fall: Decline) -> float:
    return fall.after.rounds if fall.low is None else fall.low_rounds


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
    if still:
        parts.append(f"unchanged: {and_list(still)}")
    return "; ".join(parts) or "nothing else is printed beside it"


@register(
    "A104",
    "rate-definition",
    "warning",
    group="acceptance",
    needs="statistics lines with both an accept len and an accept rate",
)
class RateDefinition(_Acceptance):
    """One log mixes definitions of accept rate."""

    def findings(self) -> Iterator[Finding]:
        """Answer once for each server whose lines follow more than one definition."""
        accept = self.scene.accept.found
        for server, rates in accept.rates.items():
            verdicts = accept.verdicts(server)
            if not mixed(verdicts):
                continue
            ranges = [
                f"{verdict.definition} ({verdict.rule}) in lines {found.first_line} to {found.last_line}"
                for found, verdict in zip(rates.ranges, verdicts, strict=True)
            ]
            yield self.finding(
                "The log mixes definitions of accept rate: its rates must not be averaged or compared.",
                Place(server.file, rates.ranges[1].first_line),
                expected="one definition",
                actual=and_list(sorted({verdict.definition for verdict in verdicts})),
                evidence="; ".join(ranges[:6]) + (f"; {len(ranges) - 6} more" if len(ranges) > 6 else ""),
                help="accept len means the same throughout: compare that",
            )

    def checked(self) -> Checked:
        """Lines with a length and a rate."""
        ranges: list[Any] = [found for rates in self.scene.accept.found.rates.values() for found in rates.ranges]
        return Checked(sum(found.lines for found in ranges), "line")
