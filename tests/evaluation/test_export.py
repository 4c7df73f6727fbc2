"""Exported policies run without etude and do what the actor does."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces

from etude.core.control import ControlTask, VectorEnvironment
from etude.core.errors import ConfigError
from etude.core.population import Member
from etude.core.registry import get_method
from etude.evaluation.export import decode, encode, example, export_policy, plain_policy
from etude.experience.spaces import action_decoder, batch_of, observation_encoder
from etude.learners.state import StateValue
from etude.loops.on_policy import OnPolicyLoop
from etude.policies.control.actor import Player
from etude.policies.control.frames import FrameStack
from etude.policies.control.memory import GRU
from etude.policies.control.networks import CNN, MLP
from etude.policies.control.observations import NormalizeObservations
from etude.tasks.control._batched import ArrayEnvironment
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.pendulum import pendulum
from image_toys import Dot

torch.set_num_threads(1)
WITHOUT_ETUDE = """
import json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("etude", "gymnasium"):
            raise ImportError(name + " is not here")

sys.meta_path.insert(0, Blocked())
import torch

for folder in sys.argv[1:]:
    program = torch.export.load(folder + "/policy.pt2").module()
    given = torch.load(folder + "/given.pt")
    state, found = given.get("state"), []
    for observations, begins in zip(given["observations"], given["begins"]):
        if state is None:
            found.append(program(observations))
        else:
            action, state = program(observations, begins, state)
            found.append(action)
    torch.save(found, folder + "/found.pt")
assert not any(m.split(".")[0] == "etude" for m in sys.modules)
"""
STEPS, COUNT = 10, 3


def trained(task: ControlTask, *, settings: Any = None, **changes: Any) -> OnPolicyLoop:
    """Two members after a step that moved weights and moments."""
    method: Any = get_method("ppo", "control")
    network = changes.pop("network", MLP(hidden=(8,)))
    method = method.replace(
        policy=method.policy.replace(network=network, gain=1.0, **changes),
        critic=StateValue(shared=True),
        experience=method.experience.replace(environments=COUNT, steps=32),
        epochs=2,
    )
    loop = OnPolicyLoop(method, task, [Member(3), Member(4, settings or {}), Member(5)], 2)
    loop.step()
    return loop


def played(loop: OnPolicyLoop, member: int) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Raw observations, where episodes begin, and the actor's likeliest actions [COUNT, A], flat, over some steps."""
    stacked: Any = loop.method.policy.watch(loop.task.make([0], COUNT, "test"))
    raw = stacked.environment if hasattr(stacked, "environment") else stacked
    player, seen = Player(loop.actor, 3, COUNT), []
    reset, step = raw.reset, raw.step
    raw.reset = lambda: seen.append(reset()) or seen[-1]
    raw.step = lambda actions: (found := step(actions), seen.append(found.observations))[0]
    observations, begins, actions = stacked.reset(), [torch.ones(COUNT, dtype=torch.bool)], []
    with torch.no_grad():
        for _ in range(STEPS):
            parameters = player.act(torch.from_numpy(observations).expand(3, *observations.shape[1:]))
            mode = loop.actor.distribution.mode(parameters)[member]
            actions.append(mode)
            found = stacked.step(mode[None].numpy())
            done = torch.from_numpy(found.terminated | found.truncated)
            player.ended(done.expand(3, -1))
            begins.append(done[0])
            observations = found.observations
    return [torch.from_numpy(x[0].copy()) for x in seen[:STEPS]], begins[:STEPS], actions


CASES: dict[str, tuple[ControlTask, dict[str, Any]]] = {
    "discrete": (cartpole, {"observations": (NormalizeObservations(),)}),
    "box": (pendulum, {"observations": (NormalizeObservations(),)}),
    "squashed": (pendulum, {"squash": True}),
    "frames": (pendulum, {"observations": (FrameStack(count=3), NormalizeObservations())}),
    "memory": (pendulum, {"memory": GRU(width=6), "observations": (NormalizeObservations(),)}),
    "image": (Dot(), {"network": CNN(channels=(4,), kernels=(3,), strides=(2,), hidden=(8,))}),
    "all": (
        Dot(),
        {
            "network": CNN(channels=(4,), kernels=(3,), strides=(2,), hidden=(8,)),
            "memory": GRU(width=6),
            "observations": (FrameStack(count=2), NormalizeObservations()),
        },
    ),
}


