"""Acceptance of any server, in one place: intervals (a line), lines (rows), series (over time), report (``accept``)."""

from logscope.queries.acceptance.lines import DEFAULT_ROUNDS, Key, Lines, Server, gather
from logscope.queries.acceptance.report import Accept, Window, parse_window
from logscope.queries.acceptance.series import Acceptance, Series, Stats

__all__ = [
    "DEFAULT_ROUNDS", "Accept", "Acceptance", "Key", "Lines", "Series", "Server", "Stats", "Window", "gather",
    "parse_window",
]  # fmt: skip
