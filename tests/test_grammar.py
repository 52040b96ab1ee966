"""Grammars: data that proves itself, errors that say where, user grammars under the same checks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from conftest import DATA
from doors import Parser

import logscope
from logscope import grammar as grammars
from logscope.cli.explain import suggestion
from logscope.errors import GrammarError, InputError
from logscope.sources.blocks import Block

BAD = DATA / "bad-grammars"

OWN = r"""
schema = 1
name = "own"

[[event]]
name = "probe"
anchors = ["MYTAG["]
reader = "tagged"
pattern = 'MYTAG\[(?P<site>\w+)\]'
keys = { n = "norm", vals = "head" }

[[sample]]
text = "MYTAG[moe] gate 7 out: shape=[2, 8], n=1.50, vals=[0.5]"
event = "gate_out"
expect = { site = "moe", layer = 7, rows = 2, norm = 1.5, head = [0.5] }
"""


@pytest.mark.parametrize("name", grammars.SHIPPED)
def test_shipped_grammars_prove_themselves(name: str) -> None:
    """Every shipped grammar loads, which means that each of its samples is read as it says and shows an event."""
    file = grammars.load_file(grammars.find_shipped(name))
    assert file.name == name
    assert len(file.samples) >= len({dialect.event for dialect in file.dialects})


@pytest.mark.parametrize(
    ("name", "line", "column", "words"),
    [
        ("invalid-toml", 2, 12, ["not valid TOML"]),
        ("unknown-key", 8, 1, ["no key 'patern'", "did you mean 'pattern'?"]),
        ("invalid-regex", 8, None, ["not a valid pattern"]),
        ("no-samples", 1, 1, ["no [[sample]]", "cannot prove itself"]),
        ("wrong-value", 11, 9, ["norm is 1.5, not 2.5"]),
        ("sample-not-read", 11, 17, ["not read as 'b'", "matches up to here", "'a] b: norm=1.5'"]),
        ("event-without-sample", 10, 1, ["no sample shows this form of 'y'"]),
        ("wrong-schema", 1, 1, ["schema 7"]),
        ("short-anchor", 6, 1, ["cannot be an anchor"]),
    ],
)
def test_bad_grammars_say_where_and_why(name: str, line: int, column: int | None, words: list[str]) -> None:
    """A grammar that does not load names file, line and column, and what is wrong, in five slots."""
    path = BAD / f"{name}.toml"
    with pytest.raises(GrammarError) as caught:
        grammars.load_file(path)
    message = caught.value.message
    assert message.where is not None
    assert (message.where.file, message.where.line) == (str(path), line)
    if column is not None:
        assert message.where.column == column
    for word in words:
        assert word in str(caught.value)


def test_every_bad_grammar_is_tested() -> None:
    """Each file in the folder of bad grammars fails to load, but for the slow one, which loads."""
    for path in sorted(BAD.glob("*.toml")):
        if path.stem == "catastrophic":
            grammars.load_file(path)
        else:
            with pytest.raises(GrammarError):
                grammars.load_file(path)


def test_missing_grammar_is_an_input_error(tmp_path: Path) -> None:
    """A grammar file that is not there is the user's input error."""
    with pytest.raises(InputError, match="cannot read the grammar"):
        grammars.load([tmp_path / "none.toml"])


def read(line: bytes, grammar: grammars.Grammar):
    """Parse one line."""
    parser = Parser(grammar, "x")
    return parser.feed(Block("x", 0, 1, line, final=True))


def test_user_grammar_adds_records(tmp_path: Path) -> None:
    """A grammar given by name adds its events, and shipped ones go on working."""
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    grammar = grammars.load([path])
    found = read(
        b"MYTAG[moe] gate 3 out: shape=[4, 8], n=2.50, vals=[0.25]\nThe server is fired up and ready to roll!\n",
        grammar,
    )
    assert [(o[3].event, o[3].layer, o[3].norm) for o in found] == [("gate_out", 3, 2.5), ("ready", None, None)]


