"""The files that the documentation shows are the files that are there, and each of them runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import etude
from etude.core.edit import set_value, set_values
from etude.core.episodes import Problem
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.population import Member
from etude.core.registry import files, load_attribute
from etude.loops.off_policy import OffPolicyLoop

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXAMPLES = DOCS / "examples"
SHOWN = {
    "add-a-task.md": EXAMPLES / "sorting.py",
    "add-a-reward.md": EXAMPLES / "my_rewards.py",
    "add-a-method.md": EXAMPLES / "hard_first.py",
    "add-an-off-policy-method.md": EXAMPLES / "steady.py",
    "your-environment.md": EXAMPLES / "tank.py",
    "your-environment.md#with-turns-in-language": EXAMPLES / "second_try.py",
    "../README.md": files("methods")["dapo"],
}
QUICK = {"set": {"problems": 4}, "evaluate": 2, "quiet": True}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the examples in it, to work in as a reader would."""
    for path in EXAMPLES.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", SHOWN)
def test_pages_show_the_whole_file(page: str) -> None:
    """What is read is what runs."""
    text = SHOWN[page].read_text(encoding="utf-8").strip()
    assert f"```python\n{text}\n```" in (DOCS / page.partition("#")[0]).read_text(encoding="utf-8")


@pytest.mark.slow
def test_sorting_scores_and_divides(folder: Path) -> None:
    """Reward 1 for the digits in order only; the test side shares no prompt with the train side."""
    task = etude.task("sorting.py")
    problem = Problem("1", "sort 51342>", "12345")
    assert [task.score(problem, text) for text in ("12345", " 12345\n", "51342", "")] == [1, 1, 0, 0]
    assert {finding.level for finding in etude.check_task(task)} == {"fact"}
    short = task.replace(digits=2)  # a hundred prompts in all, so that any leak would show
    prompts = {split: {short.problems(split)[i].prompt for i in range(300)} for split in task.splits()}
    assert not prompts["train"] & prompts["test"]


@pytest.mark.slow
def test_sorting_is_learned_from_demonstrations_then_by_reinforcement(folder: Path) -> None:
    """The page's two runs, a step each: the second starts from the first one's checkpoint."""
    warm = etude.train("sft", "sorting.py", steps=1, out="warm", **QUICK)
    result = etude.train("grpo", "sorting.py", model=str(warm.checkpoint / "model"), steps=1, out="run", **QUICK)
    assert result.evaluation["before"]["test"] == warm.evaluation["after"]["test"]
    assert result.steps == 1


def test_reward_adds_up_its_components() -> None:
    """1 for the right last string, a hundredth off for each of the 11 characters."""
    score = load_attribute(f"{EXAMPLES / 'my_rewards.py'}:score")
    assert score(["f1:abc>f3:a", "f1:abc"], ["a", "x"]) == [
        {"right": 1.0, "length": pytest.approx(-0.11)},
        {"right": 0.0, "length": pytest.approx(-0.06)},
    ]


@pytest.mark.slow
def test_reward_trains_and_reports_its_components(folder: Path) -> None:
    """The components add up to the reward in the metrics."""
    result = etude.train("grpo", "compose", reward="my_rewards.py:score", steps=2, out="run", **QUICK)
    for line in result.metrics:
        total = line["reward/score/right"] + line["reward/score/length"]
        assert line["reward"] == pytest.approx(total, abs=1e-6)


def test_method_weighs_rows_by_what_their_group_failed(make_batch) -> None:
    """Groups solved 1/2 and 2/2 of the time weigh 1/2 and 0."""
    method = load_attribute(f"{EXAMPLES / 'hard_first.py'}:hard_first")
    batch = make_batch([[1]] * 4, scores=[1.0, 0.0, 1.0, 1.0], group=[0, 0, 1, 1])
    assert method.filters[0].weigh(batch).tolist() == [0.5, 0.5, 0.0, 0.0]
    assert list(method.diff(etude.method("grpo"))) == ["filters.failure-share"]


