"""Other settings than the shared logs have stay silent, and faults of other kinds are named.

The logs come from a simulated server whose tensors are real: healthy ones hold every identity by construction, and a
fault changes a tensor, not a text.
"""

from __future__ import annotations

import io

import pytest
from simulated import HIDDEN, Server, Tensor, join

from logscope.check import check
from logscope.run import load

CONTRACT = {"aux_layers": [3, 31, 59], "target_hidden_size": HIDDEN, "hidden_size": HIDDEN}


def checked(server, contract=None):
    return check(load(io.BytesIO("\n".join(server.lines).encode())), contract)


def fired(report):
    return {finding.rule for finding in report.findings if finding.severity != "note"}


def the(report, rule):
    (finding,) = [finding for finding in report.findings if finding.rule == rule]
    return finding


@pytest.mark.parametrize("args", [True, False], ids=["server_args", "no server_args"])
@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(("steps", "tokens", "topk"), [(1, 2, 1), (2, 3, 1), (5, 6, 1), (7, 8, 1), (3, 16, 4)])
def test_other_settings_are_silent(steps, tokens, topk, version, args):
    """Steps 1 to 7, up to 16 draft tokens, trees, both spec versions, batches, with and without server_args."""
    for seed in range(2):
        server = Server(seed, steps=steps, tokens=tokens, topk=topk, version=version, args=args).serve()
        for contract in (None, CONTRACT):
            report = checked(server, contract)
            assert fired(report) == set(), report.headline
            assert report.verdict == "ok"


def test_four_layers_are_healthy_for_a_draft_that_reads_four():
    """The number of states is the contract's, three by default only: without a contract it is no more than a note."""
    server = Server(1, layers=(3, 20, 31, 59)).serve()
    assert fired(checked(server, {"aux_layers": [3, 20, 31, 59], "target_hidden_size": HIDDEN})) == set()
    bare = checked(server)
    assert fired(bare) == set()
    assert the(bare, "S101").severity == "note"
    assert fired(checked(server, CONTRACT)) == {"S101", "H103"}


def served(spoil, good=2, bad=6, seed=3):
    """Return a server that is healthy for some rounds and then spoilt; and the line where the first bad round begins."""
    server = Server(seed)
    server.extend(5)
    for _ in range(good):
        server.round()
    first = len(server.lines) + 1
    for number in range(bad):
        spoil(server, number)
    server.decode(1.4)
    return server, first


def onset(server, first, rule):
    """Check; return the finding of a rule, which must be the headline's and must not stand before the fault."""
    report = checked(server, CONTRACT)
    finding = the(report, rule)
    assert report.findings[0] is finding, report.headline
    assert first <= finding.where.line <= first + 16
    return finding


def test_an_extra_state_in_the_middle():
    """A fourth layer is captured and joined from some round on: named, by the contract and by the run itself."""

    def spoil(server, _):
        server.round(states=server.states(4, 4), layers=(3, 31, 45, 59))

    server, first = served(spoil, good=8)
    onset(server, first, "H103")
    finding = the(checked(server, CONTRACT), "S101")
    assert "layer 45 is extra" in finding.message
    assert "6 of 15 passes" in finding.evidence
    assert "S101" in fired(checked(server)), "without a contract the other passes of the run tell what is due"


def test_a_state_nobody_captured_is_joined():
    """The join has a state more than there are capture lines."""

    def spoil(server, _):
        states = server.states(4)
        server.round(states=states, joined=join([states[0], *server.states(4, 1), *states[1:]]))

    assert "no capture line shows" in onset(*served(spoil), "S101").message


def test_a_state_joined_twice():
    """The join has one captured state twice: which one is told by the norms."""

    def spoil(server, _):
        states = server.states(4)
        server.round(states=states, joined=join([states[0], states[1], states[1], states[2]]))

    assert "layer 31 stands twice" in onset(*served(spoil), "S101").message


def test_wrong_order():
    """The first two states are exchanged in the join: N105 names the layer it begins with."""

    def spoil(server, _):
        states = server.states(4)
        server.round(states=states, joined=join([states[1], states[0], states[2]]))

    assert "begins with layer 31, not with layer 3" in onset(*served(spoil), "N105").message


