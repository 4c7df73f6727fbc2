"""The technical survey: its optimisers' identities, ReMax's baseline, cells that can be trained, gaps in deviations."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.advantages.returns import GAE, RewardToGo
from etude.advantages.segments import SampledValues
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.registry import get_method
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.greedy import GroupsAndGreedy
from etude.experience.groups import Groups
from etude.experiments.preference.rl_llm_technical_survey import Look
from etude.objectives.policy_gradient import ClippedSurrogate, PolicyGradient
from etude.rewards.probes import apart, with_values
from etude.runs.studies import Recipe, load_study
from etude.runs.training import compose_method
from etude.tasks.language.digest import Digest
from language_toys import Toy, random_policy

Make = Callable[..., TokenBatch]
STUDY = load_study("rl-llm-technical-survey")
PAID = torch.tensor([[0.0, 1.0, 0.2], [0.7, -0.4, 0.0], [2.0, 0.1, 0.3]], dtype=torch.float64)


# Identities, on a softmax over two tokens of three


def table(seed: int) -> Tensor:
    """Log-odds [4, 3]: of the first token, and of the second after each first."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(4, 3, generator=g, dtype=torch.float64).requires_grad_(True)


def said(odds: Tensor, answers: Tensor) -> Tensor:
    """[B, 3] log-probabilities behind a token of prompt."""
    a, b = answers.T
    one, two = odds[0].log_softmax(-1)[a], odds[1:].log_softmax(-1)[a, b]
    return torch.stack([torch.zeros_like(one), one, two], 1)


def rows(make_batch: Make, answers: Tensor, **more: Any) -> TokenBatch:
    scores = PAID[answers[:, 0], answers[:, 1]]
    rewards = torch.stack([torch.zeros_like(scores), torch.zeros_like(scores), scores], 1)
    return make_batch([[0, 1, 1]] * len(answers), rewards=rewards, scores=scores, **more)


