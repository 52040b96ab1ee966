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
import signal
import subprocess
import tempfile
import time
from typing import IO, TYPE_CHECKING, cast

from logscope.errors import RemoteError, UsageError
from logscope.fetch.spec import Host, Options, Word, quote, shown

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

_READ = 1 << 18
_KEPT = 1 << 16  # of what ssh and the login shell say, for a message


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


def command_line(host: Host, options: Options) -> list[str]:
    """Return the whole ssh command line.

    OpenSSH keeps the first value it is given: what stands in ``--ssh`` wins over what follows here, which wins over
    the user's ssh_config. Nothing here says a word about host keys.
    """
    settings = {
        "ConnectTimeout": str(options.connect_timeout),
        "ServerAliveInterval": "10",
        "ServerAliveCountMax": "3",
        # Things a user's Host block may ask for that would stand in the way of a plain pipe.
        "RequestTTY": "no",
        "RemoteCommand": "none",
        "ClearAllForwardings": "yes",
        **({} if options.interactive else {"BatchMode": "yes"}),
    }
    words = [*options.ssh, "-T"]
    for name, value in settings.items():
        words += ["-o", f"{name}={value}"]
    if host.port is not None:
        words += ["-p", str(host.port)]
    if host.user is not None:
        words += ["-l", host.user]
    # Words that every login shell reads alike. LC_ALL stands here already, because the sh has to read bytes as bytes.
    return [*words, "--", host.name, "exec env LC_ALL=C sh -s"]


class SshError(RemoteError):
    """A failure of the connection itself.

    ``kind`` names it. ``passing`` is True when trying again may help at once (a dropped connection); ``later`` when it
    may help once a connection has stood before (the host is restarting).
    """

    def __init__(self, kind: str, what: str, *, why: str | None, help: str | None = None) -> None:  # noqa: A002
        super().__init__(what, why=why, help=help)
        self.kind = kind
        self.passing = kind in ("lost", "closed")
        self.later = self.passing or kind in ("refused", "timeout", "unreachable", "unknown_host", "jump", "failed")


# What OpenSSH says, and what to say then: kind, text, what, help. The first that fits is taken.
# ruff: disable[ISC004]
_FAILURES = (
    (
        "host_key_changed",
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|differs from the key for the IP|offending .* key in",
        "the host key of {host} is not the one that is known",
        "somebody may be in between, or the host was set up anew: ask who runs it, compare the fingerprint, and only "
        "then remove the old key with: ssh-keygen -R {name}\nlogscope never turns this check off",
    ),
    (
        "host_key_unknown",
        r"host key is known for|Host key verification failed|authenticity of host",
        "the host key of {host} is not known yet",
        "connect once by hand (ssh {name}), compare the fingerprint and accept it; then call this again",
    ),
    (
        "key_refused",
        r"Permission denied \(|Too many authentication failures|No more authentication methods|"
        r"UNPROTECTED PRIVATE KEY|sign_and_send_pubkey|Permission denied, please try again",
        "{host} did not accept the key",
        "check with: ssh {name} true\nload the key (ssh-add), name it in ~/.ssh/config (IdentityFile, User), or call "
        "logscope fetch --interactive to be asked for a password or passphrase",
    ),
    (
        "unknown_host",
        r"Could not resolve hostname|Name or service not known|nodename nor servname|Temporary failure in name",
        "there is no host called {host}",
        "check the spelling; a name from ~/.ssh/config works too",
    ),
    (
        "jump",
        r"stdio forwarding failed|open failed: (?:connect failed|administratively prohibited)|UNKNOWN port 65535",
        "the jump host could not reach {host}",
        "check with: ssh {name} true\nthe name is looked up on the jump host (ProxyJump in ~/.ssh/config)",
    ),
    (
        "refused",
        r"Connection refused",
        "{host} refuses the connection",
        "is sshd running there, and on this port? Another port is written ssh://{host}:2222/path",
    ),
    (
        "timeout",
        r"timed out|Timeout, server",
        "{host} does not answer",
        "a firewall, a bastion that has to be passed (ProxyJump in ~/.ssh/config), or a host that is down",
    ),
    (
        "unreachable",
        r"No route to host|Network is unreachable|Cannot assign requested address",
        "there is no way to {host}",
        "is the VPN up? A bastion is set with ProxyJump in ~/.ssh/config",
    ),
    (
        "negotiation",
        r"Unable to negotiate|no matching .* found",
        "{host} and this ssh have no method in common",
        "check with: ssh -v {name} true",
    ),
    (
        "ssh_config",
        r"Bad configuration option|bad configuration options|Bad owner or permissions on|Can't open user config|"
        r"illegal option|unknown option|usage: ssh",
        "ssh does not accept its configuration",
        "mend the named line in ~/.ssh/config, or the command given with --ssh or LOGSCOPE_SSH",
    ),
    (
        "closed",
        r"kex_exchange_identification|Connection (?:to \S+ )?closed|Connection reset|Broken pipe|closed by remote host",
        "{host} closed the connection",
        "call this again: it goes on where it stopped",
    ),
)
# ruff: enable[ISC004]
_NO_SHELL = r"not available|sftp connections only|nologin|not found|No such file|not allowed|not permitted|restricted"


