"""Model-task alignment: what rewards without the truth and advantages of one sign are, as identities."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace as Run
from typing import Any

import pytest
import torch
from torch import Tensor

import etude
from etude.advantages.group import GroupAdvantage
from etude.core.draws import Draw
from etude.core.edit import set_values, stack
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.kinds import TokenMethod
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.evaluation.exact import expected_gradient
from etude.filters.informative import InformativeGroups
from etude.loops.bandit import Bandit
from etude.loops.credit import credited, loss, scored
from etude.loops.enumerable import EnumerableLoop
from etude.policies.tabular import SoftmaxTree
from etude.rewards.patterns import FormatGate
from etude.rewards.spurious import ConfidenceReward, IncorrectReward, MajorityReward, RandomReward
from etude.tasks.language.compose import Compose
from etude.tasks.tabular.enumerable import Enumerable

F64 = torch.float64
TABLE = [0.0, 1.0, 0.0, 1.0]


@pytest.fixture
def bandit() -> Bandit:
    return Bandit(SoftmaxTree(1, 4, 1, spread=0.7, seed=4), torch.tensor([TABLE], dtype=F64))


@pytest.fixture
def shifted() -> SoftmaxTree:
    """A policy that sampled, from which that of `bandit` is far away."""
    return SoftmaxTree(1, 4, 1, spread=0.9, seed=11)


def token(name: str = "grpo", *parts: str, **slots: Any) -> TokenMethod:
    method = stack(etude.method(name), list(parts)).replace(**slots)
    assert isinstance(method, TokenMethod)
    return method


def groups(right: list[float]) -> Tensor:
    """[G] GRPO's advantages of rewards."""
    from etude.advantages.group import GroupMean, GroupStd, scaled

    return scaled(torch.tensor(right, dtype=F64), torch.zeros(len(right)), GroupMean(), GroupStd())


# Advantages of one sign


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grpo", "dapo", "model-task-alignment"])
def test_both_signs_add_up_to_the_whole_gradient(method: str, bandit: Bandit, shifted: SoftmaxTree) -> None:
    """Over every group of three samples of another policy, so that ratios are clipped on both sides."""
    made = [token(method, *parts) for parts in ((), ("positive-only",), ("negative-only",))]
    made = [m.replace(rewards=m.rewards[:1]) for m in made]  # the table knows no length limit
    whole, up, down = (expected_gradient(m, bandit, 3, behaviour=shifted) for m in made)
    torch.testing.assert_close(up + down, whole, atol=1e-14, rtol=0)
    assert min(up.abs().max(), down.abs().max()) > 1e-3
    assert not torch.allclose(up, whole) and not torch.allclose(down, whole)


@pytest.mark.parametrize("rewards", [list(r) for r in product([0.0, 1.0], repeat=4)])
def test_signs_of_advantages_are_those_of_the_released_code(rewards: list[float]) -> None:
    """Rewards of 0 and 1: A > 0 where r > 0 and A < 0 where r < 1, unless all are equal and A is 0."""
    r, a = torch.tensor(rewards, dtype=F64), groups(rewards)
    torch.testing.assert_close(a * (r > 0), a * (a > 0))
    torch.testing.assert_close(a * (r < 1), a * (a < 0))


# Rewards


@pytest.mark.slow
def test_incorrect_turns_the_advantages_round(bandit: Bandit) -> None:
    for rewards in product([0.0, 1.0], repeat=5):
        torch.testing.assert_close(groups([1 - r for r in rewards]), -groups(list(rewards)), atol=1e-15, rtol=0)
    truth = expected_gradient(token(), bandit, 3)
    turned = expected_gradient(token(rewards=(IncorrectReward(),)), bandit, 3)
    torch.testing.assert_close(turned, -truth, atol=1e-14, rtol=0)


def coins(bandit: Bandit, method: TokenMethod, size: int, behaviour: SoftmaxTree | None) -> Tensor:
    """E[gradient] over every group of samples and every throw of a fair coin for each of them."""

    class Thrown(RandomReward):
        name = "thrown"

        def score(self, episodes: Any, context: Context) -> list[float]:
            return throw

    total = torch.zeros(1, 4, dtype=F64)
    for heads in product([0.0, 1.0], repeat=size):
        throw = list(heads)
        thrown = method.replace(rewards=(Thrown(),))
        total = total + expected_gradient(thrown, bandit, size, behaviour=behaviour).view(1, 4) / 2**size
    return total


