"""``accept``: what the statistics lines of every server say about acceptance."""

from __future__ import annotations

from functools import cache

import pytest
from conftest import CASES, REAL_RUNS, real_log, sidecar, truth
from doors import answer, batches, tables
from hypothesis import given
from hypothesis import strategies as st

from logscope.errors import UsageError
from logscope.queries.acceptance import Accept, Acceptance, Window, gather, parse_window
from logscope.queries.acceptance.intervals import read
from logscope.report import Context, Line
from logscope.run import load


def case(number):
    """Return the log of a case by its number."""
    (found,) = CASES.glob(f"{number}-*.log")
    return found


@cache
def run_of(number):
    return load(str(case(number)))


def accept(number, **options):
    """Ask a case."""
    return run_of(number).ask(Accept(**options))


def rows(report, name="accept"):
    return report.tables[name].rows


def places(fact):
    """Return the line numbers a fact names."""
    return [int(place.rpartition(":")[2]) for place in fact["places"]]


def decode(length, *, at=None, rate=None, running=1, tp=0):
    """Return a decode line; ``at``: seconds, or a stamp."""
    stamp = f"2026-01-01 {at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}" if isinstance(at, int) else at
    mark = "" if stamp is None else f"[{stamp} TP{tp}] "
    rated = "" if rate is None else f"accept rate: {rate:.2f}, "
    return (
        f"{mark}Decode batch, #running-req: {running}, #token: 800, token usage: 0.01, accept len: {length:.3f}, {rated}"
        "cuda graph: True, gen throughput (token/s): 150.00, #queue-req: 0\n"
    )


def args(**more):
    """Return a line of server arguments that say how many rounds a line stands for."""
    return (
        f"[2026-01-01 00:00:00] server_args=ServerArgs({', '.join(f'{key}={value}' for key, value in more.items())})\n"
    )


def series_of(lengths, interval=40, **settings):
    """Ask about decode lines with these lengths (from line 2 on); return the one series and the report."""
    log = args(decode_log_interval=interval, **settings) + "".join(map(decode, lengths))
    return series(log), answer(Accept(), log)


def series(log):
    """Return the one series of a log."""
    (found,) = Acceptance(gather(tables(log.encode(), file="x.log"))).series.values()
    return found


def test_more_lines_than_a_batch_of_polars():
    """Twenty thousand lines of one block are answered as twenty are: all counted, one mean."""
    found, report = series_of([2.25] * 20_000)
    assert found.rounds == 20_000 * 40
    assert "2.25" in report.headline


# ---------------------------------------------------------------------------------------------------------- the cases


def test_period_era():
    """Case 01: six lines, their mean, 40 rounds a line shown by the cache's growth, and no pause in the throughput."""
    report, want = accept("01"), sidecar(case("01"))
    (row,) = rows(report)
    assert (row["lines"], row["min"], row["max"]) == tuple(want["accept_len"][key] for key in ("n", "min", "max"))
    assert round(row["accept_len_mean"], 2) == want["accept_len"]["mean_by_round"]
    assert row["rate_rule"] == f"len/{want['accept_rate_denominator']}"
    grown = sorted(want["rounds_per_interval_from_token_growth"])
    assert grown[0] <= series(case("01").read_text(encoding="utf-8")).growth() <= grown[-1]
    assert row["pauses"] == 1
    assert row["throughput_min"] == 144.30
    assert 144 < row["throughput"] < 189


