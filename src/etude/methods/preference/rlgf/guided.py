"""Completions that two models write: one rolls in, up to a place drawn at random, and another one rolls out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any

import torch

from etude.core.draws import uniforms
from etude.core.episodes import Episode, Problem, StopReason
from etude.core.errors import ConfigError
from etude.core.fields import Ge, PositiveProbability, Probability, WholeNumber
from etude.core.optimizer_slots import TokenOptimizer
from etude.core.part import Need
from etude.core.slots import Context
from etude.core.stage_slots import SomeMethod, Turn
from etude.experience.groups import Groups
from etude.experience.rollout import Start, first_tokens, fresh, rollout
from etude.policies.sampling import Sampling
from etude.policies.texts.models import Model, SavedModel

if TYPE_CHECKING:
    from etude.core.method import Method
    from etude.core.task import Task

BY_GUIDE = "finished_by_guide"
"""In `Episode.info`: the guide rolled out, so that its completion is what the tokens before it are worth by."""
FAILED = (StopReason.FAULT, StopReason.CONTEXT_OVERFLOW)


class WithGuide(Groups, abstract=True):
    """Groups, some of whose completions a guide writes a part of: a model that is sampled from and never trained.

    Args:
        guide: whose words they are; in the policy's tokens, loaded once for each kind of step.
        mixing: chance of each completion to be written by both; the policy writes the others alone.
        guide_temperature, guide_top_p, guide_top_k: how the guide is sampled. No ratio is taken of its tokens, so its
            distribution may be truncated.
    """

    guide: Model = SavedModel()
    mixing: Probability = 0.8
    guide_temperature: Annotated[float, Ge(0.01)] = 1.0
    guide_top_p: PositiveProbability = 0.92
    guide_top_k: WholeNumber = 0

    def objection(self, method: Method) -> str | None:
        if Need.REFERENCE in self.guide.needs:
            return f"samples from its guide, and {self.guide.name} only says how likely texts are: name a run."
        return super().objection(method)

    def lacks(self, task: Task) -> str | None:
        if getattr(task, "max_turns", 1) > 1:
            return (
                f"{type(self).__name__} cuts a completion in two, and task {task.id!r} has several turns: use groups."
            )
        return super().lacks(task)

    def chosen(self, starts: Sequence[Start]) -> list[int]:
        """The places of those that are written by both."""
        return [i for i, number in enumerate(_uniform(starts, "mixed")) if number < self.mixing]

    def cuts(self, rolled_in: Sequence[Episode], starts: Sequence[Start]) -> list[int]:
        """Tokens of each roll-in that are kept, 1 to all but the last, each number as likely; 0 where it has one."""
        lengths = [0 if e.stop in FAILED else e.action_count for e in rolled_in]
        return [1 + int(u * (n - 1)) if n > 1 else 0 for u, n in zip(_uniform(starts, "cut"), lengths)]

    def whole(self, context: Context) -> Sampling:
        """How the policy is sampled: what a completion was begun with counts among its tokens."""
        return dataclasses.replace(self.sampling(context), whole_turns=True)

    def by_guide(self, starts: Sequence[Start], context: Context) -> list[Episode]:
        """What the guide says there, in this process, by random numbers of its own."""
        if not starts:
            return []
        own = [start._replace(draw=start.draw.child("guide")) for start in starts]
        lent = dataclasses.replace(
            context, policy=self.guide.speaker(context.policy), samplers=None, record=frozenset()
        )
        limit, stop = self.max_tokens or context.max_tokens, tuple(context.task.stop)
        sampling = Sampling(
            self.guide_temperature, self.guide_top_p, self.guide_top_k, limit, stop, whole_turns=True
        )  # fmt: skip
        said = rollout(own, lent, sampling)
        context.policy.work["guide_tokens"] += sum(e.action_count for e in said)
        return said


class GuideRollIns(WithGuide):
    """The guide rolls in and the policy rolls out (PPO++): guides' beginnings are more states to start from.

    The guide writes a whole completion, of which the first t tokens are kept, 1 to all but its last; the policy goes on
    from there, and what it says is trained. With mixing = 0 these are `groups`. `guide_tokens` in the metrics: what the
    guide sampled.

    >>> GuideRollIns(size=4, mixing=0.6).rows_per_problem
    4
    """

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        starts = fresh(problems, self.size, context.stream)
        chosen = self.chosen(starts)
        said = self.by_guide([starts[i] for i in chosen], context)
        for i, episode, place in zip(chosen, said, self.cuts(said, [starts[i] for i in chosen])):
            if place:
                kept = first_tokens(episode.turns[0], place, context.policy)
                starts[i] = starts[i]._replace(segments=(kept,), open=True)
        return rollout(starts, context, self.whole(context))


class GuideRollOuts(WithGuide):
    """The policy rolls in and the guide rolls out (AggreVaTeD): what the policy began is worth what the guide makes.

    The policy writes a whole completion, of which the first t tokens are kept and trained, 1 to all but the last; the
    guide goes on from there. Such an episode's `info` says so (`finished_by_guide`). `guide_tokens` in the metrics:
    what the guide sampled.

    >>> GuideRollOuts(size=4, mixing=1.0).guide_top_p
    0.92
    """

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        starts = fresh(problems, self.size, context.stream)
        episodes = rollout(starts, context, self.whole(context))
        chosen = self.chosen(starts)
        places = self.cuts([episodes[i] for i in chosen], [starts[i] for i in chosen])
        cut = {i: place for i, place in zip(chosen, places) if place}
        begun = [
            starts[i]._replace(
                segments=(first_tokens(episodes[i].turns[0], t, context.policy),), open=True, seed=episodes[i].seed
            )
            for i, t in cut.items()
        ]
        for (i, place), finished in zip(cut.items(), self.by_guide(begun, context)):
            if finished.stop not in FAILED:
                episodes[i] = _led(episodes[i], finished, place)
        return episodes


class GuideFinishes(Turn):
    """Steps of a method whose guide rolls in, in which it rolls out instead.

    Args:
        mixing: chance of each completion to be written by both; None: as in the method's own steps.

    Raises: ConfigError for a method without roll-ins.

    >>> GuideFinishes(mixing=1.0).optimizer is None
    True
    """

    mixing: Probability | None = None

    @property
    def optimizer(self) -> TokenOptimizer | None:
        return None

    def apply(self, method: SomeMethod) -> SomeMethod:
        own = method.slots()["experience"]
        if not isinstance(own, GuideRollIns):
            raise ConfigError(
                f"{method.id}: GuideFinishes lets the guide of roll-ins roll out, and the experience is "
                f"{getattr(own, 'name', own)}: set experience=guide-roll-ins, or stages=()."
            )
        fields = own.fields() if self.mixing is None else {**own.fields(), "mixing": self.mixing}
        return method.replace(experience=GuideRollOuts(**fields))


def _uniform(starts: Sequence[Start], name: str) -> list[float]:
    """A number in [0, 1) for each start."""
    keys = torch.tensor([start.draw.child(name).key for start in starts], dtype=torch.int64)
    found: list[float] = uniforms(keys, 0, 1)[0].tolist()
    return found


def _led(attempt: Episode, finished: Episode, place: int) -> Episode:
    """What a guide finished, after the prompt as the policy saw it, of which its first `place` tokens are learned."""
    own, said = attempt.turns[0], finished.turns[0]
    before = list(takewhile(lambda s: s is not own, attempt.segments))
    rest = len(said.tokens) - place
    info: dict[str, Any] = {k: own.info[k][:place] for k in ("entropy", "hidden") if k in own.info}
    info |= {"pieces": own.info["pieces"]} if "pieces" in own.info else {}
    joined = dataclasses.replace(
        said, action_mask=[1] * place + [0] * rest, behaviour_logp=own.behaviour_logp[:place] + [0.0] * rest,
        version=own.version,
        info={**info, "cut_from": list(own.tokens), "versions": own.versions[:place] + [own.version] * rest},
    )  # fmt: skip
    return dataclasses.replace(
        finished, segments=[*before, joined], draw=attempt.draw, info={**finished.info, BY_GUIDE: True}
    )  # fmt: skip
