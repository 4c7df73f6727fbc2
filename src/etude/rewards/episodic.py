"""Rewards of control that depend on what came before in the episode."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from etude.core.step_slots import StepReward
from etude.core.transitions import Transitions


class EpisodicReward(StepReward, abstract=True):
    """A reward for each step that knows the episode so far, across rollouts.

    A subclass says what it remembers where an episode begins (`blank`) and what a step makes of that (`advance`); here
    it is carried from step to step and from rollout to rollout, saved in checkpoints, and blank again after every end.

    Example: pay the sum of the rewards so far. Rewards 1, 2 | 3, the bar being an end, become 1, 3 | 3:

        def blank(self, batch):
            return torch.zeros_like(batch.rewards[:, 0])

        def advance(self, memory, batch, t):
            memory = memory + batch.rewards[:, t]
            return memory, memory
    """

    def initial_state(self) -> dict[str, Any]:
        return {}

    def blank(self, batch: Transitions) -> Tensor:
        """What is remembered where an episode begins, [P, E, ...]."""
        raise NotImplementedError

    def advance(self, memory: Tensor, batch: Transitions, t: int) -> tuple[Tensor, Tensor]:
        """The rewards [P, E] of step t of every environment, and what is remembered after it, [P, E, ...]."""
        raise NotImplementedError

    def shape(self, batch: Transitions) -> Tensor:
        blank, shaped = self.blank(batch), torch.empty_like(batch.rewards)
        memory, done = self.state.get("memory", blank), batch.terminated | batch.truncated
        for t in range(shaped.shape[1]):
            shaped[:, t], memory = self.advance(memory, batch, t)
            ended = done[:, t]
            memory = torch.where(ended.view(*ended.shape, *[1] * (memory.dim() - 2)), blank, memory)
        self.state["memory"] = memory
        return shaped

    def forget(self) -> None:
        self.state.pop("memory", None)
