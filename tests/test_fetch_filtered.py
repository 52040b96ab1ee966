"""Copies that hold only some lines, against a real sshd: which lines, under which numbers, and how they go on."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from conftest import need_tool, real_bytes
from sshfarm import Wire

from logscope.fetch.filtered import MAGIC, read_selection

pytest_plugins = ["fetch_fixtures"]

ANCHORS = (b"EAGLE3_DEBUG", b"Decode batch", b"-- $(x) 'y'")


def kept_lines(text: bytes, anchors: tuple[bytes, ...], after: int = 3) -> list[tuple[int, int, bytes]]:
    """Return number, offset and text of the lines that hold an anchor and of those after them, computed here."""
    out, due, offset = [], 0, 0
    lines = text.split(b"\n")
    for number, line in enumerate(lines[:-1] if lines[-1] == b"" else lines, 1):
        due = after + 1 if any(anchor in line for anchor in anchors) else due
        if due:
            out.append((number, offset, line))
            due -= 1
        offset += len(line) + 1
    return out


def entries(file: Path) -> list[tuple[int, int, bytes]]:
    """Return the entries of a filtered copy."""
    first, *rest = file.read_bytes().split(b"\n")[:-1]
    assert first.startswith(MAGIC)
    split = (line.split(b":", 2) for line in rest)
    return [(int(number), int(offset), text) for number, offset, text in split]


def lines_of(text: bytes) -> int:
    """Return the number of lines, an unfinished last one included."""
    return text.count(b"\n") + (text[-1:] not in (b"", b"\n"))


@pytest.mark.parametrize("host", ["node", "csh"])
def test_debug_only_keeps_the_places_of_the_original(farm, node_dir, tmp_path, host):
    """Of a real log come the anchored lines and 3 after each, under the original's numbers and offsets."""
    if host == "csh":
        need_tool("tcsh")
    text = real_bytes("healthy-topk4") + b"last -- $(x) 'y' line without an end"
    (node_dir / "server.log").write_bytes(text)
    [file] = farm.fetch(f"{host}:{node_dir}/server.log", dest=tmp_path, anchors=ANCHORS).files
    assert file.form == "filtered"
    assert Path(file.file).name == "server.debug-only.log"
    assert entries(Path(file.file)) == kept_lines(text, ANCHORS)
    selection = read_selection(Path(file.file))
    assert (selection.lines, selection.size) == (lines_of(text), len(text))


def test_debug_only_goes_on(farm, node_dir, tmp_path):
    """However a log grew between the fetches, in the middle of lines or of what follows an anchor, all comes once."""
    rng = random.Random(31)
    some = [b"EAGLE3_DEBUG", b"plain", b"", b"xEAGLE3_DEBUGx", b"tensor([1,\r", b"\xff\0"]
    text = b"\n".join(rng.choices(some, weights=[1, 8, 1, 1, 4, 1], k=600)) + b"\nend"
    cuts = [*sorted(rng.sample(range(len(text)), 10)), len(text)]
    log = node_dir / "server.log"
    for cut in cuts:
        log.write_bytes(text[:cut])
        outcome = farm.fetch(f"muxed:{log}", dest=tmp_path, anchors=ANCHORS, compress="none")
        assert outcome.failures == []
        copy = Path(outcome.files[0].file)
        assert entries(copy) == kept_lines(text[:cut], ANCHORS), cut
        selection = read_selection(copy)
        assert (selection.lines, selection.size) == (lines_of(text[:cut]), cut)
    assert farm.fetch(f"muxed:{log}", dest=tmp_path, anchors=ANCHORS).files[0].action == "unchanged"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "server.debug-only.log",
        "server.debug-only.log.logscope.json",
    ]


