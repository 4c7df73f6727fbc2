"""Environments in which something else acts than what learns, or acted otherwise than is stored."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from etude_museum.tiny import control

from etude.core.control import Step
from etude.core.edit import set_values
from etude.core.registry import get_method
from etude.core.transitions import Transitions
from etude.evaluation.exhibits import Exhibit, Report
from etude.experience.vector import RolloutCollector
from etude.loops.on_policy import OnPolicyLoop
from etude.tasks.control.environment import EnvironmentTask

TORQUE = 2.0
"""The largest that the pendulum takes."""


def swung() -> Iterator[Mapping[str, float]]:
    """PPO on the pendulum, with a normaliser."""
    changes = {
        "experience.environments": 2, "experience.steps": 32, "policy.observations": "normalize-observations",
        "epochs": 1, "minibatches": 1,
    }  # fmt: skip
    return control(set_values(get_method("ppo", world="control"), changes), EnvironmentTask("Pendulum-v1"))


_collect = RolloutCollector.collect


def _clipped(self: RolloutCollector, *given: Any) -> Transitions:
    batch = _collect(self, *given)
    batch.actions.clamp_(-TORQUE, TORQUE)
    return batch


_keep = RolloutCollector._keep


def _kept_and_observed(self: RolloutCollector, batch: Transitions, step: Step, t: int) -> None:
    _keep(self, batch, step, t)
    self.actor.observe(torch.from_numpy(step.observations))


_collector = OnPolicyLoop._collector


def _with_a_copy(self: OnPolicyLoop, method: Any) -> Any:
    collector: Any = _collector(self, method)
    collector.actor = copy.deepcopy(self.actor)
    return collector


exhibits = (
    Exhibit(
        id="learner-tells-no-actor",
        kind="weights",
        report=Report(
            thread="ray-project/ray#58697",
            title="[RLlib] Actor weights don't appear to propagate from the Learner to the EnvRunner",
        ),
        says="What the learner learned never reached those who play: they went on with the first random weights, and "
        "ratios drifted until nothing could be learned.",
        mechanism="what acts is a copy of the policy as it was at first.",
        inject=lambda: mock.patch.object(OnPolicyLoop, "_collector", _with_a_copy),
        run=swung,
        expect="What acts does not hold the policy's weights and moments",
        begins=1,
    ),
    Exhibit(
        id="clipped-action-stored",
        kind="probabilities",
        report=Report(
            thread="ray-project/ray#8889", title="[RLlib] PPO not learning in complex cont. action environments."
        ),
        says="The action was stored as the environment took it, clipped, and its log-probability was that of what had "
        "been drawn: PPO stopped learning in HalfCheetah from one release to the next.",
        mechanism="stored actions are clipped to the range of the torque.",
        inject=lambda: mock.patch.object(RolloutCollector, "collect", _clipped),
        run=swung,
        expect="Fresh actions of member 0 have log-probabilities that differ by",
    ),
    Exhibit(
        id="normaliser-moves-too-early",
        kind="probabilities",
        report=Report(thread="leggedrobotics/rsl_rl#225", title="Update normalizers after optimization", pull=True),
        says="Statistics of observations were updated between acting and learning: the same weights saw other numbers, "
        "and the first ratio was not 1 before any update.",
        mechanism="the normaliser takes in what every step returns, while the rollout goes on.",
        inject=lambda: mock.patch.object(RolloutCollector, "_keep", _kept_and_observed),
        run=swung,
        expect="The moments of the normaliser changed while rollout",
    ),
)
