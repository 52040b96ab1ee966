"""Where two runs part: the first divergence, what else differs, and what could not be compared.

This module is responsible for the question itself: it keeps of both runs what is compared (passes, set-up, acceptance,
errors), has the passes aligned and compared, and words the answer. It must not know how logs are read nor how a report
is shown.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from logscope.align import align
from logscope.compare import HEAD_TOLERANCE, RTOL, Terms, compare
from logscope.diffwords import SIDES, Words, signed, state_name
from logscope.model import Accounting, Finding, ForwardPass, Place, Segment, ServerEvent, Severity
from logscope.queries.accept import Accept
from logscope.queries.arguments import NOT_PRINTED, shown
from logscope.queries.config import Config, Life, differences, settings
from logscope.queries.series import Stats
from logscope.queries.words import and_list, count
from logscope.report import Column, Item, Report, Table
from logscope.states import CAPTURE, PassStore, Tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from logscope.align import Ground
    from logscope.compare import Difference, Spot, Why
    from logscope.run import Run

# A change of the mean accept len that is worth a warning: as much as rule A103 asks for, on the lines and rounds that
# A101 needs, and beyond chance.
ACCEPT_CHANGE = 0.15
ACCEPT_LINES = 2
ACCEPT_ROUNDS = 80
ACCEPT_Z = 4.0
# Errors and warnings of a server that are compared, the ones that end it first.
ERRORS: dict[str, Severity] = {
    "traceback": "error",
    "matmul_mismatch": "error",
    "weight_shape_mismatch": "error",
    "size_mismatch": "error",
    "watchdog_timeout": "error",
    "collective_timeout": "error",
    "nan_logits_warning": "warning",
    "invalid_tree_warning": "warning",
}
# Settings that are no argument but are told by other lines, or not.
_INFERRED = frozenset({"spec_version", "draft_type", "target_type", "kv_tokens", "graphs_captured"})
# Arguments that decide how much fits and how it is scheduled, not what is computed.
_SCHEDULING = ("memory", "other")
_MOST_FINDINGS = 20
_MOST_STRAYS = 10_000
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+", re.IGNORECASE)


@dataclass(slots=True)
class Seen:
    """Something that was printed: how often, and where first."""

    place: Place
    text: str
    count: int = 0


class Side:
    """What is kept of one run while it streams by."""

    def __init__(self, tables: Tables) -> None:
        self.passes = PassStore(tables)
        self.segments: list[Segment] = []
        self.config = Config()
        self.accept = Accept()
        self.errors: dict[tuple[str, str], Seen] = {}
        self.strays: dict[tuple[Any, ...], Seen] = {}
        self.files: list[str] = []
        self.accounting = Accounting()
        self.warnings: list[str] = []

    def see(self, item: Item) -> None:
        """Take one item, in order."""
        self.config.see(item)
        self.accept.see(item)
        if isinstance(item, ForwardPass):
            self.passes.add(item)
        elif isinstance(item, Segment):
            self.segments.append(item)
        else:
            self._event(item)

    def _event(self, item: ServerEvent) -> None:
        """Count an error, and a debug record that belongs to no pass."""
        payload = item.payload
        if payload.event in ERRORS and not payload.fields.get("quoted"):
            text = _error_text(item)
            key = (payload.event, _NUMBERS.sub("#", text))
            self.errors.setdefault(key, Seen(item.place, text)).count += 1
        elif payload.kind == "event" and payload.site is not None and payload.event != "capture_plan":
            stray = (payload.event, payload.layer, payload.shape, payload.norm)
            if stray in self.strays or len(self.strays) < _MOST_STRAYS:
                self.strays.setdefault(stray, Seen(item.place, payload.event)).count += 1

    def lives(self) -> list[Life]:
        """Return the server lives whose set-up is known."""
        return [life for life in self.config.lives.values() if settings(life)]

    def known(self, name: str) -> list[int]:
        """Return the values of a number the segments say."""
        values = (getattr(segment, name) for segment in self.segments)
        return [value for value in values if isinstance(value, int)]

    def spec_versions(self) -> set[str]:
        """Return the versions of speculation the segments tell."""
        return {segment.spec_version for segment in self.segments if segment.spec_version is not None}

    def total(self) -> Stats | None:
        """Return the acceptance of all its processes together, None when none is printed."""
        total = Stats()
        for series in self.accept.series.values():
            total.merge(series.stats)
        return total if total.lines else None

    def rounds(self) -> float:
        """Return the verify rounds its acceptance lines stand for."""
        return sum(series.rounds for series in self.accept.series.values())


def _error_text(item: ServerEvent) -> str:
    """Return an error in one line."""
    fields = item.payload.fields
    if item.payload.event == "traceback":
        return ": ".join(str(fields[key]) for key in ("exception", "message") if fields.get(key))
    if item.payload.event == "matmul_mismatch":
        got, want = fields.get("got_width"), fields.get("want_width")
        return f"{got} wide where {want} is wanted ({fields.get('rows')} rows)"
    return ", ".join(f"{key} {value}" for key, value in fields.items() if not isinstance(value, (dict, list)))


class DiffReport(Report):
    """The report of a diff: a :class:`Report` that knows its first divergence."""

    @property
    def first_divergence(self) -> dict[str, Any] | None:
        """Where the runs first part, None when they do not: the fact of that name."""
        found: dict[str, Any] | None = self.facts.get("first_divergence")
        return found

    @property
    def same(self) -> bool:
        """True when nothing differs that matters; what could not be compared is in the notes."""
        return self.verdict != "findings"


def diff(
    baseline: Run | str | Path | Sequence[str | Path],
    candidate: Run | str | Path | Sequence[str | Path],
    *,
    rtol: float = RTOL,
    grammars: Iterable[str | Path] = (),
) -> DiffReport:
    """Compare two runs.

    Parameters
    ----------
    baseline, candidate
        a :class:`Run`, or what :func:`logscope.load` takes: a log, a list of logs of one run, a saved run,
        ``host:/path``. Logs are read as a stream; only numbers are kept.
    rtol
        relative tolerance of a norm.
    grammars
        further grammar files.

    Raises
    ------
    InputError, GrammarError, NothingRecognised, RemoteError
        see :mod:`logscope.errors`.
    ValueError
        a tolerance that is none.

    """
    if not 0 <= rtol < 1:
        raise ValueError(f"rtol must be at least 0 and less than 1, not {rtol}")
    tables = Tables()
    sides = Side(tables), Side(tables)
    for side, run in zip(sides, (baseline, candidate), strict=True):
        _read(side, run, grammars)
        side.passes.reunite()
    return _Answer(sides, rtol).report()


def _read(side: Side, run: Run | str | Path | Sequence[str | Path], grammars: Iterable[str | Path]) -> None:
    """Show a run's items to a side, without holding them where they come from a log."""
    from logscope import grammar  # noqa: PLC0415 - a run in memory needs no grammar
    from logscope.run import Reading, Run, items_of, load, sources_of  # noqa: PLC0415 - as above

    if not isinstance(run, Run):
        inputs = [run] if isinstance(run, (str, bytes)) or not isinstance(run, (list, tuple)) else list(run)
        sources = sources_of(inputs)
        if not any(source.saved_run for source in sources):
            reading = Reading()
            for _, item in items_of(sources, grammar.load(grammars), reading):
                side.see(item)
            side.files, side.accounting, side.warnings = reading.files, reading.accounting, reading.warnings
            return
        run = load(*inputs)
    for item in run.items:
        side.see(item)
    side.files, side.accounting, side.warnings = list(run.files), run.accounting, list(run.warnings)


