"""Small batches with everything that a part may ask for, and nothing else: what `check_part` calls parts on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from etude.core.batches import Head, TokenBatch, TokenLogProbs
from etude.core.draws import Draw
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import UnknownNameError
from etude.core.part import Need, Part
from etude.core.population import Member, Population
from etude.core.slots import Context
from etude.core.step_slots import Lagrangian
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.core.transitions import ActionLogProbs, Transitions

ROWS, TOKENS, WIDTH, WORDS = 6, 5, 4, 7
"""Of tokens: two groups of three rows, the last tokens of which are padding in some."""
MEMBERS, STEPS, ENVIRONMENTS = 2, 3, 2
"""Of control."""


class NotHere(Exception):
    """A part asked for what only a run has; the text says for what."""

    def __init__(self, what: str) -> None:
        super().__init__(f"it reads {what}.")


class OnlyInARun:
    """Stands for a policy."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotHere(f"context.policy.{name}, which is there in a run only")


class Letters(LanguageTask, abstract=True):  # so that it is none of the tasks that are known by name
    """Say a."""

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split", split, self.splits())
        return [Problem(f"{split}/{i}", "?", "a", f"level{i % 3}", {"demonstration": "a"}) for i in range(12)]

    def score(self, problem: Problem, completion: str) -> float:
        return float(completion.startswith("a"))


def small_context() -> Context:
    """In the middle of a run."""
    return Context(task=Letters(), policy=OnlyInARun(), stream=Stream(0), step=5, steps=10, max_tokens=TOKENS)


def small_episodes() -> list[Episode]:
    """Those of the rows of `small_tokens`."""
    return small_tokens(frozenset())[0].episodes


def needed(part: Part) -> frozenset[Need]:
    """What a part and the parts inside it declare, which is what a loop computes."""
    return frozenset(part.needs).union(*(needed(inside) for inside in parts_inside(part)))


def parts_inside(part: Part) -> Iterator[Part]:
    """The parts that its fields hold."""
    for value in part.fields().values():
        yield from (v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, Part))


@dataclass(frozen=True)
class Small:
    """Random numbers, the same each time."""

    draw: torch.Generator

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.draw)