@pytest.mark.slow
def test_chance_teaches_nothing_on_average_where_the_policy_sampled(bandit: Bandit, shifted: SoftmaxTree) -> None:
    """And something with a clip that is open upward, once the policy is another than the one that sampled."""
    held = token().replace(aggregation="fixed-length", advantages=GroupAdvantage(scale=None))
    assert coins(bandit, held, 3, None).abs().max() < 1e-15
    assert coins(bandit, token(), 3, None).abs().max() < 1e-15
    assert coins(bandit, token("model-task-alignment", filters=()), 3, shifted).abs().max() > 1e-3


def test_random_rewards_come_as_often_as_they_should_and_do_not_depend_on_their_batch() -> None:
    said = [Episode(Problem("p", "?"), draw=Draw.at(3, "step", i)) for i in range(4000)]
    part = RandomReward(chance=0.3, weight=2.0)
    context: Any = Run(stream=Stream(0))
    paid = part.score(said, context)
    assert sum(paid) / 2 / 4000 == pytest.approx(0.3, abs=4 * (0.21 / 4000) ** 0.5)
    assert set(paid) == {0.0, 2.0}
    assert part.score(said[7:3:-1], context) == paid[7:3:-1]
    other = [Episode(Problem("p", "?"), draw=Draw.at(3, "step", i)) for i in range(4000, 8000)]
    assert part.score(other, context) != paid


TASK = Compose()


def said(texts: list[str], group: int = 0, cut: tuple[int, ...] = ()) -> list[Episode]:
    """Completions of one problem whose answer is 'cab'."""
    problem = Problem("compose/1", "f6(f1(x)) cab>", "cab")
    return [
        Episode(
            problem, [Segment("assistant", t, reward=TASK.score(problem, t))], group,
            stop=StopReason.MAX_TOKENS if i in cut else StopReason.END_OF_TEXT,
        )
        for i, t in enumerate(texts)
    ]  # fmt: skip


TEXTS = ["f1:abc>f6:cab", "f1:ab", "f6:cab", "f1:"]
"""Right, wrong, right, and without an answer."""


def test_the_majority_is_the_truth_where_it_is_right() -> None:
    """Every group of four completions: a right majority pays what the truth pays, another one pays no right answer."""
    context: Any = Run(task=TASK)
    for chosen in product(range(4), repeat=4):
        episodes = said([TEXTS[i] for i in chosen])
        paid, truth = MajorityReward().score(episodes, context), [e.reward for e in episodes]
        right, wrong = sum(i in (0, 2) for i in chosen), chosen.count(1)
        first = next((i for i in chosen if i != 3), None)  # where both are said as often
        wins = right > wrong or (right == wrong and first != 1)
        assert paid == (truth if wins else [float(i == 1) for i in chosen]), chosen


def test_votes_are_of_one_problem_and_what_was_cut_has_none() -> None:
    one, other = said([TEXTS[0], TEXTS[1], TEXTS[1]], 0, cut=(1,)), said([TEXTS[1]], 1)
    mixed = [one[0], other[0], one[1], one[2]]
    assert MajorityReward().score(mixed, Run(task=TASK)) == [1.0, 1.0, 0.0, 0.0]  # type: ignore[arg-type]


def test_a_gate_leaves_what_has_the_form_of_an_answer() -> None:
    """f * r of whatever was paid before it, token by token."""
    episodes = said([TEXTS[0], TEXTS[3], TEXTS[1]], cut=(2,))
    rows: Any = Run(rewards=torch.tensor([[0.0, 0.7], [0.2, 0.3], [0.0, 1.0]], dtype=F64), episodes=episodes)
    left = rows.rewards + FormatGate().shape_in(rows, Run(task=TASK))  # type: ignore[arg-type]
    assert left.tolist() == [[0.0, 0.7], [0.0, 0.0], [0.0, 0.0]]


