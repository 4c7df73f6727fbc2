"""REFUEL: regressing the relative future (arXiv:2410.04612).

Changes REBEL in three places:

1. the task has turns: x_h is the dialogue before the assistant's turn h, y_h what it says there, and the reward is that
   of the whole dialogue. For each problem a turn h is drawn, all being as likely; the policy pi_t itself and the user
   lead to x_h, so that it learns on dialogues that it comes to;
2. from the same x_h the policy says y and y' and goes on with the user to the end, twice. The returns R and R' of these
   dialogues take the place of rewards, unbiased samples of Q^{pi_t}(x_h, y); only tokens of turn h are learned:

       loss = (log pi/pi_t (y | x_h) - log pi/pi_t (y' | x_h) - eta [R - R'])^2

   With exact Q it is 0 at pi_{t+1} ~ pi_t exp(eta Q^{pi_t}), a step of mirror descent at every turn; the noise of
   returns moves the least loss, not where it is. With one turn it is REBEL;
3. two answers that are the same, and a dialogue that was cut, teach nothing and are left out; nothing is paid for the
   distance from the policy at the start.

The dialogue that leads to x_h is itself the first of the two: h is drawn before it, so that what it says at turn h is
one more sample. A dialogue that ends before turn h is left out. With `--set experience.turn=last` pairs are of the
last turn alone. The paper's eta is 1e3, at rates of 3e-7; it divides by eta on the left, and this is the form of its
code. As in REBEL here each batch is passed over four times; the paper goes once over 64,000 pairs, in many batches. Its
second setting, in which dialogues before x_h are data, is not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from etude.advantages.group import group_min
from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.episodes import Episode, Problem
from etude.core.slots import Context, Filter
from etude.core.worlds import World
from etude.experience.groups import Groups
from etude.experience.rollout import Start, fresh, rollout
from etude.methods.preference.rebel import rebel

if TYPE_CHECKING:
    from etude.core.method import Method


class RelativeFutures(Groups):
    """`size` ways to go on from a turn of a dialogue, which is drawn before it is led, each played to its end.

    Tokens of that turn alone are learned, and the whole dialogue's return is paid there. The first goes on as the
    dialogue was led; the others share all that was said before. A dialogue that ends before the turn is left out.
    `info["turn"]` of an episode says which it was, from 0.

    Args:
        turn: 'uniform': each of the task's turns is as likely; or always the 'last' one.

    >>> RelativeFutures().rows_per_problem, RelativeFutures(turn="last").size
    (2, 2)
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    size: int = 2
    turn: Literal["uniform", "last"] = "uniform"

    def objection(self, method: Method) -> str | None:
        if self.size < 2:
            return "compares ways to go on, and there is one of each: set experience.size to 2 or more."
        return super().objection(method)

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        starts = fresh(problems, self.size, context.stream)
        led = rollout(starts[:: self.size], context, self.sampling(context))
        turns = [self._turn(problem, place, context) for place, problem in enumerate(problems)]
        again = [
            self._from(episode, turn, start, number * self.size)
            for number, (episode, turn) in enumerate(zip(led, turns))
            for start in starts[number * self.size + 1 : (number + 1) * self.size]
            if turn < len(episode.turns)
        ]
        others = iter(rollout(again, context, self.sampling(context)) if again else [])
        episodes = []
        for episode, turn in zip(led, turns):
            if turn >= len(episode.turns):
                continue
            group = [episode, *(next(others) for _ in range(self.size - 1))]
            if all(e.turns for e in group):
                episodes += [_at(e, turn, turn if e is episode else 0) for e in group]
        return episodes

    def _turn(self, problem: Problem, place: int, context: Context) -> int:
        """The turn that is compared, of the problem at a place of the step."""
        last = int(context.task.max_turns) - 1
        if self.turn == "last" or not last:
            return last
        return int(context.stream.split("turn", problem.id, place).numpy.integers(last + 1))

    def _from(self, episode: Episode, turn: int, start: Start, parent: int) -> Start:
        """Where another dialogue goes on from: before this turn of one."""
        said = tuple(episode.turns[:turn])
        return start._replace(segments=said, seed=episode.seed, parent=parent)


