"""Types: what mypy and pyright say of code that uses the library (tests/typing)."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pages import ROOT, need_modules

COMMANDS = {
    "mypy": ["-m", "mypy", "tests/typing"],
    # Its files stand in pyproject.toml, which a pyrightconfig.json of a folder above would come before.
    "pyright": ["-m", "pyright", "--project", "pyproject.toml", "--pythonpath", sys.executable],
}


@pytest.mark.parametrize("checker", COMMANDS)
def test_a_type_checker_finds_the_mistakes_and_nothing_else(checker: str) -> None:
    """Right uses pass under strict rules, and every line marked as a mistake is one."""
    need_modules(checker)
    done = subprocess.run(
        [sys.executable, *COMMANDS[checker]], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
