"""``logscope check``: every rule over a run, what was found, what was checked, what could not be.

This module is responsible for :class:`Checker`, the fold that gives every rule what it needs in order, and for the
report: findings by causality, one headline, the rules that looked at something and how much, and those that could not
be decided, with the reason. It must not know what any rule looks for.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from logscope.contract import Contract, load_contract
from logscope.errors import UsageError, did_you_mean
from logscope.model import Finding, ForwardPass, Segment, ServerEvent
from logscope.queries.words import plural_of
from logscope.report import Column, Report, Table, ask
from logscope.rules import page, rules
from logscope.rules.base import Checked, Scene
from logscope.rules.captures import LayerSet, between_lives
from logscope.rules.causes import headline, ranked
from logscope.rules.ranks import RankFile, across
from logscope.versions import Known, parse_version

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from logscope.model import Occurrence
    from logscope.report import Context, Item
    from logscope.rules.base import Rule
    from logscope.rules.captures import Usual
    from logscope.run import Run

# Damaged lines that are remembered to tell what is missing from what was lost.
_DAMAGE = 4096
_DAMAGED = frozenset({"cut", "rejoined"})
# Passes of a starting server that wait for the next line about its graphs.
_HELD = 4096
_GRAPH_BORDERS = frozenset({"graph_capture_begin", "graph_capture_end"})
_OPENS = frozenset({"ready", "prefill_stats", "decode_stats", "request_finish"})
# Rules that compare the records of one pass, or one pass with the next.
_BY_PASS = frozenset({"S102", "S103", "H101", "H102", "H103", "N104", "N105", "N106", "N107", "R101"})

__all__ = ["Checker", "check", "page", "rules"]


class _Outcome(NamedTuple):
    """What the rules of one segment answered."""

    findings: list[Finding]
    checked: dict[str, Checked]
    why_not: dict[str, str]
    facts: dict[str, Any]
    layers: Usual | None = None


class _Life:
    """The rules at work on one segment."""

    def __init__(self, segment: Segment, contract: Contract | None, given: Known | None, codes: Iterable[str]) -> None:
        self.scene = Scene(segment, contract, given)
        known = rules()
        self.rules: list[Rule] = [known[code](self.scene) for code in codes]
        self.passes = [0, 0]
        self._held: list[tuple[ForwardPass, list[Occurrence], bool]] = []
        self._open = self._capturing = False
        self._border = 0

    def see(self, item: ForwardPass, damaged: list[Occurrence], *, clean: bool) -> None:
        """Take a pass; while the server starts, keep it until it is clear whether its input was real."""
        if item.line < self._border:
            # It began before the line that ends the capture, and waited for its last copies.
            self._judge(replace(item, during="graph_capture"), damaged, clean=clean)
        elif item.during in ("startup", "warmup") and not self._open and len(self._held) < _HELD:
            self._held.append((item, damaged, clean))
        else:
            self._judge(item, damaged, clean=clean)

    def _judge(self, item: ForwardPass, damaged: list[Occurrence], *, clean: bool) -> None:
        self.passes[item.role == "draft"] += item.during != "graph_capture"
        self.scene.accept.see(item)
        self.scene.failures.see(item)
        view = self.scene.enter(item, damaged, clean=clean)
        # What stood as passes of their own are pieces of this one.
        self.passes[item.role == "draft"] -= len(view.pieces)
        for rule in self.rules:
            rule.see(view)

    def server(self, event: ServerEvent) -> None:
        """Take a server line."""
        name = event.payload.event
        if name in _GRAPH_BORDERS:
            # No request comes before the last graph is captured. Ranks run ahead of, and behind, the one that logs.
            self._settle(dummy=True)
            self._capturing = name == "graph_capture_begin"
            self._border = event.line
        elif name in _OPENS:
            self._settle(dummy=False)
            self._open = True
            self._capturing = False
        self.scene.watch.server(event.payload)
        self.scene.accept.see(event)
        self.scene.failures.see(event)
        for rule in self.rules:
            rule.server(event)

    def _settle(self, *, dummy: bool) -> None:
        held, self._held = self._held, []
        # The warm-up request begins with a target pass: drafts behind the last capture are ranks that lag behind.
        late = self._border > 0
        for item, damaged, clean in held:
            late = late and item.role == "draft"
            unreal = dummy or late
            self._judge(replace(item, during="graph_capture") if unreal else item, damaged, clean=clean)

    def outcome(self) -> _Outcome:
        """Return what the rules answer now."""
        self._settle(dummy=self._capturing)
        findings: list[Finding] = []
        self.scene.lessened.clear()
        self.scene.absences.clear()
        self.scene.out_of_step = None
        checked: dict[str, Checked] = {}
        why_not: dict[str, str] = {}
        for rule in self.rules:
            findings.extend(rule.findings())
            checked[rule.code] = rule.checked()
            if not checked[rule.code].looked:
                why_not[rule.code] = rule.why_not()
        findings = self._mixed(findings)
        era = self.scene.era
        facts = {
            "file": self.scene.segment.file,
            "segment": self.scene.segment.number,
            "sglang": era.era,
            "sglang_known_by": era.how,
            "sglang_release": era.release,
            "layers_read_as": [reading.why for reading in self.scene.readings],
            "target_passes": self.passes[0],
            "draft_passes": self.passes[1],
        }
        layers = next((rule.usual() for rule in self.rules if isinstance(rule, LayerSet)), None)
        return _Outcome(findings, checked, why_not, facts, layers)

    def _mixed(self, findings: list[Finding]) -> list[Finding]:
        """Return findings with those about single passes of mixed-up schedulers told as one note.

        From the line on at which a rank is out of step, what passes are put together from is no evidence.
        """
        step, absences = self.scene.out_of_step, self.scene.absences
        if step is not None:
            findings = [
                one
                for one in findings
                if one in absences or one.rule not in _BY_PASS or one.where is None or one.where.line < step
            ]
        lessened = [one for one in self.scene.lessened if one in findings or one.where is None or step is None]
        if not lessened:
            return findings
        codes = list(dict.fromkeys(finding.rule for finding in ranked(lessened)))
        first = min(lessened, key=lambda finding: finding.where.line if finding.where is not None else 0)
        note = Finding(
            codes[0],
            "note",
            f"Passes of several schedulers are mixed in this log: single odd ones ({', '.join(codes)}) say nothing.",
            first.where,
            evidence=self.scene.doubt or first.evidence,
            help="give each scheduler a mark on its lines, or a file of its own, to have its passes judged one by one",
        )
        return [*(finding for finding in findings if finding not in lessened), note]


class Checker:
    """The fold behind ``logscope check``.

    Parameters
    ----------
    contract
        how the draft was trained, or a path to it; None: rules that need it are not checked.
    select, ignore
        codes of rules, or their beginnings (``N``, ``N10``); only the selected ones, without the ignored ones.
    sglang_version
        as installed; None: read from the log.

    Raises
    ------
    ContractError, UsageError
        a contract that does not load, a code no rule has, a version that is none.

    """

    kind: ClassVar[str] = "check"
    # What each marked rank prints is counted, so that one that stops is named.
    keep_copies: ClassVar[bool] = True

    def __init__(
        self,
        contract: Contract | str | os.PathLike[str] | Mapping[str, Any] | None = None,
        *,
        select: Iterable[str] | None = None,
        ignore: Iterable[str] | None = None,
        sglang_version: str | None = None,
    ) -> None:
        self.contract = None if contract is None else load_contract(contract)
        self.codes = _chosen(select, ignore)
        self._given = (
            None
            if sglang_version is None
            else Known(parse_version(sglang_version), "given by --sglang-version", sglang_version)
        )
        self._lives: dict[str, _Life] = {}
        self._done: list[_Outcome] = []
        self._waiting: deque[tuple[ForwardPass, list[Occurrence]]] = deque()
        self._damage: dict[str, list[int]] = {}
        self._files: dict[str, RankFile] = {}

    # ------------------------------------------------------------------------------------------------------ the fold

    def see(self, item: Item) -> None:
        """Take one item, in order."""
        if isinstance(item, Segment):
            self._release(None)
            self._file(item.file).segments.append(item)
            before = self._lives.get(item.file)
            if before is not None:
                self._done.append(before.outcome())
            self._lives[item.file] = _Life(item, self.contract, self._given, self.codes)
        elif isinstance(item, ForwardPass):
            self._release(item)
            damaged = [
                one
                for record in item.records
                for one in (record.first, *record.others, *record.variants)
                if one[3].intact in _DAMAGED
            ]
            for line, _, _, _ in damaged:
                self._damaged(item.file, line)
            self._waiting.append((item, damaged))
        else:
            self._release(item)
            if item.payload.kind == "unparsed" or not item.payload.usable:
                self._damaged(item.file, item.line)
            life = self._lives.get(item.file)
            if life is not None:
                life.server(item)

    def _file(self, name: str) -> RankFile:
        return self._files.setdefault(name, RankFile(name))

    def _damaged(self, file: str, line: int) -> None:
        lines = self._damage.setdefault(file, [])
        insort(lines, line)
        if len(lines) > _DAMAGE:
            del lines[: _DAMAGE // 2]

    def _release(self, item: ForwardPass | ServerEvent | None) -> None:
        """Judge the passes that waited: what stands among a pass's lines comes before anything behind its last one."""
        waiting = self._waiting
        while waiting:
            head, damaged = waiting[0]
            last = max([record.first[0] for record in head.records])
            if item is not None and item.file == head.file and item.line <= last:
                return
            waiting.popleft()
            lines = self._damage.get(head.file, [])
            at = bisect_left(lines, head.line)
            clean = at == len(lines) or lines[at] > last
            self._file(head.file).add(head)
            life = self._lives.get(head.file)
            if life is not None:
                life.see(head, damaged, clean=clean)

    # ---------------------------------------------------------------------------------------------------- the answer

    def report(self, context: Context) -> Report:
        """Answer; may be asked again after further items (a live log)."""
        self._release(None)
        outcomes = [*self._done, *(life.outcome() for life in self._lives.values())]
        findings = [finding for outcome in outcomes for finding in outcome.findings]
        if len(self._files) > 1:
            findings += across(list(self._files.values()), set(self.codes))
        if not any(finding.rule == "H103" and finding.severity != "note" for finding in findings):
            findings += between_lives([outcome.layers for outcome in outcomes if outcome.layers is not None])
        lives = {
            id(finding): (outcome.facts["file"], outcome.facts["segment"])
            for outcome in outcomes
            for finding in outcome.findings
        }
        findings = ranked(_once(findings), lives)
        checked = _checked(outcomes, self.codes)
        not_checked = _not_checked(outcomes, checked)
        looked = {code: row.looked for code, row in checked.items()}
        target = sum(outcome.facts["target_passes"] for outcome in outcomes)
        draft = sum(outcome.facts["draft_passes"] for outcome in outcomes)
        report = Report(
            self.kind,
            headline(findings, looked, (target, draft), len(not_checked), lives),
            findings=findings,
            accounting=context.accounting,
        )
        if any(finding.severity != "note" for finding in findings):
            report.verdict = "findings"
        elif not any(number for code, number in looked.items() if code[0] in "SHNAR"):
            report.verdict = "unknown"
        report.notes = list(context.warnings)
        report.tables = {
            "findings": _findings_table(findings),
            "not_checked": _not_checked_table(not_checked),
            "checked": _checked_table(checked, findings),
        }
        report.facts = {
            "contract": None if self.contract is None else self.contract.source,
            "files": list(context.files) or list(self._files),
            "segments": [outcome.facts for outcome in outcomes],
        }
        return report