class _Answer:
    """Compares two sides and puts the result into a report."""

    def __init__(self, sides: tuple[Side, Side], rtol: float) -> None:
        self.sides = sides
        self.rtol = rtol
        self.alignment = align(sides[0].passes, sides[1].passes, rtol)
        topk = [1, *sides[0].known("topk"), *sides[1].known("topk")]
        spec = sides[0].spec_versions(), sides[1].spec_versions()
        same_spec = not spec[0] or not spec[1] or spec[0] == spec[1]
        self.found = compare(self.alignment, Terms(rtol, max(topk), same_spec))
        self.words = Words(self.alignment, _hidden_size(sides))
        self.out = DiffReport("diff", "")

    def report(self) -> DiffReport:
        """Answer."""
        out = self.out
        self._differences()
        self._one_sided_phases()
        mattering = self._configuration()
        self._errors()
        self._acceptance()
        self._strays()
        self._coverage()
        for name, side in zip(SIDES, self.sides, strict=True):
            out.accounting.add(side.accounting)
            out.facts[name] = {"files": side.files, "accounting": side.accounting.as_dict()}
            out.notes += [f"{name}: {warning}" for warning in side.warnings]
        out.facts["tolerance"] = {"norm": self.rtol, "head": HEAD_TOLERANCE}
        serious = any(finding.severity != "note" for finding in out.findings)
        out.verdict = "findings" if serious else "ok" if self._anything() else "unknown"
        out.headline = self._headline(mattering)
        return out

    def _anything(self) -> bool:
        """Return whether passes were compared; without any, whether both runs hold what else is compared, or nothing."""
        if any(len(side.passes) for side in self.sides):
            return bool(self.found.paired)
        known = [bool(side.lives() or side.total() or side.errors) for side in self.sides]
        return known[0] == known[1]

    def _headline(self, mattering: list[str]) -> str:
        """Return the answer in one sentence: the first divergence, else the configuration, else what agrees."""
        first = self.found.differences[0] if self.found.differences else None
        agree = self._agreement()
        if first is not None:
            other = f"; {count(len(mattering), 'argument')} differ too: {', '.join(mattering[:3])}" if mattering else ""
            return f"first divergence: {self.words.clause(first)}; {self.words.before(first)}{other}"
        if mattering:
            more = f" and {len(mattering) - 4} more" if len(mattering) > 4 else ""
            return f"the configuration differs: {', '.join(mattering[:4])}{more}; {agree}"
        if self.out.verdict == "findings":
            return f"{self.out.findings[0].message}; {agree}"
        if self.out.verdict == "unknown":
            return f"nothing could be compared: {agree}"
        return f"same: {agree}"

    def _agreement(self) -> str:
        """Say how many passes were compared, and that they agree."""
        role = self.alignment.role
        pairs = sum(number for (who, _), number in self.found.paired.items() if who == role)
        equal = sum(number for (who, _), number in self.found.identical.items() if who == role)
        totals = [sum(self.facts_of(side, role).values()) for side in (0, 1)]
        if role is None:
            return "no forward passes that both print"
        if not pairs:
            return f"no {role} pass of one run could be found in the other"
        whole = totals[0] if totals[0] == totals[1] else f"{totals[0]} and {totals[1]}"
        verb = "agree" if not self.found.differences else "could be compared"
        return f"{pairs} of {whole} {role} passes {verb}, {equal} of them identical"

    def facts_of(self, side: int, role: str | None) -> Counter[str]:
        """Count the passes of a role by phase, without the dummies of graph capture."""
        store = self.sides[side].passes
        kinds = map(store.kind, range(len(store)))
        return Counter(kind.phase for kind in kinds if kind.role == role and kind.during != "graph_capture")

    # passes

    def _differences(self) -> None:
        """Add a finding and a row for every difference, the first one first, and the first divergence as a fact."""
        out, found = self.out, self.found.differences
        out.facts["first_divergence"] = self._fact(found[0]) if found else None
        out.findings += self.words.findings(found, _MOST_FINDINGS)
        for fragment in self.found.fragments[:_MOST_FINDINGS]:
            spot = fragment.spot
            message = (
                f"only the {SIDES[fragment.side]} has {fragment.phase} pass {spot.ordinal} of the {fragment.role}, and "
                "only a part of it: a record printed once more, or cut off from its pass"
            )
            out.findings.append(Finding("D103", "warning", message, Place(spot.file, spot.line)))
        left = max(0, len(found) - _MOST_FINDINGS) + max(0, len(self.found.fragments) - _MOST_FINDINGS)
        if left:
            out.notes.append(f"{count(left, 'further difference')} of single passes are not among the findings")
        rows = [
            {
                "role": difference.role,
                "phase": difference.phase,
                "state": state_name(difference.role, difference.slot),
                "what": difference.what,
                "passes": difference.count,
                "baseline": self.words.value(difference, 0),
                "candidate": self.words.value(difference, 1),
                "difference": signed(difference.relative),
                "largest": signed(difference.largest),
                "baseline_at": _at(difference.sides[0]),
                "candidate_at": _at(difference.sides[1]),
            }
            for difference in found
        ]
        self._table(
            "differences",
            rows,
            [
                Column("role"),
                Column("phase", always=True),
                Column("state", always=True),
                Column("what"),
                Column("passes", align="right"),
                Column("baseline", always=True),
                Column("candidate", always=True),
                Column("difference", align="right", always=True),
                Column("largest", align="right"),
                Column("baseline_at", "baseline at"),
                Column("candidate_at", "candidate at"),
            ],
            "differences, each at its first place, in the order of the runs",
        )
        self._states()

    def _fact(self, difference: Difference) -> dict[str, Any]:
        """Return a difference as plain values."""
        sides = {
            name: {
                "file": spot.file,
                "line": spot.line or None,
                "pass": spot.number,
                "ordinal": spot.ordinal,
                "rows": rows,
                "value": spot.value,
            }
            for name, spot, rows in zip(SIDES, difference.sides, difference.rows, strict=True)
        }
        return {
            "what": difference.what,
            "role": difference.role,
            "phase": difference.phase,
            "during": difference.during,
            "state": state_name(difference.role, difference.slot),
            "layer": difference.slot.layer,
            **sides,
            "relative": difference.relative,
            "largest": difference.largest,
            "passes": difference.count,
            "identical_before": difference.equal_before,
            "agreeing_before": difference.agreeing_before,
            "agreeing_states": [state_name(difference.role, slot) for slot in difference.agreeing],
            "same_head": difference.same_head,
            "pieces": list(difference.pieces),
            "ground": difference.ground,
            "sentence": self.words.clause(difference),
        }

    def _states(self) -> None:
        """Add the table of states: pairs, and how they came out."""
        rows = []
        cells = self.found.cells.items()
        for (role, phase, slot), cell in sorted(
            cells, key=lambda item: (_PLACES[item[0][0]], item[0][1], item[0][2].order)
        ):
            if not cell.pairs and not cell.not_compared and not any(cell.only):
                continue
            rows.append(
                {
                    "role": role,
                    "phase": phase,
                    "state": state_name(role, slot),
                    "pairs": cell.pairs,
                    "equal": cell.equal,
                    "within": cell.within,
                    "beyond": cell.beyond,
                    "largest": signed(cell.largest),
                    "largest_at": "{}, {}".format(*cell.largest_lines) if cell.largest and cell.largest_lines else None,
                    "only_baseline": cell.only[0],
                    "only_candidate": cell.only[1],
                    "not_compared": cell.not_compared,
                }
            )
        self._table(
            "states",
            rows,
            [
                Column("role"),
                Column("phase", always=True),
                Column("state", always=True),
                Column("pairs", align="right", always=True),
                Column("equal", align="right", always=True),
                Column("within", align="right"),
                Column("beyond", align="right", always=True),
                Column("largest", align="right", always=True),
                Column("largest_at", "at lines"),
                Column("only_baseline", "only baseline", align="right"),
                Column("only_candidate", "only candidate", align="right"),
                Column("not_compared", "not compared", align="right"),
            ],
            "states of paired passes",
            f"equal: at the coarser print; within: norms to {100 * self.rtol:.3g} %, first values to "
            f"{HEAD_TOLERANCE:g} of their length",
        )

    def _one_sided_phases(self) -> None:
        """Say which phases only one run prints: hidden by CUDA graphs, never reached, or a difference."""
        store_phases = [{role: self.facts_of(side, role) for role in _PLACES} for side in (0, 1)]
        for role in _PLACES:
            counts = [phases[role] for phases in store_phases]
            if not counts[0] or not counts[1]:
                for name, phases in zip(SIDES, counts, strict=True):
                    if phases:
                        number = count(sum(phases.values()), "pass")
                        self.out.notes.append(f"only the {name} prints {number} of the {role}: not compared")
                continue
            for side in (0, 1):
                for phase in sorted(counts[side].keys() - counts[1 - side].keys() - {"unknown"}):
                    self._one_sided(side, role, phase, counts[side][phase])

    def _one_sided(self, side: int, role: str, phase: str, number: int) -> None:
        """Keep one phase that only one run prints."""
        has, lacks = SIDES[side], SIDES[1 - side]
        message = f"only the {has} prints {phase} passes of the {role} ({number:,})"
        if any(segment.graphs_captured for segment in self.sides[1 - side].segments):
            self.out.notes.append(f"{message}: the {lacks} replays CUDA graphs, which hide them")
            return
        later = {"verify": "draft_extend", "draft_extend": "verify", "decode": "verify"}.get(phase)
        reached = later is not None and any(self.facts_of(1 - side, other)[later] for other in _PLACES)
        if not reached:
            self.out.notes.append(f"{message}: the {lacks} prints nothing that comes after them either")
            return
        store = self.sides[side].passes
        first = next(
            index
            for index in range(len(store))
            if store.kind(index)[:2] == (role, phase) and store.kind(index).during != "graph_capture"
        )
        place = Place(store.kind(first).file, store.first_line(first))
        self.out.findings.append(
            Finding("D102", "warning", f"{message}, though the {lacks} prints {later} passes", place)
        )

    def _coverage(self) -> None:
        """Say how many passes were compared, which were not and why, and which only one run has."""
        found, out = self.found, self.out
        paired: dict[str, Any] = {}
        for role in _PLACES:
            totals = [sum(self.facts_of(side, role).values()) for side in (0, 1)]
            if any(totals):
                grounds = {ground: number for (who, ground), number in found.paired.items() if who == role}
                paired[role] = {"baseline": totals[0], "candidate": totals[1]}
                if role == self.alignment.role:
                    paired[role] |= {
                        "pairs": sum(grounds.values()),
                        "by_ground": grounds,
                        "identical": {
                            ground: number for (who, ground), number in found.identical.items() if who == role
                        },
                        "moved": found.moved,
                    }
                else:
                    paired[role] |= {"pairs": found.drafts, "identical": found.identical_drafts}
        out.facts["passes"] = paired
        self._apart()
        self._alone()
        left_out = [self.alignment.baseline.left_out, self.alignment.candidate.left_out]
        if any(left_out):
            out.notes.append(f"dummy passes of graph capture are not compared ({left_out[0]} and {left_out[1]})")
        out.notes += self._grounds()
        if found.moved:
            out.notes.append(f"{count(found.moved, 'pass')} of the candidate stand in another order")
        rounded = [side.passes.rounded or side.passes.derived for side in self.sides]
        if any(rounded):
            coarser = "both runs print" if all(rounded) else f"the {SIDES[rounded.index(True)]} prints"
            out.notes.append(f"{coarser} rounded or derived values: everything is compared at the coarser print")
        if self.alignment.merged and all(map(len, (self.alignment.baseline, self.alignment.candidate))):
            out.notes.append("the runs have different numbers of schedulers or server lives: their passes are pooled")

    def _grounds(self) -> Iterator[str]:
        """Say on what ground passes were paired, and how those pairs came out, where there is more than one ground."""
        role = self.alignment.role
        numbers = {ground: number for (who, ground), number in self.found.paired.items() if who == role}
        if role is None or set(numbers) <= {"state"}:
            return
        for ground, words in _PAIRED.items():
            number = numbers.get(ground, 0)
            equal = self.found.identical[role, ground]
            if number:
                outcome = "all identical" if equal == number else f"{equal} of them identical"
                yield f"{count(number, f'{role} pass', f'{role} passes')} {words}: {outcome}"

    def _apart(self) -> None:
        """Add the passes that were not comparable, by reason."""
        keys = sorted({key[1:] for key in self.found.apart}, key=lambda key: (_PLACES[key[0]], key[1], key[2]))
        rows = [
            {
                "role": role,
                "phase": phase,
                "reason": _REASONS[why],
                "baseline": self.found.apart[0, role, phase, why],
                "candidate": self.found.apart[1, role, phase, why],
            }
            for role, phase, why in keys
        ]
        self.out.facts["not_comparable"] = [{**row, "reason": why} for row, (_, _, why) in zip(rows, keys, strict=True)]
        columns = [Column("role"), Column("phase", always=True), Column("reason", always=True)]
        columns += [Column(name, align="right", always=True) for name in SIDES]
        self._table("not_comparable", rows, columns, "passes that are not comparable, and why")

    def _alone(self) -> None:
        """Add the passes that only one run has."""
        rows = []
        for key, (number, first) in sorted(
            self.found.alone.items(), key=lambda item: (item[0][0], item[0][3], item[1][1].line)
        ):
            rows.append(
                {
                    "only_in": SIDES[key.side],
                    "role": key.role,
                    "phase": key.phase,
                    "passes": number,
                    "where": "behind the last pair" if key.at_end else "between pairs",
                    "first": _at(first),
                }
            )
        self.out.facts["only_in"] = {
            name: sum(number for key, (number, _) in self.found.alone.items() if key.side == side)
            for side, name in enumerate(SIDES)
        }
        for side, name in enumerate(SIDES):
            total = sum(number for key, (number, _) in self.found.alone.items() if key.side == side)
            ends = sum(number for key, (number, _) in self.found.alone.items() if key.side == side and key.at_end)
            if total:
                where = (
                    " at its end: the other workload was shorter" if ends == total else f", {ends} of them at its end"
                )
                self.out.notes.append(f"only in {name}: {count(total, 'pass')}{where}")
        columns = [Column("only_in", "only in", always=True), Column("role"), Column("phase", always=True)]
        columns += [Column("passes", align="right", always=True), Column("where"), Column("first")]
        self._table("only_in", rows, columns, "passes that only one run has")

    def _strays(self) -> None:
        """Add debug records outside of any pass that the runs print differently often."""
        strays = [side.strays for side in self.sides]
        for key in {**strays[0], **strays[1]}:
            numbers = [found[key].count if key in found else 0 for found in strays]
            if numbers[0] != numbers[1]:
                more = 0 if numbers[0] > numbers[1] else 1
                self.out.findings.append(
                    Finding(
                        "D103",
                        "warning",
                        f"{key[0]} stands outside of any pass {count(numbers[0], 'time')} in the baseline, "
                        f"{count(numbers[1], 'time')} in the candidate",
                        strays[more][key].place,
                    )
                )

    # set-up, errors, acceptance

    def _configuration(self) -> list[str]:
        """Add what differs in the set-up; return what of it decides about states and acceptance, in words."""
        lives = [side.lives() for side in self.sides]
        if not lives[0] or not lives[1]:
            lacking = [f"the {name} prints none" for name, known in zip(SIDES, lives, strict=True) if not known]
            self.out.notes.append(f"server arguments are not compared: {and_list(lacking)}")
            return []
        several = len(lives[0]) == len(lives[1]) > 1
        if len(lives[0]) != len(lives[1]):
            numbers = " and ".join(str(len(known)) for known in lives)
            self.out.notes.append(f"the runs hold {numbers} server lives: the set-up of the first of each is compared")
        rows, mattering = [], []
        for one, other in zip(lives[0] if several else lives[0][:1], lives[1], strict=False):
            for found in differences(settings(one), settings(other)):
                reason = found.reason
                if reason is None and found.key in _INFERRED and NOT_PRINTED in (found.a, found.b):
                    reason = "not told by one of the logs"
                elif reason is None and found.group in _SCHEDULING:
                    reason = "decides what fits and when, not what is computed"
                matters = reason is None
                values = shown(found.key, found.a), shown(found.key, found.b)
                rows.append(
                    {
                        "argument": found.key,
                        "baseline": values[0],
                        "candidate": values[1],
                        "matters": matters,
                        "reason": reason,
                        "segment": one.segment.number,
                    }
                )
                if matters:
                    mattering.append(f"{found.key} {values[0]} -> {values[1]}")
                    self.out.findings.append(
                        Finding(
                            "D101",
                            "warning",
                            f"{found.key} differs: {values[0]} against {values[1]}",
                            other.place,
                            values[0],
                            values[1],
                            f"baseline {one.place}",
                        )
                    )
        self.out.facts["configuration"] = [row["argument"] for row in rows if row["matters"]]
        columns = [Column("argument", always=True), Column("baseline", always=True), Column("candidate", always=True)]
        columns += [Column("matters"), Column("reason", "why not")]
        self._table("configuration", rows, columns, "configuration: what differs, what matters first")
        return mattering

    def _errors(self) -> None:
        """Add errors that only one run prints: the first of a run as a finding, all in the table."""
        rows = []
        for side, name in enumerate(SIDES):
            mine, theirs = self.sides[side].errors, self.sides[1 - side].errors
            alone = [(key[0], seen) for key, seen in mine.items() if key not in theirs]
            rows += [
                {"only_in": name, "event": event, "message": seen.text, "times": seen.count, "first": str(seen.place)}
                for event, seen in alone
            ]
            if alone:
                event, seen = alone[0]
                more = f" (and {count(len(alone) - 1, 'further message')})" if len(alone) > 1 else ""
                severity = min((ERRORS[event] for event, _ in alone), key=("error", "warning", "note").index)
                message = f"only the {name} prints {event.replace('_', ' ')}: {seen.text}{more}"
                self.out.findings.append(Finding("D105", severity, message, seen.place))
        columns = [
            Column("only_in", "only in", always=True),
            Column("event", always=True),
            Column("message", always=True),
        ]
        columns += [Column("times", align="right"), Column("first")]
        self._table("errors", rows, columns, "errors that only one run prints")

    def _acceptance(self) -> None:
        """Compare accept len and, where both follow one definition, accept rate."""
        totals = [side.total() for side in self.sides]
        rows = [row for name, side in zip(SIDES, self.sides, strict=True) for row in _accept_rows(name, side)]
        columns = [Column("side", always=True), Column("process"), Column("lines", align="right")]
        columns += [Column("accept_len_mean", "accept len", align="right", always=True)]
        columns += [Column(name, align="right") for name in ("min", "max")]
        columns += [Column("accept_rate_mean", "accept rate", align="right"), Column("definition"), Column("rule")]
        columns += [Column("running", align="right"), Column("tokens_per_second", "token/s", align="right")]
        self._table("acceptance", rows, columns, "acceptance and throughput, one row per process and all together")
        if totals[0] is None or totals[1] is None:
            lacking = [name for name, total in zip(SIDES, totals, strict=True) if total is None]
            if len(lacking) == 1:
                self.out.notes.append(f"acceptance is not compared: the {lacking[0]} prints none")
            return
        self.out.facts["acceptance"] = fact = {
            name: {key: row[key] for key in ("lines", "accept_len_mean", "accept_rate_mean", "definition", "running")}
            for name in SIDES
            for row in rows
            if row["side"] == name and row["process"] == _ALL
        }
        self._accept_change((totals[0], totals[1]), fact)
        self._definitions(fact)

    def _accept_change(self, totals: tuple[Stats, Stats], fact: dict[str, Any]) -> None:
        """Judge a change of the mean accept len."""
        means = totals[0].mean or 0.0, totals[1].mean or 0.0
        if not means[0]:
            return
        change = fact["change"] = (means[1] - means[0]) / means[0]
        rounds = [side.rounds() for side in self.sides]
        enough = min(total.lines for total in totals) >= ACCEPT_LINES and min(rounds) >= ACCEPT_ROUNDS
        z = _z(totals)
        text = f"accept len {means[0]:.2f} -> {means[1]:.2f} ({100 * change:+.0f} %)"
        lines = f"{count(totals[0].lines, 'line')} against {count(totals[1].lines, 'line')}"
        # Relative to the larger mean, so that a rise and the same fall weigh alike.
        large = abs(means[1] - means[0]) >= ACCEPT_CHANGE * max(means)
        fact["evidence"] = "strong" if enough and z > ACCEPT_Z else "weak"
        if not large:
            return
        place = self._accept_place()
        if fact["evidence"] == "strong":
            spread = _spread(self.sides)
            self.out.findings.append(Finding("D104", "warning", text, place, evidence=f"{lines}{spread}"))
        else:
            message = f"{text}: weak evidence, {lines} of the log"
            self.out.findings.append(Finding("D104", "note", message, place))

    def _accept_place(self) -> Place | None:
        """Return the candidate's first acceptance line."""
        firsts = [(key.file, series.stats.first_line) for key, series in self.sides[1].accept.series.items()]
        return Place(*firsts[0]) if firsts else None

    def _definitions(self, fact: dict[str, Any]) -> None:
        """Say whether the printed rates may be compared."""
        rules = [_definition(side) for side in self.sides]
        fact["rates_comparable"] = rules[0] == rules[1] and rules[0] is not None and rules[0][0] != "ambiguous"
        if rules[0] == rules[1] or None in rules:
            return
        one, other = (f"{rule[1]} ({rule[0]})" if rule is not None else "" for rule in rules)
        message = f"accept rates are not compared: the baseline's follow {one}, the candidate's {other}"
        self.out.findings.append(Finding("A104", "note", message, self._accept_place()))

    def _table(
        self, name: str, rows: list[dict[str, Any]], columns: list[Column], title: str, caption: str | None = None
    ) -> None:
        """Add a table when it has rows; columns that are empty throughout are not shown."""
        if rows:
            kept = [column for column in columns if column.always or any(row.get(column.name) for row in rows)]
            self.out.tables[name] = Table(kept, rows, title, caption)


