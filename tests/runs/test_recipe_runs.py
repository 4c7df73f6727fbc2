"""Recipes: a chain of runs equals those runs, however it is cut up and wherever it is stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import etude
from etude.core.errors import ConfigError, DataError
from etude.core.recipe import Recipe
from etude.policies.language import LanguagePolicy
from etude.runs.kinds.recipe import SEEDS_APART
from etude.runtime import checkpoints
from etude.stages.chain import Collect, Train

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = ("problems=2", "experience.size=4")
QUICK: dict[str, Any] = {"evaluate": 0, "quiet": True}
TIMINGS = ("seconds", "tokens_per_second", "steps_per_second", "run")


def chain(*runs: Train | Collect, repeat: int = 1) -> Recipe:
    return Recipe(id="chain", runs=runs, repeat=repeat)


def tensors(run: Path) -> dict[str, torch.Tensor]:
    """All that its newest checkpoint holds, the model among it."""
    newest, _ = checkpoints.newest(run / "checkpoints")
    files = sorted(newest.rglob("*.safetensors"))
    return {f"{f.relative_to(newest)}:{k}": v for f in files for k, v in checkpoints.load_tensors(f).items()}


def same(one: Path, other: Path) -> None:
    """Every weight, moment and number, bit for bit."""
    mine, theirs = tensors(one), tensors(other)
    assert list(mine) == list(theirs) and mine
    for name, value in mine.items():
        assert torch.equal(value, theirs[name]), name


def numbers(run: Path) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if not k.startswith(TIMINGS)} for line in lines]


@pytest.mark.first
@pytest.mark.parametrize(
    ("method", "task", "steps", "fields"),
    [("grpo", "compose", 3, SMALL),
     ("ppo", "cartpole", 600, ("experience.steps=32",)),
     ("dqn", "cartpole", 300, ("experience.warmup=100",))],
)  # fmt: skip
def test_a_chain_of_one_run_is_that_run(
    tmp_path: Path, method: str, task: str, steps: int, fields: tuple[str, ...]
) -> None:
    members = {} if task == "compose" else {"seeds": 2}
    whole = etude.train(method, task, steps=steps, seed=5, set=fields, preset=False, out=tmp_path / "run", **QUICK,
                        **members)  # fmt: skip
    recipe = chain(Train(called="only", method=method, steps=steps, set=fields))
    made = etude.train(recipe, task, seed=5, out=tmp_path / "chain", **QUICK, **members)
    same(whole.folder, made.folder / "01-only")
    assert numbers(whole.folder) == numbers(made.folder) == numbers(made.folder / "01-only")
    model = "model/model.safetensors" if task == "compose" else "policy.safetensors"
    assert (made.checkpoint / model).read_bytes() == (whole.checkpoint / model).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "task", "steps", "fields"),
    [("grpo+kl-to-reference", "compose", 2, (*SMALL, "optimizer.schedule=constant")),
     ("ppo", "cartpole", 512, ("experience.steps=32", "optimizer.schedule=constant")),
     ("dqn", "cartpole", 256, ("experience.warmup=100", "exploration.start=0.1", "exploration.end=0.1"))],
)  # fmt: skip
def test_two_runs_with_all_kept_are_one_longer_run(
    tmp_path: Path, method: str, task: str, steps: int, fields: tuple[str, ...]
) -> None:
    members = {} if task == "compose" else {"seeds": 2}
    name, *parts = method.split("+")
    whole = etude.train(name, task, steps=2 * steps, seed=5, set=fields, with_=parts, preset=False,
                        out=tmp_path / "run", **QUICK, **members)  # fmt: skip
    kept = {"optimizer": "keep", "reference": "keep"} if task == "compose" else {"optimizer": "keep"}
    first = Train(called="first", method=method, steps=steps, set=fields)
    made = etude.train(
        chain(first, first.replace(called="second", **kept)), task, seed=5, out=tmp_path / "chain", **QUICK, **members
    )
    same(whole.folder, made.folder / "02-second")
    assert numbers(whole.folder) == numbers(made.folder)


@pytest.mark.slow
def test_what_begins_anew_is_another_run(tmp_path: Path) -> None:
    first = Train(called="first", method="grpo+kl-to-reference", steps=1, set=SMALL)
    found = {}
    for anew in ({}, {"optimizer": "keep"}, {"reference": "keep"}, {"optimizer": "keep", "reference": "keep"}):
        name = "-".join(anew) or "none"
        made = etude.train(
            chain(first, first.replace(called="second", **anew)), "compose", out=tmp_path / name, **QUICK
        )
        found[name] = torch.cat(
            [v.flatten() for k, v in tensors(made.folder / "02-second").items() if k.startswith("model/")]
        )
    values = list(found.values())
    assert not any(torch.equal(a, b) for i, a in enumerate(values) for b in values[:i])


@pytest.mark.slow
def test_rounds_begin_from_each_other_with_seeds_of_their_own(tmp_path: Path) -> None:
    recipe = chain(Train(called="rl", method="grpo", steps=1, set=SMALL), repeat=3)
    made = etude.train(recipe, "compose", seed=7, out=tmp_path / "chain", **QUICK)
    configs = [json.loads((made.folder / f"0{n}-rl" / "config.json").read_text()) for n in (1, 2, 3)]
    assert [c["seed"] for c in configs] == [7, 7 + SEEDS_APART, 7 + 2 * SEEDS_APART]
    assert "01-rl" in configs[1]["model"] and "02-rl" in configs[2]["model"]
    assert [line["step"] for line in made.metrics] == [1, 2, 3] == [line["run"] for line in made.metrics]


class Killed(BaseException):
    """As a kill would: nothing is saved on the way."""


class KillAt(etude.Callback):
    """Ends the process, so to speak, after so many steps of all runs together."""

    left = 0

    def on_step(self, run: Any) -> None:
        KillAt.left -= 1
        if KillAt.left == 0:
            raise Killed


RL = Train(called="rl", method="grpo+kl-to-reference", steps=2, set=SMALL)
THREE = chain(
    Train(called="sft", method="sft", steps=1, set=("problems=4",)), RL,
    RL.replace(called="on", steps=1, optimizer="keep", reference="keep"),
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> etude.Result:
    """The three runs in one go."""
    return etude.train(THREE, "compose", out=tmp_path_factory.mktemp("whole"), **QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("kill", [1, 2, 3, 4])
def test_a_kill_anywhere_changes_nothing(tmp_path: Path, kill: int, whole: etude.Result) -> None:
    KillAt.left, out = kill, tmp_path / "killed"
    with pytest.raises(Killed):
        etude.train(THREE, "compose", out=out, callbacks=[KillAt()], checkpoint_every=1, **QUICK)
    again = etude.resume(out, quiet=True)
    for name in ("01-sft", "02-rl", "03-on", "."):
        same(whole.folder / name, out / name)
        assert numbers(whole.folder / name) == numbers(out / name)
    assert again.steps == whole.steps == 4 and (out / "FINISHED").is_file()


@pytest.mark.slow
def test_it_stops_for_now_after_so_many_steps_and_goes_on(tmp_path: Path) -> None:
    recipe = chain(*(Train(called=name, method="grpo", steps=2, set=SMALL) for name in ("a", "b")))
    whole = etude.train(recipe, "compose", out=tmp_path / "whole", **QUICK)
    for until in (2, 3):
        out = tmp_path / f"cut-{until}"
        stopped = etude.train(recipe, "compose", out=out, until=until, **QUICK)
        assert not (out / "FINISHED").exists() and stopped.notes
        assert (out / "02-b").exists() == (until == 3)
        etude.resume(out, quiet=True)
        same(whole.folder / "02-b", out / "02-b")
        assert numbers(whole.folder) == numbers(out)


@pytest.mark.slow
def test_completions_are_handed_on_as_worked_answers(tmp_path: Path) -> None:
    """Rejection sampling: what the policy got right is learned by imitation."""
    recipe = chain(
        Train(called="rl", method="grpo", steps=1, set=SMALL),
        Collect(called="right", problems=12, samples=4),
        Train(called="sft", method="sft", steps=1, task="{right}", begins="rl", set=("problems=2",)),
    )
    made = etude.train(recipe, "compose", out=tmp_path / "chain", **QUICK)
    rows = [json.loads(line) for line in (made.folder / "02-right" / "data.jsonl").read_text().splitlines()]
    task = etude.task("compose")
    pool = {p.prompt: p for p in (task.problems("train")[i] for i in range(12))}
    assert rows and all(task.answer(row["completion"]) == pool[row["prompt"]].answer for row in rows)
    assert (made.folder / "03-sft" / "FINISHED").is_file()


@pytest.mark.slow
def test_a_reward_model_is_handed_on_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is loaded once, however many steps ask it, and no checkpoint has a copy of it."""
    recipe = chain(
        Train(called="judge", method="reward-model", task="preferences", steps=1, set=("problems=4",)),
        Train(called="rl", method="grpo", steps=3, begins="start",
              set=("problems=2", "rewards=reward-model", "rewards.reward-model.model={judge}")),
    )  # fmt: skip
    loaded, load = list[str](), LanguagePolicy.load.__func__  # type: ignore[attr-defined]  # of a class method
    monkeypatch.setattr(
        LanguagePolicy, "load", classmethod(lambda cls, name, **how: (loaded.append(name), load(cls, name, **how))[1])
    )
    made = etude.train(recipe, "preferences", out=tmp_path / "chain", checkpoint_every=1, **QUICK)
    method = json.loads((made.folder / "02-rl" / "method.json").read_text())
    assert made.folder / "01-judge" in Path(method["rewards"][0]["model"]).parents
    assert [line["run"] for line in made.metrics] == [1, 2, 2, 2]
    assert [name for name in loaded if "01-judge" in str(name)] == [method["rewards"][0]["model"]]
    (file,) = Path(method["rewards"][0]["model"]).glob("value_head.safetensors")
    head = [value for value in checkpoints.load_tensors(file).values() if value.numel() > 1]
    files = sorted((made.folder / "02-rl" / "checkpoints").rglob("*.safetensors"))
    kept = [(f.name, name, value) for f in files for name, value in checkpoints.load_tensors(f).items()]
    assert len(head) == 1 and bool(head[0].any()) and len(kept) > 20
    assert not [file for file, *_ in kept if "value_head" in file]
    assert not any(value.shape == head[0].shape and torch.equal(value, head[0]) for *_, value in kept)