def test_decay_is_found_with_its_levels():
    """Case 02: five levels, where each begins, how far it fell, and what went with it."""
    report, want = accept("02", below=1.4, above=0.96), sidecar(case("02"))
    levels = rows(report, "levels")
    assert [level["accept_len_mean"] for level in levels] == want["level_means"]
    assert [level["lines"] for level in levels] == want["level_sizes"]
    assert [level["token_usage"] for level in levels] == want["token_usage_by_level"]
    assert f"({want['first_level_to_last_percent']:.0f}%)" in report.headline
    assert "3.33 to 1.90" in report.headline
    assert report.facts["lines_below"]["count"] == want["lines_below_1.4"]
    assert report.facts["lines_above"]["count"] == want["lines_with_rate_above_0.96"]
    (row,) = rows(report)
    assert row["rate_rule"] == want["accept_rate_rule"]
    assert row["lines"] == want["events"]["decode_stats"]
    text = "\n".join(report.notes)
    assert "running requests stay at 4 throughout" in text
    assert "token usage 0.36 -> 0.47 (opposite order)" in text
    assert "all 5 levels" in text
    assert "the time of a round stays the same" in text


def test_decay_has_a_hole_between_its_first_levels():
    """Case 02: the longest time without a line is reported with its length and place."""
    report = accept("02")
    (hole,) = series(case("02").read_text(encoding="utf-8")).holes()
    assert hole.seconds == sidecar(case("02"))["longest_hole_seconds"]
    assert any("32 min 45 s" in note and "between levels 1 and 2" in note for note in report.notes)


def test_one_file_of_many_releases_is_never_averaged_over():
    """Case 04: the ranges of each definition, what is missing is missing, and the order of time."""
    report, want = accept("04"), sidecar(case("04"))
    ranges = {row["rule"]: list(range(row["first_line"], row["last_line"] + 1)) for row in rows(report, "rates")}
    assert ranges == {rule: list(range(lines[0], lines[-1] + 1)) for rule, lines in want["rate_rules"].items()}
    assert sum(row["lines"] for row in rows(report)) == want["with_accept_len"]
    assert sum(row["lines"] for row in rows(report, "rates")) == want["with_accept_rate"]
    assert places(report.facts["lines_out_of_order"]) == want["lines_out_of_time_order"]
    assert places(report.facts["lines_no_date"]) == want["lines_without_date"]
    assert places(report.facts["lines_without_accept_len"]) == want["lines_without_speculation"]
    assert {row["rate_definition"]: row["accept_rate_mean"] for row in rows(report)}["mixed"] is None
    assert min(row["min"] for row in rows(report)) == 2.0
    exact = next(row for row in rows(report) if "128139" in row["origin"])
    assert (exact["accept_len_mean"], exact["rounds"]) == (2.0, 6)


def test_nan_makes_the_maximum_suspicious():
    """Case 11: 4.00 of 4 is called suspicious, with the warnings of the eight ranks beside it; no mean is praised."""
    report, want = accept("11"), sidecar(case("11"))
    points = report.facts["series"][0]["points"]
    assert [point["accept_len"] for point in points] == want["accept_len"]
    (note,) = (note for note in report.notes if "at its maximum" in note)
    assert "suspicious rather than good" in note
    assert "NaN in the logits was warned of 8 times by 8 processes" in note
    assert rows(report)[0]["at_ceiling"] == 2


@pytest.mark.parametrize("number", ["12a", "12b"])
def test_ranks_are_told_apart(number):
    """Cases 12a and 12b: the mean of the server and of every rank, and the rate's formula."""
    report, want = accept(number), sidecar(case(number))
    assert round(report.facts["accept_len_mean"], 4) == want["mean_accept_len"]
    assert {row["rate_rule"] for row in rows(report)} == {want["accept_rate_rule"]}
    by_rank = {row["origin"]: round(row["accept_len_mean"], 4) for row in rows(report)}
    assert by_rank == want.get("mean_by_rank", {"TP0": want["mean_accept_len"]})
    (server,) = rows(accept(number, by="segment"))
    assert round(server["accept_len_mean"], 4) == want["mean_accept_len"]