def explain(host: Host, words: str, code: int | None, *, talked: bool, banner: str = "") -> SshError:
    """Turn what ssh printed into an error.

    Args:
        host: who was called.
        words: ssh's standard error.
        code: its exit status, None when it was killed or still runs.
        talked: the sh on the host had already answered.
        banner: what came on standard output instead of an answer.

    """
    lines, said = ([shown(line.strip()) for line in text.splitlines() if line.strip()] for text in (words, banner))
    for kind, pattern, what, todo in _FAILURES:  # noqa: B007 - used behind the loop
        told = [line for line in lines if re.search(pattern, line, re.IGNORECASE)]
        if told and (not talked or kind in ("closed", "timeout")):
            if kind.startswith("host_key"):
                told += [line for line in lines if re.search(r"Offending|fingerprint|SHA256|verification failed", line)]
            break
    else:
        told = [] if talked else said[-2:]
        told += lines[-4:]
        if talked:
            kind, what = "lost", "the connection to {host} was lost"
            todo = "call this again: it goes on where it stopped"
        elif code in (126, 127) or re.search(_NO_SHELL, "\n".join(told + lines), re.IGNORECASE):
            kind, what = "no_shell", "the account on {host} gives no shell"
            todo = "logscope needs sh, coreutils and grep there; use an account that may run commands"
        else:
            kind, what, todo = "failed", "no connection to {host}", "check with: ssh {name} true"
    why = "\n".join(dict.fromkeys(told[-6:])) or (None if talked else f"ssh ended with status {code} and said nothing")
    names = {"host": str(host), "name": host.name}
    return SshError(kind, what.format(**names), why=why, help=todo.format(**names))


class Session:
    """One running ssh and the sh behind it. Not for several threads at once.

    ``received`` counts the bytes that came from the host; ``words`` holds the closing line of the last reply,
    ``greeting`` that of the first.

    Args:
        host: whom to call.
        options: how.
        script: sh text that defines the functions to call. ``l_end WORDS`` (defined here) closes a reply; the script's
            last command has to do that once.
        cancelled: ends every waiting when it is set.

    Raises:
        SshError: no connection, or no sh behind it.

    """

    def __init__(self, host: Host, options: Options, script: bytes, cancelled: threading.Event) -> None:
        self.host = host
        self.received = 0
        self.words: list[str] = []
        self._cancelled = cancelled
        self._talked = False
        self._banner = self._rest = b""
        # A password may take its time; otherwise a login shell that hangs must not hang us.
        self._deadline = math.inf if options.interactive else time.monotonic() + options.connect_timeout + 45
        # In two halves, so that a terminal or a shell that echoes the script does not seem to answer.
        first, second = secrets.token_hex(16), secrets.token_hex(16)
        self._mark = f"\n{first}{second} ".encode()
        # A file: a pipe would have to be read, and a ControlMaster that stays behind would keep it open.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the session
        # Without a terminal nothing can ask (a jump host's ssh does not inherit BatchMode). In a session of its own
        # ssh does not hear Ctrl-C, but is ended in order, with whatever a wrapper started.
        self._alone = not options.interactive
        try:
            self._process = subprocess.Popen(
                command_line(host, options),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=self._alone,
                env={**os.environ, "SSH_ASKPASS_REQUIRE": "never"} if self._alone else None,
            )
        except OSError as error:
            self._stderr.close()
            how = "install the OpenSSH client, or name another with --ssh or LOGSCOPE_SSH"
            raise SshError("no_ssh", f"cannot start {options.ssh[0]!r}", why=error.strerror, help=how) from error
        self._in, self._out = cast("IO[bytes]", self._process.stdin), cast("IO[bytes]", self._process.stdout)
        with contextlib.suppress(OSError, AttributeError):  # a larger pipe is faster, and only Linux has it
            fcntl.fcntl(self._out, fcntl.F_SETPIPE_SZ, 1 << 20)
        try:
            self._write(f"l_end() {{ printf '\\n%s%s %s\\n' {first} {second} \"$*\"; }}\n".encode() + script)
            for piece in self.receive():
                self._banner = (self._banner + piece)[-_KEPT:]
        except BaseException:
            self.close()
            raise
        self.greeting = self.words
        self._talked = True

    def send(self, function: str, *arguments: bytes | str | int) -> None:
        """Call a function of the script; every argument arrives as exactly these bytes, a :class:`Word` as sh.

        Raises:
            SshError: the connection is gone.

        """
        words = [
            word if isinstance(word, Word) else quote(os.fsencode(str(word) if isinstance(word, int) else word))
            for word in arguments
        ]
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
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=0.3)
                break
            self.kill(number)
        self._process.wait()
        self._out.close()
        self._stderr.close()

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End ssh, and what a wrapper around it started; a read that waits in another thread ends with an error."""
        with contextlib.suppress(ProcessLookupError):
            if self._alone:
                os.killpg(self._process.pid, number)
            else:
                self._process.send_signal(number)

    def _write(self, data: bytes) -> None:
        try:
            self._in.write(data)
            self._in.flush()
        except OSError:
            raise self._lost() from None

    def _read(self) -> bytes:
        while not select.select([self._out], [], [], 0.1)[0]:
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
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(timeout=2)
        errors = self._stderr.fileno()
        # Not by seeking: ssh may still write, and shares the place.
        words = os.pread(errors, _KEPT, max(0, os.fstat(errors).st_size - _KEPT))
        texts = (text.decode("utf-8", "replace") for text in (words, self._banner + self._rest))
        return explain(self.host, next(texts), code, talked=self._talked, banner=next(texts))
