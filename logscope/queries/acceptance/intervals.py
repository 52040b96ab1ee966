"""One printed interval of a server that counts draft tokens (vLLM, llama.cpp, TensorRT-LLM), tested against itself.

This module is responsible for the length, the verifies and the positions behind the counts of one line: A accepted and
D drafted tokens, V verifies, k draft tokens a round. It must not add lines up.

V is a whole number that every print of the line allows: A / (L - 1) within the rounding of the length L, D / d within
that of the mean depth d, and as many counts p V as the positions p show. D / k is taken where it is one of those: a
draft may be shorter than k (ngram, suffix, dynamic depth), and the printed depth is that of the interval's end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

# What carries acceptance per interval. The cumulative lines of vLLM V0 are another matter.
EVENTS = ("spec_metrics", "trtllm_iteration", "llamacpp_acceptance")
# A line without any of these (an iteration of TensorRT-LLM) says nothing about acceptance.
_ACCEPTANCE = frozenset({"accepted", "mean_acceptance_length"})
# Half of the last printed digit: lengths and depths have two decimals, positions three, percentages one.
_HALF, _POSITION_HALF, _PERCENT_HALF = 0.005, 0.0005, 0.0005
# No server counts or is as fast as this: digits that were glued together.
_IMMENSE = 1e15
# Whole numbers of verifies that are tried against the positions.
_TRIED = 5000
# Readings of the positions: what counts as nearly all, as good, as rare and as a collapse.
_TOTAL, _GOOD, _RARE, _COLLAPSE = 0.99, 0.5, 0.1, 0.25


@dataclass(slots=True)
class Interval:
    """The acceptance one line reports; None is what it does not tell.

    length
        tokens per verify, the bonus token included.
    draft_tokens
        k, from the list of positions; ``speculative`` lines only.
    positions, reached
        accepted at each position, as a share of all drafts, and of those that got there.
    no_drafts
        nothing was drafted: neither zero acceptance nor full.
    without_bonus
        the printed length left the bonus token out (vLLM until May 2025); ``length`` has it added.
    violations, reading
        numbers that contradict each other, and what stands out in the positions, in words.
    """

    length: float | None = None
    verifies: float | None = None
    accepted: float | None = None
    drafted: float | None = None
    draft_tokens: int | None = None
    positions: list[float] | None = None
    reached: list[float | None] | None = None
    no_drafts: bool = False
    without_bonus: bool = False
    violations: list[str] = field(default_factory=list)
    reading: str | None = None


def number(value: Any) -> float | None:
    """Return a count, a share or a speed; None for what is none: nan, a text, what damage made negative or immense."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _IMMENSE:
        return float(value)
    return None


def share(fields: dict[str, Any], key: str) -> float | None:
    """Return a share between 0 and 1, whether it was printed so or in percent."""
    value = number(fields.get(key))
    units = fields.get("units")
    return value / 100 if value is not None and isinstance(units, dict) and units.get(key) == "%" else value


def read(event: str, fields: dict[str, Any]) -> Interval | None:
    """Return the interval a record reports, None when it reports no acceptance."""
    if event not in EVENTS or _ACCEPTANCE.isdisjoint(fields):
        return None
    out = Interval(accepted=number(fields.get("accepted")), drafted=number(fields.get("drafted")))
    out.length = number(fields.get("mean_acceptance_length"))
    printed = fields.get("per_position")
    listed = [number(value) for value in printed] if isinstance(printed, (list, tuple)) else []
    if out.drafted == 0 or (isinstance(printed, (list, tuple)) and not listed and not out.accepted):
        return Interval(no_drafts=True, accepted=out.accepted, drafted=out.drafted)
    out.draft_tokens = len(listed) or None
    coverage = fields.get("per_position_coverage")
    if isinstance(coverage, (list, tuple)) and len(coverage) == len(listed):
        reach = [number(value) or 0.0 for value in coverage]
        out.reached = listed
        out.positions = [(value or 0.0) * part for value, part in zip(listed, reach, strict=True)]
    elif listed and None not in listed:
        out.positions = [value for value in listed if value is not None]
    depth = fields.get("mean_verification_depth")
    verified = number(depth[0]) if isinstance(depth, (list, tuple)) and depth else None
    fixed = event == "spec_metrics" and verified is None
    per_draft = None  # A / V, where every draft has k tokens
    if fixed and out.drafted and out.draft_tokens and out.accepted is not None:
        per_draft = out.accepted * out.draft_tokens / out.drafted
    _compare(out, per_draft)
    out.verifies = _verifies(out, number(fields.get("speculative_depth")) if fixed else verified, fixed=fixed)
    if out.length is None and out.verifies and out.accepted is not None:
        out.length = 1 + out.accepted / out.verifies
    rate = share(fields, "draft_acceptance_rate")
    if rate is not None and out.drafted and out.accepted is not None:
        expected = out.accepted / out.drafted
        if abs(rate - expected) > _PERCENT_HALF + 1e-9:
            out.violations.append(f"rate {rate:.1%} is not accepted / drafted = {expected:.1%}")
    out.reading = _reading(out.positions or [])
    return out