def test_engines_are_kept_apart():
    """Case 14: five engines, inferred from the line before, never one number; no year is invented."""
    report, want = accept("14"), sidecar(case("14"))["by_engine"]
    assert {row["engine"]: round(row["accept_len_mean"], 2) for row in rows(report)} == {
        engine: values["length"] for engine, values in want.items()
    }
    assert {row["engine_evidence"] for row in rows(report)} == {"inferred from the engine line before"}
    for row in rows(report):
        assert round(100 * row["accepted"] / row["drafted"], 1) == want[row["engine"]]["rate_percent"]
    assert "accept_len_mean" not in report.facts
    assert rows(report)[0]["from"] == "07-20T18:11:49"
    assert any("print no year" in note for note in report.notes)
    assert len(rows(accept("14", by="engine"))) == 5
    given = accept("14", year=2026)
    assert rows(given)[0]["from"] == "2026-07-20T18:11:49"


def test_per_position_lists():
    """Case 15: k from the list, the older meaning of the length, no drafts, and what the positions say."""
    run, want = run_of("15"), sidecar(case("15"))
    events = run.tables.server.filter(run.tables.server["event"] == "spec_metrics")
    said = [(line, run.tables.said[at].fields) for line, at in events.select("line", "said").iter_rows()]
    intervals = {line: read("spec_metrics", fields) for line, fields in said}
    assert {str(line): one.draft_tokens for line, one in intervals.items()} == want["k_by_line"]
    assert [line for line, one in intervals.items() if one.without_bonus] == want["length_without_bonus"]
    assert [line for line, one in intervals.items() if one.no_drafts] == want["no_drafts"]
    assert [line for line, one in intervals.items() if one.reading == "nothing accepted"] == want["zero_accepted"]
    assert [line for line, one in intervals.items() if one.reading and "total" in one.reading] == want["near_total"]
    assert intervals[7].length is None
    assert "only the first position is ever accepted, rarely" in intervals[4].reading
    assert "the first position is good, the later ones collapse" in intervals[8].reading
    assert intervals[1].length == intervals[2].length == 2.24
    assert not any(one.violations for one in intervals.values())


def test_servers_are_not_mixed():
    """Case 15: the lines of four servers (no pid, 77, 78, 90) make four rows."""
    report = accept("15")
    assert [(row["origin"], row["lines"]) for row in rows(report)] == [
        ("", 2),
        ("APIServer pid=77", 1),
        ("APIServer pid=78", 2),
        ("APIServer pid=90", 2),
    ]
    # 0 of 279 drafts and 266 of 280 drafts, one draft token each: weighted by drafts.
    assert rows(report)[2]["accept_len_mean"] == pytest.approx((279 * 1.00 + 280 * 1.95) / 559, abs=1e-4)


def test_sources_compose():
    """Case 17: ten lines by source; two processes called TP0 are two; what Ray hid is said."""
    report, want = accept("17"), sidecar(case("17"))
    for source, lines in want["decode_by_source"].items():
        parts = source.split("/")
        found = [row for row in rows(report) if all(part in row["origin"] for part in parts)]
        assert [row["lines"] for row in found] == [lines], source
    assert sum(row["lines"] for row in rows(report)) == want["events"]["decode_stats"]
    assert places(report.facts["lines_repeated"]) == [int(line) for line in want["lines_repeated_elsewhere"]]
    assert any("7 more lines" in note and "lower bounds" in note for note in report.notes)


def test_a_cut_line_enters_no_statistic():
    """Case 18: 2.5 at the end of a cut line may be half of 2.58; the mean is that of the whole lines."""
    report, want = accept("18"), sidecar(case("18"))
    (row,) = rows(report)
    assert (row["lines"], row["accept_len_mean"]) == (want["events"]["decode_stats"], want["accept_len_mean"])
    assert places(report.facts["lines_damaged"]) == [8]


