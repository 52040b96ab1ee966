"""The commands: each reads its words, calls one function of the library, and hands the report on.

This module is responsible for the names, arguments and help texts of the commands. No logic stands here: what a
command does can be done with a few lines of Python, which ``--explain-python`` prints.

To add a command: a function here whose docstring is its help and whose parameters are options (or groups of them from
options.py), under :func:`command` with an example. Imports stand in the functions: ``logscope --help`` must not pay for
polars.
"""

# Imports stand in the functions, and option types are named in annotations only: `logscope --help` builds no command
# and must not pay for what commands need (a test holds it to eight times the start of python itself).
# ruff: noqa: PLC0415

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logscope.cli.frame import Registry, Shown, Version, build, group

if TYPE_CHECKING:
    from collections.abc import Callable

    from logscope.cli.frame import Function
    from logscope.cli.options import (
        CONNECTION,
        GATE,
        INPUT,
        OUTPUT,
        PART,
        QUERY,
        Choosing,
        ContractOption,
        ExitZero,
        FailOn,
        Follow,
        Logs,
        Reading,
        Shared,
        Speaking,
        Words,
        among,
        argument,
        grammar_names,
        option,
        rule_codes,
    )

EPILOG = (
    "Every option can be set by an environment variable (LOGSCOPE_FORMAT, LOGSCOPE_COLOR, ...), in [tool.logscope] of a"
    " pyproject.toml, and in logscope/config.toml of the XDG config folder."
    " Exit codes: 0 fine or same, 1 findings or different, 2 trouble, 130 interrupted."
)
# How fetch may compress on the wire.
WAYS = ("auto", "zstd", "gzip", "none")
# Options that would cut passes apart, which check compares.
_ACROSS = ("phase", "role", "site", "layer")
COMMANDS = Registry()


def command(
    example: str, registry: Registry = COMMANDS, refused: tuple[str, ...] = ()
) -> Callable[[Function], Function]:
    """Enter a function as the command that the example names; its docstring's first line is its sentence.

    The example can be pasted where the samples are. ``refused`` options are not offered: the command says why.
    """
    words = example.split()
    name = words[0] if registry is COMMANDS else words[1]

    def enter(function: Function) -> Function:
        registry.enter(name, function, lambda: build(name, function, example, refused))
        return function

    return enter


@command("fetch node1:/logs/server.log logs/")
def fetch(
    sources: Annotated[
        list[str],
        argument("HOST:PATH... [DEST]", "[user@]host:/path or ssh://user@host:port/path; last, where to put it."),
    ],
    speaking: Speaking,
    debug_only: Annotated[
        bool, option("--debug-only", help="Bring only lines that hold a record, filtered on the node.", panel=PART)
    ] = False,
    last: Annotated[str | None, option("--last", help="Bring only the end: 200M.", panel=PART, metavar="SIZE")] = None,
    since: Annotated[
        str | None, option("--since", help="Bring only what follows: 2026-02-10T12:00.", panel=PART, metavar="TIME")
    ] = None,
    verify: Annotated[bool, option("--verify", help="Compare SHA-256 with the node's.", panel=CONNECTION)] = False,
    compress: Annotated[
        str,
        option(
            "--compress",
            help="On the wire: auto (default), zstd, gzip, none.",
            panel=CONNECTION,
            metavar="HOW",
            complete=among(*WAYS),
        ),
    ] = "auto",
    ssh: Annotated[
        str | None, option("--ssh", help="The ssh program, with options of its own.", panel=CONNECTION, metavar="CMD")
    ] = None,
    interactive: Annotated[
        bool, option("--interactive", help="Let ssh ask for passwords and new hosts.", panel=CONNECTION)
    ] = False,
    connect_timeout: Annotated[
        int, option("--connect-timeout", help="Seconds, 15 by default.", panel=CONNECTION, metavar="SECONDS", min=1)
    ] = 15,
    jobs: Annotated[
        int, option("--jobs", help="Hosts at the same time, 8 by default.", panel=CONNECTION, metavar="N", min=1)
    ] = 8,
) -> int:
    """Bring logs from other machines, through your own ssh; go on where the last fetch stopped."""
    from logscope.cli.fetching import bring
    from logscope.errors import UsageError

    if compress not in WAYS:
        raise UsageError(f"no way to compress is called '{compress}'", help=f"it is one of: {', '.join(WAYS)}")
    words: dict[str, Any] = {
        "last": last, "since": since, "verify": verify, "compress": compress, "ssh": ssh, "interactive": interactive,
        "connect_timeout": connect_timeout, "jobs": jobs,
    }  # fmt: skip
    return bring(sources, speaking, words, debug_only=debug_only)


