"""fetch when things go wrong: nothing is lost, nothing is mixed, and the message says what to do."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import need_tool
from sshfarm import Wire

from logscope.errors import RemoteError
from logscope.fetch import parse
from logscope.fetch.copy import _PIECE, WholeCopy
from logscope.fetch.manifest import load, locked
from logscope.fetch.node import Node

pytest_plugins = ["fetch_fixtures"]

CLIENT = """
import resource, sys
from pathlib import Path
from logscope.fetch import Options, fetch, parse
ssh, source, dest, limit, *more = sys.argv[1:]
if int(limit):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
outcome = fetch([parse(source)], Path(dest), Options(ssh=tuple(ssh.split()), compress="none", **dict(a.split("=") for a in more)))
for _, error in outcome.failures:
    print(error)
sys.exit(outcome.exit_code)
"""


def client(ssh: tuple[str, ...], source: str, dest: Path, limit: int = 0) -> list[str]:
    """Return the command of a fetch in a process of its own."""
    return [sys.executable, "-c", textwrap.dedent(CLIENT), " ".join(ssh), source, str(dest), str(limit)]


def random_points(count: int, size: int) -> list[int]:
    """Return a random point in each of so many parts of a size, so that each meets a connection of its own."""
    part = size // count
    return [number * part + random.Random(number).randrange(part * 4 // 5) for number in range(count)]


def beside(folder: Path) -> set[str]:
    """Return the names in a folder."""
    return {path.name for path in folder.iterdir()}


def test_the_connection_breaks_at_20_random_points(farm, node_dir, tmp_path):
    """Ten times the node's processes are killed and ten times the socket is reset: the copy is identical.

    No more than 1.3 times its bytes went over the wire.
    """
    size = 100_000_000  # what is in flight at 20 breaks is small beside it
    data = random.Random(11).randbytes(size)
    (node_dir / "server.log").write_bytes(data)
    happened = []

    def kill() -> None:
        happened.append("kill")
        farm.kill_connections()

    def reset() -> None:
        happened.append("reset")
        wire.cut()

    points = random_points(20, size)
    wire = Wire(farm.ports["node"], {point: (kill, reset)[index % 2] for index, point in enumerate(points)}, apart=True)
    notices: list[str] = []
    try:
        outcome = farm.fetch(
            f"node:{node_dir}/server.log",
            dest=tmp_path,
            ssh=farm.through(wire.port, "cuts"),
            compress="none",
            notice=notices.append,
        )
    finally:
        wire.close()
    assert outcome.failures == []
    assert (happened.count("kill"), happened.count("reset")) == (10, 10)
    assert (tmp_path / "server.log").read_bytes() == data
    assert wire.moved < 1.3 * size
    assert sum("trying again" in notice for notice in notices) >= 20
    assert beside(tmp_path) == {"server.log", "server.log.logscope.json"}


def test_the_client_is_killed_again_and_again(farm, node_dir, tmp_path):
    """After every SIGKILL of the client the next call goes on; the copy is identical, and 1.3 times bounds the bytes."""
    size = 80_000_000
    data = random.Random(13).randbytes(size)
    (node_dir / "server.log").write_bytes(data)
    points = random_points(3, size)
    process: subprocess.Popen[bytes] | None = None

    def kill() -> None:
        assert process is not None
        process.kill()

    wire = Wire(farm.ports["node"], dict.fromkeys(points, kill))
    kills = 0
    try:
        for _ in range(20):
            process = subprocess.Popen(
                client(farm.through(wire.port, "sigkill"), f"node:{node_dir}/server.log", tmp_path)
            )
            code = process.wait()
            if code == 0:
                break
            assert code == -signal.SIGKILL
            assert not (tmp_path / "server.log").exists()
            kills += 1
    finally:
        wire.close()
    assert kills == len(points)
    assert (tmp_path / "server.log").read_bytes() == data
    assert wire.moved < 1.3 * size
    assert beside(tmp_path) == {"server.log", "server.log.logscope.json"}


class Stop(BaseException):
    """Stands for a SIGKILL: nothing catches it, and nothing is put in order after it."""


class Stopper:
    """Lets so many changes of the disk happen (renames, removals, cuts, syncs), and then ends the fetch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        fsync = os.fsync
        for owner, name in [(Path, n) for n in ("replace", "rename", "unlink", "touch")] + [
            (os, "fsync"),
            (os, "truncate"),
        ]:
            monkeypatch.setattr(owner, name, self._stopping(getattr(owner, name), fsync))

    def _stopping(self, original, fsync):
        def step(*args, **kwargs):
            self.left -= 1
            if self.left == 0:
                raise Stop
            # A process that ends loses nothing that it wrote: a real sync would only take time.
            return None if original is fsync else original(*args, **kwargs)

        return step

    def ends(self, steps: int, run) -> bool:
        """Run something to its given step; True when it got there."""
        self.left = steps
        try:
            run()
        except Stop:
            return True
        finally:
            self.left = 0
        return False