def _compare(out: Interval, per_draft: float | None) -> None:
    """Test length, positions and counts against each other; find out whether the length has the bonus token."""
    total = sum(out.positions) if out.positions else None
    slack = _POSITION_HALF * len(out.positions or ()) + 1e-9
    # A draft cut short at the end of a request has fewer than k tokens.
    rough = 0.0 if not out.drafted or not out.draft_tokens or out.drafted % out.draft_tokens == 0 else 0.01
    length = out.length
    if length is None:
        return

    def near(one: float | None, other: float | None, more: float = 0.0) -> bool:
        return one is not None and other is not None and abs(one - other) <= _HALF + more + 1e-9

    if near(length - 1, total, slack):
        return
    if total is None:
        if per_draft is not None and not near(length - 1, per_draft, rough) and near(length, per_draft, rough):
            out.without_bonus, out.length = True, length + 1
    elif near(length, total, slack) and near(length, per_draft, rough):
        out.without_bonus, out.length = True, length + 1
    elif near(length - 1, per_draft, rough) or per_draft is None:
        out.violations.append(f"the positions add up to {total:.3f}, not to length - 1 = {length - 1:.2f}")
    else:
        out.violations.append(
            f"length {length:.2f} is neither 1 + accepted / drafts = {1 + per_draft:.2f} nor accepted / drafts"
        )


def _verifies(out: Interval, depth: float | None, *, fixed: bool) -> float | None:
    """Return V, None where the line leaves it open."""
    accepted, drafted, k = out.accepted, out.drafted, out.draft_tokens
    if any(value is not None and value > _IMMENSE for value in (accepted, drafted)):
        return None
    depth = depth if depth and depth >= 0.01 else None
    low, high = 0.0, math.inf
    middle = None
    if out.length is not None and accepted:
        extra = out.length - 1
        low, high = accepted / (extra + _HALF), accepted / (extra - _HALF) if extra > _HALF + 1e-9 else math.inf
        middle = accepted / extra if extra > 0 else None
    if not fixed and depth and drafted:  # the mean depth of the interval
        near, far = drafted / (depth + _HALF), drafted / (depth - _HALF)
        if max(low, near) <= min(high, far) + 1e-9:
            low, high, middle = max(low, near), min(high, far), drafted / depth
    exact = [drafted / each for each in (k, depth) if fixed and drafted and each]
    for one in exact:
        if low - 1e-6 <= one <= high + 1e-6 and abs(one - round(one)) < 1e-9:
            return float(round(one))
    first, last = math.ceil(low - 1e-9), math.floor(min(high, low + _TRIED) + 1e-9)
    whole = range(max(first, 1), last + 1) if high < math.inf else range(0)
    if middle is not None and whole:
        kept = [one for one in whole if _shown(out, one)] or whole
        return float(min(kept, key=lambda one: abs(one - middle)))
    if exact and not (out.violations and middle):
        return exact[0]
    return middle


def _shown(out: Interval, verifies: int) -> bool:
    """Tell whether so many verifies can print these positions: their counts are whole, and add up to A."""
    counts = [share_ * verifies for share_ in out.positions or ()]
    if any(abs(one - round(one)) > _POSITION_HALF * verifies + 1e-9 for one in counts) and out.reached is None:
        return False
    return not counts or out.reached is not None or sum(map(round, counts)) == out.accepted


def _reading(positions: list[float]) -> str | None:
    """Say what stands out in the positions."""
    if not positions:
        return None
    first, later = positions[0], positions[1:]
    if not any(positions):
        return "nothing accepted"
    if min(positions) >= _TOTAL:
        return "suspiciously total: nearly every draft token is accepted; look for repetition or garbage in the output"
    if later and not any(later):
        return f"only the first position is ever accepted{', rarely' if first < _RARE else ''}"
    if later and first >= _GOOD and later[0] < _COLLAPSE * first:
        return (
            "the first position is good, the later ones collapse: the state carried to the next draft step is suspect"
        )
    return None