@command("summarize samples/stale-states/server.log")
def summarize(
    logs: Logs,
    shared: Shared,
    follow: Follow = False,
    engine: Annotated[
        str | None,
        option(
            "--engine", help="Read many files on a cluster: dask.", panel=INPUT, metavar="NAME", complete=among("dask")
        ),
    ] = None,
    engine_address: Annotated[
        str | None,
        option("--engine-address", help="Its scheduler; else a local cluster.", panel=INPUT, metavar="tcp://HOST:PORT"),
    ] = None,
) -> int:
    """Show what the logs hold on one screen: segments, phases, hidden captures, acceptance, damage."""
    from logscope.cli.reading import ask, on_engine
    from logscope.queries.summarize import Summarize

    if engine or engine_address:
        return on_engine(logs, shared, Summarize(), engine or "dask", engine_address, follow=follow)
    return ask(logs, shared, Summarize(), "summarize()", follow=follow)


@command("captures samples/stale-states/server.log --phase verify")
def captures(logs: Logs, shared: Shared) -> int:
    """Show which hidden states the target captured, in which phase, how many per pass, and what is missing."""
    from logscope.cli.reading import ask
    from logscope.queries.captures import Captures

    return ask(logs, shared, Captures(), "captures()")


@command("shapes samples/stale-states/server.log")
def shapes(logs: Logs, shared: Shared) -> int:
    """List every shape with its axes named, and explain the pairs that look alike."""
    from logscope.cli.reading import ask
    from logscope.queries.shapes import Shapes

    return ask(logs, shared, Shapes(), "shapes()")


@command("norms samples/stale-states/server.log --layer 31")
def norms(logs: Logs, shared: Shared) -> int:
    """Show norms per role, phase and layer: size, trend, what is not finite, which states were joined."""
    from logscope.cli.reading import ask
    from logscope.queries.norms import Norms

    return ask(logs, shared, Norms(), "norms()")


@command("accept samples/accept-decay/server.log --window 5m")
def accept(
    logs: Logs,
    shared: Shared,
    window: Annotated[
        str | None, option("--window", help="Also per window of time: 30s, 5m, 1h.", panel=QUERY, metavar="LENGTH")
    ] = None,
    by: Annotated[
        str | None,
        option(
            "--by",
            help="One row for each rank (default), segment or engine.",
            panel=QUERY,
            metavar="WHAT",
            complete=among("rank", "segment", "engine"),
        ),
    ] = None,
    below: Annotated[
        float | None, option("--below", help="Count lines with an accept len below this.", panel=QUERY, metavar="LEN")
    ] = None,
    above: Annotated[
        float | None,
        option("--above", help="Count lines with an accept rate above this.", panel=QUERY, metavar="RATE"),
    ] = None,
    year: Annotated[
        int | None, option("--year", help="The year of logs that print none.", panel=QUERY, metavar="YYYY")
    ] = None,
    min: Annotated[  # noqa: A002 - the option's name
        float | None, option("--min", help="Exit with 1 when the accept len is below this.", panel=GATE, metavar="LEN")
    ] = None,
    follow: Follow = False,
    exit_zero: ExitZero = False,
) -> int:
    """Show how many tokens each verify accepted, over time, and under which definition of the rate."""
    from logscope.cli.reading import arguments, ask
    from logscope.queries.acceptance import Accept

    words: dict[str, Any] = {"window": window, "by": by, "year": year, "min": min, "below": below, "above": above}
    fail_on = "never" if exit_zero else None
    return ask(logs, shared, Accept(**words), f"accept({arguments(**words)})", fail_on, follow=follow)


