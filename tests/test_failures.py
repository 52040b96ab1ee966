"""``errors``: the first error before the relayed ones, and what its sizes mean."""

from __future__ import annotations

import json
from functools import cache

import pytest
from conftest import CASES, REAL_RUNS, real_log, sidecar
from from_items import from_items

from logscope.model import Payload, Prefix, Segment, ServerEvent
from logscope.queries.errors import Errors, silences
from logscope.queries.sizes import explain_sizes
from logscope.report import Context
from logscope.run import load


def case(number):
    """Return the log of a case by its number."""
    (found,) = CASES.glob(f"{number}-*.log")
    return found


@cache
def errors(number):
    """Ask a case."""
    return load(str(case(number))).ask(Errors())


def rows(report, name):
    return report.tables[name].rows


def event(line, name, *, time="2026-01-01T00:00:00", origin=None, tp=None, file="x.log", **fields):
    """Make a server event as the parser hands it on."""
    payload = Payload("event", name, fields=fields)
    return ServerEvent((line, line, Prefix(time=time, origin=origin, tp_rank=tp), payload), 1, "serving", file)


def traceback(line, message, *, exception="RuntimeError", **fields):
    """Make a traceback with its final exception."""
    return event(line, "traceback", exception=exception, message=message, **fields)


def ask_about(*items, step=None):
    """Ask about these events, in batches of ``step``."""
    step = step or len(items)
    files = dict.fromkeys(item.file for item in items)
    parts = [
        Errors().partial(from_items([*(Segment(1, file, 1) for file in files), *items[at : at + step]]))
        for at in range(0, len(items), step)
    ]
    return Errors().report(Errors().combine(parts), Context(list(files)))


# ---------------------------------------------------------------------------------------------------------- the cases


def test_two_of_three_states():
    """Case 06: one root error on two ranks, opened on TP0; 3 x 2880 against 2 x 2880, and no word of sharding."""
    report, want = errors("06"), sidecar(case("06"))
    (root,) = rows(report, "errors")
    assert len(rows(report, "errors")) == want["distinct_root_errors"]
    (fact,) = report.facts["errors"]
    assert list(fact["processes"]) == want["processes_with_error"]
    assert root["process"] == "TP0"
    assert root["opened"] == 9
    (sizes,) = rows(report, "sizes")
    assert (sizes["want"], sizes["got"]) == tuple(f"{text} = {size}" for size, text in want["sizes"].items())
    assert [row["error"] for row in rows(report, "relayed")] == ["sigquit: a child process failed"]
    text = json.dumps(report.as_dict()).lower()
    assert f"layer {want['unreachable_layer']}" in text
    assert "never reached" in text
    assert "2 states where 3 were due: 1 missing" in text
    assert "shard" not in text
    assert "which frame belongs to which process cannot be told" in text


def test_thirty_seven_states():
    """Case 07: 112 are rows; 37 states against 3; the vocabulary is the second reading."""
    report, want = errors("07"), sidecar(case("07"))
    (sizes,) = rows(report, "sizes")
    assert sizes["rows"] == want["rows"]
    assert sizes["got_states"] == want["got_states"]
    assert sizes["want_states"] == want["want_states"]
    assert sizes["unit"] == want["hidden_size"]
    text = sizes["means"]
    assert text.index("37 x 4096 = 151552") < text.index("vocabulary size")
    assert "112 counts rows, not a width" in text
    assert "36 layers, the embedding included" in text
    assert str(want["got_width"]) in report.headline


def test_four_states_or_four_rows():
    """Case 08: only the first of three lives fails; the extra width is a state, the rows of the others no error."""
    report, want = errors("08"), sidecar(case("08"))
    (root,) = rows(report, "errors")
    assert (root["segment"], root["line"]) == (1, 13)
    (sizes,) = rows(report, "sizes")
    assert (sizes["got"], sizes["want"]) == (want["run1_fc"]["got"], want["run1_fc"]["want"])
    assert "hidden capture" in sizes["unit_from"]
    before = " ".join(row["event"] for row in rows(report, "before"))
    assert "4 hidden captures" in before
    assert "21 rows x 4 states x 7168" in before


def test_warnings_are_no_errors():
    """Case 11: NaN warnings of eight ranks are counted beside the answer, not called an exception."""
    report, want = errors("11"), sidecar(case("11"))
    assert report.verdict == "ok"
    assert "no exception" in report.headline
    assert any(note.startswith(f"{want['events']['nan_logits_warning']} warnings of NaN") for note in report.notes)