@pytest.mark.slow
def test_method_trains_by_the_name_of_its_file(folder: Path) -> None:
    """`etude train hard_first.py`."""
    assert etude.train("hard_first.py", "compose", steps=2, out="run", **QUICK).method == "hard-first"


@pytest.mark.slow
def test_a_policy_is_held_near_its_slow_copy(folder: Path) -> None:
    """w |mu(s) - mu'(s)|^2 with two numbers of an action; without weight the method is TD3, bit for bit."""
    from types import SimpleNamespace

    method = load_attribute("steady.py:steady")
    here, slow = torch.tensor([[[0.5, -0.5]]]), torch.tensor([[[0.25, 0.0]]])
    read = SimpleNamespace(policy=lambda copy=False: SimpleNamespace(actions=slow if copy else here))
    assert method.actor[1](read).item() == pytest.approx(0.25**2 + 0.5**2)
    assert list(method.diff(etude.method("td3"))) == ["actor.near-copy", "actor.near-copy.weight"]
    td3, free = etude.method("td3"), set_value(method, "actor.near-copy.weight=0")
    assert torch.equal(trained(free), trained(td3)) and not torch.equal(trained(method), trained(td3))
    with pytest.raises(ConfigError, match=r"NearCopy compares .* and it has none: set policy\.learning\.target"):
        check(set_value(method, "policy.learning.target=none"), etude.task("pendulum"))


def trained(method: Any) -> torch.Tensor:
    """Weights of the policy after eight updates with small networks."""
    small = {
        "experience.random": 16, "experience.warmup": 16, "experience.capacity": 64, "sampling.batch": 8,
        "policy.network.hidden": (4,), "critic.network.hidden": (4,),
    }  # fmt: skip
    loop = OffPolicyLoop(set_values(method, small), etude.task("pendulum"), [Member(0)], 1, block=24)
    loop.step()
    return loop.updater.trainers["policy"].parameters.values.clone()


def test_data_file_is_read(folder: Path) -> None:
    """Four rows on two levels; an answer counts wherever it is stated as the final one."""
    task = etude.task("capitals.jsonl")
    rows = [p for split in task.splits() for p in task.problems(split)]
    assert sorted((p.answer, p.level) for p in rows) == [
        ("Lima", "hard"), ("Nairobi", "hard"), ("Paris", "easy"), ("Tokyo", "easy"),
    ]  # fmt: skip
    assert task.score(Problem("1", "?", "Paris"), "Let me think.\nAnswer: Paris.") == 1.0


@pytest.mark.slow
def test_the_tank_is_checked_trained_and_exported(folder: Path) -> None:
    """The page's commands, in small."""
    from etude.evaluation.environment_check import check_environment

    assert not [f for f in check_environment("tank.py:Tank") if f.level == "fault"]
    small = {"experience.steps": 16, "epochs": 1}
    result = etude.train("ppo", "tank.py:Tank", steps=256, seeds=2, set=small, evaluate=2, quiet=True)
    assert result.score("return", when="before") > 0
    exported = etude.export(result.folder, "tank.pt2", member=1)
    actions = torch.export.load(exported).module()(torch.tensor([[0.5, 0.9], [0.5, 0.1], [0.2, 0.5]]))
    assert actions.shape == (3,)
    assert set(actions.tolist()) <= {0, 1, 2}


@pytest.mark.slow
def test_the_second_try_is_played_in_workers_as_in_this_process(folder: Path) -> None:
    """The page's commands, in small: the number of processes changes no number, and a run that was stopped goes on."""
    assert {finding.level for finding in etude.check_task("second_try.py")} == {"fact"}
    found = []
    for workers in (0, 1):
        small = {"problems": 2, "experience.size": 2, "task.workers": workers}
        result = etude.train("grpo", "second_try.py", steps=2, evaluate=1, set=small, out=f"run-{workers}", quiet=True)
        lines = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
        found.append([{k: v for k, v in line.items() if "second" not in k and k != "time"} for line in lines])
    assert found[0] == found[1] and len(found[0]) == 2 and found[0][-1]["prefilled_tokens"] > 0
