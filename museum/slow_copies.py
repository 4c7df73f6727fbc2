"""Targets that come from the wrong network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from etude_museum.tiny import control, small_sac

from etude.evaluation.exhibits import Exhibit, Report
from etude.loops.replay_update import ReplayTrainer
from etude.tasks.control.environment import EnvironmentTask


def replayed() -> Iterator[Mapping[str, float]]:
    """Three times sixteen steps of SAC on the pendulum, with an update after each from the twelfth on."""
    return control(small_sac(), EnvironmentTask("Pendulum-v1"), block=16)


def follows(how: Any) -> AbstractContextManager[Any]:
    """Slow copies follow in another way."""
    return mock.patch.object(ReplayTrainer, "follow", how)


def _itself(self: ReplayTrainer) -> None:
    self.slow.values.copy_(self.slow.values.clone())


def _at_once(self: ReplayTrainer) -> None:
    self.slow.values.copy_(self.parameters.values)


exhibits = (
    Exhibit(
        id="target-copies-itself",
        kind="weights",
        report=Report(thread="thesouther/MARL#8", title="目标网络更新bug"),
        says="The target network loaded its own weights instead of the learning network's: values were learned towards "
        "those of the first random network for good.",
        mechanism="slow copies are set to what they are.",
        inject=lambda: follows(_itself),
        run=replayed,
        expect="The slow copy of the critic of member 0 did not follow it",
    ),
    Exhibit(
        id="target-without-delay",
        kind="targets",
        report=Report(
            thread="anthonytorlucci/rlevo#182",
            title="[rl] DQN/C51/QR-DQN: sync_target ignores tau, so the default config defeats its own Polyak target "
            "lag",
        ),
        says="The rate at which the target should follow was ignored: it was the learning network itself, and nothing "
        "held its values back.",
        mechanism="slow copies take the network's weights at once, whatever their rate is.",
        inject=lambda: follows(_at_once),
        run=replayed,
        expect="The slow copy of the critic of member 0 is the critic itself",
    ),
)