@pytest.mark.parametrize("choice", ["debug-only", "last"])
def test_a_filtered_copy_survives_broken_connections(farm, node_dir, tmp_path, choice):
    """Broken at five points, a filtered copy is the one of an unbroken fetch, and goes on instead of beginning again."""
    lines = [b"EAGLE3_DEBUG %d " % n + random.Random(n).randbytes(60).hex().encode() for n in range(60_000)]
    text = b"\n".join(line if n % 3 else line[13:] for n, line in enumerate(lines)) + b"\n"
    (node_dir / "server.log").write_bytes(text)
    more = {"anchors": ANCHORS} if choice == "debug-only" else {"last": len(text)}
    wire = Wire(farm.ports["node"])
    for point in range(1_000_000, 7_000_000, 1_200_000):
        wire.at(point, wire.cut)
    try:
        ssh = farm.through(wire.port, f"filtered-{choice}")
        notices: list[str] = []
        source = f"node:{node_dir}/server.log"
        [file] = farm.fetch(source, dest=tmp_path, ssh=ssh, compress="none", notice=notices.append, **more).files
    finally:
        wire.close()
    assert sum("trying again" in notice for notice in notices) >= 4
    assert entries(Path(file.file)) == kept_lines(text, ANCHORS if choice == "debug-only" else (b"",))
    assert wire.moved < 1.3 * len(text) * 1.2


def test_debug_only_after_rotation(farm, node_dir, tmp_path):
    """A rotated log: the copy of the old one is completed and kept, the new one begins at line 1."""
    log = node_dir / "server.log"
    old, new = b"x\nEAGLE3_DEBUG a\n" * 50, b"EAGLE3_DEBUG b\n"
    log.write_bytes(old[:400])
    farm.fetch(f"muxed:{log}", dest=tmp_path, anchors=ANCHORS)
    log.write_bytes(old)
    log.rename(node_dir / "server.log.1")
    log.write_bytes(new)
    [file] = farm.fetch(f"muxed:{log}", dest=tmp_path, anchors=ANCHORS).files
    assert entries(Path(file.file)) == kept_lines(new, ANCHORS)
    assert entries(tmp_path / "server.debug-only.log.generation-1") == kept_lines(old, ANCHORS)


def test_other_anchors_begin_anew(farm, node_dir, tmp_path):
    """A copy made for other anchors is replaced, not continued."""
    text = b"a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n" * 3
    log = node_dir / "server.log"
    log.write_bytes(text)
    farm.fetch(f"muxed:{log}", dest=tmp_path, anchors=(b"a",))
    [file] = farm.fetch(f"muxed:{log}", dest=tmp_path, anchors=(b"a", b"f")).files
    assert entries(Path(file.file)) == kept_lines(text, (b"a", b"f"))
    assert file.generations == []


def test_a_grep_without_offsets_brings_the_whole_file(farm, node_dir, tmp_path):
    """BusyBox's grep has neither -a nor -b: the whole file comes, and it is said."""
    need_tool("busybox")
    text = real_bytes("fault-embed-captured")
    (node_dir / "server.log").write_bytes(text)
    notices: list[str] = []
    source = f"busybox:{node_dir}/server.log"
    [file] = farm.fetch(source, dest=tmp_path, anchors=ANCHORS, notice=notices.append).files
    assert file.form == "whole"
    assert (tmp_path / "server.log").read_bytes() == text
    assert "every line is brought" in notices[0]
    [file] = farm.fetch(source, dest=tmp_path, anchors=ANCHORS, last=1000).files
    assert Path(file.file).name == "server.last.log"
    assert entries(Path(file.file)) == [entry for entry in kept_lines(text, (b"",)) if entry[1] >= len(text) - 1000]


