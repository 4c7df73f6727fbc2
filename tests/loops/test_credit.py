"""From samples to credit: one path for language models and enumerable policies."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from etude.core.batches import TokenBatch
from etude.core.registry import get_method
from etude.core.slots import TokenReward
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
