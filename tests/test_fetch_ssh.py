"""fetch against a real sshd: what arrives is what stands on the node, whatever its name and whatever the login shell."""

from __future__ import annotations

import filecmp
import hashlib
import itertools
import json
import os
import random
import subprocess
from pathlib import Path

import pytest
from conftest import REAL_RUNS, need_tool, real_bytes
from sshfarm import Wire

from logscope.fetch import Options, cached, fetch, origin, parse
from logscope.fetch.node import Node
from logscope.sources.remote import remote_sources

pytest_plugins = ["fetch_fixtures"]

HOSTILE = (
    b"a b.log",
    b'it\'s "quoted".log',
    b"$(touch planted-1).log",
    b"`touch planted-2`.log",
    b"x;touch planted-3;.log",
    b"x|touch planted-4 #.log",
    b"two\nlines\ntouch planted-5\n.log",
    b"-rf.log",
    b"--help",
    b"!hist !!.log",
    b"*.log",
    b"[ab]?.log",
    b"~.log",
    b"back\\slash\\n.log",
    b"tab\tend .log",
    b"\xff\xfe not utf-8 \xe4.log",
    "größe 漢字.log".encode(),
    b"${HOME} $HOME $$.log",
    b"a\r.log",
    b"=.log",
)


def contents(folder: Path) -> dict[bytes, bytes]:
    """Return the files of a folder and their bytes."""
    return {os.fsencode(p.name): p.read_bytes() for p in folder.iterdir() if p.is_file()}


def copies(folder: Path) -> dict[bytes, bytes]:
    """Return what was fetched into a folder, without its manifests."""
    return {name: data for name, data in contents(folder).items() if not name.endswith(b".logscope.json")}


def test_every_real_log_arrives_byte_for_byte(farm, node_dir, tmp_path):
    """Every shared real log is identical after a fetch by one pattern, and the node's own SHA-256 says so too."""
    for run in REAL_RUNS:
        (node_dir / run).mkdir()
        (node_dir / run / "server.log").write_bytes(real_bytes(run))
    outcome = farm.fetch(f"muxed:{node_dir}/*/server.log", dest=tmp_path, verify=True)
    assert outcome.failures == []
    files = {Path(file.file).relative_to(tmp_path).parent.name: file for file in outcome.files}
    assert sorted(files) == REAL_RUNS
    for run, file in files.items():
        assert (tmp_path / run / "server.log").read_bytes() == real_bytes(run)
        assert file.verified
        assert file.sha256 == hashlib.sha256(real_bytes(run)).hexdigest()


def test_300_megabytes_arrive_byte_for_byte(farm, node_dir, tmp_path):
    """A large file of several pieces is identical, and moves compressed."""
    rng = random.Random(7)
    with (node_dir / "big.log").open("wb") as out:
        for number in range(0, 300 << 20, 5 << 20):
            out.seek(number)
            out.write(rng.randbytes(200_000))
        out.truncate(300 << 20)
    [file] = farm.fetch(f"muxed:{node_dir}/big.log", dest=tmp_path).files
    assert file.size == 300 << 20
    assert filecmp.cmp(node_dir / "big.log", tmp_path / "big.log", shallow=False)
    assert file.moved < file.size / 3
    (tmp_path / "big.log").unlink()


@pytest.mark.parametrize("compress", ["none", "gzip", "zstd"])
def test_every_way_of_compression(farm, node_dir, tmp_path, compress):
    """The copy is identical however it is compressed on the wire."""
    if compress == "zstd":
        need_tool("zstd")
    data = random.Random(8).randbytes(1 << 20) + bytes(3 << 20)
    (node_dir / "mixed.log").write_bytes(data)
    [file] = farm.fetch(f"muxed:{node_dir}/mixed.log", dest=tmp_path, compress=compress).files
    assert file.compress == compress
    assert (tmp_path / "mixed.log").read_bytes() == data
    assert (file.moved < 2 << 20) == (compress != "none")


def test_an_empty_file_is_an_empty_file(farm, node_dir, tmp_path):
    """An empty file arrives, and what is written to it later arrives as an append."""
    log = node_dir / "empty.log"
    log.touch()
    [file] = farm.fetch(f"muxed:{log}", dest=tmp_path).files
    assert (file.action, file.size, (tmp_path / "empty.log").read_bytes()) == ("new", 0, b"")
    assert farm.fetch(f"muxed:{log}", dest=tmp_path).files[0].action == "unchanged"
    log.write_bytes(b"first\n")
    farm.fetch(f"muxed:{log}", dest=tmp_path)
    assert (tmp_path / "empty.log").read_bytes() == b"first\n"