_PLACES = {"target": 0, "draft": 1}
_ALL = "all"
_PAIRED: dict[Ground, str] = {
    "state": "with the same lowest state",
    "other": "known by another state",
    "near": "whose lowest states agree up to bf16 noise",
    "order": "with equal rows and norms and another head (row order, no difference)",
    "pieces": "of the baseline cut differently",
    "follows": "with another lowest state after an identical round",
    "first": "with another lowest state at the same place of the first prefills",
    "place": "known by their place alone, because no lowest state is printed whole",
}
_REASONS: dict[Why, str] = {
    "rows": "other rows: another batch, other accepted tokens, or other settings",
    "state": "the lowest common state differs: another input",
    "layers": "no layer in common",
    "context": "only the embedding agrees, and the passes before it do not: another context",
    "joined": "its target pass joins other states, or states that already differ",
    "draft": "the draft's own state before it differs or is not comparable",
    "pieces": "the prefill was cut differently",
    "spec": "other versions of speculation keep other rows",
}


def _at(spot: Spot) -> str:
    return f"{spot.file}:{spot.line}" if spot.line else "not printed"


def _hidden_size(sides: Iterable[Side]) -> int | None:
    """Return the width of a captured state, where both runs have the same."""
    widths = set()
    for side in sides:
        store = side.passes
        for index in range(len(store)):
            found = [store.shape(record) for record in store.records(index) if store.slot_of(record).event == CAPTURE]
            if found and found[0]:
                widths.add(found[0][-1])
                break
    return widths.pop() if len(widths) == 1 else None


