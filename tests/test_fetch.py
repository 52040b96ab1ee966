"""The parts of fetch that need no host: names, quoting, messages, the filtered form, the manifest, the bar."""

from __future__ import annotations

import ast
import io
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import need_tool
from hypothesis import given, settings
from hypothesis import strategies as st

import logscope.fetch
from logscope.errors import LogscopeError, RemoteError, UsageError
from logscope.fetch import Options, arguments, fetch, origin, parse, size_of, ssh_command
from logscope.fetch.filtered import MAGIC, FromBytes, FromGrep, Selection, last_entries, read_selection
from logscope.fetch.manifest import Edge, Generation, Manifest, Part, beside, load
from logscope.fetch.node import Stat
from logscope.fetch.progress import drawn
from logscope.fetch.rotation import successors
from logscope.fetch.spec import Host, local_name, pattern_word, quote, shown
from logscope.fetch.ssh import command_line, explain

SHELLS = (("dash",), ("bash", "--posix"), ("busybox", "sh"))
words = st.binary(max_size=40).filter(lambda text: b"\0" not in text)
hostile = st.text("'\"\\$`!*?[]{}()<>|&;~#%^ \t\n\r-=aé\udcff", max_size=20).map(os.fsencode)


@pytest.mark.parametrize(
    ("text", "user", "host", "port", "path"),
    [
        ("node:/logs/server.log", None, "node", None, b"/logs/server.log"),
        ("root@node1.example:x y.log", "root", "node1.example", None, b"x y.log"),
        ("node:~/x.log", None, "node", None, b"x.log"),
        ("node:a:b", None, "node", None, b"a:b"),
        ("[2001:db8::1]:/x", None, "2001:db8::1", None, b"/x"),
        ("me@[fe80::1%eth0]:/x", "me", "fe80::1%eth0", None, b"/x"),
        ("DOMAIN\\me@node:/x", "DOMAIN\\me", "node", None, b"/x"),
        ("a@b@node:/x", "a@b", "node", None, b"/x"),
        ("node:/n\udcffo\nutf8", None, "node", None, b"/n\xffo\nutf8"),
        ("ssh://node/x", None, "node", None, b"/x"),
        ("ssh://me@node:2222/a%20b%25?c#d", "me", "node", 2222, b"/a b%?c#d"),
        ("ssh://[::1]:22/x", None, "::1", 22, b"/x"),
        ("ssh://node/~/x", None, "node", None, b"x"),
        ("ssh://node/%FF", None, "node", None, b"/\xff"),
    ],
)
def test_remote_names(text, user, host, port, path):
    """Every form of a remote name gives user, host, port and path."""
    spec = parse(text)
    assert spec is not None
    assert (spec.host, spec.path) == (Host(host, user, port), path)


@pytest.mark.parametrize("text", ["server.log", "./node:x", "/logs/a:b", "a/b:c", ":x", "", "-"])
def test_local_names(text):
    """What has no host, or a slash before its colon, is local."""
    assert parse(text) is None


def test_a_local_file_with_a_colon_goes_first(tmp_path, monkeypatch):
    """An existing file is meant when it is named, dangling links included."""
    monkeypatch.chdir(tmp_path)
    Path("node:x").touch()
    Path("node:y").symlink_to("nowhere")
    assert parse("node:x") is None
    assert parse("node:y") is None
    assert parse("node:z") is not None


@pytest.mark.parametrize(
    "text",
    [
        "-oProxyCommand=touch x:/a",
        "-node:/a",
        "-l@node:/a",
        "me@-node:/a",
        "ssh://-oProxyCommand=x/a",
        "ssh://-v@node/a",
        "ssh://%2dv@node/a",
        "node$(x):/a",
        "node`x`:/a",
        "node;x:/a",
        "no de:/a",
        "a'b@node:/a",
        "ssh://node:0/a",
        "ssh://node:65536/a",
        "ssh://node:x/a",
        "ssh:///a",
        "ssh://node",
        "ssh://node/",
        "ssh://node/%00",
        "node:",
        "node:~bob/x",
    ],
)
def test_refused_names(text):
    """A host or user that ssh or a shell could take for something else is refused, and so is a name without a path."""
    with pytest.raises(UsageError) as error:
        parse(text)
    assert error.value.exit_code == 2
    assert error.value.message.help


