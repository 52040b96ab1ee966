"""A host that stays reachable: connects when needed, and again when the connection was lost.

This module is responsible for the options of a fetch and for when to try again and when to give up. It must not know
what is asked of a node.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from logscope.fetch.node import Node, Pack
from logscope.fetch.ssh import SshError

if TYPE_CHECKING:
    from collections.abc import Callable

    from logscope.fetch.spec import Host

_LONGEST_WAIT = 15.0
_FIRST_TRIES = 2


@dataclass(frozen=True, slots=True)
class Options:
    """How to reach hosts, and what to bring.

    ssh
        the ssh program and its first arguments (:func:`logscope.fetch.ssh.ssh_command`).
    interactive
        let ssh ask on the terminal; otherwise it runs in batch mode and nothing ever waits for an answer.
    connect_timeout
        seconds.
    compress
        on the wire: what the node has (``auto``), or one method that must be there, or ``none``.
    verify
        let the node compute the SHA-256 of the whole range that was copied, and compare.
    anchors
        fixed texts: bring only lines that hold one, and 3 lines after each, in the filtered form.
    last
        bring only about so many bytes from the end, from a line start on, in the filtered form.
    since
        bring only what follows this time (``YYYY-MM-DD[ HH:MM[:SS]]``, as the log prints it), in the filtered form.
    digest
        compute the SHA-256 of the copy when it changed.
    tries
        so many failures in a row, without one byte between them, end the fetch (2 before a connection stood).
    delay
        seconds before the first new try; doubled each time, 15 at most.
    jobs
        hosts at the same time.
    """

    ssh: tuple[str, ...] = ("ssh",)
    interactive: bool = False
    connect_timeout: int = 15
    compress: Literal["auto", "zstd", "gzip", "none"] = "auto"
    verify: bool = False
    anchors: tuple[bytes, ...] = ()
    last: int | None = None
    since: str | None = None
    digest: bool = True
    tries: int = 8
    delay: float = 0.2
    jobs: int = 8

    @property
    def filtered(self) -> bool:
        """True when not the whole file is wanted."""
        return bool(self.anchors) or self.last is not None or self.since is not None


class Link:
    """One host. ``notice`` is told, in words for the user, when something unusual goes on."""

    def __init__(self, host: Host, options: Options, notice: Callable[[str], None]) -> None:
        self.host = host
        self.options = options
        self.notice = notice
        self.cancelled = threading.Event()
        self._node: Node | None = None
        self._received = 0
        self._failures = 0
        self._stood = False
        self._said = ""

    @property
    def node(self) -> Node:
        """The node, connected.

        Raises:
            SshError: it cannot be reached.

        """
        if self._node is None:
            options = self.options
            self._node = Node(
                self.host,
                options.ssh,
                interactive=options.interactive,
                connect_timeout=options.connect_timeout,
                cancelled=self.cancelled,
            )
            if self._failures:
                self.notice(f"connected to {self.host} again")
            self._stood = True
        return self._node

    @property
    def received(self) -> int:
        """Bytes that came from the host so far, over all connections."""
        return self._received + (self._node.session.received if self._node else 0)

    def pack(self, path: bytes) -> Pack:
        """Return the method to compress with on the wire.

        Raises:
            SshError: the node lacks the one asked for.

        """
        wanted, tools = self.options.compress, self.node.tools
        if wanted == "none" or (wanted == "auto" and path.endswith((b".gz", b".zst", b".xz", b".bz2"))):
            return "none"
        if wanted == "auto":
            return "zstd" if "zstd" in tools else "gzip" if "gzip" in tools else "none"
        if wanted not in tools:
            raise SshError(
                "no_tool",
                f"{self.host} has no {wanted}",
                why=f"--compress {wanted} was asked for, and {wanted} is not in the PATH of a command over ssh there",
                help="leave --compress away (auto takes what the node has), or give --compress "
                + ("gzip" if "gzip" in tools and wanted == "zstd" else "none"),
            )
        return wanted

    def progress(self) -> None:
        """Tell that something arrived: the count of failures begins anew."""
        self._failures = 0

    def drop(self) -> None:
        """End the connection; the next use makes a new one."""
        if self._node is not None:
            self._received += self._node.session.received
            self._node.close()
            self._node = None

    def cancel(self) -> None:
        """End everything from another thread."""
        self.cancelled.set()
        if self._node is not None:
            self._node.session.kill()

    def recover(self, failure: SshError, *, endless: bool = False) -> None:
        """Wait before the next try, or give up.

        Raises:
            SshError: the failure itself, when trying again cannot help or was tried often enough.

        """
        self.drop()
        self._failures += 1
        may_pass = failure.later if self._stood else failure.passing
        # A host that never answered is not asked often: it may be shutting out who knocks too much.
        tries = (
            min(_FIRST_TRIES, self.options.tries) if not self._stood else math.inf if endless else self.options.tries
        )
        if self.cancelled.is_set() or not may_pass or self._failures > tries:
            raise failure
        delay = min(_LONGEST_WAIT, self.options.delay * 2.0 ** min(self._failures - 1, 10))
        why = (failure.message.why or "").splitlines()
        what = f"{failure.message.what}{f' ({why[-1]})' if why else ''}"
        if tries < math.inf:
            self.notice(f"{what}: trying again in {delay:.1f} s")
        elif self._failures == 1 or failure.message.what != self._said:
            # Who is called until he answers is spoken of once, not at every try.
            self.notice(f"{what}: trying again until it answers")
        self._said = failure.message.what
        self.cancelled.wait(delay)
