"""The phase of every forward pass, with how it is known: what is printed, the order, server lines, rows.

This module is responsible for :class:`Habits` (what the passes of one scheduler have shown so far) and for
:func:`decide`. It must not know how records are read or collapsed. With several draft steps a server runs:

    extend -> draft extend -> (draft decode)* -> verify -> draft_extend -> (draft decode)* -> verify -> ...

Every verify directly follows a draft decode and no extend does. With one step there is no draft decode, and what
follows decides: a draft pass that keeps all rows (FULL) follows a verify of spec v2, one that keeps a row a request
(LAST) an extend.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

from logscope.segments import ANY, MOST_DRAFT_TOKENS

if TYPE_CHECKING:
    from logscope.assembly import Open
    from logscope.model import Evidence, Payload, Phase
    from logscope.rounds import Round
    from logscope.segments import Lives, Prefill

# SGLang's names of forward modes, and what patches make of them. Numbers are never read: they changed between versions.
MODE_NAMES: dict[str, Phase] = {
    "extend": "extend",
    "mixed": "extend",
    "prefill": "extend",
    "split_prefill": "extend",
    "decode": "decode",
    "verify": "verify",
    "target_verify": "verify",
    "draft_extend": "draft_extend",
    "draft_extend_v2": "draft_extend",
    "idle": "idle",
}
_MODE_KEYS = frozenset({"forward_mode", "mode", "phase", "fmode", "forward_batch_mode"})
ORDER_OPEN = "several writers print the same text in pass after pass, so their order cannot be told"
_TWO_STEPS = "its records fit more than one step of a round"
# The phase of a draft pass by that of the target pass before it.
AFTER: dict[Phase, Phase] = {"extend": "extend", "verify": "draft_extend"}
# A Prefill line stands before its extend, or up to so many target passes behind its beginning.
REACH = 3


class Label(NamedTuple):
    """A phase with its evidence; ``unknown`` carries the reason."""

    phase: Phase
    evidence: Evidence
    reason: str | None = None


def printed_phase(payload: Payload) -> Phase | None:
    """Return the phase a record itself names in a field like ``forward_mode=ForwardMode.TARGET_VERIFY``."""
    for key, value in payload.fields.items():
        if key in _MODE_KEYS and isinstance(value, str):
            phase = MODE_NAMES.get(value.rsplit(".", 1)[-1].strip("<>: 0123456789").lower())
            if phase is not None:
                return phase
    return None


@dataclass(slots=True, eq=False)
class Habits:
    """What the passes of one scheduler have shown so far.

    decodes
        a draft pass directly after a draft pass, outside graph capture: several draft steps, printed.
    version
        ``v2`` when a verify is followed by a draft pass with all rows, ``v1`` when by the accepted rows only.
    verify_rows
        the greatest common divisor of the rows of all verifies known by order: draft tokens divide it.
    hidden
        a draft pass that reads several states stood directly behind a decode step: the target between prints nothing.
    captured_drafts
        draft passes were captured into graphs.
    capture_over
        a draft pass that kept fewer rows than it read: dummy passes keep all, so the end of the capture is lost.
    captured_rows
        the most rows of a target pass that was captured into a graph: smaller verifies are replayed and print nothing.
    prefill_places
        where the Prefill lines of certain extends stand, in logs of the target alone.
    last_names, full_names
        capture_hidden_mode as printed, by what its rows showed (a number means nothing before).
    """

    targets: int = 0
    drafts: int = 0
    decodes: bool = False
    wide: bool = False
    version: str | None = None
    version_why: str | None = None
    verify_rows: int = 0
    captured_rows: int = 0
    hidden: bool = False
    captured_drafts: bool = False
    capture_over: bool = False
    last_names: set[str] = field(default_factory=lambda: {"LAST"})
    full_names: set[str] = field(default_factory=lambda: {"FULL"})
    all_rows: set[str] = field(default_factory=set)
    prefill_places: Counter[int] = field(default_factory=Counter)
    _said: int = 0
    _unsaid: int = 0
    _shares: Counter[int] = field(default_factory=Counter)

    def note(self, made: Open, lives: Lives) -> None:
        """Learn from a pass that has ended, when the next one begins."""
        if made.role == "target":
            self.targets += 1
            if made.region is not None and made.rows is not None:
                self.captured_rows = max(self.captured_rows, made.rows)
            return
        self.drafts += 1
        back = made.back
        if made.region is not None:
            self.captured_drafts = True
            if made.join is not None and made.rows is not None and made.join.rows != made.rows:
                self.capture_over = True
            return
        if made.wide:
            self.wide = True
        self._names(made)
        if self.version is None and (made.rows or 0) > 1 and self.reads(made) == "FULL":
            self.version, self.version_why = "v2", "the draft keeps all rows (FULL) after a verify"
        if back is None:
            return
        if back.role == "draft":
            if made.wide and is_decode(back):
                self.hidden = True
            if not made.wide and made.input is not None and back.rows != 0:
                self.decodes = True
            elif self.version is None and made.wide and is_decode(back) and self.reads(made) == "LAST":
                self.version, self.version_why = "v1", "the draft keeps a row a request after its last decode step"
        else:
            self._after_target(made, back, lives)

    def never_verified(self, rows: int, kept: int) -> bool:
        """Tell whether verifies of ``rows / kept`` draft tokens are too rare to be verifies at all.

        A request is extended once and verified many times, so in a log that prints verifies at least half of the
        target passes have the rows of one number of draft tokens. Asked where no draft decode step tells.
        """
        total = self._shares.total()
        return total >= 8 and (rows % kept != 0 or 4 * self._shares[rows // kept] < total)

    @property
    def prefill_place(self) -> int | None:
        """Where this log prints the Prefill line of an extend; None where it has no fixed place (late prints)."""
        usual = self.prefill_places.most_common(1)
        if not usual or usual[0][1] < 0.8 * self.prefill_places.total():
            return None
        return usual[0][0]

    @property
    def says_extends(self) -> bool:
        """Whether every extend known by its rows was followed by its Prefill line (at least two were)."""
        return self._said >= 2 and not self._unsaid

    def _after_target(self, made: Open, back: Open, lives: Lives) -> None:
        """Learn from the first draft pass after a target pass."""
        if back.back is not None and is_decode(back.back) and back.rows:
            self.verify_rows = gcd(self.verify_rows, back.rows)
        if _no_verify(back, self, lives):
            if said_after(made, lives, back.rows):
                self._said += 1
            else:
                self._unsaid += 1
        if back.rows is not None and made.join is not None and made.join.rows:
            self._shares[back.rows // made.join.rows if back.rows % made.join.rows == 0 else 0] += 1
        if self.version is not None or made.rows is None:
            return
        if self.reads(made) == "LAST" and back.rows is not None and made.rows < back.rows:
            self.version, self.version_why = "v1", "the draft reads accepted rows only after a verify"

    def _names(self, made: Open) -> None:
        join = made.join
        if join is None or join.mode is None or join.rows is None or made.input is None or made.rows is None:
            return
        name = join.mode
        if join.rows < made.rows:
            self.last_names.add(name)
        elif made.rows > 1 and name not in self.last_names and name.isdigit():
            self.all_rows.add(name)

    def reads(self, made: Open) -> str | None:
        """Return how a draft pass's output was kept: ``FULL`` (all rows) or ``LAST`` (a row a request), or None."""
        return None if made.join is None else self.reads_rows(made.join, made.rows)

    def reads_rows(self, join: Payload, rows: int | None) -> str | None:
        """Return the same for an output and the rows that were read."""
        kept = join.rows
        if rows is not None and kept is not None and kept < rows:
            return "LAST"
        if join.mode in self.last_names:
            return "LAST"
        if join.mode in self.full_names:
            return "FULL"
        # A number: it is FULL once another number was seen to be LAST.
        if join.mode in self.all_rows and len(self.last_names) > 1:
            return "FULL"
        return None


