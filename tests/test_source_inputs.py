"""What a user may name, and what is said when it is not there."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from logscope.errors import InputError, NothingRecognised
from logscope.sources.inputs import expand, is_remote


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a working directory of its own, so that names are short and relative."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(*names: str, text: str = "a line\n") -> None:
    for name in names:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + name, encoding="utf-8")


def names(*inputs: object) -> list[str]:
    return [source.name for source in expand(inputs)]


@pytest.mark.usefixtures("folder")
def test_names_stay_as_given():
    """Sources carry the name the user typed, in the order typed, as text, path or bytes."""
    make("b.log", "a.log", "sub/c.log")
    assert names("./b.log", Path("a.log"), b"sub//c.log") == ["./b.log", "a.log", "sub//c.log"]
    assert [source.name for source in expand("a.log")] == ["a.log"]  # one path needs no list


def test_names_that_are_not_utf8(folder):
    """A file whose name is no UTF-8 is found, named as the system names it."""
    raw = os.fsencode(folder) + b"/\xff.log"
    Path(os.fsdecode(raw)).write_bytes(b"x\n")
    assert names(raw) == [os.fsdecode(raw)]
    assert names(folder) == [os.fsdecode(raw)]


@pytest.mark.usefixtures("folder")
def test_a_directory_gives_its_logs():
    """Logs by suffix, rotated and compressed, and text without a suffix; sorted, recursive; the rest is named where there is none."""
    taken = [
        "logs/a.log",
        "logs/b.txt",
        "logs/c.out",
        "logs/d.err",
        "logs/e.LOG",
        "logs/f.log.1",
        "logs/g.log-20260210",
    ]
    taken += ["logs/h.log.2.gz", "logs/i.txt.zst", "logs/nohup", "logs/rank0/server.log", "logs/stderr.xz"]
    left = ["logs/x.json", "logs/y.pt", "logs/z.jsonl.gz"]
    make(*taken, *left, "logs/.hidden.log", "logs/.git/config.log")
    Path("logs/core").write_bytes(bytes(range(256)) * 8)
    Path("logs/packed").write_bytes(gzip.compress(b"line\n"))
    sources = expand("logs")
    assert [source.name for source in sources] == sorted([*taken, "logs/packed"])
    assert not any(source.warnings for source in sources)
    for name in taken:
        Path(name).unlink()
    Path("logs/packed").unlink()
    with pytest.raises(NothingRecognised) as caught:
        expand("logs")
    for name in (*left, "logs/core"):
        assert Path(name).name in str(caught.value)
    assert "hidden" not in str(caught.value)


@pytest.mark.usefixtures("folder")
def test_what_was_left_out_is_counted_when_it_is_much():
    """Five names are shown, the others counted."""
    make(*(f"logs/{number}.pt" for number in range(9)))
    with pytest.raises(NothingRecognised, match="and 4 more"):
        expand("logs")


@pytest.mark.usefixtures("folder")
def test_a_packed_twin_is_pointed_out():
    """A log beside its own archive may count twice: both are read, and that is said."""
    make("logs/a.log", "logs/a.log.gz", "logs/b.log.gz")
    sources = expand("logs")
    assert [source.name for source in sources] == ["logs/a.log", "logs/a.log.gz", "logs/b.log.gz"]
    assert "logs/a.log.gz" in sources[0].warnings[0]
    assert "b.log" not in sources[0].warnings[0]


@pytest.mark.usefixtures("folder")
def test_links_are_followed_once():
    """A loop of links ends, links add what is not there already and never what is above, a dangling one is named."""
    make("logs/run1/server.log", "elsewhere/rank1.log", "beside.log")
    Path("logs/latest").symlink_to("run1")
    Path("logs/run1/up").symlink_to("..")
    Path("logs/run1/current.log").symlink_to("server.log")
    Path("logs/more").symlink_to("../elsewhere")
    Path("logs/dangling.log").symlink_to("gone")
    sources = expand("logs")
    assert [source.name for source in sources] == ["logs/more/rank1.log", "logs/run1/server.log"]
    assert "dangling.log (no such file or directory)" in sources[0].warnings[0]


@pytest.mark.usefixtures("folder")
def test_what_is_no_plain_file_in_a_directory_is_left_out():
    """A pipe in a directory would wait for its writer: it is named and not opened."""
    make("logs/a.log")
    os.mkfifo("logs/b.log")
    (source,) = expand("logs")
    assert "b.log (not a plain file)" in source.warnings[0]


@pytest.mark.usefixtures("folder")
def test_a_directory_without_logs_is_nothing_recognised():
    """Exit 1, with what was left out; beside another input it is a warning."""
    make("empty/model.pt", "a.log")
    with pytest.raises(NothingRecognised, match="there are no logs in 'empty'") as caught:
        expand("empty")
    assert caught.value.exit_code == 1
    assert "model.pt" in str(caught.value)
    (source,) = expand(["empty", "a.log"])
    assert "empty: holds no logs" in source.warnings[0]


@pytest.mark.usefixtures("folder")
def test_globs_are_matched_as_a_shell_would():
    """A quoted pattern gives its matches, sorted, whatever their suffix, folders with what is in them."""
    make("r2.log", "r10.log", "r1.bin", "deep/x/y.log")
    assert names("r*") == ["r1.bin", "r10.log", "r2.log"]
    assert names("**/y.log") == ["deep/x/y.log"]
    assert names("d*") == ["deep/x/y.log"]
    make("odd[1].log")
    assert names("odd[1].log") == ["odd[1].log"]  # a file of that name wins
    with pytest.raises(InputError, match="no file matches 'q\\*'"):
        expand("q*")


@pytest.mark.usefixtures("folder")
def test_the_same_file_is_read_once():
    """By another name, a link, a hard link, a glob, a directory or an open file: once, and said."""
    make("logs/a.log")
    Path("logs/link.txt").symlink_to("a.log")
    os.link("logs/a.log", "hard.log")
    with Path("logs/a.log").open("rb") as file:
        (source,) = expand(["logs/a.log", "./logs/a.log", "logs/link.txt", "hard.log", "logs/*", "logs", file])
    assert source.name == "logs/a.log"
    for name in ("./logs/a.log", "logs/link.txt", "hard.log"):
        assert f"logs/a.log: was also named as '{name}' and is read once" in source.warnings


@pytest.mark.usefixtures("folder")
def test_standard_input_twice_is_read_once():
    """``- -`` does not wait for a second end, and neither does ``- /dev/stdin``."""
    script = (
        "from logscope.sources.inputs import expand\n"
        "(s,) = expand(['-', '-', '/dev/stdin'])\n"
        "print(len(s.warnings), sum(len(b.data) for b in s.blocks()))"
    )
    run = subprocess.run([sys.executable, "-c", script], input=b"abc\n", capture_output=True, check=True)
    assert run.stdout.split() == [b"2", b"4"]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("typed", ["sever.log", "logs/sever.log", "logz/server.log"])
def test_a_missing_file_names_the_nearest(typed):
    """Exit 2, with the name that was perhaps meant, of the file or of the folder."""
    make("server.log", "logs/server.log")
    with pytest.raises(InputError, match=f"there is no file '{typed}'") as caught:
        expand(typed)
    assert caught.value.exit_code == 2
    assert caught.value.message.help == f"did you mean '{'logs' if 'logz' in typed else 'server.log'}'?"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("nul\0byte", "embedded null"),
        ("x" * 5000, "too long"),
        ("a.log/b", "not a directory"),
        ("loop", "symbolic links"),
        ("dangling", "link to 'gone'"),
        ("https://example.org/a.log", "curl"),
        ("", "no file"),
        ("node7:/var/log/a.log", "another host"),
    ],
)
def test_odd_names_are_input_errors(typed, said):
    """No name whatsoever leads to anything but a message."""
    make("a.log")
    Path("loop").symlink_to("loop")
    Path("dangling").symlink_to("gone")
    with pytest.raises(InputError, match=r"(?s).") as caught:
        expand(typed)
    assert said in str(caught.value)


def test_things_that_are_no_input():
    """A number, a socket and nothing at all are refused in words."""
    with pytest.raises(InputError, match="neither a path nor a file object"):
        expand([3])
    with pytest.raises(InputError, match="no input was named"):
        expand([])


@pytest.mark.usefixtures("folder")
def test_a_socket_is_refused():
    """A socket cannot be opened like a file, and that is said rather than the system's 'no such device'."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        with pytest.raises(InputError, match="is a socket"):
            expand("s")