@pytest.mark.slow
def test_rounds_in_control_play_and_count_on(tmp_path: Path) -> None:
    recipe = chain(Train(called="rl", method="ppo", steps=512, set=("experience.steps=32",)), repeat=2)
    made = etude.train(recipe, "cartpole", seeds=2, evaluate=2, quiet=True, out=tmp_path / "r")
    assert [line["environment_steps"] for line in made.metrics] == [256, 512, 768, 1024]
    assert set(etude.evaluate(made.folder, episodes=2)["test"]) >= {"return"}


@pytest.mark.slow
def test_steps_are_divided_as_those_of_the_recipe(tmp_path: Path) -> None:
    made = etude.train("sft-then-grpo", "compose", steps=3, set=["problems=2", "experience.size=4"],
                       evaluate=2, evaluate_samples=1, evaluate_every=1, quiet=True, out=tmp_path / "r")  # fmt: skip
    steps = [json.loads((made.folder / name / "config.json").read_text())["steps"] for name in ("01-sft", "02-rl")]
    assert steps == [1, 2]
    looked = [json.loads(line)["step"] for line in (made.folder / "evaluations.jsonl").read_text().splitlines()]
    assert looked == [1, 2, 3] and set(made.evaluation) >= {"before", "after"}
    assert set(etude.evaluate(made.folder, problems=2, k=1)) == {"test", "heldout"}
    begun = etude.train("grpo", "compose", model=str(made.folder), steps=1, set=SMALL, out=tmp_path / "n", **QUICK)
    assert (begun.folder / "FINISHED").is_file()


