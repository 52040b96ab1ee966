"""How a draft was trained, as far as a log can contradict it: which layers it reads, how wide, how many states.

This module is responsible for reading that from a TOML file, from the draft's Hugging Face ``config.json``, or from
a run that is known to be good, and for saying what config ids mean as printed layers. It must not judge a run: that is
what the rules do with it.

Two numberings exist and are never mixed up here. ``aux_layers`` are numbers as SGLang prints them (the state *before*
that decoder layer; the embedding is 0). ``aux_layer_ids`` are the ids of the draft's config; what they mean as printed
layers depends on SGLang's version and on the target (:mod:`logscope.versions`).
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from logscope.errors import ContractError, Where, did_you_mean
from logscope.model import ForwardPass, states
from logscope.report import Column, Item, Report, Table
from logscope.versions import ERA_WORDS, ID_ITSELF, NEW, OLD, Era, default_layers, shift_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

# What a draft of the EAGLE-3 paper reads when nothing says otherwise: one low, one middle and one high state.
DEFAULT_STATES = 3

_Size = Annotated[int, Field(gt=0, strict=True)]
_Layers = tuple[Annotated[int, Field(strict=True)], ...]


class Reading(NamedTuple):
    """One way to read a contract's layers as printed numbers, and when it holds.

    ``era`` is None where it holds in every version, ``when`` says the same in words, with the kind of target where the
    log does not tell it; ``why`` is the rule it follows.
    """

    layers: tuple[int, ...]
    era: Era | None
    why: str
    when: str = "every version"


class Contract(BaseModel):
    """How the draft was trained. Every field may be None: then no rule leans on it.

    aux_layers
        the layers it reads, as SGLang prints them; 0 is the embedding.
    aux_layer_ids
        the same as ids of the draft's config.
    num_aux_hidden_states
        how many hidden states are joined for it, where that is not the number of layers.
    hidden_size
        width of the draft itself (of its embeddings and of its output state).
    target_hidden_size
        width of one state of the target; the draft's own width when not given.
    target_num_hidden_layers
        decoder layers of the target. Never the draft's own ``num_hidden_layers``.
    vocab_size, draft_vocab_size
        when they differ, a map (d2t) from draft to target tokens is part of the checkpoint.
    dtype
        what it was trained in, as the config says (``bfloat16``).
    architecture
        the draft's class, for show only: servers load it under other names.
    num_steps, topk, num_draft_tokens
        how it is meant to be served.
    source
        where this was read; not part of the comparison.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    aux_layers: _Layers | None = None
    aux_layer_ids: _Layers | None = None
    num_aux_hidden_states: _Size | None = None
    hidden_size: _Size | None = None
    target_hidden_size: _Size | None = None
    target_num_hidden_layers: _Size | None = None
    vocab_size: _Size | None = None
    draft_vocab_size: _Size | None = None
    dtype: str | None = None
    architecture: str | None = None
    num_steps: _Size | None = None
    topk: _Size | None = None
    num_draft_tokens: _Size | None = None
    source: str = Field(default="contract", repr=False)

    @field_validator("aux_layers")
    @classmethod
    def _printed_layers(cls, layers: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if layers is None:
            return None
        if not layers:
            raise ValueError("at least one layer is needed")
        if min(layers) < 0:
            raise ValueError("a printed layer is never negative: 0 is the embedding")
        if len(set(layers)) != len(layers):
            raise ValueError("a layer stands twice: SGLang captures each layer once")
        return tuple(sorted(layers))

    @model_validator(mode="after")
    def _agrees(self) -> Contract:
        ids, layers = self.aux_layer_ids, self.aux_layers
        if layers is not None and ids is not None and layers not in [one.layers for one in _by_ids(ids, None, None)]:
            raise ValueError(f"aux_layers {list(layers)} is no reading of aux_layer_ids {list(ids)}")
        return self

    @property
    def says_nothing(self) -> bool:
        """Whether no field says anything of a draft: the config of another model, say."""
        return not self.model_dump(exclude_none=True, exclude={"source"})

    @property
    def states(self) -> int | None:
        """How many hidden states the draft's fc takes, None when the contract does not say."""
        if self.num_aux_hidden_states is not None:
            return self.num_aux_hidden_states
        named = self.aux_layers if self.aux_layers is not None else self.aux_layer_ids
        return len(named) if named else None

    @property
    def state_width(self) -> int | None:
        """Width of one state of the target."""
        return self.target_hidden_size if self.target_hidden_size is not None else self.hidden_size

    @property
    def names_layers(self) -> bool:
        """True when it says which layers the draft reads."""
        return bool(self.aux_layers or self.aux_layer_ids)

    def readings(self, era: Era | None = None, target_type: str | None = None) -> tuple[Reading, ...]:
        """Return what the contract asks for as printed layers.

        One reading when it is unambiguous; two, id + 1 first, when config ids mean different layers and the log tells
        not enough: the version (``era``), or the target's class; none when the contract names no layers.
        """
        if self.aux_layers is not None:
            return (Reading(self.aux_layers, None, "printed layer numbers"),)
        return _by_ids(self.aux_layer_ids, era, target_type) if self.aux_layer_ids else ()

    def vllm_readings(self) -> tuple[Reading, ...]:
        """Return what the contract asks for as vLLM numbers layers, what its ids say by themselves first.

        vLLM's index i is the input of block i, as printed layers are, and it takes the ids of a draft's config as they
        are. Configs are written under two conventions, told apart by a first id of 1 (outputs of blocks) or 2 (inputs):
        where neither stands first, the ids are taken as vLLM takes them.
        """
        if self.aux_layers is not None:
            return (Reading(self.aux_layers, None, "printed layer numbers"),)
        if not self.aux_layer_ids:
            return ()
        same, above = (tuple(sorted({one + shift for one in self.aux_layer_ids})) for shift in (0, 1))
        inputs = Reading(same, None, "ids as inputs of blocks", "the ids name inputs of blocks")
        outputs = Reading(above, None, "ids as outputs of blocks: + 1", "the ids name outputs of blocks")
        return (outputs, inputs) if same[0] == 1 else (inputs, outputs)

    def to_toml(self) -> str:
        """Return it as a TOML file that :func:`load_contract` reads back to an equal contract."""
        lines = [f"# {' '.join(self.source.split())}"]
        for name in type(self).model_fields:
            value = getattr(self, name)
            if value is None or name == "source":
                continue
            # JSON's lists, numbers and texts are TOML's, but for one control character.
            text = json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
            lines.append(f"{name} = {text}".replace("\x7f", "\\u007F"))
        return "\n".join(lines) + "\n"


def _by_ids(ids: tuple[int, ...], era: Era | None, target_type: str | None) -> tuple[Reading, ...]:
    """Return what config ids can mean: id + 1 is the rule, the id itself the exception of one family since 0.5.13."""
    above, same = (tuple(sorted({one + shift for one in ids})) for shift in (1, 0))
    old, new = ERA_WORDS[OLD], ERA_WORDS[NEW]
    until = Reading(above, OLD, f"{old}: config ids + 1", old)
    if shift_of(ids, NEW, itself=True):
        return (Reading(above, None, "config ids + 1, in every version"),)
    if target_type is not None and target_type not in ID_ITSELF:
        why = f"a target of class {target_type}: config ids + 1, in every version"
        return (Reading(above, None, why, f"every version with {target_type}"),)
    if era == OLD:
        return (until,)
    if target_type is not None:
        taken = Reading(same, NEW, f"{new}, a target of class {target_type}: the config ids themselves", new)
        return (taken,) if era == NEW else (until, taken)
    family = "a DeepSeek target from SGLang 0.5.13 on"
    rule = "no DeepSeek target" if era == NEW else f"{old}, or no DeepSeek target"
    return (
        Reading(above, None if era == NEW else OLD, f"{rule}: config ids + 1", rule),
        Reading(same, NEW, f"{family}: the config ids themselves", family),
    )


def load_contract(source: str | os.PathLike[str] | Mapping[str, Any] | Contract) -> Contract:
    """Return the contract in a TOML file, a draft's ``config.json`` or its folder, or a mapping of TOML's keys.

    Raises
    ------
    ContractError
        with file and line where there is one: a missing or unreadable file, a key that does not exist, a value of
        the wrong kind, a config that is not a draft's.

    """
    if isinstance(source, Contract):
        return source
    if isinstance(source, Mapping):
        return _build({**source}, "contract", None)
    text, name = _text(Path(source))
    return _from_json(text, name) if text.lstrip().startswith("{") else _from_toml(text, Path(name))


def _text(path: Path, **told: Any) -> tuple[str, str]:
    """Return the text and the name of a file, or of the config.json in a folder."""
    path = path / "config.json" if path.is_dir() else path
    try:
        return path.read_bytes().decode("utf-8-sig"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or "it is no text file"
        advice = "give a TOML file, a draft's config.json, or the folder that holds one"
        raise ContractError(f"cannot read the contract {path}", **{"why": why, "help": advice} | told) from None


def _from_toml(text: str, path: Path) -> Contract:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        raise ContractError(
            f"{path} is no contract",
            where=_where(str(path), text, int(place[1]), int(place[2])) if place else Where(str(path)),
            why=re.sub(r" \(at .*\)$", "", str(error)),
            help="a contract is TOML (aux_layers = [3, 31, 59]) or the draft's config.json",
        ) from None
    taken: dict[str, Any] = {}
    for key, read in (("draft_config", _config_values), ("target_config", _target_values)):
        name = values.pop(key, None)
        if name is None:
            continue
        where = _key_place(str(path), text, key)
        if not isinstance(name, str):
            raise ContractError(f"'{key}' must be the path of a config.json", where=where)
        advice = "paths in a contract are taken from the folder the contract stands in"
        config, beside = _text(path.parent / name, where=where, help=advice)
        taken |= read(_json_values(config, beside), config, beside)
    return _build({**taken, **values}, str(path), text)


def _from_json(text: str, name: str) -> Contract:
    return _build(_config_values(_json_values(text, name), text, name), name, text)


def _json_values(text: str, name: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        where = _where(name, text, error.lineno, error.colno)
        raise ContractError(f"{name} is no JSON file", where=where, why=error.msg) from None
    if not isinstance(values, dict):
        raise ContractError(f"{name} holds no config", why="a config.json is one object", where=Where(name, 1))
    return values


def _inner(values: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the first of these objects inside a config; nothing where it is none."""
    inner = next((values[key] for key in names if key in values), None)
    return inner if isinstance(inner, dict) else {}


def _config_values(values: dict[str, Any], text: str, name: str) -> dict[str, Any]:
    """Return the contract's values from a draft's config; unknown keys belong to others and are left alone."""
    inner, eagle = _inner(values, "text_config", "transformer_layer_config"), _inner(values, "eagle_config")
    ids = eagle.get("eagle_aux_hidden_state_layer_ids", values.get("eagle_aux_hidden_state_layer_ids"))
    classes = values.get("architectures")
    architecture = classes[0] if isinstance(classes, list) and classes and isinstance(classes[0], str) else None
    has_draft_keys = bool(eagle) or ids is not None or "draft_vocab_size" in values or "target_hidden_size" in values
    if not has_draft_keys and architecture is not None and "eagle" not in architecture.lower():
        raise ContractError(
            f"{name} is not a draft's config",
            where=_key_place(name, text, "architectures"),
            why=f"its class is {architecture}, and it has neither eagle_config nor draft_vocab_size",
            help="give the config.json of the draft (--speculative-draft-model-path); a TOML contract can name the"
            " target's as target_config",
        )
    both = inner | {key: value for key, value in values.items() if key in ("hidden_size", "vocab_size", "torch_dtype")}
    found = {name: values.get(name) for name in ("num_aux_hidden_states", "target_hidden_size", "draft_vocab_size")}
    found |= {
        "aux_layer_ids": ids or None,
        "hidden_size": both.get("hidden_size"),
        "vocab_size": both.get("vocab_size"),
        "dtype": values.get("dtype", both.get("torch_dtype")),
        "architecture": architecture,
    }
    if eagle.get("use_aux_hidden_state") is False and ids is None:
        found["num_aux_hidden_states"] = 1
    return {key: value for key, value in found.items() if value is not None}


def _target_values(values: dict[str, Any], _text: str, _name: str) -> dict[str, Any]:
    """Return what the target's config says about it."""
    both = _inner(values, "text_config") | values
    found = {
        name: both.get(name.removeprefix("target_")) for name in ("target_num_hidden_layers", "target_hidden_size")
    }
    return {key: value for key, value in found.items() if value is not None}


# Where a config.json writes what the contract calls otherwise, for the place of an error.
_JSON_NAMES = {
    "aux_layer_ids": "eagle_aux_hidden_state_layer_ids", "dtype": "torch_dtype", "architecture": "architectures",
}  # fmt: skip
_KEYS = (*(name for name in Contract.model_fields if name != "source"), "draft_config", "target_config")


def _build(values: dict[str, Any], name: str, text: str | None) -> Contract:
    if unknown := [key for key in values if key not in _KEYS]:
        raise ContractError(
            f"a contract has no '{unknown[0]}'",
            where=_key_place(name, text, unknown[0]),
            why=did_you_mean(unknown[0], _KEYS),
            note=f"it knows {', '.join(_KEYS)}",
        )
    try:
        return Contract(**values, source=name)
    except ValidationError as error:
        first = error.errors()[0]
        key, what = str(first["loc"][0]) if first["loc"] else "", first["msg"].removeprefix("Value error, ")
        raise ContractError(
            f"'{key}' of {name} cannot be used" if key else f"{name} contradicts itself",
            where=_key_place(name, text, key) if key else Where(name),
            why=f"{what[0].lower()}{what[1:]}" + (f"; it is {first['input']!r}" if key else ""),
            help="layers are lists of whole numbers, sizes are whole numbers above 0" if key else None,
        ) from None


def _key_place(name: str, text: str | None, key: str) -> Where:
    """Return where a key stands in a TOML or JSON text."""
    for word in (key, _JSON_NAMES.get(key, key)):
        found = re.search(rf"(?m)^\s*(?:[{{,]\s*)?[\"']?({re.escape(word)})[\"']?\s*[=:]", text or "")
        if found is not None and text is not None:
            line = text.count("\n", 0, found.start(1)) + 1
            column = found.start(1) - (text.rfind("\n", 0, found.start(1)) + 1) + 1
            return _where(name, text, line, column, len(word))
    return Where(name)


def _where(name: str, text: str, line: int, column: int, length: int = 1) -> Where:
    lines = text.splitlines()
    return Where(name, line, column, lines[line - 1] if line <= len(lines) else "", length)


def infer(items: Iterable[Item], source: str = "a run") -> Contract:
    """Return the contract a good run shows: its layers as printed, how many states it joins and how wide they are.

    Graph capture is left out. The most frequent set of layers counts.

    Raises
    ------
    ContractError
        when no target pass joins a hidden state, or when several sets of layers are about equally frequent.

    """
    sets: Counter[tuple[int, ...]] = Counter()
    widths: Counter[tuple[int, int, int]] = Counter()
    drafts: Counter[int] = Counter()
    depth: int | None = None
    for item in items:
        if not isinstance(item, ForwardPass) or item.during == "graph_capture" or not item.complete:
            continue
        embeds = item.input.payload.fields.get("embeds") if item.role == "draft" and item.input is not None else None
        if isinstance(embeds, list) and embeds:
            drafts[embeds[-1]] += 1
        plan = item.first_of("capture_plan")
        layers = plan.payload.fields.get("num_hidden_layers") if plan is not None else None
        depth = layers if isinstance(layers, int) else depth
        join, captures = item.join, item.captures
        if item.role != "target" or join is None or not captures:
            continue
        named = {record.payload.layer for record in captures}
        sets[tuple(sorted(layer for layer in named if layer is not None))] += 1
        one, whole = captures[0].payload.width, join.payload.width
        if one and whole and whole % one == 0:
            widths[one, whole // one, len(named - {None})] += 1
    if not sets or not widths:
        raise ContractError(
            f"{source} shows no joined hidden states",
            why="no forward pass outside graph capture prints captures and the state they are joined to",
            help="run the server with its debug prints and with --disable-cuda-graph, and try that log",
        )
    ((usual, times),) = sets.most_common(1)
    if times * 2 <= sum(sets.values()):
        found = ", ".join(str(list(each)) for each, _ in sets.most_common(3))
        raise ContractError(f"{source} captures changing layers", why=f"no set is in most passes: {found}")
    (((one, count, captured), _),) = widths.most_common(1)
    # An embedding that is printed but not joined is not asked for.
    joined = tuple(layer for layer in usual if layer) if count < captured else usual
    return Contract(
        aux_layers=joined,
        num_aux_hidden_states=count if count != len(joined) else None,
        hidden_size=max(drafts, key=drafts.__getitem__, default=None),
        target_hidden_size=one,
        target_num_hidden_layers=depth,
        source=f"inferred from {source}",
    )


def show(contract: Contract, *, era: Era | None = None, target_type: str | None = None) -> Report:
    """Return the contract as a report: its fields, and every reading of its layers side by side."""
    fields = Table([Column("field", always=True), Column("value", always=True)], title="contract")
    for name, value in contract:
        if value is not None and name != "source":
            fields.rows.append({"field": name, "value": list(value) if isinstance(value, tuple) else value})
    readings = contract.readings(era, target_type)
    layers = Table(
        [Column("layers", always=True), Column("when"), Column("why", always=True)],
        [{"layers": list(reading.layers), "when": reading.when, "why": reading.why} for reading in readings],
        title="layers as SGLang prints them",
        caption="a printed layer is the state before that decoder layer, so the output of the layer below it",
    )
    notes, depth = [], contract.target_num_hidden_layers
    if not readings and not contract.says_nothing:
        example = f": {list(default_layers(depth))} for {depth} layers" if depth else ""
        notes.append(f"it names no layers; SGLang then captures 2, n/2 and n - 3 of a target with n layers{example}")
    if len(readings) > 1:
        said = "the same ids mean other layers to targets of the DeepSeek family from SGLang 0.5.13 on"
        notes.append(f"{said}, and no log line says so: write aux_layers")
    report = Report("contract", _headline(contract, readings), notes=notes)
    report.tables = {"contract": fields, "layers": layers}
    report.facts = {"source": contract.source, "states": contract.states}
    return report


def _headline(contract: Contract, readings: Sequence[Reading]) -> str:
    count, width = contract.states, contract.state_width
    joined = states(width * (count or DEFAULT_STATES), width) if width else f"{count or DEFAULT_STATES} states"
    if contract.says_nothing:
        return f"The contract {contract.source} says nothing about a draft."
    named = " or ".join(str(list(reading.layers)) for reading in readings)
    where = f"layers {named}" if named else "the layers that SGLang captures by default"
    return f"The draft reads {joined}, from {where}."
