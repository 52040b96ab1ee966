"""``logscope check``: every rule over a run, what was found, what was checked, what could not be.

This module is responsible for :class:`Checker`, the question that gives every rule its view of each batch and adds up
what it keeps, and for the report: findings by causality, one headline, the rules that looked at something and how much,
and those that could not be decided, with the reason. It must not know what any rule looks for.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from logscope.contract import Contract, load_contract
from logscope.errors import UsageError, did_you_mean
from logscope.queries import errors
from logscope.queries.acceptance import Accept, Acceptance, Lines
from logscope.queries.words import count, plural_of
from logscope.report import Column, Line, Report, Table
from logscope.rules import page, rules
from logscope.rules.captures import between_lives
from logscope.rules.evidence import Life, add, facts_of, views
from logscope.rules.headline import Looked, explained, headline, ranked
from logscope.rules.ranks import across
from logscope.rules.registry import Checked
from logscope.versions import Known, parse_version

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from logscope.model import Finding
    from logscope.report import Context, Mark
    from logscope.run import Run
    from logscope.tables.tables import Tables

# Families that look at passes.
_OF_PASSES = "SHNR"
_MARKS: dict[str, Mark | None] = {"error": "error", "warning": "warning", "note": None}

__all__ = ["Checker", "check", "page", "rules"]


@dataclass(slots=True)
class Part:
    """What a batch says: by file and number every server life's sums, and what lines say of acceptance and errors."""

    lives: dict[tuple[str, int], Life] = field(default_factory=dict)
    lines: Lines = field(default_factory=Lines)
    errors: errors.Part = field(default_factory=errors.Part)
    rows: int = 0


