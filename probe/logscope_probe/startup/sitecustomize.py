"""Loads the probe in every Python process that has this folder on its path, then the sitecustomize behind it.

This module is responsible for that alone; it knows the package by its place, so that nothing but this folder has to be
on the path.
"""

import importlib.machinery
import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))


def _load_probe() -> None:
    if "logscope_probe" not in sys.modules:
        package = os.path.dirname(_here)
        spec = importlib.util.spec_from_file_location(
            "logscope_probe", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
        )
        assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - the file is there
        module = sys.modules["logscope_probe"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    sys.modules["logscope_probe"].install()


def _run_next() -> None:
    rest = [folder for folder in sys.path if os.path.abspath(folder or ".") != _here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("LOGSCOPE_PROBE"):
    try:
        _load_probe()
    except Exception as error:  # noqa: BLE001 - a probe must never take a server down
        os.write(2, f"logscope probe: not loaded: {type(error).__name__}: {error}\n".encode())
_run_next()