def is_decode(made: Open) -> bool:
    """Tell whether a draft pass is a decode step: a draft pass before it, and one state a row."""
    if made.decided:
        return made.role == "draft" and made.phase == "decode"
    back = made.back
    return made.role == "draft" and back is not None and back.role == "draft" and not made.wide and back.rows != 0


def decide(made: Open, habits: Habits, lives: Lives, *, final: bool) -> Label | None:
    """Return a pass's phase, or None when what comes next may still tell it.

    ``final`` is True when nothing more comes, or when it has waited long enough.
    """
    if made.printed is not None:
        return Label(made.printed, "printed")
    if made.rows == 0:
        return Label("idle", "rows")
    if made.told is not None:
        phase, certain = made.told
        if certain and phase != "unknown":
            return Label(phase, "order")
        return Label("unknown", "none", "it fits more than one scheduler, or more than one step of a round")
    if made.blurred and made.region is None and habits.drafts:
        return Label("unknown", "none", ORDER_OPEN)
    if made.round is not None and (made.by_round or made.round.blurred or made.round.blurred_before):
        # What stands around it may be another round's.
        if made.role == "draft":
            return _by_round(made, habits, final=final)
        return _without_order(made, habits, lives, final=final)
    if made.role == "draft":
        if made.round is not None and made.wide and not (habits.hidden or lives.graphs):
            behind = made.back is not None and made.back.role == "draft"
            if behind or made is not made.round.wide:
                return Label("unknown", "none", _TWO_STEPS)  # It reads a joined state, and stands behind none.
        return _draft(made, habits, lives, final=final)
    return _target(made, habits, lives, final=final)


