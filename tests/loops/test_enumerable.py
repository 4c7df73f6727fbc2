"""The loop over enumerable policies: members never meet, runs resume exactly, and it does what the token loop does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from etude.core.batches import TokenBatch
from etude.core.episodes import Episode
from etude.core.errors import ConfigError, RewardError
from etude.core.fit import check as check_fit
from etude.core.registry import files, get_method
from etude.core.slots import Context, GroupReward, Reward, TokenReward
from etude.experience.groups import Groups
from etude.loops.enumerable import EnumerableLoop
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
    with pytest.raises(ConfigError, match=r"whose loop has no use for the slot critic\.$"):
        check_fit(get_method("ppo"), resolve_task("enumerable"))


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
