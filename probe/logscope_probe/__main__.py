"""``python -m logscope_probe -o DIR [options] -- COMMAND...``: start a server with the probe in it, or switch one.

This module is responsible for the words and for the environment of the command, which then takes this process over:
no process stands in between, so signals, exit codes and output are the server's own. It must not know SGLang.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logscope_probe import __version__
from logscope_probe.options import STATES, Options, size, states

if TYPE_CHECKING:
    from collections.abc import Callable

STARTUP = Path(__file__).resolve().parent / "startup"
TROUBLE = 2

EPILOG = """switching a running server (it looks once a second):
  python -m logscope_probe off DIR    record nothing more
  python -m logscope_probe on DIR     go on

reading: logscope check DIR"""


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    made = argparse.ArgumentParser(
        prog="python -m logscope_probe",
        usage="%(prog)s -o DIR [options] -- python -m sglang.launch_server ...\n       %(prog)s on|off DIR",
        description="Start a stock SGLang server that writes a record of every hidden state of every forward pass.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("-o", dest="folder", metavar="DIR", required=True, help="where the records go; new, or without records")
    add("--states", type=_checked(states), default=STATES, metavar="NAMES", help=f"some of {','.join(STATES)}")
    add("--every", type=_positive, default=1, metavar="N", help="one target pass in N, with its draft passes")
    add("--from-pass", dest="first", type=_positive, default=0, metavar="N", help="nothing before pass N")
    add(
        "--until-finding",
        type=_count,
        default=-1,
        metavar="N",
        help="stop N passes after the first nan, inf, zero or stale state",
    )
    add("--row-norms", type=_positive, default=0, metavar="N", help="norms of at most N rows of each state")
    add("--rids", action="store_true", help="the request ids of each pass")
    add("--size", type=_checked(size), default=256 << 20, metavar="SIZE", help="rotate a file at SIZE (256M)")
    add("--keep", type=_count, default=3, metavar="N", help="keep N rotated files of each rank (3)")
    add("--off", action="store_true", help="start switched off; `on DIR` begins")
    add("--version", action="version", version=f"logscope probe {__version__}")
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return made


def _checked(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def checked(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return checked


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no count")
    return int(text)


def _positive(text: str) -> int:
    if not _count(text):
        raise argparse.ArgumentTypeError("0 is too few")
    return int(text)


def environment(options: Options, environ: dict[str, str]) -> dict[str, str]:
    """Return the command's environment: the options, and the folder with sitecustomize.py in front of the path."""
    path = [str(STARTUP), *filter(None, [environ.get("PYTHONPATH")])]
    return {
        **environ,
        "LOGSCOPE_PROBE": os.path.abspath(options.folder),
        "LOGSCOPE_PROBE_OPTIONS": options.as_text(),
        "PYTHONPATH": os.pathsep.join(path),
    }


def switch(word: str, folder: Path) -> int:
    """Switch the servers that write into a folder on or off."""
    if not folder.is_dir():
        return _trouble(f"{folder} is no folder that a probe writes to")
    if word == "off":
        (folder / "off").touch()
    else:
        (folder / "off").unlink(missing_ok=True)
    return 0


def _trouble(text: str) -> int:
    print(f"logscope probe: {text}", file=sys.stderr)
    return TROUBLE


def main(words: list[str]) -> int:
    """Read the words, prepare the folder and become the command; returns only on trouble, or when it switched."""
    if words[:1] in (["on"], ["off"]) and len(words) == 2:
        return switch(words[0], Path(words[1]))
    given = vars(parser().parse_args(words))
    command, off = given.pop("command"), given.pop("off")
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        return _trouble("which server? Write it behind --: -- python -m sglang.launch_server ...")
    options = Options(**given)
    folder = Path(options.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.glob("*.log*")):
            return _trouble(f"{folder} holds records of an earlier start; give another folder")
        (folder / "found").unlink(missing_ok=True)
        switch("off" if off else "on", folder)
    except OSError as error:
        return _trouble(f"{folder}: {error.strerror}")
    try:
        os.execvpe(command[0], command, environment(options, dict(os.environ)))  # noqa: S606 - that is the purpose
    except OSError as error:
        return _trouble(f"cannot start {command[0]}: {error.strerror}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
