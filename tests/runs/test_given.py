"""What Python gives instead of a name: environments, rows, loaded models, tasks, rewards."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

import etude
from etude.core.errors import CheckpointError, ConfigError, DataError
from etude.runs import given
from etude.tasks.control import _names
from etude.tasks.control.environment import EnvironmentTask

ROWS = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(1, 9)]
SMALL = {"experience.steps": 8, "experience.environments": 2}


class Corridor(gym.Env):
    """Go right."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length: int = 4) -> None:
        self.length, self.at = length, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.at += int(action)
        return np.full(1, self.at / self.length, np.float32), float(action), self.at >= self.length, False, {}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = dict(_names.GIVEN)
    yield
    _names.GIVEN.clear()
    _names.GIVEN.update(before)


def controlled(task: object, out: str, **options: Any) -> etude.Result:
    told = {"set": SMALL, "steps": 32, "seeds": 2, "evaluate": 0, "quiet": True} | options
    return etude.train("ppo", task, out=out, **told)


def weights(folder: Path) -> bytes:
    (newest,) = sorted(folder.glob("checkpoints/step-*"), key=lambda p: int(p.name.split("-")[1]))[-1:]
    return (newest / "policy.safetensors").read_bytes()


# Environments


@pytest.mark.slow
def test_a_class_of_a_module_gets_its_name_and_resumes_by_it(tmp_path: Path) -> None:
    result = controlled(Corridor, "run")
    config = json.loads((result.folder / "config.json").read_text())
    assert config["task"] == f"{__name__}:Corridor"
    etude.resume("run", steps=64, quiet=True)
    assert etude.resume("run", steps=64, quiet=True).steps == 4


@pytest.mark.slow
def test_a_factory_trains_as_the_class_does_and_is_asked_for_again(tmp_path: Path) -> None:
    def short() -> gym.Env:
        return Corridor(3)

    result = controlled(short, "factory")
    named = controlled(EnvironmentTask(f"{__name__}:Corridor", arguments={"length": 3}), "named")
    assert weights(result.folder) == weights(named.folder)
    assert json.loads(Path("factory/config.json").read_text())["task"] == "<short>"
    assert "return Corridor(3)" in Path("factory/sources/given/task.py").read_text()
    with pytest.raises(CheckpointError, match=r"the task <short>.*etude\.resume\('factory', task=short\)"):
        etude.resume("factory", steps=64, quiet=True)

    def longer() -> gym.Env:
        return Corridor(5)

    with pytest.raises(CheckpointError, match=r"source of the task <short> is not what factory was trained with"):
        etude.resume("factory", steps=64, task=longer, quiet=True)
    etude.resume("factory", steps=64, task=short, quiet=True)
    etude.resume("named", steps=64, quiet=True)
    assert weights(result.folder) == weights(named.folder)
    with pytest.raises(ConfigError, match=r"named knows its task by name, .*Corridor: leave task out"):
        etude.resume("named", steps=96, task=short, quiet=True)
    etude.resume("factory", steps=96, task=longer, accept_changes=True, quiet=True)
    assert "Corridor(5)" in Path("factory/sources/given/task.py").read_text()


def test_the_source_of_a_lambda_is_its_own_expression_and_of_a_partial_its_arguments() -> None:
    one, other = lambda: Corridor(3), lambda: Corridor(4)
    again = [
        lambda: Corridor(3)
    ][0]  # fmt: skip
    assert given.source_of(one) == given.source_of(again) == "lambda: Corridor(3)\n"
    assert given.source_of(other) == "lambda: Corridor(4)\n"
    three, four = functools.partial(Corridor, 3), functools.partial(Corridor, length=4)
    assert given.source_of(three).startswith("class Corridor(gym.Env):")
    assert given.source_of(three).endswith("# with 3\n") and given.source_of(four).endswith("# with length=4\n")