@pytest.mark.parametrize("host", ["node", "csh", "banner", "busybox"])
def test_names_are_names_and_nothing_else(farm, node_dir, tmp_path, host):
    """Names with blanks, quotes, commands, newlines, dashes or without UTF-8 lead to their files, and none is run.

    Named alone and by a pattern, under every login shell.
    """
    if host in ("csh", "busybox"):
        need_tool("tcsh" if host == "csh" else "busybox")
    for number, name in enumerate(HOSTILE):
        (node_dir / os.fsdecode(name)).write_bytes(b"content %d\n" % number)
    expected = contents(node_dir)
    by_pattern = farm.fetch(f"{host}:{node_dir}/*", dest=tmp_path / "all")
    assert by_pattern.failures == []
    assert copies(tmp_path / "all") == expected
    plain = [os.fsdecode(name) for name in HOSTILE if not set(name) & set(b"*?[")]
    alone = farm.fetch(
        *(f"{host}:{node_dir}/{name}" for name in plain[:: 1 if host == "node" else 6]), dest=tmp_path / "one"
    )
    assert alone.failures == []
    assert copies(tmp_path / "one").items() <= expected.items()
    assert len(alone.files) == len(plain[:: 1 if host == "node" else 6])
    assert [*farm.root.rglob("planted*"), *Path().glob("planted*"), *Path.home().glob("planted*")] == []


def test_functions_and_settings_of_the_account_stay_out(node_dir, tmp_path):
    """Functions that the account exports, and that a sh which is bash takes up, do not replace what is called."""
    shell = "bash"  # a part of every Debian
    program = need_tool(shell)
    text = b"EAGLE one\n" + b"plain\n" * 9
    (node_dir / "server.log").write_bytes(text)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sh").symlink_to(program)
    ssh = tmp_path / "ssh"
    replaced = ("stat", "head", "tail", "wc", "cat", "sha256sum", "grep", "zstd", "gzip")
    ssh.write_text(
        f"#!{program}\nexport PATH={tools}:$PATH POSIXLY_CORRECT=1 GREP_COLORS=mt=31\n"
        + "".join(f"{tool}() {{ echo replaced; }}; export -f {tool}\n" for tool in replaced)
        + 'for command; do :; done\nexec sh -c "$command"\n'
    )
    ssh.chmod(0o755)
    spec = parse(f"node:{node_dir}/server.log")
    for dest, anchors in (("whole", ()), ("filtered", (b"EAGLE",))):
        outcome = fetch([spec], tmp_path / dest / "x.log", Options(ssh=(str(ssh),), anchors=anchors))
        assert outcome.failures == []
    assert (tmp_path / "whole" / "x.log").read_bytes() == text
    kept = (tmp_path / "filtered" / "x.debug-only.log").read_bytes().split(b"\n", 1)[1]
    assert kept == b"1:0:EAGLE one\n2:10:plain\n3:16:plain\n4:22:plain\n"


def test_patterns_mean_the_same_as_in_a_shell(farm, node_dir):
    """``*``, ``?``, ranges and negations select; a file named like a pattern is among what the pattern gives."""
    for name in ("a1.log", "a2.log", "b1.log", "a1.txt", "log[1].txt", "log1.txt", "$x.log"):
        (node_dir / name).write_text(name)
    (node_dir / "folder.log").mkdir()
    expected = {
        "a?.log": {"a1.log", "a2.log"},
        "[!a]*.log": {"b1.log", "$x.log"},
        "[a-b]1.log": {"a1.log", "b1.log"},
        "[$]x.*": {"$x.log"},
        "log[1].txt": {"log[1].txt", "log1.txt"},
        "*.log": {"a1.log", "a2.log", "b1.log", "$x.log"},
    }
    node = Node(parse("node:/x").host, farm.options(), lambda _: None)
    found = {pattern: node.expand(parse(f"node:{node_dir}/{pattern}")) for pattern in expected}
    node.drop()
    assert {pattern: {Path(os.fsdecode(path)).name for path in paths} for pattern, paths in found.items()} == expected


