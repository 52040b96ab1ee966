"""logscope and what a user could take instead, side by side on the same log: time, memory, and whether they agree.

    python benchmarks/generate.py dense.log --size 1GB
    python benchmarks/compare.py dense.log --peers ./peers --install

Every round runs every program once, in turn, so that a machine that is busy or slow is so for all of them; a ratio is
the median over the rounds of the program's time over ripgrep's in the same round. Peak memory is taken in a run of its
own: what the program and its children hold at once, without mapped file pages. Answers are compared with
``LOG.expected.json``, which the generator counted while writing.

``--install`` makes a virtual environment in ``--peers`` and puts duckdb and polars into it. ripgrep, mawk and lnav are
the system's (``apt install ripgrep mawk lnav``); a peer that is not there, or crashes, is said to be.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
# An installed package has its bytecode; where that is not to be written, every start would compile it.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
MAWK = r"""
{ at = index($0, "EAGLE3_DEBUG["); if (!at) next
  said = substr($0, at + 13); key = substr(said, 1, index(said, ":") - 1); sub(/ [0-9]+ /, " N ", key)
  n[key]++; at = index(said, ", norm="); if (at) { sum[key] += substr(said, at + 7) + 0; have[key]++ } }
END { for (key in n) printf "%s\t%d\t%.6f\n", key, n[key], have[key] ? sum[key] / have[key] : 0 }
"""
# What the debug lines are called by who prints them, from the names the generator counts.
LABELS = {
    "layer_capture": "dsv2] layer N capture",
    "forward_end": "dsv2] forward end",
    "aux_concat": "logits] aux concat",
    "forward": "eagle3] forward",
    "fc_output": "eagle3] fc output",
}


@dataclass
class Program:
    """One way to ask: its command, how its answer is checked, and what it does not do."""

    name: str
    command: list[str]
    check: Callable[[str, dict[str, Any]], str]
    does: str
    output: Path | None = None
    times: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak: float = 0.0
    verdict: str = ""


def run(command: list[str]) -> tuple[float, float, str, int]:
    """Run a command; return seconds on the clock, seconds of processor, its output, its exit code."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        before = os.times()
        begin = time.perf_counter()
        code = subprocess.run(command, stdout=out, stderr=err, check=False, env=ENVIRONMENT).returncode
        took = time.perf_counter() - begin
        after = os.times()
        out.seek(0)
        text = out.read().decode(errors="replace")
        if code:
            err.seek(0)
            text += err.read()[-500:].decode(errors="replace")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return took, cpu, text, code


def peak(command: list[str]) -> float:
    """Return the most MiB that a command and its children hold at once, mapped file pages left out."""
    most = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT) as process:
        while process.poll() is None:
            most = max(most, sum(held(pid) for pid in family(process.pid)))
            time.sleep(0.1)
    return most / 1024


def family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    found = [pid]
    for parent in found:
        try:
            found += map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii").split())
        except OSError:
            continue
    return found


def held(pid: int) -> int:
    """Return KiB a process holds that are its own: what a fork shares with its parent counts for half."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))


# ------------------------------------------------------------------------------------------------------------ answers


def groups(expected: dict[str, Any]) -> dict[str, tuple[int, float | None]]:
    """Return count and mean norm by site and label, as the peers name them."""
    counts: dict[str, int] = {}
    sums: dict[str, float] = {}
    for name, number in expected["prints"].items():
        label = LABELS[name.split()[0]]
        counts[label] = counts.get(label, 0) + number
        if name in expected["norm_sums"]:
            sums[label] = sums.get(label, 0.0) + expected["norm_sums"][name]
    return {label: (number, sums[label] / number if label in sums else None) for label, number in counts.items()}


def check_groups(rows: list[tuple[str, int, float | None]], expected: dict[str, Any]) -> str:
    """Compare counts and means; a line that holds two records, or half of one, is seen as one by all of them."""
    faults = sum(expected["faults"].get(kind, 0) for kind in ("torn", "glued"))
    wanted = groups(expected)
    found = {name: (number, mean) for name, number, mean in rows if name in wanted}
    missed = sum(number - found.get(name, (0, None))[0] for name, (number, _) in wanted.items())
    off = max(
        (
            abs((found[name][1] or 0.0) / mean - 1)
            for name, (_, mean) in wanted.items()
            if mean is not None and name in found
        ),
        default=1.0,
    )
    if len(found) < len(wanted) or missed > faults or off > 1e-4 + faults / max(1, expected["debug_records"]):
        return f"WRONG: {missed:,} of {expected['debug_records']:,} records missed, means off by {off:.1e}"
    return (
        "equal" if not missed and off < 1e-9 else f"{missed:,} records missed, means off by {off:.0e} ({faults} faults)"
    )


def check_count(text: str, expected: dict[str, Any]) -> str:
    """Check ripgrep's count of lines."""
    lines = int(text.rsplit(maxsplit=1)[-1])
    missed = expected["debug_records"] - lines
    glued = expected["faults"].get("glued", 0)
    if missed == 0:
        return "equal"
    return f"{missed:,} records missed" + (" (glued to another)" if missed == glued else " WRONG")