def small_tokens(needs: frozenset[Need]) -> tuple[TokenBatch, TokenLogProbs]:
    """Two groups of three completions, and what a policy says of them; what must be declared is there if it is."""
    normal = Small(torch.Generator().manual_seed(0))
    lengths = torch.tensor([5, 3, 4, 2, 5, 4])
    place = torch.arange(TOKENS).expand(ROWS, -1)
    mask, ends = place < lengths[:, None], (place % 2 == 1) | (place == lengths[:, None] - 1)
    tokens = torch.randint(WORDS, (ROWS, TOKENS), generator=normal.draw) * mask
    scores = torch.tensor([1.0, 0.0, 0.5, 0.0, 1.0, 0.25])
    rewards = torch.zeros(ROWS, TOKENS).scatter(1, lengths[:, None] - 1, scores[:, None])
    behaviour = -normal(ROWS, TOKENS).abs() * mask
    hidden, head = normal(ROWS, TOKENS, WIDTH), Head(normal(WORDS, WIDTH))
    entropy, values = normal(ROWS, TOKENS).abs() * mask, normal(ROWS, TOKENS) * mask
    logits = normal(ROWS, TOKENS, WORDS)
    reference = behaviour + 0.1 * normal(ROWS, TOKENS) * mask
    batch = TokenBatch(
        tokens, mask, mask, behaviour, rewards, torch.tensor([0, 0, 0, 1, 1, 1]), torch.ones(ROWS), scores,
        torch.zeros(ROWS, dtype=torch.bool), advantages=normal(ROWS, TOKENS) * mask, solved=scores >= 1,
        shares=mask / mask.sum(), row_shares=torch.full((ROWS,), 1 / ROWS), draw=torch.arange(ROWS),
        outcomes=scores, final=mask & False, step=torch.where(mask, place // 2, -1),
        sampled_values=torch.where(mask & (place % 2 == 0), 0.5 - 0.1 * place, torch.nan),
        verdicts=torch.where(mask & ends, 1.0, 0.0)[..., None],
        episodes=_episodes(tokens, lengths, behaviour, scores),
    )  # fmt: skip
    policy = TokenLogProbs((behaviour + 0.2 * normal(ROWS, TOKENS) * mask).requires_grad_())
    if Need.ENTROPY in needs:
        batch.entropy, policy.entropy = entropy, (1 + policy.logp**2) * mask
    if Need.VALUES in needs:
        batch.values, batch.next_values, batch.returns = values, torch.zeros(ROWS), values + 1
        policy.values = (values + 0.5).requires_grad_()
    if Need.REFERENCE_LOGP in needs:
        batch.reference_logp = reference
    if Need.REFERENCE_VALUES in needs:
        batch.reference_values = values + 0.25 * mask
    if Need.PROXIMAL_LOGP in needs:
        batch.proximal_logp = behaviour - 0.1 * mask
    if Need.HIDDEN in needs:
        batch.hidden, batch.head, policy.hidden, policy.head, policy.learning_rate = hidden, head, hidden, head, 1e-3
    if Need.LOGITS in needs:
        policy.logits = logits.requires_grad_()
    return batch, policy


def _episodes(tokens: Tensor, lengths: Tensor, logp: Tensor, scores: Tensor) -> list[Episode]:
    episodes = []
    for row, size in enumerate(lengths.tolist()):
        words = tokens[row, :size].tolist()
        segment = Segment("assistant", "abcdefg"[:size], words, [1] * size, logp[row, :size].tolist())
        segment.reward = float(scores[row])
        problem = Problem(f"check/{row // 3}", "?", "a", "level1", {"demonstration": "a"})
        episodes.append(Episode(problem, [segment], row // 3, draw=Draw.at(0, row)))
    return episodes


def small_steps(needs: frozenset[Need], flat: bool) -> tuple[Transitions, ActionLogProbs]:
    """A rollout [P, T, E], or `flat` a minibatch of it [P, N], and what a policy says of its steps [P, N]."""
    normal = Small(torch.Generator().manual_seed(0))
    shape = (MEMBERS, STEPS, ENVIRONMENTS)
    ends = torch.zeros(shape, dtype=torch.bool)
    terminated, truncated = ends.clone(), ends.clone()
    terminated[0, 1, 0] = truncated[1, 0, 1] = True
    batch = Transitions(
        normal(*shape, WIDTH), normal(*shape, 1), rewards=normal(*shape), terminated=terminated, truncated=truncated,
        behaviour=normal(*shape, 2), behaviour_logp=-normal(*shape).abs(), values=torch.zeros(shape),
        next_values=torch.zeros(shape), advantages=normal(*shape),
    )  # fmt: skip
    if Need.VALUES in needs:
        batch.values, batch.next_values = normal(*shape), normal(*shape)
        batch.returns = batch.values + 1
    if Need.NEXT_OBSERVATIONS in needs:
        batch.next_observations, batch.discounts = normal(*shape, WIDTH), 1.0 - terminated.float()
    if Need.COSTS in needs:
        batch.costs = normal(*shape).abs()
    if Need.PROGRESS in needs:
        batch.progress = normal(*shape).abs().clamp(max=1)
    rows = batch.flat()
    policy = ActionLogProbs((rows.behaviour_logp + 0.2 * normal(MEMBERS, STEPS * ENVIRONMENTS)).requires_grad_())
    if Need.ENTROPY in needs:
        policy.entropy = 1 + policy.logp**2
    if Need.KL in needs:
        policy.kl = policy.logp**2
    if Need.KL_PARTS in needs:
        policy.kl_parts = torch.stack((policy.logp**2, policy.logp**4), -1)
    return (rows if flat else batch), policy


def multipliers(part: Part) -> dict[str, Tensor]:
    """What a loop would put into `policy.said` for a part with Lagrange multipliers, of one continuous action."""
    if not isinstance(part, Lagrangian):
        return {}
    from gymnasium.spaces import Box

    starts = part.multipliers(Box(-1.0, 1.0, (1,)), Population([Member(k) for k in range(MEMBERS)]))
    return {part.name: torch.stack(list(starts.values()), 1).requires_grad_()}
