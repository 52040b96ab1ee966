"""The command line: ``logscope COMMAND LOG...``.

This package is responsible for translating words into calls of the library and reports into output; no logic stands
here. It is the only one that imports typer, and it imports nothing heavy before a command runs.

    frame     lazily built commands, option groups, plain help
    options   every shared option, once
    reading   logs in, a question asked
    session   where results go, messages, exit codes
    commands  the commands
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logscope.cli.commands import COMMANDS, app
from logscope.cli.session import TROUBLE, guard, say
from logscope.errors import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["app", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; it raises nothing."""
    args = list(sys.argv[1:] if argv is None else argv)
    # The tables of a block are small: on 16 cores polars' pool of 16 threads took twice the processor time of two and
    # three times the memory of a Parquet file, and no less time.
    os.environ.setdefault("POLARS_MAX_THREADS", "2")
    _prepare_streams()
    debug = "--debug" in args or os.environ.get("LOGSCOPE_DEBUG", "0") not in ("", "0", "false")
    return guard(lambda: _run(args), debug=debug)


def _prepare_streams() -> None:
    """Let text that an encoding lacks be written as escapes instead of failing; stand in for a closed stdout."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - lives as long as the process
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _run(args: list[str]) -> int:
    """Read the words and run the command they name."""
    import typer  # noqa: PLC0415 - imported above already; named here for its exceptions
    from typer.exceptions import TyperException  # noqa: PLC0415

    if "_LOGSCOPE_COMPLETE" in os.environ:
        app(prog_name="logscope")  # typer answers the shell and leaves
    root = typer.main.get_command(app)
    try:
        # Not root.main(): it would answer a closed pipe with exit code 1, which means findings.
        with root.make_context("logscope", list(args), default_map=_defaults(args)) as context:
            if not args:
                typer.echo(context.get_help(), err=True)
                return TROUBLE
            code = root.invoke(context)
    except typer.Exit as leave:
        return leave.exit_code
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    except TyperException as error:
        say(_usage(error), "error")
        return TROUBLE
    return code if isinstance(code, int) else 0


def _usage(error: Any) -> Message:
    """Return what is said of words that are no command line."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "logscope"
    text = error.format_message().rstrip(".")
    return Message(text[:1].lower() + text[1:], help=f"{path} --help")


def _defaults(args: list[str]) -> dict[str, Any] | None:
    """Return what the settings files say for the command that is run, in the form typer reads, None without files."""
    name = next((word for word in args if word in COMMANDS), None)
    if name is None or "--help" in args or "-h" in args:
        return None
    from logscope import settings  # noqa: PLC0415 - help must not pay for it

    try:
        here = Path.cwd()
    except OSError:  # the folder we stand in was removed
        return None
    found = [settings.read(path) for path in settings.files(here)]
    if not found:
        return None
    known = {name: _options(COMMANDS[name]) for name in COMMANDS}
    for one in found:
        settings.check(one, known)
    values = settings.defaults(found, name, known[name])
    members = getattr(COMMANDS[name], "commands", None)
    return {name: values if members is None else dict.fromkeys(members, values)}


def _options(command: Any) -> dict[str, bool]:
    """Return the options of a command, or of all commands of a group, each with whether it takes several values."""
    members = getattr(command, "commands", None)
    commands = [command] if members is None else [members[name] for name in members]
    return {
        parameter.name: parameter.multiple
        for each in commands
        for parameter in each.params
        if parameter.param_type_name == "option" and parameter.name not in ("version", "explain_python")
    }