@pytest.mark.slow
def test_a_lambda_that_is_written_elsewhere_resumes_and_evaluates(tmp_path: Path) -> None:
    controlled(lambda: TimeLimit(Corridor(3), 20), "run")
    with pytest.raises(CheckpointError, match=r"etude\.resume\('run', task=lambda: \.\.\.\)"):
        etude.resume("run", steps=64, quiet=True)
    with pytest.raises(ConfigError, match=r"etude\.evaluate\('run', task=lambda: \.\.\.\)"):
        etude.evaluate("run", episodes=1)
    with pytest.raises(CheckpointError, match="is not what run was trained with"):
        etude.resume("run", task=lambda: TimeLimit(Corridor(4), 20), quiet=True)
    assert etude.resume("run", steps=64, task=lambda: TimeLimit(Corridor(3), 20), quiet=True).steps == 4
    assert etude.evaluate("run", task=lambda: TimeLimit(Corridor(3), 20), episodes=1)["test"]


def test_what_gymnasium_made_is_called_by_its_id(tmp_path: Path) -> None:
    where = tmp_path / "given"
    assert given.task_of(gym.make("CartPole-v1"), where) == "CartPole-v1"
    assert given.task_of(gym.make("Pendulum-v1", g=9.0), where) == EnvironmentTask("Pendulum-v1", arguments={"g": 9.0})
    wrapped = gym.wrappers.ClipReward(gym.make("Pendulum-v1"), -1.0, 1.0)
    task = given.task_of(wrapped, where)
    assert isinstance(task, EnvironmentTask) and task.environment == "<Pendulum-v1>"
    assert isinstance(task.single(), gym.wrappers.ClipReward)
    shorter = given.task_of(gym.make("CartPole-v1", max_episode_steps=7), where)
    assert isinstance(shorter, EnvironmentTask)
    assert shorter.single().spec.max_episode_steps == 7  # type: ignore[union-attr]  # made by gym.make


def test_two_factories_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    tasks = [given.task_of(lambda n=n: Corridor(n), tmp_path) for n in (2, 6)]
    assert [t.id for t in tasks if isinstance(t, EnvironmentTask)] == ["<lambda>", "<lambda 2>"]
    assert [t.single().unwrapped.length for t in tasks] == [2, 6]  # type: ignore[union-attr]  # tasks of environments