def check_mawk(text: str, expected: dict[str, Any]) -> str:
    """Check mawk's table."""
    rows = [line.split("\t") for line in text.splitlines()]
    return check_groups([(row[0], int(row[1]), float(row[2])) for row in rows if len(row) == 3], expected)


def check_json(text: str, expected: dict[str, Any]) -> str:
    """Check the table of a peer written in Python."""
    return check_groups([tuple(row) for row in json.loads(text)], expected)


def check_decode(text: str, expected: dict[str, Any]) -> str:
    """Check count and sum of the accept len of decode lines."""
    ((_, lines, total),) = json.loads(text)
    wanted = expected["accept_len"]
    same = lines == wanted["lines"] and abs(total - wanted["sum"]) < 0.01 * max(1, lines)
    return "equal" if same else f"WRONG: {lines} decode lines, sum {total}, not {wanted}"


def check_nothing(_text: str, _expected: dict[str, Any]) -> str:
    """There is no answer to check."""
    return "-"


def check_lnav(text: str, expected: dict[str, Any]) -> str:
    """Check lnav's count."""
    numbers = [word for word in text.split() if word.isdigit()]
    found = int(numbers[-1]) if numbers else 0
    return "equal" if found == expected["debug_records"] else f"{found:,} of {expected['debug_records']:,} records"


def check_summary(text: str, expected: dict[str, Any]) -> str:
    """Check everything a summary says that the generator counted: records, passes, captures, acceptance."""
    report = json.loads(text)
    wrong = []
    counts = report["accounting"]
    for name in ("bytes", "lines", "records", "whole", "invalid_utf8_bytes"):
        wanted = expected[name]
        if counts[name] != wanted and not (name == "lines" and counts[name] == wanted):
            wrong.append(f"{name} {counts[name]:,} not {wanted:,}")
    passes: dict[str, int] = {}
    for row in (
        report["tables"]["phases"]["rows"] if "rows" in report["tables"]["phases"] else report["tables"]["phases"]
    ):
        key = f"{row['role']} {row['phase']}"
        passes[key] = passes.get(key, 0) + row["passes"]
    for key, wanted in expected["passes"].items():
        if passes.get(key, 0) != wanted:
            wrong.append(f"{key} {passes.get(key, 0):,} not {wanted:,}")
    captures: dict[str, list[float]] = {}
    for row in report["tables"]["captures"]:
        seen = captures.setdefault(f"{row['phase']} {row['layer']}", [0, row["rms_min"], row["rms_max"]])
        seen[:] = [seen[0] + row["count"], min(seen[1], row["rms_min"]), max(seen[2], row["rms_max"])]
    for key, (number, low, high) in expected["captures"].items():
        seen = captures.get(key, [0, 0.0, 0.0])
        if seen[0] != number or abs(seen[1] - low) > 1e-4 or abs(seen[2] - high) > 1e-4:
            wrong.append(f"captures {key}: {seen} not {[number, low, high]}")
    lines = sum(row["lines"] for row in report["tables"]["accept"])
    if lines != expected["accept_len"]["lines"]:
        wrong.append(f"accept lines {lines} not {expected['accept_len']['lines']}")
    faults = sum(expected["faults"].values())
    return "equal" if not wrong else "; ".join(wrong[:4]) + f" ({faults} faults written)"


# ----------------------------------------------------------------------------------------------------------- programs


def programs(log: Path, peers: Path | None, scratch: Path) -> list[Program]:
    """Return what can be run here; what is missing is said on stderr."""
    logscope = [sys.executable, "-m", "logscope"]
    parquet, saved = scratch / "events.parquet", scratch / "run"
    question = "select site, event, layer, count(*), avg(norm) from events group by site, event, layer"
    reread = f"import logscope; print(logscope.open({str(saved)!r}).sql({question!r}).height)"
    save = f"import logscope; logscope.load({str(log)!r}).save({str(saved)!r})"
    found = [
        Program("cat", ["sh", "-c", f"cat {log} >/dev/null"], check_nothing, "reads the bytes"),
        Program("rg -ac", ["rg", "-ac", "EAGLE3_DEBUG", str(log)], check_count, "counts lines"),
        Program("logscope summarize", [*logscope, "summarize", str(log), "-f", "json"], check_summary, "everything"),
        Program(
            "logscope events -o x.parquet",
            [*logscope, "events", str(log), "-o", str(parquet)],
            check_nothing,
            "all columns of every record",
            output=parquet,
        ),
        Program("load and save a run", [sys.executable, "-c", save], check_nothing, "the whole run", output=saved),
        Program("query a saved run", [sys.executable, "-c", reread], check_nothing, "count and mean by event"),
        Program("mawk", ["mawk", MAWK, str(log)], check_mawk, "count and mean norm by label"),
        Program(
            "lnav -n",
            ["lnav", "-n", "-c", ";select count(*) from all_logs where log_body like '%EAGLE3_DEBUG%'", str(log)],
            check_lnav,
            "counts lines",
        ),
    ]
    python = peers / "bin" / "python" if peers is not None else None
    for way, name, check, does in (
        ("duckdb", "DuckDB split", check_json, "count and mean norm by label"),
        ("polars", "polars regexp", check_json, "count and mean norm by label"),
        ("sglang", "SGLang's log_parser", check_decode, "decode lines only"),
    ):
        if python is not None and python.exists():
            found.append(Program(name, [str(python), str(HERE / "peers.py"), way, str(log)], check, does))
        else:
            print(f"{name}: left out, see --install", file=sys.stderr)
    kept = []
    for program in found:
        if shutil.which(program.command[0]) is None:
            print(f"{program.name}: {program.command[0]} is not installed", file=sys.stderr)
        else:
            kept.append(program)
    return kept