@pytest.mark.parametrize("form", ["whole", "filtered"])
def test_an_end_between_any_two_steps_is_taken_up(farm, node_dir, tmp_path, monkeypatch, form):
    """Ended before each of its changes of the disk in turn, a fetch (new, append, rotation) is finished by the next."""
    first, second, third = b"EAGLE one\n" * 300, b"EAGLE two\n" * 300, b"EAGLE three\n" * 100
    log = node_dir / "server.log"
    anchors = (b"EAGLE",) if form == "filtered" else ()
    node = Node(parse("node:/x").host, farm.options(compress="none", anchors=anchors), lambda _: None)
    stopper = Stopper(monkeypatch)
    before = tmp_path / "before"
    before.mkdir()
    points = 0
    try:
        for state, kept in ((first, []), (first + second, []), (third, [first + second])):
            new = node_dir / "new"
            new.write_bytes(state)
            new.replace(log) if kept else shutil.copyfile(new, log)
            for steps in itertools.count(1):
                dest = tmp_path / f"{len(state)}-{steps}"
                shutil.copytree(before, dest)
                stopped = stopper.ends(steps, lambda: one(node, log, dest, form))  # noqa: B023 - runs at once
                one(node, log, dest, form)
                assert text_of(dest / "server.log") == state
                assert [text_of(path) for path in dest.glob("server.log.generation-*")] == kept
                points += stopped
                if not stopped:
                    break
            before = dest
    finally:
        node.drop()
    assert points > 15


def test_bytes_are_on_the_disk_before_they_get_their_name(farm, node_dir, tmp_path, monkeypatch):
    """Part and manifest are synced before they are renamed, and the folder after that, before the part may go."""
    log = node_dir / "server.log"
    log.write_bytes(b"here\n")
    happened: list[tuple[str, str]] = []
    replace = Path.replace

    def replacing(path: Path, target: Path) -> Path:
        happened.append(("replace", path.name))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", lambda fd: happened.append(("fsync", Path(f"/proc/self/fd/{fd}").readlink().name)))
    monkeypatch.setattr(Path, "replace", replacing)
    farm.fetch(f"muxed:{log}", dest=tmp_path)
    part, new = "server.log.logscope-part", "server.log.logscope.json-new"
    named = happened.index(("replace", part))
    assert ("fsync", part) in happened[:named]
    assert ("fsync", tmp_path.name) in happened[named:]
    for index, what in enumerate(happened):
        if what == ("replace", new):
            assert happened[index - 1] == ("fsync", new)


def one(node: Node, log: Path, dest: Path, form: str) -> None:
    """Run one fetch over a connection that stands."""
    from logscope.fetch.filtered import FilteredCopy

    kind = FilteredCopy if form == "filtered" else WholeCopy
    kind(node, os.fsencode(log), dest / "server.log", lambda _done, _total: None).run()