@pytest.mark.slow
def test_data_without_what_a_method_learns_from_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plain.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    recipe = chain(GRPO, Train(called="sft", method="sft", steps=1, task=str(tmp_path / "plain.jsonl")))
    with pytest.raises(ConfigError, match="has no demonstration to learn from"):
        etude.train(recipe, "compose", out=tmp_path / "r", **QUICK)
    with pytest.raises(DataError, match=r"There is no .*gone\.jsonl"):
        etude.train(chain(GRPO.replace(task="gone.jsonl")), "compose", out=tmp_path / "r", **QUICK)
    never = chain(GRPO, Collect(called="right", problems=1, samples=1, task="compose", set=("task.levels=4",)))
    with pytest.raises(DataError, match=r"was right, so right has no data to hand on.*It is run 2 of 2"):
        etude.train(never, "compose", seed=3, out=tmp_path / "r", **QUICK)
    assert (tmp_path / "r" / "01-rl" / "FINISHED").is_file()


GRPO = Train(called="rl", method="grpo", steps=2, set=SMALL)


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        (chain(), "it has no runs"),
        (chain(GRPO, GRPO), "two runs are called rl"),
        (chain(GRPO.replace(begins="sft")), "the run rl is handed sft, which no run before it makes"),
        (chain(GRPO.replace(begins="b"), GRPO.replace(called="b", begins="start")),
         "the run rl is handed b, which is made after it: put b before it"),
        (chain(GRPO.replace(begins="b"), GRPO.replace(called="b", begins="rl")),
         "the runs rl and b wait for each other"),
        (chain(GRPO.replace(begins="rl")), "the runs rl and rl wait for each other"),
        (chain(GRPO.replace(task="{rows}")), "the run rl is handed rows, which no run before it makes"),
        (chain(GRPO.replace(optimizer="keep")), "keeps the optimizer, and no run before it has one"),
        (chain(GRPO, GRPO.replace(called="b", begins="start", reference="keep")), "keeps the reference"),
        (chain(GRPO, Collect(called="rows"), GRPO.replace(called="b", begins="rows")),
         "begins from rows, which trains no policy"),
        (chain(GRPO.replace(method="grpoo")), "no method named 'grpoo'"),
        (chain(GRPO.replace(set=("optimizer.rate=1",))), "no field of AdamW named 'rate'"),
        (chain(GRPO.replace(task="sumz")), "no task named 'sumz'"),
        (chain(Train(called="judge", method="reward-model", task="preferences"), GRPO),
         "begins from judge, which trains what does not act"),
        (chain(Train(called="acts", method="ppo", task="cartpole"), GRPO), "the one cannot begin the other"),
        (chain(GRPO.replace(steps=1000), GRPO.replace(called="b")), "would have none: give the recipe more"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path: Path, recipe: Recipe, sentence: str) -> None:
    with pytest.raises((ConfigError, DataError), match=sentence.replace("(", r"\(")):
        etude.train(recipe, "compose", steps=4, out=tmp_path / "r", **QUICK)
    assert not (tmp_path / "r").exists()
