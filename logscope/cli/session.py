"""How a command ends: what is said on stderr, and with which exit code the program leaves.

This module is responsible for turning every way a command can end into an exit code and a message. It must not know
any command, nor any result.

    0    fine, or the same; also when the reader closed the pipe
    1    findings, or different; also when nothing at all was recognised
    2    trouble: wrong usage, unreadable input, a bug of ours. Trouble wins over findings
    130  interrupted
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from logscope.errors import LogscopeError, Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

OK, FINDINGS, TROUBLE, INTERRUPTED = 0, 1, 2, 130


def say(message: Message, kind: str) -> None:
    """Write a message to stderr; a closed stderr is no reason to fail."""
    from logscope.render import Style  # noqa: PLC0415 - most commands say nothing
    from logscope.render.terminal import text_message  # noqa: PLC0415

    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text_message(message, kind, Style(color=colored(sys.stderr))))
        sys.stderr.flush()
    except OSError:
        return


def colored(stream: TextIO) -> bool:
    """Tell whether a stream is coloured where no option says so: NO_COLOR, then FORCE_COLOR, then a real terminal."""
    said = os.environ.get("NO_COLOR"), os.environ.get("FORCE_COLOR")
    return not said[0] and (bool(said[1]) or (stream.isatty() and os.environ.get("TERM") != "dumb"))


def guard(run: Callable[[], int], *, debug: bool) -> int:
    """Run a command and return its exit code, whatever happens.

    The outermost handler: an uncaught exception would exit with 1, which means findings.
    """
    try:
        code = run()
        if sys.stdout is not None:
            sys.stdout.flush()
    except LogscopeError as error:
        say(error.message, "error")
        return error.exit_code
    except BrokenPipeError:
        _close_quietly()
        return OK
    except KeyboardInterrupt as stopped:
        _close_quietly()
        if stopped.args:  # what is kept, and how to go on
            say(Message(str(stopped)), "note")
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - see above
        say(bug(error), "bug")
        if debug:
            import traceback  # noqa: PLC0415 - bugs only

            from logscope.render.text import visible  # noqa: PLC0415

            lines = "".join(traceback.format_exception(error)).splitlines()
            print("\n".join(visible(line) for line in lines), file=sys.stderr)  # noqa: T201
        return TROUBLE
    return code


@contextmanager
def until_interrupted() -> Iterator[threading.Event]:
    """Give what the first Ctrl-C sets, so that following a log ends in order, with all it held; a second interrupts.

    SIGTERM (``kill``, ``timeout``) is heard like Ctrl-C. Only the main thread can hear either; in another one nothing
    sets the event.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: heard for number, heard in before.items() if heard is not signal.SIG_IGN}

    def restore() -> None:
        for number, heard in before.items():
            signal.signal(number, heard)

    def first(*_: object) -> None:
        restore()
        # Not here: the main thread may hold the event's own lock, waiting for it.
        threading.Thread(target=stop.set).start()

    for number in before:
        signal.signal(number, first)
    try:
        yield stop
    finally:
        restore()


def _close_quietly() -> None:
    """Let nothing be written to a pipe that nobody reads, not even when the interpreter ends."""
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
    except (OSError, ValueError, AttributeError):
        return


def bug(error: BaseException) -> Message:
    """Return what is said of an exception that should not have happened."""
    import platform  # noqa: PLC0415 - bugs only

    from logscope import __version__  # noqa: PLC0415

    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Message(
        f"this is a bug in logscope, not in your log: {text}",
        why=f"it happened at {_innermost(error.__traceback__)}",
        note=f"logscope {__version__}, Python {platform.python_version()}, {platform.system()}",
        help="run it again with --debug and report the traceback, the command line and, where you can share it,\n"
        "the log ('logscope events LOG --raw --redact all' takes out paths, addresses, hosts, prompts and ids)",
    )


def _innermost(traceback: TracebackType | None) -> str:
    """Return file:line of our own code nearest to the exception, without the folder it is installed in."""
    place = "an unknown place"
    # Not any folder of that name: a checkout, with its .venv, may be called logscope.
    package = Path(__file__).parents[1]
    while traceback is not None:
        name = Path(traceback.tb_frame.f_code.co_filename)
        if name.is_relative_to(package):
            place = f"{name.relative_to(package.parent)}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place