def _by_round(made: Open, habits: Habits, *, final: bool) -> Label | None:
    """Label a draft pass whose records were placed by round (rounds.py)."""
    if made in made.round.decodes:
        return Label("decode", "rows")
    if made is not made.round.wide:
        return Label("unknown", "none", _TWO_STEPS)
    target = made.round.target
    if not target.decided and not final:
        return None
    if habits.version == "v2" and (habits.reads(made), target.phase) in (("LAST", "verify"), ("FULL", "extend")):
        return Label("unknown", "none", "its output is kept as after another target pass than the one before it")
    if target.phase in AFTER:
        return Label(AFTER[target.phase], "order")
    return Label("unknown", "none", f"the target pass before it is {target.phase}, so extend or draft_extend")


def _without_order(made: Open, habits: Habits, lives: Lives, *, final: bool) -> Label | None:
    """Label a target pass where the records around it cannot be told from those of other rounds: by its rows."""
    rows, tokens = made.rows, draft_tokens_of(made, lives)
    if _no_verify(made, habits, lives):
        return Label("extend", "rows")
    if rows is not None and rows <= habits.captured_rows:
        return Label("extend", "server")
    reason = f"{rows} rows fit an extend and a verify, and several writers print the same text in pass after pass"
    if not lives.prefill_lines or tokens is None:
        return Label("unknown", "none", reason)
    lines = _lines_of(made.round, lives)
    if lines is not None:
        if lines and _no_verify_heard(made.round, habits, lives):
            lines[0].taken = len(lines) == 1
            return Label("extend", "server")
        one: Round | None = made.round
        while lines and one is not None and (one := one.next) is not None:
            # A line that can only be another round's, which is no verify, is not this one's.
            if one.target.rows == rows and not one.target.decided and _no_verify_heard(one, habits, lives):
                other = _lines_of(one, lives)
                if other is not None and len(other) == 1 and other[0] in lines:
                    lines.remove(other[0])
        if not lines:
            return Label("verify", "server")
    return Label("unknown", "none", reason) if final else None


def _lines_of(one: Round, lives: Lives) -> list[Prefill] | None:
    """Return the Prefill lines that may be a round's; None while more may come."""
    beyond: Round | None = one
    for _ in range(REACH):
        beyond = beyond.next if beyond is not None else None
    if beyond is None or not beyond.left:
        return None
    near = (line for line in lives.prefills if one.edge < line.offset <= beyond.said)
    return [line for line in near if line.new_token == one.target.rows and not line.taken]


