"""`check_part`: each planted fault is found, in a sentence; shipped parts have none."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import etude
from etude.core.batches import TokenBatch
from etude.core.episodes import Episode, Problem
from etude.core.part import Part
from etude.core.slots import (
    Context,
    Curriculum,
    Filter,
    GroupReward,
    Reward,
    TokenAdvantages,
    TokenObjective,
    TokenReward,
)
from etude.core.step_slots import StepReward
from etude.core.streams import Stream
from etude.core.transitions import Transitions
from etude.evaluation.part_check import check_part
from etude.rewards.function import CallableReward
from every_part import every_part


def advantages(returns: Callable[[TokenBatch], Any]) -> Part:
    """A part that gives credit as the function says."""

    class Mine(TokenAdvantages):
        def __call__(self, batch: TokenBatch) -> Tensor:
            return returns(batch)  # type: ignore[no-any-return]

    return Mine()


def objective(returns: Callable[[TokenBatch, Any], Tensor]) -> Part:
    class Mine(TokenObjective):
        def __call__(self, batch: TokenBatch, policy: Any) -> Tensor:
            return returns(batch, policy)

    return Mine()


class Remembers(TokenReward):
    """Keeps in its state what a checkpoint cannot hold."""

    def initial_state(self) -> dict[str, Any]:
        return {"seen": {3}}

    def shape(self, batch: TokenBatch) -> Tensor:
        return batch.rewards


SHARED: list[int] = []


class Shares(Remembers):
    """Gives every run the same list."""

    def initial_state(self) -> dict[str, Any]:
        return {"seen": SHARED}


class Holds(Filter):
    """Has a field that can be changed in place."""

    words: Any = None

    def weigh(self, batch: TokenBatch) -> Tensor:
        return batch.weights


class Unwritten(GroupReward):
    """Forgot its function."""


class Needy(Filter):
    """Cannot be added by name."""

    power: float

    def weigh(self, batch: TokenBatch) -> Tensor:
        return batch.weights


class Vanishing(TokenObjective):
    """Says of itself that no advantage means no loss."""

    vanishes_with_advantage: ClassVar[bool] = True

    def __call__(self, batch: TokenBatch, policy: Any) -> Tensor:
        return -policy.logp  # type: ignore[no-any-return]


class Negative(Filter):
    def weigh(self, batch: TokenBatch) -> Tensor:
        return -batch.weights


class OneScore(Reward):
    def score(self, episodes: Sequence[Episode], context: Context) -> list[float | None]:
        return [1.0]


class NoNumber(Reward):
    def score(self, episodes: Sequence[Episode], context: Context) -> list[float | None]:
        return [float("nan")] * len(episodes)


class Templated(Reward):
    """Reads what only a run has."""

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float | None]:
        return [float(len(context.policy.tokenizer))] * len(episodes)


COUNTER = itertools.count()


class Fickle(Curriculum):
    """Draws from a generator of its own."""

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        return [pool[next(COUNTER) % len(pool)] for _ in range(count)]


class Inventive(Curriculum):
    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        return [Problem("mine", "?")] * count


class Returns(StepReward):
    """One number for each member."""

    def shape(self, batch: Transitions) -> Tensor:
        return batch.rewards.sum((1, 2))


def overwrite(batch: TokenBatch) -> Tensor:
    batch.rewards *= 2
    return batch.rewards


def leave(batch: TokenBatch) -> Tensor:
    batch.final = batch.action_mask
    return batch.rewards


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (advantages(lambda b: b.scores), "Mine.__call__(batch) must return [B, T], here (6, 5), got (6,)."),
        (advantages(lambda b: None), "must return a tensor [B, T], got NoneType"),
        (advantages(lambda b: b.tokens), "must return numbers as the batch has them (float32), got torch.int64"),
        (advantages(lambda b: b.rewards / (b.rewards * 0)), "returned numbers that are not finite"),
        (advantages(lambda b: b.nothing), "raised AttributeError on a small batch: 'TokenBatch' object has no attri"),  # type: ignore[attr-defined]
        (advantages(overwrite), "writes into batch.rewards: return a new tensor"),
        (advantages(leave), "writes into batch.final: return a new tensor"),
        (objective(lambda b, p: p.logp.detach()), "has no gradient: compute it from policy.logp"),
        (objective(lambda b, p: -p.logp.sum(1)), "got (6,). A loss per row is said by per_row = True in the class."),
        (Remembers, "The state 'seen' of Remembers holds a set: checkpoints keep JSON values and tensors."),
        (Shares, "The state 'seen' of Shares is one object for all runs"),
        (Holds(words={"a": 1}), "Holds.words holds a dict, which can change while a part may not"),
        (Holds(words=object()), "Holds cannot be written into method.json"),
        (Unwritten, "Unwritten.rescore(batch) is not written: the slot rewards calls it."),
        (Needy, "Needy has no default for power: check Needy(power=...)."),
        (Needy(power=2.0), "has fields without a default"),
        (advantages(lambda b: b.rewards), "Mine is defined inside a function, where method.json cannot name it"),
        (advantages(lambda b: {}["mine"]), "raised KeyError on a small batch: 'mine'"),
        (advantages(lambda b: b.tokens.zero_() + 0.0), "writes into batch.tokens"),
        (
            objective(lambda b, p: -p.logp * p.entropy),
            "With Need.ENTROPY it does not: a loop computes that only for parts that have it in `needs`.",
        ),
        (objective(lambda b, p: b.behaviour_logp - p.logp), "depends on behaviour_logp: say uses_behaviour = True"),
        (Vanishing, "is not 0 where advantages are, and vanishes_with_advantage says so"),
        (Negative, "returned weights below 0"),
        (OneScore, "must return a number or None for each of 6 episodes, got 1 of them"),
        (NoNumber, "must return finite numbers, or None where none applies; got nan"),
        (Fickle, "chooses others for the same stream: draw from it"),
        (Inventive, "must return a list of 4 problems of the pool, got [Problem(id='mine'"),
        (Returns, "Returns.shape(batch) must return [P, T, E], here (2, 3, 2), got (2,)."),
        (CallableReward(function=lambda completions: [0.0] * 6), "CallableReward cannot be read back from method.json"),
    ],
)
def test_what_is_wrong_is_said(part: Any, sentence: str) -> None:
    found = [f.sentence for f in etude.check_part(part) if f.level != "fact"]
    assert any(sentence in s for s in found), found


GIVEN = (
    "function-reward", "callable-reward", "learning", "own-module",
    "information-gain", "greedy-prediction", "process-reward", "priority-draws", "over-prompt-value",
    "listwise-reward", "guide-potential", "settled-answers", "visit-shares", "utterance-advantages", "model-rewards",
    "solved-with", "helped-by", "unsolved", "half-solved", "patch-similarity", "exact-patch", "leave-one-out-turns",
)  # fmt: skip
"""Parts that cannot be made without a function, an optimizer or a module; and those that need rows of one experience:
a thought (`rlp`), an exercise about a worked answer (`mr-rlvr`), an answer with a value (`a-lol`), a list
(`reward-anything`), what a search came to (`o1-roadmap`), a turn with credit (`archer`), a step that models were asked
about (`rlhf-survey`), a hint (`rlad`), a question that was posed (`ssp`), files to be patched (`swe-rl`), turns that
say whether they could be done (`spa-rl`)."""
SHIPPED = [c for c in every_part().values() if c.slot != "task" and c.name not in GIVEN]


@pytest.mark.parametrize("cls", SHIPPED, ids=[c.name for c in SHIPPED])
def test_shipped_parts_have_no_faults(cls: type[Part]) -> None:
    found = check_part(cls)
    assert found
    assert not [f for f in found if f.level == "fault"], found


def test_what_only_a_run_has_is_no_fault() -> None:
    assert [f.sentence for f in check_part(Templated)] == [
        "Templated.score(episodes, context) was not judged: it reads context.policy.tokenizer, which is there in a run "
        "only."
    ]


def test_a_part_for_tokens_and_control_is_called_as_both_do() -> None:
    called = "ClippedSurrogate.__call__(batch, policy) was called on a small batch"
    assert [f.sentence for f in check_part(every_part()["clipped-surrogate"])] == [
        f"{called} [B, T].",
        f"{called} [P, N].",
    ]


def test_the_part_is_left_as_it_was() -> None:
    part = advantages(lambda b: b.rewards)
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    check_part(part)
    assert torch.equal(before, torch.random.get_rng_state())