def text_of(file: Path) -> bytes:
    """Return a copy's text; of the filtered form, the kept lines."""
    data = file.read_bytes()
    if not data.startswith(b"%logscope-filtered"):
        return data
    return b"".join(line.split(b":", 2)[2] for line in data.splitlines(keepends=True)[1:])


def test_a_growing_file_is_copied_to_the_size_first_seen(farm, node_dir, tmp_path):
    """What is appended while the file is copied waits for the next fetch."""
    first = random.Random(15).randbytes(20_000_000)
    log = node_dir / "server.log"
    log.write_bytes(first)

    def append() -> None:
        with log.open("ab") as out:
            out.write(b"late\n" * 1000)

    wire = Wire(farm.ports["node"], {5_000_000: append, 9_000_000: append})
    wire.at(10_000_000, wire.cut)
    try:
        ssh = farm.through(wire.port, "growing")
        [file] = farm.fetch(f"node:{log}", dest=tmp_path, ssh=ssh, compress="none").files
        assert file.size == len(first)
        assert (tmp_path / "server.log").read_bytes() == first
        [file] = farm.fetch(f"node:{log}", dest=tmp_path, ssh=ssh).files
        assert file.added == 10_000
        assert (tmp_path / "server.log").read_bytes() == log.read_bytes()
    finally:
        wire.close()


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("change", ["truncated", "regrown", "overwritten"])
def test_truncation_during_the_copy_leaves_no_mixture(farm, node_dir, tmp_path, change, broken):
    """A file truncated while it is copied, and written anew beyond the place of reading, gives the new file alone.

    Overwritten it has grown again before the node could see that it was short.
    """
    old, new = (bytes([letter]) * 40_000_000 for letter in b"ab")
    log = node_dir / "server.log"
    log.write_bytes(old)

    def truncate() -> None:
        with log.open("r+b" if change == "overwritten" else "wb") as out:
            out.write(new[:1000] if change == "truncated" else new)

    wire = Wire(farm.ports["node"], {20_000_000: truncate})
    if broken:
        wire.at(24_000_000, wire.cut)
    try:
        ssh = farm.through(wire.port, f"{change}{broken}")
        outcome = farm.fetch(f"node:{log}", dest=tmp_path, ssh=ssh, compress="none")
    finally:
        wire.close()
    assert outcome.failures == []
    assert (tmp_path / "server.log").read_bytes() == log.read_bytes()
    for kept in tmp_path.glob("*generation*"):
        assert set(kept.read_bytes()) == {ord("a")}


@pytest.mark.parametrize("broken", [False, True])
def test_rotation_during_the_copy_leaves_no_mixture(farm, node_dir, tmp_path, broken):
    """Rotated while it is copied, the old file is copied to its end: from where it is open, or from its new name.

    After a broken connection the new file comes, too; without one it comes with the next fetch.
    """
    old, new = random.Random(22).randbytes(40_000_000), b"new\n" * 1000
    log = node_dir / "server.log"
    log.write_bytes(old)

    def rotate() -> None:
        log.rename(node_dir / "server.log.1")
        log.write_bytes(new)

    wire = Wire(farm.ports["node"], {20_000_000: rotate})
    if broken:
        wire.at(24_000_000, wire.cut)
    try:
        ssh = farm.through(wire.port, f"rotate{broken}")
        for _ in range(1 if broken else 2):
            assert farm.fetch(f"node:{log}", dest=tmp_path, ssh=ssh, compress="none").failures == []
    finally:
        wire.close()
    assert (tmp_path / "server.log").read_bytes() == new
    assert (tmp_path / "server.log.generation-1").read_bytes() == old
    assert wire.moved < len(old) + _PIECE  # what was not confirmed yet comes again


