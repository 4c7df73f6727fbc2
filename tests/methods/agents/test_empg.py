"""EMPG: its factors have mean one, its advantages mean zero, and without either it is GRPO."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from etude.advantages.turns import Turns
from etude.core.batches import TokenBatch
from etude.core.registry import get_method
from etude.experience.groups import Groups
from etude.experience.views import LastTurns
from etude.methods.agents.empg import EntropyFactors, factors
from etude.tasks.agents.attr_20q import attr_20q
from language_toys import make_loop, random_batch, random_policy

EMPG: Any = get_method("empg")


def batch_of(turns: int = 4) -> TokenBatch:
    """Eight episodes of two problems with entropies of their own, in double precision."""
    batch, draw = random_batch((4, 4), turns=turns), torch.Generator().manual_seed(3)
    entropy = torch.rand(batch.tokens.shape, generator=draw, dtype=torch.float64) * 3 * batch.action_mask
    scores = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    return batch.replace(entropy=entropy, scores=scores, rewards=batch.rewards.double())


def test_the_mean_factor_is_one() -> None:
    batch = batch_of()
    turns = Turns.in_batch(batch)
    for k in (0.5, 1.0, 4.0):
        g, _ = EntropyFactors(k=k)(batch, turns)
        assert g.mean().item() == pytest.approx(1, abs=1e-12) and g.std() > 0.05
        order = turns.means(batch.entropy).argsort()
        assert (g[order].diff() <= 0).all()  # sure turns count more


def test_by_hand() -> None:
    """Entropies 1, 3 and 2 of an episode, 1 of another: h = 0, 1, 1/2 and 0."""
    e = torch.tensor([1.0, 3.0, 2.0, 1.0], dtype=torch.float64)
    g, f = factors(e, torch.tensor([1, 2, -1, -1]), k=1.0, ahead=2.0, bonus=0.1)
    raw = torch.tensor([1.0, 0.3678794412, 0.6065306597, 1.0], dtype=torch.float64)
    torch.testing.assert_close(g, raw / raw.mean(), atol=1e-7, rtol=0)
    expected = torch.tensor([0.01353352832, 0.03678794412, 0, 0], dtype=torch.float64)
    torch.testing.assert_close(f, expected, atol=1e-8, rtol=0)


def test_advantages_have_zero_mean_over_turns() -> None:
    batch = batch_of()
    found = EMPG.advantages(batch)
    turns = Turns.in_batch(batch)
    assert turns.means(found).mean().item() == pytest.approx(0, abs=1e-12)
    assert abs(float(found[batch.action_mask].mean())) > 1e-4  # over tokens they have none


def test_without_weights_and_bonus_it_is_grpo_less_the_mean_over_turns() -> None:
    batch = batch_of()
    plain = EMPG.advantages.replace(factors=EntropyFactors(k=0.0, bonus=0.0))
    grpo = get_method("grpo").advantages(batch)
    mean = Turns.in_batch(batch).means(grpo).mean()
    assert mean.abs() < 1e-12  # every episode here has as many turns
    torch.testing.assert_close(plain(batch), grpo, atol=1e-12, rtol=0)
    one = plain.replace(centred=False)
    assert torch.equal(one(batch), grpo)


def test_the_expected_squared_score_is_one_less_the_collision_probability() -> None:
    p = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    norms = [((torch.eye(4, dtype=torch.float64)[v] - p) ** 2).sum() for v in range(4)]
    expected = sum(p[v] * norms[v] for v in range(4))
    assert float(expected) == pytest.approx(1 - float((p**2).sum()), abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("view", [Groups().view, LastTurns(turns=1)], ids=["whole", "views"])
def test_it_reads_the_entropies_that_were_recorded(view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No forward pass more than GRPO has; of several rows the turns are those of their episodes."""
    calls: list[int] = []
    monkeypatch.setattr("etude.loops.scorer.evaluate_all", lambda *a: calls.append(1))
    method = EMPG.replace(problems=2, experience=Groups(size=3, view=view))
    loop = make_loop(method, attr_20q, random_policy(context=256))
    metrics = loop.step().metrics
    assert not calls and metrics["gradient_norm"] > 0