def test_one_state_in_the_place_of_another():
    """Layer 31 is joined in the place of layer 59: the sum does not hold."""

    def spoil(server, _):
        states = server.states(4)
        server.round(states=states, joined=join([states[0], states[1], states[1]]))

    onset(*served(spoil), "N104")


def test_scaled_states():
    """Everything is halved between capture and join: the factor is named."""

    def spoil(server, _):
        states = server.states(4)
        server.round(states=states, joined=join([state * 0.5 for state in states]))

    assert "0.5 times" in onset(*served(spoil), "N104").message


def test_overflow():
    """An inf in one value of one row: the layer and that it is an overflow."""

    def spoil(server, _):
        states = server.states(4)
        states[2].rows[1][3] = float("inf")
        server.round(states=states)

    finding = onset(*served(spoil), "N101")
    assert "layer 59" in finding.message
    assert "overflow" in finding.help


def test_last_in_extend():
    """The target's extend keeps the last row only: H102 says extend."""
    server = Server(4)
    server.extend(5, mode="LAST")
    for _ in range(4):
        server.round()
    server.decode(1.4)
    finding = the(checked(server, CONTRACT), "H102")
    assert "extend" in finding.message
    assert "1 row of 5 kept" in finding.message


def test_stale_rows():
    """Some rows the draft reads are of the pass before: the first values agree, the norm does not."""
    last = {}

    def spoil(server, _):
        def read(joined):
            old, last["joined"] = last.get("joined"), joined
            return joined if old is None else Tensor(joined.rows[:2] + old.rows[2:])

        server.round(read=read)

    server, first = served(spoil)
    finding = the(checked(server, CONTRACT), "N106")
    assert finding.where.line > first


@pytest.mark.parametrize("turn", ["rows", "columns", "all rows"])
def test_wrong_rows_or_columns_reach_the_draft(turn):
    """What the draft reads is turned: rows rolled, columns rotated, rows reversed."""
    ways = {
        "rows": lambda rows: rows[1:] + rows[:1],
        "columns": lambda rows: [row[HIDDEN:] + row[:HIDDEN] for row in rows],
        "all rows": lambda rows: rows[::-1],
    }

    def spoil(server, _):
        server.round(read=lambda joined: Tensor(ways[turn](joined.rows)))

    onset(*served(spoil), "N106")


def test_frozen_input():
    """The draft reads the same state for ever: N106 from the second time on."""
    kept = []

    def spoil(server, _):
        server.round(read=lambda joined: kept[0] if kept else kept.append(joined) or joined)

    server, first = served(spoil)
    assert the(checked(server, CONTRACT), "N106").where.line > first


def test_frozen_captures():
    """The captures, and with them the join, never change: every identity holds, and N107 tells."""
    kept = []

    def spoil(server, _):
        kept[:] = kept or server.states(4)
        server.round(states=kept)

    report = checked(served(spoil)[0], CONTRACT)
    assert report.findings[0].rule == "N107"
    assert "No captured state changes" in report.findings[0].message


def test_a_layer_that_goes_missing():
    """From some round on one layer is neither captured nor joined."""

    def spoil(server, _):
        server.round(states=server.states(4, 2), layers=(3, 31))

    report = checked(served(spoil, good=8)[0], CONTRACT)
    assert {"S101", "H103"} <= fired(report)
    assert "layer 59 missing" in report.headline
    assert "S101" in report.headline


def test_what_no_log_alone_can_show():
    """The last two states exchanged in the join: sum and first values hold, so nothing is claimed."""

    def spoil(server, _):
        states = server.states(4)
        server.round(states=states, joined=join([states[0], states[2], states[1]]))

    report = checked(served(spoil)[0], CONTRACT)
    assert fired(report) == set()
    (reason,) = [row["because"] for row in report.tables["not_checked"].rows if row["rule"] == "N201"]
    assert "cannot be decided without a baseline" in reason