def test_arguments():
    """The last argument may be a local folder; a local name anywhere else is refused."""
    specs, dest = arguments(["node:/a", "node:/b", "out"])
    assert ([spec.path for spec in specs], dest) == ([b"/a", b"/b"], "out")
    assert arguments(["node:/a"])[1] == "."
    for wrong in (["out"], [], ["a.log", "node:/a"], ["node:/a", "b.log", "out"]):
        with pytest.raises(UsageError):
            arguments(wrong)


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_quoted_words_reach_a_program_unchanged(shell):
    """Any bytes but NUL, quoted, are one word of exactly these bytes, in every sh, read from standard input."""
    need_tool(shell[0])

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.one_of(words, hostile), min_size=1, max_size=20))
    def check(texts):
        script = b"printf '%s\\0' " + b" ".join(map(quote, texts)) + b"\n"
        run = subprocess.run([*shell, "-s"], input=script, capture_output=True, check=True, env={"LC_ALL": "C"})
        assert run.stdout.split(b"\0")[:-1] == texts

    check()


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_patterns_run_nothing(shell, tmp_path):
    """A pattern that fits no file stays the literal text it is, whatever else stands in it: nothing in it is run."""
    need_tool(shell[0])

    @settings(max_examples=25, deadline=None)
    @given(st.lists(hostile.filter(lambda text: b"\n" not in text and text), min_size=1, max_size=20))
    def check(texts):
        # Quoted characters within a pattern that fits nothing come back without their quotes.
        script = b"printf '%s\\0' " + b" ".join(pattern_word(b"/none/" + text) for text in texts) + b"\n"
        run = subprocess.run(
            [*shell, "-s"], input=script, capture_output=True, check=True, cwd=tmp_path, env={"LC_ALL": "C"}
        )
        got = run.stdout.split(b"\0")[:-1]
        assert len(got) == len(texts)
        for result, text in zip(got, texts, strict=True):
            # In brackets "^" is written as "!", and a shell may keep the backslash it matched with.
            assert re.sub(rb"\[[!^]", b"[", result).replace(b"\\", b"") == re.sub(
                rb"\[[!^]", b"[", b"/none/" + text
            ).replace(b"\\", b"")

    check()
    assert list(tmp_path.iterdir()) == []


def test_local_names_of_remote_files():
    """A pattern keeps the folders it ranges over; nothing leads out of the destination."""
    names = {
        ("node:/logs/server.log", b"/logs/server.log"): "server.log",
        ("node:/logs/*.log", b"/logs/a.log"): "a.log",
        ("node:/logs/*/server.log", b"/logs/n1/server.log"): "n1/server.log",
        ("node:/logs/n[12]/x/*.log", b"/logs/n1/x/a.log"): "n1/x/a.log",
        ("node:*.log", b"a.log"): "a.log",
        ("node:*/../../etc/x", b"a/../../etc/x"): "x",
        ("node:/logs/*.log", b"/logs/*.log"): "*.log",
        ("node:/l/\udcff", b"/l/\xff"): "\udcff",
    }
    for (text, path), name in names.items():
        assert local_name(parse(text), path) == name


def test_shown_names_cannot_move_the_cursor():
    """What is printed of a name holds no control characters and no lone surrogates."""
    assert shown(b"a\x1b[2Jb\nc\xff\xc3\xa4") == "a\\x1b[2Jb\\x0ac\\xffä"
    shown(b"\xff").encode()


def test_the_command_line():
    """The command runs ssh in batch mode with time limits; host and command stand behind ``--``; host keys are not spoken of."""
    host = Host("node", "me", 2222)
    line = command_line(host, Options(ssh=("ssh", "-J", "bastion"), connect_timeout=7))
    assert line[:3] == ["ssh", "-J", "bastion"]
    assert line[-3:-1] == ["--", "node"]
    options = dict(word.split("=") for flag, word in itertools.pairwise(line) if flag == "-o")
    assert options["BatchMode"] == "yes"
    assert options["ConnectTimeout"] == "7"
    assert int(options["ServerAliveInterval"]) > 0
    assert ("-l", "me") in list(itertools.pairwise(line))
    assert ("-p", "2222") in list(itertools.pairwise(line))
    assert "BatchMode" not in " ".join(command_line(host, Options(interactive=True)))
    for word in ("StrictHostKeyChecking", "KnownHosts", "HostKeyAlgorithms", "CheckHostIP", "NoHostAuthentication"):
        assert word not in " ".join(line)
    assert [
        text
        for file in Path(logscope.fetch.__file__).parent.glob("*.py")
        for text in re.findall("StrictHost.*", file.read_text())
    ] == []


