"""Which definition of accept rate is in force: inferred from printed pairs of accept len and accept rate.

This module is responsible for the definitions of the field and for finding, from pairs alone or with the
server's settings, which of them a line can follow. It must not know what a log or a report is.

accept len counts what a round gives for nothing under every definition; only the printed rate differs:

=========  =================== ==================================================
``A``      len / (s + 1)       s draft steps; SGLang until November 2025
``B``      len / N             N draft tokens a round; November 2025 to April 2026
``C``      (len - 1) / (N - 1) since April 2026 (sgl-project/sglang pull 23530)
``D``      (len - 2) / (N - 1) UNO alone, whose rounds give two tokens for nothing
=========  =================== ==================================================

With topk 1, N = s + 1 and A is B; without the server's settings the two cannot be told apart (``A|B``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache, reduce
from math import ceil, floor, fsum, inf
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

Definition: TypeAlias = Literal["A", "B", "A|B", "C", "D", "ambiguous"]

# Tokens a round of UNO gives without an accepted draft; every other way of drafting gives one.
UNO_BONUS = 2
# Half of the last printed digit of both values.
HALF_DIGIT = 0.005
_EPSILON = 1e-9
# More draft tokens than any served tree has; a rate printed as 0.00 then tells the definition of accept len 1.00.
_LARGEST = 128
# A log that changes its definition more often than this is described by counts.
_MOST_RANGES = 1000


class Reading(NamedTuple):
    """One way to read a pair: ``len/divisor``, or ``(len-1)/divisor`` when the bonus token is ``left_out``."""

    left_out: int
    divisor: int

    def __str__(self) -> str:
        """Return the formula."""
        return f"{_numerator(self.left_out)}/{self.divisor}"


def _numerator(left_out: int) -> str:
    return f"(len-{left_out})" if left_out else "len"


@dataclass(frozen=True, slots=True)
class Candidates:
    """The readings a pair, or a run of pairs, allows.

    strict
        the printed rate is within half a digit of the formula applied to the printed length.
    loose
        the same when the length's own rounding is allowed for too: the truth is always here.
    """

    strict: frozenset[Reading]
    loose: frozenset[Reading]

    @property
    def best(self) -> frozenset[Reading]:
        """The strict readings where there are any: on few pairs they leave out accidental ones."""
        return self.strict or self.loose

    def both(self, other: Candidates) -> Candidates:
        """Return what two sets of pairs have in common."""
        return Candidates(self.strict & other.strict, self.loose & other.loose)


@lru_cache(maxsize=65_536)
def candidates(length: float, rate: float, bonus: int = 1) -> Candidates:
    """Return every reading of one printed pair, divisors up to 128. Both values are printed with two decimals.

    ``bonus``: tokens a round gives for nothing. Where it is two (UNO), the definitions of one say nothing.
    """
    strict: set[Reading] = set()
    loose: set[Reading] = set()
    for left_out in (0, 1) if bonus == 1 else (bonus,):
        tokens = length - left_out
        # A rate never exceeds 1, so the divisor is at least the tokens; bounds are widened and checked one by one.
        low = max(1, ceil((tokens - HALF_DIGIT) / (rate + HALF_DIGIT) - _EPSILON))
        high = inf if rate <= HALF_DIGIT else floor((tokens + HALF_DIGIT) / (rate - HALF_DIGIT) + _EPSILON)
        for divisor in range(low, int(min(high, _LARGEST)) + 1):
            off = abs(tokens / divisor - rate)
            if off <= HALF_DIGIT + HALF_DIGIT / divisor + _EPSILON:
                loose.add(Reading(left_out, divisor))
                if off <= HALF_DIGIT + _EPSILON:
                    strict.add(Reading(left_out, divisor))
    return Candidates(frozenset(strict), frozenset(loose))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The definition in force.

    definition
        one of the five names.
    rule
        the formulas that fit, ``len/6 or (len-1)/3``; "no known definition" when none does.
    draft_tokens
        N as the pairs imply it, None when they leave it open (under A the divisor is s + 1).
    contradicts
        True when the server's settings fit none of the formulas, which then stand as the pairs alone give them.
    """

    definition: Definition
    rule: str
    draft_tokens: int | None = None
    contradicts: bool = False


def decide(readings: frozenset[Reading], steps: int | None = None, draft_tokens: int | None = None) -> Verdict:
    """Name the definition that fits the readings, given s and N where the server's settings say them."""
    if not readings:
        return Verdict("ambiguous", "no known definition")
    fitting = frozenset(reading for reading in readings if _fits(reading, steps, draft_tokens))
    chosen, contradicts = fitting or readings, not fitting
    rule = _rule(chosen)
    with_bonus = {reading.divisor for reading in chosen if not reading.left_out}
    without = {reading.divisor for reading in chosen if reading.left_out}
    if with_bonus and without:
        return Verdict("ambiguous", rule, None, contradicts)
    if without:
        name: Definition = "D" if any(reading.left_out == UNO_BONUS for reading in chosen) else "C"
        return Verdict(name, rule, without.pop() + 1 if len(without) == 1 else None, contradicts)
    divisor = with_bonus.pop() if len(with_bonus) == 1 else None
    known = divisor is not None and not contradicts and draft_tokens is not None
    if known and steps is not None and {divisor} != {draft_tokens, steps + 1}:
        return Verdict("A" if divisor != draft_tokens else "B", rule, draft_tokens)
    return Verdict("A|B", rule, divisor, contradicts)


