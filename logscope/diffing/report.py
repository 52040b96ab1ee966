"""Where two runs part: the first divergence, what else differs, and what could not be compared.

This module is responsible for the question itself: it has both runs read, aligned and compared, and says in words what
differs, where, what agrees before it, and what it may mean. It must not know how passes are recognised or judged, nor
how a report is shown.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import polars as pl

from logscope.diffing import CODES, server
from logscope.diffing.align import CAPTURE, JOIN, READ, Side, Slot, align, is_capture
from logscope.diffing.compare import HEAD_TOLERANCE, RTOL, VALUES, Terms, compare
from logscope.diffing.server import SIDES, add_table
from logscope.errors import UsageError
from logscope.model import Finding, Place, Severity
from logscope.queries.words import and_list, axes, count, layer_list, layer_name
from logscope.report import Context, Line, Report

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from logscope.diffing.compare import Difference
    from logscope.run import Input, Run

# The rule a difference is reported under, and how grave it is.
RULES: dict[str, tuple[str, Severity]] = {
    "norm": ("N201", "warning"), "head": ("N201", "warning"), "not_finite": ("N201", "error"),
    "captures": ("D102", "error"), "joined": ("D102", "error"), "shape": ("D102", "error"), "mode": ("D102", "error"),
    "record": ("D103", "warning"), "copies": ("D103", "warning"), "rank": ("D103", "warning"),
}  # fmt: skip
GROUNDS = {
    "state": "the same pass: rows and lowest common state agree",
    "other": "the same pass: another of its states agrees in norm and first values",
    "near": "the same pass by all that is printed: its lowest state agrees up to bf16 noise",
    "order": "the same pass with its rows in another order: rows and norms agree, first values do not",
    "pieces": "one prefill cut differently: rows add up, norms add in quadrature, the first values agree",
    "follows": "the same input: everything printed in the round before is equal in both runs",
    "place": "the same rows in the same place; no lowest state is printed whole on both sides",
    "first": "the same input: the first prefills of both runs have the same rows in the same order",
    None: "first passes of both runs, which are no pair",
}
_PAIRED = {
    "state": "with the same lowest state",
    "other": "known by another state",
    "near": "whose lowest states agree up to bf16 noise",
    "order": "with equal rows and norms and another head (row order, no difference)",
    "pieces": "of the baseline cut differently",
    "follows": "with another lowest state after an identical round",
    "first": "with another lowest state at the same place of the first prefills",
    "place": "known by their place alone, because no lowest state is printed whole",
}
_REASONS = {
    "rows": "other rows: another batch, other accepted tokens, or other settings",
    "state": "the lowest common state differs: another input",
    "layers": "no layer in common",
    "context": "only the embedding agrees, and the passes before it do not: another context",
    "joined": "its target pass joins other states, or states that already differ",
    "draft": "the draft's own state before it differs or is not comparable",
    "pieces": "the prefill was cut differently",
    "spec": "other versions of speculation keep other rows",
}
_NAMES = {"N201": "drift", "A104": "rate-definition", **{code: name for code, (name, _) in CODES.items()}}
_ROLES = ("target", "draft")
_MOST_FINDINGS = 20
# Rounds of which at least half lack a pass that the other run prints, before that is a difference.
_LEAST_ROUNDS = 8
# First values whose ratios spread less than this are one vector, scaled: two roundings of bf16 and a little.
_PROPORTIONAL = 0.03
# rms over the captured layers: alike, and growing, as the residual stream of a decoder does.
_LEVEL, _GROWING = 1.1, 1.5
_NOT_INPUT = "not another input but another state"


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
        return self.verdict == "ok"


def diff(
    baseline: Run | Input | Sequence[Input],
    candidate: Run | Input | Sequence[Input],
    *,
    rtol: float = RTOL,
    grammars: Iterable[str | os.PathLike[str]] = (),
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

    Returns
    -------
    DiffReport
        verdict ``unknown`` where nothing could be compared.

    Raises
    ------
    InputError, GrammarError, NothingRecognised, RemoteError
        see :mod:`logscope.errors`.
    UsageError
        a tolerance that is none.

    """
    if not 0 <= rtol < 1:
        raise UsageError(f"'{rtol:g}' is no tolerance", help="it is a share of the norm, from 0 to less than 1: 0.001")
    return _Answer([_read(run, grammars) for run in (baseline, candidate)], rtol).report()


