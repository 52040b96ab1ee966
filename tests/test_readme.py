"""README.md: two commands that stand alone, and a session that prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import ROOT, console, python_problems

README = ROOT / "README.md"


def one_liners() -> list[str]:
    """Return the README's commands for setting up."""
    return [
        line
        for block in console.blocks(README.read_text(encoding="utf-8"))
        if block.kind == "bash"
        for line in block.lines
    ]


def test_two_commands_are_single_lines_from_an_empty_clone():
    """Set up and look, set up and test: one line each, from nothing but Python, into a folder git ignores."""
    look, test = one_liners()
    for command in (look, test):
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install -q ")
        assert "\\" not in command
    assert ".venv/bin/logscope " in look
    assert test.endswith(".venv/bin/python -m pytest -q -n auto")
    assert ".venv/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_first_command_prints_a_summary(tmp_path: Path):
    """What the first command runs after setting up is the summary of a real log, with exit code 0."""
    words = one_liners()[0].split(" && ")[-1].removeprefix(".venv/bin/")
    console.scratch(tmp_path)
    command = console.Command(1, words)
    printed, code = console.run([command, console.Command(2, "echo $?")], tmp_path)
    assert code == ["0"]
    assert printed[0] == "samples/stale-states/server.log   5,508 lines, all 5,475 records whole"


def test_session_prints_what_the_page_says(tmp_path: Path):
    """Every command of the session prints what stands below it."""
    found = console.problems(README, console.scratch(tmp_path))
    assert not found, "\n\n".join(found)


def test_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The Python of the page runs as it stands."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert not python_problems(README, console.scratch(tmp_path))


def test_ci_runs_the_test_command_of_the_page():
    """.ci/run takes the command out of the README, so there is exactly one to take."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    taken = re.search(r"command=\$\(sed -n '(.*)' README\.md\)", script)
    assert taken is not None
    assert len([line for line in one_liners() if "pytest" in line]) == 1
    assert "export LOGSCOPE_TEST_ALL=1" in script


def test_no_page_installs_somebody_elses_package():
    """The name logscope on the package index belongs to others: no text tells anyone to install it."""
    bad = re.compile(r"(?:pip|pipx|uv tool|uvx?)\s+(?:install\s+)?(?:-\S+\s+)*logscope(?!-eagle3)\b")
    for path in [README, *(ROOT / "docs").rglob("*.md"), *(ROOT / "samples").rglob("*.md"), ROOT / "pyproject.toml"]:
        assert not bad.search(path.read_text(encoding="utf-8")), path