def _fits(reading: Reading, steps: int | None, draft_tokens: int | None) -> bool:
    """Tell whether a reading agrees with what is known of the settings."""
    if reading.left_out:
        return draft_tokens is None or reading.divisor == draft_tokens - 1
    if steps is None and draft_tokens is None:
        return True
    return reading.divisor == draft_tokens or (steps is not None and reading.divisor == steps + 1)


def _rule(readings: frozenset[Reading]) -> str:
    """Return the formulas in words, the long lists of a rate near zero as their bounds."""
    parts = []
    for left_out in sorted({reading.left_out for reading in readings}):
        divisors = sorted(reading.divisor for reading in readings if reading.left_out == left_out)
        if len(divisors) > 4:
            name = _numerator(left_out)
            parts.append(f"{name}/N for any N from {divisors[0]} to {divisors[-1]}")
        else:
            parts.extend(str(Reading(left_out, divisor)) for divisor in divisors)
    return " or ".join(parts)


@dataclass(slots=True)
class RateRange:
    """Consecutive lines of one server that one definition explains, and the rates they print.

    ``unexplained`` lines among them follow no known definition (an interval in which N changed, damage).
    """

    first_line: int
    last_line: int
    candidates: Candidates
    lines: int = 0
    unexplained: int = 0
    weight: float = 0.0
    weighted: float = 0.0
    smallest: float = inf
    largest: float = -inf

    def take(self, lines: Sequence[int], rates: Sequence[float], weights: Sequence[float]) -> None:
        """Add the rates of some lines."""
        self.last_line = lines[-1]
        self.lines += len(lines)
        self.weight += fsum(weights)
        self.weighted += fsum(rate * weight for rate, weight in zip(rates, weights, strict=True))
        self.smallest, self.largest = min(self.smallest, *rates), max(self.largest, *rates)

    @property
    def mean(self) -> float | None:
        """The mean rate, weighted as accept len is."""
        return self.weighted / self.weight if self.weight else None

    def decide(self, steps: int | None = None, draft_tokens: int | None = None) -> Verdict:
        """Name its definition."""
        return decide(self.candidates.best, steps, draft_tokens)


@dataclass(slots=True)
class RateRanges:
    """Splits the lines of one server into ranges that one definition explains, as the lines come.

    A range ends where no reading explains all of it and the next line. A line that no definition explains at all
    ends nothing: it is counted. ``dropped`` counts lines behind the last range that is kept; ``bonus`` is what a
    round gives for nothing.
    """

    bonus: int = 1
    ranges: list[RateRange] = field(default_factory=list)
    dropped: int = 0

    def add(self, line: int, length: float, rate: float, weight: float = 1.0) -> None:
        """Take one printed pair."""
        found = candidates(length, rate, self.bonus)
        last = self.ranges[-1] if self.ranges else None
        if last is None or (found.loose and last.candidates.loose and not last.candidates.both(found).loose):
            if len(self.ranges) >= _MOST_RANGES:
                self.dropped += 1
                return
            last = RateRange(line, line, found, unexplained=0 if found.loose else 1)
            self.ranges.append(last)
        elif not found.loose:
            last.unexplained += 1
            return
        # A range that began with an inexplicable line is taken over by the first that can be explained.
        last.candidates = last.candidates.both(found) if last.candidates.loose else found
        last.take([line], [rate], [weight])

    def extend(
        self, lines: Sequence[int], lengths: Sequence[float], rates: Sequence[float], weights: Sequence[float]
    ) -> None:
        """Take printed pairs in order; at once where one reading explains them all."""
        found = [candidates(*pair, self.bonus) for pair in set(zip(lengths, rates, strict=True))]
        last = self.ranges[-1] if self.ranges else None
        common = reduce(Candidates.both, found if last is None else [last.candidates, *found])
        if not common.loose:
            for pair in zip(lines, lengths, rates, weights, strict=True):
                self.add(*pair)
            return
        if last is None:
            last = RateRange(lines[0], lines[0], common)
            self.ranges.append(last)
        last.candidates = common
        last.take(lines, rates, weights)


def mixed(verdicts: list[Verdict]) -> bool:
    """Tell whether ranges certainly follow different definitions: other letters, or other formulas of one letter.

    Two formulas of ``A|B`` differ in the definition or in the number of draft tokens; either way their rates must not
    be averaged. Two ranges of C with another N are one definition.
    """
    names = {verdict.definition for verdict in verdicts if verdict.definition != "ambiguous"}
    rules = {verdict.rule for verdict in verdicts if verdict.definition == "A|B"}
    return len(names) > 1 or len(rules) > 1