def test_rotation_between_two_fetches_loses_nothing(farm, node_dir, tmp_path):
    """The rest of a rotated file is found under its new name; both generations are complete."""
    log = node_dir / "server.log"
    log.write_bytes(b"first\n" * 1000)
    farm.fetch(f"muxed:{log}", dest=tmp_path)
    with log.open("ab") as out:
        out.write(b"end of first\n")
    log.rename(node_dir / "server.log.1")
    log.write_bytes(b"second\n")
    (node_dir / "server.log.bak").write_bytes(b"first\n" * 10)
    notices: list[str] = []
    [file] = farm.fetch(f"muxed:{log}", dest=tmp_path, notice=notices.append).files
    assert file.generation == 2
    assert file.generations == ["server.log.generation-1"]
    assert (tmp_path / "server.log").read_bytes() == b"second\n"
    assert (tmp_path / "server.log.generation-1").read_bytes() == (node_dir / "server.log.1").read_bytes()
    assert "was replaced" in notices[0]
    [generation] = load(tmp_path / "server.log").generations
    assert (generation.complete, generation.found) == (True, str(node_dir / "server.log.1"))


def test_an_empty_file_that_was_filled_and_rotated(farm, node_dir, tmp_path):
    """What was written to a file that was empty at the last fetch is not missed when it was rotated since."""
    log = node_dir / "server.log"
    log.touch()
    farm.fetch(f"muxed:{log}", dest=tmp_path)
    log.write_bytes(b"first\n")
    log.rename(node_dir / "server.log.1")
    log.write_bytes(b"second\n")
    farm.fetch(f"muxed:{log}", dest=tmp_path)
    assert (tmp_path / "server.log.generation-1").read_bytes() == b"first\n"
    assert (tmp_path / "server.log").read_bytes() == b"second\n"


def test_files_rotated_in_between_are_named(farm, node_dir, tmp_path):
    """Rotated twice since the last fetch: the old copy is completed, and the file between is named, not moved."""
    log = node_dir / "server.log"
    log.write_bytes(b"first\n")
    farm.fetch(f"muxed:{log}", dest=tmp_path)
    log.rename(node_dir / "server.log.2")
    (node_dir / "server.log.1").write_bytes(b"second\n")
    log.write_bytes(b"third\n")
    notices: list[str] = []
    farm.fetch(f"muxed:{log}", dest=tmp_path, notice=notices.append)
    assert "rotated more than once" in notices[1]
    assert str(node_dir / "server.log.1") in notices[1]
    assert "server.log.2" not in notices[1]


def test_copytruncate_is_seen_through(farm, node_dir, tmp_path):
    """A log that was copied aside and truncated in place: its end comes from the copy, its successor begins anew."""
    log = node_dir / "server.log"
    log.write_bytes(b"first\n" * 1000)
    farm.fetch(f"muxed:{log}", dest=tmp_path)
    with log.open("ab") as out:
        out.write(b"end of first\n")
    (node_dir / "server.log.1").write_bytes(log.read_bytes())
    log.write_bytes(b"second\n")
    farm.fetch(f"muxed:{log}", dest=tmp_path)
    assert (tmp_path / "server.log").read_bytes() == b"second\n"
    assert (tmp_path / "server.log.generation-1").read_bytes() == (node_dir / "server.log.1").read_bytes()


def test_truncation_keeps_what_was_copied(farm, node_dir, tmp_path):
    """A truncated file begins a generation; the old copy is kept, and it is said that its end may be missing."""
    log = node_dir / "server.log"
    log.write_bytes(b"first\n" * 1000)
    farm.fetch(f"muxed:{log}", dest=tmp_path)
    log.write_bytes(b"x\n")
    notices: list[str] = []
    farm.fetch(f"muxed:{log}", dest=tmp_path, notice=notices.append)
    log.write_bytes(b"third\n" * 2000)
    farm.fetch(f"muxed:{log}", dest=tmp_path, notice=notices.append)
    assert (tmp_path / "server.log.generation-1").read_bytes() == b"first\n" * 1000
    assert (tmp_path / "server.log.generation-2").read_bytes() == b"x\n"
    assert (tmp_path / "server.log").read_bytes() == b"third\n" * 2000
    assert "what it held after byte 6000, if anything, was not found" in notices[0]


