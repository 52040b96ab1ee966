"""Every rule: a sample where it fires, one where it is silent, a page, and a registry that knows them all."""

from __future__ import annotations

import re
import tomllib

import pytest
from conftest import CASES, DATA, REAL_RUNS, real_log

from logscope.check import check
from logscope.rules import GROUPS, page, rules
from logscope.run import load

RULES = DATA / "rules"
SAMPLES = tomllib.loads((RULES / "samples.toml").read_text(encoding="utf-8"))
# Decided by diff alone.
ELSEWHERE = {"N201"}
# The codes that are relied on outside this repository, with their names.
FIXED = {
    "S101": "aux-width", "S102": "rows", "S103": "rank-shape", "S104": "fc-skipped",
    "H101": "none-in-verify", "H102": "hidden-mode", "H103": "layers", "H104": "embedding", "H105": "impossible-layer",
    "N101": "not-finite", "N102": "zero", "N103": "twin-layers", "N104": "join-norm", "N105": "join-order",
    "N106": "draft-input", "N201": "drift",
    "A101": "nothing-accepted", "A102": "at-ceiling", "A103": "decline", "A104": "rate-definition",
    "R101": "rank-disagreement", "C101": "contract", "E101": "first-error", "E102": "matmul",
    "L101": "unparsed", "L102": "damaged", "L103": "hidden-by-graph", "L104": "contradiction",
}  # fmt: skip


def checked(name):
    """Return the check of a sample."""
    return check(load(str(RULES / f"{name}.log")), SAMPLES[name].get("contract"))


def test_codes_and_names_are_the_fixed_ones():
    """No fixed code is missing or renamed; further ones may join them."""
    known = {code: rule.name for code, rule in rules().items()}
    assert known.items() >= FIXED.items()
    assert all(rule.group in GROUPS and rule.needs and rule.look.__doc__ for rule in rules().values())


@pytest.mark.parametrize("code", sorted(rules().keys() - ELSEWHERE))
def test_a_sample_fires(code):
    """The sample's fault is found by its rule, at its line, with its severity."""
    wanted = SAMPLES[f"{code}-fires"]
    found = [finding for finding in checked(f"{code}-fires").findings if finding.rule == code]
    assert found, wanted["why"]
    assert found[0].severity == wanted["severity"]
    assert found[0].help
    if "line" in wanted:
        assert found[0].where is not None
        assert found[0].where.line == wanted["line"]


@pytest.mark.parametrize("code", sorted(rules().keys() - ELSEWHERE))
def test_a_near_miss_stays_silent(code):
    """The sample that resembles the fault is silent, because the rule looked at it or says why it could not."""
    report = checked(f"{code}-silent")
    assert [finding for finding in report.findings if finding.severity != "note"] == []
    assert code not in {finding.rule for finding in report.findings}
    looked = {row["rule"] for row in report.tables["checked"].rows}
    assert code in looked or code == "H101", SAMPLES[f"{code}-silent"]["why"]


@pytest.mark.parametrize("code", sorted(rules()))
def test_every_rule_has_its_page(code):
    """The page names code, name, severity, group and needs as the registry does, and says when, why, how to verify."""
    rule, text = rules()[code], page(code)
    assert text.startswith(f"# {code} {rule.name}\n")
    assert f"Severity: {rule.severity}. Group: {rule.group}.\nNeeds: {rule.needs}.\n" in text
    for part in ("Fires when", "## What it means", "## How to verify it", "## When it is silent", "## What to do"):
        assert part in text
    assert not re.search(r"[HSNARCEL]\d{3}", re.sub("|".join(rules()), "", text)), "it names a rule there is not"


def test_what_cannot_be_decided_is_said_with_the_reason():
    """Every rule is either checked or listed as not checked with a reason, on every shared log."""
    for path in [*CASES.glob("*.log"), *(real_log(run) for run in REAL_RUNS[:4])]:
        report = check(load(str(path)))
        looked = {row["rule"] for row in report.tables["checked"].rows}
        not_looked = {row["rule"] for row in report.tables["not_checked"].rows}
        assert looked | not_looked == set(rules())
        assert not looked & not_looked
        assert all(len(row["because"]) > 4 for row in report.tables["not_checked"].rows)
        fired = {finding.rule for finding in report.findings}
        assert fired <= looked, "a rule that found something has looked at something"


def test_the_answer_is_the_fixed_json_form():
    """Keys of the report and of a finding are the fixed ones, in plain values."""
    form = checked("N104-fires").as_dict()
    assert list(form) == ["schema", "kind", "verdict", "headline", "findings", "tables", "facts", "accounting"]
    assert form["kind"] == "check"
    assert form["verdict"] == "findings"
    assert list(form["findings"][0]) == [
        "rule", "severity", "message", "where", "expected", "actual", "evidence", "help",
    ]  # fmt: skip
    assert set(form["findings"][0]["where"]) == {"file", "line"}
    assert {"findings", "checked", "not_checked"} <= set(form["tables"])
