"""Packaging: a wheel, an editable install and a plain checkout all find their grammars and carry what they need."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = list((ROOT / "grammars").glob("*.toml"))
PROBE = (
    "import logscope, logscope.grammar as g\n"
    "print(logscope.__file__)\n"
    "print(*[g.find_shipped(name) for name in g.SHIPPED], sep='\\n')\n"
    "print(len(g.load().events))\n"
)


def run(code: str, cwd: Path, path: Path | None = None) -> list[str]:
    """Run code in a fresh interpreter away from the checkout; the package comes from ``path`` alone."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env["XDG_CONFIG_HOME"] = str(cwd)
    if path is not None:
        env["PYTHONPATH"] = str(path)
    result = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, text=True, check=True)
    return result.stdout.splitlines()


def build(kind: str, into: Path) -> Path:
    """Build a wheel with the backend pyproject.toml names; nothing is fetched."""
    code = f"import hatchling.build as b; print(b.{kind}({str(into)!r}))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return into / result.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a freshly built wheel."""
    return build("build_wheel", tmp_path_factory.mktemp("wheel"))


def test_wheel_finds_its_grammars(wheel: Path, tmp_path: Path) -> None:
    """From a wheel the package and its grammars stand side by side, inside the package."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    where, *grammars, events = run(PROBE, tmp_path, site)
    assert Path(where).is_relative_to(site)
    assert [Path(path).parent for path in grammars] == [site / "logscope" / "grammars"] * len(SHIPPED)
    assert int(events) > 40


def test_wheel_carries_what_it_needs(wheel: Path) -> None:
    """The wheel holds the type marker, every module, the grammars and the rules' pages, and no tests."""
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "logscope/py.typed" in names
    for module in (ROOT / "logscope").rglob("*.py"):
        assert str(module.relative_to(ROOT)) in names
    assert {f"logscope/grammars/{path.name}" for path in (ROOT / "grammars").glob("*.toml")} <= names
    assert not [name for name in names if name.startswith(("tests/", "docs/", "benchmarks/"))]
    [metadata] = [name for name in names if name.endswith("METADATA")]
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    assert "\nName: logscope-eagle3\n" in text
    assert "\nRequires-Python: >=3.11\n" in text


def test_editable_install_finds_its_grammars(tmp_path: Path) -> None:
    """From an editable install the grammars are those of the checkout, whatever else this interpreter has installed."""
    site = tmp_path / "site"
    zipfile.ZipFile(build("build_editable", tmp_path)).extractall(site)
    code = f"import site, sys\nbefore = len(sys.path)\nsite.addsitedir({str(site)!r})\n"
    code += "sys.path[:] = sys.path[before:] + sys.path[:before]\n" + PROBE
    where, *grammars, _ = run(code, tmp_path)
    assert Path(where).is_relative_to(ROOT)
    assert [Path(path).parent for path in grammars] == [ROOT / "grammars"] * len(SHIPPED)


def test_plain_checkout_finds_its_grammars(tmp_path: Path) -> None:
    """From a checkout that was not installed at all the grammars are found too."""
    where, *grammars, _ = run(PROBE, tmp_path, ROOT)
    assert Path(where).is_relative_to(ROOT)
    assert [Path(path).parent for path in grammars] == [ROOT / "grammars"] * len(SHIPPED)


def test_command_runs_as_a_module(wheel: Path, tmp_path: Path) -> None:
    """``python -m logscope`` from a wheel prints its version."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    env = {**os.environ, "PYTHONPATH": str(site)}
    result = subprocess.run(
        [sys.executable, "-m", "logscope", "--version"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "0.1.0" in result.stdout
