"""Two runs compared: read side by side, aligned by meaning, and judged state by state.

This package is responsible for ``logscope.diff``. It must not know how a report is shown. From the ground up: states
(passes as flat arrays), align (which passes are the same), compare (what of them differs), words (a difference in
words), side (one run, read), server (configuration, errors, acceptance), answer (the question).
"""

from __future__ import annotations

from logscope.diffing.answer import DiffReport, diff

__all__ = ["DiffReport", "diff"]