def test_the_ssh_program(monkeypatch):
    """``--ssh`` wins over LOGSCOPE_SSH, which wins over ssh; both are split like a shell's words."""
    monkeypatch.delenv("LOGSCOPE_SSH", raising=False)
    assert ssh_command() == ("ssh",)
    monkeypatch.setenv("LOGSCOPE_SSH", "ssh -F 'my config'")
    assert ssh_command() == ("ssh", "-F", "my config")
    assert ssh_command("tsh ssh") == ("tsh", "ssh")
    for wrong in ("", "ssh 'open"):
        with pytest.raises(UsageError):
            ssh_command(wrong)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("unknown_host", "ssh: Could not resolve hostname node: Name or service not known"),
        ("unknown_host", "ssh: Could not resolve hostname node: Temporary failure in name resolution"),
        ("refused", "ssh: connect to host node port 22: Connection refused"),
        ("timeout", "ssh: connect to host node port 22: Connection timed out"),
        ("timeout", "Connection timed out during banner exchange"),
        ("unreachable", "ssh: connect to host node port 22: No route to host"),
        (
            "host_key_unknown",
            "No ED25519 host key is known for node and you have requested strict checking.\nHost key verification failed.",
        ),
        (
            "host_key_changed",
            """@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
Offending ED25519 key in /home/me/.ssh/known_hosts:3
Host key for node has changed and you have requested strict checking.
Host key verification failed.""",
        ),
        ("key_refused", "me@node: Permission denied (publickey,keyboard-interactive)."),
        (
            "key_refused",
            "Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures\nDisconnected from 10.0.0.1 port 22",
        ),
        (
            "key_refused",
            "@ WARNING: UNPROTECTED PRIVATE KEY FILE! @\nbad permissions\nme@node: Permission denied (publickey).",
        ),
        (
            "jump",
            "channel 0: open failed: connect failed: Connection refused\nstdio forwarding failed\nConnection closed by UNKNOWN port 65535",
        ),
        ("closed", "kex_exchange_identification: read: Connection reset by peer\nConnection reset by 10.0.0.1 port 22"),
        ("closed", "Connection closed by 10.0.0.1 port 22"),
        (
            "negotiation",
            "Unable to negotiate with 10.0.0.1 port 22: no matching host key type found. Their offer: ssh-rsa",
        ),
        ("ssh_config", "/home/me/.ssh/config: line 3: Bad configuration option: nosuch"),
        ("failed", "something new"),
    ],
)
def test_what_openssh_says(kind, words):
    """Each of OpenSSH's texts gives its kind, keeps ssh's own words in ``why``, and says what to do."""
    error = explain(Host("node"), "Banner of the node\n" + words, 255, talked=False)
    assert error.kind == kind
    assert "node" in error.message.what or kind == "ssh_config"
    assert words.splitlines()[-1] in error.message.why or kind in ("key_refused", "jump", "closed", "host_key_changed")
    assert error.message.help
    assert isinstance(error, RemoteError)


def test_what_openssh_says_once_it_stood():
    """After the first answer everything but a refusal to go on is a lost connection, which may be made again."""
    for words in (
        "client_loop: send disconnect: Broken pipe",
        "Timeout, server node not responding.",
        "",
        "Permission denied (x)",
    ):
        error = explain(Host("node"), words, 255, talked=True)
        assert error.passing or error.later


def test_a_shell_that_is_none():
    """nologin, sftp-only accounts and a missing sh are told apart from a failed connection."""
    for words, banner, code in (
        ("", "This account is currently not available.\n", 1),
        ("This service allows sftp connections only.", "", 1),
        ("env: 'sh': No such file or directory", "", 127),
    ):
        assert explain(Host("node"), words, code, talked=False, banner=banner).kind == "no_shell"


