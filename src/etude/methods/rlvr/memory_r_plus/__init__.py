"""Memory-R+: completions are also rewarded for being like what worked and unlike what failed (arXiv:2504.02273).

Changes GRPO in two places:

1. to the task's reward is added what two memories say, of successes (paid more than tau = 0.5) and of failures, each by
   problem. With B(M, q) what memory M holds of the problems nearest to q, and c the mean of B(M_s, q),

       exploit = -|| Enc(a) - c ||,     explore = 1 - max over a' in B(M_f, q) of cos(Enc(a), Enc(a')),

   both as shares of their range over the last 100 steps; 0 where there is nothing to compare with, explore also in the
   first 50 steps (`MemoryReward`);
2. groups of 16.

Memory-R is `explore=0`. Enc is a frozen sentence encoder in the paper, here hashed pieces of three characters, of the
whole completion where the released code takes the reasoning alone. That code (thaihungle/Memory-R) goes response by
response and stores each just before it is scored (`order=store-first`), so that a wrong one is its own nearest failure
and explores nothing; its window is the last 100 scores (`window_of=scores`), and exploration begins once failures are
known of 500 distinct queries (`explore_after=500 warmup=0`). It pays 1 - the distance as a share of its range, which is
the share of -distance here, but for a range of nothing: there it pays 1 - the distance itself, here 0. It takes the
first query of a device's batch for all of them. The paper adds a reward for the format (`--with format-reward`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.episodes import Episode
from etude.core.errors import ConfigError
from etude.core.fields import Count, NonNegative, WholeNumber
from etude.core.rows import last_action
from etude.core.slots import Context, TokenReward
from etude.core.task import plain
from etude.core.worlds import World
from etude.experience.groups import Groups
from etude.methods.rlvr.grpo import grpo
from etude.methods.rlvr.memory_r_plus.memories import Memory, embedded
from etude.rewards.outcome import TaskReward

MEMORIES = ("successes", "failures")


def exploited(said: Tensor, successes: Tensor) -> Tensor:
    """[N] minus the distance of responses [N, D] to the mean of what succeeded [M, D]."""
    away: Tensor = said - successes.mean(0)
    return -away.square().sum(1).sqrt()


def explored(said: Tensor, failures: Tensor) -> Tensor:
    """[N] 1 less the cosine of responses [N, D] of length 1 to the nearest that failed [M, D]."""
    return 1 - (said @ failures.T).amax(1)


class MemoryReward(TokenReward):
    """exploit + explore on the last token of a completion, each between 0 and its factor.

    Args:
        exploit, explore: factors.
        threshold: what parts before have to pay, more than this, for a success.
        neighbours: problems, the own one among them, whose responses are compared with.
        problems, responses: what each memory holds at most.
        window: over how many the range of each number is taken, and `window_of`, of what: steps, or its own numbers.
        warmup: steps without exploration.
        explore_after: problems that failures have to be known of before anything explores.
        order: 'score-first', a response is remembered after the step that it was made in; 'store-first', one by one,
            each just before it is compared. Rows that nobody sampled, and auxiliary ones, are not remembered.
        width, size: places, and characters of a piece, of the encoder.

    Shapes: [B, T]. An answer that is the only known success exploits all that can be:

    >>> said = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> exploited(said, said[:1])[0].item() == 0, explored(said, said[:1]).tolist()
    (True, [0.0, 1.0])
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    judges: ClassVar[bool] = False

    exploit: NonNegative = 1.0
    explore: NonNegative = 1.0
    threshold: float = 0.5
    neighbours: Count = 1
    problems: Count = 10_000
    responses: Count = 100
    window: Count = 100
    window_of: Literal["steps", "scores"] = "steps"
    warmup: WholeNumber = 50
    explore_after: WholeNumber = 0
    order: Literal["score-first", "store-first"] = "score-first"
    width: Count = 512
    size: Count = 3

    def check(self) -> None:
        if not self.exploit and not self.explore:
            raise ConfigError("MemoryReward needs exploit or explore above 0: with both at 0 it pays nothing.")

    def initial_state(self) -> dict[str, Any]:
        return {**{name: Memory.empty(self.width) for name in MEMORIES}, "ranges": []}

    def shape_in(self, batch: TokenBatch, context: Context) -> Tensor:
        prompts, said = self._encoded(batch.episodes)
        if self.order == "store-first":
            paid, own = torch.zeros(len(said)), _own(batch)
            for i, episode in enumerate(batch.episodes):
                if own[i]:
                    self._store([episode])
                paid[i : i + 1] = self._pays(prompts[i : i + 1], said[i : i + 1], context.step)
        else:
            paid = self._pays(prompts, said, context.step)
        placed = torch.zeros_like(batch.rewards)
        return placed.scatter(1, last_action(batch)[:, None], paid.to(placed)[:, None])

    def before_update(self, batch: TokenBatch) -> None:
        if self.order == "score-first":
            self._store([e for e, own in zip(batch.episodes, _own(batch)) if own])

    def _pays(self, prompts: Tensor, said: Tensor, step: int) -> Tensor:
        """[B] what is paid for responses [B, D], whose numbers widen the ranges."""
        found = {"exploit": self._raw(exploited, "successes", prompts, said)}
        if step >= self.warmup and len(self.state["failures"]["ids"]) >= self.explore_after:
            found["explore"] = self._raw(explored, "failures", prompts, said)
        self._widen(found, step)
        paid = torch.zeros(len(said))
        for name, values in found.items():
            paid += getattr(self, name) * self._share(name, values)
        return paid

    def _encoded(self, episodes: list[Episode]) -> tuple[Tensor, Tensor]:
        asked, said = [_asked(e) for e in episodes], [e.completion for e in episodes]
        return embedded(asked, self.width, self.size), embedded(said, self.width, self.size)

    def _store(self, episodes: list[Episode]) -> None:
        prompts, said = self._encoded(episodes)
        right = torch.tensor([e.outcome > self.threshold for e in episodes], dtype=torch.bool)
        for name, rows in zip(MEMORIES, (right, ~right)):
            ids = [e.problem.id for e, chosen in zip(episodes, rows.tolist()) if chosen]
            self._memory(name).put(ids, prompts[rows], said[rows])

    def _memory(self, name: str) -> Memory:
        return Memory(self.state[name], self.problems, self.responses)

    def _raw(
        self, measure: Callable[[Tensor, Tensor], Tensor], memory: str, prompts: Tensor, said: Tensor
    ) -> Tensor:  # fmt: skip
        """[B] a number before it is scaled, nan where there is nothing to compare with."""
        found = torch.full((len(said),), torch.nan)
        distinct, whose = torch.unique(prompts, dim=0, return_inverse=True)
        for number, prompt in enumerate(distinct):
            near, rows = self._memory(memory).near(prompt, self.neighbours), whose == number
            if len(near):
                found[rows] = measure(said[rows], near)
        return found

    def _widen(self, found: dict[str, Tensor], step: int) -> None:
        """Note the range of a step's numbers, or each of them, and forget those of too long ago."""
        for name, values in found.items():
            real = values[~values.isnan()]
            noted = list(real[:, None]) if self.window_of == "scores" else [real] if len(real) else []
            self.state["ranges"] += [[step, name, float(some.min()), float(some.max())] for some in noted]
        if self.window_of == "steps":
            self.state["ranges"] = [r for r in self.state["ranges"] if r[0] > step - self.window]
        else:
            named = [[r for r in self.state["ranges"] if r[1] == name] for name in ("exploit", "explore")]
            self.state["ranges"] = [r for some in named for r in some[-self.window :]]

    def _share(self, name: str, values: Tensor) -> Tensor:
        """[B] where numbers are in the range of the window, from 0 to 1; 0 where there is none."""
        ranges = [r for r in self.state["ranges"] if r[1] == name]
        if not ranges:
            return torch.zeros_like(values)
        low, high = min(r[2] for r in ranges), max(r[3] for r in ranges)
        share: Tensor = (values - low) / (high - low + 1e-8)
        return share.nan_to_num(0.0).clamp(0, 1)


def _own(batch: TokenBatch) -> list[bool]:
    """[B] which rows are the policy's own answers."""
    return [own and not e.auxiliary for own, e in zip(batch.sampled.tolist(), batch.episodes)]


def _asked(episode: Episode) -> str:
    prompt = episode.problem.prompt
    return prompt if isinstance(prompt, str) else "\n".join(plain(message.get("content")) for message in prompt)


memory_r_plus = grpo.replace(
    id="memory-r-plus",
    title="Reasoning Under 1 Billion: Memory-Augmented Reinforcement Learning for Large Language Models",
    paper="arXiv:2504.02273",
    experience=Groups(size=16),
    rewards=(TaskReward(), MemoryReward()),
    claim=Claim(
        statement="Paid for being like what worked and unlike what failed, it learns more than GRPO in equal steps.",
        bed="language/sums-medium",
        baseline="grpo",
        baseline_changes={"experience.size": 16},
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps", "completions"),
        paper_effect="33.7 against 27.5 +- 6.3 on GSM8K from Qwen2.5-0.5B, and no run that collapses",
    ),
)
