"""Which file is which after a rotation, told by names, inodes and times.

This module is responsible for knowing the names that rotations give and their order. It must not know how two files
are compared.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from logscope.fetch.node import FileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from logscope.fetch.node import Node, Stat

_MOST, _MOST_LOOKS = 20, 10
# server.log.1, server.log.2: the higher the older; so is server.1.log, but server-1.log is the log of another rank.
# server.log-20260210, server-2026-02-10.log: the later the younger; server-30000.log is the log of another port.
# Compressed ones are left aside: their bytes are not those that were written.
_NUMBER = re.compile(rb"[._-](\d{1,4})")
_NUMBER_INSIDE = re.compile(rb"\.([1-9]\d{0,3})")
_DATE = re.compile(rb"[._-]?((?:19|20)\d\d[\d._:T-]{4,}|\d{10})")


def lost_file(node: Node, path: bytes, inode: int, is_it: Callable[[Stat], bool]) -> tuple[bytes, Stat] | None:
    """Open the file that stood under a path before, wherever a rotation put it; None when it is not found.

    Those with its inode are looked at first, then the youngest. ``is_it`` is asked while the file is open.
    """
    listed = node.beside(path)
    for _ in range(_MOST_LOOKS):
        for name, _ in sorted(listed, key=lambda item: (item[1].inode != inode, -item[1].mtime))[:_MOST]:
            with contextlib.suppress(FileError):
                if is_it(stat := node.open(name)):
                    return name, stat
        before = {(name, stat.inode) for name, stat in listed}
        listed = node.beside(path)
        # Names that changed while they were looked at may have hidden it.
        if before == {(name, stat.inode) for name, stat in listed}:
            break
    return None


def successors(path: bytes, current: Stat, found: Iterable[tuple[bytes, Stat]]) -> list[tuple[bytes, Stat]]:
    """Return the files that stood under a path after the current one and were rotated away, in order.

    Where the current file is among those found, names give the order; else only younger files can be told.
    """
    rotated = [(order, name, stat) for name, stat in found if (order := _order(path, name)) is not None]
    place = next((order for order, _, stat in rotated if stat.inode == current.inode), None)
    if place is not None:
        later = [item for item in rotated if item[0][0] == place[0] and item[0] > place]
    else:
        # A number inside a name may be that of a rank after all: without its like among them it is not trusted.
        later = [item for item in rotated if item[2].mtime > current.mtime and item[0][0] != "number inside"]
    return [(name, stat) for _, name, stat in sorted(later)]


def _order(path: bytes, name: bytes) -> tuple[str, int, bytes] | None:
    """Return what sorts the rotated files of a path from old to young, or None for a file that is none of them."""
    folder, slash, base = path.rpartition(b"/")
    stem, dot, suffix = base.rpartition(b".")
    for start, end in ((base, b""), (stem, dot + suffix)):
        rest = name[len(folder + slash) :]
        if start and rest.startswith(start) and rest.endswith(end):
            middle = rest[len(start) : len(rest) - len(end)]
            if number := (_NUMBER_INSIDE if end else _NUMBER).fullmatch(middle):
                return "number inside" if end else "number", -int(number[1]), b""
            if date := _DATE.fullmatch(middle):
                return "date", 0, re.sub(rb"\D", b"", date[1])
    return None
