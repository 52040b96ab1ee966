"""The probe without torch: its words, its loading, its files. What needs torch stands in test_probe_passes.py."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
import types
from array import array
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import logscope
from logscope import cli

ROOT = Path(__file__).resolve().parent.parent
PROBE = ROOT / "probe"
STARTUP = PROBE / "logscope_probe" / "startup"
DATA = ROOT / "tests" / "data" / "probe"
sys.path.insert(0, str(PROBE))

from logscope_probe import __main__ as launcher  # noqa: E402 - the path is set above
from logscope_probe import lines, options, places, writer  # noqa: E402

STATE = lines.State(0, 0, "eagle3", "forward", "hidden_states", 4, 21504, ", embeds=torch.Size([4, 7168])")


class Slot:
    """Results that are there at once."""

    norms = array("f", [1.0, 2.0, 2.0, 4.0])

    def fill(self, *_given: Any) -> None:
        """Nothing to copy."""

    def ready(self) -> bool:
        """Yes."""
        return True

    def values(self, at: int, rows: int) -> tuple[list[float], float, array[float]]:
        """Return the same for every state."""
        del at
        return [0.5, -0.25], 5.0, self.norms[:rows]


class Watch:
    """Finds what it is told to find, in the passes it is told."""

    def __init__(self, found: tuple[int, ...] = ()) -> None:
        """Nothing by default."""
        self.found, self.looks = found, 0

    def forget(self) -> None:
        """Nothing to forget."""

    def look(self, *_given: Any) -> tuple[str, int] | None:
        """Count."""
        self.looks += 1
        return ("nan", 2) if self.looks in self.found else None


def free(_slot: Any) -> None:
    """Take a slot back."""


def a_writer(folder: Path, watch: Watch | None = None, **given: Any) -> writer.Writer:
    """Make a writer whose header is short."""
    made = writer.Writer(
        options.Options(str(folder), **given), lambda: {"schema": 1, "probe": "0"}, free, watch or Watch()
    )
    made.rank = " TP1"
    return made


def a_job(number: int, dropped: int = 0, rids: tuple[str, ...] = ()) -> writer.Job:
    """Make a pass of one state."""
    one = lines.Pass(number, 1.7e9 + number, "TARGET_VERIFY", 1, 4, graph=True, rids=rids)
    return writer.Job(Slot(), one, [(STATE, 4)], True, dropped)  # type: ignore[arg-type]


def passes(text: str) -> list[int]:
    """Return the passes of the records in a text."""
    return [int(found) for found in re.findall(r"\] forward: .*, pass=(\d+), .*\]", text)]


# ---------------------------------------------------------------------------------------------- words


def test_options_travel_by_the_environment():
    """What the launcher puts into the environment is what the server's processes read out of it."""
    made = options.Options("/d", states=("join", "input"), every=4, until_finding=0, rids=True, size=1 << 20)
    env = launcher.environment(made, {"PYTHONPATH": "/mine", "HOME": "/h"})
    assert options.from_environment(env) == made
    assert env["PYTHONPATH"] == f"{STARTUP}{os.pathsep}/mine"
    assert options.from_environment({"LOGSCOPE_PROBE": "/d"}) == options.Options("/d")


@pytest.mark.parametrize(
    "text", ["every", "every=x", "nothing=1", "states=captures+all", "size=1", "size=1T", "folder=/x"]
)
def test_options_that_cannot_be(text: str):
    """A wrong option raises, and the caller says it."""
    with pytest.raises(ValueError, match=r".+"):
        options.from_environment({"LOGSCOPE_PROBE": "/d", "LOGSCOPE_PROBE_OPTIONS": text})


