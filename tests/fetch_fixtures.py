"""The fixtures of the tests of fetch, as a plugin: one farm of sshd for all of their modules."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sshfarm import Farm

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def farm() -> Iterator[Farm]:
    """Start the sshd instances of this run."""
    # A short name: a control socket's path may have 100 characters or so.
    root = Path(tempfile.mkdtemp(prefix="lsf-", dir="/tmp"))
    root.chmod(0o755)
    made = None
    try:
        made = Farm(root)
        yield made
    finally:
        if made is not None:
            made.close()
        shutil.rmtree(root)


@pytest.fixture
def node_dir(farm: Farm, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a folder on the nodes for one test, and leave syncing away: no test here pulls the plug."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    folder = farm.logs / request.node.name.translate(str.maketrans("[]/ ", "____"))[:60]
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)