def test_the_last_bytes_begin_at_a_line(farm, node_dir, tmp_path):
    """``--last`` begins at the first line start within so many bytes, under the original's numbers and offsets.

    What was brought before stays, and a wider wish begins anew.
    """
    lines = [b"line %d of %s" % (n, b"x" * (n % 50)) for n in range(2000)]
    text = b"\n".join(lines) + b"\nunfinished"
    starts = list(itertools.accumulate((len(line) + 1 for line in lines), initial=0))
    log = node_dir / "server.log"
    log.write_bytes(text)

    def wanted(text: bytes, last: int) -> list[tuple[int, int, bytes]]:
        return [entry for entry in kept_lines(text, (b"",)) if entry[1] >= len(text) - last]

    exact = len(text) - starts[1990]
    for number, last in enumerate((500, exact, exact - 1, exact + 1, 1, 10_000_000)):
        [file] = farm.fetch(f"muxed:{log}", dest=f"{tmp_path}/{number}/", last=last).files
        assert Path(file.file).name == "server.last.log"
        assert entries(Path(file.file)) == wanted(text, last), last
    [file] = farm.fetch(f"muxed:{log}", dest=f"{tmp_path}/0/", last=5000).files
    assert entries(Path(file.file)) == wanted(text, 5000)
    log.write_bytes(text + b" line\nmore\n")
    [file] = farm.fetch(f"muxed:{log}", dest=f"{tmp_path}/0/", last=100).files
    assert entries(Path(file.file)) == wanted(text + b" line\nmore\n", 5000 + 11)
    assert Path(file.file).stat().st_size < 8000


def test_since(farm, node_dir, tmp_path):
    """``--since`` begins behind the last line with an earlier time; lines without a time between the two come too."""
    lines = []
    for number in range(0, 20_000, 3):
        lines.append(b"[2026-02-10 %02d:%02d:%02d TP0] Decode batch" % (number // 3600, number // 60 % 60, number % 60))
        lines += [b"EAGLE3_DEBUG[x] forward_end 2026"] * (number % 7)
    text = b"\n".join(lines) + b"\n"
    log = node_dir / "server.log"
    log.write_bytes(text)
    last_before = {
        "2026-02-10 03:00": b"[2026-02-10 02:59:57",
        "2026-02-10T05:12:13": b"[2026-02-10 05:12:12",
        "2026-02-10 00:00:01": b"[2026-02-10 00:00:00",
        "2026-02-09": None,
        "2026-02-11": b"[2026-02-10 05:33:18",
    }
    for number, (since, last) in enumerate(last_before.items()):
        notices: list[str] = []
        [file] = farm.fetch(f"muxed:{log}", dest=f"{tmp_path}/{number}/", since=since, notice=notices.append).files
        first = 0 if last is None else next(n for n, line in enumerate(lines) if line.startswith(last)) + 1
        assert Path(file.file).name == "server.since.log"
        assert [entry[0] for entry in entries(Path(file.file))] == list(range(first + 1, len(lines) + 1)), since
        assert bool(notices) == (since == "2026-02-11")


def test_since_without_times(farm, node_dir, tmp_path):
    """A log without times comes whole, and it is said."""
    log = node_dir / "server.log"
    log.write_bytes(b"no time here\n" * 100_000)
    notices: list[str] = []
    [file] = farm.fetch(f"muxed:{log}", dest=tmp_path, since="2026-02-10", notice=notices.append).files
    assert len(entries(Path(file.file))) == 100_000
    assert "--since is left aside" in notices[0]


def test_filters_together(farm, node_dir, tmp_path):
    """``--debug-only`` and ``--last`` select together."""
    text = real_bytes("healthy-topk1")
    log = node_dir / "server.log"
    log.write_bytes(text)
    [file] = farm.fetch(f"muxed:{log}", dest=tmp_path, anchors=ANCHORS, last=50_000).files
    assert Path(file.file).name == "server.debug-only.last.log"
    start = text.index(b"\n", len(text) - 50_000 - 1) + 1
    first = text.count(b"\n", 0, start)
    part = kept_lines(text[start:], ANCHORS)
    assert entries(Path(file.file)) == [(number + first, offset + start, line) for number, offset, line in part]
