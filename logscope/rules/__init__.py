"""The rules of ``check``, one small class each, in modules by what they look at.

This package is responsible for judging: what is wrong with a run, since when, and how a person can verify it. It must
not read files or show anything; it sees segments, forward passes and server lines, as the queries do.

Importing the package registers every rule. A rule's documentation page is docs/rules/CODE.md, shown by
``logscope rule CODE``.
"""

from __future__ import annotations

from logscope.rules import acceptance, captures, failures, norms, parsing, ranks, settings, shapes
from logscope.rules.base import GROUPS, Checked, Rule, Scene, View, page, rules

__all__ = [
    "GROUPS",
    "Checked",
    "Rule",
    "Scene",
    "View",
    "acceptance",
    "captures",
    "failures",
    "norms",
    "page",
    "parsing",
    "ranks",
    "rules",
    "settings",
    "shapes",
]
