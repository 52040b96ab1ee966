"""Shared fixtures: where the sample data stands, and how a missing tool is treated."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The suite draws the same examples every time, and no clock ends one: a change is judged by what it changed.
# `benchmarks/README.md` says how to look for new ones.
settings.register_profile("suite", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("LOGSCOPE_HYPOTHESIS", "suite"))

DATA = Path(__file__).parent / "data"
CASES = DATA / "cases"
REAL = DATA / "real"
CASE_LOGS = sorted(CASES.glob("*.log"))
REAL_RUNS = sorted(path.name for path in REAL.iterdir() if (path / "server.log.gz").exists())


def sidecar(log: Path) -> dict[str, Any]:
    """Return the exact values that stand in the JSON block of a case's sidecar."""
    text = log.with_suffix(".md").read_text(encoding="utf-8")
    found = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert found is not None, f"{log} has no JSON block"
    values: dict[str, Any] = json.loads(found[1])
    return values


def real_log(run: str) -> Path:
    """Return the path of a real run's compressed log."""
    return REAL / run / "server.log.gz"


def real_bytes(run: str) -> bytes:
    """Return a real run's log, decompressed."""
    return gzip.decompress(real_log(run).read_bytes())


def truth(run: str) -> list[dict[str, Any]]:
    """Return the ground truth of a real run, one dict per line."""
    with gzip.open(REAL / run / "truth.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def need_tool(name: str) -> str:
    """Return the path of a program, or skip with the reason; LOGSCOPE_TEST_ALL=1 turns the skip into a failure."""
    found = shutil.which(name)
    if found is None:
        if os.environ.get("LOGSCOPE_TEST_ALL") == "1":
            pytest.fail(f"{name} is not installed, and LOGSCOPE_TEST_ALL=1 asks for every test")
        pytest.skip(f"{name} is not installed")
    return found
