"""What is done to logs once before they are learned from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from etude.core.complete import critic_gamma
from etude.core.errors import ConfigError
from etude.core.fields import Count, Positive, PositiveProbability
from etude.core.log_slots import LogTransform
from etude.core.population import PerMember, Population
from etude.core.step_slots import Observations
from etude.experience.logs.columns import moments
from etude.experience.logs.table import Logs, Numbers
from etude.policies.control.leaves import Leaves

if TYPE_CHECKING:
    from etude.core.method import Method
    from etude.core.part import Part


def for_all_alike(part: Part) -> None:
    """Raise ConfigError for a transform of logs whose numbers differ between members."""
    if any(isinstance(value, PerMember) for value in part.fields().values()):
        raise ConfigError(f"{type(part).__name__} is for logs that all members share, and theirs differ: compare runs.")


def paid_otherwise(method: Method) -> str | None:
    """What is wrong with changing what the rows of logs were paid, where others are acted beside them."""
    slots = method.slots()
    if slots["experience"] is None or not slots["experience"].acts or slots["rewards"]:
        return None
    return (
        "changes what the logs were paid, and what is acted beside them is paid as the task pays: leave it out, or "
        "give steps the same with the slot rewards."
    )


class ReturnsToGo(LogTransform):
    """What every row's episode went on to earn, from its own reward on: sum gamma^k r_k, to the last row that is there.

    gamma is that of the critic's horizon. An episode that was truncated went on to earn more than that.

    Shapes: rewards [N] -> `offers["returns_to_go"]` [P, B].

    >>> earned(np.array([1.0, 2.0, 4.0, 8.0]), ends=np.array([2, 3]), gamma=0.5).tolist()
    [3.0, 4.0, 4.0, 8.0]
    """

    adds: ClassVar[str] = "returns_to_go"

    def __call__(self, logs: Logs, method: Method) -> Logs:
        found = earned(logs.rewards.astype(np.float64), logs.ends, self._gamma(method))
        return replace(logs, returns_to_go=found.astype(np.float32))

    def of_episode(self, rewards: Numbers, method: Method) -> Numbers:
        return earned(rewards, np.array([len(rewards) - 1]), self._gamma(method)).astype(np.float32)

    def _gamma(self, method: Method) -> float:
        gamma = critic_gamma(method)
        if isinstance(gamma, PerMember):
            raise ConfigError(
                "ReturnsToGo adds one column that all members share, and their gamma differ: compare runs instead."
            )
        return gamma

    def sentence(self, before: Logs, after: Logs) -> str:
        found = after.returns_to_go
        assert found is not None
        low, high = float(found.min()), float(found.max())
        return f"every row says what its episode went on to earn, {low:.4g} to {high:.4g}"


def earned(rewards: Numbers, ends: Numbers, gamma: float) -> Numbers:
    """Discounted sums from each row [N] to the last of its episode; ends [E] are the last rows."""
    sums, lengths = rewards.copy(), np.diff(ends, prepend=-1)
    for back in range(1, int(lengths.max())):
        at = ends[lengths > back] - back
        sums[at] += gamma * sums[at + 1]
    return sums


class NextActions(LogTransform):
    """What was done after every row; rows after which nobody saw anything done, of truncated episodes, are left out.

    Where the episode terminated nothing was done, which is NaN.

    Shapes: actions [N, A] -> `offers["next_actions"]` [P, B, A] in units.

    >>> from types import SimpleNamespace as Rows
    >>> following(np.array([[1.0], [2.0], [3.0]]), ended=np.array([False, True, True])).flatten().tolist()
    [2.0, nan, nan]
    """

    adds: ClassVar[str] = "next_actions"

    def __call__(self, logs: Logs, method: Method) -> Logs:
        ended, kept = logs.terminated | logs.truncated, ~logs.truncated
        lasts = np.append(logs.truncated[1:], False) & ~ended
        then = following(logs.actions.astype(np.float32), ended)
        return replace(logs, truncated=lasts, next_actions=then).only(kept)

    def sentence(self, before: Logs, after: Logs) -> str:
        return (
            "every row says what was done next; where an episode was truncated nobody saw it, and its last row is out"
        )


def following(actions: Numbers, ended: Numbers) -> Numbers:
    """What was done after each row, [N, A]; NaN where its episode ended."""
    found = np.full(actions.shape, np.nan, actions.dtype)
    found[:-1] = actions[1:]
    found[ended] = np.nan
    return found


class MarkExperts(LogTransform):
    """The episodes that earned most are an expert's.

    Args:
        episodes: how many.

    Shapes: returns [E] -> `offers["expert"]` [P, B], 1 or 0. Raises: ConfigError where no other episode is left.

    >>> columns = dict(observations=np.zeros((4, 1)), actions=np.zeros((4, 1)), next_observations=np.zeros((4, 1)))
    >>> ends = dict(terminated=np.array([False, True, False, True]), truncated=np.zeros(4, bool))
    >>> logs = Logs("here", None, rewards=np.array([1.0, 1.0, 5.0, 0.0]), **columns, **ends)
    >>> MarkExperts()(logs, None).expert.tolist()
    [0.0, 0.0, 1.0, 1.0]
    """

    adds: ClassVar[str] = "expert"
    episodes: Count = 1

    def __call__(self, logs: Logs, method: Method) -> Logs:
        if self.episodes >= logs.episodes:
            raise ConfigError(
                f"MarkExperts takes {self.episodes} episodes for an expert's, and there are {logs.episodes}: others "
                "have to be left."
            )
        best = np.zeros(logs.episodes, np.float32)
        best[np.argsort(-logs.returns, kind="stable")[: self.episodes]] = 1
        return replace(logs, expert=np.repeat(best, np.diff(logs.ends, prepend=-1)))

    def sentence(self, before: Logs, after: Logs) -> str:
        assert after.expert is not None
        marked = before.returns[after.expert[before.ends] > 0]
        earned = f"{marked.min():.4g}" if len(marked) == 1 else f"{marked.min():.4g} to {marked.max():.4g}"
        return f"{self.episodes} of {before.episodes} episodes are an expert's, which earned {earned}"


class ForgetRewards(LogTransform):
    """What was paid is told nobody: 0 in every row.

    Shapes: rewards [N] -> the same.

    >>> ends = dict(terminated=np.array([False, True]), truncated=np.zeros(2, bool))
    >>> columns = dict(observations=np.zeros((2, 1)), actions=np.zeros((2, 1)), next_observations=np.zeros((2, 1)))
    >>> ForgetRewards()(Logs("here", None, rewards=np.array([1.0, 5.0]), **columns, **ends), None).rewards.tolist()
    [0.0, 0.0]
    """

    def __call__(self, logs: Logs, method: Method) -> Logs:
        return replace(logs, rewards=np.zeros_like(logs.rewards))

    def sentence(self, before: Logs, after: Logs) -> str:
        return "no reward is told"


class ScaleRewards(LogTransform):
    """What was paid, times a factor and moved: r <- scale r + shift.

    IQL learns so (arXiv:2110.06169): mazes with `shift=-1`, so that every step costs 1 until it has arrived, locomotion
    with `spread=1000`, so that the returns of the best and the worst episode differ by that. A factor leaves the best
    policy what it was; a shift does where episodes go on until the goal, and otherwise pays for longer or shorter ones.

    Args:
        scale: the factor. shift: added after it.
        spread: the factor makes the highest return less the lowest that, before the shift; None: it is `scale`.

    Shapes: rewards [N] -> the same. Raises: ConfigError where all returns are alike and `spread` is given.

    >>> ends = dict(terminated=np.array([False, True, True]), truncated=np.zeros(3, bool))
    >>> columns = dict(observations=np.zeros((3, 1)), actions=np.zeros((3, 1)), next_observations=np.zeros((3, 1)))
    >>> logs = Logs("here", None, rewards=np.array([1.0, 4.0, 3.0]), **columns, **ends)  # returns 5 and 3
    >>> ScaleRewards(scale=2.0, shift=-1.0)(logs, None).rewards.tolist()
    [1.0, 7.0, 5.0]
    >>> ScaleRewards(spread=10.0)(logs, None).rewards.tolist()
    [5.0, 20.0, 15.0]
    """

    scale: Positive = 1.0
    shift: float = 0.0
    spread: Positive | None = None

    def check(self) -> None:
        if self.spread is not None and self.scale != 1.0:
            raise ConfigError("ScaleRewards has its factor from spread, or it is scale: leave one of them out.")

    def objection(self, method: Method) -> str | None:
        return paid_otherwise(method)

    def __call__(self, logs: Logs, method: Method) -> Logs:
        for_all_alike(self)
        if logs.returns_to_go is not None:
            raise ConfigError("ScaleRewards changes rewards that ReturnsToGo has summed already: put it before that.")
        rewards = self._factor(logs) * logs.rewards.astype(np.float64) + self.shift
        return replace(logs, rewards=rewards.astype(logs.rewards.dtype))

    def _factor(self, logs: Logs) -> float:
        if self.spread is None:
            return self.scale
        differ = float(logs.returns.max() - logs.returns.min())
        if differ == 0.0:
            raise ConfigError("ScaleRewards cannot spread returns that are all alike: give scale instead of spread.")
        return self.spread / differ

    def sentence(self, before: Logs, after: Logs) -> str:
        low, high = float(after.returns.min()), float(after.returns.max())
        return f"rewards are {self._factor(before):.4g} r {self.shift:+.4g}, returns {low:.4g} to {high:.4g}"


class Filter(LogTransform):
    """The episodes that earned most are learned from, the others are not: with cloning this is %BC (arXiv:2106.01345).

    Args:
        top: the share of episodes that stays, at least one; of those that earned the same the first.

    Shapes: rows [N, ...] -> those of the episodes that stay.

    >>> columns = dict(observations=np.zeros((4, 1)), actions=np.zeros((4, 1)), next_observations=np.zeros((4, 1)))
    >>> ends = dict(terminated=np.array([False, True, False, True]), truncated=np.zeros(4, bool))
    >>> logs = Logs("here", None, rewards=np.array([1.0, 1.0, 5.0, 0.0]), **columns, **ends)
    >>> Filter(top=0.5)(logs, None).rewards.tolist()
    [5.0, 0.0]
    """

    top: PositiveProbability = 0.1

    def __call__(self, logs: Logs, method: Method) -> Logs:
        for_all_alike(self)
        stays = np.zeros(logs.episodes, bool)
        stays[np.argsort(-logs.returns, kind="stable")[: max(1, round(self.top * logs.episodes))]] = True
        return logs.only(np.repeat(stays, np.diff(logs.ends, prepend=-1)))

    def sentence(self, before: Logs, after: Logs) -> str:
        return f"{after.episodes:,} of {before.episodes:,} episodes stay, of {after.returns.min():.4g} or more"


class Standard(nn.Module):
    """(x - mean) / deviation, with numbers [P, 1, D] that stay as they are."""

    def __init__(self, members: int, width: int) -> None:
        super().__init__()
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", torch.zeros(members, 1, width))
        self.register_buffer("deviation", torch.ones(members, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.deviation


class StandardizeObservations(LogTransform, Observations):
    """Observations with mean 0 and deviation 1 over all rows of the logs (arXiv:2106.06860, section 4).

        (s - mean) / (deviation + epsilon)

    Both are numbers of the policy: learned from, acted and exported through.

    Shapes: observations [P, N, D] -> the same.

    >>> from types import SimpleNamespace as Logs
    >>> from etude.core.population import Member
    >>> part = StandardizeObservations(epsilon=1e-9)
    >>> module, shape = part.build((1,), Population([Member(0)]))
    >>> part.fit(module, Logs(observations=np.array([[1.0], [3.0]])))  # mean 2, deviation 1
    >>> module(torch.tensor([[[4.0]]])).tolist()
    [[[2.0]]]
    """

    epsilon: Positive = 1e-3

    def build(self, shape: tuple[int, ...], population: Population) -> tuple[nn.Module, tuple[int, ...]]:
        if isinstance(shape, Leaves) or len(shape) != 1:
            raise ConfigError(f"StandardizeObservations is for vectors, and observations are {list(shape)}.")
        return Standard(population.size, shape[0]), shape

    @torch.no_grad()
    def fit(self, module: nn.Module, logs: Any) -> None:
        assert isinstance(module, Standard)
        mean, deviation = moments(logs.observations)
        for buffer, found in ((module.mean, mean), (module.deviation, deviation + self.epsilon)):
            buffer.copy_(torch.from_numpy(found).to(buffer))

    def sentence(self, before: Logs, after: Logs) -> str:
        return f"every observation has mean 0 and deviation 1 over them (+ {self.epsilon:g}), for the policy too"
