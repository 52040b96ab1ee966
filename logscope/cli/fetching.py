"""``logscope fetch``: words into options of the fetch package, its outcome into a result.

This module is responsible for that translation. It must not know how anything is fetched.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logscope.cli.output import Target, redactor, replace_file, show, target, write
from logscope.cli.session import OK, say
from logscope.errors import Message

if TYPE_CHECKING:
    from logscope.cli.options import Speaking
    from logscope.fetch import Fetched, Outcome
    from logscope.redact import Redactor


def bring(sources: list[str], speaking: Speaking, settings: dict[str, Any], *, debug_only: bool) -> int:
    """Fetch, say what came, and answer with 2 when anything failed."""
    from logscope import fetch  # noqa: PLC0415 - help must not pay for it

    specs, dest = fetch.arguments(sources)
    ssh, last = settings.pop("ssh"), settings.pop("last")
    options = fetch.Options(
        ssh=fetch.ssh_command(ssh),
        last=fetch.size_of(last) if last else None,
        anchors=_anchors() if debug_only else (),
        **settings,
    )

    def notice(text: str) -> None:
        if not speaking.quiet:
            say(Message(text), "note")

    outcome = fetch.fetch(specs, dest, options, notice=notice, terminal=None if speaking.quiet else sys.stderr)
    for _, error in outcome.failures:
        say(error.message, "error")
    if speaking.redact:
        _redact_copies(outcome, redactor(speaking), speaking)
    code = _result(outcome, speaking)
    return outcome.exit_code or code


def _anchors() -> tuple[bytes, ...]:
    """Return the texts a record of any loaded grammar begins with."""
    from logscope import grammar  # noqa: PLC0415 - --debug-only only

    return tuple(anchor.encode("latin-1") for anchor in grammar.load().anchors)


def _result(outcome: Outcome, speaking: Speaking) -> int:
    """Show what came: JSON has the package's own form, every other form is a report."""
    from logscope.render.machine import dumps  # noqa: PLC0415 - kept beside its only use
    from logscope.render.text import plural, size  # noqa: PLC0415
    from logscope.report import Column, Report, Table  # noqa: PLC0415

    wanted: Target = target(speaking)
    if wanted.form == "json":
        write(dumps(outcome.as_dict(), indent=2) + "\n", wanted, speaking)
        return OK
    columns = [
        Column("file", always=True),
        Column("action", always=True),
        Column("size", "size (bytes)", align="right", always=True),
        Column("added", "new (bytes)", align="right"),
        Column("moved", "moved (bytes)", align="right"),
        Column("form"),
        Column("source"),
        Column("generations"),
        Column("verified"),
    ]
    rows = [{**file.as_dict(), "source": f"{file.host}:{file.path}"} for file in outcome.files]
    moved = sum(file.moved for file in outcome.files)
    headline = f"{plural(len(rows), 'file')}, {size(moved)} moved"
    if outcome.failures:
        headline += f"; {plural(len(outcome.failures), 'source')} failed"
    report = Report("fetch", headline, tables={"files": Table(columns, rows)} if rows else {})
    return show(report, speaking, speaking)


def _redact_copies(outcome: Outcome, hide: Redactor, speaking: Speaking) -> None:
    """Write beside each copy one that can be shared: line for line, with known hosts named too."""
    for file in outcome.files:
        hide.learn_host(file.host)
    for file in outcome.files:
        path = Path(file.file)
        clean = path.with_name(f"{path.name}.redacted")
        replace_file(clean, lambda part, file=file: _redacted(file, part, hide))  # type: ignore[misc]
        if not speaking.quiet:
            say(Message(f"wrote {clean}", help="read it before you share it"), "note")


def _redacted(file: Fetched, part: Path, hide: Redactor) -> None:
    """Write the text of a copy, unpacked, with private text taken out."""
    from logscope.sources.inputs import expand  # noqa: PLC0415 - kept beside its only use

    rest = b""
    with part.open("wb") as out:
        for block in expand([file.file])[0].blocks():
            *lines, rest = (rest + block.data).split(b"\n")
            for line in lines:
                out.write(_clean(line, hide) + b"\n")
        out.write(_clean(rest, hide))


def _clean(line: bytes, hide: Redactor) -> bytes:
    """Redact one line, bytes that are not UTF-8 left as they are."""
    return hide.text(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