def install(peers: Path) -> None:
    """Put the peers that are Python packages into an environment of their own."""
    subprocess.run([sys.executable, "-m", "venv", str(peers)], check=True)
    subprocess.run([str(peers / "bin" / "python"), "-m", "pip", "install", "-q", "duckdb", "polars"], check=True)


def table(rows: list[Program], base: str, size: int) -> str:
    """Return the results as a Markdown table."""
    by_name = {program.name: program for program in rows}
    lines = [
        "| program | does | x rg (median) | s (median) | CPU s | MB/s | peak MiB | answer |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for program in rows:
        if not program.times:
            lines.append(f"| {program.name} | {program.does} | - | - | - | - | - | {program.verdict} |")
            continue
        ratio = "-"
        if base in by_name and by_name[base].times:
            pairs = zip(program.times, by_name[base].times, strict=False)
            ratio = f"{statistics.median(one / other for one, other in pairs):.1f}"
        middle = statistics.median(program.times)
        lines.append(
            f"| {program.name} | {program.does} | {ratio} | {middle:.2f} | {statistics.median(program.cpu):.2f} | "
            f"{size / middle / 1e6:,.0f} | {program.peak:.0f} | {program.verdict} |"
        )
    return "\n".join(lines)


def weight(path: Path) -> int:
    """Return the bytes of a file or folder."""
    return sum(one.stat().st_size for one in path.rglob("*")) if path.is_dir() else path.stat().st_size


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--only", default="", help="names of programs, by their first letters, with commas")
    options = parser.parse_args()
    if options.install:
        install(options.peers)
    expected = json.loads(Path(f"{options.log}.expected.json").read_text(encoding="utf-8"))
    size = options.log.stat().st_size
    with tempfile.TemporaryDirectory() as scratch:
        rows = programs(options.log, options.peers, Path(scratch))
        names = tuple(name.strip() for name in options.only.split(",") if name.strip())
        if names:
            rows = [program for program in rows if program.name.startswith(names)]
        run(["cat", str(options.log)])  # into the page cache
        for program in list(rows):
            if program.output is not None and program.output.exists():
                shutil.rmtree(program.output) if program.output.is_dir() else program.output.unlink()
            _, _, text, code = run(program.command)
            try:
                program.verdict = program.check(text, expected) if not code else f"crashed ({code})"
            except (ValueError, KeyError, TypeError, IndexError) as error:
                program.verdict = f"no answer ({type(error).__name__}: {error})"
            if not code and program.output is not None:
                program.verdict = f"{weight(program.output) / size:.1%} of the log"
            if not code:
                program.peak = peak(program.command) if program.output is None else 0.0
            print(f"{program.name}: {program.verdict}", file=sys.stderr)
        for number in range(options.rounds):
            for program in rows:
                if program.verdict.startswith("crashed"):
                    continue
                if program.output is not None and program.output.exists():
                    shutil.rmtree(program.output) if program.output.is_dir() else program.output.unlink()
                took, cpu, _, code = run(program.command)
                if code:
                    program.verdict = f"crashed ({code})"
                program.times.append(took)
                program.cpu.append(cpu)
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        for program in rows:
            if program.output is not None and program.times:
                shutil.rmtree(program.output) if program.output.is_dir() else program.output.unlink(missing_ok=True)
                program.peak = peak(program.command)
    about = f"{size / 1e6:,.0f} MB, {expected['kind']}, {expected['ranks']} ranks, {expected['lines']:,} lines, "
    about += (
        f"{expected['records']:,} records, {expected['lives']} lives; {os.cpu_count()} cores, {options.rounds} rounds"
    )
    print(f"\n{about}\n\n{table(rows, 'rg -ac', size)}")


if __name__ == "__main__":
    main()
