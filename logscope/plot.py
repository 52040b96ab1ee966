"""Charts of a run for notebooks: ``run.plot.norms()``, ``run.plot.accept()``, ``run.plot.captures()`` and more.

This module is responsible for joining a run's points to the charts; it must not know how they are drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logscope.queries.points import Charts
from logscope.render import charts

if TYPE_CHECKING:
    from logscope.report import Report
    from logscope.run import Run


class Plot:
    """The charts of one run. Each method returns an Altair chart; the extra ``[report]`` must be installed.

    Raises
    ------
    UsageError
        altair is not installed.

    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._points: Report | None = None

    @property
    def points(self) -> Report:
        """The reduced points behind the charts, as a report of tables."""
        if self._points is None:
            self._points = self._run.ask(Charts())
        return self._points

    def norms(self) -> Any:
        """Return rms per state over passes, by phase."""
        return charts.norms(self.points)

    def captures(self) -> Any:
        """Return hidden captures per target pass: a missing one stands out."""
        return charts.captures(self.points)

    def rows(self) -> Any:
        """Return rows of every target pass and how many states were joined."""
        return charts.rows(self.points)

    def accept(self) -> Any:
        """Return accept len over the log, with its levels."""
        return charts.accept(self._run.accept())

    def ranks(self) -> Any:
        """Return copies that disagree between writers."""
        return charts.ranks(self.points)
