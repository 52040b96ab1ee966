"""One conversation with a POSIX sh on a host, through the user's own ssh.

This module is responsible for the ssh command line, for starting it, for telling replies from whatever a login shell
prints around them, and for turning ssh's own words into a message that says what to do. It must not know which
commands are sent, nor what they are for.

The script goes to ``sh -s`` over standard input, so that no login shell (csh and fish included) ever reads a path, and
nothing of it stands in a process list. Every reply is its payload, raw, and a closing line that begins with a random
word drawn for this one conversation: a banner before the first reply is passed over, no length has to be known before
a payload is sent, and a log cannot hold the word.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import re
import secrets
import select
import shlex
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from logscope.errors import RemoteError, UsageError
from logscope.fetch.spec import Host, quote, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

# Words that every login shell reads alike. LC_ALL stands here already, because the sh has to read bytes as bytes.
_REMOTE = "exec env LC_ALL=C sh -s"
_READ = 1 << 18
_MAY_COME_BACK = ("refused", "timeout", "unreachable", "unknown_host", "jump", "failed")
_STDERR_KEPT = 1 << 16


def ssh_command(given: str | None = None) -> tuple[str, ...]:
    """Return the ssh program and its first arguments: ``--ssh CMD``, else ``LOGSCOPE_SSH``, else ``ssh``.

    Raises:
        UsageError: the text cannot be split into words, or holds none.

    """
    text = given if given is not None else os.environ.get("LOGSCOPE_SSH", "ssh")
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"cannot read the ssh command {text!r}", why=str(error)) from error
    if not words:
        raise UsageError("the ssh command is empty", help="give --ssh CMD, or unset LOGSCOPE_SSH")
    return words


def command_line(host: Host, ssh: tuple[str, ...], *, interactive: bool, connect_timeout: int) -> list[str]:
    """Return the whole ssh command line.

    OpenSSH keeps the first value it is given: what stands in ``--ssh`` wins over what follows here, which wins over
    the user's ssh_config. Nothing here says a word about host keys.
    """
    options = {
        "ConnectTimeout": str(connect_timeout),
        "ServerAliveInterval": "10",
        "ServerAliveCountMax": "3",
        # Things a user's Host block may ask for that would stand in the way of a plain pipe.
        "RequestTTY": "no",
        "RemoteCommand": "none",
        "ClearAllForwardings": "yes",
    }
    if not interactive:
        options = {"BatchMode": "yes", **options}
    words = [*ssh, "-T"]
    for name, value in options.items():
        words += ["-o", f"{name}={value}"]
    if host.port is not None:
        words += ["-p", str(host.port)]
    if host.user is not None:
        words += ["-l", host.user]
    return [*words, "--", host.name, _REMOTE]


class SshError(RemoteError):
    """A failure of the connection itself.

    ``kind`` names it. ``passing`` is True when trying again may help at once (a dropped connection); ``later`` when it
    may help once a connection has stood before (the host is restarting).
    """

    def __init__(self, kind: str, what: str, *, why: str | None, help: str | None = None) -> None:  # noqa: A002
        super().__init__(what, why=why, help=help)
        self.kind = kind
        self.passing = kind in ("lost", "closed")
        self.later = self.passing or kind in _MAY_COME_BACK


@dataclass(frozen=True, slots=True)
class _Failure:
    """A text of OpenSSH, and what to say when it is seen; the first of the table that fits is taken."""

    kind: str
    pattern: re.Pattern[str]
    what: str
    help: str


def _failure(kind: str, pattern: str, what: str, help: str) -> _Failure:  # noqa: A002
    return _Failure(kind, re.compile(pattern, re.IGNORECASE), what, help)


_FAILURES = (
    _failure(
        "host_key_changed",
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|differs from the key for the IP|offending .* key in",
        "the host key of {host} is not the one that is known",
        "somebody may be in between, or the host was set up anew: ask who runs it, compare the fingerprint, and only "
        "then remove the old key with: ssh-keygen -R {name}\nlogscope never turns this check off",
    ),
    _failure(
        "host_key_unknown",
        r"host key is known for|Host key verification failed|authenticity of host",
        "the host key of {host} is not known yet",
        "connect once by hand (ssh {name}), compare the fingerprint and accept it; then call this again",
    ),
    _failure(
        "key_refused",
        r"Permission denied \(|Too many authentication failures|No more authentication methods|"
        r"UNPROTECTED PRIVATE KEY|sign_and_send_pubkey|Permission denied, please try again",
        "{host} did not accept the key",
        "check with: ssh {name} true\nload the key (ssh-add), name it in ~/.ssh/config (IdentityFile, User), or call "
        "logscope fetch --interactive to be asked for a password or passphrase",
    ),
    _failure(
        "unknown_host",
        r"Could not resolve hostname|Name or service not known|nodename nor servname|Temporary failure in name",
        "there is no host called {host}",
        "check the spelling; a name from ~/.ssh/config works too",
    ),
    _failure(
        "jump",
        r"stdio forwarding failed|open failed: (?:connect failed|administratively prohibited)|UNKNOWN port 65535",
        "the jump host could not reach {host}",
        "check with: ssh {name} true\nthe name is looked up on the jump host (ProxyJump in ~/.ssh/config)",
    ),
    _failure(
        "refused",
        r"Connection refused",
        "{host} refuses the connection",
        "is sshd running there, and on this port? Another port is written ssh://{host}:2222/path",
    ),
    _failure(
        "timeout",
        r"timed out|Timeout, server",
        "{host} does not answer",
        "a firewall, a bastion that has to be passed (ProxyJump in ~/.ssh/config), or a host that is down",
    ),
    _failure(
        "unreachable",
        r"No route to host|Network is unreachable|Cannot assign requested address",
        "there is no way to {host}",
        "is the VPN up? A bastion is set with ProxyJump in ~/.ssh/config",
    ),
    _failure(
        "negotiation",
        r"Unable to negotiate|no matching .* found",
        "{host} and this ssh have no method in common",
        "check with: ssh -v {name} true",
    ),
    _failure(
        "ssh_config",
        r"Bad configuration option|bad configuration options|Bad owner or permissions on|Can't open user config|"
        r"illegal option|unknown option|usage: ssh",
        "ssh does not accept its configuration",
        "mend the named line in ~/.ssh/config, or the command given with --ssh or LOGSCOPE_SSH",
    ),
    _failure(
        "closed",
        r"kex_exchange_identification|Connection (?:to \S+ )?closed|Connection reset|Broken pipe|closed by remote host",
        "{host} closed the connection",
        "call this again: it goes on where it stopped",
    ),
)
_NO_SHELL = re.compile(
    r"not available|sftp connections only|nologin|not found|No such file|not allowed|not permitted|restricted",
    re.IGNORECASE,
)


def explain(host: Host, words: str, code: int | None, *, talked: bool, banner: str = "") -> SshError:
    """Turn what ssh printed into an error.

    Args:
        host: who was called.
        words: ssh's standard error.
        code: its exit status, None when it was killed or still runs.
        talked: the sh on the host had already answered.
        banner: what came on standard output instead of an answer.

    """
    lines = [shown(line.rstrip()) for line in words.splitlines() if line.strip()]
    for failure in _FAILURES:
        told = [line for line in lines if failure.pattern.search(line)]
        if told and not (talked and failure.kind not in ("closed", "timeout")):
            more = [line for line in lines if re.search(r"Offending|fingerprint|SHA256|verification failed", line)]
            why = "\n".join(dict.fromkeys((told + more if failure.kind.startswith("host_key") else told)[-5:]))
            names = {"host": str(host), "name": host.name}
            return SshError(failure.kind, failure.what.format(**names), why=why, help=failure.help.format(**names))
    if talked:
        last = "\n".join(lines[-4:]) or None
        again = "call this again: it goes on where it stopped"
        return SshError("lost", f"the connection to {host} was lost", why=last, help=again)
    said = [shown(line.strip()) for line in banner.splitlines() if line.strip()][-2:]
    if code in (126, 127) or _NO_SHELL.search("\n".join([*said, *lines])):
        return SshError(
            "no_shell",
            f"the account on {host} gives no shell",
            why="\n".join([*said, *lines[-4:]]) or f"exit status {code}",
            help="logscope needs sh, coreutils and grep there; use an account that may run commands",
        )
    return SshError(
        "failed",
        f"no connection to {host}",
        why="\n".join([*said, *lines[-4:]]) or f"ssh ended with status {code} and said nothing",
        help=f"check with: ssh {host.name} true",
    )


class Session:
    """One running ssh and the sh behind it. Not for several threads at once.

    ``received`` counts the bytes that came from the host; ``words`` holds the closing line of the last reply.

    Raises:
        SshError: no connection, or no sh behind it.

    """

    def __init__(  # noqa: D417 - the other arguments are those of command_line
        self,
        host: Host,
        ssh: tuple[str, ...],
        script: bytes,
        *,
        interactive: bool = False,
        connect_timeout: int = 15,
        cancelled: threading.Event | None = None,
    ) -> None:
        """Connect, send the script, and wait for its first reply.

        Args:
            script: sh text that defines the functions to call. ``l_end WORDS`` (defined here) closes a reply; the
                script's last command has to do that once.
            cancelled: ends the waiting when it is set.

        """
        self.host = host
        self.received = 0
        self.words: list[str] = []
        self.banner = b""
        self._talked = False
        self._cancelled = cancelled or threading.Event()
        # A password may take its time; otherwise a login shell that hangs must not hang us.
        self._deadline = math.inf if interactive else time.monotonic() + connect_timeout + 45
        self._rest = b""
        self._stderr = bytearray()
        # In two halves, so that a terminal or a shell that echoes the script does not seem to answer.
        first, second = secrets.token_hex(16), secrets.token_hex(16)
        self._mark = f"\n{first}{second} ".encode()
        command = command_line(host, ssh, interactive=interactive, connect_timeout=connect_timeout)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                # Without a terminal nothing can ask (a jump host's ssh does not inherit BatchMode), and Ctrl-C reaches
                # this process alone, which then ends ssh in order.
                start_new_session=not interactive,
                env=None if interactive else {**os.environ, "SSH_ASKPASS_REQUIRE": "never"},
            )
        except OSError as error:
            raise SshError(
                "no_ssh",
                f"cannot start {ssh[0]!r}",
                why=error.strerror,
                help="install the OpenSSH client, or name another with --ssh or LOGSCOPE_SSH",
            ) from error
        assert self._process.stdin is not None  # noqa: S101 - all three are pipes
        assert self._process.stdout is not None  # noqa: S101
        self._in, self._out = self._process.stdin, self._process.stdout
        with contextlib.suppress(OSError, AttributeError):  # a larger pipe is faster, and only Linux has it
            fcntl.fcntl(self._out, fcntl.F_SETPIPE_SZ, 1 << 20)
        # A thread of its own: a ControlMaster that stays behind keeps the pipe open, so its end may never come.
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        end = f"l_end() {{ printf '\\n%s%s %s\\n' {first} {second} \"$*\"; }}\n".encode()
        try:
            self._write(end + script)
            for piece in self.receive():
                self.banner = (self.banner + piece)[-_STDERR_KEPT:]
        except BaseException:
            self.close()
            raise
        self._talked = True

    def send(self, function: str, *arguments: bytes | str | int) -> None:
        """Call a function of the script; every argument arrives as exactly these bytes.

        Raises:
            SshError: the connection is gone.

        """
        words = [str(a).encode() if isinstance(a, int) else os.fsencode(a) for a in arguments]
        self.send_words(function, *(quote(word) for word in words))

    def send_words(self, function: str, *words: bytes) -> None:
        """Call a function with words that are sh already; only :func:`logscope.fetch.spec.pattern_word` makes such."""
        # The sh reads its commands from where its children must not read.
        self._write(b" ".join([function.encode(), *words]) + b" </dev/null\n")

    def receive(self) -> Iterator[bytes]:
        """Yield the payload of the next reply; when it is through, ``words`` holds the closing line's words.

        Raises:
            SshError: the connection was lost before the closing line.

        """
        held = self._rest
        while True:
            at = held.find(self._mark)
            end = held.find(b"\n", at + len(self._mark)) if at >= 0 else -1
            if end >= 0:
                if at:
                    yield held[:at]
                self.words = held[at + len(self._mark) : end].decode("ascii", "replace").split()
                self._rest = held[end + 1 :]
                return
            # Only what could be the beginning of the mark is held back.
            safe = at if at >= 0 else held.rfind(b"\n", max(0, len(held) - len(self._mark)))
            safe = len(held) if safe < 0 else safe
            if safe:
                yield held[:safe]
            self._rest = held[safe:]
            held = self._rest + self._read()

    def call(self, function: str, *arguments: bytes | str | int) -> bytes:
        """Call a function and return the payload of its reply."""
        self.send(function, *arguments)
        return b"".join(self.receive())

    def close(self) -> None:
        """End ssh. The sh on the host ends with it: its input is closed."""
        with contextlib.suppress(OSError):
            self._in.close()
        try:
            self._process.wait(timeout=0.3)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            try:
                self._process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._out.close()
        self._listener.join(timeout=0.5)
        if not self._listener.is_alive() and self._process.stderr is not None:
            self._process.stderr.close()

    def kill(self) -> None:
        """End ssh from another thread: a read that waits ends with an error."""
        self._process.kill()

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[self._in.write(data) :]
        except OSError:
            raise self._lost() from None

    def _read(self) -> bytes:
        while not select.select([self._out], [], [], 0.2)[0]:
            # A host that hangs must not keep who wants to leave: ssh itself notices only after half a minute.
            if self._cancelled.is_set():
                raise SshError("cancelled", f"the connection to {self.host} was given up", why=None)
            if not self._talked and time.monotonic() > self._deadline:
                raise SshError(
                    "timeout",
                    f"the login shell on {self.host} does not start",
                    why="ssh was started, and no sh answered",
                    help=f"check with: ssh {self.host.name} true",
                )
        data = os.read(self._out.fileno(), _READ)
        if not data:
            raise self._lost()
        self.received += len(data)
        if not self._talked and self.received > _READ * 64:
            raise SshError("no_shell", f"the login shell on {self.host} prints without end", why=None)
        return data

    def _lost(self) -> SshError:
        """Return what ended the conversation, in ssh's own words where it left any."""
        code: int | None
        try:
            code = self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            code = None
        self._listener.join(timeout=0.5)
        words, banner = (bytes(text).decode("utf-8", "replace") for text in (self._stderr, self.banner + self._rest))
        return explain(self.host, words, code, talked=self._talked, banner=banner)

    def _listen(self) -> None:
        assert self._process.stderr is not None  # noqa: S101 - it is a pipe
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(self._process.stderr.fileno(), 4096):
                self._stderr += data
                del self._stderr[:-_STDERR_KEPT]