class Checker:
    """The question behind ``logscope check``.

    Parameters
    ----------
    contract
        how the draft was trained, or a path to it; None: rules that need it are not checked.
    select, ignore
        codes of rules, or their beginnings (``N``, ``N10``); only the selected ones, without the ignored ones.
    sglang_version
        as installed; None: read from the log.
    part_of
        the selection in words, where only a part of the log is asked about.

    Raises
    ------
    ContractError, UsageError
        a contract that does not load, a code no rule has, a version that is none.

    """

    kind: ClassVar[str] = "check"

    def __init__(
        self,
        contract: Contract | str | os.PathLike[str] | Mapping[str, Any] | None = None,
        *,
        select: Iterable[str] | None = None,
        ignore: Iterable[str] | None = None,
        sglang_version: str | None = None,
        part_of: str | None = None,
    ) -> None:
        self.contract = None if contract is None else load_contract(contract)
        # What says nothing of a draft asks for nothing; the answer says so.
        self._asked_for = None if self.contract is None or self.contract.says_nothing else self.contract
        self.codes = _chosen(select, ignore)
        self.part_of = part_of
        self._given = (
            None
            if sglang_version is None
            else Known(parse_version(sglang_version), "given by --sglang-version", sglang_version)
        )
        self._rules = {code: rules()[code] for code in self.codes}
        self._accept, self._errors = Accept(), errors.Errors()

    def partial(self, tables: Tables) -> Part:
        """Return what a batch says to every rule."""
        part = Part(lines=self._accept.partial(tables), errors=self._errors.partial(tables))
        part.rows = tables.passes.height + tables.server.height
        for view in views(tables, self._asked_for):
            parts = {code: rule.look(view) for code, rule in self._rules.items()}
            key = (view.file, view.segment.number)
            part.lives[key] = Life(view.segment, self._asked_for, self._given, facts_of(view), parts)
        return part

    def combine(self, parts: Sequence[Part]) -> Part:
        """Return what several batches say, in their order."""
        whole = Part(lines=self._accept.combine([part.lines for part in parts]))
        whole.errors = self._errors.combine([part.errors for part in parts])
        for part in parts:
            whole.lives = add(whole.lives, part.lives)
            whole.rows += part.rows
        return whole

    def report(self, part: Part, context: Context) -> Report:
        """Answer."""
        lives = list(part.lives.values())
        acceptance = Acceptance(self._accept.combine([part.lines]))
        failures = self._errors.combine([part.errors])
        errors.groups(failures)
        findings: list[Finding] = []
        of: dict[int, tuple[str, int]] = {}
        checked = {code: Checked(0) for code in self.codes}
        why_not: dict[str, str] = {}
        for life in sorted(lives, key=lambda life: -sum(life.facts[role] for role in ("target", "draft"))):
            life.acceptance = acceptance
            life.failures = failures.lives.get((life.segment.file, life.segment.number))
            life.cache.clear()
            self._ask(life, checked, why_not)
        for life in lives:
            found = [
                one
                for code, rule in self._rules.items()
                if not _blocked(life, code)
                for one in rule.findings(life.parts.get(code), life)
            ]
            findings += found
            of.update({id(one): (life.segment.file, life.segment.number) for one in found})
        if len({life.segment.file for life in lives}) > 1:
            findings += across(lives, set(self.codes))
        if "H103" in self.codes and not any(one.rule == "H103" and one.severity != "note" for one in findings):
            findings += between_lives(life for life in lives if not _blocked(life, "H103"))
        findings = ranked(_once(findings), of)
        silent = [errors.silence_words(one) for one in errors.silences(failures)[:3]] if "E101" in self.codes else []
        return self._report(findings, checked, why_not, lives, of, context, part.rows, silent)

    def _ask(self, life: Life, checked: dict[str, Checked], why_not: dict[str, str]) -> None:
        """Add up what each rule looked at in a life; the worst value is that of the life it looked at most."""
        for code, rule in self._rules.items():
            mine, blocked = life.parts.get(code), _blocked(life, code)
            row = Checked(0) if blocked else rule.counted(mine, life)
            before = checked[code]
            worst = before.worst if before.looked >= row.looked and before.looked else row.worst
            checked[code] = Checked(before.looked + row.looked, row.unit if row.looked else before.unit, worst)
            if not row.looked:
                why_not.setdefault(code, blocked or rule.because(mine, life))

    def _report(
        self,
        findings: list[Finding],
        checked: dict[str, Checked],
        why_not: dict[str, str],
        lives: Sequence[Life],
        of: dict[int, tuple[str, int]],
        context: Context,
        rows: int,
        reserve: list[str],
    ) -> Report:
        looked_at = {code: row.looked for code, row in checked.items()}
        left = {code: why_not.get(code, "nothing was read") for code, row in checked.items() if not row.looked}
        target, draft = (sum(life.facts[role] for life in lives) for role in ("target", "draft"))
        accounting = context.accounting
        hardly = context.hardly_known
        blocked = next((life.blocked for life in lives if life.blocked), None)
        looked = Looked(looked_at, (target, draft), len(left), blocked, [*([hardly] if hardly else []), *reserve])
        report = Report(self.kind, headline(findings, looked, of), findings=findings, accounting=accounting)
        if any(finding.severity != "note" for finding in findings):
            report.verdict = "findings"
        elif blocked or looked.reserve or not any(times for code, times in looked_at.items() if code[0] in "SHNAR"):
            report.verdict = "unknown"
        report.notes = list(context.warnings)
        known = self._rules
        report.tables = {
            "findings": _findings_table(findings),
            "not_checked": _not_checked_table(left, known),
            "checked": _checked_table(checked, findings, known),
        }
        report.facts = {
            "contract": None if self.contract is None else self.contract.source,
            "files": list(context.files) or list(dict.fromkeys(life.segment.file for life in lives)),
            "segments": [_fact(life) for life in lives],
        }
        empty = self._nothing_asked(rows)
        if empty is not None:
            report.verdict, report.headline, report.facts["undecided"] = "unknown", empty, empty
        _screen(report, of, looked, known, context)
        return report

    def _nothing_asked(self, rows: int) -> str | None:
        """Return why this check is no check at all: a gate that looks at nothing must not be passed."""
        if self.contract is not None and self.contract.says_nothing:
            return f"The contract {self.contract.source} says nothing about a draft, so nothing was checked against it."
        if self.part_of and not rows:
            return f"The selection leaves nothing to check: {self.part_of}."
        return None


def _blocked(life: Life, code: str) -> str | None:
    """Return why a rule about passes does not look at this life."""
    return life.blocked if code[0] in _OF_PASSES else None


