"""What typer needs to be quick and plain: commands built when they are asked for, options in groups, help without rich.

This module is responsible for the shape of the command tree. It must not know any command or option.

*Lazy.* Building the parameters of every command takes half the time of ``--help``; here a command is built when it is
run, completed or its own help is shown.

*Option groups.* A command takes a few dataclasses instead of twenty parameters: a parameter whose type is a dataclass
is spread over the command line, one option for each field, and put together again for the call. So every shared
option is written once, and each command gets it typed.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from typer.core import TyperArgument, TyperOption

Function = Callable[..., int]
WIDTH = 100
LAST_PANEL = "General"
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": WIDTH}


def _version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        # Not imported: what is installed is asked for.
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - not needed otherwise
        from platform import python_version  # noqa: PLC0415

        from logscope import __version__  # noqa: PLC0415
        from logscope.grammar import available  # noqa: PLC0415

        try:
            polars = version("polars")
        except PackageNotFoundError:
            polars = "is missing"
        typer.echo(f"logscope {__version__}; Python {python_version()}, polars {polars}")
        typer.echo(f"grammars: {', '.join(path.stem for path in available())}")
        raise typer.Exit


Version: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--version",
        help="Show the version.",
        callback=_version,
        is_eager=True,
        rich_help_panel=LAST_PANEL,
        show_default=False,
    ),
]


def _settings(wanted: bool) -> None:
    """Print who sets which option, and leave."""
    if wanted:
        import os  # noqa: PLC0415 - not needed otherwise
        from pathlib import Path  # noqa: PLC0415

        from logscope import settings  # noqa: PLC0415

        said = settings.said([settings.read(path) for path in settings.files(Path.cwd())], os.environ)
        widths = [max((len(row[at]) for row in said), default=0) for at in (0, 1)]
        for name, value, who in said:
            typer.echo(f"{name:{widths[0]}}  {value:{widths[1]}}  {who}")
        if not said:
            typer.echo("No option is set by the environment, a pyproject.toml or a config.toml.")
        raise typer.Exit


Shown: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--settings",
        help="Show which options the environment and files set, and where; what wins comes first.",
        callback=_settings,
        is_eager=True,
        show_default=False,
    ),
]


class PlainCommand(TyperCommand):
    """A command whose help shows options under the headings they are grouped by, without importing rich."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one section for each group, in the order the options stand in."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                panels.setdefault(_panel(parameter), []).append(record)
        # What every command has stands last, wherever its own options were declared.
        for title, records in sorted(panels.items(), key=lambda panel: panel[0] == LAST_PANEL):
            with formatter.section(title):
                formatter.write_dl(records)


def _panel(parameter: TyperArgument | TyperOption | Any) -> str:
    """Return the heading a parameter stands under."""
    return getattr(parameter, "rich_help_panel", None) or LAST_PANEL


class Registry(MutableMapping[str, Any]):
    """Commands by name, in the order they were entered, each built when it is first asked for."""

    def __init__(self) -> None:
        self._makers: dict[str, tuple[str, Callable[[], Any]]] = {}
        self._built: dict[str, Any] = {}

    def enter(self, name: str, described: Callable[..., Any], make: Callable[[], Any]) -> None:
        """Enter a command: its name, the function whose docstring begins with its sentence, and what builds it."""
        summary = (described.__doc__ or "").strip().splitlines()[0]
        self._makers[name] = (summary, make)

    def summaries(self) -> list[tuple[str, str]]:
        """Return every name with its sentence; builds nothing."""
        return [(name, summary) for name, (summary, _) in self._makers.items()]

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = self._makers[name][1]()
        return self._built[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._built[name] = value
        self._makers.setdefault(name, (str(value.help), lambda: value))

    def __delitem__(self, name: str) -> None:
        del self._makers[name]
        self._built.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def group(name: str, registry: Registry, callback: Callable[..., None], epilog: str | None = None) -> typer.Typer:
    """Return an application whose commands are those of the registry."""

    class Group(TyperGroup):
        """A group of lazily built commands; its help lists their sentences."""

        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.commands = registry

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            """Write names and sentences, without building a command."""
            del ctx
            with formatter.section("Commands"):
                formatter.write_dl(registry.summaries())

    app = typer.Typer(
        name=name,
        cls=Group,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=CONTEXT,
        epilog=epilog,
        add_completion=name == "logscope",
    )
    app.callback(help=inspect.getdoc(callback))(callback)
    return app


def build(name: str, function: Function, example: str, refused: Sequence[str] = ()) -> Any:
    """Return the command of one function; its help ends in an example and does not offer what it refuses."""
    app = typer.Typer(
        name=name, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=CONTEXT
    )
    epilog = (
        f"\b\nFor example:\n  logscope {example}\nAs an environment variable, --some-option is LOGSCOPE_SOME_OPTION."
    )
    app.command(name, cls=PlainCommand, help=inspect.getdoc(function), epilog=epilog)(spread(function))
    command: Any = typer.main.get_command(app)
    command.name = name
    for parameter in command.params:
        if parameter.name in refused:
            parameter.hidden = True
    return command


def spread(function: Function) -> Function:
    """Return a function whose dataclass parameters are spread over single ones, for typer to read."""
    # Option types are imported only when a command is built, so its module does not hold them.
    known = {**vars(import_module("logscope.cli.options")), **function.__globals__}
    hints = typing.get_type_hints(function, known, include_extras=True)
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            groups[parameter.name] = hint
            parameters += _fields(hint)
        else:
            parameters.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))

    def call(**values: Any) -> int:
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in dataclasses.fields(kind)})
        return function(**values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__name__ = function.__name__
    call.__doc__ = function.__doc__
    return call


def _fields(group: type) -> Iterator[inspect.Parameter]:
    """Yield the fields of an option group as parameters."""
    hints = typing.get_type_hints(group, include_extras=True)
    for field in dataclasses.fields(group):
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
