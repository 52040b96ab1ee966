"""A few small text files onto a node, through the user's own ssh.

This module is responsible for writing them below one folder there, whole, and for the words when that fails. It must
not know what the files are for. On the node it needs sh and mkdir.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from logscope.errors import RemoteError, UsageError
from logscope.fetch.spec import Spec, parse, shown
from logscope.fetch.ssh import Session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logscope.fetch.spec import Options

# Functions of the user's shell are put away; paths that begin nowhere begin in the home folder.
_SCRIPT = rb"""
unset -f mkdir printf cd
set +efux
cd
l_put() {
  if why=$( { mkdir -p "${1%/*}" && printf %s "$2" >"$1"; } 2>&1 ); then l_end ok
  else printf %s "$why"; l_end failed
  fi
}
l_end ready
"""


def destination(text: str) -> Spec:
    """Return where ``[user@]host:[PATH]`` is; without a path it is the home folder.

    Raises:
        UsageError: the text names no host, or one that cannot be used.

    """
    spec = parse(f"{text}." if text.endswith(":") else text)
    if spec is None:
        raise UsageError(f"'{text}' names no host", help="write host: or user@host:/folder")
    return spec


def send(files: Mapping[str, str], to: Spec, options: Options) -> None:
    """Write files (their paths below the folder, and their texts) on a host.

    Raises:
        SshError: the host cannot be reached.
        RemoteError: a file cannot be written there.

    """
    session = Session(to.host, options, _SCRIPT, threading.Event())
    try:
        for name, text in files.items():
            why = session.call("l_put", to.path + b"/" + os.fsencode(name), text)
            if session.words != ["ok"]:
                raise RemoteError(
                    f"cannot write {shown(os.fsdecode(to.path))}/{name} on {to.host}",
                    why=shown(why.decode("utf-8", "replace")) or None,
                    help="name a folder that this account may write to: host:/folder",
                )
    finally:
        session.close()
