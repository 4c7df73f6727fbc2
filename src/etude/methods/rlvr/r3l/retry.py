"""Reflect, then retry: the policy says where an attempt went wrong, and goes on from there with its own advice."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import ConfigError
from etude.core.fields import Count, Ge
from etude.core.slots import Context
from etude.experience.groups import Groups
from etude.experience.rollout import Start, first_tokens, fresh, rollout

if TYPE_CHECKING:
    from etude.core.task import LanguageTask

FORM = re.compile(r"<(?:(ok)|(slow|fail) (\d{1,3}) ([^\s<>]{1,16}))>", re.ASCII)


class Report(NamedTuple):
    """What the policy says about an attempt: how it ended, the step to retry from, and a word of advice for it."""

    outcome: str
    step: int = 0
    advice: str = ""


def read_report(text: str, steps: int) -> Report | None:
    """The report in a text, about an attempt of so many steps; None if it is malformed or out of range.

    >>> read_report("<fail 3 W>", steps=5)
    Report(outcome='fail', step=3, advice='W')
    >>> read_report("<fail 5 W>", steps=5) is None
    True
    """
    found = FORM.fullmatch(text.strip())
    if found is None:
        return None
    if found[1]:
        return Report("ok")
    return Report(found[2], int(found[3]), found[4]) if int(found[3]) < steps else None


class ReflectThenRetry(Groups):
    """Half of a group are attempts; each is followed by a report and by at most one retry (R3L).

    After an attempt the policy is shown it again with `request`, and reports `<ok>`, `<slow k ADVICE>` or
    `<fail k ADVICE>`: success, success with wasted steps, failure; k counts from 0. Anything else, and a k that the
    attempt does not have, is rejected. From a report that is not `<ok>`, the first k steps are said again in an
    environment of the same seed, `guidance` is shown, and the policy goes on. Steps are turns; a task of one turn has
    the pieces of its completion, each ended by `separator`, and the guidance stands before it.

    Rows are the attempts; the retries without the guidance (marked `elsewhere`: their tokens were sampled where it
    was seen); and, marked `auxiliary`, what is to be imitated (`imitated`). The first k steps, which attempt
    and retry have in common, are learned in neither; rewards on them move to the first step that is learned.

    `state` counts attempts, reports that were rejected, retries, and successes of both, since the run began. Mostly
    failures are retried, on problems that are hard: `peer_successes` is what as many fresh attempts at the same
    problems came to, for each retry the share of the other attempts at its problem that succeeded.

    Args:
        size: attempts and retries of a problem, at most.
        request: what the policy is shown after an attempt, `guidance` before a retry ({}: the advice).
        separator: where a single completion may be cut.
        report_tokens: limit of a report.
        pivotal: whether common steps are left out; if not, both rows learn them.
        imitate: whether reports that helped and guided retries that succeeded, better paid or in fewer steps than the
            attempt, become rows of their own.

    With 8 there are 4 attempts; a report of failure names the step to retry from, and gives advice:

    >>> ReflectThenRetry(size=8).size // 2, read_report("<fail 2 W>", steps=3)
    (4, Report(outcome='fail', step=2, advice='W'))
    """

    size: Annotated[int, Ge(2)] = 8
    request: str = "\nreport: "
    guidance: str = "try {}\n"
    separator: str = ","
    report_tokens: Count = 12
    pivotal: bool = True
    imitate: bool = True

    def check(self) -> None:
        if self.size % 2:
            raise ConfigError(f"ReflectThenRetry.size must be even, half of it attempts, got {self.size}.")
        if "{}" not in self.guidance or not self.request or not self.separator:
            raise ConfigError("ReflectThenRetry needs a request, a separator, and {} in its guidance for the advice.")

    def initial_state(self) -> dict[str, Any]:
        counts = ("attempts", "rejected", "retries", "attempt_successes", "retry_successes", "helped")
        return {**dict.fromkeys(counts, 0), "peer_successes": 0.0}

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        attempts = rollout(fresh(problems, self.size // 2, context.stream), context, self.sampling(context))
        reflections = self._reflect(attempts, context)
        reports = [None if r is None else self._read(r, e, context) for r, e in zip(reflections, attempts)]
        again = {i: report for i, report in enumerate(reports) if report and report.outcome != "ok"}
        starts = [self._start(i, attempts[i], report, context) for i, report in again.items()]
        guided = dict(zip(again, rollout(starts, context, self.sampling(context))))
        self._count(attempts, reports, guided, context)
        rows, retries, extra = [], [], []
        for i, (attempt, reflection, report) in enumerate(zip(attempts, reflections, reports)):
            retry = guided.get(i)
            cut = self._cut(attempt, report, context) if retry and report and self.pivotal else None
            rows.append(attempt if cut is None else without_prefix(attempt, *cut))
            if retry:
                retries.append(self._unguided(retry, cut))
            if self.imitate and reflection and report:
                shorter = retry is not None and self._steps(retry, context) < self._steps(attempt, context)
                extra += imitated(attempt, reflection, report, retry, context.task, shorter)
        return rows + [r for r in retries if r.stop is not StopReason.FAULT] + extra

    # Reports

    def _reflect(self, attempts: Sequence[Episode], context: Context) -> list[Episode | None]:
        """Each attempt with the report that the policy gives after it; None where there is no room for one."""
        policy, asked = context.policy, context.policy.encode(self.request)
        found: list[Episode | None] = [_shown(e, Segment("user", self.request), asked) for e in attempts]
        for i, (e, attempt) in enumerate(zip(found, attempts)):
            room = e is not None and len(e.tokens) + self.report_tokens <= policy.context
            if not room or attempt.stop is StopReason.FAULT or not attempt.action_count:
                found[i] = None
        able = [e for e in found if e is not None]
        sampling = dataclasses.replace(self.sampling(context), max_tokens=self.report_tokens, stop=(">",))
        said = policy.generate([e.tokens for e in able], sampling, [e.draw for e in able])
        for e, c in zip(able, said):
            report = Segment("critique", policy.decode(c.tokens), c.tokens, [1] * len(c.tokens), c.logp, policy.version)
            if c.entropy:
                report.info["entropy"] = c.entropy
            e.segments.append(report)
        return found

    def _read(self, reflection: Episode, attempt: Episode, context: Context) -> Report | None:
        return read_report(reflection.segments[-1].text, len(self._places(attempt, context)))

    # Steps

    def _places(self, attempt: Episode, context: Context) -> list[tuple[int, int]]:
        """Where steps begin: turns before it, and tokens of the turn that it begins in."""
        turns = [s for s in attempt.segments if s.role == "assistant"]
        if context.task.max_turns > 1:
            return [(k, 0) for k in range(len(turns))]
        tokens = turns[0].tokens
        ends = {t for t in set(tokens) if self.separator in context.policy.decode([t])}
        return [(0, 0), *((0, i + 1) for i, t in enumerate(tokens[:-1]) if t in ends)]

    def _steps(self, episode: Episode, context: Context) -> int:
        return len(self._places(episode, context))

    def _cut(self, attempt: Episode, report: Report, context: Context) -> tuple[int, int]:
        return self._places(attempt, context)[report.step]

    def _start(self, number: int, attempt: Episode, report: Report, context: Context) -> Start:
        """Where a retry begins."""
        turns, tokens = self._cut(attempt, report, context)
        said = [s for s in attempt.segments if s.role == "assistant"]
        begun = (first_tokens(said[turns], tokens, context.policy),) if tokens else ()
        hint = self.guidance.replace("{}", report.advice)
        assert attempt.draw is not None
        return Start(
            attempt.problem, attempt.group, attempt.draw.child("retry"), (*said[:turns], *begun), bool(begun), hint,
            attempt.seed, number,
        )  # fmt: skip

    def _unguided(self, retry: Episode, cut: tuple[int, int] | None) -> Episode:
        """A retry as if the guidance had not been shown; with `cut`, only what follows it is learned."""
        segments = [_learned(s, 0) for s in retry.segments if "hint" not in s.info]
        whole = dataclasses.replace(retry, segments=segments, elsewhere=True)
        return whole if cut is None else without_prefix(whole, *cut)

    def _count(
        self, attempts: Sequence[Episode], reports: Sequence[Any], guided: dict[int, Episode], context: Context
    ) -> None:  # fmt: skip
        for name, number in {
            "attempts": len(attempts),
            "rejected": sum(r is None for r in reports),
            "retries": len(guided),
            "attempt_successes": sum(map(context.task.success, attempts)),
            "retry_successes": sum(map(context.task.success, guided.values())),
            "helped": sum(e.reward > attempts[i].reward for i, e in guided.items()),
            "peer_successes": sum(_peers(attempts, i, context) for i in guided),
        }.items():
            self.state[name] += number


def _peers(attempts: Sequence[Episode], number: int, context: Context) -> float:
    """Share of the other attempts at an attempt's problem that succeeded; 0 if there are none."""
    others = [e for i, e in enumerate(attempts) if e.group == attempts[number].group and i != number]
    return sum(bool(context.task.success(e)) for e in others) / max(1, len(others))