def _no_verify_heard(one: Round, habits: Habits, lives: Lives) -> bool:
    """Tell whether a round is none of a verify: nobody printed what the writer ahead must have printed around one."""
    rows, tokens = one.target.rows, draft_tokens_of(one.target, lives)
    topk = lives.here.topk
    heard, before = one.heard, one.heard_before
    if rows is None or tokens is None or topk is None or one.next is None or heard is None or before is None:
        return False
    # Two kinds of records: a lost line is not to tell.
    told = habits.version == "v2" and habits.decodes and one.target.group.form.outputs
    if not told or (_steps(one.target, lives) or 0) < 2:
        return False
    return ("output", rows) not in heard and ("decode", rows // tokens * topk) not in before


def _draft(made: Open, habits: Habits, lives: Lives, *, final: bool) -> Label | None:
    if made.region is not None:
        return _captured_draft(made, habits, made.region, final=final)
    back = made.back
    if back is not None and back.role == "target":
        if made.wide is False and habits.wide and _lost_between(made, back, habits, lives):
            return Label("unknown", "none", "it is no draft pass of the target pass before it: lines between are lost")
        if back.phase in AFTER:
            return Label(AFTER[back.phase], "printed" if back.evidence == "printed" else "order")
        return Label("unknown", "none", f"the target pass before it is {back.phase}, so extend or draft_extend")
    if back is not None and not made.wide and back.rows != 0 and (made.wide is False or habits.targets):
        return Label("decode", "order")
    if back is None and made.wide is False and not made.fresh:
        if habits.wide:
            return Label("decode", "rows")
        if not final:
            return None
        return Label("unknown", "none", "nothing stands before it, and no draft pass that reads several states")
    return _hidden_target(made, habits, lives, final=final)


def _lost_between(made: Open, back: Open, habits: Habits, lives: Lives) -> bool:
    """Tell whether a draft pass that skips its fc cannot be the first behind a target pass: it reads other rows.

    Only after a verify of spec v1 the draft reads fewer rows than the target had.
    """
    if made.rows is None or back.rows is None or made.rows == back.rows:
        return False
    version = habits.version or lives.here.spec_version
    return made.rows > back.rows or back.phase == "extend" or version != "v1"


def _captured_draft(made: Open, habits: Habits, what: str, *, final: bool) -> Label | None:
    """Label a draft pass with dummy input, run while graphs are captured."""
    extend, form = "extend" in what, made.group.form
    # Where the target joins several states, only a draft pass that reads as many can be a draft_extend.
    widths_tell = made.wide is not None and (made.wide or habits.wide or form.fc or len(form.layers) > 1)
    if extend or "decode" in what or what.strip() == "draft":
        # The line that names the graph may lag behind other writers; the width does not.
        if made.wide == extend or not widths_tell:
            return Label("draft_extend" if extend else "decode", "server")
        return Label("draft_extend" if made.wide else "decode", "rows")
    if not widths_tell:
        if not final:
            return None
        return Label("unknown", "none", "graphs are captured, and no line tells of which draft pass")
    if made.join is not None and made.rows is not None and made.join.rows != made.rows:
        return Label("unknown", "none", "dummy passes keep all rows: the end of the graph capture is lost")
    return Label("draft_extend" if made.wide else "decode", "rows")


def _hidden_target(made: Open, habits: Habits, lives: Lives, *, final: bool) -> Label | None:
    """Label a draft pass whose target pass is not in the log: hidden by a graph, not printed, or cut off."""
    back = made.back
    read = habits.reads(made)
    version = habits.version or lives.here.spec_version
    if habits.decodes and back is not None and back.phase in ("extend", "draft_extend") and _steps(made, lives) != 1:
        return Label("extend", "order")
    if habits.decodes and back is not None and back.phase == "decode":
        # A verify must stand between. In spec v1 an extend may too, when every request had just ended.
        if version == "v2" or read == "FULL":
            return Label("draft_extend", "order")
        label = _after_hidden_verify(made, back, lives)
        if label is not None or not final:
            return label
    rows = made.rows if made.rows is not None or made.join is None else made.join.rows
    if read == "FULL" and (rows or 0) > 1:
        return Label("draft_extend", "rows")
    if made.wide and read == "LAST" and version == "v2":
        return Label("extend", "rows")
    if made.fresh:
        return Label("extend", "order")
    if not final:
        return None
    return Label("unknown", "none", "the target pass before it is not in the log")


def _after_hidden_verify(made: Open, back: Open, lives: Lives) -> Label | None:
    """Label a draft pass of spec v1 behind a draft decode, between which some target passes are not printed."""
    tokens, topk = draft_tokens_of(made, lives), lives.here.topk or 1
    if tokens is not None and made.rows is not None and back.rows is not None and made.rows * topk > back.rows * tokens:
        return Label("extend", "rows")
    if not made.closed:
        return None
    if said_after(made, lives, made.rows):
        return Label("extend", "server")
    if lives.prefill_lines and not lives.here.buffered:
        return Label("draft_extend", "server")
    return None


def _target(made: Open, habits: Habits, lives: Lives, *, final: bool) -> Label | None:
    if made.region is not None:
        return _captured(made, habits, lives, final=final)
    if not habits.drafts:
        return _alone(made, habits, lives, final=final)
    if made.fresh:
        # Nothing was served before it: there is nothing to verify.
        return Label("extend", "order")
    back = made.back
    rows, tokens = made.rows, draft_tokens_of(made, lives)
    # Behind a decode step with other rows than any verify has: the lines between are lost.
    lost = rows is not None and tokens is not None and rows % tokens != 0
    other = False
    if back is not None and is_decode(back) and not lost:
        if not _other_batch(back, rows, tokens, lives):
            said = _said_in_gap(made, habits, lives, final=final)
            if not said:
                return None if said is None else Label("verify", "order")
        other = True
    after = made.next
    if after is None:
        if not final:
            return None
        read = None
    else:
        if after.role == "draft" and after.join is None and not after.closed and not final:
            return None
        read = habits.reads(after) if after.role == "draft" else None
    if read == "FULL" and after is not None and (after.rows or 0) > 1:
        return Label("verify", "order")
    # Not behind a decode step, if what it is behind is known to be anything: no verify, where decode steps print.
    known = back is not None and (back.role == "target" or back.phase not in ("unknown", "idle")) and not other
    if known and _decodes_print(made, habits, lives):
        return Label("extend", "order")
    if _no_verify(made, habits, lives):
        return Label("extend", "rows")
    if rows is not None and rows <= habits.captured_rows:
        # A verify this small would have been replayed from a graph, without a print.
        return Label("extend", "server")
    version = habits.version or lives.here.spec_version
    if after is None:
        return Label("unknown", "none", "nothing that decides stands before it, and nothing follows")
    if after.role == "target":
        # Spec v1 leaves the draft pass out when every request has just ended; an extend always has one.
        if version == "v1":
            return Label("verify", "order")
        return None if version is None and not final else Label("unknown", "none", "no draft pass follows")
    if read == "LAST":
        return _kept_last(made, after, version, habits, lives, final=final)
    if not final:
        return None
    return Label("unknown", "none", f"{rows} rows fit an extend and a verify, and so does the draft pass that follows")


def _other_batch(back: Open, rows: int | None, tokens: int | None, lives: Lives) -> bool:
    """Tell whether a target pass behind a decode step has the rows of other requests than that step drafted for.

    Such a pass verifies nothing that was drafted there: passes between are lost, or print nothing any more.
    """
    topk = lives.here.topk
    if rows is None or back.rows is None or tokens is None or topk is None:
        return False
    return rows * topk != back.rows * tokens


def _said_in_gap(made: Open, habits: Habits, lives: Lives, *, final: bool) -> bool | None:
    """Tell whether a pass behind a decode step is an extend by its Prefill line; None when that may still come.

    Asked where verifies of spec v1 are seen to print nothing, so that one may stand between.
    """
    version = habits.version or lives.here.spec_version
    if not habits.hidden or version != "v1" or lives.here.buffered or made.group.several:
        return False
    after = made.next
    if (after is None or not after.closed) and not final:
        return None
    return after is not None and said_after(after, lives, made.rows)


def _kept_last(
    made: Open, after: Open, version: str | None, habits: Habits, lives: Lives, *, final: bool
) -> Label | None:
    """Label a target pass whose draft pass keeps a row a request: an extend, or in spec v1 a verify too."""
    if version == "v2":
        return Label("extend", "order")
    rows, tokens = made.rows, draft_tokens_of(made, lives)
    if rows is not None and after.rows is not None and after.rows < rows:
        return Label("verify", "order")
    kept = after.join.rows if after.join is not None and after.rows == rows else None
    if tokens is not None and kept is not None and kept * tokens != rows:
        # All rows go on although not every draft token of every request was accepted: no verify.
        return Label("extend", "rows")
    if kept and rows is not None and rows > MOST_DRAFT_TOKENS * kept:
        return Label("extend", "rows")
    if kept and rows is not None and version != "v1" and habits.never_verified(rows, kept):
        return Label("extend", "rows")
    if not after.closed and not final:
        return None
    if said_after(after, lives, rows):
        return Label("extend", "server")
    if version is None and not final:
        return None
    if version == "v1" and habits.says_extends and not lives.here.buffered:
        # Every extend is followed by its Prefill line in this log, and this pass is not.
        return Label("verify", "server")
    if not final:
        return None
    return Label(
        "unknown",
        "none",
        f"{rows} rows fit an extend and a verify with everything accepted, and spec v1 prints the same after both",
    )


def _decodes_print(made: Open, habits: Habits, lives: Lives) -> bool:
    """Tell whether the round of a pass has draft decode steps that print."""
    steps = _steps(made, lives)
    if lives.adaptive and (steps or 0) < 2:
        return False
    if habits.decodes:
        return True
    if (steps or 0) < 2:
        return False
    return not any("draft" in what and "extend" not in what for what in lives.graphs)


def _setting(made: Open, lives: Lives) -> tuple[int, int] | None:
    """Return the steps and draft tokens of a pass where adaptive drafting changes them; None if that is not known."""
    if lives.here.buffered:
        return None  # Prints come late beside the lines that say so.
    return made.setting or lives.first_setting


def _steps(made: Open, lives: Lives) -> int | None:
    """Return how many draft steps the round of a pass has."""
    if not lives.adaptive:
        return lives.here.num_steps
    setting = _setting(made, lives)
    return setting[0] if setting is not None else None


def draft_tokens_of(made: Open, lives: Lives) -> int | None:
    """Return how many draft tokens a request has in the round of a pass."""
    if not lives.adaptive:
        return lives.draft_tokens
    setting = _setting(made, lives)
    return setting[1] if setting is not None else None


def _no_verify(made: Open, habits: Habits, lives: Lives) -> bool:
    """Tell whether a target pass has rows that no verify has."""
    verified = habits.verify_rows if not lives.adaptive else 0
    return made.rows is not None and no_verify(made.rows, draft_tokens_of(made, lives), verified)


def no_verify(rows: int, tokens: int | None, verified: int) -> bool:
    """Tell whether so many rows can be no verify: it has draft tokens rows for each request.

    Where the number is not known, it divides the rows of every verify seen (``verified``, their common divisor).
    """
    if tokens is not None:
        return rows % tokens != 0
    return verified > 1 and gcd(rows, verified) == 1


def _captured(made: Open, habits: Habits, lives: Lives, *, final: bool) -> Label | None:
    """Label a target pass with dummy input, run while graphs are captured."""
    what = made.region or ""
    if what == ANY and made.next is None and not final:
        return None
    if "verify" in what:
        return Label("verify", "server")
    if "piecewise" in what or "prefill" in what:
        return Label("extend", "server")
    if habits.drafts:
        return Label("verify", "order")
    if lives.speculating is None and not final:
        return None
    if lives.speculating is None:
        return Label("unknown", "none", "verify with speculation, decode without, and no line tells which")
    return Label("verify" if lives.speculating else "decode", "server")


def _alone(made: Open, habits: Habits, lives: Lives, *, final: bool) -> Label | None:
    """Label a target pass of a log in which no draft prints: server lines and rows are all there is."""
    rows, tokens = made.rows, draft_tokens_of(made, lives)
    if not final and _later(made, _FAR if made.group.several else REACH) is None:
        return None  # Its Prefill line may stand behind passes that are still to come.
    line = _prefill_of(made, habits, lives)
    if line is not None:
        line.taken = True
        return Label("extend", "server")
    if made.fresh:
        return Label("extend", "order")
    if rows is None:
        return Label("unknown", "none", "no record of it prints its rows")
    if lives.speculating is None and not final:
        return None
    if not lives.speculating:
        if lives.speculating is False and lives.prefills:
            return Label("decode", "server")
        return Label("unknown", "none", f"{rows} rows: nothing else in the log tells extend from verify or decode")
    if tokens is None:
        if not final:
            return None
        return Label("unknown", "none", f"{rows} rows, and the log does not say how many draft tokens a round has")
    if rows % tokens:
        if not lives.prefill_lines and rows > tokens:
            return Label("extend", "rows")
        return Label(
            "unknown", "none", f"{rows} rows are no multiple of {tokens} draft tokens, and no Prefill line names them"
        )
    if rows <= habits.captured_rows:
        return Label(
            "unknown", "none", f"a verify of {rows} rows runs from a graph, and no Prefill line names an extend"
        )
    if _too_many(made, tokens, lives):
        return Label("unknown", "none", f"{rows} rows are more than {lives.most_running} requests verify")
    if made.group.several and _near_lines(made, lives):
        return Label("unknown", "none", f"a Prefill line near it names {rows} rows, and several writers print")
    near = _places(made, lives) if not made.group.several else {}
    usual = habits.prefill_place
    # A line that stands nearer than usual may be this pass's: nothing was printed between them.
    clear = not near or (usual is not None and not any(0 < place < usual for place in near))
    if lives.prefill_lines and clear and (made.group.several or not _left_over(made, lives)):
        return Label("verify", "server")
    if not lives.prefill_lines and lives.running is not None and lives.running * tokens == rows:
        return Label("verify", "server")
    if not final and not near:
        return None
    return Label("unknown", "none", f"{rows} rows fit an extend and a verify of {tokens} draft tokens a request")


# With several writers, of which one logs, it stands so many before or behind it: they run apart.
_FAR = 16


def _later(made: Open | None, steps: int) -> Open | None:
    """Return the pass so many target passes behind one."""
    while made is not None and steps:
        made = made.next
        if made is not None and made.role == "target":
            steps -= 1
    return made


def _places(made: Open, lives: Lives) -> dict[int, Prefill]:
    """Return the Prefill lines near a pass that name its rows: -1 stands before it, 1 behind it, 2 behind the next."""
    places: dict[int, Prefill] = {}
    edges = [made.back.offset if made.back is not None else -1, made.offset]
    later: Open | None = made
    for _ in range(REACH):
        later = _later(later, 1)
        edges.append(later.offset if later is not None else 1 << 62)
    for prefill in lives.prefills:
        if prefill.taken or prefill.new_token != made.rows or not edges[0] < prefill.offset < edges[-1]:
            continue
        place = -1 if prefill.offset < made.offset else sum(edge < prefill.offset for edge in edges[1:])
        places.setdefault(place, prefill)
    return places


def _near_lines(made: Open, lives: Lives) -> list[Prefill]:
    """Return the Prefill lines that name the rows of a pass, no farther from it than :data:`_FAR` passes reach."""
    later = _later(made, _FAR)
    span = later.offset - made.offset if later is not None else 1 << 62
    return [
        line
        for line in lives.prefills
        if not line.taken and line.new_token == made.rows and abs(line.offset - made.offset) <= span
    ]


def _too_many(made: Open, tokens: int, lives: Lives) -> bool:
    """Tell whether a pass has more rows than a verify of as many requests as ever ran, as far as lines say."""
    return made.rows is not None and 0 < lives.most_running * tokens < made.rows


def _left_over(made: Open, lives: Lives) -> bool:
    """Tell whether a Prefill line that names the rows of a pass stands before it, and no pass was found for it."""
    return any(not line.taken and line.new_token == made.rows and line.offset < made.offset for line in lives.prefills)


def _prefill_of(made: Open, habits: Habits, lives: Lives) -> Prefill | None:
    """Return the Prefill line of a pass, if it is one's: where this log is seen to print it."""
    places = _places(made, lives)
    if places and habits.targets <= lives.prefill_lines:
        # As many lines as passes: every pass is an extend, wherever its line stands.
        return places[min(places)]
    tokens = draft_tokens_of(made, lives)
    sure = made.rows is not None and tokens is not None and (made.rows % tokens != 0 or _too_many(made, tokens, lives))
    if made.group.several:
        return (
            min(_near_lines(made, lives), key=lambda line: abs(line.offset - made.offset), default=None)
            if sure
            else None
        )
    if len(places) == 1 and (sure or tokens is None) and not lives.here.buffered:
        # Only an extend has these rows: where its line stands is learned.
        ((place, line),) = places.items()
        if sure:
            habits.prefill_places[place] += 1
        return line
    if not habits.prefill_places:
        # Nothing is learned yet: right before the pass, with no other pass that it could name.
        back = made.back
        other = back is not None and (back.rows == made.rows or (back.back is not None and back.back.rows == made.rows))
        return places.get(-1) if len(places) == 1 and not other else None
    usual = habits.prefill_place
    return places.get(usual) if usual is not None else None


def said_after(after: Open, lives: Lives, rows: int | None) -> bool:
    """Tell whether a ``Prefill batch`` line of so many tokens stands right behind a draft pass (as spec v1 has it)."""
    ceiling = after.next.offset if after.next is not None else None
    for prefill in reversed(lives.prefills):
        if prefill.offset < after.offset:
            break
        if (ceiling is None or prefill.offset < ceiling) and prefill.new_token == rows:
            return True
    return False
