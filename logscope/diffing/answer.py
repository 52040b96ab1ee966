"""Where two runs part: the first divergence, what else differs, and what could not be compared.

This module is responsible for the question itself: it has both runs read, their passes aligned and compared, and puts
the answer together. It must not know how passes are recognised or judged, nor how a report is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logscope.diffing.align import align
from logscope.diffing.compare import HEAD_TOLERANCE, RTOL, Terms, compare
from logscope.diffing.server import Servers, add_table
from logscope.diffing.side import Side
from logscope.diffing.states import CAPTURE, Tables
from logscope.diffing.words import SIDES, Words, signed, state_name
from logscope.model import Finding, Place
from logscope.queries.words import count
from logscope.report import Column, Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from logscope.diffing.align import Ground
    from logscope.diffing.compare import Difference, Spot, Why
    from logscope.run import Run

_MOST_FINDINGS = 20


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
    from logscope.reading import Reading, batches, sources_of  # noqa: PLC0415 - as above
    from logscope.run import Run, load  # noqa: PLC0415 - as above

    if not isinstance(run, Run):
        inputs = [run] if isinstance(run, (str, bytes)) or not isinstance(run, (list, tuple)) else list(run)
        sources = sources_of(inputs)
        if not any(source.saved_run for source in sources):
            reading = Reading()
            known: set[int] = set()
            for tables in batches(sources, grammar.load(grammars), reading):
                for item in tables.items(copies=False, known=known):
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
        servers = Servers(self.sides, out)
        mattering = servers.configuration()
        servers.errors()
        servers.acceptance()
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
        """Return whether passes were compared; without any, whether both runs hold anything else, or neither."""
        if any(len(side.passes) for side in self.sides):
            return bool(self.found.paired)
        known = [bool(side.lives() or side.total() or side.errors) for side in self.sides]
        return known[0] == known[1]

    def _headline(self, mattering: list[str]) -> str:
        """Return the answer in one sentence: the first divergence, else the configuration, else what agrees."""
        first = self.found.differences[0] if self.found.differences else None
        agree = self._agreement()
        if first is not None:
            verb = "differs" if len(mattering) == 1 else "differ"
            other = f"; {count(len(mattering), 'argument')} {verb} too: {', '.join(mattering[:3])}" if mattering else ""
            return f"first divergence: {self.words.clause(first)}; {self.words.before(first)}{other}"
        if mattering:
            more = f" and {len(mattering) - 4} more" if len(mattering) > 4 else ""
            accept = [f"{finding.message}; " for finding in self.out.findings if finding.rule == "D104"]
            return f"the configuration differs: {', '.join(mattering[:4])}{more}; {''.join(accept)}{agree}"
        if self.out.verdict == "findings":
            return f"{self.out.findings[0].message}; {agree}"
        if self.out.verdict == "unknown":
            return f"nothing could be compared: {agree}"
        return f"{'same' if self._mostly_paired() else 'no difference in what can be compared'}: {agree}"

    def _mostly_paired(self) -> bool:
        """Return whether at least half of the shorter run's leading passes were compared, or there are none."""
        role = self.alignment.role
        totals = self._totals(role)
        pairs = sum(number for (who, _), number in self.found.paired.items() if who == role)
        return role is None or 2 * pairs >= min(totals)

    def _agreement(self) -> str:
        """Say how many passes were compared, and that they agree."""
        role = self.alignment.role
        pairs = sum(number for (who, _), number in self.found.paired.items() if who == role)
        equal = sum(number for (who, _), number in self.found.identical.items() if who == role)
        totals = self._totals(role)
        if role is None:
            return "no forward passes that both print"
        if not pairs:
            return f"no {role} pass of one run could be found in the other"
        whole = totals[0] if totals[0] == totals[1] else f"{totals[0]} and {totals[1]}"
        verb = "agree" if not self.found.differences else "could be compared"
        return f"{pairs} of {whole} {role} passes {verb}, {equal} of them identical"

    def _totals(self, role: str | None) -> list[int]:
        """Return how many passes of a role either run prints."""
        return [side.passes.phases(role).total() for side in self.sides]

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
        add_table(
            out,
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
            "last_agreeing": None
            if difference.previous is None
            else dict(zip(SIDES, map(_at, difference.previous), strict=True)),
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
        add_table(
            self.out,
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
        store_phases = [{role: self.sides[side].passes.phases(role) for role in _PLACES} for side in (0, 1)]
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
        numbers = [(phases["target"]["verify"], phases["draft"]["draft_extend"]) for phases in store_phases]
        for side in (0, 1):
            self._fewer(side, *numbers[side], *numbers[1 - side])

    def _fewer(self, lacks: int, has: int, rounds: int, all_: int, all_rounds: int) -> None:
        """Say that one run prints hardly any verify beside the draft_extend that follows each; the other does.

        ``has`` and ``all_`` are the verifies of either run, ``rounds`` and ``all_rounds`` its draft_extends.
        """
        if not has or rounds < _LEAST_ROUNDS or 2 * has > rounds or 10 * all_ < 9 * all_rounds or not all_rounds:
            return
        if any(segment.graphs_captured for side in self.sides for segment in side.segments):
            return
        store = self.sides[lacks].passes
        last = max(index for index in range(len(store)) if store.kind(index)[:2] == ("target", "verify"))
        place = Place(store.kind(last).file, store.first_line(last))
        name, other = SIDES[lacks], SIDES[1 - lacks]
        message = (
            f"the {name} prints only {count(has, 'verify pass')} of the target beside {rounds:,} draft_extend passes of"
            f" the draft, the {other} {all_:,} beside {all_rounds:,}"
        )
        evidence = f"the last one of the {name} stands at {place}; no CUDA graph hides the others"
        self.out.findings.append(Finding("D102", "warning", message, place, evidence=evidence))

    def _one_sided(self, side: int, role: str, phase: str, number: int) -> None:
        """Keep one phase that only one run prints."""
        has, lacks = SIDES[side], SIDES[1 - side]
        message = f"only the {has} prints {phase} passes of the {role} ({number:,})"
        if any(segment.graphs_captured for segment in self.sides[1 - side].segments):
            self.out.notes.append(f"{message}: the {lacks} replays CUDA graphs, which hide them")
            return
        later = {"verify": "draft_extend", "draft_extend": "verify", "decode": "verify"}.get(phase)
        reached = later is not None and any(self.sides[1 - side].passes.phases(other)[later] for other in _PLACES)
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
            totals = self._totals(role)
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
        add_table(self.out, "not_comparable", rows, columns, "passes that are not comparable, and why")

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
        add_table(self.out, "only_in", rows, columns, "passes that only one run has")

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


_PLACES = {"target": 0, "draft": 1}
# Rounds of which at least half lack a pass that the other run prints, before that is a difference.
_LEAST_ROUNDS = 8
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
