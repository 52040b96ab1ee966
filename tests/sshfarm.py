"""Real sshd instances on loopback for the tests of fetch, and ways to disturb them.

Nothing here touches the account it runs in: keys, known_hosts, ssh_config and the sshd's own configuration stand in a
temporary folder, and ssh is started with ``-F``. One sshd serves every kind of node, each on a port of its own, where
a wrapper stands in for the login shell. Everything works for root and for a plain user.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logscope.fetch import Options, Outcome, fetch, parse

if TYPE_CHECKING:
    from collections.abc import Callable

COREUTILS = ("sh", "env", "stat", "head", "tail", "wc", "cat", "sha256sum", "grep", "gzip", "printf", "test")


def need_tool(name: str) -> str:
    """Return the path of a program, or skip; as in conftest.py, but sbin folders, which plain users lack, count."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")
    if found is None:
        if os.environ.get("LOGSCOPE_TEST_ALL") == "1":
            pytest.fail(f"{name} is not installed, and LOGSCOPE_TEST_ALL=1 asks for every test")
        pytest.skip(f"{name} is not installed")
    return found


def free_ports(count: int) -> list[int]:
    """Return ports nobody listens on now."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


class Farm:
    """Two sshd, the user's side of them, and a folder for logs.

    Hosts by name (all are aliases in the ssh_config): ``node``; ``banner`` (a login shell that prints, and sets
    hostile things); ``csh``; ``bare`` (no zstd); ``busybox``; ``denied`` (an account that may read less); ``noshell``;
    ``inner`` (second sshd), ``jumped`` (inner through node); ``changed`` (its key is not the known one); ``unknown``
    (its key is not known); ``refused`` (the key is not accepted); ``closed`` (nobody listens); ``muxed`` (ControlMaster).
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.logs = root / "logs"
        self.logs.mkdir()
        self.home = root / "home"
        self.home.mkdir()
        self.config = root / "ssh_config"
        self._servers: list[subprocess.Popen[bytes]] = []
        need_tool("ssh")
        sshd = need_tool("sshd")
        keygen = need_tool("ssh-keygen")
        for name in ("host_a", "host_b", "user", "stranger"):
            subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(root / name)], check=True)
        (root / "authorized").write_bytes((root / "user.pub").read_bytes())
        self.kinds = ("node", "banner", "csh", "bare", "busybox", "denied", "noshell")
        *ports, inner, closed = free_ports(len(self.kinds) + 2)
        self.ports = dict(zip(self.kinds, ports, strict=True)) | {"inner": inner, "closed": closed}
        matches = "".join(
            f"Match LocalPort {self.ports[kind]}\n    ForceCommand {self._wrapper(kind)}\n" for kind in self.kinds[1:]
        )
        self._start(sshd, "a", ports, matches)
        self._start(sshd, "b", [inner], "")
        self._write_config()

    @property
    def ssh(self) -> tuple[str, ...]:
        """The ssh that knows these hosts."""
        return ("ssh", "-F", str(self.config))

    def options(self, **changes: object) -> Options:
        """Options with this ssh and short waits."""
        return replace(Options(ssh=self.ssh, delay=0.02, connect_timeout=10), **changes)  # type: ignore[arg-type]

    def fetch(
        self, *sources: str, dest: str | Path, notice: Callable[[str], None] = lambda _: None, **changes: object
    ) -> Outcome:
        """Fetch with these options."""
        specs = [parse(source) for source in sources]
        return fetch([s for s in specs if s], dest, self.options(**changes), notice=notice)

    def _wrapper(self, kind: str) -> Path:
        """Write what stands in for the login shell of a kind of node; sshd gives it the command in a variable."""
        home = self.root / f"home-{kind}"
        home.mkdir()
        run = {
            "banner": "printf 'Welcome to \\001\\377 the node\\nno newline at the end: LOGSCOPE ok'\n"
            "grep() { echo replaced; }; cat() { echo replaced; }; export -f grep cat\n"
            "export LC_ALL=xx_YY.UTF-8 LANG=tr_TR.UTF-8 GREP_OPTIONS=--color=always POSIXLY_CORRECT=1 CDPATH=/\n"
            'exec bash -c "$SSH_ORIGINAL_COMMAND"',
            "csh": f'export HOME={shlex.quote(str(home))}\nexec tcsh -c "$SSH_ORIGINAL_COMMAND"',
            "bare": f'export PATH={shlex.quote(str(home))}\nexec sh -c "$SSH_ORIGINAL_COMMAND"',
            "busybox": f'export PATH={shlex.quote(str(home))}\nexec sh -c "$SSH_ORIGINAL_COMMAND"',
            "denied": 'exec setpriv --reuid=65534 --regid=65534 --clear-groups sh -c "$SSH_ORIGINAL_COMMAND"'
            if os.geteuid() == 0
            else 'exec sh -c "$SSH_ORIGINAL_COMMAND"',
            "noshell": "echo 'This account is currently not available.'\nexit 1",
        }[kind]
        if kind == "csh":
            (home / ".cshrc").write_text("echo 'csh says hello!'\nalias ls rm\nalias grep 'echo no'\nset noclobber\n")
        if kind == "bare":
            for tool in COREUTILS:
                (home / tool).symlink_to(need_tool(tool))
        busybox = shutil.which("busybox")
        if kind == "busybox" and busybox:
            for tool in COREUTILS:
                (home / tool).symlink_to(busybox)
        script = self.root / f"login-{kind}"
        script.write_text(f"#!{need_tool('bash')}\n{run}\n")
        script.chmod(0o755)
        return script

    def _start(self, sshd: str, name: str, ports: list[int], matches: str) -> None:
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True, mode=0o755)
        config = self.root / f"sshd_{name}"
        log = self.root / f"sshd_{name}.log"
        lines = [
            *(f"Port {port}" for port in ports),
            "ListenAddress 127.0.0.1",
            f"HostKey {self.root / ('host_' + name)}",
            f"AuthorizedKeysFile {self.root / 'authorized'}",
            "PidFile none",
            "UsePAM no",
            "StrictModes no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PubkeyAuthentication yes",
            "PermitRootLogin prohibit-password",
            "UseDNS no",
            "MaxStartups 200",
            "PrintMotd no",
            # The account's own start-up files stay out of it, and relative paths lead here.
            f"SetEnv HOME={self.home}",
        ]
        # From OpenSSH 9.8 on sshd shuts out who fails often, which the tests do on purpose.
        for more in (["PerSourcePenalties no"], []):
            config.write_text("\n".join([*lines, *more, matches]))
            if subprocess.run([sshd, "-t", "-f", str(config)], capture_output=True, check=False).returncode == 0:
                break
        # -r: a connection is forked, not executed anew, which takes a third less (newer ones ignore it).
        server = subprocess.Popen([sshd, "-r", "-D", "-f", str(config), "-E", str(log)], stdin=subprocess.DEVNULL)
        self._servers.append(server)
        for port in ports:
            for _ in range(200):
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                assert server.poll() is None, log.read_text()
                time.sleep(0.02)

    def _write_config(self) -> None:
        keys = {name: " ".join((self.root / f"{name}.pub").read_text().split()[:2]) for name in ("host_a", "host_b")}
        (self.root / "known_hosts").write_text(f"farm-a {keys['host_a']}\nfarm-b {keys['host_b']}\n")
        # What these are known by is the other server's key.
        (self.root / "known_wrong").write_text(f"farm-a {keys['host_b']}\n")
        hosts = {kind: (self.ports[kind], "farm-a", []) for kind in self.kinds}
        node = self.ports["node"]
        hosts |= {
            "inner": (self.ports["inner"], "farm-b", []),
            "jumped": (self.ports["inner"], "farm-b", ["ProxyJump node"]),
            "lostjump": (self.ports["closed"], "farm-b", ["ProxyJump node"]),
            "changed": (node, "farm-a", [f"UserKnownHostsFile {self.root / 'known_wrong'}"]),
            "unknown": (node, "farm-c", []),
            "refused": (node, "farm-a", []),
            "closed": (self.ports["closed"], "farm-a", []),
            "muxed": (
                node,
                "farm-a",
                ["ControlMaster auto", f"ControlPath {self.root / 'mux'}", "ControlPersist 60"],
            ),
        }
        text = "".join(
            f"Host {name}\n    Port {port}\n    HostKeyAlias {alias}\n"
            f"    IdentityFile {self.root / ('stranger' if name == 'refused' else 'user')}\n"
            + "".join(f"    {line}\n" for line in more)
            for name, (port, alias, more) in hosts.items()
        )
        self.config.write_text(
            text + f"Host 127.0.0.1 no-such-host.invalid\n    IdentityFile {self.root / 'user'}\n"
            f"Host *\n    HostName 127.0.0.1\n    User {getpass.getuser()}\n"
            "    IdentitiesOnly yes\n    IdentityAgent none\n"
            "    KexAlgorithms curve25519-sha256\n    Ciphers aes128-gcm@openssh.com\n"  # the fastest
            f"    UserKnownHostsFile {self.root / 'known_hosts'}\n"
            "    GlobalKnownHostsFile /dev/null\n    UpdateHostKeys no\n    PreferredAuthentications publickey\n"
        )

    def through(self, port: int, name: str) -> tuple[str, ...]:
        """Return an ssh whose host ``node`` is reached through a local port (a :class:`Wire`)."""
        config = self.root / f"ssh_config-{name}"
        first = f"Host node\n    Port {port}\n"
        config.write_text(first + self.config.read_text())
        return ("ssh", "-F", str(config))

    def connections(self) -> list[int]:
        """Return the processes that the first sshd has for its connections, and theirs."""
        parents: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError, IndexError):
                    parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        found = {self._servers[0].pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return sorted(found - {self._servers[0].pid})

    def kill_connections(self) -> None:
        """End every process of every connection at once, as a crash of the node's side would."""
        for pid in self.connections():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End both sshd."""
        subprocess.run([*self.ssh, "-O", "exit", "muxed"], capture_output=True, check=False)
        self.kill_connections()
        for server in self._servers:
            server.terminate()
            server.wait()


class Wire:
    """A TCP proxy in front of a port that counts what comes back, and breaks when told to.

    ``cuts`` maps a total of bytes to what happens when that many have passed; :meth:`at` adds to it. With
    ``apart`` one connection meets one of them at most: what is under way when a process is killed still arrives, and
    must not use up the next.
    """

    def __init__(self, port: int, cuts: dict[int, Callable[[], None]] | None = None, *, apart: bool = False) -> None:
        self._target = port
        self._apart = apart
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.moved = 0
        self.open = True
        self._cuts = sorted((cuts or {}).items())
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def at(self, moved: int, what: Callable[[], None]) -> None:
        """Do something when so many bytes have passed."""
        self._cuts = sorted([*self._cuts, (moved, what)], key=lambda cut: cut[0])

    def cut(self) -> None:
        """Reset every connection."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def close(self) -> None:
        """Stop listening, and reset what is left."""
        self.open = False
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            if not self.open:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._target))
            # What is under way when the wire breaks is lost: a small buffer keeps the count near what arrived.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            with self._lock:
                self._pairs.append((client, server))
            for source, sink, back in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pump, args=(source, sink, back), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, back: bool) -> None:
        met = False
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
                if back:
                    self.moved += len(data)
                    while self._cuts and self.moved >= self._cuts[0][0] and not (met and self._apart):
                        met = True
                        self._cuts.pop(0)[1]()
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def write_through_trouble(log: Path, lines: list[bytes], wire: Wire) -> tuple[list[float], bool]:
    """Write 10,000 lines at 2,000 a second, with one rotation and one broken connection.

    Returns when each was written, and whether the machine had time to spare meanwhile: only then does it make sense to
    ask how late a reader was.
    """
    written: list[float] = []
    began, (idle, total) = time.monotonic(), cpu_ticks()
    out = log.open("ab")
    for first in range(0, 10_000, 20):
        time.sleep(max(0.0, began + first / 2000 - time.monotonic()))
        if first == 4000:
            out.close()
            log.rename(f"{log}.1")
            out = log.open("ab")
        if first == 7000:
            wire.cut()
        out.write(b"".join(lines[first : first + 20]))
        out.flush()
        written += [time.monotonic()] * 20
    out.close()
    idle_then, total_then = cpu_ticks()
    return written, (idle_then - idle) > 0.1 * (total_then - total)


def cpu_ticks() -> tuple[int, int]:
    """Return how long the processors were idle since the start, and all of that time."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[3], sum(ticks)
