"""The command line: cases a user could have written, exit codes, closed pipes, crashes, start-up."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from conftest import CASE_LOGS, DATA, real_log

import logscope
import logscope.queries.captures
from logscope import cli, settings
from logscope.cli import explain
from logscope.cli.commands import COMMANDS, GRAMMAR
from logscope.errors import UsageError
from logscope.model import DURING, PHASES, Prefix
from logscope.redact import KINDS, Redactor
from logscope.render import FORMATS

HERE = Path(__file__).parent
CASES = sorted((HERE / "cli").glob("*.toml"))
KEYS = {
    "promise", "command", "files", "copies", "env", "stdin", "exit", "stdout", "stderr", "stdout_has", "stdout_lacks",
    "stderr_has", "stderr_lacks", "json",
}  # fmt: skip
FIXED = [
    "fetch", "summarize", "captures", "shapes", "norms", "accept", "config", "errors", "check", "contract", "diff",
    "events", "report", "grammar", "probe", "rule",
]  # fmt: skip
READING = [name for name in FIXED if name not in ("fetch", "contract", "grammar", "probe", "rule")]


def at(value: Any, path: str) -> Any:
    """Return what stands at a path of keys and positions."""
    for part in path.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


@pytest.fixture
def clean(tmp_path, monkeypatch):
    """Stand in an empty folder, without any setting of the machine's own."""
    for name in list(os.environ):
        if name.startswith("LOGSCOPE_") or name in ("NO_COLOR", "COLUMNS", "XDG_CONFIG_HOME"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: str, stdin: str | bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command in a process of its own."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOGSCOPE_")}
    return subprocess.run(
        [sys.executable, "-m", "logscope", *args], input=data, capture_output=True, env={**kept, **env}, check=False
    )


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path, clean, capsys, monkeypatch):
    """Every file of tests/cli: the promise it states."""
    case = tomllib.loads(path.read_text(encoding="utf-8"))
    assert set(case) <= KEYS, set(case) - KEYS
    assert case["promise"]
    for name, text in case.get("files", {}).items():
        target = clean / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())
    for name, source in case.get("copies", {}).items():
        shutil.copyfile(DATA / source, clean / name)
    for name, value in case.get("env", {}).items():
        monkeypatch.setenv(name, value.replace("{here}", str(clean)))
    if "stdin" in case:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(case["stdin"].encode())))
    code = cli.main(shlex.split(case["command"]))
    out, err = capsys.readouterr()
    assert (code, err if code == 2 and case["exit"] != 2 else "") == (case["exit"], "")
    for stream, text in (("stdout", out), ("stderr", err)):
        if stream in case:
            assert text == case[stream]
        for part in case.get(f"{stream}_has", []):
            assert part in text
        for part in case.get(f"{stream}_lacks", []):
            assert part not in text
    for where, value in case.get("json", {}).items():
        assert at(json.loads(out), where) == value


def test_names_of_commands_are_fixed():
    """The command names other people's scripts use are all there, and none besides."""
    assert list(COMMANDS) == FIXED
    assert list(GRAMMAR) == ["list", "show", "check", "explain", "suggest", "snippet"]


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.usefixtures("clean")
def test_every_command_has_help_and_every_option_says_something(name, capsys):
    """--help of every command exits with 0 and gives every option a sentence; its variable is LOGSCOPE_OPTION."""
    assert cli.main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"Usage: logscope {name}" in out
    command = COMMANDS[name]
    for parameter in command.params:
        if parameter.name in ("help", "version") or getattr(parameter, "hidden", False):
            continue
        assert parameter.help
        if parameter.param_type_name == "option":
            long = next(opt for opt in parameter.opts if opt.startswith("--"))
            assert parameter.envvar == "LOGSCOPE_" + long.removeprefix("--").replace("-", "_").upper()
            assert long in out


EXAMPLES = [
    f"{name} {inner}".strip()
    for name in FIXED
    if name not in ("fetch", "probe")  # on other machines
    for inner in (COMMANDS[name].commands if name in ("contract", "grammar") else [""])
]


