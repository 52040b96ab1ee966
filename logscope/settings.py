"""Where a user's defaults stand: the XDG config folder and ``[tool.logscope]`` of a pyproject.toml.

This module is responsible for finding the two files, reading them, and refusing what they may not hold, with the place.
It must not know which options there are: the command line says so, since every option is a key.

Order, the first that says something wins: the command line, the environment (LOGSCOPE_...), the nearest
``pyproject.toml`` upwards that has a ``[tool.logscope]`` table, ``$XDG_CONFIG_HOME/logscope/config.toml``.

    color = "never"                 # every command that has the option
    grammar = ["my-model.toml"]     # relative paths count from this file
    [accept]                        # one command; [tool.logscope.accept] in a pyproject.toml
    window = "5m"
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logscope.errors import UsageError, Where, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# A pyproject.toml without this text holds no settings, and is not parsed (5 ms).
_MARK = b"tool.logscope"
PATH_KEYS = frozenset({"grammar", "contract"})


@dataclass(frozen=True, slots=True)
class Settings:
    """What one file says: values for every command, and values for one command by its name."""

    path: Path
    shared: dict[str, Any] = field(default_factory=dict)
    commands: dict[str, dict[str, Any]] = field(default_factory=dict)
    text: str = ""
    table: str = ""

    def where(self, key: str, command: str | None = None) -> Where:
        """Return the place of a key: TOML readers keep none, so it is looked for in the text."""
        wanted = self.table if command is None else ".".join(filter(None, [self.table, command]))
        current = ""
        for number, line in enumerate(self.text.splitlines(), 1):
            header = re.match(r"\s*\[\s*([\w.\"' -]+?)\s*\]", line)
            if header:
                current = header[1].replace('"', "").replace("'", "").replace(" ", "")
                if current == (f"{wanted}.{key}" if wanted else key):
                    return Where(str(self.path), number, line.index(key) + 1, line, len(key))
            found = re.match(rf"\s*[\"']?({re.escape(key)})\b", line)
            if found and current == wanted:
                return Where(str(self.path), number, found.start(1) + 1, line, len(key))
        return Where(str(self.path))


def config_home(environ: Mapping[str, str] | None = None) -> Path:
    """Return logscope's folder below $XDG_CONFIG_HOME, by default ``~/.config``; a relative value is ignored (XDG)."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CONFIG_HOME", "")
    home = Path(base) if base.startswith("/") else Path(environ.get("HOME") or Path.home()) / ".config"
    return home / "logscope"


def files(start: Path, environ: Mapping[str, str] | None = None) -> list[Path]:
    """Return the files that may hold settings, the one that wins first."""
    out = []
    for folder in (start, *start.parents):
        path = folder / "pyproject.toml"
        try:
            if _MARK in path.read_bytes():
                out.append(path)
                break
        except OSError:
            continue
    user = config_home(environ) / "config.toml"
    # A home that may not be entered (sudo -u, a service's account) holds no settings for whoever runs this.
    with contextlib.suppress(PermissionError):
        if user.is_file():
            out.append(user)
    return out


def read(path: Path) -> Settings:
    """Return what a file says. Raises :class:`UsageError` when it cannot be read or is no TOML."""
    import tomllib  # noqa: PLC0415 - only where there is a file

    try:
        text = path.read_text(encoding="utf-8")
        whole = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("the settings cannot be read", where=Where(str(path)), why=str(error)) from error
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+), column (\d+)", str(error))
        line, column = (int(at[1]), int(at[2])) if at else (None, None)
        shown = text.splitlines()[line - 1] if line is not None and line <= len(text.splitlines()) else None
        raise UsageError(
            "the settings are no TOML", where=Where(str(path), line, column, shown), why=str(error)
        ) from error
    table = "tool.logscope" if path.name == "pyproject.toml" else ""
    values = whole.get("tool", {}).get("logscope", {}) if table else whole
    shared = {name: value for name, value in values.items() if not isinstance(value, dict)}
    commands = {name: value for name, value in values.items() if isinstance(value, dict)}
    return Settings(path, shared, commands, text, table)


def check(settings: Settings, options: Mapping[str, Collection[str]]) -> None:
    """Refuse keys that are no option. ``options`` holds the option names of every command.

    Raises :class:`UsageError` with file, line and the nearest name.
    """
    every = {name for names in options.values() for name in names}
    for key in settings.shared:
        if _option(key) not in every:
            known = sorted(every | set(options))
            raise _unknown(settings, key, None, known, f"unknown setting '{key}'")
    for command, values in settings.commands.items():
        if command not in options:
            raise _unknown(settings, command, None, options, f"settings for '{command}', which is no command")
        for key in values:
            if _option(key) not in options[command]:
                known = sorted(options[command])
                raise _unknown(settings, key, command, known, f"unknown setting '{key}' for {command}")


def said(found: list[Settings], environ: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return what is set outside the command line, what wins first: the option (``check.contract``), value, where."""
    out = [
        (name.removeprefix("LOGSCOPE_").lower(), value, name)
        for name, value in sorted(environ.items())
        if name.startswith("LOGSCOPE_")
    ]
    for settings in found:
        for command, values in (*settings.commands.items(), (None, settings.shared)):
            for key, value in values.items():
                place = settings.where(key, command)
                out.append((f"{command}.{key}" if command else key, str(value), f"{place.file}:{place.line}"))
    return out


def _option(key: str) -> str:
    """Return the name an option has in Python."""
    return key.replace("-", "_")


def _unknown(settings: Settings, key: str, command: str | None, known: Collection[str], what: str) -> UsageError:
    """Return the refusal of a key."""
    near = did_you_mean(key, known)
    return UsageError(what, where=settings.where(key, command), help=near or f"there are: {', '.join(known)}")


def defaults(found: list[Settings], command: str, options: Mapping[str, bool]) -> dict[str, Any]:
    """Return what files say for the options of one command; the first file wins, its command's table first."""
    out: dict[str, Any] = {}
    for settings in found:
        # A command's own table wins over what is said for all.
        for values in (settings.commands.get(command, {}), settings.shared):
            for key, value in values.items():
                name = _option(key)
                if name in options and name not in out:
                    found_value = _absolute(settings, name, value)
                    out[name] = [found_value] if options[name] and not isinstance(value, list) else found_value
    return out


def _absolute(settings: Settings, name: str, value: Any) -> Any:
    """Return a value whose relative paths count from the folder of its file; names of shipped grammars stay."""
    if name not in PATH_KEYS:
        return value
    if isinstance(value, list):
        return [_absolute(settings, name, item) for item in value]
    path = settings.path.parent / str(value)
    return str(path) if path.exists() or "/" in str(value) else value