def without_prefix(episode: Episode, turns: int, tokens: int) -> Episode:
    """The episode with only what the policy said from some turn on, and from some token of that turn, learned."""
    segments, turn, moved = [], 0, 0.0
    for s in episode.segments:
        if s.role == "assistant":
            if turn < turns:
                s, moved = dataclasses.replace(_learned(s, len(s.tokens)), reward=0.0), moved + s.reward
            elif turn == turns:
                s = dataclasses.replace(_learned(s, tokens), reward=s.reward + moved)
            turn += 1
        segments.append(s)
    return dataclasses.replace(episode, segments=segments, info=dict(episode.info))


def imitated(
    attempt: Episode, reflection: Episode, report: Report, retry: Episode | None, task: LanguageTask, shorter: bool
) -> list[Episode]:  # fmt: skip
    """Rows to imitate: a report of success that is true; a report and the guided retry that succeeded after it, if
    that was paid better than the attempt or took fewer steps (`shorter`)."""
    if report.outcome == "ok":
        return [reflection] if task.success(attempt) else []
    if retry is None or not task.success(retry) or not (retry.reward > attempt.reward or shorter):
        return []
    return [reflection, dataclasses.replace(retry, auxiliary=True)]


def _learned(segment: Segment, start: int) -> Segment:
    """What the policy said, learned from its token `start` on; other segments as they are."""
    if segment.role != "assistant":
        return segment
    size, recorded = len(segment.tokens), segment.info.get("entropy")
    info = {k: v for k, v in segment.info.items() if k != "entropy"}
    if recorded and size - start > 0:  # one entry for every learned token
        info["entropy"] = ([0.0] * size + list(recorded))[-(size - start) :]
    return dataclasses.replace(segment, action_mask=[0] * start + [1] * (size - start), info=info)


def _shown(episode: Episode, request: Segment, tokens: list[int]) -> Episode:
    """An episode as something to read, followed by a request: nothing of it is learned or paid."""
    request = dataclasses.replace(
        request, tokens=tokens, action_mask=[0] * len(tokens), behaviour_logp=[0.0] * len(tokens)
    )
    read = [
        dataclasses.replace(s, action_mask=[0] * len(s.tokens), reward=0.0, info={}) for s in episode.segments
    ]  # fmt: skip
    assert episode.draw is not None
    return dataclasses.replace(
        episode, segments=[*read, request], draw=episode.draw.child("report"), info={}, auxiliary=True,
        stop=StopReason.TERMINATED,
    )  # fmt: skip