@pytest.mark.first
@pytest.mark.parametrize("name", CASES)
def test_the_module_does_what_the_actor_does(name: str) -> None:
    task, changes = CASES[name]
    loop = trained(task, **changes)
    observations, begins, exact = played(loop, 1)
    assert name not in ("image", "all") or any(bool(b.any()) for b in begins[1:])
    policy, found = plain_policy(loop, 1), []
    state: Any = policy.initial(COUNT) or None
    state = state and {k: v + 9 for k, v in state.items()}  # what is given where an episode begins does not matter
    for seen, begin in zip(observations, begins):
        out = policy(seen) if state is None else policy(seen, begin, state)
        action, state = (out, None) if state is None else out
        found.append(action)
    own = action_decoder(loop.environment.action_space)
    for mine, flat in zip(found, exact):
        np.testing.assert_allclose(mine.numpy(), own(flat.numpy()), atol=1e-5)
    assert len({tuple(x.flatten().tolist()) for x in found}) > 1


@pytest.mark.slow
def test_files_run_without_etude(tmp_path: Path) -> None:
    names, expected = ("discrete", "box", "all"), {}
    for name in names:
        task, changes = CASES[name]
        loop = trained(task, **changes)
        export_policy(loop, 1, tmp_path / name / "policy.pt2")
        observations, begins, exact = played(loop, 1)
        given: dict[str, Any] = {"observations": observations, "begins": begins}
        if state := plain_policy(loop, 1).initial(COUNT):
            given["state"] = state
        torch.save(given, tmp_path / name / "given.pt")
        own = action_decoder(loop.environment.action_space)
        expected[name] = [own(flat.numpy()) for flat in exact]
    subprocess.run([sys.executable, "-c", WITHOUT_ETUDE, *names], check=True, cwd=tmp_path, timeout=300)
    for name in names:
        for mine, wanted in zip(torch.load(tmp_path / name / "found.pt"), expected[name], strict=True):
            np.testing.assert_allclose(mine.numpy(), wanted, atol=1e-5)


@pytest.mark.slow
def test_the_file_takes_batches_of_any_size_and_says_what_it_is(tmp_path: Path) -> None:
    loop = trained(cartpole, observations=(FrameStack(count=2),))
    path = export_policy(loop, 2, tmp_path / "policy.pt2")
    extra = {"policy.json": ""}
    program = torch.export.load(path, extra_files=extra).module()
    described = json.loads(extra["policy.json"])
    assert (described["method"], described["task"], described["member"], described["seed"]) == ("ppo", "cartpole", 2, 5)
    assert described["inputs"] == ["observations", "begins", "state"]
    assert described["state"] == {"frames": [[8], "float32"]}
    for count in (1, 2, 64):
        state = {k: torch.zeros(count, *shape) for k, (shape, _) in described["state"].items()}
        action, state = program(torch.randn(count, 4), torch.ones(count, dtype=torch.bool), state)
        assert action.shape == (count,) and action.dtype == torch.int64 and state["frames"].shape == (count, 8)
    assert zipfile.is_zipfile(path)


def test_members_settings_are_exported() -> None:
    loop = trained(pendulum, observations=(NormalizeObservations(),), settings={"policy.observations.0.clip": 0.01})
    observations = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    for member, clip in ((0, 10.0), (1, 0.01)):
        policy = plain_policy(loop, member)
        assert policy.actor.transforms[0].clip == clip
        exact = loop.actor.distribution.mode(loop.actor(loop.actor.see(observations.expand(3, -1, -1))))[member]
        torch.testing.assert_close(policy(observations), exact.detach().clamp(-2, 2), atol=1e-5, rtol=0)


def test_a_lone_member_is_exported() -> None:
    method: Any = get_method("ppo", "control")
    loop = OnPolicyLoop(method, cartpole, [Member(0)], 1)
    assert plain_policy(loop, 0)(torch.zeros(2, 4)).shape == (2,)


