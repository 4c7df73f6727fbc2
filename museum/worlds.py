"""Environments that are not what a learner takes them for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from etude_museum.tiny import control
from etude_museum.walk import FAULTS, Walk

from etude.core.control import Step
from etude.core.registry import get_method
from etude.core.streams import Stream
from etude.evaluation.environment_check import check_environment
from etude.evaluation.exhibits import Exhibit, Report
from etude.experience.gymnasium_vector import GymnasiumVector
from etude.experience.vector import Rollouts
from etude.tasks.control.environment import EnvironmentTask


class _OneSeed(Stream):
    """A stream that forgets which copy of an environment it is for."""

    def split(self, *names: Any) -> Stream:
        return Stream.split(self, *(names[:-1] if names[0] == "environment" else names))


@contextmanager
def first_for_last() -> Iterator[None]:
    """The last observation of an episode is the one that the next begins with."""
    original = GymnasiumVector.step

    def step(self: GymnasiumVector, actions: np.ndarray) -> Step:
        found = original(self, actions)
        done = found.terminated | found.truncated
        return found if found.final is None else dataclasses.replace(found, final=found.observations[done].copy())

    with mock.patch.object(GymnasiumVector, "step", step):
        yield


def checked() -> Iterator[str]:
    """What `etude check` says of the walk that is amiss."""
    for finding in check_environment(EnvironmentTask(f"{Walk.__module__}:Walk"), steps=600):
        if finding.level != "fact":
            yield finding.sentence


def trained() -> Iterator[Mapping[str, float]]:
    """Steps of ppo on the walk."""
    ppo = get_method("ppo", world="control")
    return control(
        ppo.replace(experience=Rollouts(environments=4, steps=96), epochs=1, minibatches=1),
        EnvironmentTask(f"{Walk.__module__}:Walk"),
    )


exhibits = (
    Exhibit(
        id="observation-buffer-reused",
        kind="environments",
        report=Report(
            thread="google-deepmind/dm_control#34",
            title="Returned observations will be mutated when the environment steps.",
        ),
        says="The environment returned its own buffer: observations that were kept changed with every later step, and "
        "actions were stored beside what came after them.",
        mechanism="every step writes into the array that the step before returned.",
        inject=FAULTS["observation-buffer-reused"],
        run=checked,
        expect="step writes into the observation that it returned before",
    ),
    Exhibit(
        id="seed-ignored",
        kind="environments",
        report=Report(thread="minerllabs/minerl#220", title="Seeding not supported in MineRLTreechop-v0 environment"),
        says="The seed changed nothing: every episode of every run started in the same place of the same world.",
        mechanism="reset draws from a generator with a seed of its own.",
        inject=FAULTS["seed-ignored"],
        run=checked,
        expect="Seeds 7 and 8 give the same episode",
    ),
    Exhibit(
        id="seed-of-another-generator",
        kind="environments",
        report=Report(
            thread="TUDelft-CNS-ATM/bluesky-gym#42",
            title="Use self.np_random instead of np.random or random for proper seeding and reproducibility",
        ),
        says="The seed of reset went into a generator that the environment never drew from: no experiment could be "
        "repeated, and nothing said so.",
        mechanism="reset draws from numpy.random.",
        inject=FAULTS["seed-of-another-generator"],
        run=checked,
        expect="The same seed and actions in a new environment give another",
    ),
    Exhibit(
        id="one-generator-for-all",
        kind="environments",
        report=Report(thread="datamllab/rlcard#125", title="Environment-local RNG seeds/state"),
        says="Games drew from the generator of the whole process: whatever else drew a number, another game among it, "
        "changed them.",
        mechanism="reset seeds numpy.random, and every step draws from it.",
        inject=FAULTS["one-generator-for-all"],
        run=checked,
        expect="Environments influence each other",
    ),
    Exhibit(
        id="episodes-without-end",
        kind="environments",
        report=Report(thread="openai/retro#82", title="Agent not marking end of Episode"),
        says="No episode was ever over, so the mean return of every update was nan and nobody knew how it was going.",
        mechanism="the walk goes on for ever.",
        inject=FAULTS["episodes-without-end"],
        run=checked,
        expect="No episode ended in",
    ),
    Exhibit(
        id="nan-observation",
        kind="environments",
        report=Report(thread="hill-a/stable-baselines#693", title="network returning nan actions [question]"),
        says="One NaN from a custom environment made all weights NaN after 29 good updates; the run went on, with NaN "
        "actions.",
        mechanism="the logarithm of a negative number is observed where the walk is far to the left.",
        inject=FAULTS["nan-observation"],
        run=trained,
        expect="is not finite|is nan|nan",
    ),
    Exhibit(
        id="time-limit-as-an-end",
        kind="targets",
        report=Report(thread="hill-a/stable-baselines#863", title="Filtering out artificial teminal states"),
        says="Environments reported their time limit as an end: what could still have been earned counted as nothing, "
        "and values near the limit were learned wrong.",
        mechanism="terminated is set after 60 steps.",
        inject=FAULTS["time-limit-as-an-end"],
        run=checked,
        expect="which looks like a time limit",
    ),
    Exhibit(
        id="one-seed-for-all-copies",
        kind="environments",
        report=Report(thread="ray-project/ray#46986", title="[RLlib] (New API) Each env_runner uses the same env seed"),
        says="All parallel environments had the seed 42: each of them showed the same episodes, and a larger batch "
        "held nothing more.",
        mechanism="the seeds of the copies do not depend on which copy it is.",
        inject=lambda: mock.patch("etude.experience.gymnasium_vector.Stream", _OneSeed),
        run=trained,
        expect="began their first 3 episodes alike",
    ),
    Exhibit(
        id="first-observation-for-last",
        kind="targets",
        report=Report(thread="openai/gym#3177", title="[Question] Isn't auto-reset of vector-env problematic?"),
        says="A vector environment resets itself and returns the first observation of the next episode: the true last "
        "one is lost, and what follows a step is taken from another episode.",
        mechanism="the last observation of an episode is replaced by the first of the next.",
        inject=first_for_last,
        run=trained,
        expect="ended with the observation that the next one began with",
    ),
)
