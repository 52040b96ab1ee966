"""The passes of one scheduler in one life: its prints become records, records passes, passes get their phase.

This module is responsible for :class:`Group`: what waits for more (prints behind the last sync point, the pass that is
still printed, passes whose phase the next ones tell), and what was learned. It must not know files, or how tables look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logscope.passes import cut as cutting
from logscope.passes import interleaved, phases, writers
from logscope.passes.cut import CAPTURE, DRAFT, END, FORWARD, NONE, TARGET, Kinds
from logscope.passes.lineage import Lineage
from logscope.passes.phases import EXTEND, UNKNOWN, Learned, Shown
from logscope.passes.segments import ANY, CAPTURING, SERVING, WARMING
from logscope.scan.chunk import joined, taken

if TYPE_CHECKING:
    from logscope.passes.heads import Heads
    from logscope.passes.segments import Lives

Columns = dict[str, Any]
# Passes that are kept as context, already handed out.
_CONTEXT = 3
# Values that make a record one of a kind although its norm is nan.
_TELLING = 3
# How many prints around a damaged one are looked at for its like.
_NEAR = 64


class Group:
    """The passes of one scheduler, while its prints arrive.

    number
        how many writers print every record; None until it is known.
    """

    def __init__(self, key: tuple[Any, ...], lives: Lives, heads: Heads) -> None:
        self.key = key
        self.lives = lives
        self.heads = heads
        self.number: int | None = None
        self.expected: int | None = None
        self.buffered = False
        self.names: dict[tuple[Any, ...], int] = {}
        self.learned = Learned()
        self.lineage = Lineage()
        self.emitted = 0
        self.served_from: int | None = None
        self._prints: list[Columns] = []  # not yet gathered
        self._waiting = 0
        self._told: Columns | None = None  # gathered prints, with the record of each
        self._records: Columns | None = None
        self._strays: list[Columns] = []  # whose record cannot be told
        self._known = 0  # passes at the front that are context
        self._mixed = False  # passes stand in each other from the start, though no argument says so
        self._labels: list[tuple[int, int, int]] = []
        self._shown_passes = 0
        self._hidden = NONE
        self._serving = False
        self._warm = self._warm_extends = 0
        self._ahead: int | None = None
        self._joins = [False, False]
        self._ends = False
        self._forwards = False
        self._first_layers: dict[int, int] = {}
        # Of graph capture, as far as passes were handed out: a target, a draft was captured; dummies are over.
        self._captured = (False, False, False)
        self._learned_to = 0
        self._doubts: list[set[int]] = []

    # -- prints to records ---------------------------------------------------------------------------------------------

    def add(self, prints: Columns) -> None:
        """Take prints, in file order."""
        if len(prints["line"]):
            self._prints.append(prints)
            self._waiting += len(prints["line"])

    @property
    def held_from(self) -> int:
        """Offset of the first print that was not handed out; a very large one when nothing waits."""
        places = [1 << 62]
        if self._told is not None and self._records is not None:
            own = self._told["offset"][self._told["record"] >= self._first_open]
            places += own[:1].tolist() if len(own) else []
        places += [int(part["offset"][0]) for part in self._prints[:1]]
        return min(places)

    @property
    def held(self) -> int:
        """How many prints wait."""
        return self._waiting + (0 if self._told is None else len(self._told["line"]))

    def waiting(self) -> np.ndarray:
        """Return the offsets of the prints that were not yet gathered."""
        return np.concatenate([part["offset"] for part in self._prints]) if self._prints else np.zeros(0, np.int64)

    def columns(self) -> list[Columns]:
        """Return all columns it holds, for whoever renumbers heads and prefixes."""
        return [*self._prints, *(part for part in (self._told, self._records) if part is not None)]

    _first_open = 0  # the first record that was not handed out

    def work(self, *, final: bool = False) -> Columns | None:
        """Return the passes known now: ``passes``, ``records`` and ``prints``, rows of each; None: none are."""
        if self._prints:
            prints = joined(self._prints)
            self._prints = [prints]
            if self.number is None and not self._count(prints, final=final):
                return None
            gathered = self._gather(prints, final=final)
            if gathered is not None:
                self._told = gathered if self._told is None else joined([self._told, gathered])
        if self._records is None or self._told is None:
            return None
        return self._pass(final=final)

    def _as_prints(self, prints: Columns) -> writers.Prints:
        of = self.heads
        head = prints["head"]
        norm = prints["norm"]
        own = np.isfinite(norm) & (norm != 0)
        rest = np.flatnonzero(~own & (prints["count"] >= _TELLING) & (norm != 0))
        if len(rest):
            values = prints["values"][rest]
            own[rest] = (np.isfinite(values) & (values != 0)).sum(axis=1) >= _TELLING
        family = of.family[head]
        for at in np.flatnonzero(~of.usable[head]).tolist():
            # A damaged print is of the kind of one beside it that says all that can be read of it.
            near = [*range(at - 1, max(at - _NEAR, -1), -1), *range(at + 1, min(at + _NEAR, len(head)))]
            fits = next((one for one in near if of.usable[head[one]] and of.alike(int(head[at]), int(head[one]))), None)
            family[at] = family[at] if fits is None else family[fits]
        told = (of.opens[head], of.ends[head], of.captures[head], of.order[head], prints["writer"])
        return writers.Prints(prints["text"], of.kind[head], family, own & of.usable[head], *told)

    def _count(self, prints: Columns, *, final: bool) -> bool:
        """Count the writers, once enough is printed to tell."""
        lives = self.lives
        said = lives.here.tp_size
        enough = final or len(prints["line"]) >= writers.CENSUS
        alone = said == 1 and not lives.cut and not self.names
        if not enough and not alone and self.names == {}:
            return False
        # Dummy passes run twice: what is printed while graphs are captured counts where nothing else is. A name counts.
        served = (lives.at(prints["offset"])["region"] < 0) & (not self.names)
        counted = taken(prints, served) if served.any() else prints
        first = self._as_prints(taken(counted, slice(0, writers.CENSUS)))
        self.number, why = (1, "tp_size is 1") if alone and not enough else writers.count_writers(first, said)
        self.learned.apart = self.number > 1
        self.buffered = writers.are_buffered(first, self.number)
        if said is None and not self.names and self.number > 1 and len(np.unique(first.text)) < writers.FEW:
            self.number, self.expected = len(first.text), None
            why = "too few records are printed to count who prints them"
        else:
            self.expected = self.number
        if lives.here.writers is None:
            lives.here.writers, lives.here.writers_evidence = self.expected, why
        return True

    def _gather(self, prints: Columns, *, final: bool) -> Columns | None:
        """Give prints their records; what stands behind the last sync point waits."""
        number = self.number or 1
        record, doubt, stop = writers.gather(self._as_prints(prints), number, buffered=self.buffered, final=final)
        rest = taken(prints, slice(stop, None))
        self._prints = [rest] if len(rest["line"]) else []
        self._waiting = len(rest["line"])
        told = taken(prints, slice(0, stop)) | {"record": record[:stop], "doubt": doubt[:stop]}
        lost = told["record"] < 0
        if lost.any():
            self._strays.append(taken(told, lost))
            told = taken(told, ~lost)
        return self._add_records(told) if len(told["line"]) else None

    def _add_records(self, prints: Columns) -> Columns:
        """Add the records of gathered prints to those that wait."""
        record = prints["record"]
        count = int(record.max()) + 1
        first = np.full(count, NONE)
        first[record[::-1]] = np.arange(len(record))[::-1]
        copies = np.bincount(record, minlength=count)
        differ = np.zeros(count, np.int64)
        speaks = first.copy()
        same = prints["text"] == prints["text"][first][record]
        differs = np.zeros(len(record), np.bool_)
        if not same.all() or not self.heads.usable[prints["head"]].all():
            speaks, differs = self._voices(prints, record, first, copies, same)
            differ = np.bincount(record, differs, minlength=count).astype(np.int64)
        start = 0 if self._records is None else len(self._records["line"])
        made = {name: prints[name][speaks] for name in ("line", "offset", "head", "norm", "slack", "key", "count")}
        made |= {name: prints[name][speaks] for name in ("rounded", "length", "values", "prefix", "text", "time")}
        made |= {"copies": copies, "differ": differ, "from": prints["offset"][first], "doubt": prints["doubt"][first]}
        self._records = made if self._records is None else joined([self._records, made])
        spoken = np.isin(np.arange(len(record)), speaks)
        return prints | {"record": record + start, "speaks": spoken, "differs": differs}

    def _voices(
        self, prints: Columns, record: np.ndarray, first: np.ndarray, copies: np.ndarray, same: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return which print speaks for each record, and which prints say another value.

        Whole before damaged, then the majority, then the first. What was cut off before its values says none.
        """
        speaks, differs = first.copy(), np.zeros(len(record), np.bool_)
        usable = self.heads.usable[prints["head"]]
        mixed = np.unique(record[~same | ~usable])
        order = np.argsort(record, kind="stable")
        ends = np.cumsum(copies)
        for number in mixed.tolist():
            members = order[ends[number] - copies[number] : ends[number]]
            texts = prints["text"][members]
            times = {text: int((texts == text).sum()) for text in texts.tolist()}
            main = max(members.tolist(), key=lambda at: (usable[at], times[int(prints["text"][at])], -at))
            speaks[number] = main
            differs[members] = usable[members] & (texts != prints["text"][main])
            for at in members[differs[members]].tolist():
                said = [(prints["slack"][one] >= 0, prints["count"][one] > 0) for one in (at, main)]
                differs[at] = said[0] == said[1] or self.heads.payloads[prints["head"][at]].intact == "whole"
        return speaks, differs

    # -- records to passes ---------------------------------------------------------------------------------------------

    def _pass(self, *, final: bool) -> Columns | None:
        """Cut, label and hand out."""
        records, told = self._records, self._told
        assert records is not None
        assert told is not None
        of = self.heads.kinds(records["head"])
        self._learn_hidden(of)
        if self.schedulers == 1:
            number, made = cutting.cut(of, np.full(len(of.what), NONE), self._hidden)
            self._look_for_others(of, made)
        if self.schedulers > 1:
            number, still, self._doubts = interleaved.untangle(of, records["key"], self.schedulers)
            records, of, number = self._sorted(of, number)
            told = self._told
            first = np.unique(number, return_index=True)[1][int((number < 0).any()) :]
            roles = np.where(of.role[first] >= 0, of.role[first], np.where(of.num[first] == 1, DRAFT, TARGET))
            made = cutting.passes_of(of, number, roles)
            total = len(roles)
            ends = total if final or not still.any() else int(np.argmax(still))
        else:
            total = len(made.first)
            ends = total if final else total - 1  # the last one is still printed
        if total <= self._known or (ends <= self._known and not final):
            return None
        offset = np.minimum.reduceat(records["from"], made.first) if total else records["from"][made.first]
        regions = self._regions(made, offset, of)
        of_pass = self._shown(made, of, records, offset, regions)
        ready = self._label(of_pass, made, ends, final=final)
        if ready is None:
            return None
        until, labels = ready
        if until <= self._known:
            return None
        return self._hand_out(made, of, number, of_pass, labels, until, total, final=final)

    def _look_for_others(self, of: Kinds, made: cutting.Passes) -> None:
        """Learn whether another scheduler prints between these passes; all is in doubt where that is learned late."""
        assert self._records is not None
        segment = self.lives.here
        if self.key[1] is not None:
            return
        segment.seen_mixed = segment.seen_mixed or interleaved.stand_mixed(of, made)
        self._mixed = segment.seen_mixed and not self._known
        if segment.seen_mixed and not self._mixed:  # what was handed out was cut as one scheduler's
            self._records["doubt"] = np.ones(len(of.what), np.bool_)

    def _sorted(self, of: Kinds, number: np.ndarray) -> tuple[Columns, Kinds, np.ndarray]:
        """Put the records of interleaved passes in the order of passes."""
        assert self._records is not None
        assert self._told is not None
        order = np.argsort(np.where(number < 0, np.maximum.accumulate(number), number), kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        self._records = taken(self._records, order)
        self._told["record"] = place[self._told["record"]]
        return self._records, Kinds(*(column[order] for column in of)), number[order]

    @property
    def schedulers(self) -> int:
        """How many schedulers print the records of this group without a mark."""
        said = 1 if self.key[1] is not None else (self.lives.here.dp_size or 1)
        return 2 if said == 1 and self._mixed else said

    def _learn_hidden(self, of: Kinds) -> None:
        """Learn how wide one state is, from the captures, else from the draft's embeddings."""
        if self._hidden > 0:
            return
        widths = of.width[(of.what == CAPTURE) & (of.width > 0)]
        if not len(widths):
            widths = of.embeds[of.embeds > 0]
        if len(widths):
            self._hidden = cutting.usual(widths)

    def _regions(self, made: cutting.Passes, offset: np.ndarray, of: Kinds) -> np.ndarray:
        """Return which graph each pass is captured into, NONE outside graph capture.

        Other writers run ahead of the one that logs. They print the target's dummy passes, then the draft's, and what
        is served begins with a target pass: so a draft pass before that one is a dummy, whatever was logged, and a
        target pass behind the draft's dummies is served. Nothing is captured any more once serving began (except by a
        line after "ready").
        """
        lives = self.lives
        marks = lives.at(offset)
        region = marks["region"].copy()
        if not lives.regions or not ((region >= 0).any() or not self._serving):
            return region
        names = lives.regions
        if ANY not in names:
            names.append(ANY)
        any_ = names.index(ANY)
        several = (self.number or 1) > 1
        served = self.served_from
        targets, captured_drafts, over = self._captured
        for at in range(self._known, len(offset)):
            now, ready = int(region[at]), bool(marks["ready"][at])
            draft = made.role[at] == DRAFT
            if served is not None and offset[at] >= served and not ready:
                now = NONE
            elif now < 0:
                if draft and several and targets and served is None and not ready:
                    now = any_
            elif now == any_ and over:
                now = NONE
            elif not draft:
                tokens = int(marks["tokens"][at])
                rows = int(made.rows[at])
                if (
                    "draft" in names[now]
                    or (captured_drafts and (now == any_ or several))
                    or (several and tokens > 0 and rows >= 0 and rows % tokens)
                ):
                    now = NONE
            region[at] = now
            if now >= 0:
                targets |= not draft
                captured_drafts |= bool(draft)
                join = int(made.join[at])
                over |= bool(draft and join >= 0 and of.rows[join] != made.rows[at])
            elif served is None:
                served = int(offset[at])
        return region

    def _shown(
        self,
        made: cutting.Passes,
        of: Kinds,
        records: Columns,
        offset: np.ndarray,
        regions: np.ndarray,
    ) -> Shown:
        """Return what passes show, with those of this scheduler that are context in front."""
        marks = self.lives.at(offset)
        join = made.join
        modes = self.learned.modes
        mode = np.full(len(join), NONE)
        numbers = self.heads.modes(modes)
        mode[join >= 0] = numbers[records["head"][join[join >= 0]]]
        printed = np.full(len(join), NONE)
        says = self.heads.printed
        if (says >= 0).any():
            lead = np.full(len(join), NONE)
            of_record = says[records["head"]]
            for at in range(len(join)):
                found = of_record[made.first[at] : made.last[at] + 1]
                found = found[found >= 0]
                lead[at] = found[0] if len(found) else NONE
            printed = lead
        served = np.flatnonzero(regions < 0)
        fresh = np.zeros(len(join), np.bool_)
        if self.served_from is None and len(served):
            self.served_from = int(offset[served[0]])
            before = self.lives.served_from
            self.lives.served_from = self.served_from if before is None else min(before, self.served_from)
        if self.served_from is not None and self.lives.started and not self.lives.turned:
            fresh = offset == self.served_from
        tokens = np.where(marks["tokens"] > 0, marks["tokens"], -1 if self.lives.adaptive else self.lives.tokens_now)
        return Shown(
            made.role, made.rows, made.wide, np.where(join >= 0, of.rows[join], NONE), mode,
            (made.input >= 0).astype(np.int64), printed, regions, fresh, offset, marks["steps"], tokens,
            np.maximum.reduceat(records["doubt"].astype(np.int64), made.first) if len(join) else join,
        )  # fmt: skip

    def _label(self, of: Shown, made: cutting.Passes, ends: int, *, final: bool) -> tuple[int, phases.Labels] | None:
        """Label the passes that can be; return how many may be handed out, and the labels of all."""
        lives, learned = self.lives, self.learned
        total = len(of.role)
        # What only ended passes show is learned once, in order.
        fresh_from = max(self._known, self._learned_until())
        if ends > fresh_from:
            part = of.part(slice(max(fresh_from - _CONTEXT, 0), ends))
            missing = _CONTEXT - min(fresh_from, _CONTEXT)
            if missing:
                part = Shown(
                    *(np.concatenate([np.full(missing, NONE).astype(column.dtype), column]) for column in part)
                )
            verified = learned.verify_rows if not lives.adaptive else 0
            learned.learn(
                part,
                lives.said_behind(part.offset, part.rows),
                lambda rows, tokens: phases.verifies_not(rows, tokens, verified),
            )
            self._learned_to = ends - self._known
        segment = lives.here
        if learned.version is not None and segment.spec_version is None:
            segment.spec_version, segment.spec_evidence = learned.version, learned.why
        # Which of two schedulers a pass is of is told by those behind it.
        settled = learned.settled and (self.schedulers == 1 or learned.version == "v2")
        if not final and not settled and ends - self._known < phases.ENOUGH:
            return None
        if self.schedulers > 1:
            assert self._records is not None
            if lives.padded:
                labels = phases.label(of, learned, lives, self._labels, final=final)[0]
            else:
                labels = interleaved.label(of, made, self._records, learned, self._labels, self._doubts)
            return (total if final else max(ends - 16, 0)), labels
        labels, ready = phases.label(of, learned, lives, self._labels, final=final)
        return (total if final else min(ends, int(ready.sum()) if ready.all() else int(np.argmin(ready)))), labels

    def _learned_until(self) -> int:
        return self._known + self._learned_to

    def _lost(self, edge: int) -> list[Columns]:
        """Return the prints up to an offset whose record cannot be told."""
        if not self._strays:
            return []
        lost = joined(self._strays)
        now = lost["offset"] < edge
        self._strays = [taken(lost, ~now)] if (~now).any() else []
        lost["speaks"] = np.ones(len(now), np.bool_)
        lost["differs"] = np.zeros(len(now), np.bool_)
        return [taken(lost, now)]

    def _during(self, of: Shown, labels: phases.Labels, start: int, until: int) -> np.ndarray:
        """Return where in the life passes stand. A pass printed behind "ready" may still be the warm-up's.

        Serving begins with an extend. One that has the rows of the warm-up's own Prefill line is the warm-up's, when
        no extend was printed before.
        """
        lives = self.lives
        during = np.where(of.region >= 0, CAPTURING, lives.of_passes(of.offset))
        if self._serving:
            return during
        ready = lives.at(of.offset)["ready"] > 0
        said = lives.warm_tokens
        several = (self.number or 1) > 1
        for at in range(start, until):
            if during[at] == CAPTURING:
                continue
            extends = labels.phase[at] == EXTEND and (of.role[at] == TARGET or not self.learned.targets)
            ahead = self._ahead is not None and bool(said) and self._ahead not in said
            if during[at] == WARMING:
                if extends:
                    self._ahead = int(of.rows[at]) if self._warm_extends and several else None
                self._warm += 1
                self._warm_extends += bool(extends)
            elif ready[at]:
                own = not self._warm_extends and int(of.rows[at]) in said
                if not ahead and labels.phase[at] != UNKNOWN and (own or (self._warm and not extends)):
                    self._warm_extends += bool(extends)
                    self._warm += 1
                    lives.late()
                    during[at] = WARMING
                else:
                    self._serving = True
                    break
        during[(during == WARMING) & (np.arange(len(during)) >= until)] = SERVING
        return during

    def _complete(self, made: cutting.Passes, of: Kinds, start: int, until: int) -> np.ndarray:
        """Tell which passes have the records their kind usually begins and ends with."""
        first, last = of.what[made.first], of.what[made.last]
        here = slice(start, until)
        for role in (TARGET, DRAFT):
            self._joins[role] |= bool(((made.role[here] == role) & (made.join[here] >= 0)).any())
        self._ends |= bool((made.end[here] >= 0).any())
        self._forwards |= bool((made.input[here] >= 0).any())
        layers = of.layer[made.first]
        for layer in layers[here][(first[here] == CAPTURE) & (made.role[here] == TARGET)].tolist():
            self._first_layers[layer] = self._first_layers.get(layer, 0) + 1
        usual = max(self._first_layers, key=lambda layer: self._first_layers[layer], default=None)
        target = made.role == TARGET
        joins = np.where(target, self._joins[TARGET], self._joins[DRAFT])
        ended = np.where(
            joins, made.join >= 0, np.where(target & self._ends, (last == END) | (made.end >= 0), last != NONE)
        )
        states = np.where(made.join >= 0, of.width[made.join] // max(self._hidden, 1), NONE)
        if usual is None:
            begun = target | (first == FORWARD) | (not self._forwards)
        else:
            captures = (first == CAPTURE) & ((layers == usual) | (states == made.captures))
            begun = np.where(target, captures, (first == FORWARD) | (not self._forwards))
        both: np.ndarray = ended & begun
        return both

    def _hand_out(
        self,
        made: cutting.Passes,
        of: Kinds,
        number: np.ndarray,
        shown: Shown,
        labels: phases.Labels,
        until: int,
        total: int,
        *,
        final: bool,
    ) -> Columns:
        """Return the passes from the context to ``until`` with their records and prints; keep what follows."""
        records, told = self._records, self._told
        assert records is not None
        assert told is not None
        start = self._known
        during = self._during(shown, labels, start, until)
        complete = self._complete(made, of, start, until)
        begin = self._first_open
        end = int(made.first[until]) if until < total else len(number)
        kept = np.arange(begin, end)
        kept = kept[number[begin:end] >= 0]
        stray = np.arange(begin, end)[number[begin:end] < 0]
        place = np.full(len(number), NONE)
        place[kept] = np.arange(len(kept))
        rows = slice(start, until)

        def moved(column: np.ndarray) -> np.ndarray:
            return np.where(column[rows] >= 0, place[column[rows]], NONE)

        passes: Columns = {
            "number": self.emitted + 1 + np.arange(until - start),
            "role": made.role[rows],
            "phase": labels.phase[rows],
            "evidence": labels.evidence[rows],
            "why": labels.why[rows],
            "tokens": shown.tokens[rows],
            "during": during[rows],
            "complete": complete[rows],
            "offset": shown.offset[rows],
            "rows": made.rows[rows],
            "wide": made.wide[rows],
            "captures": made.captures[rows],
            "printed": labels.evidence[rows] == phases.PRINTED,
            "region": shown.region[rows],
            "first": moved(made.first),
            "last": moved(made.last),
            "join": moved(made.join),
            "input": moved(made.input),
            "fc": moved(made.fc),
            "end": moved(made.end),
            "hidden": np.full(until - start, self._hidden),
            "expected": np.full(until - start, self.expected or NONE),
        }
        passes |= self.lineage.trace(
            made, rows, labels.phase, during, records, of, self.lives.here.topk, known=self.schedulers == 1
        )
        self.emitted += until - start
        dummy = shown.region[rows] >= 0
        draft = made.role[rows] == DRAFT
        fewer = (shown.join_rows[rows] >= 0) & (shown.join_rows[rows] != shown.rows[rows])
        now = (dummy & ~draft, dummy & draft, dummy & draft & fewer)
        was, (targets, drafts, over) = self._captured, now
        self._captured = (was[0] or bool(targets.any()), was[1] or bool(drafts.any()), was[2] or bool(over.any()))
        mine = (told["record"] >= begin) & (told["record"] < end)
        prints = taken(told, mine)
        out_records = taken(records, kept) | {"pass": number[kept] - start}
        stray_prints = np.isin(prints["record"], stray)
        edge = int(records["from"][end]) if end < len(number) else 1 << 62
        strays = joined([taken(prints, stray_prints), *self._lost(edge)])
        prints = taken(prints, ~stray_prints)
        prints["record"] = place[prints["record"]]
        out_records["print"] = np.full(len(kept), NONE)
        out = {"passes": passes, "records": out_records, "prints": prints, "strays": strays}
        # What stays: the context, and what was not handed out.
        context = max(until - _CONTEXT, 0) if not final else total
        keep_from = int(made.first[context]) if context < total else len(number)
        self._labels = [
            (int(labels.phase[at]), int(labels.evidence[at]), int(labels.why[at])) for at in range(context, until)
        ]
        self._learned_to = max(self._learned_until() - until, 0)
        self._known = until - context
        self._records = {name: column[keep_from:] for name, column in records.items()}
        left = told["record"] >= end
        self._told = taken(told, left)
        self._told["record"] = self._told["record"] - keep_from
        self._first_open = end - keep_from
        return out