def test_a_member_or_an_ending_that_is_not_there_is_refused(tmp_path: Path) -> None:
    loop = trained(cartpole)
    with pytest.raises(ConfigError, match="There is no member 3: the run's are 0 to 2"):
        export_policy(loop, 3, tmp_path / "policy.pt2")
    with pytest.raises(ConfigError, match=r"ends in \.pt2"):
        export_policy(loop, 0, tmp_path / "policy.onnx")


# Spaces


PARTS: dict[str, spaces.Space] = {
    "vector": spaces.Box(-1.0, 1.0, (2, 3)),
    "number": spaces.Box(-1.0, 1.0, ()),
    "double": spaces.Box(-1.0, 1.0, (4,), np.float64),
    "image": spaces.Box(0, 255, (9, 8, 3), np.uint8),
    "channels first": spaces.Box(0, 255, (3, 9, 8), np.uint8),
    "discrete": spaces.Discrete(4, start=-1),
    "several": spaces.MultiDiscrete([[2, 3], [4, 5]], start=np.array([[0, 1], [5, -2]])),
    "switches": spaces.MultiBinary([2, 2]),
}
PARTS["all"] = spaces.Dict(
    {"a": spaces.Tuple((PARTS["vector"], PARTS["discrete"])), "b": PARTS["several"], "c": PARTS["switches"]}
)


@pytest.mark.parametrize("name", PARTS)
def test_raw_observations_are_read_as_in_training(name: str) -> None:
    space = PARTS[name]
    space.seed(1)
    batch = batch_of(space, [space.sample() for _ in range(5)])
    space.seed(1)
    tensors = torch.utils._pytree.tree_map(torch.from_numpy, plain(batch))
    np.testing.assert_array_equal(encode(space, tensors).numpy(), observation_encoder(space)(batch))


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return tuple(plain(v) for v in value) if isinstance(value, tuple) else np.asarray(value)


@pytest.mark.parametrize("name", [n for n in PARTS if n not in ("image", "channels first")])
def test_actions_are_given_as_in_training(name: str) -> None:
    space = PARTS[name]
    loop_space = spaces.Tuple((space, spaces.Discrete(2)))  # so that something follows
    from etude.policies.control.distributions import distribution

    spread = distribution(loop_space)
    flat = spread.sample(torch.randn(6, spread.parameters), spread.noise((6,), torch.Generator().manual_seed(0)))
    same(decode(loop_space, flat), action_decoder(loop_space)(flat.numpy()))


def same(mine: Any, exact: Any, tolerance: float = 0) -> None:
    if isinstance(exact, dict):
        assert list(mine) == list(exact)
        for k in exact:
            same(mine[k], exact[k], tolerance)
    elif isinstance(exact, tuple):
        for a, b in zip(mine, exact, strict=True):
            same(a, b, tolerance)
    else:
        np.testing.assert_allclose(mine.numpy(), exact, atol=tolerance, rtol=0)
        assert mine.numpy().dtype == exact.dtype


class Anything(ArrayEnvironment):
    """Shows and takes nested spaces, as far as a policy that is not trained needs."""

    observation_space, action_space = PARTS["all"], PARTS["all"]

    def start(self, uniform: np.ndarray) -> np.ndarray:
        return uniform

    def observe(self, states: np.ndarray) -> np.ndarray:
        return np.zeros((*states.shape[:-1], 6 + 4 + 14 + 4), np.float32)


class AnythingTask(ControlTask):
    id: ClassVar[str] = "anything"

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        return Anything(seeds, count, purpose)


@pytest.mark.slow
def test_nested_spaces_are_exported(tmp_path: Path) -> None:
    method: Any = get_method("ppo", "control")
    loop = OnPolicyLoop(method, AnythingTask(), [Member(0), Member(1)], 1)
    path = export_policy(loop, 0, tmp_path / "policy.pt2")
    program, policy = torch.export.load(path).module(), plain_policy(loop, 0)
    batch = example(PARTS["all"], 4)
    found, exact = program(batch), policy(batch)
    plain = torch.utils._pytree.tree_map(lambda x: x.numpy(), exact)
    same(found, plain, tolerance=1e-7)  # an exported program has torch's tanh, on every processor
    one = {
        "a": (found["a"][0][2].numpy(), found["a"][1][2].numpy()),
        "b": found["b"][2].numpy(),
        "c": found["c"][2].numpy(),
    }
    assert PARTS["all"].contains(one)