def test_user_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grammars in the XDG config folder are loaded with the same checks."""
    folder = tmp_path / "logscope" / "grammars"
    folder.mkdir(parents=True)
    (folder / "own.toml").write_text(OWN)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert "probe" in grammars.load().events
    (folder / "broken.toml").write_text("schema = 1\n")
    with pytest.raises(GrammarError, match="no name"):
        grammars.load()


def test_slow_pattern_is_stopped() -> None:
    """A pattern with catastrophic backtracking ends in an unparsed record with the reason, in bounded time."""
    grammar = grammars.load([BAD / "catastrophic.toml"])
    begin = time.monotonic()
    [(_, _, _, payload)] = read(b"SLOW:" + b"1," * 60 + b"!\n", grammar)
    assert time.monotonic() - begin < 10
    assert payload.kind == "unparsed"
    assert "took longer than" in (payload.reason or "")


def test_longer_anchor_falls_back_to_the_shorter() -> None:
    """Where one anchor begins like another, records of both are read."""
    grammar = grammars.load()
    found = read(b"EAGLE3_DEBUG: level=2 max_iters=100\nEAGLE3_DEBUG[x] a: b=1\n[EAGLE3_DEBUG y] c=2\n", grammar)
    assert [o[3].event for o in found] == ["debug", "a", "y"]
    assert [o[1] for o in found] == [0, 36, 59]


def test_anchor_search_finds_every_anchor() -> None:
    """Searching finds each anchor of every grammar, wherever it stands."""
    grammar = grammars.load()
    for anchor in grammar.anchors:
        text = f"[00:00:00 TP0] some text {anchor} and more"
        assert grammar.find(text) == (25, anchor)
        assert grammar.undigited_finder.search(text.encode().translate(None, b"0123456789")) is not None


def test_values_go_on_with_their_own_list(tmp_path: Path) -> None:
    """Values without a key belong to the list before them; what stands last decides whether a line is cut."""
    path = tmp_path / "lists.toml"
    text = OWN.replace(
        'reader = "tagged"', 'reader = "pairs"\nlists = ["a", "b"]\nusual = ["a", "d"]\ndecimals = { c = 2 }'
    )
    text = text.replace(r"""'MYTAG\[(?P<site>\w+)\]'""", r"""'MYTAG\[moe\]'""").replace(
        'keys = { n = "norm", vals = "head" }', ""
    )
    text = text[: text.index("text =")] + 'text = "MYTAG[moe] a: 1, 2, b: 3, c: 0.5, d: 4"\nevent = "probe"\n'
    path.write_text(text + "expect = { a = [1, 2], b = [3], c = 0.5, d = 4 }\n", encoding="utf-8")
    grammar = grammars.load([path])
    [(_, _, _, payload)] = read(b"MYTAG[moe] a: 1, 2, b: 3, 4, 5, c: 0.25, d: 6", grammar)
    assert payload.fields == {"a": [1, 2], "b": [3, 4, 5], "c": 0.25, "d": 6}
    [(_, _, _, payload)] = read(b"MYTAG[moe] a: 1, 2, b: 3, 4, c: 0.2", grammar)
    assert (payload.intact, payload.fields) == ("cut", {"a": [1, 2], "b": [3, 4], "c": None})
    [(_, _, _, payload)] = read(b"MYTAG[moe] a: 1, 2, b: 3, 4, c: 0.25", grammar)
    assert (payload.intact, payload.fields["c"]) == ("partial", 0.25)


def test_a_proposal_with_its_events_named_reads_prints_of_ones_own(tmp_path):
    """Events named, with their role, and keys translated: what is read then is what the grammar written by hand reads."""
    log = DATA.parents[1] / "samples" / "own-prints" / "server.log"
    text = suggestion([str(log)])
    for made, meant in (("draft_input", "forward"), ("logits_joined", "aux_concat"), ("draft_fc", "fc_output")):
        assert f'name = "spec_{made}"' in text
        role = "" if meant == "aux_concat" else '\nrole = "draft"'
        text = text.replace(f'name = "spec_{made}"', f'name = "{meant}"{role}').replace(f"spec_{made}", meant)
    text = text.replace('l2 = "norm" }', 'l2 = "norm", parts = "num_aux", tokens = "embeds" }')
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    mine, theirs = (
        logscope.load(log, grammars=[path]).events.select(
            "line", "event", "layer", "rows", "width", "norm", "head", "pass"
        )
        for path in (tmp_path / "mine.toml", log.parent / "my-prints.toml")
    )
    assert mine.rows() == theirs.rows()
    assert mine["event"].to_list().count("layer_capture") == 105