def test_only_what_is_new_is_moved(farm, node_dir, tmp_path):
    """The second fetch moves next to nothing, the third what was appended; sizes, times and origin are kept beside."""
    log = node_dir / "server.log"
    first = random.Random(1).randbytes(3_000_000)
    log.write_bytes(first)
    one, two = (farm.fetch(f"muxed:{log}", dest=tmp_path).files[0] for _ in range(2))
    assert (one.action, two.action, two.added) == ("new", "unchanged", 0)
    assert two.moved < 2_000
    with log.open("ab") as out:
        out.write(b"appended\n" * 1000)
    [three] = farm.fetch(f"muxed:{log}", dest=tmp_path).files
    assert (three.action, three.added, three.generation) == ("appended", 9000, 1)
    assert three.moved < 12_000
    assert (tmp_path / "server.log").read_bytes() == log.read_bytes()
    kept = origin(tmp_path / "server.log")
    assert kept is not None
    assert (kept["host"], kept["path"], kept["size"]) == ("muxed", str(log), 3_009_000)
    assert kept["sha256"] == hashlib.sha256(log.read_bytes()).hexdigest()
    assert kept["first_fetched"] <= kept["last_fetched"]
    assert kept["inode"] == log.stat().st_ino
    assert origin(log) is None


def test_the_copy_stays_one_file_for_a_local_reader(farm, node_dir, tmp_path):
    """An append grows the same local file: a local follower does not see a rotation."""
    log = node_dir / "server.log"
    log.write_bytes(b"one\n")
    farm.fetch(f"muxed:{log}", dest=tmp_path)
    inode = (tmp_path / "server.log").stat().st_ino
    log.write_bytes(b"one\ntwo\n")
    farm.fetch(f"muxed:{log}", dest=tmp_path)
    assert (tmp_path / "server.log").stat().st_ino == inode
    assert (tmp_path / "server.log").read_bytes() == b"one\ntwo\n"


def test_a_copy_made_otherwise_is_taken_up(farm, node_dir, tmp_path):
    """A file that scp brought is continued when it is the beginning of the node's file, and left alone when not."""
    log = node_dir / "server.log"
    log.write_bytes(random.Random(2).randbytes(500_000))
    (tmp_path / "server.log").write_bytes(log.read_bytes()[:400_000])
    [file] = farm.fetch(f"muxed:{log}", dest=tmp_path).files
    assert (file.action, file.added) == ("appended", 100_000)
    assert (tmp_path / "server.log").read_bytes() == log.read_bytes()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "server.log").write_bytes(b"something else")
    [(_, error)] = farm.fetch(f"muxed:{log}", dest=tmp_path / "other").failures
    assert "is there already" in error.message.what
    assert (tmp_path / "other" / "server.log").read_bytes() == b"something else"


def test_a_copy_changed_here_is_left_alone(farm, node_dir, tmp_path):
    """Nothing is appended to a copy that somebody edited, nor to the copy of another file."""
    log, other = node_dir / "server.log", node_dir / "other.log"
    log.write_bytes(b"one\n" * 1000)
    other.write_bytes(b"two\n" * 2000)
    copy = tmp_path / "copy.log"
    farm.fetch(f"muxed:{log}", dest=copy)
    [(_, error)] = farm.fetch(f"muxed:{other}", dest=copy).failures
    assert "is the copy of another file" in error.message.what
    assert copy.read_bytes() == log.read_bytes()
    copy.write_bytes(b"edited\n" + copy.read_bytes()[7:])
    [(_, error)] = farm.fetch(f"muxed:{log}", dest=copy).failures
    assert "was changed here" in error.message.what
    assert copy.read_bytes().startswith(b"edited\n")


def test_several_hosts_at_once(farm, node_dir, tmp_path):
    """Files of several hosts go to a folder per host; one that fails does not keep the others from arriving."""
    (node_dir / "server.log").write_bytes(b"here\n")
    outcome = farm.fetch(
        f"node:{node_dir}/server.log", f"closed:{node_dir}/server.log", f"inner:{node_dir}/server.log", dest=tmp_path
    )
    assert [file.host for file in outcome.files] == ["node", "inner"]
    assert [source for source, _ in outcome.failures] == [f"closed:{node_dir}/server.log"]
    assert outcome.exit_code == 2
    for host in ("node", "inner"):
        assert (tmp_path / host / "server.log").read_bytes() == b"here\n"
    result = json.loads(json.dumps(outcome.as_dict()))
    assert [error["source"] for error in result["errors"]] == [f"closed:{node_dir}/server.log"]


