"""Learners of tokens with steps of their own: when they learn, what they read and offer, and who steps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from etude.core.batches import TokenBatch
from etude.core.errors import ConfigError
from etude.core.learners import Learning, Target, TokenLearner, TokenReading
from etude.core.method import Method
from etude.core.part import Need
from etude.core.registry import get_method
from etude.core.slots import TokenReward
from etude.experience.groups import Groups
from etude.loops.language import LanguageLoop
from etude.methods.rlvr.oblr_po.snr import SNRAdamW
from etude.optimizers.adam import AdamW
from etude.optimizers.schedules import Linear
from etude.optimizers.trust_region import NaturalGradient
from language_toys import Toy, make_loop

GRPO: Any = get_method("grpo").replace(experience=Groups(size=4), problems=4)
PLAIN = AdamW(lr=0.01, clip_norm=None)


class Judge(TokenLearner):
    """Learns a row's score from the mean of its states, and says what it expects."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.HIDDEN})
    learning: Learning = Learning(optimizer=PLAIN)

    def build(self, width: int) -> nn.Module:
        return nn.Linear(width, 1)

    def expected(self, said: Tensor, batch: TokenBatch) -> Tensor:
        return (said[..., 0] * batch.action_mask).sum(1) / batch.action_counts.clamp(min=1)

    def loss(self, read: TokenReading) -> Tensor:
        return ((self.expected(read.says, read.batch) - read.batch.scores) ** 2).mean()

    def offers(self, read: TokenReading) -> dict[str, Tensor]:
        return {"expected": self.expected(read.says, read.batch)}


class Number(nn.Module):
    """One number."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.zeros(1))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.number.expand(hidden.shape[:2])


class Counting(TokenLearner):
    """Learns the number 3 without a look at the rows; notes what it is asked about, and at which policy."""

    asked: ClassVar[list[tuple[int, Tensor]]] = []
    learning: Learning = Learning(optimizer=PLAIN)

    def build(self, width: int) -> nn.Module:
        return Number()

    def loss(self, read: TokenReading) -> Tensor:
        self.asked.append((len(read.batch), LOOP[0].policy.parameters()[0].detach().clone()))
        return ((read.network.number - 3) ** 2).sum()  # type: ignore[operator]


class Chasing(Counting):
    """Learns one more than its slow copy says."""

    reads_target: ClassVar[bool] = True
    learning: Learning = Learning(optimizer=PLAIN, target=Target(rate=1.0, every=2))

    def loss(self, read: TokenReading) -> Tensor:
        return ((read.network.number - read.target.number - 1) ** 2).sum()  # type: ignore[operator]


class Paid(TokenReward):
    """Pays on the last action token what the judge expects."""

    seen: ClassVar[list[Tensor]] = []

    def shape(self, batch: TokenBatch) -> Tensor:
        self.seen.append(batch.offers["expected"].clone())
        return torch.zeros_like(batch.rewards)


LOOP: list[LanguageLoop] = []


def loop_of(*learners: TokenLearner, steps: int = 8, **changes: Any) -> LanguageLoop:
    Counting.asked.clear(), Paid.seen.clear()
    LOOP[:] = [make_loop(GRPO.replace(learners=learners, **changes), Toy(), steps=steps)]
    return LOOP[0]


def counting(**changes: Any) -> Counting:
    return Counting(learning=Learning(optimizer=PLAIN, **changes))


def number(loop: LanguageLoop, name: str = "counting") -> float:
    return float(loop.updater.learners.networks[name].number.detach())  # type: ignore[operator]


@pytest.mark.first
@pytest.mark.parametrize(
    ("settings", "counts"),
    [
        ({}, [1, 1, 1, 1]),
        ({"every": 3}, [1, 0, 0, 1]),
        ({"warmup": 2}, [0, 0, 1, 1]),
        ({"epochs": 2, "minibatches": 2}, [4, 4, 4, 4]),
    ],
)
def test_it_learns_when_and_as_often_as_its_learning_says(settings: dict[str, int], counts: list[int]) -> None:
    loop, found = loop_of(counting(**settings)), []
    for _ in counts:
        before = len(Counting.asked)
        metrics = loop.step().metrics
        found.append(len(Counting.asked) - before)
        assert ("counting_loss" in metrics) == bool(found[-1])
    assert found == counts
    assert {size for size, _ in Counting.asked} == {16 // settings.get("minibatches", 1)}


@pytest.mark.slow
@pytest.mark.parametrize("order", ["before", "after"])
def test_it_learns_before_or_after_the_policy(order: str) -> None:
    loop = loop_of(counting(order=order), optimizer=AdamW(lr=1e-2))
    before = loop.policy.parameters()[0].detach().clone()
    while torch.equal(before, loop.policy.parameters()[0].detach()):
        begun, at = len(Counting.asked), loop.policy.parameters()[0].detach().clone()
        loop.step()
    after = loop.policy.parameters()[0].detach()
    assert torch.equal(Counting.asked[begun][1], at if order == "before" else after)


@pytest.mark.slow
def test_its_optimizer_and_schedule_are_its_own() -> None:
    """Adam's steps on a gradient of one sign are the rate each; a linear schedule falls to 0 over the run."""
    adam, expected = AdamW(lr=0.1, clip_norm=None, schedule=Linear()), 0.0
    loop = loop_of(Counting(learning=Learning(optimizer=adam)))
    for step in range(3):
        loop.step()
        expected += 0.1 * (1 - step / 8)
    assert number(loop) == pytest.approx(expected, rel=1e-2)