def test_field_variants():
    """Case 22: every line is read although its fields differ; unknown fields are listed, names are not mapped."""
    report, want = accept("22"), sidecar(case("22"))
    points = sorted((point["line"], point["accept_len"]) for one in report.facts["series"] for point in one["points"])
    assert [length for _, length in points] == want["accept_len"]
    assert set(want["fields_unknown"]) <= set(report.facts["other_fields"])
    assert "full token usage" in report.facts["other_fields"]
    assert report.facts["graphs"] == {
        f"{kind} graph": {str(value): values.count(value) for value in values}
        for kind, values in want["graph_values"].items()
    }
    assert any("the cache is full" in note and "112 queued" in note for note in report.notes)


@pytest.mark.parametrize(("number", "length", "rate"), [("36a", 1.57, 0.19), ("36b", 2.41, 0.47)])
def test_the_story(number, length, rate):
    """Cases 36a and 36b: acceptance and the definition of its rate, with the server's settings."""
    (row,) = rows(accept(number))
    assert (row["accept_len_mean"], row["accept_rate_mean"], row["rate_definition"]) == (length, rate, "C")


# ------------------------------------------------------------------------------------------------------ real servers


@pytest.mark.parametrize("name", [name for name in REAL_RUNS if any(one["kind"] == "verify" for one in truth(name))])
def test_real_servers_against_their_ground_truth(name):
    """The weighted mean is within 0.05 of the accepted tokens of every verify; the rest of the rounds is stated."""
    run = load(str(real_log(name)))
    report = run.ask(Accept())
    verifies = [one["accept_lens"] for one in truth(name) if one["kind"] == "verify"]
    accepted = [length for lengths in verifies for length in lengths]
    assert report.facts["accept_len_mean"] == pytest.approx(sum(accepted) / len(accepted), abs=0.05)
    (row,) = rows(report)
    assert row["rounds"] == 10 * row["lines"]
    assert row["rounds"] <= len(verifies) < row["rounds"] + 10
    assert row["rate_definition"] == "C"
    assert any("decode_log_interval of server_args" in note and "running requests" in note for note in report.notes)
    (note,) = (note for note in report.notes if "in no line" in note)
    if "graph" not in name and "noflush" not in name:
        assert f"{len(verifies) - row['rounds']} round" in note


def test_without_speculation_nothing_is_accepted_or_refused():
    """Lines without accept len are no zeros: the verdict is unknown, and the reason is said."""
    report = load(str(real_log("no-speculation"))).ask(Accept(min=2.0))
    assert "no line reports accept len" in report.headline
    assert "accept_len_mean" not in report.facts
    assert report.verdict == "unknown"
    assert report.findings == []
    assert load(str(real_log("no-speculation"))).ask(Accept()).verdict == "unknown"


# ------------------------------------------------------------------------------------------------------------ options


def test_the_gate():
    """``--min`` is a finding for every row below it, and none at or above it."""
    below = accept("12b", min=2.0)
    assert [finding.rule for finding in below.findings] == ["accept-min"] * 4
    assert below.verdict == "findings"
    assert accept("12a", min=2.0).verdict == "ok"
    assert accept("12a", min=2.3377).findings == accept("12a", min=2.34).findings[1:]


def test_windows():
    """Windows of time follow the clock, windows of lines each process; together they hold every line once."""
    half_hours = rows(accept("02", window="30m"))
    assert [row["lines"] for row in half_hours] == [3, 5, 5, 11, 15, 1]
    tens = rows(accept("02", window="10"))
    assert [row["lines"] for row in tens] == [10, 10, 10, 10]
    assert tens[0]["accept_len_mean"] == pytest.approx((8 * 3.33 + 3.11 + 3.03) / 10, abs=1e-4)
    # Every rank has windows of its own; the server's have the lines of all four.
    assert [row["lines"] for row in rows(accept("12b", window="10s"))] == [2, 1, 1] * 4
    assert [row["lines"] for row in rows(accept("12b", window="10s", by="segment"))] == [8, 4, 4]


@pytest.mark.parametrize("text", ["5x", "0", "m", "", "-5m"])
def test_a_window_that_is_none_is_refused(text):
    """A mistyped window is an error that shows how to write one."""
    with pytest.raises(UsageError, match="window"):
        parse_window(text)