def test_relative_paths_begin_in_the_login_folder(farm, tmp_path):
    """``host:name`` and ``host:~/name`` lead to the home folder of the account."""
    (farm.home / "in home.log").write_bytes(b"here\n")
    for number, path in enumerate(("in home.log", "~/in home.log", "in*.log")):
        (tmp_path / str(number)).mkdir()
        assert farm.fetch(f"muxed:{path}", dest=tmp_path / str(number)).failures == []
        assert (tmp_path / str(number) / "in home.log").read_bytes() == b"here\n"


def test_addresses_as_urls(farm, node_dir, tmp_path):
    """``ssh://user@host:port/path`` reaches the port it names, with the path percent-decoded."""
    (node_dir / "a b.log").write_bytes(b"here\n")
    url = f"ssh://{os.environ.get('USER', 'root')}@127.0.0.1:{farm.ports['node']}{node_dir}/a%20b.log"
    spec = parse(url)
    assert spec is not None
    # The address is no alias of the config, so the host key is asked for under the alias here.
    ssh = (*farm.ssh, "-o", "HostKeyAlias=farm-a", "-o", f"User={spec.host.user}")
    outcome = farm.fetch(f"ssh://127.0.0.1:{farm.ports['node']}{node_dir}/a%20b.log", dest=tmp_path, ssh=ssh)
    assert outcome.failures == []
    assert (tmp_path / "a b.log").read_bytes() == b"here\n"


def test_through_a_jump_host(farm, node_dir, tmp_path):
    """ProxyJump in the ssh_config works: the file comes through two sshd, which the first one's wire shows."""
    (node_dir / "server.log").write_bytes(random.Random(3).randbytes(2_000_000))
    wire = Wire(farm.ports["node"])
    try:
        ssh = farm.through(wire.port, "jump")
        assert farm.fetch(f"jumped:{node_dir}/server.log", dest=tmp_path, verify=True, ssh=ssh).failures == []
    finally:
        wire.close()
    assert (tmp_path / "server.log").read_bytes() == (node_dir / "server.log").read_bytes()
    assert wire.moved > 2_000_000


def test_a_control_master_is_used_and_left(farm, node_dir, tmp_path):
    """ControlMaster and ControlPersist work: the first fetch does not wait for the master that stays behind."""
    (node_dir / "server.log").write_bytes(b"here\n" * 100)
    first = farm.fetch(f"muxed:{node_dir}/server.log", dest=tmp_path)
    assert first.failures == []
    assert first.files[0].seconds < 10
    assert farm.fetch(f"muxed:{node_dir}/server.log", dest=tmp_path).files[0].action == "unchanged"
    assert subprocess.run([*farm.ssh, "-O", "check", "muxed"], capture_output=True, check=False).returncode == 0


def test_nothing_is_left_on_the_node(farm, node_dir, tmp_path):
    """After a fetch there is no process and no file on the node that was not there before."""
    (node_dir / "server.log").write_bytes(b"here\n")
    before = sorted(farm.root.rglob("*"))
    node = Node(parse("node:/x").host, farm.options(), lambda _: None)
    assert node.session
    node.drop()
    farm.fetch(f"node:{node_dir}/server.log", dest=tmp_path)
    assert sorted(farm.root.rglob("*")) == before


def test_read_directly_through_the_cache(farm, node_dir, tmp_path, monkeypatch):
    """``host:/path`` is read through a cache below XDG_CACHE_HOME: the second reading moves only what is new."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data = random.Random(4).randbytes(6_000_000)
    (node_dir / "server.log").write_bytes(data)
    spec = parse(f"muxed:{node_dir}/server.log")
    [source] = remote_sources(spec.text, farm.options())
    blocks = list(source.blocks())
    assert b"".join(block.data for block in blocks) == data
    starts = itertools.accumulate((len(block.data) for block in blocks), initial=0)
    assert [block.offset for block in blocks] == list(starts)[:-1]
    [file] = cached(spec, farm.options())
    assert file.action == "unchanged"
    assert Path(file.file).name == "server.log"
    assert Path(file.file).is_relative_to(tmp_path / "logscope" / "remote")
    assert (tmp_path / "logscope" / "remote").stat().st_mode & 0o077 == 0