def _read(
    run: Run | Input | Sequence[Input], grammars: Iterable[str | os.PathLike[str]]
) -> tuple[Side, server.Answers, Context]:
    """Read a run batch by batch; keep what is compared."""
    from logscope import grammar  # noqa: PLC0415 - a run in memory needs no grammar
    from logscope.reading import Reading, batches, sources_of  # noqa: PLC0415
    from logscope.run import Run, load  # noqa: PLC0415

    reading = Reading()
    if not isinstance(run, Run):
        sources = sources_of([run] if not isinstance(run, (list, tuple)) else run)
        run = load(sources[0].name) if any(source.saved_run for source in sources) else run
    if isinstance(run, Run):
        reading, found = run.reading, iter([run.tables])
    else:
        found = batches(sources, grammar.load(grammars), reading)
    side, asked = Side(), server.Asking()
    for tables in found:
        side.add(tables)
        asked.add(tables)
    side.settle()
    context = reading.context()
    return side, asked.answers(context), context


class _Answer:
    """Compares two sides and puts the result into a report."""

    def __init__(self, read: Sequence[tuple[Side, server.Answers, Context]], rtol: float) -> None:
        self.sides = read[0][0], read[1][0]
        self.answers = read[0][1], read[1][1]
        self.contexts = [context for *_, context in read]
        self.rtol = rtol
        # Before compare adds passes of its own.
        self.phases = [{role: side.phases(role) for role in _ROLES} for side in self.sides]
        self.alignment = align(self.sides, rtol)
        topk, specs = (
            [{getattr(segment, name) for segment in side.segments} - {None} for side in self.sides]
            for name in ("topk", "spec_version")
        )
        same_spec = not specs[0] or not specs[1] or specs[0] == specs[1]
        self.found = compare(self.sides, self.alignment, Terms(rtol, max({1, *topk[0], *topk[1]}), same_spec))
        self.hidden = _hidden(self.sides)
        self.out = DiffReport("diff", "")
        self.shown: list[Difference] = []

    def report(self) -> DiffReport:
        """Answer."""
        out = self.out
        self._differences()
        self._states()
        self._one_sided_phases()
        mattering = server.configuration(self.answers, out)
        server.errors(self.answers, out)
        server.acceptance(self.answers, out)
        server.strays(self.answers, out)
        self._coverage()
        for name, context in zip(SIDES, self.contexts, strict=True):
            out.accounting.add(context.accounting)
            out.facts[name] = {"files": context.files, "accounting": context.accounting.as_dict()}
            out.notes += [f"{name}: {warning}" for warning in context.warnings]
        out.facts["tolerance"] = {"norm": self.rtol, "head": HEAD_TOLERANCE}
        serious = any(finding.severity != "note" for finding in out.findings)
        out.verdict = "findings" if serious else "ok" if self._anything() else "unknown"
        out.headline = self._headline(mattering)
        if out.verdict == "unknown":  # neither a success nor a difference
            out.facts["undecided"] = out.headline
        self._screen(mattering)
        return out

    def _anything(self) -> bool:
        """Return whether anything was compared: passes where both runs print any, else what server lines say.

        One log that holds nothing is the same as itself.
        """
        if all(any(phases.values()) for phases in self.phases):
            return bool(self.found.paired)
        one, other = self.answers
        both = (one.runs and other.runs) or (one.accept and other.accept) or (one.errors and other.errors)
        return bool(both) or self.contexts[0].files == self.contexts[1].files

    def _headline(self, mattering: list[str]) -> str:
        """Return the answer in one sentence: the first divergence, else the configuration, else what agrees."""
        first = self.found.differences[0] if self.found.differences else None
        agree = self._agreement()
        if first is not None:
            verb = "differs" if len(mattering) == 1 else "differ"
            other = f"; {count(len(mattering), 'argument')} {verb} too: {', '.join(mattering[:3])}" if mattering else ""
            return f"first divergence: {self.clause(first)}; {self._before(first)}{other}"
        if mattering:
            more = f" and {len(mattering) - 4} more" if len(mattering) > 4 else ""
            accept = [f"{finding.message}; " for finding in self.out.findings if finding.rule == "D104"]
            return f"the configuration differs: {', '.join(mattering[:4])}{more}; {''.join(accept)}{agree}"
        if self.out.verdict == "findings":
            return f"{self.out.findings[0].message}; {agree}"
        if self.out.verdict == "unknown":
            sides = zip(SIDES, self.contexts, strict=True)
            empty = [
                f"the {side} {' '.join(context.files)} {'holds no record' if context.accounting.bytes else 'is empty'}"
                for side, context in sides
                if not context.accounting.records
            ]
            return f"nothing could be compared: {'; '.join(empty) or agree}"
        role = self.alignment.role
        pairs = sum(number for number, _ in self.found.paired.values())
        mostly = role is None or 2 * pairs >= min(sum(phases[role].values()) for phases in self.phases)
        return f"{'same' if mostly else 'no difference in what can be compared'}: {agree}"

    def _agreement(self) -> str:
        """Say how many passes were compared, and that they agree."""
        role = self.alignment.role
        if role is None:
            return "no forward passes that both print"
        pairs, equal = (sum(each) for each in zip((0, 0), *self.found.paired.values(), strict=True))
        if not pairs:
            return f"no {role} pass of one run could be found in the other"
        totals = [sum(phases[role].values()) for phases in self.phases]
        whole = f"{totals[0]:,}" if totals[0] == totals[1] else f"{totals[0]:,} and {totals[1]:,}"
        verb = "agree" if not self.found.differences else "could be compared"
        return f"{pairs:,} of {whole} {role} passes {verb}, {equal:,} of them identical"

    def _screen(self, mattering: list[str]) -> None:
        """Set what a person sees first: both logs, what differs with its values, what agrees."""
        out = self.out
        names = [" ".join(context.files) for context in self.contexts]
        lines: list[Any] = [*(f"{side:9}  {name}" for side, name in zip(SIDES, names, strict=True)), ""]
        for at, finding in enumerate(out.findings):
            if finding.rule == "D101":
                continue
            below: list[Any] = [finding.message]
            if at < len(self.shown):
                spots, values = self.shown[at].sides, (finding.expected, finding.actual)
                below += [
                    (f":{spot.line}" if spot.line else "", *each)
                    for spot, *each in zip(spots, SIDES, values, strict=True)
                ]
            below += [finding.help] if finding.help else []
            mark: Any = None if finding.severity == "note" else finding.severity
            lines.append(Line(mark, f"{finding.rule} {_NAMES[finding.rule]}", self._at(finding.where), below))
        if mattering:
            rows = [
                tuple(row[name] for name in ("argument", *SIDES))
                for row in out.tables["configuration"]
                if row["matters"]
            ]
            lines.append(Line("warning", "D101 configuration", "", [*rows]))
        elif "configuration" in out.facts:
            lines.append(Line("ok", "configuration", "nothing that matters differs"))
        mark = "unknown" if not self.found.paired else None if self.found.differences else "ok"
        name = "nothing compared" if out.verdict == "unknown" else "passes"
        lines.append(Line(mark, name, self._agreement()))
        accept = out.facts.get("acceptance")
        if accept and not any(finding.rule == "D104" for finding in out.findings):
            lines.append(
                Line("ok", "accept len", " -> ".join(f"{accept[name]['accept_len_mean']:.2f}" for name in SIDES))
            )
        lines += [Line(None, "note", note) for note in out.notes if out.verdict != "findings"]
        out.screen, out.next = lines, self.contexts[1].command("check")

    def _at(self, place: Place | None) -> str:
        """Return where something stands in the candidate, or in the baseline where it stands only there."""
        if place is None or place.file in self.contexts[1].files:
            return self.contexts[1].at(place)
        return f"baseline {self.contexts[0].at(place)}"

    # differences in words

    def _differences(self) -> None:
        """Add a finding and a row for every difference, the first one first, and the first divergence as a fact."""
        out, found = self.out, self.found.differences
        out.facts["first_divergence"] = self._fact(found[0]) if found else None
        out.findings += self._findings(found)
        for side, role, phase, spot in self.found.fragments[:_MOST_FINDINGS]:
            message = (
                f"only the {SIDES[side]} has {phase} pass {spot.ordinal} of the {role}, and only a part of it: "
                "a record printed once more, or cut off from its pass"
            )
            out.findings.append(Finding("D103", "warning", message, Place(spot.file, spot.line or 0)))
        left = sum(max(0, len(each) - _MOST_FINDINGS) for each in (found, self.found.fragments))
        if left:
            out.notes.append(f"{count(left, 'further difference')} of single passes are not among the findings")
        rows = [
            {
                "role": each.role, "phase": each.phase, "state": self.state_name(each.role, each.slot),
                "what": each.what, "passes": each.count, "baseline": self.value(each, 0),
                "candidate": self.value(each, 1), "difference": signed(each.relative), "largest": signed(each.largest),
                "baseline_at": str(each.sides[0]), "candidate_at": str(each.sides[1]),
            }
            for each in found
        ]  # fmt: skip
        title = "differences, each at its first place, in the order of the runs"
        names = "role phase! state! what passes> baseline! candidate! difference!> largest> baseline_at candidate_at"
        add_table(out, "differences", rows, title, names)

    def _findings(self, differences: Sequence[Difference]) -> Iterator[Finding]:
        """Yield the first differences as findings: captured layers once, and what follows from another as a note."""
        captures = [each for each in differences if each.what == "captures"]
        self.shown = [each for each in differences if each.what != "captures" or each is captures[0]][:_MOST_FINDINGS]
        for each in self.shown:
            rule, severity = RULES[each.what]
            message = self.clause(each)
            if each.count > 1:
                message += f"; so in {count(each.count, 'pass')}"
                if signed(each.largest) != signed(each.relative):
                    message += f", at most {signed(each.largest)}"
            if each.what == "captures" and len(captures) > 1:
                message += f"; {and_list([other.phase for other in captures[1:]])} passes alike"
            before = [other for other in differences if other.order[0] == each.order[0] and other.order < each.order]
            cause = next((other for other in before if other.what in VALUES), None) if each.what in VALUES else None
            if cause is not None:
                severity = "note"
                message += f" (behind {self.state_name(cause.role, cause.slot)} of the same round)"
            place = next(Place(spot.file, spot.line) for spot in reversed(each.sides) if spot.line)
            # What a value means is told by what agrees before it: behind another difference nothing is.
            told = None if each.what in VALUES and before else self.help(each)
            yield Finding(
                rule, severity, message, place, self.value(each, 0), self.value(each, 1), self._evidence(each), told
            )

    def clause(self, difference: Difference) -> str:
        """Return the first place of a difference in one clause."""
        name, role = self.state_name(difference.role, difference.slot), difference.role
        phase = "pass" if difference.phase == "unknown" else f"{difference.phase} pass"
        warm = ", in the warm-up" if difference.during == "warmup" else ""
        where = f"{phase} {difference.sides[0].ordinal} of the {role}{warm}"
        one, other = self.value(difference, 0), self.value(difference, 1)
        values = f"{one} against {other}"
        lacking = int(difference.sides[0].line is not None)
        match difference.what:
            case "norm":
                cut = ", its pieces added in quadrature" if difference.pieces != (1, 1) else ""
                change = signed(difference.relative) or "from zero"
                return f"{name} first differs by {change} in {where} (norm {values}{cut})"
            case "head":
                return f"{name} has other first values in {where} while its norm agrees: other content or another order"
            case "not_finite":
                ill = SIDES[_finite(difference.sides[0].value)]
                return f"{name} is not finite in the {ill}, first in {where} (norm {values})"
            case "captures":
                return f"{self._captures(difference, values)}, from {where} on"
            case "record" if difference.slot & 0xFF:
                return f"{name} stands only in the {SIDES[1 - lacking]}, in {where}"
            case "record":
                return f"{name} is missing in the {SIDES[lacking]}, in {where}"
            case "copies":
                return f"{name} is printed by another number of writers in {where}: {values}"
            case "rank":
                return f"the ranks of one run disagree on {name} in {where}: {values}"
            case "joined":
                return f"number of joined states first differs in {where}: {values}"
        what = "hidden mode" if difference.what == "mode" else "shape"
        return f"{what} of the {name} first differs in {where}: {values}"

    def _captures(self, difference: Difference, values: str) -> str:
        """Return in which way the captured layers differ."""
        one, other = (spot.value for spot in difference.sides)
        if not set(one) & set(other):
            steps = {b - a for a, b in zip(one, other, strict=False) if None not in (a, b)}
            shift = f", each shifted by {steps.pop():+d}" if len(one) == len(other) and len(steps) == 1 else ""
            return f"no layer in common: {values}{shift}"
        only = [
            f"{layer_list(sorted(mine - theirs, key=lambda layer: -1 if layer is None else layer))} only in the {name}"
            for name, mine, theirs in ((SIDES[0], set(one), set(other)), (SIDES[1], set(other), set(one)))
            if mine - theirs
        ]
        what = "number of joined states differs" if len(one) != len(other) else "other layers are captured"
        return f"{what}, {and_list(only)}: {values}"

    def value(self, difference: Difference, side: int) -> str:
        """Return one side's value in words."""
        value: Any = difference.sides[side].value
        match difference.what:
            case "head":
                return f"[{', '.join(f'{number:g}' for number in value)}]"
            case "captures":
                width = f" ({len(value)} x {self.hidden} = {len(value) * self.hidden})" if self.hidden and value else ""
                return f"{layer_list(value)}{width}"
            case "shape":
                return axes(value or (), self.hidden) if value else "no shape"
            case "record":
                return "not printed" if difference.sides[side].line is None else "printed"
            case "copies":
                return count(value, "copy", "copies")
            case "joined":
                return count(value, "state")
            case "rank":
                return "all alike" if value is None else f"one prints norm {value['norm']} in line {value['line']}"
        return str(value) if difference.what == "mode" else f"{value:.4f}"

    def state_name(self, role: str, number: int) -> str:
        """Return what a record of a pass is called: ``layer 31``, ``joined state``, ``input state``."""
        slot = self._slot(number)
        names = {"aux_concat": "joined state" if role == "target" else "output state", "forward": "input state"}
        name = (
            layer_name("", slot.layer) if slot.event == CAPTURE else names.get(slot.event, slot.event.replace("_", " "))
        )
        return name if slot.nth == 0 else f"{name} (record {slot.nth + 1} of the pass)"

    def _slot(self, number: int) -> Slot:
        return next(side.slots[number] for side in self.sides if number in side.slots)

    def _evidence(self, difference: Difference) -> str:
        """Say where both sides stand, what agrees before, and how the passes are known to be the same."""
        places = [f"{name} {spot}" for name, spot in zip(SIDES, difference.sides, strict=True) if spot.line]
        ground = GROUNDS[difference.ground]
        if difference.ground == "pieces" and difference.same_head:
            ground += "; its own first values agree as well, so it parts after the first piece"
        return f"{' and '.join(places)}; {self._before(difference)}; {ground}"

    def _before(self, difference: Difference) -> str:
        """Return ``identical for 126 passes, embedding and layers 3, 31 of the same pass agree``."""
        agreeing, equal = difference.agreeing_before, difference.equal_before
        if not agreeing:
            passes = "nothing was compared before it"
        elif agreeing == equal:
            passes = f"identical for {count(agreeing, 'pass')}"
        else:
            passes = f"{count(agreeing, 'pass')} before it agree{'s' * (agreeing == 1)}, {equal} of them identical"
        layers = [self._slot(slot).layer for slot in difference.agreeing if is_capture(slot)]
        others = [self.state_name(difference.role, slot) for slot in difference.agreeing if not is_capture(slot)]
        names = [*([layer_list(layers)] if layers else []), *others]
        single = len(layers) + len(others) == 1
        return f"{passes}, {and_list(names)} of the same pass agree{'s' * single}" if names else passes

    def help(self, difference: Difference) -> str | None:
        """Say what a difference may mean, as far as the values tell."""
        what, value = difference.what, difference.what in VALUES
        if what == "captures":
            if not set(difference.sides[0].value) & set(difference.sides[1].value):
                return "states of other layers cannot be compared; make both runs capture the same layers"
            return "other states are joined, so the joined states and what the draft makes of them are not compared"
        if not value or (what == "not_finite" and (difference.role, difference.slot) != ("draft", READ)):
            return None
        if difference.ground in ("first", "follows"):
            return self._lowest_help(difference.ground)
        if difference.role == "target":
            return self._join_help(difference) if difference.slot == JOIN else None
        if difference.slot == READ:
            return "the target's joined state agrees, the draft reads another one: stale, or other rows"
        return "what the draft read agrees: its weights, its token (vocabulary map) or its cache differ"

    def _join_help(self, difference: Difference) -> str:
        """Say what was joined where the captures agree and the joined states do not."""
        states = [self._printed(side, row) for side, row in enumerate(difference.passes)]
        heads = [found[JOIN][1] if JOIN in found else () for found in states]
        for name, head, found in zip(SIDES, heads, states, strict=True):
            captures = [slot for slot in found if is_capture(slot)]
            begins = [slot for slot in captures if head and found[slot][1] == head]
            if begins and begins[0] != min(captures):
                first = self.state_name("target", begins[0])
                return f"the captures agree; in the {name} the joined state begins with {first}"
        if _ratio(*heads) and difference.what == "norm":
            return "the captures agree, the joined state is theirs times a factor: normalised or scaled before the join"
        return "the captures agree: what was joined is not what was captured"

    def _lowest_help(self, ground: str) -> str:
        """Say which kind of fault changes the lowest state of the same input."""
        pairs = self.alignment.pairs.filter(ground=ground).select("one", "other").head(_MOST_FINDINGS).rows()
        states = [
            [
                {slot: state for slot, state in self._printed(side, pair[side]).items() if is_capture(slot)}
                for pair in pairs
            ]
            for side in (0, 1)
        ]
        shared = [
            (one[slot], other[slot]) for one, other in zip(*states, strict=True) for slot in one.keys() & other.keys()
        ]
        factor = bool(shared) and all(_ratio(one[1], other[1]) for one, other in shared)
        factors = "; every state is the other run's times a factor" if factor else ""
        for ill, sound in ((1, 0), (0, 1)):
            where = f"{_NOT_INPUT}; in the {SIDES[ill]}"
            if all(_spread(each) < _LEVEL for each in states[ill]) and all(
                _spread(each) > _GROWING for each in states[sound]
            ):
                return f"{where} all layers have one rms{factors}: normalised before it was captured"
            if not factor and shared and all(pair[ill][0] < 0.95 * pair[sound][0] for pair in shared):
                return f"{where} every state is smaller and points elsewhere: as without the residual"
        if factors:
            return f"{_NOT_INPUT}{factors}: one of the runs scales what it captures"
        return f"{_NOT_INPUT}, or other weights: neither a missing residual nor a normalisation fits the values"

    def _printed(self, side: int, row: int) -> dict[int, tuple[float, tuple[float, ...]]]:
        """Return norm and first values of the finite states of a pass, by slot."""
        first, last = self.sides[side].passes.select("first", "last").row(row)
        found = self.sides[side].records[first : last + 1].filter("state", pl.col("norm").is_finite())
        said = found.select("slot", "norm", "values", "count").iter_rows()
        return {slot: (norm, tuple(values[:number])) for slot, norm, values, number in said}

    def _fact(self, difference: Difference) -> dict[str, Any]:
        """Return a difference as plain values."""
        sides = {
            name: {"file": spot.file, "line": spot.line, "pass": spot.number, "ordinal": spot.ordinal,
                   "rows": side.passes["rows"][row], "value": spot.value}
            for name, side, row, spot in zip(SIDES, self.sides, difference.passes, difference.sides, strict=True)
        }  # fmt: skip
        previous = difference.previous
        return {
            "what": difference.what, "role": difference.role, "phase": difference.phase, "during": difference.during,
            "state": self.state_name(difference.role, difference.slot), "layer": self._slot(difference.slot).layer,
            **sides, "relative": difference.relative, "largest": difference.largest, "passes": difference.count,
            "identical_before": difference.equal_before, "agreeing_before": difference.agreeing_before,
            "last_agreeing": previous and dict(zip(SIDES, map(str, previous), strict=True)),
            "agreeing_states": [self.state_name(difference.role, slot) for slot in difference.agreeing],
            "same_head": difference.same_head, "pieces": list(difference.pieces), "ground": difference.ground,
            "sentence": self.clause(difference),
        }  # fmt: skip

    # what was compared

    def _states(self) -> None:
        """Add the table of states: pairs, and how they came out."""
        rows = []
        cells = sorted(
            self.found.cells.iter_rows(named=True),
            key=lambda cell: (_ROLES.index(cell["role"]), cell["phase"], cell["slot"]),
        )
        for cell in cells:
            lines = [
                side.records["line"][row]
                for side, row in zip(self.sides, cell["largest_at"] or (), strict=False)
                if row >= 0
            ]
            far = bool(cell["largest"]) and len(lines) == 2
            cell |= {
                "state": self.state_name(cell["role"], cell.pop("slot")), "largest": signed(cell["largest"]),
                "largest_at": f"{lines[0]}, {lines[1]}" if far else None,
            }  # fmt: skip
            if cell["pairs"] or cell["not_compared"] or cell["only_baseline"] or cell["only_candidate"]:
                rows.append(cell)
        caption = f"equal: at the coarser print; within: norms to {100 * self.rtol:.3g} %, first values to "
        caption += f"{HEAD_TOLERANCE:g} of their length"
        names = "role phase! state! pairs!> equal!> within> beyond!> largest!> largest_at=at_lines only_baseline> "
        names += "only_candidate> not_compared>"
        add_table(self.out, "states", rows, "states of paired passes", names, caption)

    def _one_sided_phases(self) -> None:
        """Say which phases only one run prints: hidden by CUDA graphs, never reached, or a difference."""
        for role in _ROLES:
            counts = [phases[role] for phases in self.phases]
            for side, name in enumerate(SIDES):
                if all(counts):
                    for phase in sorted(counts[side].keys() - counts[1 - side].keys() - {"unknown"}):
                        self._one_sided(side, role, phase)
                elif counts[side]:
                    number = count(sum(counts[side].values()), "pass")
                    self.out.notes.append(f"only the {name} prints {number} of the {role}: not compared")
        for side in (0, 1):
            self._fewer(side)

    def _one_sided(self, side: int, role: str, phase: str) -> None:
        """Keep one phase that only one run prints."""
        has, lacks = SIDES[side], SIDES[1 - side]
        message = f"only the {has} prints {phase} passes of the {role} ({self.phases[side][role][phase]:,})"
        later = {"verify": "draft_extend", "draft_extend": "verify", "decode": "verify"}.get(phase)
        if any(segment.graphs_captured for segment in self.sides[1 - side].segments):
            self.out.notes.append(f"{message}: the {lacks} replays CUDA graphs, which hide them")
        elif not any(later in phases for phases in self.phases[1 - side].values()):
            self.out.notes.append(f"{message}: the {lacks} prints nothing that comes after them either")
        else:
            message += f", though the {lacks} prints {later} passes"
            self.out.findings.append(Finding("D102", "warning", message, self._place(side, role, phase, 0)))

    def _place(self, side: int, role: str, phase: str, at: int) -> Place:
        """Return where the first or last (-1) pass of a role and phase stands."""
        found = self.sides[side].passes.filter(pl.col("during") != "graph_capture", role=role, phase=phase)
        return Place(self.sides[side].files[found["file"][at]], found["line"][at])

    def _fewer(self, side: int) -> None:
        """Say that one run prints hardly any verify beside the draft_extend that follows each; the other does."""
        numbers = [
            (phases["target"].get("verify", 0), phases["draft"].get("draft_extend", 0)) for phases in self.phases
        ]
        (has, rounds), (whole, whole_rounds) = numbers[side], numbers[1 - side]
        if not has or rounds < _LEAST_ROUNDS or 2 * has > rounds or 10 * whole < 9 * whole_rounds or not whole_rounds:
            return
        if any(segment.graphs_captured for side_ in self.sides for segment in side_.segments):
            return
        place = self._place(side, "target", "verify", -1)
        message = (
            f"the {SIDES[side]} prints only {count(has, 'verify pass')} of the target beside {rounds:,} draft_extend "
            f"passes of the draft, the {SIDES[1 - side]} {whole:,} beside {whole_rounds:,}"
        )
        evidence = f"the last one of the {SIDES[side]} stands at {place}; no CUDA graph hides the others"
        self.out.findings.append(Finding("D102", "warning", message, place, evidence=evidence))

    def _coverage(self) -> None:
        """Say how many passes were compared, which were not and why, and which only one run has."""
        out, role = self.out, self.alignment.role
        paired: dict[str, dict[str, Any]] = {}
        out.facts["passes"] = paired
        numbers, equal = ({ground: pair[at] for ground, pair in self.found.paired.items()} for at in (0, 1))
        moved = int(self.alignment.pairs["moved"].sum())
        for each in _ROLES:
            totals = [sum(phases[each].values()) for phases in self.phases]
            if any(totals):
                paired[each] = dict(zip(SIDES, totals, strict=True))
                if each == role:
                    said = {"pairs": sum(numbers.values()), "by_ground": numbers, "identical": equal, "moved": moved}
                else:
                    said = dict(zip(("pairs", "identical"), self.found.drafts, strict=True))
                paired[each] |= said
        self._left()
        left_out = [side.passes.filter(during="graph_capture").height for side in self.sides]
        if any(left_out):
            out.notes.append(f"dummy passes of graph capture are not compared ({left_out[0]} and {left_out[1]})")
        for ground, words in _PAIRED.items():
            number = numbers.get(ground, 0)
            if number and numbers.keys() - {"state"}:
                outcome = "all identical" if equal[ground] == number else f"{equal[ground]} of them identical"
                out.notes.append(f"{count(number, f'{role} pass')} {words}: {outcome}")
        if moved:
            out.notes.append(f"{count(moved, 'pass')} of the candidate stand in another order")
        coarse = [bool(side.forms["coarse"].any()) for side in self.sides]
        if any(coarse):
            coarser = "both runs print" if all(coarse) else f"the {SIDES[coarse.index(True)]} prints"
            out.notes.append(f"{coarser} rounded or derived values: everything is compared at the coarser print")
        if self.alignment.merged and all(each.height for each in self.alignment.rounds):
            out.notes.append("the runs have different numbers of schedulers or server lives: their passes are pooled")

    def _left(self) -> None:
        """Add the passes that are not comparable, and those that only one run has."""
        left = self.found.left.with_columns(role_at=pl.col("role") == "draft")
        kinds = left.filter(pl.col("why") != "").group_by("role_at", "role", "phase", reason="why")
        apart = kinds.agg(pl.col("number").filter(side=at).sum().alias(name) for at, name in enumerate(SIDES))
        rows = apart.sort("role_at", "phase", "reason").drop("role_at").rows(named=True)
        self.out.facts["not_comparable"] = rows
        said = [{**row, "reason": _REASONS[row["reason"]]} for row in rows]
        names = "role phase! reason! baseline!> candidate!>"
        add_table(self.out, "not_comparable", said, "passes that are not comparable, and why", names)
        alone = []
        for side, role, phase, at_end, number, first in (
            left.filter(why="").select("side", "role", "phase", "at_end", "number", "first").iter_rows()
        ):
            file, line = self.sides[side].passes.select("file", "line").row(first)
            where = "behind the last pair" if at_end else "between pairs"
            row = {"only_in": SIDES[side], "role": role, "phase": phase, "passes": number, "where": where}
            alone.append((side, at_end, line, row | {"first": f"{self.sides[side].files[file]}:{line}"}))
        rows = [row for *_, row in sorted(alone, key=lambda item: item[:3])]
        totals = {name: sum(row["passes"] for row in rows if row["only_in"] == name) for name in SIDES}
        self.out.facts["only_in"] = totals
        for name, total in totals.items():
            ends = sum(row["passes"] for row in rows if row["only_in"] == name and row["where"].startswith("behind"))
            where = " at its end: the other workload was shorter" if ends == total else f", {ends} of them at its end"
            if total:
                self.out.notes.append(f"only in {name}: {count(total, 'pass')}{where}")
        names = "only_in! role phase! passes!> where first"
        add_table(self.out, "only_in", rows, "passes that only one run has", names)


