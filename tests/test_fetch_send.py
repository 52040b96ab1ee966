"""`logscope probe HOST:`: the probe's folder onto a node, through the user's own ssh."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from sshfarm import Farm

from logscope import cli

pytest_plugins = ["fetch_fixtures"]

PROBE = Path(__file__).resolve().parent.parent / "probe" / "logscope_probe"


@pytest.mark.parametrize("host", ["node", "banner", "csh", "busybox", "jumped"])
def test_the_folder_arrives(farm: Farm, host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Byte for byte, whatever the login shell, below the folder that was named; and what is printed starts there."""
    there = tmp_path / "a folder"
    assert cli.main(["probe", f"{host}:{there}", "--ssh", shlex.join(farm.ssh)]) == 0
    mine = {str(path.relative_to(PROBE)): path.read_bytes() for path in PROBE.rglob("*.py")}
    came = {
        str(path.relative_to(there / "logscope_probe")): path.read_bytes()
        for path in (there / "logscope_probe").rglob("*.py")
    }
    assert came == mine
    said = capsys.readouterr()
    assert f"copied {len(mine)} files to {host}:{there}/logscope_probe" in said.err
    assert f"PYTHONPATH='{there}' python -m logscope_probe -o probe/" in said.out
    run = [sys.executable, "-m", "logscope_probe", "--version"]
    done = subprocess.run(run, env={"PYTHONPATH": str(there)}, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("logscope probe ")


def test_what_cannot_be_written_is_said(farm: Farm, capsys: pytest.CaptureFixture[str]):
    """A folder that cannot be made, a host that is none: exit code 2 and the reason."""
    assert cli.main(["probe", "node:/proc/no", "--ssh", shlex.join(farm.ssh)]) == 2
    said = capsys.readouterr().err
    assert "cannot write /proc/no/logscope_probe/" in said
    assert cli.main(["probe", "nowhere"]) == 2
    assert "'nowhere' names no host" in capsys.readouterr().err
