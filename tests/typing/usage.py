"""What a type checker says of code that uses logscope: this file passes, with its marks and with none to spare.

A line marked as an error is a mistake that has to be found: mypy (``warn_unused_ignores``) and pyright
(``reportUnnecessaryTypeIgnoreComment``) report a mark that nothing is behind. Nothing here is ever run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

import polars as pl

import logscope as ls
from logscope import Contract, Event, Finding, Report, Run, Select, Table


def names_have_their_types() -> None:
    """Whatever is public is known by its type, though it is resolved when it is first used."""
    assert_type(ls.__version__, str)
    assert_type(ls.load("server.log", select=Select.of(phase=["verify"])), Run)
    assert_type(ls.open("good.run"), Run)
    assert_type(ls.stream("server.log", follow=True), Iterator[Event])
    ls.load(windw="5m")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ls.laod("server.log")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def runs_answer_with_reports(run: Run) -> None:
    """Questions return reports, frames are polars', and what a run does not have is an error."""
    report = run.summarize()
    assert_type(report, Report)
    assert_type(run.captures().tables["layers"], Table)
    assert_type(run.check("draft-config.json").ok, bool)
    assert_type(run.events, pl.DataFrame)
    assert_type(run.lazy("events"), pl.LazyFrame)
    assert_type(run.sql("select count(*) from events"), pl.DataFrame)
    run.nonsense()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    run.captures(phase="verify")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def findings_are_values(report: Report) -> None:
    """Places and texts of a finding that may be missing are typed as such."""
    assert_type(report.findings, list[Finding])
    for finding in report.findings:
        assert_type(finding.rule, str)
        assert_type(finding.evidence, str | None)
        finding.evidence.upper()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
        if finding.where is not None:
            assert_type(finding.where.line, int)


def contracts_and_errors_are_known(contract: Contract) -> None:
    """Fields of a contract that may be missing are typed as such, and every error of ours carries an exit code."""
    assert_type(contract.aux_layers, tuple[int, ...] | None)
    try:
        ls.load("server.log")
    except ls.InputError as error:
        assert_type(error.exit_code, int)
