"""Logs from the nodes where they are written, through the user's own ssh.

``fetch`` brings files and continues where it stopped, ``cached`` serves ``host:/path`` in place of a local file,
``remote_follow`` follows a growing one, ``origin`` tells where a local file came from.

    spec      names of remote files, options, quoting, local names
    ssh       one conversation with a sh behind the user's ssh; what ssh's messages mean
    node      what runs on a node; connecting again
    rotation  which file is which after a rotation
    manifest  what is known of a copy
    copy      one file and its copy, byte for byte
    filtered  copies that hold only some lines
    follow    a growing file
    hosts     several hosts and files
    progress  the lines on the terminal
    send      a few small files onto a node

The package uses :mod:`logscope.errors` and nothing else of logscope: which texts are anchors, what a line means and how
a result is printed are told or asked by its callers.
"""

from __future__ import annotations

from logscope.fetch.copy import Fetched
from logscope.fetch.filtered import MAGIC as FILTERED_MAGIC
from logscope.fetch.follow import Chunk, remote_follow
from logscope.fetch.hosts import Outcome, cached, fetch
from logscope.fetch.manifest import origin
from logscope.fetch.send import destination, send
from logscope.fetch.spec import Options, Spec, arguments, parse, size_of
from logscope.fetch.ssh import ssh_command

__all__ = [
    "FILTERED_MAGIC",
    "Chunk",
    "Fetched",
    "Options",
    "Outcome",
    "Spec",
    "arguments",
    "cached",
    "destination",
    "fetch",
    "origin",
    "parse",
    "remote_follow",
    "send",
    "size_of",
    "ssh_command",
]
