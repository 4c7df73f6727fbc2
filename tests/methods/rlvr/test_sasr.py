"""SASR: how likely a step imitates, and what the ends of that are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from etude.core.batches import TokenLogProbs
from etude.core.edit import set_values
from etude.core.registry import get_method
from etude.experience.groups import Groups
from etude.loops.language import LanguageLoop
from etude.methods.rlvr.sasr import GradientNormChance
from etude.objectives.supervised import LogLikelihood
from etude.policies.language import LanguagePolicy
from etude.stages.phases import Phase
from etude.tasks import resolve_task
from etude.tasks.tabular.enumerable import Enumerable

pytestmark = pytest.mark.usefixtures("one_thread")
SASR: Any = get_method("sasr").replace(problems=4, experience=Groups(size=4))


def make(method: Any, steps: int = 6) -> LanguageLoop:
    return LanguageLoop(method, resolve_task("compose"), LanguagePolicy.load("tiny"), seed=0, steps=steps)


def play(loop: LanguageLoop, steps: int) -> list[dict[str, float]]:
    timed = ("tokens_per_second", "seconds/experience", "seconds/update")
    return [{k: v for k, v in loop.step().metrics.items() if k not in timed} for _ in range(steps)]


def same(one: LanguageLoop, other: LanguageLoop) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.policy.parameters(), other.policy.parameters()))


def gamma(value: float) -> Any:
    return set_values(SASR, {"stages.1.chooser.chance.gamma": value})


# The chance


def after(norms: list[float], gamma: float = 1.0) -> Any:
    """After a warm-up with these norms."""
    part = GradientNormChance(gamma=gamma).bind()
    for norm in norms:
        part.told(True, {"gradient_norm": norm})
    return part


def test_the_chance_by_hand() -> None:
    """G_warm is the mean of the last ten of 1..12: 7.5."""
    part = after([float(n) for n in range(1, 13)], gamma=2.0)
    assert part.at(0, 9) == pytest.approx(1 / 3)  # G = G_warm
    part.told(True, {"gradient_norm": 5.0})
    assert part.at(1, 9) == pytest.approx(5 / (5 + 2 * 7.5))
    part.told(False, {"gradient_norm": 99.0})  # another method's gradient says nothing
    part.told(True, {})  # neither does a step that learned nothing
    assert part.at(2, 9) == pytest.approx(0.25)


def test_equal_norms_are_an_even_chance_and_larger_ones_a_larger() -> None:
    assert after([3.0]).at(0, 1) == 0.5
    found = []
    for norm in (0.0, 0.1, 1.0, 10.0, 1e9):
        part = after([2.0])
        part.at(0, 1)
        part.told(True, {"gradient_norm": norm})
        found.append(part.at(1, 1))
    assert found == sorted(set(found)) and found[0] == 0 and found[-1] == pytest.approx(1)


def test_the_ends() -> None:
    assert after([2.0], gamma=0.0).at(0, 1) == 1 and after([2.0], gamma=1e300).at(0, 1) < 1e-299
    assert after([]).at(0, 1) == 1 and after([0.0]).at(0, 1) == 0


# Identities of runs


@pytest.mark.slow
def test_gamma_0_is_supervised_fine_tuning() -> None:
    imitating, sft = make(gamma(0)), make(get_method("sft"))
    logged = play(imitating, 4)
    play(sft, 4)
    assert same(imitating, sft) and [m.get("other") for m in logged] == [None, None, 1, 1]


@pytest.mark.slow
def test_a_boundless_gamma_is_a_warm_up_and_then_grpo() -> None:
    phases = SASR.replace(stages=(Phase(like="sft", end=0.3), Phase(reference="reset")))
    exploring, two = make(gamma(1e300)), make(phases)
    logged = play(exploring, 4)
    play(two, 4)
    assert same(exploring, two) and [m.get("other") for m in logged] == [None, None, 0, 0]


@pytest.mark.slow
def test_the_chance_follows_the_norms_that_were_logged(tmp_path: Path) -> None:
    """Also where the run was stopped in the warm-up, and after it."""
    whole = make(SASR, steps=8)
    logged = play(whole, 8)
    warm = sum(m["gradient_norm"] for m in logged[:3]) / 3
    now = warm
    for m in logged[3:]:
        assert m["chance"] == pytest.approx(now / (now + warm), rel=1e-12)
        now = m["gradient_norm"] if m["other"] else now
    assert {m["other"] for m in logged[3:]} == {0.0, 1.0}
    for stop in (2, 5):
        stopped, resumed = make(SASR, steps=8), make(SASR, steps=8)
        play(stopped, stop)
        stopped.save(tmp_path / str(stop))
        resumed.load(tmp_path / str(stop))
        assert play(resumed, 8 - stop) == logged[stop:]
        assert same(resumed, whole)


@pytest.mark.slow
def test_the_reference_is_the_policy_after_the_warm_up() -> None:
    loop = make(gamma(1e300), steps=4)
    play(loop, 2)
    warmed = [p.detach().clone() for p in loop.policy.model.parameters()]
    play(loop, 2)
    reference: Any = loop.policy.reference
    assert all(torch.equal(a, b) for a, b in zip(warmed, reference.parameters()))
    assert not all(torch.equal(a, b) for a, b in zip(warmed, loop.policy.model.parameters()))


@pytest.mark.parametrize("chooser", ["after-steps", "by-chance"])
def test_its_baselines_are_a_word_away(chooser: str) -> None:
    for chance in ("constant-chance", "cosine-chance") if chooser == "by-chance" else (None,):
        changes = {"stages.1.chooser": chooser} | ({} if chance is None else {"stages.1.chooser.chance": chance})
        set_values(SASR, changes).check()


# Why the norm says how far the policy is from the data


def test_the_supervised_gradient_is_that_of_the_divergence_from_the_data() -> None:
    """Over every response of a softmax table, in double precision: the entropy of the data has no gradient."""
    policy = Enumerable(prompts=1, vocabulary=4, length=2).policy(1)
    logits, responses = policy.logits[0], torch.arange(len(policy.tokens))
    data = torch.rand(len(responses), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    data /= data.sum()

    def logp() -> torch.Tensor:
        rows = policy.rows(0, torch.zeros_like(responses), responses, policy.table())
        return (rows.logp * policy.mask).sum(1)

    def supervised() -> torch.Tensor:
        nothing: Any = None
        return (data * LogLikelihood()(nothing, TokenLogProbs(logp()))).sum()

    wanted = (data * (data.log() - logp())).sum()
    mine, theirs = (torch.autograd.grad(loss, logits)[0] for loss in (supervised(), wanted))
    assert mine.abs().max() > 1e-3
    torch.testing.assert_close(mine, theirs, atol=1e-14, rtol=0)
