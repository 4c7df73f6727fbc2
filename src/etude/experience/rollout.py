"""Playing episodes: all of them advance together, turn by turn, through the environment of the task.

Tokens are the only record of what was sampled. Text goes one way: from tokens to the environment; what the
environment answers is encoded once and never decoded back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from etude.core.batches import Episode, Problem, Segment, StopReason
from etude.core.errors import EnvironmentFault, EtudeError
from etude.core.slots import Context
from etude.experience.chat import opening
from etude.policies.sampling import Completion, Sampling

MAX_FAULTS = 3
"""Episodes in a row that an environment may lose before the run stops."""


def rollout(jobs: Sequence[tuple[Problem, int]], context: Context, sampling: Sampling) -> list[Episode]:
    """One episode per (problem, group). Episodes whose environment raised end with `StopReason.FAULT`.

    Raises EnvironmentFault if the environment keeps raising, or returns something that is not a finite reward.
    """
    episodes = [Episode(problem, group=group) for problem, group in jobs]
    worlds = [context.task.environment() for _ in jobs]
    faults = _Faults()
    going = [i for i, e in enumerate(episodes) if _start(e, worlds[i], i, context, faults)]
    for turn in range(context.task.max_turns):
        going = [i for i in going if _fits(episodes[i], context, sampling)]
        if not going:
            break
        said = _speak([episodes[i].tokens for i in going], context, sampling, turn)
        going = [i for i, c in zip(going, said) if _answer(episodes[i], worlds[i], c, context, faults)]
    for i in going:
        episodes[i].stop = StopReason.MAX_TURNS
    return episodes


def _speak(views: list[list[int]], context: Context, sampling: Sampling, turn: int) -> list[Completion]:
    room = context.policy.context - max(map(len, views))
    limited = replace(sampling, max_tokens=min(sampling.max_tokens, room))
    return context.policy.generate(views, limited, context.stream.split("turn", turn))


def _start(episode: Episode, world: Any, number: int, context: Context, faults: _Faults) -> bool:
    seed = context.stream.split("environment", number).key % (1 << 31)
    try:
        segments = world.reset(episode.problem, seed)
    except EtudeError:
        raise
    except Exception as error:
        return faults.lost(episode, error)
    texts = opening(segments, context.policy)
    for segment, tokens in zip(segments, texts):
        _observe(episode, segment, tokens)
    return True


def _fits(episode: Episode, context: Context, sampling: Sampling) -> bool:
    """Whether at least one more token fits the context; otherwise the episode ends here."""
    if len(episode.tokens) < context.policy.context:
        return True
    episode.stop = StopReason.CONTEXT_OVERFLOW
    return False


def _answer(episode: Episode, world: Any, said: Completion, context: Context, faults: _Faults) -> bool:
    """Give the environment what the policy said; True if the episode goes on."""
    policy = context.policy
    segment = Segment(
        "assistant", policy.decode(said.tokens), said.tokens, [1] * len(said.tokens), said.logp, policy.version
    )
    if said.entropy:
        segment.info["entropy"] = said.entropy
    episode.segments.append(segment)
    begun = time.monotonic()
    try:
        result = world.step(segment)
    except EtudeError:
        raise
    except Exception as error:
        return faults.lost(episode, error)
    segment.duration = time.monotonic() - begun
    segment.reward = _finite(result.reward, episode, context)
    if result.info:
        episode.info.update(result.info)
    faults.fine()
    over = result.terminated or result.truncated
    if over:
        cut = said.stop is StopReason.MAX_TOKENS
        episode.stop = StopReason.TRUNCATED if result.truncated else said.stop if cut else StopReason.TERMINATED
        return False
    for extra in result.segments:
        _observe(episode, extra, policy.encode(extra.text))
    return True


def _observe(episode: Episode, segment: Segment, tokens: list[int]) -> None:
    segment.tokens, segment.action_mask = tokens, [0] * len(tokens)
    segment.behaviour_logp = [0.0] * len(tokens)
    episode.segments.append(segment)


def _finite(reward: Any, episode: Episode, context: Context) -> float:
    try:
        value = float(reward)
    except (TypeError, ValueError):
        value = float("nan")
    if value - value != 0:  # nan or infinite
        raise EnvironmentFault(
            f"The environment of task {context.task.id or type(context.task).__name__!r} returned the reward {reward!r} "
            f"for problem {episode.problem.id!r} at turn {sum(s.role == 'assistant' for s in episode.segments)}; "
            "a reward must be a finite number."
        )
    return value


class _Faults:
    """Counts environments that raised: one lost episode is survivable, a broken environment is not."""

    def __init__(self) -> None:
        self.row = 0

    def fine(self) -> None:
        self.row = 0

    def lost(self, episode: Episode, error: Exception) -> bool:
        """Discard the episode. Raises EnvironmentFault after too many in a row."""
        episode.stop = StopReason.FAULT
        episode.info["fault"] = f"{type(error).__name__}: {error}"
        self.row += 1
        if self.row >= MAX_FAULTS:
            raise EnvironmentFault(
                f"The environment raised in {self.row} episodes in a row; the last time, for problem "
                f"{episode.problem.id!r}: {type(error).__name__}: {error}."
            ) from error
        return False