def grep(text: bytes, anchors: list[bytes], after: int = 3) -> tuple[bytes, list[tuple[int, int, bytes]]]:
    """Return what ``grep -anbF -A 3`` prints, computed here, and the kept lines as (line, offset, text)."""
    kept: list[tuple[int, int, bytes]] = []
    out, due, offset, last = [], 0, 0, 0
    lines = text.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    for number, line in enumerate(lines, 1):
        hit = any(anchor in line for anchor in anchors)
        due = after + 1 if hit else due
        if due:
            if last and number > last + 1:
                out.append(b"--\n")
            mark = b":" if hit else b"-"
            out.append(b"%d%s%d%s%s\n" % (number, mark, offset, mark, line))
            kept.append((number, offset, line))
            last, due = number, due - 1
        offset += len(line) + 1
    return b"".join(out), kept


log_lines = st.lists(
    st.one_of(
        st.sampled_from([b"", b"A", b"xAx", b"--", b"1:2:3", b"7-8-A", b"\r", b"a\rb", b"\xff\0"]),
        st.binary(max_size=9),
    ).map(lambda line: line.replace(b"\n", b"")),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(log_lines, st.integers(1, 50), st.integers(1, 9), st.integers(0, 999))
def test_greps_output_becomes_entries(lines, chunk, line, offset):
    """Entries hold grep's lines under the original's numbers and offsets, in any chunking."""
    output, kept = grep(b"\n".join(lines) + b"\n", [b"A"])
    former = FromGrep(line, offset)
    got = b"".join(former.feed(output[at : at + chunk]) for at in range(0, len(output), chunk)) + former.close()
    assert got == b"".join(b"%d:%d:%s\n" % (n + line - 1, o + offset, text) for n, o, text in kept)


def test_this_greps_output_is_as_assumed():
    """The grep of this machine prints what the computation above assumes."""
    program = need_tool("grep")
    text = b"one\nA two\n--\n\xff\0three\nfour\nfive\nsix\nxA seven\n1:2:A eight\nnine\r"
    run = subprocess.run(
        [program, "-anbF", "-A", "3", "-e", "A", "-e", "B"],
        input=text,
        capture_output=True,
        check=True,
        env={"LC_ALL": "C"},
    )
    assert run.stdout == grep(text, [b"A", b"B"])[0]


@settings(max_examples=200, deadline=None)
@given(log_lines, st.booleans(), st.integers(1, 50), st.integers(1, 9), st.integers(0, 999))
def test_every_line_becomes_an_entry(lines, ended, chunk, line, offset):
    """Without anchors every line is kept, under its number and offset, in any chunking."""
    text = b"\n".join(lines) + (b"\n" if ended else b"")
    former = FromBytes(line, offset)
    got = b"".join(former.feed(text[at : at + chunk]) for at in range(0, len(text), chunk)) + former.close()
    whole = text.split(b"\n")[:-1] if text.endswith(b"\n") else text.split(b"\n") if text else []
    starts = itertools.accumulate((len(part) + 1 for part in whole), initial=offset)
    assert got == b"".join(b"%d:%d:%s\n" % (n, at, part) for n, at, part in zip(itertools.count(line), starts, whole))


def test_a_very_long_line_is_not_held():
    """A line of many megabytes passes through in pieces."""
    for former, given_ in ((FromGrep(5, 100), b"1:0:"), (FromBytes(5, 100), b"")):
        piece = b"x" * (1 << 18)
        out = former.feed(given_ + piece)
        for _ in range(40):
            out += former.feed(piece)
            assert len(getattr(former, "_carry", b"")) <= 1 << 20
        out += former.feed(b"end\n") + former.close()
        assert out == b"5:100:" + piece * 41 + b"end\n"


def test_another_greps_output_is_an_error():
    """Output that is not of the form is refused, not stored."""
    with pytest.raises(RemoteError, match="another form"):
        FromGrep(1, 0).feed(b"no numbers here\n")


def test_the_first_line_of_the_form(tmp_path):
    """It begins with the magic, says lines and bytes of the original, and tells where to go on."""
    file = tmp_path / "x"
    selection = Selection(12, 345, ["EAGLE3_DEBUG"], 6, 11, 300)
    file.write_bytes(selection.line() + b"7:8:text\n")
    assert file.read_bytes().startswith(MAGIC + b'{"lines": 12, "bytes": 345')
    assert read_selection(file) == selection
    for other in (b"plain\n", MAGIC + b"{\n", MAGIC + b"[]\n", b""):
        file.write_bytes(other)
        assert read_selection(file) is None


def test_the_last_entries(tmp_path):
    """They are found from the end, with their places in the file, however long lines are; an unfinished one does not count."""
    file = tmp_path / "x"
    texts = [b"x" * 200_000, b"two", b"", b"f:o:ur", b"y" * 100_000]
    head = Selection().line()
    entries, at = [], len(head)
    for number, text in enumerate(texts, 1):
        entries.append((number, number * 10, text, at))
        at += len(b"%d:%d:%s\n" % (number, number * 10, text))
    file.write_bytes(head + b"".join(b"%d:%d:%s\n" % entry[:3] for entry in entries) + b"6:60:unfini")
    found = [(entry.line, entry.offset, entry.text, entry.at) for entry in last_entries(file)]
    assert found == entries
    assert [entry.line for entry in last_entries(file, 2)] == [4, 5]


def test_the_manifest_comes_back_as_it_was(tmp_path):
    """A manifest with everything in it, bytes that are no UTF-8 included, is read as it was written."""
    file = tmp_path / "server.log"
    manifest = Manifest(
        "me@node", "/logs/\udcff\n", 3, 10, 5, 6, "2026-01-01T00:00:00+00:00", Edge(1, "a"), Edge(2, "b"), "c", True,
        "t1", "t2", Part(4, True), True, [Generation(1, "x.generation-1", 9, "truncated", True, 4, "t0", "/y")],
    )  # fmt: skip
    manifest.save(file)
    assert load(file) == manifest
    assert [path.name for path in tmp_path.iterdir()] == ["server.log.logscope.json"]
    shown_origin = origin(file)
    assert shown_origin is not None
    assert (shown_origin["host"], shown_origin["path"], shown_origin["sha256"]) == ("me@node", "/logs/\udcff\n", "c")
    assert origin(tmp_path / "other.log") is None


def test_the_order_of_rotated_files():
    """Numbers count down to the youngest, dates count up; other files beside a log are none of its past."""

    def found(*names: str) -> list[tuple[bytes, Stat]]:
        return [(b"/l/" + name.encode(), Stat(1, inode, 9, 5)) for inode, name in enumerate(names, 1)]

    def later(current: int, *names: str, mtime: int = 5) -> list[bytes]:
        return [name for name, _ in successors(b"/l/server.log", Stat(1, current, 9, mtime), found(*names))]

    numbered = ("server.log.1", "server.log.10", "server.log.2", "server.log.err", "server.log.bak", "server.log.3.gz")
    assert later(2, *numbered) == [b"/l/server.log.2", b"/l/server.log.1"]
    assert later(1, *numbered) == []
    dated = ("server.log-20260210", "server.log-20260211", "server-2026-02-12.log", "server.log-20260209")
    assert later(1, *dated) == [b"/l/server.log-20260211", b"/l/server-2026-02-12.log"]
    assert later(3, *dated) == []
    inside = ("server.1.log", "server.3.log", "server.2.log")
    assert later(2, *inside) == [b"/l/server.2.log", b"/l/server.1.log"]
    # Logs of ranks, ports and hosts beside it are none of its past, however young they are.
    beside = (
        "server.log.1",
        "server-0.log",
        "server_1.log",
        "server.1.log",
        "server-30001.log",
        "server_10.0.0.12.log",
    )
    assert later(1, *beside) == []
    assert later(99, *beside, mtime=4) == [b"/l/server.log.1"]
    # The current file is not among them: only younger ones can be told.
    assert later(99, *numbered) == []
    assert later(99, *numbered, mtime=4) == [b"/l/server.log.10", b"/l/server.log.2", b"/l/server.log.1"]


def test_sizes():
    """``--last`` takes bytes with binary units, and nothing else."""
    assert [size_of(text) for text in ("4096", "200M", "1.5k", "2 GiB", "1tb")] == [
        4096,
        200 << 20,
        1536,
        2 << 30,
        1 << 40,
    ]
    for wrong in ("", "x", "0", "-1", "1 parsec", "M"):
        with pytest.raises(UsageError):
            size_of(wrong)


def test_options_that_do_not_go_together():
    """``--verify`` with a filter, a time no log prints and an empty anchor are refused before anything is moved."""
    for wrong in (
        {"verify": True, "last": 1},
        {"verify": True, "anchors": (b"x",)},
        {"since": "yesterday"},
        {"since": "2026-02-10 1:00"},
        {"anchors": (b"",)},
        {"anchors": (b"a\nb",)},
    ):
        with pytest.raises(UsageError):
            Options(**wrong)
    assert Options(since="2026-02-10T12:00").since == "2026-02-10T12:00"


def test_names_that_are_kept_for_the_bookkeeping(tmp_path):
    """No remote file can take the place of a manifest, a part, a lock or a generation."""
    from logscope.fetch.hosts import _copy
    from logscope.fetch.node import Node

    node = Node(Host("node"), Options(), lambda _: None)
    for suffix in (".logscope.json", ".logscope-part", ".logscope-lock", ".logscope-new", ".generation-2"):
        with pytest.raises(UsageError, match="keeps for itself"):
            _copy(node, b"/x", tmp_path / f"server.log{suffix}", {}, drawn)
    taken: dict[Path, bytes] = {}
    _copy(node, b"/a/server.log", tmp_path / "server.log", taken, drawn)
    with pytest.raises(UsageError, match="two files would become"):
        _copy(node, b"/b/server.log", tmp_path / "server.log", taken, drawn)


def test_the_bar(monkeypatch):
    """One line with share, bytes, rate and time left; nothing where there is no terminal."""
    plain = io.StringIO()
    with drawn(plain) as advance:
        advance(Path("a"), 1, 2)
    assert plain.getvalue() == ""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    stream, now = Terminal(), [0.0]
    with drawn(stream, lambda: now[0]) as advance:
        advance(Path("a.log"), 0, 100_000_000)
        now[0] = 1.0
        advance(Path("a.log"), 10_000_000, 100_000_000)
        now[0] = 2.0
        advance(Path("a.log"), 20_000_000, 100_000_000)
        sys.stderr.write("a notice\n")
    lines = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "\r", stream.getvalue())
    [line] = {re.sub(r"[^ -~]+", "", line) for line in lines.split("\r") if "20 %" in line}
    assert line.split() == ["a.log", "20", "%", "20.0/100.0", "MB", "10.0", "MB/s", "0:00:08"]
    assert "a notice\n" in lines
    assert stream.getvalue().endswith("\x1b[1A\x1b[2K")


def test_a_file_from_nowhere_is_a_failure_not_a_crash(tmp_path):
    """A destination that cannot be written is said with its reason."""
    (tmp_path / "file").touch()
    outcome = fetch([parse("node:/x")], tmp_path / "file" / "sub", Options(ssh=("false",)))
    assert outcome.exit_code == 2
    assert json.loads(json.dumps(outcome.as_dict()))["errors"][0]["source"] == "node:/x"
    assert isinstance(outcome.failures[0][1], LogscopeError)


def test_fetch_knows_nothing_of_logs():
    """The package imports logscope.errors and itself, and nothing heavy when it is imported."""
    for file in Path(logscope.fetch.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [a.name for a in getattr(node, "names", [])]
                if isinstance(node, ast.Import)
                else []
            )
            for name in names:
                if name.split(".")[0] == "logscope":
                    assert name == "logscope.errors" or name.startswith("logscope.fetch"), f"{file.name}: {name}"
    code = "import sys, logscope.fetch; print([m for m in ('polars', 'rich', 'typer', 'pydantic', 'zstandard', 'asyncio') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_beside_names_companions():
    """Companions stand beside the copy under its whole name."""
    assert beside(Path("/x/server.log"), ".logscope.json") == Path("/x/server.log.logscope.json")
