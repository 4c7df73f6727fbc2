"""From samples to credit: one path for language models and enumerable policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.episodes import Problem
from etude.core.errors import NonFiniteError
from etude.core.fields import Count
from etude.core.registry import get_method
from etude.core.slots import Curriculum, Filter, TokenRegularizer, TokenReward
from etude.core.streams import Stream
from etude.loops.enumerable import EnumerableLoop
from etude.rewards.outcome import TaskReward
from etude.tasks.tabular.enumerable import Enumerable
from language_toys import make_loop

pytestmark = pytest.mark.usefixtures("one_thread")
TASK = Enumerable(prompts=3, vocabulary=3, length=2)


class Again(TokenReward):
    """Pays on each row's last action token what the parts before it paid altogether; keeps what it saw."""

    def initial_state(self) -> dict[str, Any]:
        return {"paid": [], "scores": []}

    def shape(self, batch: TokenBatch) -> torch.Tensor:
        self.state["paid"] += batch.rewards.sum(1).tolist()
        last = (batch.action_mask * torch.arange(batch.action_mask.shape[1])).argmax(1)
        return torch.zeros_like(batch.rewards).scatter(1, last[:, None], batch.scores[:, None])

    def before_update(self, batch: TokenBatch) -> None:
        self.state["scores"] += [(float(s), e.reward) for s, e in zip(batch.scores, batch.episodes)]


@pytest.mark.slow
@pytest.mark.parametrize("world", ["language", "enumerable"])
@pytest.mark.parametrize(("place", "times"), [(1, 2.0), (0, 1.0)])
def test_a_token_reward_sees_what_the_parts_before_it_paid(world: str, place: int, times: float) -> None:
    """After the task's reward it sees that and doubles it; before it, it sees nothing."""
    rewards = (TaskReward(), Again()) if place else (Again(), TaskReward())
    method = get_method("grpo").replace(rewards=rewards, filters=())
    loop: Any = make_loop(method, seed=0, steps=1) if world == "language" else None
    loop = loop or EnumerableLoop(method, TASK, seeds=[0], steps=1)
    loop.step()
    state = (loop.method if world == "language" else loop.methods[0]).rewards[place].state
    outcomes = torch.tensor(state["scores"])
    torch.testing.assert_close(outcomes[:, 0], times * outcomes[:, 1])
    assert outcomes[:, 1].unique().numel() > 1
    torch.testing.assert_close(torch.tensor(state["paid"]), outcomes[:, 1] * place)


class Second(Curriculum):
    """The pool's second problem again and again; counts what it is asked for."""

    def initial_state(self) -> dict[str, Any]:
        return {"asked": []}

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        self.state["asked"].append(count)
        return [pool[1]] * count


def test_enumerable_asks_its_curriculum() -> None:
    """Three groups of the one problem that it chose, each with samples of its own; nothing is learned elsewhere."""
    method = get_method("grpo").replace(curriculum=Second(), problems=8, filters=())
    loop = EnumerableLoop(method, TASK, seeds=[0, 1], steps=1)
    before = loop.policy.logits[0].detach().clone()
    batches = loop._collect()
    assert [sorted(set(b.group.tolist())) for b in batches] == [[0, 1, 2], [0, 1, 2]]
    assert all(set(b.prompt.tolist()) == {1} and len(b.draw.unique()) == len(b) for b in batches)
    loop.step()
    moved = (loop.policy.logits[0].detach() - before).abs().flatten(1).sum(1)
    assert moved[1] > 0 and moved[[0, 2]].tolist() == [0.0, 0.0]
    assert loop.methods[0].curriculum.state["asked"] == [3, 3]


class Unlucky(Filter):
    """Drops the last group of a round while there are several; asks for others in their place."""

    resample: ClassVar[bool] = True
    rounds: Count = 3

    def weigh(self, batch: TokenBatch) -> torch.Tensor:
        keep = (batch.group != batch.group.max()) | (batch.group.max() == 0)
        return keep.to(batch.scores.dtype)


@pytest.mark.parametrize("world", ["language", "enumerable"])
def test_a_filter_that_resamples_gets_new_problems(world: str) -> None:
    """Of three groups two are kept, then of one group one: two rounds, and new draws in the second."""
    method = get_method("grpo").replace(curriculum=Second(), problems=3, filters=(Unlucky(),))
    if world == "language":
        language = make_loop(method, seed=0, steps=1)
        groups, method = {r["group"] for r in language.step().episodes}, language.method
    else:
        loop = EnumerableLoop(method, TASK, seeds=[0], steps=1)
        (batch,), method = loop._collect(), loop.methods[0]
        assert len(batch.draw.unique()) == len(batch) == len(batch.episode.unique())
        groups = set(batch.group.tolist())
    assert method.curriculum.state["asked"] == [3, 1]
    assert groups == {0, 1, 2}


class Broken(TokenRegularizer):
    """No number, anywhere."""

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> torch.Tensor:
        return policy.logp * torch.nan


def test_gradients_that_are_no_numbers_stop_enumerable_as_they_stop_language() -> None:
    loop = EnumerableLoop(get_method("grpo").replace(regularizers=(Broken(),)), TASK, seeds=[4], steps=3)
    before = loop.policy.logits[0].detach().clone()
    loop.step(), loop.step()
    assert torch.equal(loop.policy.logits[0], before)
    with pytest.raises(NonFiniteError, match=r"not finite in 3 optimizer steps in a row \(step 2 of seed 4\)"):
        loop.step()