@pytest.mark.parametrize("words", EXAMPLES)
def test_the_example_of_every_help_works_as_it_stands(words, clean, capsys):
    """What a help ends with can be pasted where the samples are."""
    assert cli.main([*words.split(), "--help"]) == 0
    example = re.search(r"For example:\n +logscope (.*)", capsys.readouterr().out)
    for name in ("samples", "grammars"):
        (clean / name).symlink_to(HERE.parent / name)
    assert example
    assert cli.main(shlex.split(example[1])) in (0, 1)
    out, err = capsys.readouterr()
    assert "error" not in err
    assert out or "wrote" in err


def test_shared_options_are_the_same_objects_everywhere():
    """A shared option means the same in every command: same names, help, variable."""
    seen: dict[str, tuple[Any, ...]] = {}
    for name in READING:
        options = {parameter.name: parameter for parameter in COMMANDS[name].params}
        for shared in (
            "phase",
            "role",
            "rank",
            "site",
            "layer",
            "during",
            "since",
            "until",
            "format",
            "output",
            "grammar",
            "color",
            "quiet",
            "verbose",
            "debug",
            "version",
        ):
            option = options[shared]
            said = (tuple(option.opts), option.help, option.envvar)
            assert seen.setdefault(shared, said) == said


def test_completion_knows_what_there_is():
    """Completion offers the words the program accepts: phases, stages, forms, rules."""
    options = {parameter.name: parameter for parameter in COMMANDS["check"].params}

    def offers(name: str, incomplete: str = "") -> list[str]:
        return [item.value for item in options[name].shell_complete(SimpleNamespace(), incomplete)]

    assert offers("phase") == list(PHASES)
    assert offers("phase", "ve") == ["verify"]
    assert offers("during") == list(DURING)
    assert offers("format") == list(FORMATS)
    assert offers("role") == ["target", "draft"]
    assert "S101" in offers("select", "S")
    assert set(offers("redact")) == {"all", *KINDS}


def test_completion_answers_a_shell():
    """The shell's question is answered with commands, without reading any log."""
    answer = run(_LOGSCOPE_COMPLETE="complete_bash", COMP_WORDS="logscope ca", COMP_CWORD="1")
    assert answer.stdout.decode().split() == ["captures"]


HEAVY = ("polars", "pydantic", "rich", "numpy", "regex", "logscope.run")


