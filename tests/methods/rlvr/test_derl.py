"""DERL: formulas are rewards, only grammatical ones are written, and the outer steps climb their expected value."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage, GroupMean, GroupStd
from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.core.registry import get_method
from etude.core.streams import Stream
from etude.loops.enumerable import EnumerableLoop
from etude.methods.rlvr.derl import MetaReward
from etude.methods.rlvr.derl.formulas import FormulaPolicy
from etude.methods.rlvr.derl.reward import OFFSET, FormulaReward, evaluate, parse
from etude.tasks.language.sums import Sums
from etude.tasks.tabular.enumerable import Enumerable

EXACT = GroupAdvantage(centre=GroupMean(), scale=GroupStd(epsilon=0.0))
PLAIN = GroupAdvantage(centre=GroupMean(), scale=None)
FEW = ("g1", "g2", "+", "*", "")


def trained(method: Method) -> Tensor:
    """Tables of two seeds after a few steps on an enumerable task."""
    loop = EnumerableLoop(method, Enumerable(prompts=2, vocabulary=3), seeds=(0, 1), steps=6)
    for _ in range(6):
        loop.step()
    return torch.stack([t.detach() for t in loop.policy.logits])


@pytest.mark.slow
@pytest.mark.parametrize("formula", ["g1", "3*g1", "0.5*g1 + 0.25", "(g1 + g1)/4 - 2", "1 - 1/(1 + g1)"])
def test_rewards_that_rise_with_the_outcome_alone_are_grpo(formula: str) -> None:
    """A = (a r + b - mean) / std is that of r for a > 0; an outcome has two values, so any rising formula will do."""
    grpo = get_method("grpo").replace(advantages=EXACT)
    expected = trained(grpo)
    found = trained(grpo.replace(rewards=(FormulaReward(formula=formula),)))
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
    falling = trained(grpo.replace(rewards=(FormulaReward(formula="2 - g1"),)))
    assert (falling - expected).abs().max() > 0.1


@pytest.mark.slow
def test_every_formula_that_is_written_parses_and_means_what_python_says() -> None:
    policy = FormulaPolicy(cold=0).bind()
    policy.begin(Stream(1))
    policy.state["weights"]["head"] *= 20  # far from uniform, so that brackets nest
    formulas = policy.text(policy.write(1500, Stream(2)))
    assert len(set(formulas)) > 500
    assert all(any(sign in f for f in formulas) for sign in "+-*/()")
    values = np.random.default_rng(0).random((4, 5)) + OFFSET
    for formula in formulas:
        found = evaluate(parse(formula), values)
        for k in range(5):
            try:
                expected = eval(formula, {f"g{i + 1}": float(values[i, k]) for i in range(4)})
            except ZeroDivisionError:
                assert not np.isfinite(found[k])
            else:
                assert found[k] == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
def test_formulas_keep_to_the_length_and_their_probabilities_add_up_to_one() -> None:
    policy = FormulaPolicy(symbols=("g1", "2", "-", "(", ")", ""), length=6, cold=0).bind()
    policy.begin(Stream(0))
    written = policy.write(4000, Stream(3))
    assert torch.equal(policy.write(9, Stream(3)), written[:9]), "formula n, however many are written"
    seen = written.unique(dim=0)
    assert all(parse(f) for f in policy.text(seen))
    whole = {"g1", "2", "(g1)", "(2)", "((g1))", "((2))", *("".join(p) for p in product(("g1", "2"), "-", ("g1", "2")))}
    assert whole <= set(policy.text(seen))
    assert float(policy.say(seen)[0].sum(1).exp().sum()) == pytest.approx(1, abs=0.02)
    every = [[0, 5], [1, 5]]
    short = FormulaPolicy(symbols=policy.symbols, length=2, cold=0).bind()
    short.begin(Stream(0))
    assert float(short.say(torch.tensor(every))[0].sum(1).exp().sum()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    "formula",
    ["", "g5", "g1 +", "(g1", "g1)", "g1 g2", "-g1", "__import__('os')", "g1**2", "1e3", "+".join(["1"] * 500)],
)
def test_other_texts_are_refused_in_a_sentence(formula: str) -> None:
    with pytest.raises(ConfigError, match="A formula is arithmetic over g1, g2, g3 and g4"):
        FormulaReward(formula=formula)


def few(size: int, **changes: Any) -> tuple[FormulaPolicy, Tensor, Tensor]:
    """A policy over ten formulas, all of them, and their probabilities."""
    policy = FormulaPolicy(symbols=FEW, length=4, width=3, cold=0, kl=0.0, **changes).bind()
    policy.begin(Stream(size))
    rows = [[a, 4, 4, 4] for a in (0, 1)] + [[a, o, b, 4] for a in (0, 1) for o in (2, 3) for b in (0, 1)]
    symbols = torch.tensor(rows)
    probs = policy.say(symbols)[0].sum(1).exp()
    assert float(probs.sum()) == pytest.approx(1, abs=1e-12)
    return policy, symbols, probs


@pytest.mark.parametrize("length", [2, 3, 4, 5, 7, 9])
def test_formulas_are_whole_at_any_length(length: int) -> None:
    policy = FormulaPolicy(symbols=("g1", "-", "(", ")", ""), length=length, cold=0).bind()
    policy.begin(Stream(0))
    written = policy.write(300, Stream(4))
    assert (written[:, -1] == 4).all()
    assert all(parse(f) for f in policy.text(written))


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_the_outer_gradient_climbs_the_expected_value(size: int) -> None:
    """E over groups of mean_i (v_i - mean v) grad log pi(phi_i) = (n - 1)/n grad sum_phi pi(phi) v(phi)."""
    policy, symbols, probs = few(size, credit=PLAIN)
    value = torch.rand(len(symbols), generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def flat(loss: Any) -> Tensor:
        weights = {k: w.clone().requires_grad_() for k, w in policy.state["weights"].items()}
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss(weights), list(weights.values()))])

    expected = flat(lambda w: (policy.say(symbols, w)[0].sum(1).exp() * value).sum()) * (size - 1) / size
    # rows of a group only meet in their advantages, so the gradient of every formula is needed once
    each = torch.stack([flat(lambda w, i=i: policy.say(symbols[i : i + 1], w)[0].sum()) for i in range(len(symbols))])
    everything, found = policy.batch(symbols, value), torch.zeros_like(expected)
    for chosen in product(range(len(symbols)), repeat=size):
        rows = torch.tensor(chosen)
        credit = policy.credit(everything.rows(rows))[:, 0]
        found += probs[rows].prod() * (credit[:, None] * each[rows]).mean(0)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    rows = torch.tensor([0, 7, 3][:size])
    batch = policy.batch(symbols[rows], value[rows])
    one = (batch.advantages[:, :1] * each[rows]).mean(0)
    torch.testing.assert_close(-flat(lambda w: policy.loss(batch, w)), one, atol=1e-12, rtol=0)


def test_equal_values_teach_nothing_and_unequal_ones_do() -> None:
    policy, symbols, probs = few(2)
    before = {k: w.clone() for k, w in policy.state["weights"].items()}
    policy.learn(symbols[:4], torch.full((4,), 0.3))
    assert all(torch.equal(before[k], w) for k, w in policy.state["weights"].items())
    policy.learn(symbols[:4], torch.tensor([1.0, 0.0, 0.0, 0.0]))
    after = policy.say(symbols)[0].sum(1).exp()
    assert after[0] > probs[0]
    assert after[1:4].sum() < probs[1:4].sum()


def test_the_kl_holds_the_writer_to_its_cold_start() -> None:
    policy, symbols, _ = few(2)
    cold, _ = policy.say(symbols[:4])
    policy.learn(symbols[:4], torch.tensor([1.0, 0.0, 0.0, 0.0]))
    held = policy.replace(kl=0.5).bind()
    held.state.update(policy.state)
    batch = held.batch(symbols[:4], torch.zeros(4))
    assert torch.equal(batch.reference_logp, cold)
    d = batch.reference_logp - batch.behaviour_logp
    expected = 0.5 * ((d.exp() - d - 1) * batch.action_mask).sum(1).mean()
    assert float(held.loss(batch, held.state["weights"])) == pytest.approx(float(expected), abs=1e-12)
    assert expected > 0


@pytest.mark.slow
def test_the_cold_start_writes_weighted_sums() -> None:
    policy = FormulaPolicy(cold=60).bind()
    policy.begin(Stream(0))
    sums = [set(f) <= set("g1234580.+*") for f in policy.text(policy.write(100, Stream(1)))]
    assert sum(sums) > 70


def test_primitives_are_those_of_the_paper() -> None:
    task = Sums()
    said = [("8", "8"), ("17", "8,17"), ("17", "17,16"), ("8", "1,")]
    episodes = [
        SimpleNamespace(
            problem=SimpleNamespace(answer=a), completion=c, turns=[SimpleNamespace(action_mask=[1] * len(c))],
            reward=task.score(SimpleNamespace(answer=a), c), stop=SimpleNamespace(cut=False), info={},
        )
        for a, c in said
    ]  # fmt: skip
    part = FormulaReward(primitives=("outcome", "format", "steps", "soft"))
    found = part.columns(episodes, SimpleNamespace(task=task, max_tokens=10)) - OFFSET
    expected = [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [1, 1, 1, 0]]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    length = part.replace(primitives=("length", "outcome", "steps", "soft"))
    context = SimpleNamespace(task=task, max_tokens=10)
    np.testing.assert_allclose(length.columns(episodes, context)[0] - OFFSET, [0.1, 0.4, 0.5, 0.2], atol=1e-12)


def context(step: int) -> Any:
    return SimpleNamespace(step=step, steps=12, stream=Stream(0).split("step", step), task=None, max_tokens=1)


def test_a_formula_is_worth_its_late_successes_and_a_full_group_is_learned_from(monkeypatch: Any) -> None:
    part = MetaReward(size=2, inner=3, window=2, writer=FormulaPolicy(cold=0)).bind()
    monkeypatch.setattr(FormulaReward, "columns", lambda *_: np.ones((4, 2)))
    solved = {0: (1, 1), 1: (1, 0), 2: (1, 1), 3: (1, 1), 4: (0, 0), 5: (0, 1)}
    formulas = []
    for step in range(7):
        part.score([None, None], context(step))
        formulas.append(part.formula)
        part.before_update(_Solved(solved.get(step, (0, 0))))
        assert part.writer.state["updates"] == (part.writer.learning.epochs if step == 6 else 0)
    assert formulas[0] == formulas[1] == formulas[2]
    assert formulas[3] == formulas[4] == formulas[5]
    assert [value for _, value in part.state["tried"]] == [0.75, 0.25]
    assert [formula for formula, _ in part.state["tried"]] == [formulas[0], formulas[3]]


class _Solved:
    """A batch of which only this is known."""

    def __init__(self, solved: tuple[int, ...]) -> None:
        self.solved = torch.tensor(solved, dtype=torch.bool)

    def __len__(self) -> int:
        return len(self.solved)


def test_dividing_by_zero_is_worth_nothing(monkeypatch: Any) -> None:
    part = MetaReward(size=2, inner=1, window=1, writer=FormulaPolicy(cold=0)).bind()
    monkeypatch.setattr(FormulaReward, "columns", lambda *_: np.ones((4, 2)))
    monkeypatch.setattr(MetaReward, "formula", "1/(g1-g2)")
    assert part.score([None, None], context(0)) == [0.0, 0.0]
    part.before_update(_Solved((1, 1)))
    part.score([None, None], context(1))
    assert part.state["tried"] == [["1/(g1-g2)", 0.0]]


@pytest.mark.slow
def test_a_run_resumes_in_the_middle_of_a_group(tmp_path: Path) -> None:
    method = get_method("derl").replace(rewards=(MetaReward(size=2, inner=2, window=1, writer=FormulaPolicy(cold=2)),))
    task = Enumerable(prompts=2, vocabulary=3)

    def made() -> EnumerableLoop:
        return EnumerableLoop(method, task, seeds=(0, 1), steps=12)

    loop = made()
    for step in range(12):
        if step == 7:
            loop.save(tmp_path)
        loop.step()
    again = made()
    again.load(tmp_path)
    for _ in range(5):
        again.step()
    for one, other in zip(loop.methods, again.methods, strict=True):
        assert one.rewards[0].state["tried"] == other.rewards[0].state["tried"]
        assert one.rewards[0].writer.state["updates"] == 8
    assert torch.equal(torch.stack(list(loop.policy.logits)), torch.stack(list(again.policy.logits)))