@command("config samples/healthy/server.log samples/cuda-graph/server.log")
def config(
    logs: Logs,
    shared: Shared,
    every: Annotated[
        bool, option("--all", help="Every argument, not only those that matter here.", panel=QUERY)
    ] = False,
) -> int:
    """Show how the server was started; with two logs, what differs."""
    from logscope.cli.reading import arguments, ask
    from logscope.queries.config import Config

    words = {"every": every}
    return ask(logs, shared, Config(**words), f"config({arguments(**words)})")


@command("errors samples/extra-state-crash/server.log")
def errors(logs: Logs, shared: Shared) -> int:
    """Show what failed first, in which process, and what only followed from it."""
    from logscope.cli.reading import ask
    from logscope.queries.errors import Errors

    return ask(logs, shared, Errors(), "errors()")


@command("check samples/stale-states/server.log --contract samples/draft-config.json", refused=_ACROSS)
def check(
    logs: Logs,
    shared: Shared,
    contract: ContractOption = None,
    fail_on: FailOn = "warning",
    exit_zero: ExitZero = False,
    select: Annotated[
        Words,
        option("--select", help="Only these rules.", panel=QUERY, metavar="CODE", complete=rule_codes),
    ] = None,
    ignore: Annotated[
        Words, option("--ignore", help="Not these rules.", panel=QUERY, metavar="CODE", complete=rule_codes)
    ] = None,
    sglang_version: Annotated[
        str | None,
        option("--sglang-version", help="Where the log does not tell it: 0.5.11.", panel=INPUT, metavar="VERSION"),
    ] = None,
    follow: Follow = False,
) -> int:
    """Name what is wrong, with the lines that show it; or how much was looked at and found fine."""
    from logscope.check import Checker
    from logscope.cli.options import given
    from logscope.cli.output import severity
    from logscope.cli.reading import arguments, ask
    from logscope.errors import UsageError

    gate = "never" if exit_zero else severity(fail_on)
    across = [f"--{name}" for name in _ACROSS if getattr(shared, name)]
    if across:
        raise UsageError(
            f"{' and '.join(across)} cannot be joined with check",
            why="rules compare a pass with those before it: half of them would look like a fault",
            help="--since, --until, --during and --rank are fine; --select CODE names the rules",
        )
    words: dict[str, Any] = {
        "select": given(select) or None,
        "ignore": given(ignore) or None,
        "sglang_version": sglang_version,
    }
    call = ", ".join(filter(None, [repr(contract) if contract else "", arguments(**words)]))
    part_of = str(shared.select()) if shared.select() else None
    checker = Checker(contract, part_of=part_of, **words)
    return ask(logs, shared, checker, f"check({call})", gate, follow=follow, charts=True)


CONTRACT = Registry()
GRAMMAR = Registry()


def _enter_group(name: str, registry: Registry, callback: Any) -> None:
    """Enter a group of commands as a command."""
    COMMANDS.enter(name, callback, lambda: typer.main.get_command(group(name, registry, callback)))


def _contract() -> None:
    """Show how the draft was trained, or read it from a good run."""


_enter_group("contract", CONTRACT, _contract)


def _contract_show(
    file: Annotated[str, argument("FILE", "A contract (TOML) or the draft's config.json.")],
    speaking: Speaking,
) -> int:
    """Show a contract: its layers in both readings of the ids, widths, vocabularies."""
    from logscope import contract
    from logscope.cli.output import show

    return show(contract.show(contract.load_contract(file)), speaking, speaking)


def _contract_from(logs: Logs, shared: Shared) -> int:
    """Read the contract from a good run, and print it as TOML."""
    from logscope.cli.output import Target, target, write
    from logscope.cli.reading import open_run
    from logscope.cli.session import OK
    from logscope.contract import infer

    wanted = target(shared, {".toml": "toml"}, ("toml",)) if shared.output or shared.format else Target("toml")
    contract = infer(open_run(logs, shared).items, ", ".join(logs))
    write(contract.to_toml(), wanted, shared)
    return OK


