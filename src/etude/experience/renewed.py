"""Completions that take newer weights on their way: what has not ended after some tokens goes on with them.

A completion stops after `after` tokens and waits there for the weights that one more training step has made; the tokens
behind are theirs, and so is what they make of all that was said before: its keys and values are computed again. So
every token has the log-probability that one policy gives it after the tokens before it, and says which policy. Weights
that change while rows are decoded are AReaL's (arXiv:2505.24298, 4.1) and PipelineRL's (arXiv:2509.19128); there they
change when they come, here after a number of tokens, so that a run can be repeated and gone on with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from etude.core.episodes import Episode, Segment, StopReason
from etude.core.errors import ConfigError, InvariantError
from etude.experience.rollout import Start
from etude.experience.samplers import Samplers
from etude.experience.views import View
from etude.policies.sampling import Sampling
from etude.policies.snapshots import Snapshot
from etude.runtime.executors.roles import Answer

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

NOTED = ("entropy", "voices")
"""What segments say of each of their tokens, as lists."""


class Asked:
    """Episodes that samplers are at, of a task of one turn where they are to wait on their way.

    Args:
        snapshot: the weights that they are begun with.
        after: tokens of a completion after which it waits; 0: none does.
    """

    def __init__(
        self, samplers: Samplers, policy: LanguagePolicy, starts: Sequence[Start], sampling: Sampling, view: View,
        snapshot: Snapshot, after: int = 0,
    ) -> None:  # fmt: skip
        self.samplers, self.policy, self.view, self.whole = samplers, policy, view, sampling
        self.found = dict[int, Episode]()
        self.going = {number: start for number, start in enumerate(starts)}
        self.said = 0
        self._ask(snapshot, after)

    @property
    def there(self) -> bool:
        """Whether nobody would wait for what was asked for last."""
        return self.answer is None or self.answer.there

    def renew(self, snapshot: Snapshot, after: int = 0) -> None:
        """Let those that wait go on with these weights; waits until all have come so far."""
        self._take()
        left = {n: (start, episode) for n, start in self.going.items() if self._waits(episode := self.found[n])}
        self.going = {n: _onward(start, episode) for n, (start, episode) in left.items()}
        self.said += self.sampling.max_tokens
        self._ask(snapshot, after)

    def episodes(self) -> list[Episode]:
        """All of them in the order of their starts, once they are there. Raises what `Samplers.finish` does."""
        self._take()
        return [self.found[number] for number in sorted(self.found)]

    def _ask(self, snapshot: Snapshot, after: int) -> None:
        left = self.whole.max_tokens - self.said
        self.snapshot, self.waiting = snapshot, 0 < after < left
        counted = self.whole.whole_turns and not self.said
        room = after if self.waiting else left
        self.sampling = dataclasses.replace(self.whole, max_tokens=room, whole_turns=counted)
        self.answer: Answer | None = None
        if self.going:
            self.answer = self.samplers.begin([*self.going.values()], self.sampling, snapshot, self.view)

    def _take(self) -> None:
        """Fetch what was asked for, once."""
        if self.answer is None:
            return
        episodes = self.samplers.finish(self.answer, [*self.going.values()], self.policy, self.snapshot)
        for number, episode in zip(self.going, episodes, strict=True):
            before = self.found.get(number)
            self.found[number] = episode if before is None else joined(before, episode)
        self.answer = None

    def _waits(self, episode: Episode) -> bool:
        """Whether there is more to come of a completion. Raises ConfigError where nobody can know."""
        if not self.waiting or episode.stop not in (StopReason.MAX_TOKENS, StopReason.MAX_TURNS):
            return False
        if len(said(episode).tokens) < self.said + self.sampling.max_tokens:
            return False
        if episode.stop is StopReason.MAX_TURNS:
            raise ConfigError(
                f"The environment of problem {episode.problem.id!r} goes on after its only turn, so that nobody can "
                "see whether a completion was cut or had ended: leave renew_after at 0."
            )
        return True


def can_wait(starts: Sequence[Start], view: View) -> bool:
    """Whether completions of these can be stopped and gone on with: begun at their problems, and seen whole."""
    return view.whole and not any(start.segments for start in starts)


def said(episode: Episode) -> Segment:
    """What the policy said in the only turn of an episode."""
    return next(s for s in reversed(episode.segments) if s.role == "assistant")


def joined(before: Episode, after: Episode) -> Episode:
    """An episode that went on from where another stopped, all of its completion being its own.

    Raises: InvariantError if it does not begin with what was said there.
    """
    if after.stop is StopReason.FAULT:
        return after
    first, whole = said(before), said(after)
    count = len(first.tokens)
    if whole.tokens[:count] != first.tokens:
        raise InvariantError(
            f"A completion for problem {after.problem.id!r} was to go on from {count} tokens, and came with others."
        )
    new, pieces = len(whole.tokens) - count, first.info.get("pieces", [count])
    info = {k: v for k, v in whole.info.items() if k not in ("begun", "open", "replayed")}
    info |= {k: [*first.info[k], *whole.info.get(k, ())] for k in NOTED if k in first.info}
    if "allowed" in first.info:
        info["allowed"] = torch.cat([first.info["allowed"], *([whole.info["allowed"]] if new else [])])
    versions = [*first.versions, *[whole.version] * new]
    whole.info = {**info, "pieces": [*pieces, new] if new else pieces, "versions": versions}
    after.fork_turn = before.fork_turn
    whole.action_mask[:count], whole.behaviour_logp[:count] = first.action_mask, first.behaviour_logp
    return after


def _onward(start: Start, episode: Episode) -> Start:
    """Where an episode goes on: behind what was said in it."""
    return start._replace(segments=(dataclasses.replace(said(episode), info={}),), open=True)
