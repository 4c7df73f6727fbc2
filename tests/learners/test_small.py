"""Networks that learn inside of other parts: judges of steps and writers of formulas."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from etude.core.errors import ConfigError
from etude.core.learners import Learner, Learning, Target
from etude.core.part import part_from_json
from etude.core.registry import get_method
from etude.core.streams import Stream
from etude.learners.small import NEVER
from etude.methods.onpolicy.gae import GaussNewton
from etude.methods.rlvr.derl import MetaReward
from etude.methods.rlvr.derl.formulas import FormulaPolicy
from etude.methods.rlvr.oblr_po.snr import SNRAdamW
from etude.methods.rlvr.rlanything.step_judge import StepVerdicts
from etude.optimizers.adam import AdamW
from etude.optimizers.schedules import Linear

PLAIN = AdamW(lr=1e-2, clip_norm=None)


@pytest.mark.parametrize("part", [StepVerdicts(), FormulaPolicy()])
def test_they_are_learners(part: Learner) -> None:
    assert isinstance(part, Learner)
    assert part.slot == ("rewards" if isinstance(part, StepVerdicts) else "learners")
    assert part_from_json(part.to_json()) == part


def test_what_older_runs_wrote_loads() -> None:
    judge = {k: v for k, v in StepVerdicts().to_json().items() if k != "learning"} | {"lr": 0.02, "epochs": 2}
    learning = Learning(optimizer=AdamW(lr=0.02, clip_norm=None), epochs=2, order="before")
    assert part_from_json(judge) == StepVerdicts(learning=learning)
    frozen: Any = part_from_json({**judge, "epochs": 0})
    assert frozen.learning.turn(10_000) is None and frozen.learning.warmup == NEVER
    writer = {k: v for k, v in FormulaPolicy().to_json().items() if k != "learning"} | {"lr": 0.02, "epochs": 2}
    assert part_from_json(writer) == FormulaPolicy(
        learning=Learning(optimizer=AdamW(lr=0.02, clip_norm=None), epochs=2)
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"minibatches": 2}, "leave learning.minibatches at 1"),
        ({"order": "after"}, "leave learning.order at before"),
        ({"target": Target()}, "leave learning.target at None"),
        ({"optimizer": GaussNewton()}, "takes steps along its gradient, and GaussNewton takes others"),
        ({"optimizer": SNRAdamW()}, "takes steps along its gradient, and SNRAdamW takes others"),
    ],
)
def test_what_would_be_ignored_is_refused(changes: dict[str, Any], sentence: str) -> None:
    judge = StepVerdicts(learning=StepVerdicts().learning.replace(**changes))
    with pytest.raises(ConfigError, match=f"StepVerdicts .*{sentence}"):
        get_method("rlanything").replace(rewards=(judge,)).check()


def test_a_writer_has_no_time_of_its_own() -> None:
    writer = FormulaPolicy(learning=FormulaPolicy().learning.replace(every=2))
    with pytest.raises(ConfigError, match=r"FormulaPolicy .* leave learning.every at 1"):
        get_method("derl").replace(rewards=(MetaReward(writer=writer),)).check()


def written(rate: float, epochs: int) -> float:
    """How far the head's weights move in one group's steps."""
    adam = AdamW(lr=1e-2, clip_norm=None)
    part = FormulaPolicy(cold=0, learning=Learning(optimizer=adam, epochs=epochs)).bind()
    part.begin(Stream(0))
    before = part.state["weights"]["head"].clone()
    part.learn(part.write(4, Stream(1)), torch.tensor([1.0, 0.0, 0.5, 0.2]), rate)
    return float((part.state["weights"]["head"] - before).abs().max())


@pytest.mark.slow
def test_a_writer_takes_its_epochs_at_the_schedules_rate() -> None:
    """Adam's first step is the rate, whatever the gradient."""
    assert written(1.0, 1) == pytest.approx(1e-2, rel=1e-3)
    assert written(0.25, 1) == pytest.approx(2.5e-3, rel=1e-3)
    assert written(1.0, 3) > 2e-2


def test_a_group_of_formulas_is_learned_at_the_rate_of_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = FormulaPolicy(cold=0, learning=Learning(optimizer=PLAIN.replace(schedule=Linear())))
    part, rates = MetaReward(size=2, inner=1, window=1, writer=writer).bind(), list[float]()
    monkeypatch.setattr(FormulaPolicy, "learn", lambda self, group, scores, rate: rates.append(rate))
    for step in range(5):
        part._turn(SimpleNamespace(step=step, steps=8, stream=Stream(0).split(step)))  # type: ignore[arg-type]
    assert rates == [1 - 2 / 8, 1 - 4 / 8]