def test_windows_are_read_as_typed():
    """Seconds, minutes, hours, days, and bare numbers of lines."""
    assert [parse_window(text) for text in ("30s", "5m", "2h", "1d", "100")] == [
        Window(30),
        Window(300),
        Window(7200),
        Window(86_400),
        Window(None, 100),
    ]
    with pytest.raises(UsageError):
        Accept(by="colour")


# ---------------------------------------------------------------------------------------------- stretches and declines

JITTER = [0.05, -0.05, 0.02, -0.02]


def around(mean, count):
    """Return so many lengths around a mean."""
    return [mean + JITTER[at % 4] for at in range(count)]


def test_stretches_of_nothing_accepted():
    """Two lines of 40 rounds make a stretch, one does not, and every line of a shorter run does."""
    found, report = series_of([2.0, 1.0, 1.0, 2.0, 1.0])
    assert [(one.first_line, one.lines, one.rounds) for one in found.long(found.floor)] == [(3, 2, 80)]
    assert any("nothing is accepted" in note for note in report.notes)
    short, _ = series_of([1.0, 1.0, 1.0], interval=10)
    assert len(short.long(short.floor)) == 1
    broken, _ = series_of([1.0, 2.0, 1.0], interval=10)
    assert broken.long(broken.floor) == []


def test_the_maximum_comes_from_the_settings():
    """4 draft tokens allow 4.00; a deep tree's maximum is steps + 1; without settings only a rate of 1.00 tells."""
    full, _ = series_of([4.0, 4.0], speculative_num_draft_tokens=4, speculative_num_steps=3)
    assert len(full.long(full.ceiling)) == 1
    tree, _ = series_of([4.0, 4.0], speculative_num_draft_tokens=16, speculative_num_steps=3)
    assert len(tree.long(tree.ceiling)) == 1
    unknown, _ = series_of([4.0, 4.0])
    assert unknown.long(unknown.ceiling) == []


def test_a_lasting_decline():
    """From 3.00 to 2.00 for the last 400 rounds is lasting, for 80 rounds it is not, and a recovery is none."""
    high, low = around(3, 20), around(2, 10)
    found = series_of(high + low)[0].decline
    assert found is not None
    assert found.lasting
    assert (found.begin.first_line, found.low_rounds) == (22, 400)
    assert found.change == pytest.approx(-1 / 3, abs=0.01)
    brief = series_of(high + low[:4], interval=20)[0].decline
    assert brief is not None
    assert not brief.lasting
    assert series_of(high + low + [value + 0.2 for value in high])[0].decline is None


def test_a_level_that_was_left_before_is_no_lasting_decline():
    """Low, high, low again: acceptance varies with the work; the second fall is a note."""
    low, high = around(2.0, 20), around(3.0, 20)
    one, report = series_of(low + high + low)
    found = one.decline
    assert found is not None
    assert found.seen_before
    assert not found.lasting
    assert any("as low before" in note for note in report.notes)
    assert "falls" not in report.headline


def test_a_dip_is_told_as_a_dip():
    """High, low for a while, high again: where it fell and where it rose, not that it hardly changed from end to end."""
    _, report = series_of(around(2.6, 30) + around(1.6, 30) + around(2.58, 30))
    (note,) = [note for note in report.notes if "falls" in note]
    assert note.endswith("falls to 1.60 over 30 lines from x.log:32 on, and rises again: 2.58 from x.log:62 on")


@pytest.mark.parametrize(("lows", "named"), [((), False), ((3,), True), ((0, 3), True), ((0, 1, 3), False)])
def test_ranks_that_accept_less_than_the_others_are_named(lows, named):
    """Some of four ranks accept half, throughout: named when they are no more than the others; equal ranks are not."""
    lines = [
        decode((1.3 if rank in lows else 2.6) + JITTER[at % 4], at=at, tp=rank) for at in range(40) for rank in range(4)
    ]
    report = answer(Accept(), args(decode_log_interval=40) + "".join(lines))
    assert ("accepts less, 1.30 against 2.60" in report.headline) == named
    assert len([note for note in report.notes if "accepts less" in note]) == (len(lows) if named else 0)


