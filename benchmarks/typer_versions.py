"""What typer costs: `--help` and a trivial command, per version, as ratios to `python -c pass`.

    python benchmarks/typer_versions.py 0.16.1 0.20.1 0.29.2

Each version is installed with its dependencies into a folder of its own (pip --target, removed afterwards) and runs
an application of the real one's size: fifteen commands, twenty options on the command that is run. The three programs
are timed in turn, so that a busy machine slows all of them alike; medians are printed as a Markdown table.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 15
APP = """
from typing import Annotated, Optional
from pathlib import Path
import typer

app = typer.Typer(name="app", help="An application.", rich_markup_mode=None, pretty_exceptions_enable=False)
Panel = dict(rich_help_panel="Selection")

def build(name):
    def command(
        logs: Annotated[Optional[list[str]], typer.Argument(metavar="LOG...", help="Logs.")] = None,
{options}
    ) -> None:
        print(name, len(logs or []))
    app.command(name, help="Does " + name + ".")(command)

for number in range(15):
    build("command" + str(number))
app()
""".replace(
    "{options}",
    "\n".join(
        f'        o{n}: Annotated[Optional[str], typer.Option("--option-{n}", envvar="APP_{n}", help="Option {n}.", **Panel)] = None,'
        for n in range(20)
    ),
)


def seconds(command: list[str], env: dict[str, str]) -> float:
    """Return the wall time of one run; a run that fails is an error, not a number."""
    started = time.perf_counter()
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return time.perf_counter() - started


def measure(version: str) -> str:
    """Install one version, time it, return a row of the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), f"typer=={version}"]
        subprocess.run(install, check=True, capture_output=True)
        (folder / "bench_app.py").write_text(APP, encoding="utf-8")
        env = {**os.environ, "PYTHONPATH": str(folder)}
        script = str(folder / "bench_app.py")
        # -S would hide the installed folder's .pth files; -I would hide PYTHONPATH: plain python is what users start.
        commands = {
            "pass": [sys.executable, "-c", "pass"],
            "help": [sys.executable, script, "--help"],
            "run": [sys.executable, script, "command3", "x.log"],
        }
        times: dict[str, list[float]] = {key: [] for key in commands}
        for command in commands.values():
            seconds(command, env)
        for _ in range(ROUNDS):
            for key, command in commands.items():
                times[key].append(seconds(command, env))
        base, helped, run = (statistics.median(times[key]) for key in ("pass", "help", "run"))
        heavy = "pydantic" if (folder / "pydantic").exists() else ""
        return (
            f"| {version} | {base * 1000:.0f} | {helped * 1000:.0f} | {helped / base:.1f} |"
            f" {run * 1000:.0f} | {run / base:.1f} | {heavy} |"
        )


if __name__ == "__main__":
    print("| typer | `python -c pass`, ms | `--help`, ms | x | a command, ms | x | also installs |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for wanted in sys.argv[1:]:
        print(measure(wanted), flush=True)
