"""`logscope fetch`, and remote logs in place of local ones, against a real sshd."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import real_bytes
from sshfarm import Wire

from logscope import cli

pytest_plugins = ["fetch_fixtures"]


@pytest.fixture
def node(farm, node_dir, tmp_path, monkeypatch):
    """Put two logs on the node, and stand in an empty folder with the ssh that reaches it."""
    (node_dir / "server.log").write_bytes(real_bytes("fault-embed-captured"))
    (node_dir / "short.log").write_bytes(b"gpu7 says model_path='/data/secret', ip=192.0.2.7\n")
    monkeypatch.setenv("LOGSCOPE_SSH", shlex.join(farm.ssh))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return f"muxed:{node_dir}"


def test_fetch_says_what_came(node, tmp_path, capsys):
    """The JSON has the file, its size and what was done; the second time nothing is moved."""
    assert cli.main(["fetch", f"{node}/server.log", "here/", "-f", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    (file,) = result["files"]
    data = real_bytes("fault-embed-captured")
    assert (file["action"], file["size"], file["added"]) == ("new", len(data), len(data))
    assert (tmp_path / "here" / "server.log").read_bytes() == data
    assert cli.main(["fetch", f"{node}/server.log", "here/", "-f", "json"]) == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert (file["action"], file["added"]) == ("unchanged", 0)


def test_a_failed_source_is_2_and_the_others_arrive(node, tmp_path, capsys):
    """What can be fetched is fetched; what cannot is said on stderr, and the exit code is 2."""
    assert cli.main(["fetch", f"{node}/server.log", f"{node}/missing.log", "here/"]) == 2
    out, err = capsys.readouterr()
    assert "server.log" in out
    assert "1 source failed" in out
    assert "missing.log" in err
    assert (tmp_path / "here" / "server.log").exists()


def test_a_redacted_copy_stands_beside(node, tmp_path, capsys):
    """--redact writes a second file without private text, line for line; the copy itself stays as it is."""
    assert cli.main(["fetch", f"{node}/short.log", "here/", "--redact", "all"]) == 0
    assert "short.log.redacted" in capsys.readouterr().err
    assert (tmp_path / "here" / "short.log.redacted").read_text() == "gpu7 says model_path='/path-1', ip=ip-1\n"
    assert b"/data/secret" in (tmp_path / "here" / "short.log").read_bytes()


def test_only_debug_lines_keep_their_places(node, capsys):
    """--debug-only brings the records only; every event still names the original line and offset."""
    assert cli.main(["fetch", f"{node}/server.log", "here/", "--debug-only", "-q"]) == 0
    capsys.readouterr()
    places = []
    for log in ("here/server.debug-only.log", f"{node}/server.log"):
        assert cli.main(["events", log, "-f", "ndjson", "--site", "dsv2"]) == 0
        events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        places.append([(event["line"], event["offset"], event["event"]) for event in events])
    assert places[0] == places[1]
    assert places[0]


@pytest.mark.parametrize("command", ["summarize", "captures", "check", "events"])
def test_a_remote_log_reads_like_a_local_one(command, node, tmp_path, capsys):
    """host:/path in place of a file: the same answer, under the remote name."""
    (tmp_path / "server.log").write_bytes(real_bytes("fault-embed-captured"))
    code = cli.main([command, "server.log", "-f", "json"])
    local = capsys.readouterr().out
    name = f"{node}/server.log"
    assert cli.main([command, name, "-f", "json"]) == code
    remote = capsys.readouterr().out.replace(name, "server.log")
    if command == "summarize":  # the summary of a remote log also says where the log came from
        report = json.loads(remote)
        assert list(report["facts"].pop("origins")) == ["server.log"]
        assert [row["file"] for row in report["tables"].pop("origins")] == ["server.log"]
        assert report == json.loads(local)
    else:
        assert remote == local


def test_what_a_rotation_cost_is_said_with_the_answer(node, node_dir, capsys):
    """A remote log that was truncated since it was read last: the answer says what may be missing."""
    log = f"{node}/server.log"
    assert cli.main(["summarize", log, "-f", "json"]) == 0
    capsys.readouterr()
    data = real_bytes("fault-embed-captured")
    (node_dir / "server.log").write_bytes(data[len(data) // 2 :])
    assert cli.main(["summarize", log, "-f", "json"]) == 0
    notes = " ".join(json.loads(capsys.readouterr().out)["facts"]["notes"])
    assert f"what it held after byte {len(data)}, if anything, was not found on the node" in notes


def test_a_cache_that_cannot_be_written_is_trouble(node, tmp_path, monkeypatch, capsys):
    """Without a place for the cache, as in a container whose home is read-only, the message says what to set."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cli.main(["summarize", f"{node}/server.log"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: cannot write the cache")
    assert "XDG_CACHE_HOME" in err