def test_a_late_step_is_a_decline():
    """The trend of 120 lines hardly sees a step of the last 10; the comparison of the levels does."""
    found = series_of(around(3, 110) + around(2, 10))[0].decline
    assert found is not None
    assert found.trend_z > -4
    assert found.levels_z < -4
    assert found.lasting


def test_a_slow_decline_is_a_decline():
    """No single step, but 40 lines that sink from 3.0 to 2.0."""
    found = series_of([round(3 - at / 39 + (0.03 if at % 2 else -0.03), 2) for at in range(40)])[0].decline
    assert found is not None
    assert found.lasting
    assert found.trend_z < -4


def test_one_level_is_no_decline():
    """A series with one level has no fall."""
    assert series_of([2.5] * 30)[0].decline is None


# -------------------------------------------------------------------------------------------------- vLLM and neighbours


def metrics(**fields):
    """Return the fields of a vLLM metrics line that agrees with itself, with changes."""
    values = {
        "mean_acceptance_length": 2.87,
        "accepted": 282,
        "drafted": 453,
        "per_position": [0.821, 0.609, 0.437],
        "draft_acceptance_rate": 62.3,
        "units": {"draft_acceptance_rate": "%"},
    }
    return values | fields


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mean_acceptance_length": 2.40}, "length 2.40"),
        ({"per_position": [0.821, 0.609, 0.137]}, "positions add up"),
        ({"draft_acceptance_rate": 52.3}, "rate 52.3%"),
    ],
)
def test_a_metrics_line_that_contradicts_itself(fields, words):
    """Each of the line's identities is tested; the one that fails is named, and only that."""
    assert read("spec_metrics", metrics()).violations == []
    (violation,) = read("spec_metrics", metrics(**fields)).violations
    assert words in violation