def _chosen(select: Iterable[str] | None, ignore: Iterable[str] | None) -> list[str]:
    """Return the codes to check.

    Raises
    ------
    UsageError
        for a word that begins no code.

    """
    known = list(rules())
    wanted, unwanted = ([word.strip().upper() for word in words or ()] for words in (select, ignore))
    for word in (*wanted, *unwanted):
        if not word or not any(code.startswith(word) for code in known):
            raise UsageError(
                f"no rule is called '{word}'",
                why=did_you_mean(word, known),
                help="a code such as N104, or its beginning (N, N10); `logscope rule list` shows them all",
            )
    return [
        code
        for code in known
        if (not wanted or any(code.startswith(word) for word in wanted))
        and not any(code.startswith(word) for word in unwanted)
    ]


def _once(findings: Iterable[Finding]) -> list[Finding]:
    """Keep a finding once when several files say the same in the same words (one log for each rank)."""
    seen: dict[tuple[Any, ...], str | None] = {}
    out = []
    for finding in findings:
        key = (finding.rule, finding.severity, finding.message, finding.expected, finding.actual)
        file = finding.where.file if finding.where is not None else None
        if key in seen and seen[key] != file and finding.rule[0] != "L":
            continue
        seen.setdefault(key, file)
        out.append(finding)
    return out