def slope(odds: Tensor, loss: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(loss, odds, retain_graph=True)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_remax_is_unbiased(make_batch: Make, seed: int) -> None:
    """The expectation over all answers is the exact gradient, and the baseline is what the greedy one is paid."""
    odds, every = table(seed), torch.tensor(list(itertools.product(range(3), range(3))))
    first = int(odds[0].argmax())
    greedy = float(PAID[first, odds[1 + first].argmax()])
    values = torch.full((9, 3), torch.nan, dtype=torch.float64)
    values[:, 1] = greedy
    batch = rows(make_batch, every, sampled_values=values)
    advantages = get_method("remax").advantages(batch)
    wanted = (batch.scores - greedy)[:, None].expand(-1, 2)
    torch.testing.assert_close(advantages[:, 1:], wanted, atol=1e-12, rtol=0)
    logp = said(odds, every)
    chance = logp.sum(1).exp()
    loss = -(chance.detach() * (advantages.detach() * logp).sum(1)).sum()
    torch.testing.assert_close(-slope(odds, loss), slope(odds, (chance * batch.scores).sum()), atol=1e-12, rtol=0)


@pytest.mark.parametrize("seed", range(3))
def test_ppo_without_values_and_clips_is_reinforce_on_fresh_answers(make_batch: Make, seed: int) -> None:
    odds, answers = table(seed), torch.randint(3, (7, 2), generator=torch.Generator().manual_seed(seed))
    logp = said(odds, answers)
    batch = rows(make_batch, answers, behaviour_logp=logp.detach(), values=torch.zeros(7, 3))
    credits = GAE(gamma=1.0, lam=1.0, standardize=False)(batch), RewardToGo(gamma=1.0, baseline=None)(batch)
    torch.testing.assert_close(credits[0][:, 1:], credits[1][:, 1:], atol=1e-12, rtol=0)
    found = []
    for part, advantages in zip((ClippedSurrogate(), PolicyGradient()), credits):
        loss = part(batch.replace(advantages=advantages), TokenLogProbs(logp))
        found.append(slope(odds, (loss * batch.action_mask).sum()))
    torch.testing.assert_close(found[0], found[1], atol=1e-12, rtol=0)


def test_of_two_answers_rloo_pays_the_difference(make_batch: Make) -> None:
    batch = rows(make_batch, torch.tensor([[0, 1], [2, 0]]))
    found = get_method("rloo").advantages(batch)
    assert found[:, 1:].tolist() == [[-1.0, -1.0], [1.0, 1.0]]


@pytest.mark.parametrize("beta", [0.1, 0.7])
def test_dpo_and_ipo_at_the_reference(make_batch: Make, logprobs: Any, beta: float) -> None:
    logp = -torch.rand(2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batch = make_batch([[0, 1, 1], [0, 1, 0]], scores=[1.0, 0.0], reference_logp=logp)
    paths = {"dpo": "objective.beta", "ipo": "objective.link.beta"}
    dpo, ipo = (compose_method(n, {p: beta}).objective(batch, logprobs(logp)) for n, p in paths.items())  # type: ignore[attr-defined]
    assert dpo.tolist() == pytest.approx([math.log(2)] * 2, abs=1e-12)
    assert ipo.tolist() == pytest.approx([1 / (4 * beta**2)] * 2, abs=1e-12)


# What is sampled for ReMax


@pytest.mark.slow
def test_the_greedy_answer_is_a_probe_beside_the_samples_of_groups() -> None:
    policy = random_policy(seed=0)
    task: Any = Toy(scoring=lambda _, text: float(len(text)), max_tokens=6)
    problems = task.problems("train")[:3]
    context = Context(task, policy, Stream(5), max_tokens=6)
    found = GroupsAndGreedy(size=2).bind().collect(problems, context)
    plain = Groups(size=2).bind().collect(problems, Context(task, policy, Stream(5), max_tokens=6))
    assert [e.tokens for e in found[:6]] == [e.tokens for e in plain]
    greedy = found[6:]
    assert [e.probe for e in found] == [False] * 6 + [True] * 3 and [e.group for e in greedy] == [0, 1, 2]
    assert policy.work["greedy_tokens"] == sum(e.action_count for e in greedy)
    for episode in greedy:
        ids = [t for s in episode.segments for t in s.tokens]
        begins = len(ids) - episode.action_count
        with torch.no_grad():
            logits = policy.model(torch.tensor([ids])).logits[0]
        assert ids[begins:] == logits.argmax(-1)[begins - 1 : -1].tolist()
    batch, probes = apart(policy_batch(found))
    assert probes is not None and len(batch) == 6
    values = with_values(batch, probes).sampled_values
    assert values is not None
    for row, episode in enumerate(batch.episodes):
        start = int(batch.action_mask[row].int().argmax())
        assert (
            values[row, start] == greedy[episode.group].reward and int(values[row].isnan().sum()) == len(values[0]) - 1
        )


def policy_batch(episodes: list[Any]) -> TokenBatch:
    from etude.core.rows import to_batch

    made = to_batch(episodes, 0, 1.0, torch.device("cpu"))
    return made.replace(scores=torch.tensor([e.reward for e in episodes]))


def test_what_does_not_go_with_greedy_answers_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing reads that"):
        compose_method("rloo", ["experience=groups-and-greedy"])
    with pytest.raises(ConfigError, match="compares those of a problem"):
        compose_method("remax", ["rewards=task-reward,wins"])
    assert isinstance(get_method("remax").advantages.values, SampledValues)


# The study and the claim


@pytest.mark.parametrize("arm", STUDY.arms(), ids=lambda arm: arm.label)
def test_every_cell_is_a_setting_of_a_method_on_one_task(arm: Any) -> None:
    fields = {k: v.format(proxy="a-proxy", dpo="a-policy") if isinstance(v, str) else v for k, v in arm.changes.items()}
    method = compose_method(arm.method, fields)
    check(method, Digest())


def test_the_cells_have_every_reward_and_optimiser() -> None:
    names = {arm.label for arm in STUDY.arms()}
    assert len(names) == 18 and STUDY.baseline == "rl-llm-technical-survey" and STUDY.beds == ("preference/digest-dpo",)
    bed = STUDY.bed(STUDY.beds[0])
    assert bed.baseline_set["rewards.reward-model.model"] == "{proxy}"
    for member in ("remax", "dpo", "ipo", "kto", "orpo", "simpo", "sft", "grpo", "ppo", "actor-critic", "Q-learning"):
        assert any(member in name for name in names), member


def test_recipes_that_change_the_baseline_have_its_fields() -> None:
    own, other = Recipe(set={"problems": 8}), Recipe(method="rloo", set={"problems": 8})
    first, second = dataclasses.replace(STUDY, recipes={"own": own, "other": other}).arms()
    assert first.method == STUDY.baseline and first.changes == {**STUDY.baseline_set, "problems": 8}
    assert second.method == "rloo" and second.changes == {"problems": 8}


def test_gaps_are_in_deviations_of_the_start() -> None:
    start = Look(np.array([0.0, 2.0]), np.array([-10.0, 10.0]))
    after = Look(np.array([3.0, 5.0]), np.array([0.0, 10.0]))
    assert after.gap(start) == pytest.approx(3 / 1 - 5 / 10, abs=1e-12)
    assert start.gap(start) == 0
