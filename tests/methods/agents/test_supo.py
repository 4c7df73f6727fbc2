"""SUPO: the gradient is the whole episode's, advantages are of episodes, what has no answer teaches nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.episodes import Episode, Segment, StopReason
from etude.core.registry import get_method
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import StepResult
from etude.experience.groups import Groups
from etude.experience.rollout import fresh, rollout
from etude.experience.views import FullHistory, SummaryAt
from etude.loops.credit import credited, kept, loss, scored
from etude.methods.agents.supo import AnsweredEpisodes
from etude.policies.sampling import Sampling
from language_toys import Toy, gradients, make_loop, random_policy

SUPO: Any = get_method("supo")
VIEW = SummaryAt(limit=26, most=2, tokens=4, request="s:")


class Calls:
    """Three or five calls, each answered, as the first one says; paid by what is said."""

    def __init__(self, task: Any) -> None:
        self.turn = 0

    def reset(self, problem: Any, seed: int) -> list[Segment]:
        self.turn = 0
        return [Segment("user", problem.prompt)]

    def step(self, segment: Segment) -> StepResult:
        self.turn += 1
        if self.turn == 1:
            self.last = 3 + 2 * (sum(segment.tokens) % 2)
        paid = sum(segment.tokens) % 5 / 4
        return StepResult([Segment("user", f"{self.turn}!")], paid, terminated=self.turn == self.last)


def episodes(policy: Any, view: Any = VIEW, turns: int = 8, size: int = 6) -> list[Episode]:
    task = Toy(("one:", "three:"), world=Calls, max_turns=turns, max_tokens=6)
    context = Context(task, policy, Stream(1), max_tokens=6)
    return rollout(fresh(task.problems("train"), size, context.stream), context, Sampling(max_tokens=6), view)


def credit(found: list[Episode], policy: Any, method: Any = SUPO) -> TokenBatch:
    batch = to_batch(found, 0, 1.0, policy.device)
    batch = batch.replace(rewards=batch.rewards.double(), weights=batch.weights.double())
    return credited(method, kept(method, scored(method, batch, Context(Toy(), policy, Stream(0)))))


def test_without_a_summary_it_is_grpo_of_several_turns() -> None:
    policy = random_policy(dtype=torch.float64)
    found = []
    for method, view in (
        (SUPO, SummaryAt(limit=10_000)), (get_method("grpo").replace(aggregation="token-mean"), FullHistory()),
    ):  # fmt: skip
        batch = credit(episodes(policy, view), policy, method)
        assert len(batch) == 12
        policy.model.zero_grad()
        loss(method, batch, policy.evaluate(batch), 6).backward()
        found.append((batch.advantages, gradients(policy)))
    assert torch.equal(found[0][0], found[1][0]) and found[0][0].abs().max() > 0.5
    assert all(torch.equal(v, found[1][1][k]) for k, v in found[0][1].items())


def test_rows_have_the_gradient_of_the_whole_episodes_log_probability() -> None:
    """Every decision of an episode (calls, answer, two summaries) by itself, in the context that it was made in."""
    policy = random_policy(dtype=torch.float64)
    (episode, *_) = (e for e in episodes(policy) if sum(s.role == "summary" for s in e.segments) == 2)
    batch = to_batch([episode], 0, 1.0, policy.device)
    assert len(batch) >= 3 and set(batch.episode.tolist()) == {0}
    policy.model.zero_grad()
    (policy.evaluate(batch).logp * batch.action_mask).sum().backward()
    rows = gradients(policy)
    policy.model.zero_grad()
    total = torch.zeros(())
    for row in batch.episodes:
        seen: list[int] = []
        for s in row.segments:
            if any(s.action_mask):
                total = total + decision(policy, seen, s.tokens)
            seen += s.tokens
    total.backward()
    one, other = (torch.cat([v.flatten() for v in g.values()]) for g in (rows, gradients(policy)))
    assert one.norm() > 0.1 and (one - other).norm() < 1e-6 * one.norm()


def decision(policy: Any, seen: list[int], said: list[int]) -> Tensor:
    """log pi(said | seen), by the model alone."""
    logits = policy.model(torch.tensor([[*seen, *said]])).logits[0]
    logp = logits.log_softmax(-1)[len(seen) - 1 : -1]
    return logp.gather(1, torch.tensor(said)[:, None]).sum()


def test_advantages_have_zero_mean_over_episodes_not_over_rows() -> None:
    policy = random_policy()
    found = episodes(policy)
    for n, e in enumerate(found):
        e.segments[1].reward += float(n)
    batch = credit(found, policy, SUPO.replace(filters=()))
    assert len(batch) > len(found) == 12
    value = batch.advantages.sum(1) / batch.action_counts
    for group in (0, 1):
        own = [value[(batch.episode == n).nonzero()[0, 0]] for n, e in enumerate(found) if e.group == group]
        assert sum(own) == pytest.approx(0, abs=1e-6)
        rows = value[batch.group == group]
        assert len(rows) > 3
    sizes = torch.bincount(batch.episode)
    assert sizes.min() < sizes.max() and abs(float(value.sum())) > 0.01
    for n in range(12):
        assert len(set(batch.advantages[(batch.episode == n)[:, None] & batch.action_mask].tolist())) == 1


def test_what_has_no_answer_counts_and_teaches_nothing() -> None:
    policy = random_policy(dtype=torch.float64)
    found = episodes(policy, FullHistory())
    found[0].stop = StopReason.CONTEXT_OVERFLOW
    found[1].stop = StopReason.MAX_TURNS
    found[2].segments[1].reward += 2.0
    whole, left = credit(found, policy, SUPO.replace(filters=())), credit(found, policy)
    assert len(whole) == 12 and len(left) == 10
    assert torch.equal(left.advantages, whole.advantages[2:])  # those that were left out count in mean and deviation
    alone = credit(found[2:], policy)
    assert not torch.equal(alone.advantages, left.advantages)
    losses = []
    for rows in (left, whole.replace(weights=AnsweredEpisodes().weigh(whole))):
        policy.model.zero_grad()
        loss(SUPO, rows, policy.evaluate(rows), 6).backward()
        losses.append(gradients(policy))
    share = float(left.action_mask.sum() / whole.action_mask.sum())
    for name, value in losses[0].items():  # the other rows' gradient is exactly zero
        torch.testing.assert_close(value * share, losses[1][name], atol=1e-7, rtol=1e-5)


def test_a_step_in_which_nothing_has_an_answer_changes_nothing() -> None:
    method = SUPO.replace(problems=2, experience=Groups(size=3, view=SummaryAt(limit=24, most=0, tokens=4)))
    task = Toy(("one:", "three:"), world=Calls, max_turns=8, max_tokens=10)
    policy = random_policy()
    loop, before = make_loop(method, task, policy), [p.clone() for p in policy.parameters()]
    report = loop.step()
    assert report.metrics["rows"] == 6 and not report.episodes
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters()))