def test_no_permission(folder):
    """As an unprivileged user: a file, a pipe or a folder is an input error; one of a folder's files a warning."""
    make("shut.log", "mixed/open.log", "mixed/shut.log", "all/shut.log", "closed/a.log", "top/in/a.log", "top/b.log")
    os.mkfifo("pipe")
    for name in ("shut.log", "mixed/shut.log", "all/shut.log", "closed", "top/in", "pipe"):
        Path(name).chmod(0)
    folder.chmod(0o755)
    script = """
import json, os
from logscope.sources.inputs import expand
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
out = {}
for name in ("shut.log", "mixed", "all", "closed", "top", "pipe"):
    try:
        out[name] = [[source.name for source in expand(name)], expand(name)[0].warnings]
    except Exception as error:
        out[name] = [type(error).__name__, str(error)]
print(json.dumps(out))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    for name in ("closed", "top/in"):
        Path(name).chmod(0o755)  # so that the folder can be removed
    said = json.loads(run.stdout)
    for name in ("shut.log", "closed", "pipe"):
        assert said[name][0] == "InputError"
        assert "permission denied" in said[name][1]
    assert said["all"][0] == "InputError"
    assert "shut.log (permission denied)" in said["all"][1]
    assert said["mixed"] == [["mixed/open.log"], ["mixed: left out: shut.log (permission denied)"]]
    assert said["top"] == [["top/b.log"], ["top: left out: in (permission denied)"]]


@pytest.mark.usefixtures("folder")
def test_a_saved_run_is_returned_marked():
    """A folder that Run.save wrote is not expanded; inside another folder it is left out and named."""
    make("logs/a.log", "logs/good.run/notes.txt")
    Path("logs/good.run/manifest.json").write_text('{"logscope_run": 1}', encoding="utf-8")
    (source,) = expand("logs/good.run")
    assert (source.saved_run, source.name) == (True, "logs/good.run")
    with pytest.raises(InputError, match="saved run"):
        list(source.blocks())
    (source,) = expand("logs")
    assert not source.saved_run
    assert "good.run (a saved run)" in source.warnings[0]
    Path("logs/good.run/manifest.json").write_text("[" * 100_000, encoding="utf-8")  # not ours, and hostile
    assert names("logs/good.run") == ["logs/good.run/notes.txt"]


@pytest.mark.parametrize(
    ("text", "remote"),
    [
        ("node7:/var/log/a.log", True),
        ("root@node7:/var/log/a.log", True),
        ("root@node7:a b*.log", True),
        ("node7:", True),
        ("[2001:db8::1]:/a.log", True),
        ("root@[fe80::1%eth0]:a.log", True),
        ("ssh://root@node7:2222/a.log", True),
        ("-oProxyCommand=x:/a", True),  # fetch refuses it; taking it for a file would only say it is not there
        ("C:\\logs\\a.log", False),
        ("c:/logs/a.log", False),
        ("server.log", False),
        ("./a:b", False),
        ("/var/log/a:b", False),
        ("logs/node7:a.log", False),
        ("https://example.org/a.log", False),
        ("s3://bucket/a.log", False),
        ("some text: more", False),
        (":/a.log", False),
        ("-", False),
        ("", False),
    ],
)
@pytest.mark.usefixtures("folder")
def test_remote_paths_are_recognised(text, remote):
    """[user@]host:path and ssh:// are remote; a drive, an address, and anything with a slash before its colon are not."""
    assert is_remote(text) is remote


@pytest.mark.usefixtures("folder")
def test_a_local_file_wins_over_a_host():
    """A file, a dangling link or a matching glob with a colon in its name is local."""
    make("node7:a.log")
    Path("node8:b").symlink_to("gone")
    assert not is_remote("node7:a.log")
    assert not is_remote("node8:b")
    assert not is_remote("node?:*.log")
    assert is_remote("node9:*.log")
    assert names("node7:a.log") == ["node7:a.log"]