@given(
    verifies=st.integers(1, 3000),
    k=st.integers(1, 8),
    steps=st.lists(st.integers(0, 1000), min_size=8, max_size=8),
    depth=st.integers(1, 8),
)
def test_the_true_verifies_are_never_contradicted(verifies, k, steps, depth):
    """Counts of a made-up interval, printed as vLLM prints them: V is found within what its prints leave, no violation."""
    depth = min(depth, k)
    counts = sorted((verifies * step // 1000 for step in steps[:depth]), reverse=True)
    accepted = sum(counts)
    fields = {
        "mean_acceptance_length": round(1 + accepted / verifies, 2),
        "accepted": accepted,
        "drafted": depth * verifies,
        "per_position": [round(count / verifies, 3) for count in counts] + [0.0] * (k - depth),
        "speculative_depth": depth,
    }
    found = read("spec_metrics", fields)
    assert found.violations == []
    assert not found.without_bonus
    assert found.verifies is not None
    if accepted:
        assert accepted / (fields["mean_acceptance_length"] - 1 + 0.0051) <= found.verifies
        assert found.verifies * (fields["mean_acceptance_length"] - 1 - 0.0051) <= accepted
    if depth == k:
        assert found.verifies == verifies


def test_weights_of_metrics_lines_are_their_drafts():
    """453 drafted tokens of 3 a draft are 151 verifies."""
    assert read("spec_metrics", metrics()).verifies == 151


def test_an_engine_line_speaks_for_one_metrics_line():
    """A second metrics line of a process with several engines has no known engine."""
    mark = "(APIServer pid=7) INFO 09-02 11:01:06 [x.py:1] "

    def engine(name):
        return (
            f"{mark}Engine {name}: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 50.0 tokens/s, "
            "Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 0.0%\n"
        )

    line = (
        f"{mark}SpecDecoding metrics: Mean acceptance length: 2.87, Accepted throughput: 9.40 tokens/s, Drafted throughput: "
        "15.10 tokens/s, Accepted: 282 tokens, Drafted: 453 tokens, Per-position acceptance rate: 0.821, 0.609, 0.437, "
        "Avg Draft acceptance rate: 62.3%\n"
    )
    report = answer(Accept(), engine("000") + line + engine("001") + line + line)
    assert {(row["engine"], row["lines"]) for row in rows(report)} == {("000", 1), ("001", 1), (None, 1)}
    single = answer(Accept(), engine("000") + line + line)
    assert [(row["engine"], row["lines"]) for row in rows(single)] == [("000", 2)]


def test_cumulative_lines_are_kept_apart():
    """The lines of vLLM V0 count since the start: no interval, no mean; tokens per verify from its own counts."""

    def line(accepted, drafted, emitted):
        return (
            "INFO 02-12 08:00:10 metrics.py:477] Speculative metrics: Draft acceptance rate: 0.642, System efficiency: "
            f"0.598, Number of speculative tokens: 3, Number of accepted tokens: {accepted}, Number of draft tokens: "
            f"{drafted}, Number of emitted tokens: {emitted}.\n"
        )

    report = answer(Accept(), line(8547, 13311, 10616) + line(9547, 14811, 11916))
    assert rows(report) == []
    (row,) = rows(report, "cumulative")
    assert row["tokens_per_verify"] == pytest.approx(11916 / (14811 / 3), abs=1e-3)
    assert (row["accepted_since_first"], row["drafted_since_first"]) == (1000, 1500)


def test_llamacpp_lines():
    """The drafts behind a line of llama.cpp follow from its length; a short draft is no contradiction."""
    fields = {"draft_acceptance_rate": 0.64479, "accepted": 167, "drafted": 259, "mean_acceptance_length": 2.92}
    fields["per_position"] = [0.805, 0.632, 0.483]
    found = read("llamacpp_acceptance", fields)
    assert found.length == 2.92
    assert found.verifies == 87
    assert found.violations == []


# --------------------------------------------------------------------------------------------------------- the question


def test_the_warm_up_is_left_out():
    """What a server prints before it says that it is ready is no user's request; without that line all counts."""
    ready = "The server is fired up and ready to roll!\n"
    report = answer(Accept(), decode(1.0) + ready + decode(3.0))
    assert [(row["lines"], row["accept_len_mean"]) for row in rows(report)] == [(1, 3.0)]
    assert report.facts["lines_of_the_warm-up"]["count"] == 1
    assert [row["lines"] for row in rows(answer(Accept(), decode(1.0) + decode(3.0)))] == [2]


def test_the_weight_is_the_mean_of_both_ends():
    """A line shows the running requests of one moment: 4 after 2 stands for 3 over the interval."""
    log = args(decode_log_interval=10) + decode(3.0, running=2) + decode(1.0, running=4)
    (row,) = rows(answer(Accept(), log))
    assert row["accept_len_mean"] == pytest.approx((20 * 3.0 + 30 * 1.0) / 50)


def test_iterations_count_rounds_where_they_are_printed():
    """Iterations 100, 140 and 200 with 5 prefills before the last: 40 and 55 rounds; the first line has the default."""
    line = decode(2.0, at=0)
    numbered = [line.replace("Decode batch,", f"Decode batch [{at}],") for at in (100, 140, 200)]
    prefill = (
        "[2026-01-01 00:00:00 TP0] Prefill batch, #new-seq: 1, #new-token: 8, #cached-token: 0, token usage: 0.00, "
    )
    log = numbered[0] + numbered[1] + (prefill + "#running-req: 1, #queue-req: 0\n") * 5 + numbered[2]
    (row,) = rows(answer(Accept(), log))
    assert row["rounds"] == 40 + 40 + 55


def test_time_that_goes_back():
    """A process that steps back is reported; two processes a second apart, or of two servers, are not."""
    times = [(5, 0), (4, 1), (4, 0), (9, 0)]
    report = answer(Accept(), args() + "".join(decode(2.0, at=at, tp=tp) for at, tp in times))
    assert places(report.facts["lines_out_of_order"]) == [4]


def test_a_new_year_in_dates_without_one():
    """12-31 is followed by 01-01 of the next year: five seconds, no hole and no step back."""
    times = ["12-31 23:59:50", "12-31 23:59:55", "01-01 00:00:00", "01-01 00:00:05", "01-01 00:00:10"]
    metrics_line = (
        "SpecDecoding metrics: Draft acceptance rate: 50.0%, Mean acceptance length: 2.00, Accepted: 10 tokens, "
    )
    metrics_line += "Drafted: 20 tokens, Per-position acceptance rate: 0.600, 0.400\n"
    log = "".join(f"INFO {time} [metrics.py:87] {metrics_line}" for time in times)
    report = answer(Accept(year=2025), log)
    assert "lines_out_of_order" not in report.facts
    (row,) = rows(report)
    assert (row["from"], row["to"]) == ("2025-12-31T23:59:50", "2026-01-01T00:00:10")
    assert series(log).holes() == []


def test_blocks_do_not_change_the_answer():
    """Batch by batch, in any blocks and asked in between, the answer is that to the whole log."""
    for number in ("02", "12b", "14", "15", "17"):
        log = case(number).read_bytes()
        whole = answer(Accept(window="30m"), log).as_dict()
        assert answer(Accept(window="30m"), log, step=300).as_dict() == whole, number
    question, parts = Accept(), []
    for part in batches(case("02").read_bytes(), step=2000, file="x.log"):
        parts.append(question.partial(part))
        question.report(question.combine(parts), Context(["x.log"]))
    last = question.report(question.combine(parts), Context(["x.log"]))
    assert last.as_dict() == answer(question, case("02").read_bytes()).as_dict()


def test_a_long_series_is_reduced_and_keeps_its_extremes(monkeypatch):
    """Beyond the limit neighbours are joined: sums, first and last line, and every extreme stay."""
    monkeypatch.setattr("logscope.queries.acceptance.lines.EXACT_LINES", 16)
    lengths = [2.0 + 0.001 * at for at in range(99)] + [1.0]
    found, report = series_of(lengths)
    assert found.rows.height <= 16
    assert found.rows["lengths"].max() == 8
    assert (found.stats.lines, found.rounds) == (100, 4000)
    assert found.stats.quantile(0) == 1.0
    assert (found.rows["first"][0], found.rows["last"][-1]) == (2, 101)
    assert found.stats.mean == pytest.approx(sum(lengths) / 100)
    assert any("means of 8 lines" in note for note in report.notes)


def test_many_servers_have_one_line_each_where_they_differ():
    """Of 31 servers 28 agree: the screen names the others, the worst first, and says the rest in one line."""
    logs = [args(decode_log_interval=40) + "".join(map(decode, around(2.8, 20))) for _ in range(28)]
    logs.insert(3, args(decode_log_interval=40) + decode(1.0) * 20)
    logs.insert(9, args(decode_log_interval=40) + "".join(map(decode, around(3.0, 20) + around(1.5, 10))))
    logs.insert(20, args(decode_log_interval=40) + "".join(map(decode, around(1.9, 20))))
    report = answer(Accept(), *logs)
    lines = [line for line in report.screen if isinstance(line, Line) and line.mark]
    assert [line.mark for line in lines] == ["warning", "warning", "warning", "ok"]
    assert [line.name for line in lines] == ["x3.log", "x20.log", "x9.log", "28 others"]
    assert "nothing accepted" in lines[0].text
    assert "accepts less than" in lines[1].text
    assert lines[2].chart.worst is not None
