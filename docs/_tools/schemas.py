"""The fixed JSON forms as JSON Schema: one event, one report, the header that the probe writes.

This module is responsible for the files below docs/reference/schemas. They follow from the program's own types, so
that a key cannot be added or lost unseen; what the types cannot say (which numbers become text) is added here.
"""

# ruff: noqa: INP001 - documentation holds no package

from __future__ import annotations

import json
import sys
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any

from logscope.model import Accounting, Finding, Severity, Verdict
from logscope.report import SCHEMA, Report
from logscope.tables.event import Event

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}
# JSON has no name for these numbers; they are written as text.
NUMBER = {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}
KINDS = ["summarize", "captures", "shapes", "norms", "accept", "config", "errors", "check", "contract", "diff"]
# The tables of `summarize` whose names and columns other people's scripts read; further columns may stand beside them.
SUMMARY = {
    "phases": ["role", "phase", "passes", "rows_min", "rows_max", "hidden_captures", "per_pass", "copies"],
    "captures": ["site", "event", "layer", "role", "phase", "count", "copies", "shapes"],
    "accept": ["segment", "origin", "lines", "accept_len_mean", "min", "max", "rate_definition"],
}
SUMMARY_FACTS = ["segments", "tp_size", "num_draft_tokens", "topk", "num_steps", "hidden", "layers", "cuda_graph"]


def event_schema() -> dict[str, Any]:
    """Return the schema of one event record."""
    made = Event.model_json_schema(mode="serialization")
    properties = {name: _untitled(part) for name, part in made["properties"].items()}
    null = {"type": "null"}
    properties["norm"] = {"anyOf": [*NUMBER["anyOf"], null]}
    properties["head"] = {"anyOf": [{"type": "array", "items": NUMBER}, null]}
    properties["fields"] = {"type": "object"}
    return {
        "$schema": DIALECT,
        "title": "logscope event",
        "description": "One object a line of `logscope events -f ndjson`. All keys are always there.",
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _untitled(part: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key != "title"}


def report_schema() -> dict[str, Any]:
    """Return the schema of a report."""
    finding: dict[str, Any] = {field.name: {"type": ["string", "null"]} for field in fields(Finding)}
    finding["rule"] = {"type": "string", "pattern": "^([A-Z][0-9]{3}|accept-min)$"}
    finding["severity"] = {"enum": list(typing.get_args(Severity))}
    finding["message"] = TEXT
    finding["where"] = {
        "anyOf": [
            {
                "type": "object",
                "properties": {"file": TEXT, "line": {"type": "integer", "minimum": 1}},
                "required": ["file", "line"],
                "additionalProperties": False,
            },
            {"type": "null"},
        ]
    }
    accounting = dict.fromkeys(Accounting().as_dict(), COUNT)
    properties = {
        "schema": {"const": SCHEMA},
        "kind": TEXT,
        "verdict": {"enum": list(typing.get_args(Verdict))},
        "headline": TEXT,
        "findings": {"type": "array", "items": _closed(finding)},
        "tables": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "object"}}},
        "facts": {"type": "object"},
        "accounting": _closed(accounting),
    }
    if list(properties) != list(Report("", "").as_dict()):
        raise ValueError("the report has other keys than its schema")
    return {
        "$schema": DIALECT,
        "title": "logscope report",
        "description": "What every command prints with `-f json`.",
        **_closed(properties),
        "if": {"properties": {"kind": {"const": "summarize"}}},
        "then": {
            "properties": {
                "tables": {
                    "properties": {
                        name: {"type": "array", "items": {"type": "object", "required": columns}}
                        for name, columns in SUMMARY.items()
                    },
                    "required": list(SUMMARY),
                },
                "facts": {"required": SUMMARY_FACTS},
            }
        },
    }


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    """Return an object with exactly these keys."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def probe_header_fields() -> dict[str, tuple[str, str]]:
    """Return the keys of the header record of `logscope probe`, each with its type and meaning."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "probe"))
    from logscope_probe.lines import HEADER  # noqa: PLC0415 - the probe is no part of logscope

    return HEADER


def probe_header_schema() -> dict[str, Any]:
    """Return the schema of the header record of `logscope probe`: the fields of a `probe_header` event."""
    names = {"text": "string", "list": "array"}
    return {
        "$schema": DIALECT,
        "title": "logscope probe header",
        "description": "The first record of every file of `logscope probe`: the fields of a probe_header event.",
        **_closed(
            {
                name: {"type": [names.get(word, word) for word in kind.split(" or ")], "description": meaning}
                for name, (kind, meaning) in probe_header_fields().items()
            }
        ),
    }


SCHEMAS = {"event": event_schema, "report": report_schema, "probe-header": probe_header_schema}


def as_text(schema: dict[str, Any]) -> str:
    """Return a schema as its file holds it."""
    return json.dumps(schema, indent=2) + "\n"
