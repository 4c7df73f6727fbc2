"""A-LoL: its gradients by enumeration, what is drawn how often, what prompts are worth, and the recipe end to end."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import etude
from etude.core.edit import set_values
from etude.core.episodes import Problem
from etude.core.errors import ConfigError, DataError
from etude.core.method import Method
from etude.core.registry import get_method
from etude.core.streams import Stream
from etude.evaluation.exact import expected_gradient, gradient
from etude.loops.bandit import Bandit
from etude.methods.preference.a_lol import (
    AnswerRatio,
    Appraise,
    OverPromptValue,
    PriorityDraws,
    PromptValue,
    TokenRatio,
    fit,
    leftovers,
)
from etude.policies.tabular import SoftmaxTree
from etude.tasks.language.digest import Digest
from language_toys import random_policy

REWARDS = torch.tensor([[0.9, -0.3, 0.4, 1.7]], dtype=torch.float64)
VALUE = 0.6
ALL: dict[str, Any] = {"curriculum": "uniform", "aggregation": "fixed-length"}


def tree(seed: int, length: int = 1) -> SoftmaxTree:
    return SoftmaxTree(1, 4 if length == 1 else 2, length, spread=1.0, seed=seed)


def bandit(length: int = 1, value: float = VALUE, seed: int = 0) -> Bandit:
    policy = tree(seed, length)
    return Bandit(policy, REWARDS[:, : len(policy.tokens)], [Problem("x", "?", info={"value": value})])


def offline(**changes: Any) -> Method:
    """On completions of the behaviour policy in place of data, one of each."""
    method: Any = get_method("a-lol-offline")
    method = method.replace(experience=get_method("reinforce").experience)
    return set_values(method, {**ALL, **{k.replace("__", "."): v for k, v in changes.items()}})


def of(factor: Any, given: Bandit, behaviour: SoftmaxTree, **changes: Any) -> Tensor:
    """Minus the expected gradient of the loss, of sums over tokens."""
    method: Any = offline(**changes)
    method = method.replace(objective=method.objective.replace(factor=factor))
    found = expected_gradient(method, given, 1, behaviour=behaviour, reference=behaviour)
    return -found * given.policy.length


@pytest.mark.parametrize("length", [1, 2])
def test_without_filter_and_clip_it_ascends_the_mean_advantage(length: int) -> None:
    """E_{y ~ ref}[w A grad log pi] = grad E_{y ~ pi}[A]; the prompt's value changes nothing in that."""
    given, ref = bandit(length), tree(1, length)
    exact = gradient((given.policy.probs() * given.rewards).sum(), given.policy)
    free = of(AnswerRatio(epsilon=None), given, ref, advantages__clamp=False)
    torch.testing.assert_close(free, exact, rtol=1e-10, atol=1e-13)
    other = of(AnswerRatio(epsilon=None), bandit(length, value=-7.0), ref, advantages__clamp=False)
    torch.testing.assert_close(other, exact, rtol=1e-10, atol=1e-13)
    assert (of(AnswerRatio(epsilon=0.1), given, ref, advantages__clamp=False) - exact).norm() > 0.05 * exact.norm()
    assert (of(AnswerRatio(epsilon=None), given, ref) - exact).norm() > 0.05 * exact.norm()  # what is below is left out


def test_at_the_reference_three_variants_are_the_same_and_away_from_it_they_are_not() -> None:
    given = bandit(2)
    factors = (AnswerRatio(), None, TokenRatio())
    first, *others = (of(f, given, tree(0, 2)) for f in factors)
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-10, atol=1e-13)
    first, *others = (of(f, given, tree(1, 2)) for f in factors)
    assert all((other - first).norm() > 0.01 * first.norm() for other in others)


