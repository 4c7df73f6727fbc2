"""Runs that go on from another state than they had."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from etude_museum.tiny import SMALL, Letters, control_loop, policy, small_sac

from etude.core.edit import set_values
from etude.core.registry import get_method
from etude.evaluation.exhibits import Exhibit, Report
from etude.experience.replay import ReplayCollector
from etude.experience.store import Store
from etude.loops.control_update import ControlUpdater
from etude.loops.language import LanguageLoop
from etude.loops.off_policy import OffPolicyLoop
from etude.loops.on_policy import OnPolicyLoop
from etude.runtime.folder import RunFolder
from etude.runtime.progress import Progress
from etude.runtime.run import Run
from etude.runtime.stopping import Stopping
from etude.tasks.control.environment import EnvironmentTask

ANSWER = "was read, and .* is not what it says"


def stopped_and_resumed(make: Callable[[], Any]) -> Iterator[Mapping[str, float]]:
    """Two steps, a checkpoint, and a new loop that goes on from it for one step more."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "run"
        for until in (2, 3):
            loop = make()
            opened = RunFolder.create(path, {}, {"seed": 0}) if until == 2 else RunFolder.resume(path)
            try:
                quiet = Progress(3, loop.headline, quiet=True)
                Run(opened, loop, 3, stopping=Stopping(None, None, (), until), progress=quiet).execute()
            finally:
                opened.close()
                getattr(loop, "close", lambda: None)()
            yield {"step": float(loop.finished)}


def on_policy() -> Iterator[Mapping[str, float]]:
    """PPO on cart-pole, with a normaliser."""
    ppo = set_values(
        get_method("ppo", world="control"),
        {"experience.environments": 2, "experience.steps": 16, "policy.observations": "normalize-observations"},
    )
    return stopped_and_resumed(lambda: control_loop(ppo))


def off_policy() -> Iterator[Mapping[str, float]]:
    """SAC on the pendulum."""
    return stopped_and_resumed(lambda: control_loop(small_sac(), EnvironmentTask("Pendulum-v1"), block=16))


def language_model() -> Iterator[Mapping[str, float]]:
    """GRPO on three prompts, one after the other."""
    ordered = set_values(SMALL, {"curriculum": "balanced-levels", "problems": 2})
    return stopped_and_resumed(lambda: LanguageLoop(ordered, Letters(), policy(), seed=0, steps=3))


def _without_actor(self: OffPolicyLoop, tensors: Any) -> None:
    mine = dict(self.updater.named())
    kept = {k: v.clone() for k, v in mine.items() if k.startswith("policy.")}
    self.updater.load_networks({**tensors, **kept})


def _without_moments(self: OnPolicyLoop, tensors: Any) -> None:
    self.parameters.load(tensors)
    self.updater.learners.load_networks(tensors)


def _without_optimizer(self: ControlUpdater, tensors: Any) -> None:
    self.noise.sums = tensors["noise"]
    self.learners.load(tensors)


def _nothing(*_: Any, **__: Any) -> None:
    """Restores nothing."""


exhibits = (
    Exhibit(
        id="actor-random-after-resume",
        kind="resume",
        report=Report(
            thread="huggingface/lerobot#4560",
            title="fix(rl): resume loads the checkpoint's policy weights instead of re-initialising randomly",
            pull=True,
        ),
        says="A resumed run had its critic, its optimizer and its step back, and a random policy drove the robot: "
        "worse than starting again, and nothing complained.",
        mechanism="the policy's weights are not taken from the checkpoint.",
        inject=lambda: mock.patch.object(OffPolicyLoop, "_set", _without_actor),
        run=off_policy,
        expect=ANSWER,
        begins=1,
    ),
    Exhibit(
        id="optimizer-fresh-after-resume",
        kind="resume",
        report=Report(
            thread="NVIDIA-NeMo/RL#3171", title="fix(ppo): restore optimizer state on checkpoint resume", pull=True
        ),
        says="The optimizer's state was looked for in the wrong folder: after every restart its moments and its "
        "schedule began anew.",
        mechanism="the optimizer's tensors are not taken from the checkpoint.",
        inject=lambda: mock.patch.object(ControlUpdater, "load", _without_optimizer),
        run=on_policy,
        expect=ANSWER,
        begins=1,
    ),
    Exhibit(
        id="normaliser-not-restored",
        kind="resume",
        report=Report(
            thread="isaac-sim/IsaacLab#2635",
            title="[Bug Report] SB3 train.py does not save VecNormalize stats; play.py starts with new stats",
        ),
        says="The statistics that observations were divided by were not kept: the trained policy was played with fresh "
        "ones, and looked bad.",
        mechanism="the moments of the normaliser are not taken from the checkpoint.",
        inject=lambda: mock.patch.object(OnPolicyLoop, "_set", _without_moments),
        run=on_policy,
        expect=ANSWER,
        begins=1,
    ),
    Exhibit(
        id="replay-gone-after-resume",
        kind="resume",
        report=Report(
            thread="ray-project/ray#8151", title="[rllib] What happens to the replay buffer upon checkpoint restore?"
        ),
        says="A restored agent was as good as before and forgot nearly everything within a few iterations: its replay "
        "was empty.",
        mechanism="what was stored is not read again.",
        inject=lambda: mock.patch.object(Store, "load", _nothing),
        run=off_policy,
        expect=ANSWER,
        begins=1,
    ),
    Exhibit(
        id="exploration-begins-anew",
        kind="resume",
        report=Report(
            thread="google-deepmind/rlax#102", title="Epsilon keeps getting reintialized in the example script"
        ),
        says="The counter that the schedule of epsilon goes by was set back again and again, so the schedule never "
        "got anywhere.",
        mechanism="the counters of who collects are not taken from the checkpoint.",
        inject=lambda: mock.patch.object(ReplayCollector, "restore", _nothing),
        run=off_policy,
        expect=ANSWER,
        begins=1,
    ),
    Exhibit(
        id="prompts-again-after-resume",
        kind="resume",
        report=Report(
            thread="NVIDIA-NeMo/RL#3599",
            title="fix(async-grpo): eliminate prompt skips across checkpoint save/restore",
            pull=True,
        ),
        says="The cursor in the data was not saved with what had been trained on: nearly a third of the prompts that a "
        "run reached were skipped over its restarts, the long ones first.",
        mechanism="what the curriculum remembers is not taken from the checkpoint.",
        inject=lambda: mock.patch.object(LanguageLoop, "restore", _nothing),
        run=language_model,
        expect=ANSWER,
        begins=1,
    ),
)
