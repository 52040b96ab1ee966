"""The rules of ``check``, one decorated function each, in modules by what they look at.

This package is responsible for judging: what is wrong with a run, since when, and how a person can verify it. It must
not read files or show anything; it sees tables, as the questions do.

Importing the package registers every rule. A rule's documentation page is docs/rules/CODE.md, shown by
``logscope rule CODE``.
"""

from __future__ import annotations

from logscope.rules import acceptance, captures, errors, norms, parsing, ranks, settings, shapes
from logscope.rules.registry import GROUPS, Checked, Rule, page, rules

__all__ = [
    "GROUPS", "Checked", "Rule", "acceptance", "captures", "errors", "norms", "page", "parsing", "ranks", "rules",
    "settings", "shapes",
]  # fmt: skip