def test_with_a_constant_reward_and_no_value_the_variant_without_a_reference_is_sft() -> None:
    given, ref = Bandit(tree(0, 2), torch.full((1, 4), 3.0, dtype=torch.float64)), tree(1, 2)
    found = of(None, given, ref, advantages__baseline=False)
    sft: Any = get_method("sft")
    sft = sft.replace(experience=get_method("reinforce").experience, aggregation="fixed-length")
    likelihood = -expected_gradient(sft, given, 1, behaviour=ref) * given.policy.length
    torch.testing.assert_close(found, 3 * likelihood, rtol=1e-10, atol=1e-13)
    assert float(found.abs().max()) > 0.01


def test_the_variant_with_a_kl_is_a_regularizer() -> None:
    """A grad log pi - beta grad log(pi / ref): k1 on the answers of the data."""
    given, ref, beta = bandit(2), tree(1, 2), 0.3
    plain = of(None, given, ref)
    held: Any = set_values(offline(), {"objective.factor": None, "regularizers": "kl-to-reference"})
    held = held.replace(regularizers=(held.regularizers[0].replace(coefficient=beta, estimator="k1"),))
    found = -expected_gradient(held, given, 1, behaviour=ref, reference=ref) * 2
    said = (tree(1, 2).probs().detach() * given.policy.logp()).sum()
    torch.testing.assert_close(found, plain - beta * gradient(said, given.policy), rtol=1e-10, atol=1e-13)


# What is drawn


def data(shift: float = 0.0) -> list[Problem]:
    """Two prompts; what only depends on the prompt is in the scores and, as it should be, in the value."""
    rows = [([3.0, 0.0, 1.5], 1.0), ([4.0 + shift, 8.0 + shift], 5.0 + shift)]
    return [
        Problem(f"p/{i}", "?", info={"responses": list("abc")[: len(scores)], "scores": scores, "value": value})
        for i, (scores, value) in enumerate(rows)
    ]


def draws(by: str = "advantage", shift: float = 0.0) -> Counter[tuple[str, int]]:
    part = PriorityDraws(by=by).bind()  # type: ignore[arg-type]
    return Counter((p.id, p.info["drawn"]) for p in part.choose(data(shift), 22_000, Stream(3)))


@pytest.mark.slow
def test_answers_are_drawn_as_often_as_they_are_better_than_expected() -> None:
    assert [leftovers(p) for p in data()] == [[2.0, -1.0, 0.5], [-1.0, 3.0]]
    counts = draws()
    assert set(counts) == {("p/0", 0), ("p/0", 2), ("p/1", 1)}  # the others are deleted
    for key, share in zip(sorted(counts), (2 / 5.5, 0.5 / 5.5, 3 / 5.5)):
        assert counts[key] == pytest.approx(22_000 * share, abs=4 * (22_000 * share * (1 - share)) ** 0.5)
    alike = draws("random")
    assert all(n == pytest.approx(22_000 / 3, abs=4 * (22_000 * 2 / 9) ** 0.5) for n in alike.values())


@pytest.mark.slow
def test_what_is_paid_for_a_prompt_changes_neither_filter_nor_draws() -> None:
    assert draws(shift=64.0) == draws()


def test_the_advantage_is_at_least_0_unless_told_otherwise() -> None:
    given = bandit(value=1.0)
    asked, response = torch.zeros(2).long(), torch.tensor([3, 1])
    batch = given.batch(asked, response, given.policy.rows(0, asked, response, given.policy.table().detach()))
    assert OverPromptValue()(batch)[:, 0].tolist() == pytest.approx([0.7, 0.0])
    assert OverPromptValue(clamp=False)(batch)[:, 0].tolist() == pytest.approx([0.7, -1.3])
    assert OverPromptValue(baseline=False)(batch)[:, 0].tolist() == pytest.approx([1.7, 0.0])