@pytest.mark.parametrize(
    ("args", "absent"),
    [
        (["--help"], HEAVY),
        (["captures", "--help"], HEAVY),
        (["--version"], tuple(name for name in HEAVY if name != "regex")),  # it names the grammars
        (["summarize", str(real_log("healthy-topk1"))], ("pydantic", "rich")),
        (["captures", str(real_log("healthy-topk1")), "-f", "json"], ("pydantic", "rich")),
        (["events", str(CASE_LOGS[0]), "-f", "ndjson"], ("pydantic", "rich")),
    ],
)
def test_commands_import_only_what_they_need(args, absent):
    """Help imports nothing heavy; tables need numpy and polars, but nothing that reads a log needs pydantic or rich."""
    code = (
        "import sys; from logscope.cli import main; code = main(sys.argv[1:]);"
        f" print([name for name in {absent!r} if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    answer = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, check=True)
    assert answer.stderr.decode().splitlines()[-1] == "[]"


def test_help_starts_quickly(tmp_path):
    """--help takes at most 8 times the processor time of python itself; byte code is cached, as users have it."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(tmp_path)

    def seconds(*words: str) -> float:
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, env=env)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        return used.ru_utime + used.ru_stime

    commands = {"python": ["-c", "pass"], "help": ["-m", "logscope", "--help"]}
    seconds(*commands["help"])
    # What else the machine does slows either: of pairs, the one that met the least of it tells.
    assert min(seconds(*commands["help"]) / seconds(*commands["python"]) for _ in range(9)) <= 8


@pytest.mark.parametrize("args", [["events", "-f", "ndjson"], ["events"], ["summarize", "-f", "json"], ["check"]])
def test_a_closed_pipe_ends_quietly(args):
    """Who reads only the first line gets it; we say nothing and exit with 0."""
    command = [sys.executable, "-m", "logscope", args[0], str(real_log("fault-stale-states")), *args[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read()
        code = process.wait()
    # A result that fits into the pipe was written whole before we closed it; check then answers with its findings.
    assert code == 0 or (args[0] == "check" and code == 1)
    assert err == b""


def test_a_full_disk_is_trouble(tmp_path):
    """A result that cannot be written is exit 2 with the reason, on stdout and in a file."""
    log = str(real_log("fault-embed-captured"))
    for args in (["summarize"], ["events", "-f", "ndjson"]):
        with Path("/dev/full").open("wb") as full:
            answer = subprocess.run(
                [sys.executable, "-m", "logscope", args[0], log, *args[1:]],
                stdout=full,
                stderr=subprocess.PIPE,
                check=False,
            )
        assert answer.returncode == 2
        assert b"No space left on device" in answer.stderr
        assert b"bug" not in answer.stderr
    answer = run("summarize", log, "-o", str(tmp_path / "not" / "there.json"))
    assert answer.returncode == 2
    assert b"cannot be written" in answer.stderr
    assert not list(tmp_path.iterdir())


def test_a_log_that_is_piped_in_needs_no_name():
    """What is piped in is read as with ``-``: check of a healthy log, and of one that is not."""
    for name, code in (("healthy-topk1", 0), ("fault-stale-states", 1)):
        piped = run("check", "-q", stdin=gzip.decompress((DATA / "real" / name / "server.log.gz").read_bytes()))
        named = run("check", "-q", "-", stdin=gzip.decompress((DATA / "real" / name / "server.log.gz").read_bytes()))
        assert (piped.returncode, piped.stdout) == (code, named.stdout)


def test_a_closed_stdout_is_no_crash():
    """Started without a stdout at all, the exit code still is the answer."""
    command = f"{shlex.quote(sys.executable)} -m logscope summarize {shlex.quote(str(CASE_LOGS[0]))} >&-"
    answer = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, b"")


def test_interrupted_is_130(tmp_path):
    """Ctrl-C while waiting for input: exit 130, nothing said, no traceback."""
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    with subprocess.Popen(
        [sys.executable, "-m", "logscope", "summarize", str(fifo)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        writer = os.open(fifo, os.O_WRONLY)
        os.write(writer, b"one line\n")
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        os.close(writer)
    assert (process.returncode, out, err) == (130, b"", b"")


class UnexpectedError(Exception):
    """What no one expects."""


@pytest.mark.usefixtures("clean")
def test_a_crash_is_2_and_says_it_is_ours(capsys, monkeypatch):
    """An unexpected exception is exit 2, never 1: a bug of ours, with its place in the package, and how to report it."""
    # A library that fails, in a checkout called logscope: the place is ours, which called it.
    code = 'def fail(*_):\n    raise UnexpectedError("unexpected \\x1b[31m")\n'
    space = {"UnexpectedError": UnexpectedError}
    exec(compile(code, "/home/me/logscope/.venv/library.py", "exec"), space)  # noqa: S102 - two lines above

    monkeypatch.setattr(logscope.queries.captures.Captures, "report", space["fail"])
    log = str(CASE_LOGS[0])
    assert cli.main(["captures", log]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("bug: this is a bug in logscope, not in your log: UnexpectedError: unexpected \\x1b[31m\n")
    assert re.search(r"it happened at logscope/(?:\w+/)*\w+\.py:\d+$", err, re.MULTILINE)
    assert "--debug" in err
    assert "Traceback" not in err
    assert cli.main(["captures", log, "--debug"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    monkeypatch.setenv("LOGSCOPE_DEBUG", "1")
    assert cli.main(["captures", log]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize("log", CASE_LOGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("command", ["summarize", "captures", "shapes", "norms", "accept", "config", "errors", "check"])
@pytest.mark.usefixtures("clean")
def test_every_command_answers_every_case(command, log, capsys):
    """No command crashes on any field case: exit 0 or 1, nothing on stderr but warnings, valid JSON."""
    code = cli.main([command, str(log), "-f", "json"])
    out, err = capsys.readouterr()
    assert code in (0, 1)
    assert "bug:" not in err
    if log.stem.startswith("30"):
        assert (code, out) == (1, "")
        return
    report = json.loads(out)
    assert report["schema"] == 1
    accounting = report["accounting"]
    assert accounting["records"] == sum(accounting[key] for key in ("whole", "partial", "rejoined", "cut", "unparsed"))
    assert accounting["bytes"] == log.stat().st_size
    if command in ("summarize", "captures", "shapes", "norms", "config"):
        assert code == 0


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.usefixtures("clean")
def test_every_form_of_a_real_report(form, capsys):
    """Every form writes, and says the headline (CSV: the findings)."""
    log = str(real_log("fault-stale-states"))
    assert cli.main(["check", log, "-f", form]) == 1
    out, _ = capsys.readouterr()
    assert "N106" in out


def shown_in(width: int, *args: str, cwd: Path | None = None, **env: str) -> str:
    """Return what a terminal of this width shows."""
    here, there = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    size = {"COLUMNS": str(width), "LINES": "50", "TERM": "xterm"}
    command = [sys.executable, "-m", "logscope", *args]
    with subprocess.Popen(command, stdin=there, stdout=there, stderr=there, cwd=cwd, env={**kept, **size, **env}):
        os.close(there)
        out = b""
        with contextlib.suppress(OSError):  # a terminal ends with an error
            while piece := os.read(here, 65536):
                out += piece
    os.close(here)
    return out.decode()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_gets_its_width_and_colours(width, clean):
    """On a terminal there are colours and no line is wider than the window; the captured layers are always there."""
    shutil.copyfile(real_log("healthy-topk1"), clean / "server.log.gz")  # a command is not folded: it is to be copied
    out = shown_in(width, "captures", "server.log.gz", cwd=clean)
    assert "\x1b[" in out
    plain = re.sub(r"\x1b\[[\d;]*m", "", out)
    assert max(len(line) for line in plain.splitlines()) <= width
    assert "layers 3, 31, 59" in plain


def test_a_terminal_with_no_color():
    """NO_COLOR on a terminal: the width is kept, there is no escape sequence."""
    out = shown_in(80, "captures", str(real_log("healthy-topk1")), NO_COLOR="1")
    assert "\x1b" not in out
    assert max(len(line) for line in out.splitlines() if not line.startswith("next: ")) <= 80


def test_an_encoding_without_blocks_gets_ascii():
    """Where the encoding lacks blocks and rules, nothing fails and nothing is lost."""
    answer = run("accept", str(real_log("healthy-topk1")), PYTHONIOENCODING="ascii")
    assert answer.returncode == 0
    assert answer.stdout.isascii()


@pytest.mark.usefixtures("clean")
def test_explained_python_runs_and_says_the_same(capsys):
    """The lines that --explain-python prints print what the command prints."""
    log = str(real_log("fault-embed-captured"))
    words = ["captures", log, "--phase", "extend"]
    assert cli.main([*words, "--explain-python"]) == 0
    lines, _ = capsys.readouterr()
    answer = subprocess.run([sys.executable, "-c", lines], capture_output=True, check=True)
    assert cli.main(["captures", log, "--phase", "extend"]) == 0
    out, _ = capsys.readouterr()
    said = [line for line in out.splitlines() if not line.startswith("selected: ")]
    assert set(filter(None, answer.stdout.decode().splitlines())) >= set(filter(None, said))


@pytest.mark.usefixtures("clean")
def test_events_count_what_stands_in_the_bytes(capsys):
    """One object for each debug record, with its true line and offset; --raw gives back the bytes."""
    log = DATA / "cases" / "26-dialects-of-the-debug-tag.log"
    data = log.read_bytes()
    assert cli.main(["events", str(log), "-f", "ndjson"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for event in events:
        assert data.count(b"\n", 0, event["offset"]) + 1 == event["line"]
    assert cli.main(["events", str(log), "--raw"]) == 0
    raw = capsys.readouterr().out.splitlines()
    assert len(raw) == len(events)
    for event, text in zip(events, raw, strict=True):
        assert text.split("\\n")[0] in data[event["offset"] :].decode()


@pytest.mark.parametrize("form", ["ndjson", "csv", "json"])
def test_events_in_a_file_are_those_on_stdout(form, clean, capsys):
    """-o writes the same bytes that stdout would get, and leaves no other file behind."""
    log = str(real_log("fault-embed-captured"))
    assert cli.main(["events", log, "-f", form]) == 0
    out = capsys.readouterr().out
    assert cli.main(["events", log, "-o", f"x.{form}"]) == 0
    assert (clean / f"x.{form}").read_text(encoding="utf-8") == out
    assert [path.name for path in clean.iterdir()] == [f"x.{form}"]


@pytest.mark.usefixtures("clean")
def test_events_as_parquet_and_sql(capsys):
    """-o x.parquet holds every event; --sql counts the same."""
    log = str(real_log("fault-embed-captured"))
    assert cli.main(["events", log, "-o", "x.parquet"]) == 0
    frame = pl.read_parquet("x.parquet")
    capsys.readouterr()
    assert cli.main(["events", log, "-f", "ndjson"]) == 0
    assert frame.height == len(capsys.readouterr().out.splitlines())
    query = "select event, count(*) as n from events where site = 'dsv2' group by event order by event"
    assert cli.main(["events", log, "--sql", query, "-f", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["tables"]["result"]
    counts = frame.filter(pl.col("site") == "dsv2").group_by("event").len().sort("event")
    assert [(row["event"], row["n"]) for row in rows] == counts.rows()


@pytest.mark.usefixtures("clean")
def test_parquet_of_many_batches_is_the_same(monkeypatch):
    """Written batch by batch, the file holds what it holds in one piece, in the same order; a saved run's too."""
    run = logscope.load(real_log("healthy-topk1"))
    monkeypatch.setattr("logscope.reading.BLOCK", 64 << 10)
    assert cli.main(["events", str(real_log("healthy-topk1")), "-o", "x.parquet"]) == 0
    assert pl.read_parquet("x.parquet").equals(run.events, null_equal=True)
    run.save("good.run")
    assert cli.main(["events", "good.run", "-o", "y.parquet"]) == 0
    assert pl.read_parquet("y.parquet").equals(run.events, null_equal=True)


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_file_that_does_not_fit_is_told_and_taken_away(form, clean):
    """No room for the result: trouble with the system's reason, and nothing is left behind."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        f"from logscope.cli import main; sys.exit(main(['events', {str(real_log('healthy-topk1'))!r}, '-o', 'x.{form}']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=clean)
    assert done.returncode == 2
    assert f"error: 'x.{form}' cannot be written\n  why: File too large" in done.stderr
    assert not list(clean.iterdir())


def test_ctrl_c_leaves_no_part_of_a_parquet_file(clean):
    """Interrupted while the batches are written: exit code 130, and nothing is left behind."""
    data = real_log("healthy-topk1").read_bytes()
    (clean / "long.log").write_bytes(data * (1 + (30 << 20) // len(data)))
    command = [sys.executable, "-m", "logscope", "events", "long.log", "-q", "-o", "x.parquet"]
    with subprocess.Popen(command, cwd=clean, stderr=subprocess.PIPE) as process:
        until = time.monotonic() + 60
        while len(list(clean.glob("*/*.arrow"))) < 2:
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert [path.name for path in clean.iterdir()] == ["long.log"]


def test_follow_prints_events_as_they_come():
    """--follow gives an event as soon as its pass is known, and ends with the writer of a pipe."""
    log = DATA / "cases" / "36b-story-reverted.log"
    whole = run("events", str(log), "-f", "ndjson")
    piped = run("events", "-", "--follow", "-f", "ndjson", stdin=log.read_bytes())
    assert piped.returncode == 0
    assert piped.stdout.replace(b'"file": "-"', f'"file": "{log}"'.encode()) == whole.stdout


def test_report_page_holds_every_answer(clean):
    """Report -o writes one page with every question; the check's headline is the first."""
    log = str(real_log("fault-stale-states"))
    assert cli.main(["report", log, "-o", "page.html"]) == 0
    text = (clean / "page.html").read_text(encoding="utf-8")
    for kind in ("check", "summarize", "captures", "norms", "shapes", "accept", "errors", "config"):
        assert f"<h2>{kind}</h2>" in text
        assert f'<a href="#report-{kind}">{kind}</a>' in text
    order = ["<h1>logscope: ", ">made 20", "<h2>check</h2>", 'class="headline', "<nav>", "N106", "<h2>summarize</h2>"]
    assert sorted(order, key=text.index) == order


def test_the_snippet_prints_what_is_read_whole(clean, capsys):
    """`grammar snippet` is Python whose prints are read whole, with rank, phase and layer, and nothing guessed."""
    assert cli.main(["grammar", "snippet"]) == 0
    code = capsys.readouterr().out
    assert code == explain.snippet()
    use = """
class Tensor:
    def __init__(self, *shape): self.shape = shape
    detach = float = norm = flatten = lambda self: self
    def item(self): return 12.345678
    def __getitem__(self, part): return self
    def tolist(self): return [0.1, -0.25, float("nan"), 1e-05, 0.5]
class Batch:
    def __init__(self, name): self.forward_mode = type("Mode", (), {"name": name}); self.batch_size = 1
verify, after = Batch("TARGET_VERIFY"), Batch("DRAFT_EXTEND_V2")
for layer in (3, 31, 59):
    show("dsv2", f"layer {layer} capture", Tensor(4, 7168), verify, residual_is_none=False)
show("logits", "aux concat", Tensor(4, 21504), verify, num_aux=3, capture_hidden_mode="FULL")
show("eagle3", "forward", Tensor(4, 21504), after, key="hidden_states", embeds=(4, 7168))
show("eagle3", "fc output", Tensor(4, 7168), after)
"""
    printed = subprocess.run(
        [sys.executable, "-c", code + use], capture_output=True, check=True, env={**os.environ, "RANK": "2"}
    )
    (clean / "x.log").write_bytes(printed.stdout)
    assert cli.main(["events", "x.log", "-f", "ndjson"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events] == ["layer_capture"] * 3 + ["aux_concat", "forward", "fc_output"]
    assert {(event["intact"], event["tp_rank"], event["evidence"]) for event in events} == {("whole", 2, "printed")}
    assert [event["phase"] for event in events] == ["verify"] * 4 + ["draft_extend"] * 2
    assert [event["layer"] for event in events[:3]] == [3, 31, 59]
    assert [event["fields"]["pass"] for event in events] == [1] * 4 + [2] * 2


# ------------------------------------------------------------------------------------------------------------ settings


def test_settings_keep_the_place_of_a_key(tmp_path):
    """A wrong key in a command's table is shown at its own line, not at a key of the same name elsewhere."""
    path = tmp_path / "config.toml"
    path.write_text('windw = "1m"\n[check]\nignore = ["S102"]\n[accept]\nwindw = "5m"\n', encoding="utf-8")
    found = settings.read(path)
    with pytest.raises(UsageError) as error:
        settings.check(found, {"accept": ["window"], "check": ["ignore"]})
    assert str(error.value.message.where) == f"{path}:1:1"
    assert settings.Settings(path, {}, found.commands, found.text).where("windw", "accept").line == 5


def test_settings_that_are_no_toml_say_where(tmp_path):
    """A syntax error has its line and column."""
    path = tmp_path / "config.toml"
    path.write_text("color = 'never'\nformat = \n", encoding="utf-8")
    with pytest.raises(UsageError) as error:
        settings.read(path)
    assert error.value.message.where is not None
    assert error.value.message.where.line == 2


def test_the_nearest_pyproject_counts_and_xdg_is_last(tmp_path):
    """Upwards the first pyproject.toml with [tool.logscope] counts; those without it are passed over."""
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("[tool.logscope]\ncolor = 'never'\n", encoding="utf-8")
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'x'\n", encoding="utf-8")
    home = tmp_path / "xdg" / "logscope"
    home.mkdir(parents=True)
    (home / "config.toml").write_text("color = 'always'\nformat = 'md'\n", encoding="utf-8")
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    found = settings.files(deep, environ)
    assert found == [tmp_path / "pyproject.toml", home / "config.toml"]
    values = settings.defaults([settings.read(path) for path in found], "captures", {"color": False, "format": False})
    assert values == {"color": "never", "format": "md"}


def test_paths_in_settings_count_from_their_file(tmp_path):
    """A grammar named in settings is found from any folder below; one value for a repeatable option is a list."""
    (tmp_path / "my.toml").write_text("", encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text("[tool.logscope]\ngrammar = 'my.toml'\n", encoding="utf-8")
    found = [settings.read(path) for path in settings.files(tmp_path, {"HOME": str(tmp_path)})]
    assert settings.defaults(found, "captures", {"grammar": True}) == {"grammar": [str(tmp_path / "my.toml")]}


# ------------------------------------------------------------------------------------------------------------ redaction


@pytest.mark.parametrize(
    ("text", "clean_text"),
    [
        ('  File "/opt/venv/lib/site-packages/sglang/srt/x.py", line 3', '  File "/path-1/site-packages/sglang/srt/x.py", line 3'),
        ("model_path='meta-llama/Private', tokenizer_path='meta-llama/Private'", "model_path='/path-1', tokenizer_path='/path-1'"),
        ("loaded /data/m1 then /data/m2 then /data/m1/", "loaded /path-1 then /path-2 then /path-1"),
        ("bob@node-7.corp:/data/x.log", "user@host-1:/path-1"),
        ("http://user:pw@inner.example.com:30000/v1/x?q=1", "http://user@host-1:30000/path-1"),
        ("node-a:235:235 [1] NCCL INFO node-a up", "host-1:235:235 [1] NCCL INFO host-1 up"),
        ("[pod/decode-0/sglang] ready", "[pod/host-1/sglang] ready"),
        ("llm0-1  | Load weight end", "host-1  | Load weight end"),
        ("(Engine pid=11, ip=192.0.2.7) from 192.0.2.8:4000, 192.0.2.7", "(Engine pid=11, ip=ip-1) from ip-2:4000, ip-1"),
        ("2001:db8::5 and fe80::1 at 12:00:00", "ip-1 and ip-2 at 12:00:00"),
        ("obj=Req(rid='7f', text='say \\'hi\\' now', input_ids=[1, 2])", "obj=Req(rid='id-1', text='prompt-1', input_ids=prompt-2)"),
        ("{'prompt': \"who?\", 'n': 1}", "{'prompt': \"prompt-1\", 'n': 1}"),
        ("id 123e4567-e89b-12d3-a456-426614174000 chatcmpl-0a1b2c3d4e", "id id-1 id-2"),
        ("api_key='sk-1', hf_token=hf_x, Bearer abc.def", "api_key='secret-1', hf_token=secret-2, Bearer secret-3"),
    ],
)  # fmt: skip
def test_redaction(text, clean_text):
    """Private text becomes a name, the same text the same name; doing it twice changes nothing."""
    redactor = Redactor()
    assert redactor.text(text) == clean_text
    assert redactor.text(clean_text) == clean_text


@pytest.mark.parametrize(
    "text",
    [
        "EAGLE3_DEBUG[dsv2] layer 3 capture: shape=torch.Size([21, 7168]), residual_is_none=False, norm=10.6277, first5=[0.01, -0.5]",
        "[2026-02-10 12:00:00.123 DP0 PP1 TP3 EP3 PID7] Decode batch, #running-req: 1, #token: 353, gen throughput (token/s): 447.31, accept len: 2.17,",
        "Capturing batches (bs=1 avail_mem=23.54 GB): 100%|##########| 52/52 [00:03<00:00, 16.76it/s]",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x28672 and 21504x7168)",
        "INFO:     127.0.0.1:41452 and 0.0.0.0, None/None, </s>, version 0.5.11, dtype=torch.bfloat16",
        "api_key=None, chat_template=None, host='0.0.0.0', download_dir=None",
    ],
)
def test_redaction_leaves_the_record_alone(text):
    """What logscope reads is not touched: records, prefixes, bars, errors, times, loopback."""
    assert Redactor().text(text) == text


def test_redaction_of_values_keeps_form_and_type():
    """Dicts, lists, tuples and dataclasses keep their form; a value is read with its key."""
    redactor = Redactor(["paths"])
    value = {"model_path": "org/name", "n": 1, "list": ["/data/x", None, 2.5], "shape": (3, 4)}
    assert redactor.value(value) == {"model_path": "/path-1", "n": 1, "list": ["/path-2", None, 2.5], "shape": (3, 4)}
    assert redactor.value(Prefix(origin="/data/x")).origin == "/path-2"


def test_only_the_kinds_asked_for_are_redacted():
    """--redact ips leaves hosts, paths and ids alone."""
    text = "ip=192.0.2.7 at /data/x on http://h.corp.com rid='1'"
    assert Redactor(["ips"]).text(text) == text.replace("192.0.2.7", "ip-1")


def test_known_hosts_are_replaced_where_they_stand():
    """A fetched file's host is private although nothing in the text marks it as a host."""
    assert Redactor(["hosts"], hosts=["gpu7"]).text("gpu7 died; gpu77 lives") == "host-1 died; gpu77 lives"
