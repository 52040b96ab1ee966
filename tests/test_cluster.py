"""Scale-out: files read on a cluster give the same answer as one process, and a dead worker costs nothing but time."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import real_bytes, real_log

from logscope import cluster as clusters
from logscope.cli import main
from logscope.errors import InputError, UsageError
from logscope.queries.acceptance import Accept
from logscope.queries.summarize import Summarize
from logscope.run import answer

RUNS = ("healthy-topk1-specv1", "style-logger", "fault-nan-layer30", "cuda-graph")
FILES = [str(real_log(run)) for run in RUNS]

pytestmark = pytest.mark.filterwarnings("ignore")  # dask warns of what its own dependencies do


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Start a local cluster of two workers for all tests."""
    if importlib.util.find_spec("distributed") is None:
        if os.environ.get("LOGSCOPE_TEST_ALL") == "1":
            pytest.fail("dask is not installed, and LOGSCOPE_TEST_ALL=1 asks for every test")
        pytest.skip("dask is not installed")
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as started:
        yield started


@pytest.mark.parametrize("question", [Summarize, Accept])
def test_same_answer_as_one_process(cluster: Any, question: Any) -> None:
    """Two workers give the answer that one process gives, in every cell, and every file is reported once."""
    told: list[tuple[str, int, int]] = []
    found = clusters.answer(question(), FILES, address=cluster.scheduler_address, on_file=lambda *one: told.append(one))
    assert found.as_dict() == answer(question(), FILES).as_dict()
    assert sorted(name for name, _, _ in told) == sorted(FILES)
    assert [count for _, count, _ in told] == [1, 2, 3, 4]


def test_a_dead_worker_is_replaced(cluster: Any, tmp_path: Path) -> None:
    """A worker killed in the middle of its file: the file is read again, and the answer is whole."""
    files = []
    body = real_bytes("style-alt")
    for number in range(4):
        path = tmp_path / f"{number}.log"
        path.write_bytes(body * 2)
        files.append(str(path))
    killed: list[int] = []

    def kill() -> None:
        time.sleep(0.5)
        pid = next(iter(cluster.workers.values())).process.pid
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)

    killer = threading.Thread(target=kill)
    killer.start()
    found = clusters.answer(Summarize(), files, address=cluster.scheduler_address)
    killer.join()
    assert killed
    assert found.accounting.bytes == 4 * 2 * len(body)
    assert found.as_dict() == answer(Summarize(), files).as_dict()


def test_command(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """``summarize --engine dask`` prints the same report as without."""
    assert main(["summarize", *FILES, "--engine-address", cluster.scheduler_address, "-f", "json"]) == 0
    spread = json.loads(capsys.readouterr().out)
    assert main(["summarize", *FILES, "-f", "json"]) == 0
    assert spread == json.loads(capsys.readouterr().out)


def test_what_no_worker_can_read(cluster: Any, tmp_path: Path) -> None:
    """Standard input, an unknown engine and a file that is gone are refused with the reason."""
    with pytest.raises(UsageError, match="cannot be given to a worker"):
        clusters.answer(Summarize(), ["/dev/null"], address=cluster.scheduler_address)
    with pytest.raises(UsageError, match="no engine is called 'ray'"):
        clusters.answer(Summarize(), FILES, engine="ray")
    with pytest.raises(InputError):
        clusters.answer(Summarize(), [str(tmp_path / "gone.log")], address=cluster.scheduler_address)