def test_prefixed_traceback_and_noise():
    """Case 17: the traceback of process 128140 and its sizes, 21 against 6 rows; the abort of rank 1; other NCCL lines are none."""
    report = errors("17")
    first, abort, last = rows(report, "errors")
    assert first["process"] == "TP1 EP1 pid=128140"
    assert (abort["line"], abort["process"]) == (19, "rank1")
    (sizes,) = rows(report, "sizes")
    assert (sizes["want"], sizes["got"], sizes["unit"]) == ("21", "6", None)
    assert "rows" in sizes["means"]
    assert (last["process"], last["error"]) == ("rank0", "a traceback without its exception line")


def test_first_error_among_five():
    """Case 24: the cause, who shares it, who only follows; the quoted message is no third mismatch."""
    report, want = errors("24"), sidecar(case("24"))
    (root,) = rows(report, "errors")
    assert (root["process"], root["line"]) == (want["root"]["process"], want["root"]["line"])
    assert want["root"]["text"] in root["error"]
    (fact,) = report.facts["errors"]
    assert fact["count"] == want["events"]["matmul_mismatch_own"]
    assert list(fact["processes"])[1:] == want["same_error_on"]
    relayed = {row["process"]: row["why"] for row in rows(report, "relayed") if "answered" not in row["error"]}
    assert list(relayed) == want["consequences"]
    assert relayed["EngineCore_DP0 pid=400"] == "quotes another error"
    (sizes,) = rows(report, "sizes")
    assert sizes["rows"] == want["rows"]
    assert (sizes["got_states"], sizes["want_states"]) == (want["got_width"] // want["want_width"], 1)
    assert "4 states where one was due, or a whole tensor where a quarter" in sizes["means"]
    assert "EngineDeadError" not in report.headline


@pytest.mark.parametrize("name", REAL_RUNS)
def test_real_servers(name):
    """Only the server that died of its embedding has an error; a shutdown is none."""
    report = load(str(real_log(name))).ask(Errors())
    if name != "fault-embed-captured":
        assert report.verdict == "ok"
        assert "errors" not in report.tables
        return
    assert [finding.rule for finding in report.findings] == ["E101", "E102"]
    (sizes,) = rows(report, "sizes")
    assert (sizes["got"], sizes["want"], sizes["rows"]) == ("4 x 7168 = 28672", "3 x 7168 = 21504", 3)
    assert rows(report, "relayed")[0]["error"].startswith("sigquit")
    json.dumps(report.as_dict())


# ---------------------------------------------------------------------------------------------------------- the sizes


def matmul(rows_, got, want, out, **more):
    fields = {"rows": rows_, "got_width": got, "want_width": want, "out_width": out}
    return explain_sizes("matmul_mismatch", fields, **more)


def test_one_state_where_three_were_due():
    """Rows that look like 4 x hidden by accident are rows all the same."""
    found = matmul(16384, 4096, 12288, 4096)
    assert (found.got_states, found.want_states, found.rows) == (1, 3, 16384)
    assert "2 missing" in found.text
    assert "16384 = 4 x 4096 by accident" in found.text


def test_the_log_s_own_hidden_size_wins():
    """A known hidden size is used before the weight's output and before common divisors."""
    found = matmul(3, 28672, 21504, 3584, hidden=7168, hidden_from="line 4")
    assert (found.unit, found.unit_from, found.got_states) == (7168, "line 4", 4)
    # One that does not divide both is no reading.
    assert matmul(3, 28672, 21504, 7168, hidden=5120).unit == 7168


def test_numbers_that_are_no_multiples_get_no_reading():
    """Prime widths share nothing: the sizes are said, and that they are no multiples."""
    found = matmul(5, 7919, 7907, 4099)
    assert found.unit is None
    assert found.got_states is None
    assert "no multiples of one hidden size" in found.text


def test_vocabulary_sizes_are_named():
    """32000 against 151936 is two vocabularies, not 500 and 2374 states."""
    found = explain_sizes("size_mismatch", {"a": 32000, "b": 151936})
    assert found.unit is None
    assert "32000" in found.text
    assert "vocabulary sizes" in found.text


def test_which_tensor_was_delivered_comes_from_the_log():
    """Torch does not say which side is which: the width that the log joined is the one that arrived."""
    either = {"a": 5760, "b": 8640}
    assert explain_sizes("size_mismatch", either, delivered={5760}).got == "2 x 2880 = 5760"
    assert explain_sizes("size_mismatch", either).got == "3 x 2880 = 8640"
    assert "missing" not in explain_sizes("size_mismatch", either).text


def test_weights_of_the_checkpoint():
    """Axes are compared one by one; another number of axes is said as such."""
    shapes = {"loaded": [4096, 5120], "parameter_shape": [2560, 5120], "parameter": "midlayer.self_attn.q_proj.weight"}
    found = explain_sizes("weight_shape_mismatch", shapes)
    assert "axis 0 differs: 4096 against 2560" in found.text
    assert "axis 1" not in found.text
    flat = explain_sizes("weight_shape_mismatch", {"loaded": [3584], "parameter_shape": [3584, 7168]})
    assert "1 axis where 2 were due" in flat.text


def test_damaged_numbers_give_no_reading():
    """A size that was cut off is not guessed."""
    assert matmul(3, None, 21504, 7168) is None
    assert explain_sizes("size_mismatch", {"a": 5}) is None
    assert explain_sizes("traceback", {"a": 5, "b": 6}) is None


# ----------------------------------------------------------------------------------------------------------- grouping


def test_repeated_errors_are_counted_by_process():
    """The same widths with other rows are one error; the count goes by process."""
    items = [
        traceback(at, f"mat1 and mat2 shapes cannot be multiplied ({at}x28672 and 21504x7168)", tp=at % 2)
        for at in range(10, 15)
    ]
    (fact,) = ask_about(*items).facts["errors"]
    assert fact["count"] == 5
    assert fact["processes"] == {"TP0": 3, "TP1": 2}
    other = traceback(20, "mat1 and mat2 shapes cannot be multiplied (3x14336 and 21504x7168)")
    assert len(ask_about(*items, other).facts["errors"]) == 2


@pytest.mark.parametrize(
    "follower",
    [
        event(20, "sigquit"),
        event(20, "watchdog_timeout", seconds=300),
        event(20, "collective_timeout", work="WorkNCCL(OpType=ALLREDUCE)"),
        event(20, "http_access", method="POST", path="/generate", status=500),
        traceback(20, "worker failed, see the stack trace above", exception="RuntimeError"),
        traceback(20, "gone", exception="ray.exceptions.ActorDiedError"),
        traceback(20, None, exception="EOFError"),
        traceback(20, "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [192.0.2.7]:3345", tp=0),
        traceback(20, "NCCL error: remote process exited or there was a network error", tp=0),
        traceback(20, "Worker failed with 'boom'", quoted=True),
    ],
)
def test_what_follows_an_error_stands_under_it(follower):
    """Timeouts, signals, dead peers and quoted errors behind a root error are its consequences."""
    report = ask_about(traceback(10, "boom"), follower)
    (fact,) = report.facts["errors"]
    assert fact["message"] == "boom"
    assert fact["relayed_count"] == 1


def test_a_lost_connection_before_the_error_that_cost_it():
    """TP0 prints that its peer is gone, a moment later TP2 prints why: TP2's is the first error, and TP0's is named."""
    gone = [traceback(at, "Connection closed by peer [192.0.2.7]:3345", tp=at) for at in (0, 1)]
    died = traceback(9, "CUDA out of memory", tp=2)
    report = ask_about(*gone, died, event(12, "sigquit"))
    (fact,) = report.facts["errors"]
    assert (fact["message"], fact["relayed_count"]) == ("CUDA out of memory", 3)
    (finding,) = report.findings
    assert "x.log:0 stands before it and lost its connection" in finding.evidence
    # Its own error, and one of another hour, are no cause of it.
    late = traceback(9, "CUDA out of memory", tp=2, time="2026-01-01T03:00:00")
    same = traceback(9, "CUDA out of memory", tp=0)
    for other in (late, same):
        assert len(ask_about(gone[0], other).facts["errors"]) == 2


def test_a_timeout_alone_may_be_the_cause():
    """Without an error before it a watchdog is the first error; a relayed one says that its origin is not here."""
    (finding,) = ask_about(event(5, "watchdog_timeout", seconds=300)).findings
    assert "not in this log" not in finding.message
    (finding,) = ask_about(traceback(5, "see stack trace above", exception="EngineDeadError")).findings
    assert "not in this log" in finding.message
    assert ask_about(event(5, "http_access", method="GET", path="/health", status=503)).verdict == "ok"


def test_a_quoted_error_belongs_to_the_one_it_quotes():
    """Of two roots the relayed error names its own."""
    report = ask_about(traceback(1, "first"), traceback(2, "second"), traceback(3, "failed: 'second'", quoted=True))
    assert [fact["relayed_count"] for fact in report.facts["errors"]] == [0, 1]


def test_an_old_error_is_not_blamed_for_a_new_death():
    """What happens an hour later follows from the error of that hour."""
    report = ask_about(
        traceback(1, "first", time="2026-01-01T00:00:00"),
        traceback(2, "second", time="2026-01-01T02:00:00"),
        event(3, "sigquit", time="2026-01-01T02:00:05"),
    )
    assert [fact["relayed_count"] for fact in report.facts["errors"]] == [0, 1]


def test_an_exception_line_is_not_counted_twice():
    """The traceback and its own last line are one error; without a traceback the line is one."""
    numbers = {"rows": 3, "got_width": 28672, "want_width": 21504, "out_width": 7168}
    text = "mat1 and mat2 shapes cannot be multiplied (3x28672 and 21504x7168)"
    whole = ask_about(traceback(1, text, mismatch_line=9), event(9, "matmul_mismatch", **numbers))
    assert [(fact["count"], fact["line"], fact["opened"]) for fact in whole.facts["errors"]] == [(1, 9, 1)]
    alone = ask_about(event(9, "matmul_mismatch", **numbers))
    assert [fact["count"] for fact in alone.facts["errors"]] == [1]
    assert rows(alone, "sizes") == rows(whole, "sizes")


def test_the_last_events_of_the_process_before_it():
    """Those of the failing process and of unmarked lines; not those of another rank."""
    items = [event(at, "prefill_stats", tp=at % 2, new_token=at) for at in range(1, 9)]
    report = ask_about(*items, event(9, "kv_cache"), traceback(10, "boom", tp=1))
    found = rows(report, "before")
    assert [row["line"] for row in found] == [1, 3, 5, 7, 9]
    assert [row["process"] for row in found] == ["TP1"] * 4 + ["no mark"]


def test_errors_of_several_files_stand_by_time():
    """The file named second may hold the first error."""
    late = event(1, "traceback", time="2026-01-01T00:00:09", file="a.log", exception="B")
    early = event(5, "traceback", time="2026-01-01T00:00:01", file="b.log", exception="A")
    report = ask_about(late, early)
    assert [fact["exception"] for fact in report.facts["errors"]] == ["A", "B"]


def test_a_log_that_only_fails_keeps_memory_flat():
    """A thousand kinds of error: the first 500 are listed, the rest is counted."""
    items = [traceback(at, "x" * (at % 1000 + 1), exception=f"E{'a' * (at % 1000)}") for at in range(2000)]
    report = ask_about(*items)
    assert len(report.facts["errors"]) == 500
    assert any("1,000 errors" in note for note in report.notes)


# ------------------------------------------------------------------------------------------------------ ends of a process


def test_one_end_in_several_words_is_one_error():
    """An abort, where it was raised, what the interpreter and its dump add, and the signal: one error with its top frame."""
    report = ask_about(
        event(4, "process_group_abort", time=None, origin="rank3", rank=3, message="CUDA error: device-side assert"),
        event(9, "raised_from", time=None, function="check", place="/c10/CUDAException.cpp:44"),
        event(11, "fatal_python_error", time=None, message="Aborted"),
        event(13, "thread_dump", time=None, top_frame="scheduler.py:1419 in watchdog_thread"),
        event(15, "fatal_signal", time=None, signal="Aborted"),
    )
    (fact,) = report.facts["errors"]
    assert (fact["line"], fact["process"], fact["count"]) == (4, "rank3", 1)
    assert "check" in report.findings[0].evidence


def test_an_assertion_of_thousands_of_threads_is_one_error():
    """device-side assert: a line a thread, one error with its count; the traceback behind it follows from another place."""
    lines = [
        event(at, "device_assert", block="[0,0,0]", thread=f"[{at},0,0]", condition="i < n") for at in range(1, 40)
    ]
    (fact,) = ask_about(*lines).facts["errors"]
    assert (fact["count"], fact["line"]) == (39, 1)


def test_an_error_raised_again_while_it_is_handled_is_one():
    """The second half of a chained traceback names no error of its own; the same exception again counts."""
    again = traceback(10, "gave up", exception="ServerError", chained=1)
    (fact,) = ask_about(traceback(1, "the cause", tp=1), again).facts["errors"]
    assert (fact["message"], fact["count"], fact["again"]) == ("the cause", 1, ["x.log:10"])
    (fact,) = ask_about(traceback(1, "the cause", tp=1), traceback(10, "the cause", tp=1, chained=1)).facts["errors"]
    assert fact["count"] == 2


@pytest.mark.parametrize(
    "follower",
    [
        event(3, "sigquit"),
        event(3, "child_exit", exit_code=-15),
        event(3, "child_crashed", child_pid=7, exit_code=-15),
        event(3, "process_died", kind="Engine core", process="EngineCore_DP0", follows="client"),
    ],
)
def test_what_a_wanted_end_brings_is_no_error(follower):
    """SIGTERM, and what it ends: no error, and it is said; without it a child that dies is one."""
    ended = ask_about(event(1, "shutdown", signal="SIGTERM"), follower)
    assert ended.verdict == "ok"
    assert any("told to end" in note for note in ended.notes)
    # Hours later, the end before has nothing to do with it.
    late = ask_about(
        event(1, "shutdown", signal="SIGTERM"), event(3, "child_exit", time="2026-01-01T05:00:00", exit_code=-9)
    )
    assert late.verdict == "findings"


def test_a_killed_child_and_who_killed_it():
    """The kernel's line comes last and is the cause; what was told before follows from it."""
    killed = event(3, "child_exit", exit_code=-9, tp=0)
    alone = ask_about(killed)
    assert "SIGKILL" in alone.headline
    (fact,) = ask_about(killed, event(5, "oom_kill", pid=4242, process="sglang")).facts["errors"]
    assert "4242" in fact["message"]
    assert fact["relayed_count"] == 1


def test_headers_belong_to_the_traceback_behind_them():
    """A header as WorkerProc prints is no error of its own where its traceback is printed, and one where it is not."""
    header = event(1, "process_failed", process="WorkerProc", what="failed to start", tp=1)
    (fact,) = ask_about(header, traceback(2, "boom", tp=1)).facts["errors"]
    assert fact["message"] == "boom"
    (fact,) = ask_about(header).facts["errors"]
    assert fact["message"] == "WorkerProc failed to start"


def test_sizes_while_weights_load_are_of_weights():
    """A factor of 8 is packing or sharding; whole numbers of hidden states are not spoken of."""
    numbers = {"a": 512, "b": 4096, "dimension": 0}
    failed = traceback(
        1, "The size of tensor a (512) ...", last_frame="default_loader.py:64 in load_weights", mismatch_line=3
    )
    (row,) = rows(ask_about(failed, event(3, "size_mismatch", **numbers)), "sizes")
    assert "packing" in row["means"]
    assert "shard" in row["means"]
    assert "state" not in row["means"]


@pytest.mark.parametrize(("gap", "silent"), [(50, False), (300, True)])
def test_a_process_that_falls_silent_while_others_go_on(gap, silent):
    """DP1 prints every second for ten seconds and then nothing more, for 50 s and for 300 s."""
    stamp = "2026-01-01T00:{:02}:{:02}".format
    items = [event(at, "decode_stats", time=stamp(0, at), tp=tp) for at in range(1, 11) for tp in (0, 1)]
    items += [event(20, "http_access", time=stamp((10 + gap) // 60, (10 + gap) % 60), tp=0, status=200)]
    report = ask_about(*items)
    found = [note for note in report.notes if note.startswith("TP1 printed its last line at x.log:10")]
    assert bool(found) == silent
    assert [
        one.process
        for one in silences(Errors().combine([Errors().partial(from_items([Segment(1, "x.log", 1), *items]))]))
    ] == ["TP1"] * silent


def test_batches_do_not_change_the_answer():
    """Errors, what follows from them and the events before them, in batches of any size."""
    items = [event(at, "prefill_stats", tp=at % 2, new_token=at) for at in range(1, 9)]
    items += [
        traceback(10, "boom", tp=1),
        event(12, "sigquit"),
        traceback(20, "bang", tp=0),
        event(22, "shutdown", signal="SIGTERM"),
    ]
    whole = ask_about(*items).as_dict()
    for step in (1, 2, 3, 5):
        assert ask_about(*items, step=step).as_dict() == whole, step
