"""The typed event that users see: a frozen pydantic model of the fixed event record.

This module is responsible for that one class. It must not be imported by any command that only prints a summary:
pydantic costs more to import than a small log costs to read.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_serializer

from logscope.model import During, Evidence, Intact, Phase, Role  # noqa: TC001 - pydantic reads them at run time
from logscope.report import plain


class Event(BaseModel):
    """One record of a log, with its place and labels. ``model_dump_json()`` gives the fixed event record.

    ``head`` and ``norm`` are floats, nan and inf included; in JSON these are the strings "nan", "inf", "-inf".
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    file: str
    line: Annotated[int, Field(ge=1)]
    offset: Annotated[int, Field(ge=0)]
    segment: int
    during: During
    time: str | None
    origin: str | None
    pid: int | None
    dp_rank: int | None
    pp_rank: int | None
    tp_rank: int | None
    ep_rank: int | None
    site: str | None
    event: str
    role: Role | None
    phase: Phase | None
    evidence: Evidence | None
    pass_: Annotated[int | None, Field(alias="pass", serialization_alias="pass")]
    layer: int | None
    rows: int | None
    width: int | None
    shape: tuple[int, ...] | None
    norm: float | None
    head: tuple[float, ...] | None
    capture_hidden_mode: str | None
    intact: Intact
    fields: dict[str, Any]

    @field_serializer("norm", "head", "fields", when_used="json")
    def _named_numbers(self, value: Any) -> Any:
        return plain(value)