def _checked(outcomes: Iterable[_Outcome], codes: Iterable[str]) -> dict[str, Checked]:
    """Add up what each rule looked at; the worst value is that of the segment it looked at most."""
    out: dict[str, Checked] = {}
    most: dict[str, int] = {}
    for outcome in outcomes:
        for code, row in outcome.checked.items():
            before = out.get(code, Checked(0, row.unit))
            worst = row.worst if row.looked > most.get(code, 0) else before.worst
            most[code] = max(most.get(code, 0), row.looked)
            out[code] = Checked(before.looked + row.looked, row.unit, worst)
    return {code: out.get(code, Checked(0)) for code in codes}


def _not_checked(outcomes: Iterable[_Outcome], checked: Mapping[str, Checked]) -> dict[str, str]:
    """Return why a rule looked at nothing; of several segments the one with the most passes says it."""
    ordered = sorted(outcomes, key=lambda outcome: -(outcome.facts["target_passes"] + outcome.facts["draft_passes"]))
    out = {}
    for code, row in checked.items():
        if not row.looked:
            out[code] = next(
                (outcome.why_not[code] for outcome in ordered if code in outcome.why_not), "nothing was read"
            )
    return out


def _findings_table(findings: Iterable[Finding]) -> Table:
    table = Table(
        [
            Column("rule", always=True),
            Column("severity"),
            Column("where"),
            Column("message", always=True),
            Column("expected"),
            Column("actual"),
            Column("evidence"),
            Column("help"),
        ],
        title="findings",
        caption="the most causal first",
    )
    for finding in findings:
        table.rows.append({**finding.as_dict(), "where": None if finding.where is None else str(finding.where)})
    return table


