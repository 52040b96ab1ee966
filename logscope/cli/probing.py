"""``logscope probe``: how a server is started with the probe in it, and the probe's folder onto a node.

This module is responsible for those words and for finding the folder. It must not know what the probe does.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from logscope.cli.output import Target, write
from logscope.cli.session import OK, say
from logscope.errors import InputError, Message

if TYPE_CHECKING:
    from logscope.cli.options import Speaking

_HOW = """{where}start a server with the probe in it; the records go into a new folder:
  {start}

options, and switching a running server off and on:
  PYTHONPATH={folder} python -m logscope_probe --help

{read}
"""


def folder() -> Path:
    """Return the folder that holds the package ``logscope_probe``: in the wheel, or beside the package in a checkout.

    Raises:
        InputError: the installation is incomplete.

    """
    package = Path(__file__).resolve().parent.parent
    for place in (package / "probe", package.parent / "probe"):
        if (place / "logscope_probe" / "__main__.py").is_file():
            return place
    raise InputError("the probe is not there", why=f"looked in {package}", help="install logscope again")


def how(host: str | None, speaking: Speaking, *, ssh: str | None, interactive: bool, connect_timeout: int) -> int:
    """Print how; with a host, copy the folder there first."""
    here = folder()
    if host is None:
        path, where, read = str(here), "", "read what it writes:\n  logscope check probe/"
    else:
        from logscope import fetch  # noqa: PLC0415 - help must not pay for it

        to = fetch.destination(host)
        files = {
            str(file.relative_to(here)): file.read_text(encoding="utf-8")
            for file in sorted((here / "logscope_probe").rglob("*.py"))
        }
        options = fetch.Options(ssh=fetch.ssh_command(ssh), interactive=interactive, connect_timeout=connect_timeout)
        fetch.send(files, to, options)
        path = os.fsdecode(to.path)
        if not speaking.quiet:
            say(Message(f"copied {len(files)} files to {to.host}:{path}/logscope_probe"), "note")
        where = f"on {to.host}, "
        read = f"read what it writes, here:\n  logscope fetch '{to.host}:probe/*' probe/ && logscope check probe/"
    path = shlex.quote(path)
    start = f"PYTHONPATH={path} python -m logscope_probe -o probe/ -- python -m sglang.launch_server ..."
    write(_HOW.format(where=where, start=start, folder=path, read=read), Target("table"), speaking)
    return OK
