"""Completions, and what their beginnings are worth: more completions, sampled from there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from etude.advantages.segments import SampledValues
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.fields import Count
from etude.core.rows import to_batch
from etude.core.slots import Context, GroupReward
from etude.experience.groups import Groups
from etude.experience.rollout import Start, first_tokens, rollout
from etude.rewards.steps import EveryTokens, Splitter, several_splitters

if TYPE_CHECKING:
    from etude.core.method import Method


class Forks(Groups):
    """`size` completions of each problem and, from where each of their steps begins, `rollouts` fresh ones.

    What a text is worth is the mean score of the fresh ones, an unbiased estimate of what the policy that sampled is
    paid from there on (`batch.sampled_values`); they are rewarded like all others, and then leave: nothing is learned
    from them, and no statistic counts them. Completions of one problem that begin alike share what is sampled from that
    beginning; it is read once. A fresh one has the room that was left to the completion which it goes on from.

    `forked_tokens` in the metrics: tokens that were sampled so, of `sampled_tokens`.

    Args:
        rollouts: fresh completions from each beginning.
        splitter: where steps begin; marks `batch.step`.
        max_tokens: limit of one turn, whoever samples its end.

    Twelve completions are sampled for each one that has three steps, nine for the steps after the prompt:

    >>> part = Forks(size=8, rollouts=4, splitter=EveryTokens(length=16))
    >>> -(-40 // part.splitter.length) * part.rollouts, part.rows_per_problem
    (12, 8)
    """

    probes: ClassVar[bool] = True
    rollouts: Count = 9
    splitter: Splitter = EveryTokens()

    def objection(self, method: Method) -> str | None:
        slots, held = method.slots(), method.parts().values()
        if not any(isinstance(part, SampledValues) for part in held):
            return "samples what texts are worth, and nothing reads that: set advantages=segment-advantage."
        if slots.get("second_look") is not None:
            return "has no values for what a second look puts in: leave out second_look, or choose experience=groups."
        for part in slots.get("rewards", ()):
            if isinstance(part, GroupReward):
                return (
                    f"scores single completions, and {type(part).__name__} compares those of a problem: leave it out."
                )
        return several_splitters(method) or super().objection(method)

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        attempts = super().collect(problems, context)
        whole = [i for i, e in enumerate(attempts) if e.stop is not StopReason.FAULT and e.action_count]
        if not whole:
            return attempts
        numbers, starts = dict[object, int](), list[Start]()
        for i, places in zip(whole, self._places([attempts[i] for i in whole], context)):
            episode = attempts[i]
            episode.info["prefixes"] = []
            for place in places:
                world = episode.seed if context.task.max_turns > 1 else None
                key = episode.group, world, tuple(episode.tokens[:place])
                if key not in numbers:
                    starts += self._starts(i, episode, place, context)
                number = numbers.setdefault(key, len(numbers))
                episode.info["prefixes"].append([place, number])
        sampling = dataclasses.replace(self.sampling(context), whole_turns=True)
        fresh = rollout(starts, context, sampling) if starts else []
        for k, episode in enumerate(fresh):
            episode.info["prefix"] = k // self.rollouts
        context.policy.work["forked_tokens"] += sum(e.action_count for e in fresh)
        return attempts + fresh

    def _places(self, episodes: Sequence[Episode], context: Context) -> list[list[int]]:
        """First tokens of each episode's steps, whose numbers are noted on its segments."""
        tokenizer = context.policy.tokenizer
        batch = to_batch(episodes, tokenizer.pad_token_id, self.temperature, context.policy.device)
        found = []
        for episode, step in zip(episodes, self.splitter.step(batch, tokenizer).tolist()):
            begin = 0
            for s in episode.segments:
                s.info["step"] = step[begin : begin + len(s.tokens)]
                begin += len(s.tokens)
            known = [n for n in step if n >= 0]
            found.append([step.index(n) for n in dict.fromkeys(known)])
        return found

    def _starts(self, number: int, episode: Episode, place: int, context: Context) -> list[Start]:
        """Where to go on from, so many tokens into an episode."""
        assert episode.draw is not None
        said, begun = _said(episode, place, context)
        at = Start(episode.problem, episode.group, episode.draw, said, begun > 0, seed=episode.seed, parent=number)
        return [at._replace(draw=episode.draw.child("fork", place, k)) for k in range(self.rollouts)]


def _said(episode: Episode, place: int, context: Context) -> tuple[tuple[Segment, ...], int]:
    """What the policy had said by so many tokens of an episode, and how many of them are an open turn's."""
    said, begin = list[Segment](), 0
    for s in episode.segments:
        begun = place - begin
        if any(s.action_mask) and begun < len(s.tokens):
            return (*said, *([first_tokens(s, begun, context.policy)] if begun else [])), begun
        said += [s] if any(s.action_mask) else []
        begin += len(s.tokens)
    raise AssertionError("a step begins inside of a turn")
