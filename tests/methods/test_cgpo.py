"""CGPO: what constraints make of scores, by brute force and by enumeration; tasks; judges that fail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.edit import set_values, stack
from etude.core.episodes import Problem
from etude.core.errors import ConfigError, RewardError
from etude.core.method import Method
from etude.core.registry import get_method
from etude.evaluation.exact import expected_gradient, gradient
from etude.loops.bandit import Bandit
from etude.methods.preference.cgpo.constraints import (
    ConstrainedBest,
    ConstrainedOrder,
    ConstrainedReturns,
    TaskConstraints,
    TaskJudges,
    TaskWeights,
)
from etude.objectives.links import Logistic
from etude.objectives.pairs import PairLoss, extremes
from etude.objectives.preference import DPO
from etude.policies.tabular import SoftmaxTree
from etude.rewards.control import BaselineCalibratedScores
from etude.rewards.judges import Case, Judge
from etude.rewards.outcome import TaskReward

REWARDS = torch.tensor([[0.9, -0.3, 0.4, 1.75]], dtype=torch.float64)
FAR = 1e15
"""So many nats are no limit."""


class Refuses(Judge):
    """Accepts everything but these answers; of '?' it says nothing."""

    these: tuple[str, ...] = ()
    asked: ClassVar[list[str]] = []

    def scores(self, cases: Sequence[Case], context: Any) -> list[float | None]:
        self.asked.extend(c.given for c in cases)
        return [None if "?" in self.these else float(c.given not in self.these) for c in cases]


def bandit(rewards: Tensor = REWARDS, prompts: int = 1, problems: Any = None, seed: int = 0) -> Bandit:
    return Bandit(SoftmaxTree(prompts, rewards.shape[1], spread=1.0, seed=seed), rewards, problems)


def method(name: str, *refused: str, kl_max: float = FAR, objective: Any = None) -> Method:
    """One of the three on what the table pays, with a judge who refuses these answers."""
    given: Any = get_method(name)
    last = given.rewards[-1]
    task = last.tasks[0].replace(panel=(Refuses(these=refused),))
    task = task.replace(kl_max=kl_max) if isinstance(task, TaskConstraints) else task
    rewards = (TaskReward(), *given.rewards[1:-1], last.replace(tasks=(task,)))
    given = given.replace(rewards=rewards)
    return given if objective is None else given.replace(objective=objective)


def batch_of(given: Bandit, prompt: Sequence[int], response: Sequence[int]) -> TokenBatch:
    asked, said = torch.tensor(prompt), torch.tensor(response)
    batch = given.batch(asked, said, given.policy.rows(0, asked, said, given.policy.table().detach()))
    batch.reference_logp = batch.behaviour_logp.clone()
    return batch


def rescored(part: Any, batch: TokenBatch) -> list[float]:
    return part.bind().rescore_in(batch, SimpleNamespace(policy=None)).tolist()


# The calibrated reward


def test_the_baseline_is_worth_a_half_and_what_a_prompt_pays_cancels() -> None:
    scores = torch.tensor([1.5, -2.0, -0.25, 40.0, 3.0, 3.0], dtype=torch.float64)
    rows = SimpleNamespace(scores=scores, group=torch.tensor([0, 0, 0, 1, 1, 1]), once=lambda: None)
    rows.sampled = torch.tensor([True, True, False, True, True, False])
    found = BaselineCalibratedScores().rescore(rows)  # type: ignore[arg-type]
    assert found[2] == found[5] == found[4] == 0.5
    assert found[0] == pytest.approx(1 / (1 + math.exp(-1.75)), abs=1e-15)
    rows.scores = scores + torch.tensor([5.0, -8.0]).repeat_interleave(3)
    assert torch.equal(BaselineCalibratedScores().rescore(rows), found)  # type: ignore[arg-type]
    rows.sampled = torch.ones(6).bool()
    rows.scores = scores
    torch.testing.assert_close(BaselineCalibratedScores().rescore(rows), scores.sigmoid())  # type: ignore[arg-type]


# The first optimizer: returns


@pytest.mark.slow
def test_without_constraints_it_is_reinforce_on_the_sigmoid_of_the_reward() -> None:
    """The mean over K answers takes 1/K of the gradient with it."""
    given, size = bandit(), 3
    found = expected_gradient(method("cgpo"), given, size, reference=SoftmaxTree(1, 4, spread=1.0, seed=5))
    value = (given.policy.probs()[0, 0] * REWARDS[0].sigmoid()).sum() * (size - 1) / size
    torch.testing.assert_close(found, -gradient(value, given.policy), rtol=1e-9, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cgpo", "cgpo-best"])
def test_what_a_violation_is_paid_changes_no_gradient(name: str) -> None:
    """Whatever its reward, and an accepted one's does."""
    refused = bandit().batch(*[torch.tensor([0])] * 2, bandit_logp()).episodes[0].completion
    found = {}
    for place in (0, 3):
        for gain in (0.0, -100.0, 7.0):
            rewards = REWARDS.clone()
            rewards[0, place] += gain
            found[place, gain] = expected_gradient(method(name, refused), bandit(rewards), 2)
    assert float(found[0, 0.0].abs().max()) > 1e-3
    assert torch.equal(found[0, -100.0], found[0, 0.0])
    assert torch.equal(found[0, 7.0], found[0, 0.0])
    assert not torch.allclose(found[3, -100.0], found[0, 0.0])