@pytest.mark.parametrize(
    ("thing", "sentence"),
    [
        (Corridor(), r"Corridor was given as one that is made already.*lambda: Corridor\(\.\.\.\)"),
        (gym.make_vec("CartPole-v1", 2), "made already, and many are needed"),
        (lambda: 3, r"<lambda> is a function that returns int \(3\); it must return a gymnasium\.Env"),
        (int, r"<int> is no class of gymnasium\.Env, nor a function"),
        (3, "A task is its name, a Task, an environment's class.*got int"),
    ],
)
def test_what_is_no_task(thing: object, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        given.task_of(thing, tmp_path)


# Rows


def test_rows_are_kept_under_a_name_that_their_content_decides(tmp_path: Path) -> None:
    first = given.task_of(ROWS, tmp_path / "given")
    assert given.task_of(iter(ROWS), tmp_path / "given") == first
    assert given.task_of(ROWS[:4], tmp_path / "given") != first
    assert [json.loads(line) for line in Path(str(first)).read_text().splitlines()] == ROWS
    assert len(list((tmp_path / "given").iterdir())) == 2


def test_rows_by_split(tmp_path: Path) -> None:
    folder = given.task_of({"train": ROWS[:6], "test": ROWS[6:]}, tmp_path / "given")
    task = etude.task(str(folder))
    assert {s: len(task.problems(s)) for s in task.splits()} == {"train": 6, "test": 2}
    with pytest.raises(DataError, match=r"Rows by split are train, test, validation.*got tran"):
        given.task_of({"tran": ROWS}, tmp_path)


@pytest.mark.slow
def test_a_dataset_of_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_list(ROWS)
    assert given.task_of(whole, tmp_path) == given.task_of(ROWS, tmp_path)
    folder = given.task_of(whole.train_test_split(test_size=2, seed=0), tmp_path)
    assert len(etude.task(str(folder)).problems("test")) == 2


def test_a_pandas_frame_is_told_how_it_becomes_rows(tmp_path: Path) -> None:
    frame = pytest.importorskip("pandas").DataFrame(ROWS)
    with pytest.raises(DataError, match=r"of a pandas frame: frame\.to_dict\('records'\)"):
        etude.train("grpo", frame, out=tmp_path / "run")
    assert given.task_of(frame.to_dict("records"), tmp_path) == given.task_of(ROWS, tmp_path)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (["2+2="], r"row 0 is a str; rows are dicts with a prompt \(of a pandas frame: frame\.to_dict\('records'\)\)"),
        ([{"prompt": "a", "image": b"x"}], "row 0 has bytes in its column 'image', which JSON cannot hold"),
        ([{"prompt": "a", "weight": float("nan")}], "row 0 has float in its column 'weight'"),
    ],
)
def test_rows_that_cannot_be_kept(rows: list[Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=sentence):
        given.task_of(rows, tmp_path / "given")
    assert list((tmp_path / "given").iterdir()) == []


@pytest.mark.slow
def test_rows_train_evaluate_and_resume(tmp_path: Path) -> None:
    options = {"set": {"problems": 2, "experience.size": 4, "task.max_tokens": 4}, "evaluate": 2, "quiet": True}
    result = etude.train("grpo", ROWS, steps=1, out="there/run", **options)
    assert Path("there/given").is_dir()
    assert etude.resume("there/run", steps=2, quiet=True).steps == 2
    assert set(etude.evaluate(result.folder, ROWS, problems=2, samples=2, k=1)) == {"test"}


# Models


@pytest.mark.slow
def test_a_loaded_model_trains_as_the_named_one_does(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from etude.policies.loading import resolve

    where = resolve("tiny")
    loaded, tokenizer = AutoModelForCausalLM.from_pretrained(where), AutoTokenizer.from_pretrained(where)
    options = {"set": {"problems": 2, "experience.size": 4}, "steps": 1, "evaluate": 0, "quiet": True}
    one = etude.train("grpo", model=loaded, tokenizer=tokenizer, out="one", **options)
    two = etude.train("grpo", model="tiny", out="two", **options)
    assert [{k: v for k, v in m.items() if not k.startswith(("seconds", "tokens"))} for m in one.metrics] == [
        {k: v for k, v in m.items() if not k.startswith(("seconds", "tokens"))} for m in two.metrics
    ]
    assert json.loads(Path("one/config.json").read_text())["model"].startswith("given/model-")
    etude.resume("one", steps=2, quiet=True)
    with pytest.raises(ConfigError, match="A loaded model needs its tokenizer"):
        etude.train("grpo", model=loaded, **options)
    with pytest.raises(ConfigError, match="The tokenizer of tiny is the one in its folder"):
        etude.train("grpo", model="tiny", tokenizer=tokenizer, **options)
    with pytest.raises(ConfigError, match="model must be a name or a causal language model of transformers, got int"):
        etude.train("grpo", model=3, **options)


# Tasks and rewards


def test_a_task_with_fields_is_named_with_them(tmp_path: Path) -> None:
    from etude.tasks.language.sums import Sums

    assert given.named(Sums(terms=(3, 4))) == ("sums", ["task.terms=3,4"])
    assert given.named(EnvironmentTask("CartPole-v1", arguments={"sutton_barto_reward": True})) == (
        "CartPole-v1",
        ['task.arguments={"sutton_barto_reward": true}'],
    )


def test_compare_says_what_its_processes_cannot_be_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="processes of their own, which cannot be given the task <lambda>"):
        etude.compare(["ppo", "a2c"], lambda: Corridor())
    with pytest.raises(ConfigError, match=r"cannot be given the reward <.*<lambda>>"):
        etude.compare(["grpo", "dr-grpo"], reward=lambda completions: [0.0])