def test_data_without_values_are_refused_with_what_to_do() -> None:
    bare = [Problem("p/0", "?", info={"responses": ["a"], "scores": [1.0]})]
    with pytest.raises(DataError, match=r"has no 'value', .* train the recipe a-lol"):
        PriorityDraws().bind().choose(bare, 1, Stream(0))
    worse = [Problem("p/0", "?", info={"responses": ["a"], "scores": [1.0], "value": 2.0})]
    with pytest.raises(DataError, match="None of 1 answers is worth more than its prompt"):
        PriorityDraws().bind().choose(worse, 1, Stream(0))
    with pytest.raises(ConfigError, match="they must be more, got 400"):
        Appraise(called="appraised", problems=400, validation=400)


# What prompts are worth


@pytest.fixture(scope="module")
def told() -> tuple[PromptValue, tuple[Tensor, Tensor], Tensor]:
    """A head that was fitted to what one token of a prompt says, of prompts of two lengths."""
    random = torch.Generator().manual_seed(0)
    states, mask = torch.randn(200, 5, 16, generator=random), torch.ones(200, 5, dtype=torch.bool)
    mask[::2, 3:] = False
    paid = 4 * (torch.where(mask, states[..., 0], -9.0).max(1).values > 1.0).float() - 1
    value = PromptValue(16, 4, -1.0, 3.0, random)
    best = fit(value, (states, mask), paid, 30, 1e-2, random)
    value.load_state_dict(best)
    return value.eval(), (states, mask), paid


@pytest.mark.slow
def test_a_value_is_learned_from_a_prompts_states(told: Any) -> None:
    value, (states, mask), paid = told
    with torch.no_grad():
        found = value(states, mask)
    held = torch.arange(200) % 10 == 0
    assert float(((found - paid)[held] ** 2).mean()) < 0.7 * float(paid[held].var())
    assert float(found.min()) >= -1 and float(found.max()) <= 3


@pytest.mark.slow
def test_a_value_does_not_see_what_is_padded(told: Any) -> None:
    value, (states, mask), _ = told
    other = torch.where(mask[..., None], states, 1e3)
    with torch.no_grad():
        torch.testing.assert_close(value(other, mask), value(states, mask))
        torch.testing.assert_close(value(states[:1, :3], mask[:1, :3]), value(states[:1], mask[:1]))


def test_another_round_goes_on_with_the_policy_before_and_appraises_it() -> None:
    """Its reference, frozen where a run begins, its values and its advantages are that policy's."""
    one, two, three, four = get_method("a-lol").replace(repeat=2).plan()
    assert (one.begins, two.begins, two.handed) == (None, None, {"appraised": 1})
    assert (three.begins, four.begins, four.handed) == (2, 2, {"appraised": 3})
    assert not four.link.keeps  # the reference begins anew, with the policy


@pytest.mark.slow
def test_the_recipe_appraises_and_learns(tmp_path: Path) -> None:
    """Data are of the policy at the start, and the same for the same seed; their values go into what is learned."""
    settings = ["runs.appraised.problems=40", "runs.appraised.validation=20", "runs.appraised.heads=4",
                "runs.appraised.passes=2", "runs.policy.set=problems=4"]  # fmt: skip
    made = etude.train(
        "a-lol", "digest", steps=2, model="blank:1x16x2", seed=3, set=settings, evaluate=0, quiet=True,
        out=tmp_path / "run",
    )  # fmt: skip
    rows = [json.loads(line) for line in (made.folder / "01-appraised" / "data.jsonl").read_text().splitlines()]
    assert len(rows) == 20 and all(set(row) == {"prompt", "responses", "scores", "value"} for row in rows)
    behind = [Digest().problems("train")[20 + i] for i in range(20)]
    assert [row["prompt"] for row in rows] == [p.prompt for p in behind]
    assert [row["scores"] for row in rows] == [p.info["scores"] for p in behind]
    lines = (made.folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["rows"] for line in lines] == [4.0, 4.0]
    part = Appraise(called="appraised", problems=12, validation=10, heads=2, passes=1)
    problems = [Digest().problems("train")[i] for i in range(12)]
    twice = [part.rows_by(problems, Digest(), random_policy(seed=1), 5) for _ in range(2)]
    assert twice[0] == twice[1] and len(twice[0]) == 2
