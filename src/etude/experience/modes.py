"""Completions that begin in a mode that they did not choose: its text is said for them, and learned all the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError
from etude.core.fields import Count
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.experience.groups import Groups
from etude.experience.rollout import fresh, rollout
from etude.policies.micro_batches import micro_batches

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

Modes = tuple[str, str]
"""How a completion begins that thinks, and how one that does not."""
THINK, DIRECT = 0, 1
MODE, BEGUN = "mode", "mode_tokens"
"""In `Episode.info`: the place of its mode among the modes, and how many tokens say it."""
BUDGET = 8192
"""Padded tokens that are looked at together."""


class BothModes(Groups):
    """`size` completions for each problem, the first half of which think and the others do not.

    The text of the mode is said for the policy and belongs to what it said: `behaviour_logp` of these tokens is that of
    the policy at this temperature, as if it had drawn them, so that they are trained like all others.

    Args:
        modes: how a completion begins that thinks, and how one that does not; None: as the task has it, by default
            `<think>` and `<no_think>`. One token each where the tokenizer has them, several where it has not.
        max_tokens: limit of one completion, its mode included; None takes the task's.

    `Episode.info` has the `mode` (0: thinks, 1: does not), and `mode_tokens`, how many tokens say it.

    Raises: ConfigError if a mode has no tokens, begins with the other's, or leaves no room for an answer.

    >>> [BothModes(size=4).mode(sample) for sample in range(4)]
    [0, 0, 1, 1]
    """

    reads_policy: ClassVar[bool] = True
    size: Count = 4
    modes: Modes | None = None

    def check(self) -> None:
        if self.size % 2:
            raise ConfigError(f"BothModes.size must be even, one half for each mode, got {self.size}.")

    def mode(self, sample: int) -> int:
        """The mode of completion number `sample` of a problem."""
        return THINK if sample < self.size // 2 else DIRECT

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        modes, sampling = self.modes or context.task.modes, self.sampling(context)
        said = [_said(text, context.policy) for text in modes]
        _check(modes, said, sampling.max_tokens)
        starts = fresh(problems, self.size, context.stream)
        chosen = [self.mode(i % self.size) for i in range(len(starts))]
        played: dict[int, Episode] = {}
        for size in dict.fromkeys(len(s.tokens) for s in said):  # what is left of the limit differs with it
            which = [i for i, mode in enumerate(chosen) if len(said[mode].tokens) == size]
            begun = [starts[i]._replace(segments=(said[chosen[i]],), open=True) for i in which]
            rest = dataclasses.replace(sampling, max_tokens=sampling.max_tokens - size)
            played.update(zip(which, rollout(begun, context, rest)))
        episodes = [played[i] for i in range(len(starts))]
        for episode, mode in zip(episodes, chosen):
            episode.info |= {MODE: mode, BEGUN: len(said[mode].tokens)}
        _train([e for e in episodes if e.action_count], context, self.temperature)
        return episodes


def mode_of(episode: Episode, modes: Modes, policy: LanguagePolicy) -> int | None:
    """The place among `modes` of the one that an episode's first turn begins with; None if it is neither."""
    said = next((s.tokens for s in episode.segments if s.role == "assistant"), [])
    begins = [policy.encode(text) for text in modes]
    return next((i for i, tokens in enumerate(begins) if said[: len(tokens)] == tokens), None)


def _said(text: str, policy: LanguagePolicy) -> Segment:
    tokens = policy.encode(text)
    return Segment("assistant", text, tokens, [0] * len(tokens), [0.0] * len(tokens))


def _check(modes: Modes, said: Sequence[Segment], limit: int) -> None:
    think, direct = (s.tokens for s in said)
    if not think or not direct or think[: len(direct)] == direct or direct[: len(think)] == think:
        raise ConfigError(
            f"The modes {modes[THINK]!r} and {modes[DIRECT]!r} must be told apart by what a completion begins with, "
            "so both need text, and neither may begin with the other: set experience.modes."
        )
    if limit <= (longest := max(len(think), len(direct))):
        raise ConfigError(
            f"A completion of at most {limit} tokens has no room for an answer after a mode of {longest}: set "
            "experience.max_tokens, or experience.modes to texts that the tokenizer has tokens of their own for."
        )


def _train(episodes: Sequence[Episode], context: Context, temperature: float) -> None:
    """Make the modes' tokens the policy's own, with all that the sampler would have recorded of them."""
    alike: dict[tuple[int, ...], list[Episode]] = {}
    for episode in episodes:
        alike.setdefault(_beginning(episode), []).append(episode)
    firsts = [those[0] for those in alike.values()]
    found = _looked_up(firsts, context.policy, temperature, context.record & {"entropy", "hidden"})
    for those, what in zip(alike.values(), found):
        for episode in those:
            _give(_turn(episode), what)


def _give(turn: Segment, found: dict[str, Any]) -> None:
    """Put what was found of the tokens that a turn begins with before what was recorded of the others."""
    turn.action_mask = [1] * len(turn.tokens)
    turn.behaviour_logp = found["logp"] + turn.behaviour_logp[len(found["logp"]) :]
    if "entropy" in turn.info:
        turn.info["entropy"] = found["entropy"] + turn.info["entropy"]
    if "hidden" in turn.info:
        turn.info["hidden"] = torch.cat([found["hidden"].to(turn.info["hidden"]), turn.info["hidden"]])


def _looked_up(
    episodes: Sequence[Episode], policy: LanguagePolicy, temperature: float, needs: frozenset[str]
) -> list[dict[str, Any]]:  # fmt: skip
    """What the policy says of each one's mode, without gradient: `logp`, and what is needed besides."""
    if not episodes:
        return []
    rows = [_cut(e) for e in episodes]
    batch = to_batch(rows, policy.tokenizer.pad_token_id, temperature, policy.device)
    found: list[dict[str, Any]] = [{} for _ in rows]
    with torch.no_grad(), policy.as_precise_as_its_sampler():
        for index in micro_batches(policy, batch, BUDGET):
            micro = batch.rows(index, trim=True)
            said = policy.evaluate(micro, needs)
            for place, row in enumerate(index.tolist()):
                found[row] = _of_row(micro, said, place)
    return found


def _of_row(batch: TokenBatch, said: TokenLogProbs, row: int) -> dict[str, Any]:
    on = batch.action_mask[row]
    found: dict[str, Any] = {"logp": said.logp[row][on].tolist()}
    if said.entropy is not None:
        found["entropy"] = said.entropy[row][on].tolist()
    if said.hidden is not None:
        found["hidden"] = said.hidden[row][on]
    return found


def _turn(episode: Episode) -> Segment:
    """The turn that begins with the mode."""
    return next(s for s in episode.segments if s.info.get("begun"))


def _beginning(episode: Episode) -> tuple[int, ...]:
    """How many tokens say the mode, and all tokens up to its end."""
    size = episode.info[BEGUN]
    before = takewhile(lambda s: not s.info.get("begun"), episode.segments)
    return (size, *(t for s in before for t in s.tokens), *_turn(episode).tokens[:size])


def _cut(episode: Episode) -> Episode:
    """A row that ends with the mode, of which the mode is what the policy says."""
    size, *tokens = _beginning(episode)
    mask = [0] * (len(tokens) - size) + [1] * size
    return Episode(episode.problem, [Segment("assistant", "", tokens, mask, [0.0] * len(tokens))], episode.group)
