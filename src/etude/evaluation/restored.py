"""The policies of a run of control as they stand in a checkpoint, without what trains them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from etude.core.control import ControlTask
from etude.core.errors import ConfigError
from etude.core.population import FlatParameters, Member, Population, settle
from etude.core.step_slots import Policy
from etude.experience.spaces import observation_shape
from etude.policies.control.actor import Actor
from etude.policies.control.replay import acting
from etude.runtime.checkpoints import load_tensors

if TYPE_CHECKING:
    from etude.core.method import Method
    from etude.loops.off_policy import OffPolicyLoop
    from etude.loops.on_policy import OnPolicyLoop


@dataclass(frozen=True)
class Spaces:
    """What an environment shows and takes."""

    observation_space: Any
    action_space: Any


class WithPolicy(Protocol):
    """A method of any kind that acts in control: what is asked of it here."""

    @property
    def id(self) -> str:
        """What it is called."""

    @property
    def policy(self) -> Policy:
        """What acts."""


@dataclass(frozen=True)
class RestoredPolicies:
    """What playing, drawing and exporting need of a loop: who acts, and between which spaces."""

    method: WithPolicy
    task: ControlTask
    population: Population
    actor: Actor
    environment: Spaces


Acting: TypeAlias = "OnPolicyLoop | OffPolicyLoop | RestoredPolicies"
"""Whose policies are played, drawn and exported: a loop's as they are now, or a checkpoint's."""


def restore_policies(
    checkpoint: Path, method: Method, task: ControlTask, members: Sequence[Member]
) -> RestoredPolicies:
    """Build the actor alone, no critic, optimizer or environment to train in, and give it a checkpoint's weights.

    Raises: ConfigError for a method without a policy, or one that was trained on other observations or actions.
    """
    if method.slots().get("policy") is None:
        raise ConfigError(f"{method.id} has no policy, so {checkpoint} holds none to play.")
    population = Population(members)
    bound = settle(method.bind(), population)
    own = cast(WithPolicy, bound)
    spaces = _spaces(own, task)
    shape = observation_shape(spaces.observation_space)
    actor = acting(bound, shape, spaces.action_space, population)
    tensors = load_tensors(checkpoint / "policy.safetensors")
    try:
        for name, module in actor.held.items():  # several networks of every member, perhaps, as they were trained
            rows = len(next(module.parameters()))
            FlatParameters({f"policy.held.{name}": module}, rows // population.size).load(tensors)
        FlatParameters({"policy": actor.without_held()}).load(tensors)
        for name, buffer in actor.named_buffers():
            buffer.copy_(tensors[f"policy.{name}"])
    except (KeyError, RuntimeError) as error:
        raise ConfigError(
            f"The policies in {checkpoint} do not fit {task.id}: its observations or actions are not those that they "
            f"were trained with ({str(error).splitlines()[0]})."
        ) from None
    return RestoredPolicies(own, task, population, actor, spaces)


def _spaces(method: WithPolicy, task: ControlTask) -> Spaces:
    """As the policy sees them, which may stack or scale what the task shows."""
    environment = method.policy.watch(task.make([0], 1, "spaces"))
    try:
        return Spaces(environment.observation_space, environment.action_space)
    finally:
        environment.close()
