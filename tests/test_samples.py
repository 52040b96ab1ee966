"""samples/: every folder tells its story, its commands print what the page says, and `check` says what the list says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import ROOT, console

import logscope

SAMPLES = ROOT / "samples"
FOLDERS = sorted(path for path in SAMPLES.iterdir() if path.is_dir())
# A size at which a clone stays quick.
MOST_BYTES = 4_000_000
HOSTS = {"example.invalid", "127.0.0.1"}


def log_of(folder: Path) -> Path:
    """Return a sample's log: a server's, or the folder of records that the probe wrote."""
    return log if (log := folder / "server.log").exists() else folder / "records"


def listed() -> dict[str, str]:
    """Return what the list of samples says of each: folder to the last cell of its row."""
    rows = re.findall(r"(?m)^\| \[([\w-]+)\]\(\1/README\.md\) \|.*\| ([^|]+) \|$", (SAMPLES / "README.md").read_text())
    return dict(rows)


def test_every_folder_is_listed():
    """The list names every folder, and no other."""
    assert sorted(listed()) == [folder.name for folder in FOLDERS]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_folder_tells_its_story(folder: Path):
    """A sample says what happened, how it was made and what logscope says of it, beside its log."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {folder.name}: ")
    for part in ("**The story.**", "**How it was made.**", "**What logscope says of it.**"):
        assert part in text
    assert f"samples/{folder.name}/{log_of(folder).name}" in text
    assert log_of(folder).stat().st_size > 0


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_commands_print_what_the_page_says(folder: Path, tmp_path: Path):
    """Every console block of a sample's page is run and compared."""
    found = console.problems(folder / "README.md", console.scratch(tmp_path))
    assert not found, "\n\n".join(found)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_check_says_what_the_list_says(folder: Path):
    """The rules that fire on a sample are those the list of samples names, errors and warnings apart from notes."""
    own = sorted(folder.glob("*.toml"))
    report = logscope.load(log_of(folder), grammars=own).check(SAMPLES / "draft-config.json")
    said = listed()[folder.name]
    loud = [finding.rule for finding in report.findings if finding.severity != "note"]
    if said == "no fault found":
        assert (loud, report.ok) == ([], True)
    elif said.startswith("note "):
        assert loud == []
        assert said.removeprefix("note ") in [finding.rule for finding in report.findings]
    else:
        assert sorted(set(loud)) == sorted(said.split(", "))


def test_samples_name_no_host():
    """No sample holds a web address or a machine's name that leads anywhere."""
    for path in SAMPLES.rglob("*"):
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            assert set(re.findall(r"https?://([^/:\s'\"]+)", text)) <= HOSTS, path


def test_samples_stay_small():
    """All samples together stay below four megabytes."""
    assert sum(path.stat().st_size for path in SAMPLES.rglob("*") if path.is_file()) < MOST_BYTES