def bandit_logp() -> Any:
    given = bandit()
    zero = torch.tensor([0])
    return given.policy.rows(0, zero, zero, given.policy.table().detach())


def test_the_further_from_the_start_the_less_it_is_worth() -> None:
    """Linear in the log-ratio of the whole answer, 0 from kl_max on; an answer that became rarer is worth more."""
    batch = batch_of(bandit(), [0, 0, 0, 0], [0, 1, 2, 3])
    batch.scores = torch.full((4,), 0.5, dtype=torch.float64)
    assert batch.reference_logp is not None
    own = batch.action_counts
    away = torch.tensor([0.0, 2.0, 6.0, -1.0], dtype=torch.float64)
    batch.reference_logp = batch.behaviour_logp - (away / own)[:, None] * batch.action_mask
    part = ConstrainedReturns(tasks=(TaskConstraints(panel=(), kl_max=4.0),))
    assert rescored(part, batch) == pytest.approx([0.5, 0.25, 0.0, 0.625], abs=1e-12)


# The second: pairs


def wanted_pair(scores: list[float], accepted: list[bool]) -> tuple[int, int] | None:
    """By infinities: the best accepted, and the worst refused, or the worst of all where none is refused."""
    if not any(accepted):
        return None
    best = max(range(len(scores)), key=lambda i: scores[i] if accepted[i] else -math.inf)
    poor = [i for i in range(len(scores)) if not accepted[i]] or list(range(len(scores)))
    return best, min(poor, key=lambda i: scores[i])


def test_pairs_are_the_best_accepted_against_the_worst_refused() -> None:
    """On 200 random groups, side by side in one batch, rewards of both signs and below 0 alone."""
    random = torch.Generator().manual_seed(0)
    for shift in (0.0, -10.0):
        scores = (torch.randn(200, 5, generator=random) + shift).double()
        accepted = torch.rand(200, 5, generator=random) < torch.rand(200, 1, generator=random)
        group = torch.arange(200)[:, None].expand(200, 5).flatten()
        sampled = torch.ones(1000).bool()
        order = torch.randperm(1000, generator=random)
        worth = torch.empty(1000, dtype=torch.float64)
        flat = (scores.flatten()[order], accepted.flatten()[order], scores.flatten(), sampled, group[order])
        worth[order] = ConstrainedOrder().worth(*flat)
        pairs = extremes(worth, group)
        kinds = set()
        for g in range(200):
            wanted = wanted_pair(scores[g].tolist(), accepted[g].tolist())
            kinds.add((bool(accepted[g].all()), wanted is None))
            if wanted is None:
                assert not worth[5 * g : 5 * g + 5].any()
            else:
                assert (int(pairs.better[g]) - 5 * g, int(pairs.worse[g]) - 5 * g) == wanted
        assert len(kinds) == 3


@pytest.mark.slow
def test_with_everything_accepted_and_no_likelihood_pairs_are_online_dpo() -> None:
    given, reference = bandit(), SoftmaxTree(1, 4, spread=1.0, seed=5)
    ours = method("cgpo-pairs", objective=PairLoss(link=Logistic(beta=0.1), nll=0.0))
    plain = method("cgpo-pairs", objective=DPO(beta=0.1)).replace(rewards=(TaskReward(),))
    found, wanted = (expected_gradient(m, given, 3, reference=reference) for m in (ours, plain))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-14)
    assert float(found.abs().max()) > 1e-3


# The third: the best


