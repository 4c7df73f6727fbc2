"""Steps of another method between a method's own: who takes them, what they share, and what goes on after a stop."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from etude.core import stages
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fit import objections
from etude.core.registry import get_method
from etude.core.stage_slots import Chooser
from etude.curricula.kept import HardProblems
from etude.experience.groups import Groups
from etude.loops.language import LanguageLoop
from etude.optimizers.adam import AdamW
from etude.policies.language import LanguagePolicy
from etude.references.frozen import Frozen
from etude.regularizers.kl import KLToReference
from etude.stages.phases import Phase
from etude.stages.turns import AfterSteps, ByChance, ConstantChance, CosineChance, Interleaved, Like, WhenFull
from etude.tasks import resolve_task

pytestmark = pytest.mark.usefixtures("one_thread")
GRPO: Any = get_method("grpo").replace(problems=4, experience=Groups(size=4))
SFT: Any = get_method("sft")


def interleaved(chooser: Chooser, *, optimizer: Any = None, **changes: Any) -> Any:
    return GRPO.replace(stages=(Interleaved(turn=Like(id="sft", optimizer=optimizer), chooser=chooser),), **changes)


def chance(p: float, **changes: Any) -> Any:
    return interleaved(ByChance(chance=ConstantChance(p=p)), **changes)


def make(method: Any, steps: int = 6, seed: int = 0) -> LanguageLoop:
    return LanguageLoop(method, resolve_task("compose"), LanguagePolicy.load("tiny"), seed=seed, steps=steps)


def play(loop: LanguageLoop, steps: int) -> list[dict[str, float]]:
    timed = ("tokens_per_second", "seconds/experience", "seconds/update")
    return [{k: v for k, v in loop.step().metrics.items() if k not in timed} for _ in range(steps)]


def same(one: LanguageLoop, other: LanguageLoop) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.policy.parameters(), other.policy.parameters()))


# Identities


@pytest.mark.slow
@pytest.mark.parametrize(("p", "alone"), [(1.0, SFT), (0.0, GRPO)])
def test_a_choice_that_is_certain_is_a_run_of_that_method(p: float, alone: Any) -> None:
    mixed, own = make(chance(p)), make(alone)
    logged, expected = play(mixed, 3), play(own, 3)
    assert same(mixed, own)
    assert [{k: v for k, v in m.items() if k not in ("other", "chance")} for m in logged] == expected
    assert [m["other"] for m in logged] == [p] * 3


@pytest.mark.slow
def test_a_switch_after_n_steps_is_two_phases() -> None:
    switched = make(interleaved(AfterSteps(steps=2)))
    phases = make(GRPO.replace(stages=(Phase(like="sft", end=2 / 6), Phase())))
    assert [m["other"] for m in play(switched, 4)] == [1, 1, 0, 0]
    play(phases, 4)
    assert same(switched, phases)


@pytest.mark.slow
def test_another_method_like_the_own_one_changes_nothing() -> None:
    turn = Like(id="grpo", keep=("problems", "experience"))
    mixed = make(GRPO.replace(stages=(Interleaved(turn=turn, chooser=ByChance()),)))
    own = make(GRPO)
    assert {m["other"] for m in play(mixed, 6)} == {0.0, 1.0}  # seed 0 draws both
    play(own, 6)
    assert same(mixed, own)


@pytest.mark.slow
def test_every_step_is_drawn_anew_and_repeatably() -> None:
    logged = [[m["other"] for m in play(make(chance(0.5), 8, seed), 8)] for seed in (0, 0, 1)]
    assert logged[0] == logged[1] != logged[2]
    assert 0 < sum(logged[0]) < 8


# Optimizers


def taken(loop: LanguageLoop) -> dict[str, int]:
    moments = {turn: stepper.moments() for turn, stepper in loop.updater.steppers.items()}
    return {turn: int(next(iter(s.values()))["step"]) if s else 0 for turn, s in moments.items()}


@pytest.mark.slow
def test_one_optimizer_takes_all_steps_or_each_method_has_its_own() -> None:
    shared, apart = make(interleaved(AfterSteps(steps=2))), make(interleaved(AfterSteps(steps=2), optimizer=AdamW()))
    for loop in (shared, apart):
        play(loop, 3)
    assert taken(shared) == {"own": 3} and taken(apart) == {"own": 1, "other": 2}
    assert not same(shared, apart)


@pytest.mark.slow
def test_the_others_rate_is_its_own() -> None:
    still = make(interleaved(AfterSteps(steps=2), optimizer=AdamW(lr=1e-12)))
    with pytest.warns(UserWarning):
        play(still, 2)
    plain = LanguagePolicy.load("tiny")
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(still.policy.parameters(), plain.parameters()))


@pytest.mark.slow
def test_an_own_optimizer_ends_with_its_stage() -> None:
    first = Interleaved(turn=Like(optimizer=AdamW()), chooser=AfterSteps(steps=1), end=0.5)
    loop = make(GRPO.replace(stages=(first, Phase())), steps=4)
    play(loop, 1)
    assert taken(loop) == {"own": 0, "other": 1}
    play(loop, 1)
    assert taken(loop) == {"own": 1}


# A stop in the middle


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [None, AdamW(lr=3e-4, clip_norm=0.7)])
@pytest.mark.parametrize(
    "chooser", [ByChance(chance=ConstantChance(p=0.5)), AfterSteps(steps=3), WhenFull(size=3, buffer=HardProblems())]
)
def test_a_resumed_run_is_the_one_that_never_stopped(chooser: Chooser, optimizer: Any, tmp_path: Path) -> None:
    method = interleaved(chooser, optimizer=optimizer, regularizers=(KLToReference(),), reference=Frozen())
    whole, expected, stops = make(method), list[dict[str, float]](), (1, 2, 4)
    for step in range(6):
        if step in stops:
            whole.save(tmp_path / str(step))
        expected += play(whole, 1)
    assert {m["other"] for m in expected} == {0.0, 1.0}
    for stop in stops:
        resumed = make(method)
        resumed.load(tmp_path / str(stop))
        assert play(resumed, 6 - stop) == expected[stop:]
        assert same(resumed, whole)


# The buffer


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3])
def test_a_full_buffer_is_learned_from_once_and_what_is_left_stays(size: int) -> None:
    loop = make(interleaved(WhenFull(size=size)), steps=8)
    chooser: Any = loop.method.stages[0].chooser
    seen: list[Any] = []
    for step in range(8):
        before = [item["problem"]["id"] for item in chooser.buffer.state["items"]]
        metrics = loop.step().metrics
        after = [item["problem"]["id"] for item in chooser.buffer.state["items"]]
        assert metrics["kept"] == len(before)
        seen.append(metrics["other"])
        if metrics["other"]:
            assert len(before) >= size and after == before[size:] and metrics["rows"] == size
        else:
            assert len(before) < size or (step and seen[step - 1])
            assert after[len(after) - len(before) :] == before
    assert 0 < sum(seen) < 8 and all(not (a and b) for a, b in pairwise(seen))


@pytest.mark.slow
def test_without_a_hard_problem_it_is_the_own_method() -> None:
    easy = make(interleaved(WhenFull(size=1, buffer=HardProblems(floor=0.5))))  # every problem has a wrong completion
    own = make(GRPO)
    assert not any(m["other"] for m in play(easy, 3))
    play(own, 3)
    assert same(easy, own)


# Sharing and refusals


def test_parts_of_both_methods_are_one_part() -> None:
    method = interleaved(WhenFull(size=3))
    bound = stages.bound(method)
    (other,) = stages.others(method, bound)
    own: Any = bound[0][1]
    assert other is not None
    assert other.curriculum is own.stages[0].chooser.buffer  # type: ignore[attr-defined]
    assert other.optimizer is own.optimizer and other.slots()["stages"] == ()
    apart = interleaved(AfterSteps(steps=1), optimizer=GRPO.optimizer)
    bound = stages.bound(apart)
    (other,) = stages.others(apart, bound)
    assert other is not None and other.slots()["optimizer"] is not bound[0][1].slots()["optimizer"]
    assert other.slots()["curriculum"] is bound[0][1].slots()["curriculum"]


def test_a_step_is_known_for_what_it_is_like_in_another_stage() -> None:
    method = GRPO.replace(stages=(Phase(like="sft", end=0.5), Interleaved(turn=Like(id="sft"), chooser=ByChance())))
    bound = stages.bound(method)
    other = stages.others(method, bound)[1]
    assert other is not None
    assert stages.alike(bound[0][1], other) and not stages.alike(bound[1][1], other)


def test_stages_have_spans_of_steps() -> None:
    plan = [(0.3, None), (0.5, None), (1.0, None)]
    assert [stages.span(plan, k, 10) for k in range(3)] == [range(3), range(3, 5), range(5, 10)]


def test_cosine_falls_from_first_to_last() -> None:
    chance = CosineChance(first=0.9, last=0.1)
    assert chance.at(0, 8) == pytest.approx(0.9) and chance.at(4, 8) == pytest.approx(0.5)
    assert chance.at(8, 8) == pytest.approx(0.1)


def test_what_cannot_be_shared_is_refused() -> None:
    ppo: Any = get_method("ppo")
    with_critic = ppo.replace(stages=(Interleaved(turn=Like(id="t-ppo"), chooser=ByChance()),))
    with pytest.raises(ConfigError, match=r"another method with another critic"):
        with_critic.check()
    with pytest.raises(UnknownNameError, match="reward"):
        Like(id="sft", keep=("reward",)).apply(GRPO)
    sure = ByChance(chance=ConstantChance(p=1.0))
    short = GRPO.replace(stages=(Interleaved(turn=Like(), chooser=sure, end=0.5),))
    with pytest.raises(ConfigError, match="give it end=1"):
        short.check()


def test_what_a_task_lacks_for_the_other_method_is_said_before_it_starts(monkeypatch: Any) -> None:
    silent = resolve_task("compose")
    monkeypatch.setattr(type(silent), "demonstration", lambda self, problem: None)
    assert any("has no demonstration to learn from" in sentence for sentence in objections(chance(0.5), silent))
    assert not list(objections(GRPO, silent))


def test_control_has_no_steps_of_another_method() -> None:
    ppo: Any = get_method("ppo", "control")
    with pytest.raises(ConfigError, match="Interleaved"):
        ppo.replace(stages=(Interleaved(),)).check()
