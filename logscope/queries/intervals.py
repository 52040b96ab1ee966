"""One printed interval of speculative decoding, whatever server printed it, and the checks its own numbers allow.

This module is responsible for turning a statistics record (SGLang, vLLM, TensorRT-LLM, llama.cpp) into one form in
which accept len counts the bonus token, and for testing the record against itself. It must not add anything up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from logscope.queries.rates import UNO_BONUS

if TYPE_CHECKING:
    from logscope.model import Payload, Segment

# SGLang's default for decode_log_interval: the rounds a line stands for when it does not print them.
DEFAULT_ROUNDS = 40
# What carries acceptance per interval. The cumulative lines of vLLM V0 are another matter, see cumulative().
INTERVAL_EVENTS = frozenset({"decode_stats", "spec_metrics", "trtllm_iteration", "llamacpp_acceptance"})
# A draft-counting line without any of these (an iteration of TensorRT-LLM) says nothing about acceptance.
ACCEPTANCE = frozenset({"accepted", "mean_acceptance_length"})
# Half of the last printed digit: lengths have two decimals, positions three, percentages one.
_LENGTH_HALF = 0.005
_POSITION_HALF = 0.0005
_PERCENT_HALF = 0.0005
# No server counts or is as fast as this: digits that were glued together.
_IMMENSE = 1e15
# Readings of the per-position list: what counts as good, as rare and as a collapse.
_TOTAL = 0.99
_FIRST_GOOD = 0.5
_FIRST_RARE = 0.1
_COLLAPSE = 0.25


@dataclass(slots=True)
class Interval:
    """The acceptance one line reports.

    length
        accept len: tokens per verify, the bonus token included; None when the line does not report it.
    rate
        SGLang's accept rate as printed: its definition is inferred elsewhere. None on lines of other servers.
    verifies
        how many verifies (one per request and round) stand behind it, where the line tells; else None.
    running, context, usage, throughput, cached
        requests, tokens in the cache, share of the cache, tokens per second, cached prompt tokens; None: not printed.
    drafted, accepted, positions
        draft tokens proposed and accepted, and the acceptance of each position.
    no_drafts
        True when the line says that nothing was drafted: neither zero acceptance nor full.
    draft_tokens
        k: how many tokens are drafted a round, from the list of positions.
    without_bonus
        True when the printed length left the bonus token out (vLLM until May 2025); ``length`` has it added.
    violations
        sentences about numbers of the line that contradict each other.
    reading
        what the positions say in words, None when nothing stands out.
    """

    length: float | None = None
    rate: float | None = None
    verifies: float | None = None
    running: float | None = None
    context: float | None = None
    usage: float | None = None
    throughput: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    positions: tuple[float, ...] | None = None
    no_drafts: bool = False
    draft_tokens: int | None = None
    without_bonus: bool = False
    violations: list[str] = field(default_factory=list)
    reading: str | None = None


def read(payload: Payload) -> Interval | None:
    """Return the interval a payload reports, or None when it is no statistics record."""
    if payload.event == "decode_stats":
        return _sglang(payload.fields)
    if payload.event in INTERVAL_EVENTS and not ACCEPTANCE.isdisjoint(payload.fields):
        return _drafts(payload.fields, fixed=payload.event == "spec_metrics")
    return None


def bonus_of(segment: Segment | None) -> int:
    """Return how many tokens a round gives without an accepted draft, by the algorithm of server_args."""
    uno = segment is not None and str(segment.server_args.get("speculative_algorithm")).upper() == "UNO"
    return UNO_BONUS if uno else 1


def number(value: Any) -> float | None:
    """Return a count, a share or a speed; None for what is none: nan, a text, what damage made negative or immense."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _IMMENSE:
        return float(value)
    return None


def share(fields: dict[str, Any], key: str) -> float | None:
    """Return a share between 0 and 1, whether it was printed so or in percent."""
    value = number(fields.get(key))
    units = fields.get("units")
    percent = isinstance(units, dict) and units.get(key) == "%"
    return value / 100 if value is not None and percent else value


def _sglang(fields: dict[str, Any]) -> Interval:
    """Read a ``Decode batch`` line. ``spec tokens`` and ``spec rounds`` (a fork) give length and weight exactly."""
    tokens, rounds = number(fields.get("spec tokens")), number(fields.get("spec rounds"))
    length = number(fields.get("accept_len"))
    if tokens is not None and rounds:
        length = tokens / rounds
    return Interval(
        length=length,
        rate=number(fields.get("accept_rate")),
        verifies=rounds or None,
        running=number(fields.get("running_req")),
        context=number(fields.get("token")),
        usage=share(fields, "token_usage"),
        throughput=number(fields.get("gen_throughput")),
    )