command("contract show samples/draft-config.json", CONTRACT)(_contract_show)
command("contract from samples/healthy/server.log", CONTRACT)(_contract_from)


@command("diff samples/healthy/server.log samples/stale-states/server.log")
def diff(
    baseline: Annotated[str, argument("BASELINE", "The run to compare with.")],
    candidate: Annotated[str, argument("CANDIDATE", "The run to compare.")],
    shared: Shared,
    rtol: Annotated[
        float | None,
        option("--rtol", help="Relative tolerance of norms and heads.", panel=QUERY, metavar="SHARE"),
    ] = None,
    exit_zero: ExitZero = False,
) -> int:
    """Show where two runs part: the first divergence, and everything before it that agrees."""
    from logscope.cli.output import exit_code, show, target, write
    from logscope.cli.reading import arguments, explain, loading, open_run
    from logscope.diffing.report import diff as diff_runs

    words: dict[str, Any] = {} if rtol is None else {"rtol": rtol}
    if shared.explain_python:
        call = ", ".join(["baseline", "candidate", *filter(None, [arguments(**words)])])
        lines = [*loading([baseline], shared, "baseline"), *loading([candidate], shared, "candidate")]
        return explain([*lines, f"print(ls.diff({call}))"])
    sides: list[Any] = [baseline, candidate]
    if shared.words():
        sides = [open_run([side], shared) for side in sides]
    report = diff_runs(*sides, grammars=shared.grammar or (), **words)
    select = shared.select()
    if select and not all(select.found(side.tables) for side in sides):
        report.verdict = "unknown"
        report.facts["undecided"] = f"the selection leaves nothing to compare: {select}"
    gate = "never" if exit_zero else None
    if target(shared).form == "html":
        from logscope.cli.evidence import page_text

        title = f"logscope diff: {baseline}, {candidate}"
        write(page_text([report], shared, title, differences=report), target(shared), shared)
        return exit_code(report, gate)
    return show(report, shared, shared, gate)


@command("events samples/stale-states/server.log --event layer_capture --layer 31 -f csv")
def events(
    logs: Logs,
    shared: Choosing,
    context: Annotated[
        int | None,
        option("--context", help="Print N raw lines around each event.", panel=OUTPUT, metavar="N", min=0),
    ] = None,
    raw: Annotated[bool, option("--raw", help="Print each record's own text.", panel=OUTPUT)] = False,
    sql: Annotated[
        str | None,
        option("--sql", help="A query over the tables events, passes, unparsed.", panel=QUERY, metavar="QUERY"),
    ] = None,
    follow: Follow = False,
) -> int:
    """Write every record as a typed event: table, ndjson, csv, json, or Parquet by -o x.parquet.

    On a terminal, with nothing asked for: how many there are of each kind.
    """
    from logscope.cli import eventing
    from logscope.errors import UsageError

    chosen = [name for name, on in [("--context", context is not None), ("--raw", raw), ("--sql", bool(sql))] if on]
    if len(chosen) > 1 or (follow and chosen):
        raise UsageError(f"{' and '.join([*chosen, *['--follow'] * follow])} exclude each other")
    if sql:
        return eventing.query(logs, shared, sql)
    if raw or context is not None:
        return eventing.raw_text(logs, shared, context)
    return eventing.stream(logs, shared, follow=follow)


@command("report samples/stale-states/server.log -o report.html")
def report(logs: Logs, shared: Shared, contract: ContractOption = None) -> int:
    """Write one page with everything: findings, captures, shapes, norms, acceptance. -o report.html."""
    from logscope.cli.pages import report_page

    return report_page(logs, shared, contract)


def _grammar() -> None:
    """Show which records are known, and how a line is read."""


_enter_group("grammar", GRAMMAR, _grammar)


def _grammar_list(speaking: Speaking, reading: Reading) -> int:
    """List the grammars that are loaded, with their events."""
    from logscope.cli.explain import listing
    from logscope.cli.output import show

    return show(listing(reading.grammar or ()), speaking, speaking)


