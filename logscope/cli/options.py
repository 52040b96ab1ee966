"""Every shared option of the command line, written once: its names, help, environment variable and completion.

This module is responsible for the option groups that commands take as typed values. It must not know any command.

To add an option: a field here with :func:`option`. Its environment variable (LOGSCOPE_NAME), its key in the settings
and its place in the help follow from it.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from logscope.cli.frame import LAST_PANEL, Version
from logscope.errors import UsageError
from logscope.render import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable

    from logscope.tables.select import Select

INPUT, SELECTION, OUTPUT, GENERAL = "Input", "Selection", "Output", LAST_PANEL
QUERY, GATE, PART, CONNECTION = "Question", "Exit code", "Part", "Connection"
Words: TypeAlias = list[str] | None
SEVERITIES = ("error", "warning", "note")


def option(
    *names: str,
    help: str,  # noqa: A002 - typer's word
    panel: str,
    metavar: str | None = None,
    complete: Callable[[str], list[str]] | None = None,
    **more: Any,
) -> Any:
    """Return the declaration of an option; its environment variable follows from its first long name."""
    long = next(name for name in names if name.startswith("--")).partition("/")[0]
    return typer.Option(
        *names,
        help=help,
        rich_help_panel=panel,
        metavar=metavar,
        autocompletion=complete,
        envvar="LOGSCOPE_" + long.removeprefix("--").replace("-", "_").upper(),
        show_envvar=False,
        show_default=False,
        **more,
    )


def argument(metavar: str, help: str, complete: Callable[[str], list[str]] | None = None, **more: Any) -> Any:  # noqa: A002
    """Return the declaration of an argument."""
    return typer.Argument(
        metavar=metavar, help=help, rich_help_panel=INPUT, autocompletion=complete, show_default=False, **more
    )


def among(*words: str) -> Callable[[str], list[str]]:
    """Return a completion over fixed words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def _phases(incomplete: str) -> list[str]:
    from logscope.model import PHASES  # noqa: PLC0415 - completion only

    return among(*PHASES)(incomplete)


def _grammars(incomplete: str) -> list[str]:
    from pathlib import Path  # noqa: PLC0415 - completion only

    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    return [*grammar_names(incomplete), *sorted(str(path) for path in folder.glob("*.toml"))]


def grammar_names(incomplete: str) -> list[str]:
    """Complete the name of a grammar that is always read."""
    from logscope.grammar import available  # noqa: PLC0415 - completion only

    return among(*(path.stem for path in available()))(incomplete)


def _events(incomplete: str) -> list[str]:
    from logscope.grammar import load  # noqa: PLC0415 - completion only

    return among(*load().events)(incomplete)


def rule_codes(incomplete: str) -> list[str]:
    """Complete the code of a rule."""
    from logscope.check import rules  # noqa: PLC0415 - completion only

    return [code for code in rules() if code.startswith(incomplete.upper())]


def _or_piped(logs: list[str]) -> list[str]:
    """Return the logs that are named; where none is and something is piped in, standard input."""
    if logs:
        return logs
    with suppress(OSError, ValueError, AttributeError):
        mode = os.fstat(sys.stdin.fileno()).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode):
            return ["-"]
    raise UsageError("no log is named", help="name a file, folder, glob or host:/path, or pipe one in")


Logs: TypeAlias = Annotated[
    list[str],
    argument(
        "LOG...",
        "File, folder, glob, - or nothing for standard input, saved run, host:/path over ssh; plain, gz, bz2, xz, zst.",
        default_factory=list,
        callback=_or_piped,
    ),
]


@dataclass(frozen=True)
class Selection:
    """Which part of the logs."""

    phase: Annotated[
        Words,
        option(
            "--phase",
            help="Only these phases: extend, decode, verify, draft_extend, idle, unknown.",
            panel=SELECTION,
            metavar="NAME",
            complete=_phases,
        ),
    ] = None
    role: Annotated[
        Words,
        option(
            "--role",
            help="Only this model: target or draft.",
            panel=SELECTION,
            metavar="NAME",
            complete=among("target", "draft"),
        ),
    ] = None
    rank: Annotated[
        Words,
        option("--rank", help="Only this rank: 3 (tensor-parallel), dp1, dp1.tp3.", panel=SELECTION, metavar="RANK"),
    ] = None
    site: Annotated[
        Words,
        option(
            "--site", help="Only records of this site, the word in EAGLE3_DEBUG[...].", panel=SELECTION, metavar="NAME"
        ),
    ] = None
    layer: Annotated[
        Words, option("--layer", help="Only this layer as printed: 31, 0-30.", panel=SELECTION, metavar="N")
    ] = None
    during: Annotated[
        Words,
        option(
            "--during",
            help="Only this stage: startup, graph_capture, warmup, serving.",
            panel=SELECTION,
            metavar="STAGE",
            complete=among("startup", "graph_capture", "warmup", "serving"),
        ),
    ] = None
    since: Annotated[
        str | None,
        option(
            "--since",
            help="From this time on, as the log prints it: 12:30, 2026-02-10T12:30.",
            panel=SELECTION,
            metavar="TIME",
        ),
    ] = None
    until: Annotated[str | None, option("--until", help="Up to this time.", panel=SELECTION, metavar="TIME")] = None

    def select(self) -> Select:
        """Return the selection the words mean; raises UsageError for a word that names nothing."""
        from logscope.tables.select import Select  # noqa: PLC0415 - help must not pay for it

        return Select.of(**self.words())

    def words(self) -> dict[str, Any]:
        """Return what was given, by name."""
        names = ("phase", "role", "rank", "site", "layer", "event", "during", "since", "until")
        return {name: value for name in names if (value := getattr(self, name, None))}