def _drafts(fields: dict[str, Any], *, fixed: bool) -> Interval:
    """Read a line that counts draft tokens, and test it against itself.

    The positions add up to length - 1, since each divides by all drafts, and rate = accepted / drafted. Where every
    draft has the same k tokens (``fixed``, vLLM), drafts = drafted / k and length = 1 + accepted / drafts as well;
    llama.cpp ends a draft early.
    """
    accepted, drafted = number(fields.get("accepted")), number(fields.get("drafted"))
    length = number(fields.get("mean_acceptance_length"))
    printed = fields.get("per_position")
    known = [number(value) for value in printed] if isinstance(printed, (list, tuple)) else []
    positions = tuple(value for value in known if value is not None)
    out = Interval(drafted=drafted, accepted=accepted)
    if drafted == 0 or (isinstance(printed, (list, tuple)) and not positions and not accepted):
        out.no_drafts = True
        return out
    out.positions = positions or None
    out.draft_tokens = len(positions) or None
    out.length = length
    drafts = drafted / len(positions) if fixed and drafted is not None and positions else None
    if drafts and accepted is not None:
        _compare(out, accepted / drafts)
    elif length is not None and positions and _off(sum(positions), length - 1, len(positions)):
        out.violations.append(f"the positions add up to {sum(positions):.3f}, not to length - 1 = {length - 1:.2f}")
    _check_rate(out, fields)
    out.verifies = drafts
    if drafts is None and accepted is not None and out.length is not None and out.length > 1:
        out.verifies = accepted / (out.length - 1)
    out.reading = _reading(out)
    return out


def _compare(out: Interval, per_draft: float) -> None:
    """Test length and positions of a line against its counts; find out whether length has the bonus token."""
    positions, length = out.positions or (), out.length
    if length is None:
        out.length = 1 + per_draft
    elif abs(length - (1 + per_draft)) <= _LENGTH_HALF + _counts(out):
        pass
    elif abs(length - per_draft) <= _LENGTH_HALF + _counts(out):
        out.without_bonus = True
        out.length = length + 1
    else:
        out.violations.append(
            f"length {length:.2f} is neither 1 + accepted / drafts = {1 + per_draft:.2f} nor accepted / drafts"
        )
    if positions and _off(sum(positions), per_draft, len(positions)):
        out.violations.append(
            f"the positions add up to {sum(positions):.3f}, not to accepted / drafts = {per_draft:.3f}"
        )


def _check_rate(out: Interval, fields: dict[str, Any]) -> None:
    rate = share(fields, "draft_acceptance_rate")
    if rate is not None and out.drafted and out.accepted is not None:
        expected = out.accepted / out.drafted
        if abs(rate - expected) > _PERCENT_HALF + 1e-9:
            out.violations.append(f"rate {rate:.1%} is not accepted / drafted = {expected:.1%}")


def _counts(out: Interval) -> float:
    """Return how far counts may be off: a draft cut short at the end of a request has fewer than k tokens."""
    return 1e-9 if not out.drafted or not out.draft_tokens or out.drafted % out.draft_tokens == 0 else 0.01


def _off(total: float, expected: float, count: int) -> bool:
    return abs(total - expected) > count * _POSITION_HALF + _LENGTH_HALF + 1e-9


def _reading(out: Interval) -> str | None:
    """Say what stands out in the positions."""
    positions = out.positions or ()
    if not positions:
        return None
    first, later = positions[0], positions[1:]
    if not any(positions):
        return "nothing accepted"
    if min(positions) >= _TOTAL:
        return "suspiciously total: nearly every draft token is accepted; look for repetition or garbage in the output"
    if later and not any(later):
        rarely = ", rarely" if first < _FIRST_RARE else ""
        return f"only the first position is ever accepted{rarely}"
    if later and first >= _FIRST_GOOD and later[0] < _COLLAPSE * first:
        return (
            "the first position is good, the later ones collapse: the state carried to the next draft step is suspect"
        )
    return None


@dataclass(frozen=True, slots=True)
class Cumulative:
    """vLLM V0's line: counts since the start of the server, not of an interval.

    Positions behind a rejection count as accepted there, so ``rate`` compares with nothing else; ``tokens_per_verify``
    = emitted / (drafted / k) has accept len's meaning.
    """

    rate: float | None
    efficiency: float | None
    draft_tokens: int | None
    accepted: float | None
    drafted: float | None
    emitted: float | None

    @property
    def tokens_per_verify(self) -> float | None:
        """Tokens per verify since the start, the bonus token included."""
        if not self.drafted or not self.draft_tokens or self.emitted is None:
            return None
        return self.emitted * self.draft_tokens / self.drafted


def cumulative(payload: Payload) -> Cumulative:
    """Read a ``spec_metrics_cumulative`` payload."""
    fields = payload.fields
    k = number(fields.get("speculative_tokens"))
    return Cumulative(
        rate=share(fields, "draft_acceptance_rate"),
        efficiency=share(fields, "system_efficiency"),
        draft_tokens=int(k) if k else None,
        accepted=number(fields.get("accepted")),
        drafted=number(fields.get("drafted")),
        emitted=number(fields.get("emitted")),
    )