@pytest.mark.slow
def test_a_slow_copy_is_made_anew_every_second_time() -> None:
    loop, found = loop_of(Chasing()), []
    for _ in range(4):
        loop.step()
        copy = loop.updater.learners.targets["chasing"]
        found.append((number(loop, "chasing"), float(copy.number)))  # type: ignore[arg-type]
    assert [slow for _, slow in found] == [0.0, found[1][0], found[1][0], found[3][0]]
    assert len({fast for fast, _ in found}) == 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The component 'paid' of the reward is inert")  # until the judge has learned
def test_a_judge_learns_from_the_policys_states_and_rewards_find_what_it_offers() -> None:
    judge = Judge(learning=Learning(optimizer=AdamW(lr=0.02)))
    loop = loop_of(judge, rewards=(*GRPO.rewards, Paid()))
    errors = [loop.step().metrics["judge_loss"] for _ in range(6)]
    assert sum(errors[-2:]) < 0.5 * sum(errors[:2])
    assert all(seen.shape == (16,) for seen in Paid.seen) and len(Paid.seen) == 6
    assert float(Paid.seen[0].std()) > 0


@pytest.mark.slow
def test_the_policy_is_as_without_it() -> None:
    """It reads states that were sampled from, and has random numbers, moments and steps of its own."""
    found = []
    for learners in ((), (Judge(),)):
        loop = loop_of(*learners)
        loop.step(), loop.step()
        found.append(torch.cat([p.detach().flatten() for p in loop.policy.parameters()]))
    assert torch.equal(*found)


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_its_learners(tmp_path: Path) -> None:
    parts = (Judge(), Chasing(learning=Learning(optimizer=PLAIN, target=Target(rate=0.25))))
    whole, first, second = (loop_of(*parts) for _ in range(3))
    for _ in range(4):
        whole.step()
    first.step(), first.step()
    first.save(tmp_path)
    second.load(tmp_path)
    second.step(), second.step()
    mine, theirs = (x.updater.learners.tensors() for x in (whole, second))
    assert mine.keys() == theirs.keys()
    assert {"learners.chasing.target.number", "learners.judge.stepper.0.exp_avg"} <= mine.keys()
    assert all(torch.equal(v, theirs[k]) for k, v in mine.items())


@pytest.mark.parametrize(
    ("learners", "sentence"),
    [
        ((Judge(learning=Learning(optimizer=NaturalGradient())),), "NaturalGradient cannot step: it is for populat"),
        ((Judge(learning=Learning(optimizer=SNRAdamW())),), "no gradients of halves, which SNRAdamW goes by"),
        ((Chasing(learning=Learning(optimizer=PLAIN)),), "reads a slow copy of its network: set learning.target"),
        ((counting(target=Target()),), "reads no slow copy: leave out learning.target"),
        ((Judge(), Judge()), "two networks are called judge"),
    ],
)
def test_what_cannot_be_trained_is_refused(learners: tuple[TokenLearner, ...], sentence: str) -> None:
    method: Method = GRPO.replace(learners=learners)
    with pytest.raises(ConfigError, match=sentence):
        method.check()