def _at(episode: Episode, turn: int, own: int) -> Episode:
    """The episode with one of its sampled turns left to learn from, number `own`, which is paid the whole return."""
    learned, total = episode.turns[own], episode.reward
    for segment in episode.segments:
        segment.reward = total if segment is learned else 0.0
        if segment is not learned:
            segment.action_mask = [0] * len(segment.tokens)
    episode.info["turn"] = turn
    return episode


class DifferentAnswers(Filter):
    """Drops groups in which two answers are the same, token by token.

    Shapes: weights [B].

    >>> from types import SimpleNamespace as Rows
    >>> tokens = torch.tensor([[5, 6], [5, 6], [5, 6], [5, 7]])
    >>> rows = Rows(tokens=tokens, action_mask=torch.ones(4, 2), group=torch.tensor([0, 0, 1, 1]), episodes=[None] * 4)
    >>> rows.scores = torch.zeros(4)
    >>> DifferentAnswers().weigh(rows).tolist()
    [0.0, 0.0, 1.0, 1.0]
    """

    def weigh(self, batch: TokenBatch) -> Tensor:
        said = torch.where(batch.action_mask.bool(), batch.tokens, -1).tolist()
        seen, fine = set[tuple[int, ...]](), []
        for episode, group, row in zip(batch.episodes, batch.group.tolist(), said):
            key = (group, *(token for token in row if token >= 0))
            fine.append(self._counts(episode) and key not in seen)
            seen.add(key)
        return group_min(torch.tensor(fine, device=batch.scores.device).to(batch.scores), batch.group)

    def _counts(self, episode: Episode) -> bool:
        return True


class DifferentWhole(DifferentAnswers):
    """Drops groups in which two answers are the same, token by token, or one was cut by a limit of tokens or context.

    What is cut is not paid for then: a policy that wanders off beyond the limit is not told so. Where this can happen,
    and a cut dialogue has a reward, take `different-answers`.

    Shapes: weights [B].

    >>> from types import SimpleNamespace as Rows
    >>> from etude.core.episodes import StopReason
    >>> ended, cut = Rows(stop=StopReason.TERMINATED), Rows(stop=StopReason.MAX_TOKENS)
    >>> rows = Rows(tokens=torch.tensor([[5, 6], [5, 7]]), action_mask=torch.ones(2, 2), group=torch.tensor([0, 0]))
    >>> rows.scores, rows.episodes = torch.zeros(2), [ended, cut]
    >>> DifferentAnswers().weigh(rows).tolist(), DifferentWhole().weigh(rows).tolist()
    ([1.0, 1.0], [0.0, 0.0])
    """

    def _counts(self, episode: Episode) -> bool:
        return not episode.stop.cut


refuel = rebel.replace(
    id="refuel",
    title="Regressing the Relative Future: Efficient Policy Optimization for Multi-turn RLHF",
    paper="arXiv:2410.04612",
    experience=RelativeFutures(size=2),
    rewards=rebel.rewards[:1],
    filters=(DifferentWhole(),),
    reference=None,
    claim=Claim(
        statement="Pairs of all turns, on dialogues that the learner comes to, end with a higher reward than as many "
        "pairs of the last turn.",
        task="number-hunt",
        setting="five guesses, one answer in ten false; two layers of width 64 after 300 steps on random guesses; 80 "
        "steps of 64 pairs, of cut answers too",
        measures=(
            Measure(name="reward", smallest=0.02),
            Measure(name="solved", role="mechanism", smallest=0.02),
        ),
        equal=("rows",),
        sweep={"optimizer.lr": (3e-4, 1e-3, 3e-3)},
        learned_on="reward",
        paper_effect="Llama-3-8B against its start: 56.6 % of dialogues over five turns, 58.6 % at the fifth; the gap "
        "to pairs of the last turn grows with the turn",
    ),
)
