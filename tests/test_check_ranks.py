"""check on real servers of several ranks of which one differs, and on those whose passes nothing tells apart.

The logs are cuts of real runs (SGLang 0.5.15.post1, unmarked ranks); the fault of each was put into one rank's process.
"""

from __future__ import annotations

import pytest
from conftest import DATA

from logscope.check import check
from logscope.run import load

RANKS = DATA / "ranks"


def of(name):
    """Return the errors of a log by rule."""
    report = check(load(str(RANKS / f"{name}.log")))
    return report, {finding.rule: finding for finding in report.findings if finding.severity == "error"}


@pytest.mark.parametrize(
    ("name", "rule", "line", "copies", "values"),
    [
        ("rank1-nan", "N101", 5, "1 of 2", "norm 66.5987 against nan"),
        ("rank1-zero", "N102", 5, "1 of 2", "norm 66.5987 against 0.0"),
        ("rank1-stale", "N106", 62, "1 of 2", "norm 124.8535 against 127.5754"),
        ("rank1-other-layers", "H103", 3, "1 of 2", "layer 2 against layer 3"),
        ("tp4-rank2-scaled", None, 9, "1 of 4", "norm 66.63 against 83.2865"),
    ],
)
def test_a_rank_that_differs(name, rule, line, copies, values):
    """R101 names the first pass, both values and how many of n; the fault itself is told as being on one writer."""
    _, found = of(name)
    assert set(found) == {"R101"} | ({rule} if rule else set())
    assert found["R101"].where.line == line
    assert found["R101"].actual.startswith(copies)
    assert values in found["R101"].message
    if rule:
        assert "on 1 writer of 2" in found[rule].message
        assert found[rule].where.line == line


@pytest.mark.parametrize(
    ("name", "why"), [("dp2-mixed", "2 schedulers print"), ("dp-attention-idle", "data-parallel attention")]
)
def test_passes_that_are_not_told_apart_are_not_checked(name, why):
    """Two schedulers without a mark, and padded passes: nothing of S, H, N and R is judged, and it is said."""
    report, found = of(name)
    assert not found
    assert report.verdict == "unknown"
    assert why in report.headline
    assert not report.headline.startswith("No fault found")
    reasons = {row["rule"]: row["because"] for row in report.tables["not_checked"].rows}
    assert all(why in reasons[code] for code in ("S101", "H103", "N101", "N106", "R101"))