def test_a_deleted_file_leaves_the_copy(farm, node_dir, tmp_path):
    """When the file is gone from the node the copy stays, the message says so, and the exit code is 2."""
    log = node_dir / "server.log"
    log.write_bytes(b"first\n")
    farm.fetch(f"muxed:{log}", dest=tmp_path)
    log.unlink()
    outcome = farm.fetch(f"muxed:{log}", dest=tmp_path)
    [(_, error)] = outcome.failures
    assert outcome.exit_code == 2
    assert "is gone from the node" in error.message.what
    assert str(tmp_path / "server.log") in error.message.help
    assert (tmp_path / "server.log").read_bytes() == b"first\n"


def test_deletion_during_the_copy_does_not_matter(farm, node_dir, tmp_path):
    """A file deleted while it is read is read to its end: it is open."""
    data = random.Random(16).randbytes(20_000_000)
    log = node_dir / "server.log"
    log.write_bytes(data)
    wire = Wire(farm.ports["node"], {5_000_000: log.unlink})
    try:
        ssh = farm.through(wire.port, "deleted")
        assert farm.fetch(f"node:{log}", dest=tmp_path, ssh=ssh, compress="none").failures == []
    finally:
        wire.close()
    assert (tmp_path / "server.log").read_bytes() == data


def test_verify_finds_what_edges_cannot_show(farm, node_dir, tmp_path):
    """A change in the middle passes the comparison of beginning and end; --verify finds it and fetches anew."""
    log = node_dir / "server.log"
    data = bytearray(random.Random(17).randbytes(1_000_000))
    log.write_bytes(data)
    farm.fetch(f"muxed:{log}", dest=tmp_path)
    data[500_000] ^= 1
    log.write_bytes(data)
    assert farm.fetch(f"muxed:{log}", dest=tmp_path).files[0].action == "unchanged"
    notices: list[str] = []
    [file] = farm.fetch(f"muxed:{log}", dest=tmp_path, verify=True, notice=notices.append).files
    assert file.verified
    assert (tmp_path / "server.log").read_bytes() == data
    assert "differ from the node (--verify)" in notices[0]


def failure(farm, source: str, dest: Path, **changes: object) -> RemoteError:
    """Return the error of one source, after checking what holds for all of them."""
    outcome = farm.fetch(source, dest=dest, **changes)
    [(named, error)] = outcome.failures
    assert (named, outcome.exit_code, outcome.files) == (source, 2, [])
    assert isinstance(error, RemoteError)
    assert error.exit_code == 2
    return error


def test_permission_denied(farm, node_dir, tmp_path):
    """A file the account may not read: the node's own words, and what to do."""
    if os.geteuid() == 0:
        need_tool("setpriv")
    log = node_dir / "secret.log"
    log.write_bytes(b"secret\n")
    log.chmod(0)
    error = failure(farm, f"denied:{log}", tmp_path)
    log.chmod(0o600)
    assert "may not be read" in error.message.what
    assert "Permission denied" in error.message.why
    assert "account" in error.message.help
    assert beside(tmp_path) == set()


@pytest.mark.parametrize(
    ("host", "kind", "what", "why"),
    [
        ("changed", "host_key_changed", "is not the one that is known", "verification failed"),
        ("unknown", "host_key_unknown", "is not known yet", "verification failed"),
        ("refused", "key_refused", "did not accept the key", "Permission denied"),
        ("closed", "refused", "refuses the connection", "Connection refused"),
        ("lostjump", "jump", "the jump host could not reach", "open failed"),
        ("no-such-host.invalid", "unknown_host", "there is no host called", "resolve"),
        ("noshell", "no_shell", "gives no shell", "not available"),
    ],
)
def test_every_refusal_says_what_to_do(farm, tmp_path, host, kind, what, why):
    """The words of ssh itself stand in ``why``, what to do in ``help``; nothing is written."""
    # A jump host's address has to be reached through the config; a name that does not exist has none there.
    ssh = (*farm.ssh, "-o", "HostName=no-such-host.invalid") if "invalid" in host else farm.ssh
    error = failure(farm, f"{host}:/logs/server.log", tmp_path, ssh=ssh)
    assert error.kind == kind
    assert what in error.message.what
    assert why in error.message.why
    assert error.message.help
    assert beside(tmp_path) == set()