def _fact(life: Life) -> dict[str, Any]:
    era = life.era
    return {
        "file": life.segment.file,
        "segment": life.segment.number,
        "sglang": era.era,
        "sglang_known_by": era.how,
        "sglang_release": era.release,
        "layers_read_as": [reading.why for reading in life.readings],
        "target_passes": life.facts["target"],
        "draft_passes": life.facts["draft"],
    }


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


# -------------------------------------------------------------------------------------------------------------- tables


def _findings_table(findings: Iterable[Finding]) -> Table:
    names = ("rule", "severity", "where", "message", "expected", "actual", "evidence", "help")
    table = Table(
        [Column(name, always=name in ("rule", "message")) for name in names],
        title="findings",
        caption="the most causal first",
    )
    for finding in findings:
        table.rows.append({**finding.as_dict(), "where": None if finding.where is None else str(finding.where)})
    return table


def _checked_table(checked: Mapping[str, Checked], findings: Iterable[Finding], known: Mapping[str, Any]) -> Table:
    found = Counter(finding.rule for finding in findings)
    return Table(
        [
            Column("rule", always=True),
            Column("name", always=True),
            Column("looked_at", "looked at", align="right", always=True),
            Column("unit", ""),
            Column("worst", "worst or seen"),
            Column("findings", align="right"),
        ],
        [
            {
                "rule": code,
                "name": known[code].name,
                "looked_at": row.looked,
                "unit": row.unit if row.looked == 1 else plural_of(row.unit),
                "worst": row.worst,
                "findings": found[code],
            }
            for code, row in checked.items()
            if row.looked
        ],
        title="checked",
        caption="how much every rule looked at, and the worst value it saw",
    )


def _not_checked_table(not_checked: Mapping[str, str], known: Mapping[str, Any]) -> Table:
    return Table(
        [Column("rule", always=True), Column("name", always=True), Column("because", always=True)],
        [{"rule": code, "name": known[code].name, "because": why} for code, why in not_checked.items()],
        title="not checked",
        caption="what this log, or a missing contract, leaves open",
    )


# -------------------------------------------------------------------------------------------------------- first screen


def _screen(
    report: Report, of: dict[int, tuple[str, int]], looked: Looked, known: Mapping[str, Any], context: Context
) -> None:
    """Put what a person sees first into the report: every finding with its evidence, the worst first."""
    findings = report.findings
    if not findings or report.facts.get("undecided"):
        mark: Mark = "ok" if report.verdict == "ok" else "unknown"
        report.screen = [Line(mark, report.headline)]
    follows = explained(findings, of)
    for finding in findings:
        cause = follows.get(id(finding))
        place = context.named(finding.where)
        line = Line(_MARKS[finding.severity], f"{finding.rule} {known[finding.rule].name}", place)
        if cause is not None:
            line.text = "   ".join(filter(None, (place, f"explained by {cause}")))
        else:
            line.below = [finding.message]
            line.below += [
                (name, text) for name in ("expected", "actual", "evidence") if (text := getattr(finding, name))
            ]
            line.below += [f"fix: {finding.help}"] if finding.help else []
        report.screen.append(line)
    numbers = Counter(finding.severity for finding in findings)
    parts = [count(numbers[name], name) for name in ("error", "warning", "note") if numbers[name]]
    parts = [", ".join(parts)] if parts else []
    done = sum(1 for number in looked.checked.values() if number)
    undecided = f", {looked.unchecked} undecidable (-v)" if looked.unchecked else ""
    report.screen += ["", "; ".join([*parts, f"{count(done, 'rule')} checked{undecided}"])]
    if findings:
        several = len([one for one in findings if one.severity != "note"]) > 1
        report.screen[0:0] = [report.headline, ""] if several and not report.facts.get("undecided") else []
        report.next = f"logscope rule {findings[0].rule}"


def check(
    run: Run,
    contract: Contract | str | os.PathLike[str] | Mapping[str, Any] | None = None,
    *,
    select: Iterable[str] | None = None,
    ignore: Iterable[str] | None = None,
    sglang_version: str | None = None,
) -> Report:
    """Check a run against every rule. Command: ``logscope check``; parameters and errors: :class:`Checker`."""
    return run.ask(Checker(contract, select=select, ignore=ignore, sglang_version=sglang_version))