def test_the_best_keeps_all_constraints_whatever_the_sign_of_scores() -> None:
    """Scores below 0: with zeros for what is refused, a refused answer would be the largest."""
    scores = torch.tensor([-0.5, -2.0, -3.0, -1.0, 0.5], dtype=torch.float64)
    accepted = torch.tensor([False, True, True, True, True])
    sampled, group = torch.tensor([True, True, True, True, False]), torch.zeros(5)
    near = torch.tensor([0.0, 0.9, 0.0, 1.5, 0.0], dtype=torch.float64)
    assert int((scores * (accepted & (near <= 1)))[:4].argmax()) == 0  # the fault
    assert ConstrainedBest().worth(scores, accepted, near, sampled, group).tolist() == [0, -2.0, 0, 0, 0]
    nobody = torch.tensor([False, False, False, True, True])
    assert ConstrainedBest().worth(scores, nobody, near, sampled, group).tolist() == [0, 0, 0, 0, 0.5]
    near[4] = 1.01
    assert not ConstrainedBest().worth(scores, nobody, near, sampled, group).any()
    tied = torch.tensor([-2.0, -2.0], dtype=torch.float64)
    two = torch.ones(2).bool()
    assert ConstrainedBest().worth(tied, two, near[:2], two, group[:2]).tolist() == [-2.0, 0.0]


# Tasks and judges


def two_tasks() -> TokenBatch:
    problems = [Problem("p/0", "?", level="free"), Problem("p/1", "?", level="sorted")]
    given = bandit(REWARDS.expand(2, 4), 2, problems)
    batch = batch_of(given, [0, 0, 1, 1], [0, 1, 0, 1])
    assert batch.reference_logp is not None
    batch.reference_logp = batch.behaviour_logp - (2 / batch.action_counts)[:, None] * batch.action_mask
    batch.scores = torch.ones(4, dtype=torch.float64)
    return batch


def test_each_task_has_judges_and_a_budget_of_its_own() -> None:
    batch = two_tasks()
    first, second = (batch.episodes[i].completion for i in (0, 1))
    strict = TaskConstraints(level="free", panel=(Refuses(these=(first,)),), kl_max=4.0)
    both = (Refuses(these=(second,)), Refuses(these=(first,)))
    loose = TaskConstraints(panel=both[:1], kl_max=8.0)
    assert rescored(ConstrainedReturns(tasks=(strict, loose)), batch) == pytest.approx([0, 0.5, 0.75, 0])
    # All judges of a task have to accept.
    assert rescored(ConstrainedReturns(tasks=(strict, loose.replace(panel=both))), batch)[2:] == [0, 0]
    weights = TaskWeights(levels=("sorted",), weights=(3.0,)).weigh(batch)
    assert weights.tolist() == [1, 1, 3, 3]
    with pytest.raises(RewardError, match=r"no constraints for problem 'p/1' of level 'sorted'"):
        rescored(ConstrainedReturns(tasks=(strict,)), batch)
    with pytest.raises(ConfigError, match=r"each of a level of its own"):
        ConstrainedOrder(tasks=(TaskJudges(), TaskJudges()))
    with pytest.raises(ConfigError, match=r"must be as many"):
        TaskWeights(levels=("free",))


def test_judges_are_asked_about_what_they_decide_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not about written answers that are only a baseline, nor after somebody refused."""
    monkeypatch.setattr(Refuses, "asked", [])
    batch = two_tasks()
    texts = [e.completion for e in batch.episodes]
    batch.written = torch.tensor([False, False, False, True])
    panel = (Refuses(these=(texts[0],)), Refuses())
    assert rescored(ConstrainedOrder(tasks=(TaskJudges(panel=panel),)), batch) == [0, 1, 0, 0]
    assert Refuses.asked == [texts[0], texts[1], texts[2], texts[1]]


def test_a_judge_without_an_answer_has_not_accepted_and_stops_the_run_in_the_end() -> None:
    part = ConstrainedReturns(tasks=(TaskConstraints(panel=(Refuses(these=("?",)),)),)).bind()
    batch, context = two_tasks(), SimpleNamespace(policy=None)
    for _ in range(24):
        assert not part.rescore_in(batch, context).any()  # type: ignore[arg-type]
    with pytest.raises(RewardError, match=r"100 of 100 questions to judges, more than bad_share=0\.01"):
        part.rescore_in(batch, context)  # type: ignore[arg-type]


@pytest.mark.slow
def test_it_warms_up_by_dpo_and_takes_turns() -> None:
    """As the docstring says."""
    named = set_values(get_method("cgpo"), {"rewards.reward-model.model": "m"})
    warm = set_values(stack(named, "interleaved"), {"stages.0.turn.id": "dpo", "stages.0.chooser": "after-steps"})
    other: Any = warm.slots()["stages"][0].other(warm)
    assert (other.experience.name, other.objective.name, other.reference.name) == ("pairs", "dpo", "frozen")