def test_what_is_no_file(farm, node_dir, tmp_path):
    """Missing files, folders, devices and patterns that fit nothing are told apart."""
    os.mkfifo(node_dir / "pipe")
    expected = {
        f"{node_dir}/none.log": "there is no",
        f"{node_dir}": "is a folder",
        f"{node_dir}/pipe": "is no regular file",
        f"{node_dir}/*.zip": "no file on muxed fits",
    }
    for path, what in expected.items():
        error = failure(farm, f"muxed:{path}", tmp_path)
        assert what in error.message.what


def test_no_zstd_on_the_node(farm, node_dir, tmp_path):
    """Without zstd on the node ``auto`` takes gzip; ``--compress zstd`` says what is missing and what to give."""
    log = node_dir / "server.log"
    log.write_bytes(b"here\n" * 1000)
    error = failure(farm, f"bare:{log}", tmp_path, compress="zstd")
    assert "has no zstd" in error.message.what
    assert "--compress gzip" in error.message.help
    assert beside(tmp_path) == set()
    [file] = farm.fetch(f"bare:{log}", dest=tmp_path).files
    assert file.compress == "gzip"
    assert (tmp_path / "server.log").read_bytes() == log.read_bytes()


def test_no_ssh_here(farm, tmp_path):
    """An ssh that cannot be started is named."""
    error = failure(farm, "node:/x", tmp_path, ssh=("no-such-ssh",))
    assert "cannot start 'no-such-ssh'" in error.message.what
    assert "LOGSCOPE_SSH" in error.message.help


def test_a_full_disk_by_limit(farm, node_dir, tmp_path):
    """When a file may not grow any more: a clear message, exit 2; what arrived is kept, and the next call goes on."""
    data = random.Random(18).randbytes(6_000_000)
    log = node_dir / "server.log"
    log.write_bytes(data[:1_000_000])
    farm.fetch(f"node:{log}", dest=tmp_path)
    log.write_bytes(data)
    run = subprocess.run(
        client(farm.ssh, f"node:{log}", tmp_path, 4_000_000), capture_output=True, text=True, check=False
    )
    assert run.returncode == 2, run.stderr
    assert "there is no room for" in run.stdout
    assert "make room" in run.stdout
    assert (tmp_path / "server.log").read_bytes() == data[:1_000_000]
    assert (tmp_path / "server.log.logscope-part").stat().st_size == 4_000_000
    [file] = farm.fetch(f"node:{log}", dest=tmp_path, compress="none").files
    assert (tmp_path / "server.log").read_bytes() == data
    assert file.moved < 1_100_000


