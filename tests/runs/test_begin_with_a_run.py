"""`--model RUN`: a run that begins with what another one learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import etude
from etude.core.errors import ConfigError
from etude.core.worlds import World
from etude.runs.warm import start_of
from etude.runtime.checkpoints import load_tensors

SMALL = {"problems": 2, "experience.size": 4, "optimizer.lr": 1e-3}
TOLD: dict[str, Any] = {"evaluate": 0, "quiet": True, "set": SMALL}
SIZES = {
    "experience.environments": 2, "experience.steps": 16, "policy.network.hidden": "8", "critic.network.hidden": "8",
    "policy.observations": "normalize-observations",
}  # fmt: skip
CONTROL: dict[str, Any] = {"evaluate": 0, "quiet": True, "set": SIZES}


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return etude.train("grpo", out=tmp_path_factory.mktemp("l") / "run", steps=2, checkpoint_every=1, **TOLD).folder


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("c")
    return etude.train("ppo", "cartpole", out=root / "run", steps=64, seeds=2, **CONTROL).folder


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_tensors(run / "checkpoints" / f"step-{step}" / "policy.safetensors")


@pytest.mark.slow
def test_a_language_run_begins_with_the_newest_checkpoint(language: Path, tmp_path: Path) -> None:
    done = etude.train("grpo", model=str(language), out=tmp_path / "next", steps=1, **TOLD)
    used = language / "checkpoints" / "step-2" / "model"
    assert json.loads((tmp_path / "next" / "config.json").read_text())["model"] == str(used)
    begun = done.folder / "checkpoints" / "step-0" / "model" / "model.safetensors"
    assert begun.read_bytes() == (used / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_run_with_an_adapter_is_folded_into_its_base_and_all_of_it_is_trained(tmp_path: Path) -> None:
    first = etude.train("grpo", out=tmp_path / "lora", steps=1, adapter="lora", **TOLD).folder
    rows = [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(1, 9)]
    told = TOLD | {"set": {"problems": 4, "optimizer.lr": 1e-3}}
    done = etude.train("sft", rows, model=str(first), out=tmp_path / "next", steps=1, **told)
    begun, ended = (load_tensors(done.folder / f"checkpoints/step-{n}/model/model.safetensors") for n in (0, 1))
    assert {*begun} == {*ended} and not [name for name in begun if torch.equal(begun[name], ended[name])]


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over(language: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(language, copy)
    (copy / "checkpoints" / "step-2" / "model" / "model.safetensors").write_bytes(b"torn")
    found, notes = start_of(str(copy), World.LANGUAGE)
    assert found == str(copy / "checkpoints" / "step-1" / "model")
    assert "step-2 is damaged: model/model.safetensors has 4 bytes" in notes[0] and "Going back to step-1" in notes[1]


def test_a_name_that_is_no_run_is_left_as_it_is(language: Path) -> None:
    checkpoint = language / "checkpoints" / "step-1"
    assert start_of(str(checkpoint), World.LANGUAGE)[0] == str(checkpoint / "model")
    assert [start_of(name, World.LANGUAGE)[0] for name in ("tiny", "Qwen/Qwen3-0.6B", str(checkpoint / "model"))] == [
        "tiny", "Qwen/Qwen3-0.6B", str(checkpoint / "model"),
    ]  # fmt: skip


@pytest.mark.slow
def test_members_begin_with_the_policies_of_another_run(control: Path, tmp_path: Path) -> None:
    """Networks, normalisers and the critic, member by member; the optimizer begins anew."""
    step = max(int(p.name[5:]) for p in (control / "checkpoints").glob("step-*"))
    again = etude.train("ppo", "cartpole", model=str(control), out=tmp_path / "a", steps=32, seeds=2, **CONTROL)
    there, here = weights(control, step), weights(again.folder, 0)
    assert there.keys() == here.keys() and all(torch.equal(here[k], there[k]) for k in there)
    counted = [k for k in here if k.startswith("policy.transforms")]
    assert counted and any(here[k].any() for k in counted), "and they had learned"
    resumed = etude.train(config=again.folder / "run.toml", out=tmp_path / "b", quiet=True)
    assert all(
        torch.equal(a, b) for a, b in zip(weights(again.folder, 1).values(), weights(resumed.folder, 1).values())
    )


@pytest.mark.slow
def test_one_member_is_where_all_may_begin(control: Path, tmp_path: Path) -> None:
    one = etude.train("ppo", "cartpole", out=tmp_path / "one", steps=32, seeds=1, **CONTROL).folder
    many = etude.train("ppo", "cartpole", model=str(one), out=tmp_path / "many", steps=32, seeds=3, **CONTROL).folder
    there, here = weights(one, 1), weights(many, 0)
    assert all(torch.equal(here[k], there[k].expand_as(here[k])) for k in here)
    with pytest.raises(ConfigError, match=r"has 2 members and this run has 3: give --seeds 2, or begin with a run of"):
        etude.train("ppo", "cartpole", model=str(control), out=tmp_path / "x", steps=32, seeds=3, **CONTROL)
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_another_critic_begins_anew(control: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = {**CONTROL, "quiet": False, "set": {**SIZES, "critic.network.hidden": "16"}}
    run = etude.train("ppo", "cartpole", model=str(control), out=tmp_path / "a", steps=32, seeds=2, **told).folder
    assert "The critic begins anew: critic." in capsys.readouterr().err
    here, there = weights(run, 0), weights(control, 2)
    assert all(torch.equal(here[k], there[k]) for k in here if k.startswith("policy."))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "sizes", "sentence"),
    [
        (
            "cartpole",
            {"policy.network.hidden": "16"},
            r"run: policy.body.layers.0.weight is \[4, 8\] there and \[4, 16\] here",
        ),
        ("pendulum", {}, r"cannot begin this run: policy\.\S+ is (\[.*\] there and \[|only here|only there)"),
    ],
)
def test_a_policy_that_does_not_fit_is_refused_by_tensor(
    control: Path, tmp_path: Path, task: str, sizes: dict[str, str], sentence: str
) -> None:
    told = {**CONTROL, "set": {**SIZES, **sizes}}
    method = "ppo" if task == "cartpole" else "ppo-continuous"
    with pytest.raises(ConfigError, match=sentence):
        etude.train(method, task, model=str(control), out=tmp_path / "x", steps=32, seeds=2, **told)


def test_runs_of_another_world_are_refused(language: Path, control: Path) -> None:
    with pytest.raises(ConfigError, match=r"run is a run of control, and a language model cannot begin with it"):
        etude.train("grpo", model=str(control), steps=1, **TOLD)
    for name in (str(language), "models/none"):
        with pytest.raises(ConfigError, match=r"is no run of control, nor a checkpoint in one: in control --model"):
            etude.train("ppo", "cartpole", model=name, steps=32, **CONTROL)