def _checked_table(checked: Mapping[str, Checked], findings: Iterable[Finding]) -> Table:
    table = Table(
        [
            Column("rule", always=True),
            Column("name", always=True),
            Column("looked_at", "looked at", align="right", always=True),
            Column("unit", ""),
            Column("worst", "worst or seen"),
            Column("findings", align="right"),
        ],
        title="checked",
        caption="how much every rule looked at, and the worst value it saw",
    )
    found = Counter(finding.rule for finding in findings)
    known = rules()
    for code, row in checked.items():
        if row.looked:
            table.rows.append(
                {
                    "rule": code,
                    "name": known[code].name,
                    "looked_at": row.looked,
                    "unit": row.unit if row.looked == 1 else plural_of(row.unit),
                    "worst": row.worst,
                    "findings": found[code],
                }
            )
    return table


def _not_checked_table(not_checked: Mapping[str, str]) -> Table:
    table = Table(
        [Column("rule", always=True), Column("name", always=True), Column("because", always=True)],
        title="not checked",
        caption="what this log, or a missing contract, leaves open",
    )
    known = rules()
    table.rows = [{"rule": code, "name": known[code].name, "because": why} for code, why in not_checked.items()]
    return table


def check(
    run: Run,
    contract: Contract | str | os.PathLike[str] | Mapping[str, Any] | None = None,
    *,
    select: Iterable[str] | None = None,
    ignore: Iterable[str] | None = None,
    sglang_version: str | None = None,
) -> Report:
    """Check a run against every rule. Command: ``logscope check``; parameters and errors: :class:`Checker`."""
    checker = Checker(contract, select=select, ignore=ignore, sglang_version=sglang_version)
    return ask(checker, run.items, run.reading.context())