def test_a_full_disk(farm, node_dir, tmp_path):
    """On a small file system: the same, before it is full where the size is known, and when it is full where not."""
    need_tool("unshare")
    log = node_dir / "server.log"
    log.write_bytes(b"EAGLE %d\n" % 1 + random.Random(19).randbytes(5_000_000).replace(b"\n", b"EAGLE\n"))
    dest = tmp_path / "small"
    dest.mkdir()
    script = (
        'mount -t tmpfs -o size=20m none "$1" || exit 77\n'
        'head -c 17825792 /dev/zero >"$1/something else"\n'
        '"$2" -c "$3" "$4" "$5" "$1" 0; echo "first $?"; ls "$1"\n'
        '"$2" -c "$3" "$4" "$5" "$1" 0 anchors=EAGLE; echo "filtered $?"; ls "$1"\n'
        'rm "$1/something else"\n'
        '"$2" -c "$3" "$4" "$5" "$1" 0; echo "second $?"\n'
        'cmp "$1/server.log" "$6" && echo identical\n'
    )
    code = textwrap.dedent(CLIENT).replace(
        'dict(a.split("=") for a in more)', "({'anchors': (b'EAGLE',)} if more else {})"
    )
    run = subprocess.run(
        [
            *("unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--mount", "sh", "-c", script),
            *("sh", str(dest), sys.executable, code, " ".join(farm.ssh), f"node:{log}", str(log)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode == 77 or "unshare" in run.stderr:
        pytest.skip(f"no file system can be mounted here; the test by limit stands for it ({run.stderr.strip()})")
    assert run.stdout.count("there is no room for") == 2, run.stdout + run.stderr
    assert "bytes are still to come" in run.stdout
    assert "No space left on device" in run.stdout
    assert "first 2" in run.stdout
    assert "filtered 2" in run.stdout
    assert "second 0\nidentical" in run.stdout


def test_two_fetches_of_one_file(farm, node_dir, tmp_path):
    """While one fetch writes a copy another one says so and leaves it alone; a lock left by a crash does not matter."""
    log = node_dir / "server.log"
    log.write_bytes(b"here\n")
    (tmp_path / "server.log.logscope-lock").touch()
    assert farm.fetch(f"muxed:{log}", dest=tmp_path).failures == []
    with locked(tmp_path / "server.log"):
        [(_, error)] = farm.fetch(f"muxed:{log}", dest=tmp_path).failures
    assert "another fetch is writing" in error.message.what
    assert beside(tmp_path) == {"server.log", "server.log.logscope.json"}


def test_a_damaged_manifest_is_not_trusted(farm, node_dir, tmp_path):
    """A manifest that is none, or of a later version, stops the fetch with its name; the copy is left alone."""
    log = node_dir / "server.log"
    log.write_bytes(b"here\n")
    farm.fetch(f"muxed:{log}", dest=tmp_path)
    manifest = tmp_path / "server.log.logscope.json"
    for text, what in (("{", "cannot read"), ('{"logscope_fetch": 99}', "is of version 99")):
        manifest.write_text(text)
        [(_, error)] = farm.fetch(f"muxed:{log}", dest=tmp_path).failures
        assert what in error.message.what
        assert (tmp_path / "server.log").read_bytes() == b"here\n"


def test_a_host_that_stays_away_ends_the_fetch(farm, node_dir, tmp_path):
    """After the given number of tries in a row without a byte the fetch ends with the last failure."""
    log = node_dir / "server.log"
    log.write_bytes(random.Random(20).randbytes(20_000_000))
    wire = Wire(farm.ports["node"])
    wire.at(5_000_000, wire.close)
    notices: list[str] = []
    ssh = farm.through(wire.port, "away")
    error = failure(farm, f"node:{log}", tmp_path, ssh=ssh, compress="none", tries=3, notice=notices.append)
    assert "refuses the connection" in error.message.what
    assert sum("trying again" in notice for notice in notices) == 3
    held = (tmp_path / "server.log.logscope-part").read_bytes()
    assert len(held) > 3_000_000
    assert log.read_bytes().startswith(held)


def test_an_interrupt_ends_ssh_and_keeps_the_part(farm, node_dir, tmp_path):
    """Ctrl-C ends the process in good time with its ssh, and the next call goes on."""
    data = random.Random(21).randbytes(30_000_000)
    log = node_dir / "server.log"
    log.write_bytes(data)
    process: subprocess.Popen[bytes] | None = None

    def interrupt() -> None:
        assert process is not None
        process.send_signal(signal.SIGINT)

    wire = Wire(farm.ports["node"], {10_000_000: interrupt})
    try:
        ssh = farm.through(wire.port, "interrupt")
        process = subprocess.Popen(client(ssh, f"node:{log}", tmp_path), stderr=subprocess.DEVNULL)
        assert process.wait(timeout=60) != 0
        [file] = farm.fetch(f"node:{log}", dest=tmp_path, ssh=ssh, compress="none").files
    finally:
        wire.close()
    assert (tmp_path / "server.log").read_bytes() == data
    assert wire.moved < 1.3 * len(data)
    assert file.action == "new"