def _grammar_show(
    name: Annotated[str, argument("NAME", "The name of a loaded grammar.", grammar_names)],
    speaking: Speaking,
    reading: Reading,
) -> int:
    """Print a grammar's file."""
    from logscope.cli.explain import grammar_text
    from logscope.cli.output import Target, write
    from logscope.cli.session import OK

    write(grammar_text(name, reading.grammar or ()), Target("toml"), speaking)
    return OK


def _grammar_check(
    files: Annotated[list[str], argument("FILE...", "Grammar files.")],
    speaking: Speaking,
) -> int:
    """Load grammar files with all their samples; says where and why one does not load."""
    from logscope.cli.explain import checked
    from logscope.cli.output import show

    return show(checked(files), speaking, speaking)


def _grammar_explain(
    line: Annotated[str, argument("LINE", "The line, quoted; - reads standard input.")],
    speaking: Speaking,
    reading: Reading,
) -> int:
    """Say in words how a line is read, or where reading stopped and what was expected."""
    from logscope.cli.explain import explain_line
    from logscope.cli.output import show
    from logscope.cli.session import say

    text = sys.stdin.readline() if line == "-" else line
    report, stops = explain_line(text, reading.grammar or ())
    code = show(report, speaking, speaking)
    for stop in stops:
        say(stop, "note")
    return code


def _grammar_suggest(logs: Logs, speaking: Speaking, reading: Reading) -> int:
    """Propose a grammar file from the commonest lines that no grammar reads, with samples."""
    from logscope.cli.explain import suggestion
    from logscope.cli.output import Target, target, write

    text = suggestion(logs or ["-"], reading.grammar or ())
    write(text, target(speaking, {".toml": "toml"}, ("toml",)) if speaking.output else Target("toml"), speaking)
    return 0


def _grammar_snippet(speaking: Speaking) -> int:
    """Print the few lines of Python that make a model print what logscope reads best."""
    from logscope.cli.explain import snippet
    from logscope.cli.output import Target, target, write
    from logscope.cli.session import OK

    write(snippet(), target(speaking, {".py": "py"}, ("py",)) if speaking.output else Target("py"), speaking)
    return OK


command("grammar list", GRAMMAR)(_grammar_list)
command("grammar show vllm", GRAMMAR)(_grammar_show)
command("grammar check grammars/vllm.toml", GRAMMAR)(_grammar_check)
command("grammar explain 'EAGLE3_DEBUG[eagle3] forward: hidden_states.shape=torch.Size([4, 21504])'", GRAMMAR)(
    _grammar_explain
)
command("grammar suggest samples/own-prints/server.log", GRAMMAR)(_grammar_suggest)
command("grammar snippet -o eagle3_debug.py", GRAMMAR)(_grammar_snippet)


@command("probe")
def probe(
    speaking: Speaking,
    host: Annotated[
        str | None, argument("[HOST:[PATH]]", "Copy the probe to this machine: host:, user@host:/folder.")
    ] = None,
    ssh: Annotated[
        str | None, option("--ssh", help="The ssh program, with options of its own.", panel=CONNECTION, metavar="CMD")
    ] = None,
    interactive: Annotated[
        bool, option("--interactive", help="Let ssh ask for passwords and new hosts.", panel=CONNECTION)
    ] = False,
    connect_timeout: Annotated[
        int, option("--connect-timeout", help="Seconds, 15 by default.", panel=CONNECTION, metavar="SECONDS", min=1)
    ] = 15,
) -> int:
    """Say how a stock SGLang server writes debug records, CUDA graphs included; copy the probe to a node."""
    from logscope.cli.probing import how

    return how(host, speaking, ssh=ssh, interactive=interactive, connect_timeout=connect_timeout)


@command("rule N106")
def rule(
    code: Annotated[str, argument("CODE", "The code of a rule, or list.", complete=rule_codes)],
    speaking: Speaking,
) -> int:
    """Show what a rule looks for, when it fires, and what to do about it."""
    from logscope.cli.pages import rule_page

    return rule_page(code, speaking)


def _root(version: Version = False, settings: Shown = False) -> None:
    """Read from the log what EAGLE-3 speculative decoding really did."""
    del version, settings  # their callbacks have printed it


app = group("logscope", COMMANDS, _root, EPILOG)