def signed(relative: float | None) -> str | None:
    """Return a relative difference as ``+6.3 %``, None for none."""
    if relative is None:
        return None
    percent = 100 * relative
    return "0 %" if not percent else f"{percent:+.1f} %" if abs(percent) >= 1 else f"{percent:+.2g} %"


def _ratio(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the factor between two vectors of first values, None when they are not proportional."""
    ratios = [theirs / mine for mine, theirs in zip(one, other, strict=False) if mine and theirs]
    if len(ratios) < 3 or min(ratios) <= 0 or max(ratios) > (1 + _PROPORTIONAL) * min(ratios):
        return None
    return sum(ratios) / len(ratios)


def _spread(states: dict[int, tuple[float, tuple[float, ...]]]) -> float:
    """Return largest over smallest norm of the layers of a pass: they have the same rows and width."""
    norms = [norm for norm, _ in states.values() if norm]
    return max(norms) / min(norms) if len(norms) > 1 else math.nan


def _hidden(sides: Iterable[Side]) -> int | None:
    """Return the width of a captured state, where both runs have the same."""
    widths = set()
    for side in sides:
        captures = side.forms.filter((pl.col("slot") // (1 << 32)) == Slot(CAPTURE).number >> 32)["width"].drop_nulls()
        widths |= {captures[0]} if len(captures) else set()
    return widths.pop() if len(widths) == 1 else None


def _finite(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)
