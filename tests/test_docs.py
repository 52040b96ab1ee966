"""docs/: what pages print is what the program prints, and everything the program has is found on a page."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import REAL_RUNS, truth
from pages import ALL, ROOT, anchors, console, kinds, name_of, need_modules, python_problems

import logscope
from logscope import grammar
from logscope.check import rules
from logscope.cli import main, session
from logscope.contract import Contract
from logscope.diffing import CODES
from logscope.grammar import READERS, prefixes, proof
from logscope.model import DURING, PHASES, Accounting
from logscope.redact import KINDS
from logscope.tables import schema

sys.path.insert(0, str(ROOT / "docs"))

import generate
import reference
import schemas

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
# Kinds of blocks that are shown and never run. Everything with a `$` before it is a console block, and is run.
SHOWN = {"bash", "text", "toml", "yaml", "json", "py", "sql", "ini"}
RUN = {"console", "python", "pycon"}
SAMPLE_LOGS = sorted((ROOT / "samples").glob("*/server.log"))


def text_of(name: str) -> str:
    """Return a page of docs/."""
    return (DOCS / name).read_text(encoding="utf-8")


def every_page() -> str:
    """Return the text of all pages."""
    return "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


# ------------------------------------------------------------------------------------------------ pages do what they say


@pytest.mark.parametrize("page", [page for page in PAGES if "console" in kinds(page)], ids=name_of)
def test_console_blocks_print_what_the_page_says(page: Path, tmp_path: Path):
    """Every command on a page is run and prints what stands below it."""
    found = console.problems(page, console.scratch(tmp_path))
    assert not found, "\n\n".join(found)


@pytest.mark.parametrize("page", [page for page in PAGES if kinds(page) & {"python", "pycon"}], ids=name_of)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Every Python block of a page runs, and prints what stands below ``>>>``."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert not python_problems(page, console.scratch(tmp_path))


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_every_block_has_a_kind(page: Path):
    """No block escapes: what has a ``$`` is run, what is not run has no ``$``, and every block says its kind."""
    for block in console.blocks(page.read_text(encoding="utf-8")):
        assert block.kind in SHOWN | RUN, f"{name_of(page)}:{block.line}: a block of kind '{block.kind}'"
        if block.kind != "console":
            assert not [line for line in block.lines if line.startswith("$ ")], f"{name_of(page)}:{block.line}"


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_links_lead_somewhere(page: Path):
    """Every relative link of a page names a file of the checkout, and a heading in it where it names one."""
    text = page.read_text(encoding="utf-8")
    for block in console.blocks(text):
        text = text.replace("\n".join(block.lines), "")
    for target in re.findall(r"(?<!!)\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.is_relative_to(ROOT), target
        assert path.exists(), f"{name_of(page)}: {target}"
        if anchor:
            assert anchor in anchors(path), f"{name_of(page)}: {target}"


@pytest.mark.parametrize("page", [*generate.schema_files(), *PAGES], ids=name_of)
def test_generated_parts_are_current(page: Path):
    """What docs/generate.py would write is what stands there."""
    assert generate.generated(page) == page.read_text(encoding="utf-8"), "python docs/generate.py"


def test_pages_speak_of_the_project_alone():
    """No page holds a path of the machine it was written on."""
    for page in ALL:
        assert not re.search(r"(?<![\w.])/(?:tmp|work|root|home/(?!me\b))/?\w", page.read_text(encoding="utf-8")), page


def test_site_builds_without_warnings(tmp_path: Path):
    """The same Markdown becomes a site; a page nobody links to, or a link to nowhere, is an error."""
    need_modules("sphinx", "myst_parser", "furo")
    docs = tmp_path / "docs"
    shutil.copytree(DOCS, docs, ignore=shutil.ignore_patterns("__pycache__"))
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(docs), str(tmp_path / "site")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "tutorial.html").exists()


# --------------------------------------------------------------------------------------- everything is found on a page


def commands() -> list[tuple[str, Any]]:
    """Return every command that can be run, with its words."""
    return [(path, command) for path, command in reference.tree() if reference.is_leaf(path, command)]


@pytest.mark.parametrize(("path", "command"), commands(), ids=[path for path, _ in commands()])
def test_command_is_found(path: str, command: Any):
    """Every command has a section of its own with all of its options, each of which says what it does."""
    page = text_of("reference/cli.md")
    section = re.search(rf"(?ms)^##+ {re.escape(path)}$(.*?)(?=^##|\Z)", page)
    assert section is not None
    assert " ".join(command.help.split()) in " ".join(section[1].split())
    for one in command.params:
        if one.param_type_name == "option" and not one.hidden:
            assert one.help, f"{path} {one.name} has no help"
            for word in one.opts:
                assert re.search(rf"(?<![\w-]){word}(?![\w-])", section[1]), f"{path} {word}"


def test_settings_are_found():
    """Every option is a key with its environment variable on the page of settings, with the commands that know it."""
    page = text_of("reference/settings.md")
    for path, command in commands():
        for one in command.params:
            if one.param_type_name == "option" and one.envvar and one.name != "explain_python":
                row = re.search(rf"(?m)^\| `{one.name}` \| `--[\w-]+` \| `{one.envvar}` \| [^|]+ \| (.*) \|$", page)
                assert row is not None, one.name
                reads = any(other.name == "phase" for other in command.params)
                assert (
                    row[1] == "every command"
                    or ("every command that reads logs" in row[1] and reads)
                    or f"`{path.removeprefix('logscope ')}`" in row[1]
                ), (one.name, path)


def test_environment_is_found():
    """Every environment variable the program asks for stands on the page of settings."""
    page = text_of("reference/settings.md")
    for module in (ROOT / "logscope").rglob("*.py"):
        code = module.read_text(encoding="utf-8")
        for name in re.findall(r"environ(?:\.get\(|\[)\"(\w+)\"", code):
            assert f"`{name}`" in page or name in ("HOME", "_LOGSCOPE_COMPLETE"), f"{name} of {module.name}"


def test_rules_are_found():
    """Every rule stands in the list with its name and needs, and has a page; no page is left without a rule."""
    page = text_of("reference/rules.md")
    for code, rule in rules().items():
        assert f"| [{code}](../rules/{code}.md) | {rule.name} | {rule.severity} |" in page
    for code, (name, severity) in CODES.items():
        assert f"| [{code}](../rules/{code}.md) | {name} | {severity} |" in page
    assert {path.stem for path in (DOCS / "rules").glob("*.md")} == {*rules(), *CODES}
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "logscope").rglob("*.py"))
    for named in set(re.findall(r"\"([SHNARCELD]\d{3}|accept-min)\"", code)):
        assert named in page, named


def test_exit_codes_are_found():
    """Every exit code the program knows is explained."""
    page = text_of("reference/exit-codes.md")
    known = {value for name, value in vars(session).items() if name.isupper() and isinstance(value, int)}
    assert known == {int(code) for code in re.findall(r"(?m)^\| (\d+) \|", page)}


def test_public_names_are_found():
    """Every public name, and every public member of what they are, has a heading."""
    headings = re.findall(r"(?m)^#{2,3} (\S+)$", text_of("reference/python.md"))
    assert {f"logscope.{name}" for name in logscope.__all__ if name != "__version__"} <= set(headings)
    for name in ("Run", "Report", "Select", "Contract", "ForwardPass", "Table"):
        for member, value in vars(getattr(logscope, name)).items():
            if not member.startswith(("_", "model_")) and (inspect.isfunction(value) or isinstance(value, property)):
                assert f"{name}.{member}" in headings, f"{name}.{member}"


def test_exceptions_are_drawn():
    """The tree of exceptions is on the page about the house, whole."""
    page = text_of("explanation/design.md")
    errors = importlib.import_module("logscope.errors")
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, Exception):
            assert name in page


def test_words_are_found():
    """Phases, stages, kinds of redaction and the columns of every frame are explained."""
    glossary = text_of("explanation/glossary.md")
    for word in (*PHASES, *DURING):
        assert word in glossary
    for kind in KINDS:
        assert f"| `{kind}` |" in text_of("howto/share-a-log.md")
    for columns in (schema.EVENTS, schema.FORWARDS, schema.UNPARSED):
        for column, dtype in columns.items():
            assert f"| `{column}` | `{str(dtype).partition('(time')[0]}` |" in text_of("reference/frames.md")
    for key in Accounting().as_dict():
        assert f"`{key}`" in text_of("reference/report-json.md")
    for key in (*Contract.model_fields, "draft_config", "target_config"):
        assert f"`{key}`" in text_of("reference/contract.md") or key == "source"


def test_events_are_found():
    """Every event that a shipped grammar names stands on the page of events; every key of the record too."""
    page = text_of("reference/events.md")
    for event in grammar.load().events:
        marks = {d.event for file in grammar.load().files for d in file.dialects if d.kind == "mark"}
        assert f"| `{event}` |" in page or event in marks
    for key in schemas.event_schema()["properties"]:
        assert f"| `{key}` |" in page


def test_grammar_keys_are_found():
    """Every key a grammar file may have is explained, and so is every reader."""
    page = text_of("reference/grammars.md")
    for key in (*proof.Event.model_fields, *proof.Shown.model_fields):
        assert f"| `{key}` |" in page, key
    for key in (field.alias or name for name, field in proof.File.model_fields.items()):
        assert re.search(rf"`(?:\[+)?{key}(?:\.NAME)?(?:\]+)?`", page), key
    for reader in READERS:
        assert f"| `{reader}` |" in page, reader


def test_prefix_forms_are_read():
    """Every form on the page of prefixes is peeled off to its end, and gives something."""
    forms = re.findall(r"(?m)^\| `([^`]+)` \| (?!`fields\.repeated)", text_of("reference/prefixes.md"))
    assert len(forms) >= 13
    for form in forms:
        line = form.replace("\\|", "|")
        end, found = prefixes.peel(line)
        assert (line[end:].strip(), found == prefixes.NO_PREFIX) == ("", False), form


def test_programs_that_tests_need_are_installed_by_ci():
    """.ci/run installs a package for every program a test asks for."""
    provided = {
        "busybox": "busybox", "grep": "", "setpriv": "util-linux", "unshare": "util-linux", "zstd": "zstd", "xz": "xz-utils",
        "bzip2": "bzip2", "sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client", "tcsh": "tcsh",
        "chromium": "chromium", "tmux": "tmux",
    }  # fmt: skip
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for test in (ROOT / "tests").glob("*.py"):
        for tool in re.findall(r"need_tool\(\"([\w-]+)\"\)", test.read_text(encoding="utf-8")):
            assert provided[tool] in script, f"{tool} of {test.name}"


# --------------------------------------------------------------------------------------------------- fixed JSON forms


def validator(name: str) -> Any:
    """Return a validator for one of the published schemas."""
    from jsonschema import Draft202012Validator

    schema = json.loads((DOCS / "reference" / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what a command prints; findings are fine, trouble is not."""
    code = main(list(words))
    out: str = capsys.readouterr().out
    assert code in (0, 1), words
    return out


