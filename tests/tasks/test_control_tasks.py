"""Environments as tasks: the names that find them, the backend that runs them, what is said where there is none."""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from environment_toys import TOYS
from etude.core.control import ControlTask
from etude.core.errors import ConfigError, EnvironmentFault, MissingExtraError, UnknownNameError
from etude.core.part import from_json, to_json
from etude.core.population import Member
from etude.core.registry import get_method
from etude.evaluation.control import play
from etude.experience.envpool_vector import EnvPoolVector
from etude.experience.gymnasium_vector import GymnasiumVector
from etude.loops.on_policy import OnPolicyLoop
from etude.runs.training import compose_task
from etude.tasks import resolve_task
from etude.tasks.control import _names
from etude.tasks.control.cartpole import CartPoleArrays
from etude.tasks.control.environment import EnvironmentTask
from etude.tasks.control.pendulum import PendulumArrays
from leaf_toys import MASKED
from solo_runs import alike

MODULE, OTHERS = TOYS.rpartition(":")[0], MASKED.rpartition(":")[0]
BROKEN = str(Path(MODULE).parent / "broken_import.py")


def kind(task: ControlTask) -> type:
    vector = task.make([0], 1)
    vector.close()
    return type(vector)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CartPole-v1", CartPoleArrays),
        ("Pendulum-v1", PendulumArrays),
        ("Acrobot-v1", EnvPoolVector),
        ("phys2d/CartPole-v1", EnvPoolVector),
        ("gymnasium.envs:CartPole-v1", GymnasiumVector),
        ("gymnasium.envs.classic_control:CartPoleEnv", GymnasiumVector),
        (TOYS, GymnasiumVector),
        (f"{MODULE}:toy", GymnasiumVector),
        ("environment_toys:Toy", GymnasiumVector),
    ],
)
def test_a_name_finds_an_environment_and_the_id_finds_it_again(name: str, expected: type) -> None:
    """The id is what a run stores and a resume looks up."""
    task = resolve_task(name)
    assert isinstance(task, EnvironmentTask) and task.world == "control" and task.steps == 100_000
    assert task.id == name and resolve_task(task.id) == task
    assert kind(task) is expected
    assert from_json(json.loads(json.dumps(to_json(task)))) == task


def test_built_in_ids_come_first() -> None:
    assert not isinstance(resolve_task("cartpole"), EnvironmentTask)
    assert resolve_task("cartpole").id == "cartpole"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, CartPoleArrays),
        ({"backend": "envpool"}, EnvPoolVector),
        ({"backend": "gymnasium"}, GymnasiumVector),
        ({"workers": True}, GymnasiumVector),
        ({"arguments": {"sutton_barto_reward": True}}, GymnasiumVector),
    ],
)
def test_the_backend_is_the_fastest_that_can_be(fields: dict[str, Any], expected: type) -> None:
    assert kind(EnvironmentTask("CartPole-v1", **fields)) is expected


@pytest.mark.slow
def test_without_envpool_it_is_gymnasium(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == "envpool" else real(n, *a))
    _names.envpool_ids.cache_clear()
    try:
        assert kind(resolve_task("Acrobot-v1")) is GymnasiumVector
        assert kind(resolve_task("CartPole-v1")) is CartPoleArrays
        with pytest.raises(MissingExtraError, match=r"pip install 'etude\[control\]'"):
            EnvironmentTask("CartPole-v1", backend="envpool")
        with pytest.raises(UnknownNameError, match=r"etude\[control\]' brings EnvPool"):
            resolve_task("Pong-v5")
    finally:
        _names.envpool_ids.cache_clear()


def test_fields_are_set_from_the_command_line() -> None:
    task = compose_task("CartPole-v1", ['task.arguments={"sutton_barto_reward": true}', "task.step_timeout=5"])
    assert isinstance(task, EnvironmentTask)
    assert task.arguments == {"sutton_barto_reward": True} and task.step_timeout == 5.0
    vector = task.make([0], 1)
    vector.reset()
    assert vector.step(np.zeros((1, 1, 1), np.float32)).rewards == 0.0  # 1 by default
    toy = compose_task(TOYS, ['task.arguments={"length": 3}']).make([0], 1)
    toy.reset()
    assert [bool(toy.step(np.zeros((1, 1, 1))).terminated[0, 0]) for _ in range(3)] == [False, False, True]


