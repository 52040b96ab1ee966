"""Where a result goes: the window, a pipe, a file; in which form, and with which exit code.

This module is responsible for -f, -o and --redact, for the style of a stream, and for writing a file at once and whole.
It must not know any command.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from logscope.cli.options import SEVERITIES, given
from logscope.cli.session import FINDINGS, OK, TROUBLE, colored, say
from logscope.errors import InputError, Message, UsageError, did_you_mean
from logscope.render import FORMATS, SUFFIXES, Style, format_of, known_format, render

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logscope.cli.options import General, Output
    from logscope.redact import Redactor
    from logscope.report import Report


def style_of(stream: TextIO, color: str = "auto", *, quiet: bool = False, verbose: bool = False) -> Style:
    """Return how text is set on a stream: to the window where it is one, coloured where that is wanted and possible.

    Raises :class:`UsageError` when ``color`` is not auto, always or never.
    """
    choices = ("auto", "always", "never")
    if color not in choices:
        raise UsageError(f"no colour setting '{color}'", help=did_you_mean(color, choices) or "auto, always or never")
    window = stream.isatty()
    width = None
    if window:
        import shutil  # noqa: PLC0415 - 8 ms that a pipe need not pay

        width = shutil.get_terminal_size().columns
    return Style(
        width=width,
        color=color == "always" or (color == "auto" and colored(stream)),
        unicode=_has_blocks(stream),
        quiet=quiet,
        verbose=verbose,
    )


def _has_blocks(stream: TextIO) -> bool:
    """Tell whether a stream's encoding can write block characters."""
    try:
        "▁█─".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class Target:
    """Where a result goes: a form and, when it is no stream, a file."""

    form: str
    path: Path | None = None


def target(output: Output, suffixes: Mapping[str, str] = SUFFIXES, forms: Sequence[str] = FORMATS) -> Target:
    """Return what -f and -o ask for: -f wins, else the suffix decides, else it is a table.

    Raises :class:`UsageError` for a form or a suffix there is not.
    """
    form = known_format(output.format, forms) if output.format else None
    if output.output is None or output.output == "-":
        return Target(form or "table")
    path = Path(output.output)
    return Target(form or format_of(path, suffixes), path)


def show(report: Report, speaking: General, output: Output, fail_on: str | None = None) -> int:
    """Write a report where it is wanted and return its exit code.

    Without ``fail_on`` the report's own verdict decides: readers say what they found in the log and exit with 0.
    """
    wanted = target(output)
    if output.redact:
        report = redactor(output).value(report)
    style = style_of(sys.stdout, speaking.color, quiet=speaking.quiet, verbose=speaking.verbose)
    if wanted.path is not None:
        style = Style(color=speaking.color == "always", quiet=speaking.quiet, verbose=speaking.verbose)
    _other_tables(report, wanted, output, speaking)
    write(render(report, wanted.form, style, output.table), wanted, speaking)
    return exit_code(report, fail_on)


def exit_code(report: Report, fail_on: str | None = None) -> int:
    """Return 1 when a finding at least as severe as ``fail_on`` stands; without it, when the report says so.

    A gate that looked at nothing is trouble: ``facts["undecided"]`` says why. So are logs that could not be read beside
    others, ``facts["unread"]``: they were named before.
    """
    if report.facts.get("undecided"):
        say(Message(report.facts["undecided"]), "error")
        return TROUBLE
    if report.facts.get("unread"):
        return TROUBLE
    if fail_on is None:
        return FINDINGS if report.verdict == "findings" else OK
    severe = () if fail_on == "never" else SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    return FINDINGS if any(finding.severity in severe for finding in report.findings) else OK


def severity(word: str) -> str:
    """Return what --fail-on names, before any work begins; raises :class:`UsageError` when it names nothing."""
    known = (*SEVERITIES, "never")
    if word not in known:
        raise UsageError(f"no severity '{word}'", help=did_you_mean(word, known) or "error, warning, note or never")
    return word


def redactor(output: Output) -> Redactor:
    """Return what takes out the kinds that --redact names."""
    from logscope.redact import KINDS, Redactor  # noqa: PLC0415 - only who shares pays for it

    kinds = given(output.redact)
    return Redactor(KINDS if "all" in kinds else kinds)


def _other_tables(report: Report, wanted: Target, output: Output, speaking: General) -> None:
    """Say which tables a CSV leaves out."""
    if wanted.form != "csv" or output.table or speaking.quiet:
        return
    from logscope.render.machine import table_names  # noqa: PLC0415 - CSV only

    first, *rest = table_names(report)
    rest = [name for name in rest if name != "findings" or report.findings]
    if rest:
        say(
            Message(f"CSV holds one table; this is '{first}'", help=f"--table names another: {', '.join(rest)}"), "note"
        )


def write(text: str, wanted: Target, speaking: General) -> None:
    """Write a result to stdout or, at once and whole, to a file.

    Raises :class:`InputError` when the file, or stdout, cannot be written; BrokenPipeError when nobody reads any more.
    """
    if wanted.path is None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise InputError("the result cannot be written to standard output", why=error.strerror) from error
        return
    replace_file(wanted.path, lambda part: part.write_text(text, encoding="utf-8", newline=""))
    if not speaking.quiet:
        say(Message(f"wrote {wanted.path}"), "note")


def replace_file(path: Path, fill: Callable[[Path], object]) -> None:
    """Fill a file beside ``path`` and put it in its place: a reader never sees half of it.

    Raises :class:`InputError` when that cannot be done.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        fill(part)
        # A device or a pipe is written to, never replaced.
        if path.exists() and not path.is_file():
            path.write_bytes(part.read_bytes())
        else:
            part.replace(path)
    except OSError as error:
        raise InputError(f"'{path}' cannot be written", why=error.strerror or str(error)) from error
    finally:
        part.unlink(missing_ok=True)
