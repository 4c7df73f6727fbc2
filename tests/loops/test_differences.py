"""Rows without a reward, and rewards that never differ."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch

from etude.core.batches import TokenBatch
from etude.core.episodes import Episode
from etude.core.slots import Context, GroupReward, Reward
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.filters.informative import InformativeGroups
from etude.loops.differences import informative, never_differed
from etude.methods.rlvr.grpo import grpo
from etude.optimizers.adam import AdamW
from etude.rewards.outcome import OverlongPenalty, TaskReward
from etude.rewards.scoring import score
from language_toys import Toy, make_loop, random_batch

small = grpo.replace(problems=3, experience=Groups(size=4), optimizer=AdamW(lr=1e-3))


class Given(Reward):
    """Whatever is put in `values`."""

    values: ClassVar[Any] = None

    def score(self, episodes: Sequence[Episode], context: Context) -> Any:
        return self.values(len(episodes))


class Penalty(Reward):
    """A little less for every row."""

    judges: ClassVar[bool] = False

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [-0.01 * i for i in range(len(episodes))]


def said_in(loop: Any, steps: int) -> tuple[list[tuple[int, str]], list[dict[str, float]]]:
    """What a loop says about equal rewards, with the number of the step, and the metrics of every step."""
    sentences, metrics = [], []
    for number in range(1, steps + 1):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            metrics.append(loop.step().metrics)
        sentences += [(number, str(w.message)) for w in said if "nothing can be learned" in str(w.message)]
    return sentences, metrics


@pytest.mark.slow
def test_rewards_that_stop_differing_are_said_after_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.loops.differences.FLAT_STEPS", 5)
    count = iter(range(10_000))
    task = Toy(scoring=lambda problem, said: 0.0 if (n := next(count)) >= 24 else float(n % 2), max_tokens=2)
    sentences, metrics = said_in(make_loop(small, task), 9)  # 12 rows a step: the first two steps differ
    assert [m["informative_groups"] for m in metrics] == [1.0, 1.0] + [0.0] * 7
    assert [n for n, _ in sentences] == [7]
    assert sentences[0][1].startswith("All rewards of a step were equal in each of the last 5 steps (now 0)")


@pytest.mark.slow
def test_a_penalty_that_differs_does_not_hide_that_nothing_is_ever_right() -> None:
    loop = make_loop(small.replace(rewards=(TaskReward(), Penalty())), Toy(scoring=lambda problem, said: 0.0))
    sentences, metrics = said_in(loop, 3)
    assert [n for n, _ in sentences] == [3] and all(m["reward"] < 0 for m in metrics)


def test_a_group_of_one_is_compared_with_the_whole_step() -> None:
    assert informative([torch.tensor([0.0, 1.0])], [torch.tensor([0, 1])]) == 1.0
    assert informative([torch.tensor([1.0, 1.0])], [torch.tensor([0, 1])]) == 0.0
    apart = [torch.tensor([1.0, 1.0, 0.5]), torch.tensor([0.0, 0.0])]
    assert informative(apart, [torch.tensor([0, 0, 1]), torch.tensor([0, 0])]) == 0.0
    assert informative([torch.tensor([])], [torch.tensor([])]) == 0.0


def test_the_end_of_a_short_run_says_that_nothing_differed() -> None:
    flat = {"step": 1, "reward": 0.0, "informative_groups": 0.0}
    found = never_differed([flat, flat])
    assert found is not None and found.startswith(
        "Nothing was learned: in 2 steps no two completions of one problem had different rewards (mean reward 0 in the "
        "last step). Likely causes:"
    )
    assert "no completion had a reward" in (never_differed([{"informative_groups": 0.0}]) or "")
    assert never_differed([flat, {**flat, "informative_groups": 0.1}]) is None
    assert never_differed([{"step": 1, "reward": 0.0}]) is None  # a loop that does not compare samples


@pytest.mark.slow
def test_rows_without_a_reward_leave_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """None means 'does not apply': the row is dropped and counted, and a penalty alone does not keep it."""
    monkeypatch.setattr(Given, "values", staticmethod(lambda n: [None] * 4 + [0.0, 1.0] * ((n - 4) // 2)))
    for others in ((), (OverlongPenalty(),)):
        metrics = make_loop(small.replace(rewards=(Given(), *others))).step().metrics
        assert (metrics["rows"], metrics["no_reward"], metrics["failed_reward"]) == (8.0, 4.0, 0.0)
        assert metrics["reward/given"] == 0.5
    metrics = make_loop(small.replace(rewards=(Given(), TaskReward()))).step().metrics
    assert (metrics["rows"], metrics["no_reward"]) == (12.0, 0.0)  # the task judges what `Given` does not
    assert metrics["reward/given"] == 0.5  # over the eight that it applies to


@pytest.mark.slow
def test_a_step_without_any_reward_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Given, "values", staticmethod(lambda n: [None] * n))
    loop = make_loop(small.replace(rewards=(Given(),), filters=(InformativeGroups(rounds=1),)))
    sentences, metrics = said_in(loop, 4)
    assert loop.finished == 4 and all((m["no_reward"], m["informative_groups"]) == (12.0, 0.0) for m in metrics)
    assert [n for n, _ in sentences] == [3] and "(no completion has one)" in sentences[0][1]


def test_group_rewards_do_not_see_rows_without_a_reward() -> None:
    class Best(GroupReward):
        """The best score in the batch, for all."""

        def rescore(self, batch: TokenBatch) -> torch.Tensor:
            return torch.full_like(batch.scores, float(batch.scores.max()))

    class Below(Reward):
        """Nothing for the first two rows, -1 for the others."""

        def score(self, episodes: Sequence[Episode], context: Context) -> list[float | None]:
            return [None, None] + [-1.0] * (len(episodes) - 2)

    scored = score(random_batch((4,)), (Below(), Best()), Context(Toy(), None, Stream(0)))
    assert scored.scores.tolist() == [-1.0, -1.0]