def test_what_a_file_has_made_is_made_again_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "made.py"
    file.write_text('import gymnasium as gym\nenv = gym.make("MountainCar-v0", max_episode_steps=7)\n')
    vector = resolve_task(f"{file}:env").make([0], 2)
    vector.reset()
    ends = [bool(vector.step(np.zeros((1, 2, 1))).truncated.all()) for _ in range(7)]
    assert ends == [False] * 6 + [True]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("CartPole-v7", "There is no environment named 'CartPole-v7'. Did you mean 'CartPole-v1'"),
        ("cartpole-v1", "Did you mean 'CartPole-v1'"),
        ("HalfCheeta-v4", "Did you mean 'HalfCheetah-v4'"),
        ("ALE/Pong-v5", "Did you mean 'Pong-v5'"),
        ("nowhere:Foo-v0", "Cannot import 'nowhere'"),
        ("cartpol", "Did you mean 'cartpole'"),
        (f"{MODULE}:Neste", "Did you mean 'Nested'"),
        (f"{MODULE}:not_one", "not_one is a function that returns int (3); it must return a gymnasium.Env"),
        (f"{OTHERS}:returns_class", "returns the class Masked, not an environment: name the class itself"),
        (
            f"{OTHERS}:returns_itself",
            "is a function that returns a function: name the one that returns the env",
        ),
        (f"{OTHERS}:returns_nothing", "is a function that returns nothing; it must return a gymnasium.Env"),
        (f"{OTHERS}:Several", "is a PettingZoo environment, of several agents, and a policy here is one agent's"),
        (f"{OTHERS}:several", "is a PettingZoo environment, of several agents, and a policy here is one agent's"),
        (f"{BROKEN}:X", "broken_import.py, line 3: from pathlib import Nothing"),
        (f"{MODULE}:BOX", "must be a Task or a Task class, got Box"),
        ("gymnasium:make", "must be a Task or a Task class, got function"),
    ],
)
def test_what_is_no_environment_is_refused_in_a_sentence(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_task(name)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("name", "fields", "sentence"),
    [
        ("CartPole-v1", {"backend": "envpool", "workers": True}, "takes no workers here"),
        ("Pong-v5", {"workers": True}, "Pong-v5 is EnvPool's, which takes no workers here"),
        (
            "Pong-v5",
            {"arguments": {"reward_clap": True}},
            "Did you mean 'reward_clip'? It takes: difficulty",
        ),
        ("Pong-v5", {"arguments": {"num_envs": 3}}, "argument of EnvPool's Pong-v5"),
        (
            "Pong-v5",
            {"arguments": {"reward_clip": "yes"}},
            "reward_clip of Pong-v5 must be true or false (EnvPool's",
        ),
        ("CartPole-v1", {"backend": "envpool", "arguments": {"a": 1}}, "argument of EnvPool's CartPole-v1"),
        ("Pong-v5", {"backend": "gymnasium"}, "EnvPool has it: leave task.backend out"),
        ("FrozenLake8x8-v9", {"backend": "envpool"}, "There is no environment of EnvPool named"),
        (TOYS, {"backend": "envpool"}, "is not an id of EnvPool"),
        ("Acrobot-v1", {"bounds": True}, "EnvPool's bounds are not those of its environments"),
        ("CartPole-v1", {"step_timeout": 0}, "step_timeout must be a number above 0, got 0"),
        ("CartPole-v1", {"backend": "gym"}, "backend must be one of 'auto', 'envpool', 'gymnasium', got 'gym'"),
        (TOYS, {"arguments": {"a": object()}}, "arguments must be plain data"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(name: str, fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EnvironmentTask(name, **fields)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("name", "arguments", "error", "sentence"),
    [
        ("CartPole-v1", {"gravity": 3}, ConfigError, "cannot be made with arguments={'gravity': 3}"),
        (TOYS, {"gravity": 3}, ConfigError, "unexpected keyword argument 'gravity' (set task.arguments)"),
        (TOYS, {"fault": "constructor"}, EnvironmentFault, "cannot be made: ValueError: no licence ("),
    ],
)
def test_what_cannot_be_made_says_why(name: str, arguments: dict[str, Any], error: type, sentence: str) -> None:
    with pytest.raises(error) as caught:
        EnvironmentTask(name, backend="gymnasium", arguments=arguments).make([0], 1)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("said", "extra"),
    [
        ('MuJoCo is not installed, run `pip install "gymnasium[mujoco]"`', "control"),
        ("Box2D is not installed", "box2d"),
    ],
)
def test_a_missing_package_names_the_extra_that_brings_it(
    said: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(*args: Any, **kwargs: Any) -> Any:
        raise gym.error.DependencyNotInstalled(said)

    monkeypatch.setattr(gym, "make", make)
    with pytest.raises(MissingExtraError, match=rf"install it with: pip install 'etude\[{extra}\]'"):
        EnvironmentTask("LunarLander-v3", backend="gymnasium").make([0], 1)


def test_bounds_count_unless_the_environment_is_one_of_gymnasiums_own() -> None:
    task = EnvironmentTask(TOYS, arguments={"fault": "outside", "at": 1})
    vector = task.make([0], 1)
    vector.reset()
    with pytest.raises(EnvironmentFault, match="outside of its space"):
        vector.step(np.zeros((1, 1, 1)))
    vector = task.replace(bounds=False).make([0], 1)
    vector.reset()
    assert vector.step(np.zeros((1, 1, 1))).observations[0, 0, 1] == 2e6
    assert _names.own_bounds("LunarLander-v3") is False and _names.own_bounds(TOYS) is True


def test_one_environment_can_be_had_for_a_picture() -> None:
    env = EnvironmentTask("CartPole-v1").single(render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render_mode == "rgb_array"
    env.close()


def test_packages_that_declare_environments_are_asked_for_ids_that_nobody_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As MinAtar does; Gymnasium 1.4 no longer loads them itself. One that raises does not stand in the way."""
    (tmp_path / "arcade_of_mine.py").write_text(
        "import gymnasium as gym\n"
        "def register():\n    gym.register('Arcade/Toy-v0', entry_point='environment_toys:Toy')\n"
        "def broken():\n    raise ImportError('no module named games')\n"
    )
    info = tmp_path / "arcade_of_mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: arcade-of-mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[gymnasium.envs]\nBroken = arcade_of_mine:broken\nArcade = arcade_of_mine:register\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    _names.load_plugins.cache_clear()
    try:
        task = resolve_task("Arcade/Toy-v0")
        assert isinstance(task, ControlTask) and task.runs_on == "gymnasium"
        task.make([0], 1).close()
        assert "The environments of Broken could not be registered: no module named games" in caplog.text
    finally:
        gym.registry.pop("Arcade/Toy-v0", None)
        _names.load_plugins.cache_clear()


@pytest.mark.skipif(importlib.util.find_spec("minatar") is not None, reason="the package is there")
def test_environments_of_a_package_that_is_not_there_say_which() -> None:
    with pytest.raises(MissingExtraError, match=r"MinAtar/Breakout-v1.*etude\[minatar\]"):
        resolve_task("MinAtar/Breakout-v1")


@pytest.mark.slow
def test_names_that_look_like_no_environment_import_nothing() -> None:
    """`etude` starts fast: neither package is loaded to find a task of language."""
    code = (
        "import sys\nfrom etude.tasks import resolve_task\nresolve_task('compose')\n"
        "try: resolve_task('compse')\nexcept Exception: pass\n"
        "print([m for m in ('gymnasium', 'envpool') if m in sys.modules])"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def loop_on(task: ControlTask, seeds: tuple[int, ...] = (0, 1)) -> OnPolicyLoop:
    method = get_method("ppo", "control")
    small = method.replace(experience=method.experience.replace(environments=2, steps=32))
    return OnPolicyLoop(small, task, [Member(s) for s in seeds], 12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "task",
    [
        EnvironmentTask("CartPole-v1"),
        EnvironmentTask("CartPole-v1", backend="envpool"),
        EnvironmentTask("CartPole-v1", backend="gymnasium"),
        EnvironmentTask(TOYS),
    ],
    ids=["built in", "envpool", "gymnasium", "own"],
)
def test_training_goes_on_from_a_checkpoint_as_if_never_stopped(
    task: EnvironmentTask, tmp_path: Path, one_thread: None
) -> None:
    whole, again = loop_on(task), loop_on(task)
    for _ in range(3):
        whole.step()
    whole.save(tmp_path)
    again.load(tmp_path)
    for _ in range(3):
        whole.step()
        again.step()
    assert torch.equal(whole.parameters.values, again.parameters.values)
    assert np.array_equal(whole.collector.observations, again.collector.observations)
    whole.close()
    again.close()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["envpool", "gymnasium"])
def test_a_member_learns_what_it_learns_alone(backend: Any, one_thread: None) -> None:
    task = EnvironmentTask("CartPole-v1", backend=backend)
    three, alone = loop_on(task, (4, 5, 6)), loop_on(task, (5,))
    for _ in range(3):
        three.step()
        alone.step()
    assert alike(three.parameters.values[1], alone.parameters.values[0])


def test_a_discarded_episode_has_no_weight_and_the_run_goes_on(tmp_path: Path, one_thread: None) -> None:
    task = EnvironmentTask(TOYS, arguments={"fault": "raises once", "at": 5, "file": str(tmp_path / "x")})
    loop = loop_on(task)
    batch = loop.collector.collect(0, loop.critic)
    assert batch.weights is not None
    assert (batch.weights[0, :5, 0] == 0).all() and batch.weights.sum() == batch.weights.numel() - 5
    assert loop.collector.faults == 1
    assert torch.isfinite(loop.parameters.values).all() and loop.step().metrics["return"] > 0
    assert torch.isfinite(loop.parameters.values).all()


@pytest.mark.slow
def test_envpools_options_are_reached_one_at_a_time() -> None:
    """Clipped rewards are -1, 0 or 1 whatever the game pays; episodes end after the steps that were asked for."""
    changes = ["task.arguments.max_episode_steps=7", "task.arguments.stack_num=2", "task.arguments.reward_clip=true"]
    task: Any = compose_task("Pong-v5", changes)
    assert task.arguments == {"max_episode_steps": 7, "stack_num": 2, "reward_clip": True} and task.runs_on == "envpool"
    vector = task.make([0], 1)
    assert vector.reset().shape == (1, 1, 2, 84, 84)
    ends = [bool(vector.step(np.zeros((1, 1, 1), np.float32)).truncated[0, 0]) for _ in range(14)]
    vector.close()
    assert [i + 1 for i, end in enumerate(ends) if end] == [7, 14]
    with pytest.raises(ConfigError, match=r"task\.workers of .* is a value, so it has no entry 'x'"):
        compose_task(TOYS, ["task.workers.x=1"])


@pytest.mark.parametrize(
    ("name", "backend"), [("cartpole", "built-in"), ("Acrobot-v1", "envpool"), (TOYS, "gymnasium")]
)
def test_who_steps_it_is_known(name: str, backend: str) -> None:
    task = resolve_task(name)
    assert isinstance(task, ControlTask) and task.runs_on == backend


@pytest.mark.slow
def test_episodes_that_never_end_are_cut_where_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Toy's rewards are the number of the step: 1 + 2 + ... + 30."""
    task = EnvironmentTask(TOYS, arguments={"length": 10**9})
    loop = OnPolicyLoop(get_method("ppo", "control"), task, [Member(0), Member(1)], 1)
    with caplog.at_level(logging.WARNING):
        found = play(loop, task, 20, longest=30)
    assert found.shape == (2, 10) and np.all(found == 465.0)
    assert "20 episodes had not ended after 30 steps and were cut there" in caplog.text
    short = EnvironmentTask(TOYS, arguments={"length": 29})
    assert np.array_equal(play(loop, short, 20, longest=30), play(loop, short, 20)) and "29" not in caplog.text


@pytest.mark.slow
def test_mujoco_writes_nothing_into_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its warnings, which it has in a MUJOCO_LOG.TXT, are in the log."""
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO, "etude.tasks")
    env: Any = EnvironmentTask("InvertedPendulum-v5", backend="gymnasium").single().unwrapped
    env.reset(seed=0)
    env.data.qvel[:] = 1e12
    env.step(np.zeros(1))
    assert any("simulation is unstable" in line for line in caplog.messages)
    assert not list(tmp_path.iterdir())