def launch(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the launcher."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("LOGSCOPE", "PYTHON"))}
    return subprocess.run(
        [sys.executable, "-m", "logscope_probe", *words],
        env={**clean, "PYTHONPATH": str(PROBE), **(env or {})}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_launcher_becomes_the_command(tmp_path: Path):
    """Its exit code and output are the command's own; the folder is made; the options arrive."""
    code = "import os, sys; print(os.environ['LOGSCOPE_PROBE'], os.environ['LOGSCOPE_PROBE_OPTIONS']); sys.exit(7)"
    done = launch("-o", str(tmp_path / "p"), "--every", "3", "--states", "join,input", "--", sys.executable, "-c", code)
    assert (done.returncode, done.stdout) == (7, f"{tmp_path / 'p'} states=join+input,every=3\n")
    assert (tmp_path / "p").is_dir()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-o", "p"], "which server?"),
        (["-o", "p", "--states", "none", "--", "true"], "'none' is no state"),
        (["-o", "p", "--every", "0", "--", "true"], "0 is too few"),
        (["-o", "p", "--size", "12", "--", "true"], "no size of at least 64K"),
        (["-o", "p", "--", "/no/such/program"], "cannot start /no/such/program"),
        (["off", "/no/such/folder"], "no folder that a probe writes to"),
        (["-o", "/proc/no", "--", "true"], "/proc/no: "),
        (["--", "true"], "required: -o"),
    ],
)
def test_the_launcher_says_what_is_wrong(tmp_path: Path, words: list[str], said: str):
    """Exit code 2 and one line that says what to do."""
    done = launch(*[str(tmp_path / word) if word == "p" else word for word in words])
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_with_records_is_left_alone(tmp_path: Path):
    """Records of two starts in one folder would be read as ranks of one server."""
    (tmp_path / "tp0.1.log").touch()
    assert "holds records of an earlier start" in launch("-o", str(tmp_path), "--", "true").stderr


def test_the_switch_is_a_file(tmp_path: Path):
    """`off` and `on`, and `--off` at the start."""
    assert launch("-o", str(tmp_path), "--off", "--", "true").returncode == 0
    assert (tmp_path / "off").exists()
    assert launch("on", str(tmp_path)).returncode == 0
    assert not (tmp_path / "off").exists()
    assert launch("off", str(tmp_path)).returncode == 0
    assert (tmp_path / "off").exists()


# ---------------------------------------------------------------------------------------------- loading