@pytest.mark.parametrize("log", SAMPLE_LOGS, ids=lambda log: log.parent.name)
def test_events_are_as_their_schema_says(log: Path, capsys: pytest.CaptureFixture[str]):
    """Every distinct form of event of every sample holds to event.schema.json."""
    check = validator("event")
    forms: dict[Any, str] = {}
    for line in printed(capsys, "events", str(log), "-f", "ndjson").splitlines():
        record = json.loads(line)
        kinds = tuple((key, type(value).__name__) for key, value in record.items())
        forms.setdefault((record["event"], record["phase"], record["during"], record["intact"], kinds), line)
    assert forms
    for line in forms.values():
        assert not list(check.iter_errors(json.loads(line))), line


@pytest.mark.parametrize(
    "command", ["summarize", "captures", "shapes", "norms", "accept", "config", "errors", "check", "diff"]
)
def test_reports_are_as_their_schema_says(command: str, capsys: pytest.CaptureFixture[str]):
    """Every report of every sample holds to report.schema.json."""
    check = validator("report")
    for log in SAMPLE_LOGS:
        sides = [str(SAMPLE_LOGS[0]), str(log)] if command == "diff" else [str(log)]
        report = json.loads(printed(capsys, command, *sides, "-q", "-f", "json"))
        assert report["kind"] == command
        assert not [error.message for error in check.iter_errors(report)], (command, log)