def _accept_rows(name: str, side: Side) -> Iterator[dict[str, Any]]:
    """Yield one row per process that prints acceptance, and one for all when there are several."""
    total = side.total()
    if total is None:
        return
    rule = _definition(side)
    parts = [(key.origin or key.server or "", series.stats) for key, series in side.accept.series.items()]
    running = 0.0
    rows = []
    for process, stats in parts:
        mean = stats.running[0] / stats.running[1] if stats.running[1] else None
        running += mean or 0.0
        rows.append(_accept_row(name, process, stats, mean, rule))
    # Requests running at one moment: the processes' means together, not the sum over lines.
    yield _accept_row(name, _ALL, total, running or None, rule)
    if len(parts) > 1:
        yield from rows


def _accept_row(
    name: str, process: str, stats: Stats, running: float | None, rule: tuple[str, str] | None
) -> dict[str, Any]:
    lengths = sorted(stats.histogram)
    speed = stats.speed()
    return {
        "side": name,
        "process": process,
        "lines": stats.lines,
        "accept_len_mean": _rounded(stats.mean),
        "min": lengths[0] if lengths else None,
        "max": lengths[-1] if lengths else None,
        "accept_rate_mean": _rounded(stats.rate_mean) if rule is not None else None,
        "definition": rule[0] if rule is not None else None,
        "rule": rule[1] if rule is not None else None,
        "running": _rounded(running),
        "tokens_per_second": None if speed is None else round(speed.mean, 1),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _definition(side: Side) -> tuple[str, str] | None:
    """Return the one definition of accept rate a run follows, None when it prints no rate, ``mixed`` for several."""
    found = {
        (verdict.definition, verdict.rule) for server in side.accept.rates for verdict in side.accept.verdicts(server)
    }
    if len(found) > 1:
        return ("mixed", "several definitions")
    return found.pop() if found else None


def _z(totals: tuple[Stats, Stats]) -> float:
    """Return how many standard errors the mean accept lens of two sides lie apart, line by line."""
    parts = []
    for total in totals:
        mean = sum(value * number for value, number in total.histogram.items()) / total.lines
        square = sum(number * (value - mean) ** 2 for value, number in total.histogram.items())
        parts.append((mean, square / (total.lines - 1) / total.lines if total.lines > 1 else math.inf))
    apart = abs(parts[0][0] - parts[1][0])
    error = math.sqrt(parts[0][1] + parts[1][1])
    return apart / error if error else math.inf if apart else 0.0


def _spread(sides: Iterable[Side]) -> str:
    """Say whether all processes of a side accept alike."""
    words = []
    for name, side in zip(SIDES, sides, strict=True):
        means = [series.stats.mean for series in side.accept.series.values() if series.stats.mean is not None]
        if len(means) > 1:
            words.append(
                f"{name}: {min(means):.4g} to {max(means):.4g} over {count(len(means), 'process', 'processes')}"
            )
    return f"; {'; '.join(words)}" if words else ""


class _Callable(ModuleType):
    """A module that can be called: ``logscope.diff(...)`` works though importing it binds that name to the module."""

    def __call__(self, *args: Any, **options: Any) -> DiffReport:
        """Compare two runs."""
        return diff(*args, **options)


sys.modules[__name__].__class__ = _Callable