def test_nothing_is_loaded_unasked(tmp_path: Path):
    """Without LOGSCOPE_PROBE no hook is set; the package never imports torch, or anything else that is installed."""
    code = (
        "import sys, logscope_probe; logscope_probe.install(); print(len(sys.meta_path))\n"
        "import logscope_probe.places, logscope_probe.writer, logscope_probe.__main__\n"
        "known = set(sys.stdlib_module_names) | {'logscope_probe', '__main__', 'sitecustomize'}\n"
        "print(sorted({n.split('.')[0] for n in sys.modules if not n.startswith('_')} - known))"
    )
    env = {"PYTHONPATH": str(PROBE), "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-S", "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.splitlines()[1] == "[]"
    plain = subprocess.run(
        [sys.executable, "-S", "-c", "import sys; print(len(sys.meta_path))"], env=env, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[0] == plain.stdout.strip()


def test_a_sitecustomize_behind_it_still_runs(tmp_path: Path):
    """The folder on the path stands before another sitecustomize, as distributions and tools have one."""
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['OTHER'] = 'ran'\n")
    env = {**os.environ, "PYTHONPATH": f"{STARTUP}{os.pathsep}{tmp_path}", "LOGSCOPE_PROBE": str(tmp_path)}
    code = "import os, sys; print(os.environ['OTHER'], 'logscope_probe' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "ran True"


def test_other_import_hooks_of_its_kind_are_no_trouble(tmp_path: Path):
    """Two finders that ask all others would ask each other for ever; found on a real server beside another hook."""
    folder = tmp_path / "sglang" / "srt" / "managers"
    folder.mkdir(parents=True)
    for path in (folder, folder.parent, folder.parent.parent):
        (path / "__init__.py").touch()
    (folder / "scheduler.py").write_text("def configure_logger(server_args, prefix=''):\n    return prefix\n")
    code = (
        "import sys\n"
        "class Other:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if not name.startswith('sglang'):\n            return None\n"
        "        rest = sys.meta_path[sys.meta_path.index(self) + 1:]\n"
        "        return next((s for f in rest if (s := f.find_spec(name, path, target))), None)\n"
        "import logscope_probe\n"
        "logscope_probe.install()\n"
        "sys.meta_path.insert(0, Other())\n"
        "import sglang.srt.managers.scheduler as s\n"
        "from logscope_probe.passes import PROCESS\n"
        "print(s.configure_logger(None, prefix=' TP3'), PROCESS.rank, type(s.__loader__).__name__, PROCESS.not_wrapped)"
    )
    env = {**os.environ, "PYTHONPATH": f"{PROBE}{os.pathsep}{tmp_path}", "LOGSCOPE_PROBE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == " TP3  TP3 SourceFileLoader []\n", done.stderr


def test_every_place_is_there_in_every_version():
    """Names and needed parameters, as read out of the released wheels (benchmarks/probe_signatures.py)."""
    kept = json.loads((DATA / "signatures.json").read_text())
    assert list(kept) == ["0.5.11", "0.5.15.post1", "0.5.17", "0.5.23"]
    for version, found in kept.items():
        for place in places.PLACES:
            here = found.get(f"{place.module}:{place.owner}", {})
            name = next((name for name in place.names if name in here), None)
            assert name or place.optional, (version, str(place))
            if name and here[name] != "(imported)":
                has = {part.strip().split("=")[0] for part in here[name].split(",")}
                assert set(place.needs) <= has, (version, str(place))


def test_what_takes_other_parameters_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    """A function of the right name that lacks what the wrapper needs is named, and stays SGLang's own."""
    monkeypatch.setattr(places.passes, "PROCESS", places.passes.Process())
    module: Any = types.ModuleType("sglang.srt.managers.scheduler")
    module.configure_logger = own = lambda config: config
    places.wrap(module)
    assert module.configure_logger is own
    assert places.passes.PROCESS.not_wrapped == ["managers.scheduler.configure_logger"]


def test_failures_end_the_probe_not_the_server(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """Three failures are said, a hundred end the probe; what it stands beside is called all the same."""
    monkeypatch.setattr(places.passes, "PROCESS", places.passes.Process())
    tries = []

    @places.passes.guarded
    def fails() -> None:
        tries.append(1)
        raise RuntimeError("out of luck")

    assert [fails() for _ in range(150)] == [None] * 150
    assert len(tries) == places.passes.GIVEN_UP
    said = capfd.readouterr().err
    assert said.count("RuntimeError: out of luck") == places.passes.SAID
    assert said.count("gives up after 100 failures") == 1


# ---------------------------------------------------------------------------------------------- files


def test_a_file_begins_with_a_header(tmp_path: Path):
    """One file for each rank and process; the header first, then the passes."""
    made = a_writer(tmp_path)
    for number in (1, 2):
        made.write(a_job(number))
    (file,) = tmp_path.iterdir()
    assert file.name == f"tp1.{os.getpid()}.log"
    text = file.read_text().splitlines()
    assert re.fullmatch(r"\[[\d :-]{19} TP1\] EAGLE3_DEBUG\[probe\] header: schema=1, probe='0'", text[0])
    assert passes("\n".join(text)) == [1, 2]
    assert len(text) == 3


def test_a_changed_header_is_written_again(tmp_path: Path):
    """The draft is loaded after the target: the header says both as soon as there are both."""
    said = [{"draft": None}]
    made = writer.Writer(options.Options(str(tmp_path)), lambda: said[0], free, Watch())  # type: ignore[arg-type,return-value]
    made.write(a_job(1))
    said[0] = {"draft": "Llama"}  # type: ignore[dict-item]
    made.write(a_job(2))
    made.write(a_job(3))
    (file,) = tmp_path.iterdir()
    assert [("header" in line) for line in file.read_text().splitlines()] == [True, False, True, False, False]


def test_rotation_keeps_so_many_files_each_with_a_header(tmp_path: Path):
    """A file is renamed before it grows beyond the size; the oldest goes."""
    made = a_writer(tmp_path, size=1 << 16, keep=2)
    for number in range(1, 1001):
        made.write(a_job(number))
    name = f"tp1.{os.getpid()}.log"
    assert sorted(path.name for path in tmp_path.iterdir()) == [name, f"{name}.1", f"{name}.2"]
    found = []
    for suffix in (".2", ".1", ""):
        text = (tmp_path / (name + suffix)).read_text()
        assert len(text) <= 1 << 16
        assert "header: schema=1" in text.splitlines()[0]
        found += passes(text)
    assert found == list(range(found[0], 1001))
    assert found[0] > 1


def test_what_a_full_disk_drops_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No space: passes are lost, none is torn, and the next record that can be written says how many."""
    made = a_writer(tmp_path)
    made.write(a_job(1))
    real = os.write

    def full(_fd: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def nearly(fd: int, data: bytes) -> int:
        return real(fd, data[:40])

    for number, behave in ((2, full), (3, nearly), (4, full)):
        monkeypatch.setattr(os, "write", behave)
        made.write(a_job(number))
        monkeypatch.setattr(os, "write", real)
    made.write(a_job(5, dropped=2))
    made.write(a_job(6))
    (file,) = tmp_path.iterdir()
    text = file.read_text()
    assert passes(text) == [1, 5, 6]
    assert re.findall(r", dropped=(\d+)$", text, re.MULTILINE) == ["5"]
    assert all(line.endswith(("]", "probe='0'", "dropped=5")) for line in text.splitlines())


def test_a_file_size_limit_tears_nothing(tmp_path: Path):
    """The kernel writes what still fits (RLIMIT_FSIZE, as a full disk does): the part is taken back."""
    code = (
        "import resource, sys\n"
        "sys.path[:0] = [sys.argv[1], sys.argv[2]]\n"
        "from test_probe import a_writer, a_job\n"
        "from pathlib import Path\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "made = a_writer(Path(sys.argv[3]))\n"
        "for number in range(1, 101):\n    made.write(a_job(number))\n"
        "print(made._lost)"
    )
    words = [sys.executable, "-c", code, str(PROBE), str(Path(__file__).parent), str(tmp_path / "p")]
    done = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    (file,) = (tmp_path / "p").iterdir()
    text = file.read_text()
    assert text.endswith("]\n")
    assert len(passes(text)) + int(done.stdout) == 100
    assert passes(text) == list(range(1, len(passes(text)) + 1))


def test_a_slow_disk_costs_slots_not_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The serving side never waits: with no slot free it counts, and says so when there is one again."""
    from logscope_probe import passes as serving

    class Buffers:
        rows, seen = 16, [STATE]

    class Slots:
        left = 2

        def take(self, count: int, rows: int) -> Slot | None:
            del count, rows
            self.left -= 1
            return Slot() if self.left >= 0 else None

    slots, made, real = Slots(), a_writer(tmp_path), os.write
    monkeypatch.setattr(serving, "PROCESS", serving.Process())
    serving.PROCESS.slots, serving.PROCESS.writer = slots, made
    monkeypatch.setattr(os, "write", lambda fd, data: (time.sleep(0.2 if fd > 2 else 0), real(fd, data))[1])
    made.start()
    runner: Any = type("Runner", (), {"buffers": Buffers(), "draft": False})()
    began = time.monotonic()
    for number in range(1, 7):
        serving.hand_on(runner, a_job(number).one, [STATE], replayed=True)
    assert time.monotonic() - began < 0.1
    slots.left = 1
    serving.hand_on(runner, a_job(7).one, [STATE], replayed=True)
    assert made.drain(5)
    (file,) = tmp_path.iterdir()
    assert passes(file.read_text()) == [1, 2, 7]
    assert file.read_text().endswith(", dropped=4\n")


def test_kill_leaves_whole_records(tmp_path: Path):
    """Kill -9 in the middle: every line is whole, but for the last one at most."""
    code = (
        "import sys\n"
        "sys.path[:0] = [sys.argv[1], sys.argv[2]]\n"
        "from test_probe import a_writer, a_job\n"
        "from pathlib import Path\n"
        "made, number = a_writer(Path(sys.argv[3])), 0\n"
        "while True:\n    number += 1\n    made.write(a_job(number))"
    )
    words = [sys.executable, "-c", code, str(PROBE), str(Path(__file__).parent), str(tmp_path / "p")]
    process = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        files = list((tmp_path / "p").glob("*.log"))
        if files and files[0].stat().st_size > 200_000:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    text = files[0].read_text()
    whole = text[: text.rindex("\n") + 1]
    found = passes(whole)
    assert found == list(range(1, len(found) + 1))
    assert len(found) == len(whole.splitlines()) - 1


def test_until_finding_ends_all_ranks(tmp_path: Path):
    """The rank that finds something first says where the end is; the others take it over."""
    first = a_writer(tmp_path, Watch((3,)), until_finding=2)
    other = a_writer(tmp_path, Watch((7,)), until_finding=2)
    other.rank = " TP0"
    for number in range(1, 10):
        first.write(a_job(number))
    assert first.stop_after == 5
    first.reached = True
    first._look_at_switch()
    assert not first.on
    other._look_at_switch()
    assert other.stop_after == 5
    for number in range(1, 10):
        other.write(a_job(number))
    texts = {path.name.split(".")[0]: path.read_text() for path in tmp_path.glob("*.log")}
    assert passes(texts["tp1"]) == passes(texts["tp0"]) == [1, 2, 3, 4, 5]
    assert (
        "finding: what='nan', state='forward', row=2, forward_mode='TARGET_VERIFY', graph=True, pass=3" in texts["tp1"]
    )
    assert texts["tp1"].endswith("stop: reason='until-finding', pass=5\n")
    assert json.loads((tmp_path / "found").read_text()) == {"what": "nan", "pass": 3, "rank": "TP1", "stop": 5}


def test_a_finding_is_said_once(tmp_path: Path):
    """A state that stays nan does not fill the disk with findings; without --until-finding nothing ends."""
    made = a_writer(tmp_path, Watch(tuple(range(1, 50))))
    for number in range(1, 50):
        made.write(a_job(number))
    (file,) = tmp_path.iterdir()
    assert len(passes(file.read_text())) == 49
    assert file.read_text().count("] finding: ") == 1


def test_the_switch_is_looked_at(tmp_path: Path):
    """A file `off` in the folder ends what is wanted, and its absence brings it back."""
    made = a_writer(tmp_path)
    (tmp_path / "off").touch()
    made._look_at_switch()
    assert not made.on
    (tmp_path / "off").unlink()
    made._look_at_switch()
    assert made.on


# ---------------------------------------------------------------------------------------------- logscope reads it


def test_records_are_read_whole(tmp_path: Path):
    """What the writer writes is what the grammar reads: whole, with rank, pass and phase printed, nothing guessed."""
    made = a_writer(tmp_path, row_norms=2)
    made.write(a_job(12, dropped=3, rids=("a-1", "b")))
    header, record = logscope.stream(str(next(tmp_path.iterdir())))
    assert (header.event, header.site, header.intact) == ("probe_header", "probe", "whole")
    assert (record.event, record.intact, record.tp_rank, record.evidence) == ("forward", "whole", 1, "printed")
    assert (record.rows, record.width, record.norm, record.head) == (4, 21504, 5.0, (0.5, -0.25))
    told = {"forward_mode": "TARGET_VERIFY", "batch_size": 1, "graph": True, "rids": ["a-1", "b"], "dropped": 3}
    assert {key: record.fields[key] for key in told} == told
    assert record.fields["row_norms"] == [1.0, 2.0]


def test_the_header_is_what_its_schema_says():
    """The published schema, the table in the code and the grammar's sample agree."""
    schema = json.loads((ROOT / "docs" / "reference" / "schemas" / "probe-header.schema.json").read_text())
    assert list(schema["properties"]) == schema["required"] == list(lines.HEADER)
    text = (ROOT / "grammars" / "eagle3-debug.toml").read_text()
    sample = re.search(r'^text = "(EAGLE3_DEBUG\[probe\] header: .*)"$', text, re.MULTILINE)
    assert sample is not None
    assert re.findall(r"(\w+)=", re.sub(r"\[[^\]]*\]", "", sample[1])) == list(lines.HEADER)
    jsonschema.Draft202012Validator.check_schema(schema)


# ---------------------------------------------------------------------------------------------- logscope probe


def test_the_command_says_how(capsys: pytest.CaptureFixture[str]):
    """Without a host it prints how to start a server with the probe here, and its folder is there."""
    assert cli.main(["probe"]) == 0
    said = capsys.readouterr().out
    folder = re.search(r"PYTHONPATH=(\S+) python -m logscope_probe -o", said)
    assert folder is not None
    assert (Path(folder[1]) / "logscope_probe" / "__main__.py").is_file()
    assert "logscope check" in said


def test_the_wheel_has_what_the_folder_has(tmp_path: Path):
    """The probe's own wheel: its modules, the site folder, the entry point; nothing required."""
    code = f"import hatchling.build as b; print(b.build_wheel({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=PROBE, capture_output=True, text=True, check=True)
    import zipfile

    (wheel,) = tmp_path.glob("logscope_probe-*.whl")
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
        metadata = files.read(next(name for name in names if name.endswith("/METADATA"))).decode()
        points = files.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    there = {str(path.relative_to(PROBE)) for path in (PROBE / "logscope_probe").rglob("*.py")}
    assert there <= names
    assert "Requires-Dist" not in metadata
    assert points.split() == ["[sglang.srt.plugins]", "logscope", "=", "logscope_probe:install"]
    assert wheel.stat().st_size < 64 << 10