@pytest.mark.usefixtures("node")
def test_an_unreachable_host_is_trouble(capsys):
    """A host nobody answers on: exit 2, the message says what to do, no traceback."""
    assert cli.main(["fetch", "closed:/x.log", "here/"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert "help: " in err
    assert "Traceback" not in err


def running_groups() -> set[str]:
    """Return the process groups of which something still runs."""
    groups = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, group, *_ = stat.read_text().rpartition(")")[2].split()
            groups |= {group} if state != "Z" else set()
    return groups


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("command", ["fetch", "summarize"])
def test_ctrl_c_ends_a_wrapper_too_and_says_what_is_kept(command, farm, node_dir, tmp_path):
    """Interrupted, also where --ssh is a program around ssh: no process stays, and it is said how to go on."""
    data = random.Random(23).randbytes(30_000_000)
    (node_dir / "server.log").write_bytes(data)
    wire = Wire(farm.ports["node"])
    pids, ssh = tmp_path / "pids", tmp_path / "ssh"
    inner = shlex.join(farm.through(wire.port, f"wrapped-{command}"))
    ssh.write_text(f'#!/bin/sh\necho $$ >>{pids}\n{inner} "$@"\necho ended\n')
    ssh.chmod(0o755)
    words = [command, f"node:{node_dir}/server.log", *(["here/", "--compress", "none"] if command == "fetch" else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", "logscope", *words], stderr=subprocess.PIPE, env={**os.environ, "LOGSCOPE_SSH": str(ssh)}
    )
    wire.at(10_000_000, lambda: process.send_signal(signal.SIGINT))
    _, err = process.communicate(timeout=60)
    wire.close()
    assert process.returncode == 130
    kept = sum(part.stat().st_size for part in tmp_path.rglob("*.logscope-part"))
    assert err.decode() == f"note: {kept / 1e6:.1f} MB kept; call again: it goes on where it stopped\n"
    groups, end = set(pids.read_text().split()), time.monotonic() + 60
    while alive := groups & running_groups():
        assert time.monotonic() < end, alive


@pytest.mark.parametrize("quiet", [False, True])
def test_a_terminal_sees_how_far_it_has_got(quiet, node, node_dir):
    """Reading a remote log draws the progress on a terminal, and takes it away; -q draws nothing."""
    (node_dir / "server.log").write_bytes(real_bytes("fault-embed-captured"))
    here, there = pty.openpty()
    words = ["summarize", f"{node}/server.log", *(["-q"] if quiet else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", "logscope", *words],
        stdout=subprocess.DEVNULL,
        stderr=there,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(there)
    drawn = b""
    while True:
        try:
            drawn += os.read(here, 1 << 16)
        except OSError:  # a terminal ends with an error
            break
    os.close(here)
    assert process.wait(60) == 0
    assert bool(re.search(rb"server\.log.*100 %.* kB", drawn)) == (not quiet)
    assert b"server" not in drawn.rpartition(b"\x1b[2K")[2]