def test_schema_refuses_what_is_none():
    """The schemas do refuse: a record without a key, a report whose verdict is none."""
    assert list(validator("event").iter_errors({"file": "x"}))
    report = logscope.Report("check", "fine").as_dict()
    assert not list(validator("report").iter_errors(report))
    assert list(validator("report").iter_errors({**report, "verdict": "perhaps"}))
    assert list(validator("report").iter_errors({**report, "kind": "summarize"}))


def test_phases_page_counts_what_was_counted():
    """The numbers on the page about phases are those of the real runs: verifies after a decode step, rows of extends."""
    page = " ".join(text_of("explanation/phases.md").split())
    verifies = [0, 0]
    extends = [0, 0]
    for run in REAL_RUNS:
        before = None
        tokens = {"no-speculation": None}.get(run, 4)
        for one in truth(run):
            if one["kind"] != "forward":
                continue
            if one["model"] == "target" and one["via"] == "runner" and tokens:
                if one["forward_mode"] == "TARGET_VERIFY":
                    verifies[before != ("draft", "DECODE")] += 1
                elif one["forward_mode"] == "EXTEND":
                    extends[one["rows"] % tokens == 0] += 1
            before = (one["model"], one["forward_mode"])
    assert verifies[1] == 0
    assert f"each of {verifies[0]:,} verifies" in page
    assert f"{extends[1]:,} of {sum(extends):,} prefills" in page
