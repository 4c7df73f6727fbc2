"""`etude check`: each planted fault is found, in a sentence that says where; what is sound passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import Cli

from environment_toys import TOYS
from etude.evaluation.environment_check import check_environment
from etude.evaluation.environment_findings import Episode, of_ends
from etude.tasks.control.environment import EnvironmentTask
from leaf_toys import GRID

MODULE = TOYS.rpartition(":")[0]
STEPS = 600


def found(fault: str = "", steps: int = STEPS, **arguments: Any) -> dict[str, list[str]]:
    """Sentences by level."""
    timeout = 0.2 if fault == "hangs" else 60.0
    task = EnvironmentTask(TOYS, arguments={"fault": fault, **arguments}, step_timeout=timeout)
    sentences: dict[str, list[str]] = {"fault": [], "warning": [], "fact": []}
    for finding in check_environment(task, steps=steps):
        sentences[finding.level].append(f"{finding.about}: {finding.sentence}")
    return sentences


SAME = "seeding: The same seed and actions in a new environment give another observation"
FAULTS = [
    ("constructor", "running: ", "cannot be made: ValueError: no licence ("),
    ("integers", "spaces: Actions must be a Box of floats", "int64"),
    ("no space", "spaces: action_space must be one of gymnasium.spaces, got 3 (int)", ""),
    ("reset raises", "reset: reset raised RuntimeError: cannot begin (", "environment_toys.py, line"),
    ("reset only", "reset: Reset must return (observation, info), got an array of float32 (3,)", "episode 0"),
    ("reset info", "reset: Info must be a dictionary, got None", ""),
    ("raises", "step: step raised ZeroDivisionError: the valve is stuck (", "step 5 of episode 0, action 0"),
    ("exits", "step: step raised SystemExit: 3", ""),
    ("hangs", "running: ", "a step took more than 0.2 s: find what it waits for, or raise task.step_timeout"),
    ("nan observation", "observation: The observation[1] is nan: observations must be finite", "step 5 of episode 0"),
    ("infinite observation", "observation: The observation[2] is inf", "step 5 of episode 0"),
    ("outside", "observation: The observation[1] is 2000000.0, outside of its space ([-1e+06, 1e+06])", "widen"),
    ("shape", "step: The observation must be a numpy array of float32 (3,), got an array of float32 (4,)", "step 5"),
    ("dtype", "step: The observation must be a numpy array of float32 (3,), got an array of float64 (3,)", "step 5"),
    ("list", "step: The observation must be a numpy array of float32 (3,), got a list of 3", "step 5"),
    ("nan reward", "reward: The reward is nan: rewards must be finite", "step 5 of episode 0"),
    ("large reward", "reward: The reward is 1e+300: rewards must be finite", "step 5 of episode 0"),
    ("array reward", "step: The reward must be one number, got an array of float64 (1,)", "step 5"),
    ("no reward", "step: The reward must be one number, got None", "step 5"),
    ("number as flag", "step: Terminated must be True or False, got 1 (int)", "step 5"),
    ("info", "step: Info must be a dictionary, got a list of 1", "step 5"),
    ("four values", "step: Step must return (observation, reward, terminated, truncated, info), got a t", "old gym"),
    ("clock", f"{SAME} at step 5", "random"),
    ("global random", SAME, "after reset"),
    ("leak", SAME, "self.np_random"),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "beginning", "inside"), FAULTS, ids=[f[0] for f in FAULTS])
def test_each_planted_fault_is_found(fault: str, beginning: str, inside: str) -> None:
    sentences = found(fault)
    assert len(sentences["fault"]) in (1, 2), "one sentence per fault"
    assert any(s.startswith(beginning) and inside in s for s in sentences["fault"]), sentences["fault"]


WARNINGS = [
    ("text", {"fault": "text"}, "observation: observation['said'] is text, which no policy here reads: it is left out"),
    ("time limit", {"length": 60}, "ends: Every episode terminated after exactly 60 steps, which looks like a time"),
    ("endless", {"length": 10**9}, "ends: No episode ended in 600 steps"),
    ("both", {"fault": "both"}, "ends: terminated and truncated are always set together"),
    ("same start", {"fault": "same start"}, "seeding: Seeds 7 and 8 give the same episode"),
    ("in place", {"fault": "in place"}, "observation: step writes into the observation that it returned before"),
    ("far actions", {"fault": "far actions"}, "spaces: Actions range from 100 to 200"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "beginning"), [w[1:] for w in WARNINGS], ids=[w[0] for w in WARNINGS])
def test_what_may_cost_returns_is_a_warning(arguments: dict[str, Any], beginning: str) -> None:
    sentences = found(**arguments)
    assert not sentences["fault"]
    assert any(s.startswith(beginning) for s in sentences["warning"]), sentences["warning"]
    assert len(sentences["warning"]) == 1, sentences["warning"]


@pytest.mark.slow
def test_a_limit_that_is_truncated_is_no_matter() -> None:
    sentences = found(limit=60, length=10**9)
    assert not sentences["fault"] and not sentences["warning"]
    assert "ends: 10 episodes of 60 steps; 0 terminated, 10 truncated." in sentences["fact"]


@pytest.mark.parametrize(("capped", "falls", "found_out"), [(4, 12, True), (1, 12, False), (0, 200, False)])
def test_a_limit_that_some_episodes_reach_is_found(capped: int, falls: int, found_out: bool) -> None:
    """Some terminate by themselves at many lengths, others all at the same greatest one."""
    episodes = [Episode(20 + 7 * i % 170, True, False) for i in range(falls)]
    ends = [*episodes, *[Episode(200, True, False)] * capped]
    said = [f.sentence for f in of_ends(ends, 10_000) if f.level == "warning"]
    assert said == (
        ["4 of 16 episodes terminated after exactly 200 steps, the most that any took, which looks like a time limit: "
         "report it as truncated, or the values of states before it are learned wrong."] if found_out else []
    )  # fmt: skip


@pytest.mark.slow
def test_each_leaf_is_said_with_what_becomes_of_it() -> None:
    said = [(f.level, f.sentence) for f in check_environment(GRID, steps=60) if f.about == "observation"]
    assert said == [
        ("warning", "observation['mission'] is text, which no policy here reads: it is left out. If episodes differ in "
         "it, say it in numbers."),
        ("fact", "observation['camera']: an image of 3 x 7 x 7 (channels, height, width), [0, 255] scaled to [0, 1], "
         "through a CNN."),
        ("fact", "observation['depth']: an image of 1 x 5 x 5 (channels, height, width), [-2, 6] scaled to [0, 1], "
         "through a CNN."),
        ("fact", "observation['direction']: choices one-hot, 4 numbers, through a perceptron."),
        ("fact", "observation['plan']: an image of 2 x 4 x 4 (channels, height, width), [0, 1] scaled to [0, 1], "
         "through a CNN."),
        ("fact", "observation['speed']: 2 numbers, normalised, through a perceptron."),
    ]  # fmt: skip


def test_environments_that_influence_each_other_are_found() -> None:
    assert any("Environments influence each other" in s or "another observation" in s for s in found("shared")["fault"])


def test_a_reset_without_a_seed_is_found() -> None:
    said = [f.sentence for f in check_environment(f"{MODULE}:NoSeed", steps=50) if f.level == "fault"]
    assert said == ["reset must take a seed: def reset(self, *, seed=None, options=None)."]


SOUND = [
    TOYS, f"{MODULE}:Nested", f"{MODULE}:toy", "cartpole", "pendulum", "four-rooms", "garnet", "tile-chain",
    "regulator", "pointmaze-umaze", "chainmaze-umaze", "CartPole-v1", "Pendulum-v1", "gymnasium.envs:CartPole-v1",
    "gymnasium.envs:Pendulum-v1", "gymnasium.envs:FrozenLake-v1", "Hopper-v4",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_sound_environments_pass(name: str) -> None:
    findings = check_environment(name, steps=STEPS)
    assert not [f for f in findings if f.level != "fact"]
    assert {f.about for f in findings} - {"observation"} == {"spaces", "ends", "speed"}


# The verb


def test_the_verb_prints_what_it_found_and_exits_with_1(cli: Cli) -> None:
    answer = cli("check", TOYS, "--set", 'task.arguments={"fault": "nan reward"}', "--steps", 100)
    assert answer.code == 1
    assert "✗ fault" in answer.out and "The reward is nan: rewards must be finite numbers (step 5 of" in answer.out
    assert "1 fault: repair it first." in answer.out
    assert "Traceback" not in answer.err


def test_the_verb_says_how_to_go_on(cli: Cli) -> None:
    answer = cli("check", TOYS, "--steps", 100)
    assert answer.code == 0
    assert "No faults." in answer.out and "etude train ppo --task" in answer.out and "steps per second" in answer.out


def test_the_verb_does_not_praise_what_it_warned_of(cli: Cli) -> None:
    answer = cli("check", TOYS, "--set", 'task.arguments={"length": 60}', "--steps", 300)
    assert answer.code == 0 and "1 warning, no fault. Train on it with:" in answer.out
    assert "No faults" not in answer.out


def test_the_verb_takes_an_id_with_the_module_that_registers_it(cli: Cli) -> None:
    answer = cli("check", "gymnasium.envs:CartPole-v1", "--steps", 100)
    assert answer.code == 0 and "etude train ppo --task gymnasium.envs:CartPole-v1" in answer.out


def test_the_verb_prints_json(cli: Cli) -> None:
    answer = cli("check", "cartpole", "--steps", 100, "--json")
    assert answer.code == 0
    assert {f["about"] for f in json.loads(answer.out)} == {"spaces", "ends", "speed"}


@pytest.mark.slow
def test_a_users_own_file(cli: Cli, tmp_path: Path) -> None:
    """As in the documentation, in an empty folder."""
    source = Path(__file__).parents[2] / "docs" / "examples" / "tank.py"
    (tmp_path / "tank.py").write_text(source.read_text())
    answer = cli("check", "tank.py:Tank", "--steps", 500)
    assert answer.code == 0 and "etude train ppo --task tank.py:Tank" in answer.out
    broken = source.read_text().replace("0.5, 0\n", "0.5, 1 / 0\n")
    (tmp_path / "broken.py").write_text(broken)
    line = next(n for n, text in enumerate(broken.splitlines(), 1) if "1 / 0" in text)
    answer = cli("check", "broken.py:Tank", "--steps", 500)
    assert answer.code == 1
    assert (
        "reset raised ZeroDivisionError: division by zero (" in answer.out and f"broken.py, line {line}" in answer.out
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("CartPole-v9",), "Did you mean 'CartPole-v1'"),
        (("cartpol",), "Did you mean 'cartpole'"),
        (("nothing.py:Tank",), "There is no file nothing.py"),
        (("cartpole", "--steps", "0"), "--steps must be at least 1, got 0"),
    ],
)
def test_what_is_no_environment_is_refused(cli: Cli, args: tuple[str, ...], sentence: str) -> None:
    answer = cli("check", *args)
    assert answer.code == 2 and sentence in answer.sentence


@pytest.mark.slow
def test_a_reward_of_one_completion_at_a_time_is_checked_as_a_reward(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "async def long(completion, answer):\n    return float(len(completion))\n\n\n"
        "def bad(completion):\n    return float('nan')\n"
    )
    answer = cli("check", "own.py:long")
    assert answer.code == 0 and "No faults." in answer.out, answer.sentence
    answer = cli("check", "own.py:bad")
    assert answer.code == 1 and "returned nan" in answer.out