@pytest.mark.slow
def test_confidence_pays_the_mean_log_probability_and_lowers_the_entropy(bandit: Bandit) -> None:
    """Uncentred and unclipped its exact gradient ascends E[log pi] less the share of E[grad log pi], which is 0."""
    logp = torch.tensor([[0.0, -1.0, -3.0, 0.0], [0.0, -0.5, 0.0, 0.0]], dtype=F64)
    mask = torch.tensor([[False, True, True, False], [False, True, False, False]])
    paid = ConfidenceReward(weight=0.5).shape(Run(behaviour_logp=logp, action_mask=mask))  # type: ignore[arg-type]
    assert paid.sum(1).tolist() == [-1.0, -0.25]
    method = token(rewards=(ConfidenceReward(),), advantages=GroupAdvantage(scale=None), aggregation="fixed-length")
    found = expected_gradient(method, bandit, 4)
    logits = bandit.policy.logits[0]
    p = bandit.policy.probs()[0, 0]
    negative_entropy = (p * p.log()).sum()
    (wanted,) = torch.autograd.grad(negative_entropy, logits)
    torch.testing.assert_close(found, -wanted * (4 - 1) / 4, atol=1e-12, rtol=0)  # a mean of four takes a part of each


# Recipes, run


def recipes() -> Iterator[tuple[str, dict[str, str], tuple[str, ...]]]:
    from etude.runs.studies import load_study

    for name, recipe in load_study("model-task-alignment").recipes.items():
        yield name, dict(recipe.set), recipe.parts


@pytest.mark.parametrize("name, changes, parts", list(recipes()), ids=lambda x: x if isinstance(x, str) else "")
def test_every_recipe_takes_the_slot_that_it_says(name: str, changes: dict[str, str], parts: tuple[str, ...]) -> None:
    base = etude.method("model-task-alignment")
    made = set_values(stack(base, parts), changes)
    assert {path.partition(".")[0] for path in made.diff(base)} == {
        *(c.partition(".")[0] for c in changes), *(["token_weights"] if parts else []),
    }  # fmt: skip


@pytest.mark.slow
def test_with_the_truth_a_table_is_learned_and_turned_round_it_is_unlearned() -> None:
    """Where rewards are exact: 8 members of each, expected reward before and after."""
    task = Enumerable(prompts=2, vocabulary=3, length=2)
    gained = {}
    for name, rewards in {"truth": None, "incorrect": (IncorrectReward(),), "random": (RandomReward(),)}.items():
        method = token("grpo", filters=(InformativeGroups(rounds=1),))
        method = method.replace(optimizer=method.optimizer.replace(lr=0.1))  # type: ignore[call-arg]
        method = method if rewards is None else method.replace(rewards=rewards)
        loop = EnumerableLoop(method, task, seeds=range(8), steps=15)
        before = loop.exact()["reward"]
        for _ in range(15):
            loop.step()
        gained[name] = float((loop.exact()["reward"] - before).mean())
    assert gained["truth"] > 0.2
    assert gained["incorrect"] < -0.5 * float(before.mean())
    assert abs(gained["random"]) < gained["truth"] / 3


def test_credit_of_a_batch_is_the_whole_groups_before_signs_are_asked(bandit: Bandit) -> None:
    """Advantages are not taken over the rows of one sign alone: they are what they are without the part."""
    response = torch.tensor([0, 1, 1, 2])
    asked = torch.zeros(4, dtype=torch.long)
    batch = bandit.batch(asked, response, bandit.policy.rows(0, asked, response, bandit.policy.table()))
    found = []
    for parts in ((), ("negative-only",)):
        method = token("grpo", *parts).bind()
        rows = credited(method, scored(method, bandit.shown(method, batch, 0), Context(None, None, Stream(0))))
        found.append(rows.advantages)
        assert rows.advantages is not None
        policy = bandit.policy.rows(0, rows.group, response, bandit.policy.table())
        value = loss(method, rows, policy, 1)  # type: ignore[arg-type]
        wanted = -rows.advantages[:, 0].clamp(max=0).mean() if parts else -rows.advantages[:, 0].mean()
        assert value.item() == pytest.approx(wanted.item(), abs=1e-6)
    assert torch.equal(*found)