@dataclass(frozen=True)
class Reading:
    """How logs are read."""

    grammar: Annotated[
        Words,
        option(
            "--grammar",
            help="Also read records by this grammar file.",
            panel=INPUT,
            metavar="FILE",
            complete=_grammars,
        ),
    ] = None


@dataclass(frozen=True)
class Output:
    """Where the result goes, and in which form."""

    format: Annotated[
        str | None,
        option(
            "--format",
            "-f",
            help="table (default), json, ndjson, csv, md, html, github.",
            panel=OUTPUT,
            metavar="FORM",
            complete=among(*FORMATS),
        ),
    ] = None
    output: Annotated[
        str | None,
        option("--output", "-o", help="Write to this file; its suffix decides the form.", panel=OUTPUT, metavar="FILE"),
    ] = None
    table: Annotated[
        str | None, option("--table", help="Only this table (CSV holds one).", panel=OUTPUT, metavar="NAME")
    ] = None
    redact: Annotated[
        Words,
        option(
            "--redact",
            help="Take out what should not be shared: paths,ips,hosts,prompts,ids (or all).",
            panel=OUTPUT,
            metavar="KINDS",
            complete=among("all", "paths", "ips", "hosts", "prompts", "ids"),
        ),
    ] = None


@dataclass(frozen=True)
class General:
    """How the program speaks."""

    color: Annotated[
        str,
        option(
            "--color",
            help="auto (default), always, never. NO_COLOR and FORCE_COLOR are honoured.",
            panel=GENERAL,
            metavar="WHEN",
            complete=among("auto", "always", "never"),
        ),
    ] = "auto"
    quiet: Annotated[bool, option("--quiet", "-q", help="Headline and findings only; no warnings.", panel=GENERAL)] = (
        False
    )
    verbose: Annotated[bool, option("--verbose", "-v", help="Also notes, all tables, facts.", panel=GENERAL)] = False
    debug: Annotated[bool, option("--debug", help="Show the traceback of a bug.", panel=GENERAL)] = False
    version: Version = False


@dataclass(frozen=True)
class Speaking(General, Output):
    """What a command takes that selects nothing of a log."""


@dataclass(frozen=True)
class Explaining:
    """The bridge from the command line to a notebook."""

    explain_python: Annotated[
        bool,
        option("--explain-python", help="Print the lines of Python equal to this command, and stop.", panel=GENERAL),
    ] = False


@dataclass(frozen=True)
class Shared(Explaining, General, Output, Selection, Reading):
    """What every command takes that reads logs; the fields of the last base come first."""


@dataclass(frozen=True)
class Choosing(Shared):
    """The same, of single events."""

    event: Annotated[
        Words,
        option(
            "--event",
            help="Only events of this name: layer_capture.",
            panel=SELECTION,
            metavar="NAME",
            complete=_events,
        ),
    ] = None


ContractOption = Annotated[
    str | None,
    option(
        "--contract",
        help="How the draft was trained: a contract (TOML) or the draft's config.json.",
        panel=INPUT,
        metavar="FILE",
    ),
]
FailOn = Annotated[
    str,
    option(
        "--fail-on",
        help="Exit with 1 from this severity on: error, warning (default), note; never.",
        panel=GATE,
        metavar="SEVERITY",
        complete=among(*SEVERITIES, "never"),
    ),
]
ExitZero = Annotated[bool, option("--exit-zero", help="Exit with 0 whatever is found; trouble stays 2.", panel=GATE)]


Follow = Annotated[bool, option("--follow", help="Go on as the log grows; Ctrl-C ends.", panel=INPUT)]


def given(values: Words) -> list[str]:
    """Return the words of a repeatable option, several in one split at commas."""
    return [word for value in values or () for word in (part.strip() for part in value.split(",")) if word]
