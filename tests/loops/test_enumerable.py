"""The loop over enumerable policies: members never meet, runs resume exactly, and it does what the token loop does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from etude.advantages.returns import GAE
from etude.core.batches import TokenBatch
from etude.core.edit import set_values
from etude.core.episodes import Episode
from etude.core.errors import ConfigError, RewardError
from etude.core.fit import check as check_fit
from etude.core.method import Method
from etude.core.registry import files, get_method
from etude.core.slots import Context, GroupReward, Reward, TokenReward
from etude.experience.groups import Groups
from etude.learners.token import TokenCritic
from etude.loops.credit import credited, terms
from etude.loops.enumerable import EnumerableLoop
from etude.policies.tabular import SoftmaxTree
from etude.rewards.outcome import TaskReward
from etude.tasks import resolve_task
from etude.tasks.tabular.enumerable import Enumerable
from language_toys import make_loop

pytestmark = pytest.mark.usefixtures("one_thread")
TASK = Enumerable(prompts=3, vocabulary=3, length=2)


def fits(name: str) -> bool:
    """Whether plain groups are all that the method samples."""
    method = get_method(name)
    if TASK.world not in method.worlds:
        return False
    try:
        check_fit(method, TASK)
    except ConfigError:
        return False
    return True


METHODS = [name for name in sorted(files("methods")) if fits(name)]


def trained(method: str, seeds: list[int], steps: int = 4) -> EnumerableLoop:
    loop = EnumerableLoop(get_method(method), TASK, seeds=seeds, steps=steps)
    for _ in range(steps):
        loop.step()
    return loop


@pytest.mark.first
@pytest.mark.parametrize("method", METHODS)
def test_a_member_is_the_same_alone(method: str) -> None:
    together, alone = trained(method, [5, 6, 7]), trained(method, [6])
    assert torch.equal(together.policy.logits[1], alone.policy.logits[0])
    assert not torch.equal(together.policy.logits[0], together.policy.logits[1])


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_it_resumes_as_if_it_had_never_stopped(method: str, tmp_path: Path) -> None:
    whole = trained(method, [1, 2], steps=4)
    half = EnumerableLoop(get_method(method), TASK, seeds=[1, 2], steps=4)
    half.step(), half.step()
    half.save(tmp_path)
    again = EnumerableLoop(get_method(method), TASK, seeds=[1, 2], steps=4)
    again.load(tmp_path)
    again.step(), again.step()
    for a, b in zip(whole.policy.logits, again.policy.logits):
        assert torch.equal(a, b)


def test_samples_are_drawn_by_member_step_prompt_and_number() -> None:
    """More members and more samples leave those that there were; everything else makes others."""

    def responses(seeds: list[int], size: int, finished: int = 0) -> torch.Tensor:
        method = get_method("grpo").replace(experience=Groups(size=size), filters=())
        loop = EnumerableLoop(method, TASK, seeds=seeds, steps=4)
        loop.finished = finished
        batches = loop._collect()
        assert len(torch.cat([b.draw for b in batches]).unique()) == len(seeds) * 3 * size
        return torch.stack([b.response.view(3, size) for b in batches])

    whole = responses([5, 6], 64)
    assert torch.equal(responses([6], 64)[0], whole[1])
    assert torch.equal(responses([6, 5], 16).flip(0), whole[:, :, :16])
    rows = [*whole.flatten(0, 1), *responses([5], 64, finished=1)[0]]
    assert len({tuple(row.tolist()) for row in rows}) == 9


def test_the_usual_methods_are_among_those_tested() -> None:
    assert {"reinforce", "rloo", "grpo", "dapo", "lite-ppo"} <= set(METHODS)


@pytest.mark.slow
def test_expected_reward_rises_and_is_what_samples_earn() -> None:
    loop = EnumerableLoop(get_method("grpo"), Enumerable(), seeds=range(8), steps=60)
    before = loop.exact()["reward"]
    for _ in range(60):
        loop.step()
    after = loop.exact()
    assert float((after["reward"] - before).min()) > 0.15
    assert (after["pass@4"] >= after["pass@1"] - 1e-12).all() and (after["pass@16"] <= 1 + 1e-12).all()


def test_policies_that_need_more_than_plain_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^sft: Demonstrations \(experience\) is for tasks of language, and enum"):
        check_fit(get_method("sft"), resolve_task("enumerable"))
    with pytest.raises(ConfigError, match=r"ValueModel \(critic\) is for tasks of language, and enumerable is one of"):
        check_fit(get_method("tulu-3-rlvr"), resolve_task("enumerable"))


# Values


def test_what_a_prefix_is_worth_is_the_mean_of_what_is_below_it() -> None:
    policy = SoftmaxTree(2, 3, 2, ends=True, spread=1.0, seed=4)
    rewards = torch.rand(2, len(policy.tokens), generator=torch.Generator().manual_seed(0)).double()
    probs, worth, reached = policy.probs()[0], policy.worth(rewards)[0], policy.reached()[0]
    for node in range(policy.count):
        through = ((policy.nodes == node) & policy.mask).any(1)
        torch.testing.assert_close(reached[:, node], probs[:, through].sum(1))
        torch.testing.assert_close(worth[:, node], (probs * rewards)[:, through].sum(1) / probs[:, through].sum(1))
    torch.testing.assert_close(worth[:, 0], (probs * rewards).sum(1))


@pytest.mark.parametrize("lam", [1.0, 0.0])
def test_the_expected_step_of_values_is_towards_what_prefixes_are_worth(lam: float) -> None:
    """By chance of coming there: with lambda 1 from what they are worth, with 0 from the values one token later."""
    method = set_values(with_critic(), {"advantages.lam": lam})
    loop = EnumerableLoop(method, Enumerable(length=2), seeds=[3], steps=1)
    policy, rewards = loop.policy, loop.rewards
    with torch.no_grad():
        policy.logits[0].normal_(generator=torch.Generator().manual_seed(1))
        policy.values[0].normal_(generator=torch.Generator().manual_seed(2))
    prompt = torch.arange(policy.prompts).repeat_interleave(len(policy.tokens))
    response = torch.arange(len(policy.tokens)).repeat(policy.prompts)
    table = policy.table()
    now = policy.rows(0, prompt, response, table.detach(), frozenset({"values"}))
    batch = loop.bandit.batch(prompt, response, now).replace(values=now.values.detach())
    batch = batch.replace(rewards=batch.rewards.index_put((torch.arange(len(batch)), batch.action_mask.sum(1) - 1),
                          batch.scores), weights=policy.probs()[0].flatten().detach())  # fmt: skip
    batch = credited(method, batch)
    said = policy.rows(0, prompt, response, table, frozenset({"values"}))
    found = torch.autograd.grad(terms(method, batch, said, policy.length)["value_loss"].total, policy.values)[0]
    values, reached, worth = policy.values[0].detach(), policy.reached()[0], policy.worth(rewards)[0]
    if lam == 0:
        chance = policy.probs()[0].view(policy.prompts, 1, -1)
        last = policy.nodes[:, -1]
        worth[:, 0] = (chance[:, 0] * values[:, last]).sum(-1)
    wanted = reached * (values - worth)
    torch.testing.assert_close(found / found.norm(), wanted / wanted.norm(), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_a_critics_values_come_near_what_prefixes_are_worth_and_a_run_goes_on(tmp_path: Path) -> None:
    method = with_critic()
    loop = EnumerableLoop(method, Enumerable(length=2), seeds=[0, 1], steps=60)
    for _ in range(30):
        loop.step()
    loop.save(tmp_path)
    other = EnumerableLoop(method, Enumerable(length=2), seeds=[0, 1], steps=60)
    other.load(tmp_path)
    ends = [[run.step().members for _ in range(30)][-1] for run in (loop, other)]
    assert ends[0] == ends[1]
    assert max(ends[0]["value_error"]) < 0.1 < 0.4 < min(ends[0]["reward"])  # of values that stayed 0 it is over 0.4


def with_critic() -> Method:
    """REINFORCE with a table of values."""
    return get_method("reinforce").replace(
        advantages=GAE(gamma=1.0, lam=1.0, standardize=False), critic=TokenCritic(coefficient=1.0, clip=None),
        experience=Groups(size=16), aggregation="fixed-length",
    )  # fmt: skip


class NotANumber(Reward):
    """nan for the second completion."""

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [0.0, float("nan"), *[0.0] * (len(episodes) - 2)]


class TokensNotANumber(TokenReward):
    """nan on every token."""

    def shape(self, batch: TokenBatch) -> torch.Tensor:
        return torch.full_like(batch.rewards, torch.nan)


class GroupNotANumber(GroupReward):
    """nan for all."""

    def rescore(self, batch: TokenBatch) -> torch.Tensor:
        return torch.full_like(batch.scores, torch.nan)


@pytest.mark.parametrize("part", [NotANumber(), TokensNotANumber(), GroupNotANumber()])
def test_a_reward_that_is_not_a_number_stops_the_run_as_it_does_in_language(part: Any) -> None:
    method = get_method("grpo").replace(rewards=(TaskReward(), part))
    sentence = rf"{type(part).__name__} returned nan for problem '[\w/-]+'; a reward must be a finite number."
    for loop in (EnumerableLoop(method, TASK, seeds=[0], steps=1), make_loop(method, seed=0, steps=1)):
        with pytest.raises(RewardError, match=sentence):
            loop.step()


def test_a_table_that_is_not_finite_stops_the_run() -> None:
    loop = EnumerableLoop(get_method("grpo"), TASK, seeds=[0], steps=1)
    loop.rewards[:] = torch.inf
    with pytest.raises(RewardError, match="TaskReward returned inf for problem 'enumerable/0'"):
        loop.step()


class First(Reward):
    """Nothing for responses to the first prompt, elsewhere what the task pays."""

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float | None]:
        return [None if e.problem.id == "enumerable/0" else e.reward for e in episodes]


def test_rows_without_a_reward_are_left_out() -> None:
    """The policy at the prompt that no reward applies to stays as it is; at the others it learns as with the task's."""
    paid, partly = (
        EnumerableLoop(get_method("reinforce").replace(rewards=(p,)), TASK, seeds=[0], steps=1)
        for p in (TaskReward(), First())
    )
    before = paid.policy.logits[0].detach().clone()
    paid.step(), partly.step()
    moved = [(loop.policy.logits[0].detach() - before).abs().flatten(1).sum(1) for loop in (paid, partly)]
    assert moved[0][0] > 0 and moved[1][0] == 0
    assert (moved[1][1:] > 0).any()


def test_tables_that_cannot_be_enumerated_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most 4096"):
        Enumerable(vocabulary=8, length=8)
    with pytest.raises(ConfigError, match="less than the 4 responses"):
        Enumerable(length=1, vocabulary=4, solutions=4)
