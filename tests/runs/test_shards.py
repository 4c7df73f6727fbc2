"""`--shard`: weights, gradients and moments divided among ranks, and the run of one process all the same."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import etude
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.errors import CheckpointError, ConfigError, InvariantError, WorkerError
from etude.core.registry import get_method
from etude.learners.value_model import ValueModel
from etude.loops.team import Team
from etude.objectives.policy_gradient import ClippedSurrogate
from etude.policies import shards
from etude.policies.language import LanguagePolicy
from etude.runs.ranks import check
from etude.runs.training import Options
from etude.runtime import divided, round_trip
from etude.runtime.checkpoints import load_tensors, save_tensors
from etude.stages.phases import Phase
from etude.tasks import resolve_task
from language_toys import random_model, random_policy
from rank_toys import GRPO, SMALL, assert_alike, killed, saved, trained

pytestmark = pytest.mark.usefixtures("one_thread", "forked_roles")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[etude.Result]:
    """What one process comes to."""
    return trained("grpo", tmp_path_factory.mktemp("whole") / "run", GRPO)


@pytest.mark.slow
def test_divided_weights_come_to_the_checkpoint_of_one_process(whole: etude.Result, tmp_path: Path) -> None:
    """And each rank writes about half of the moments, beside a model that is whole."""
    run = trained("grpo", tmp_path / "run", GRPO, ranks=2, shard=True)
    assert_alike(whole, run)
    files = sorted((run.checkpoint / "ranks").glob("*.safetensors"))
    sizes = [sum(t.nbytes for t in load_tensors(file).values()) for file in files]
    moments = sum(t.nbytes for name, t in saved(whole).items() if "exp_avg" in name)
    assert len(files) == 2 and sum(sizes) == moments and 0.49 < sizes[0] / moments < 0.51
    assert not any("exp_avg" in name for name in load_tensors(run.checkpoint / "state.safetensors"))
    LanguagePolicy.load(str(run.checkpoint / "model"), device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ppo", "dpo"])
def test_a_value_head_and_pairs_too(method: str, tmp_path: Path) -> None:
    """The pairs with layers that compute again what they do not keep."""
    more: dict[str, Any] = {"gradient_checkpointing": method == "dpo"}
    changes = ["problems=4", *(["critic=token-critic"] if method == "ppo" else [])]
    one, two = (trained(method, tmp_path / str(n), changes, **more, **o) for n, o in enumerate((
        {}, {"ranks": 2, "shard": True}
    )))  # fmt: skip
    assert_alike(one, two)


@pytest.mark.slow
def test_a_run_goes_on_divided_among_others_and_whole_again(whole: etude.Result, tmp_path: Path) -> None:
    trained("grpo", tmp_path / "run", GRPO, ranks=2, shard=True, until=1)
    etude.resume(tmp_path / "run", ranks=3, until=2, quiet=True)
    assert len([*(tmp_path / "run/checkpoints/step-2/ranks").glob("*.safetensors")]) == 3
    run = etude.resume(tmp_path / "run", ranks=1, quiet=True)
    assert not (run.checkpoint / "ranks").exists()
    assert_alike(whole, run)


@pytest.mark.slow
def test_a_run_is_divided_later(whole: etude.Result, tmp_path: Path) -> None:
    trained("grpo", tmp_path / "run", GRPO, until=1)
    run = etude.resume(tmp_path / "run", ranks=2, shard=True, quiet=True)
    assert (run.checkpoint / "ranks").exists() and json.loads((run.folder / "config.json").read_text())["shard"] is True
    assert_alike(whole, run)


@pytest.mark.slow
def test_a_divided_run_in_16_bits_goes_on_as_if_it_never_had_stopped(tmp_path: Path) -> None:
    """Its float32 masters are in the ranks' files."""
    own: dict[str, Any] = {"ranks": 2, "shard": True, "dtype": "bfloat16"}
    never = trained("grpo", tmp_path / "never", GRPO, **own)
    trained("grpo", tmp_path / "run", GRPO, until=1, **own)
    run = etude.resume(tmp_path / "run", quiet=True)
    assert_alike(never, run, atol=0.0)
    tensors = saved(run)
    masters = [name for name in tensors if name.startswith("model.")]
    assert masters
    for name in masters:
        assert tensors[name].dtype == torch.float32
        assert torch.equal(tensors[name].bfloat16(), tensors[f"model/{name.removeprefix('model.')}"])


@pytest.mark.slow
def test_a_rank_that_is_killed_in_a_pass_stops_the_run_which_goes_on(
    whole: etude.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead, teams, evaluate = Team.lead, list[Team](), LanguagePolicy.evaluate_together

    def led(self: Team, model: Any, lesson: Any, step: int, learn: Any) -> Any:
        teams.append(self)
        return lead(self, model, lesson, step, learn)

    def asked(self: LanguagePolicy, *args: Any) -> Any:
        said = evaluate(self, *args)
        if len(teams) == 2:
            killed(teams[-1])
        return said

    monkeypatch.setattr(Team, "lead", led)
    monkeypatch.setattr(LanguagePolicy, "evaluate_together", asked)
    with pytest.raises(WorkerError, match=r"Other rank 1 of 1 .*lost its process.* The run is safe at step 1 "):
        trained("grpo", tmp_path / "run", GRPO, ranks=2, shard=True)
    monkeypatch.undo()
    assert_alike(whole, etude.resume(tmp_path / "run", ranks=1, quiet=True))


@pytest.mark.slow
def test_the_first_rank_fails_alone_and_nobody_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the other waits for it in a pass."""
    evaluate, pids = LanguagePolicy.evaluate_together, list[int]()

    def asked(self: LanguagePolicy, *args: Any) -> Any:
        evaluate(self, *args)
        raise InvariantError("No more.")

    def led(self: Team, *told: Any) -> Any:
        pids.append(self.executor.pool.workers[0].process.pid)  # type: ignore[attr-defined]
        return lead(self, *told)

    lead = Team.lead
    monkeypatch.setattr(Team, "lead", led)
    monkeypatch.setattr(LanguagePolicy, "evaluate_together", asked)
    with pytest.raises(InvariantError, match="No more"):
        trained("grpo", tmp_path / "run", GRPO, ranks=2, shard=True)
    (pid,) = pids
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


class OnlyHere(ClippedSurrogate):
    """One that fails on every rank but the first."""

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> torch.Tensor:
        if torch.distributed.get_rank():
            raise InvariantError("Rows are gone.")
        return super().__call__(batch, policy)


@pytest.mark.slow
def test_another_rank_fails_alone_and_its_sentence_ends_the_run(tmp_path: Path) -> None:
    """While the first waits for it in a pass."""
    grpo: Any = get_method("grpo")
    method = grpo.replace(problems=4, objective=OnlyHere())
    with pytest.raises(WorkerError, match=r"Other rank 1 of 1 .*lost its process.*Rows are gone\..* safe at step 0 "):
        etude.train(method, "compose", out=str(tmp_path / "run"), **SMALL, ranks=2, shard=True)


@pytest.mark.slow
def test_a_stage_begins_anew_with_what_all_ranks_hold(tmp_path: Path) -> None:
    """The weights of the first stage are asked of all before their shards are given again."""
    grpo: Any = get_method("grpo")
    method = grpo.replace(problems=4, stages=(Phase(like="sft", end=0.5), Phase()))
    one, two = (
        etude.train(method, "compose", out=str(tmp_path / str(n)), **SMALL, **own)
        for n, own in enumerate(({}, {"ranks": 2, "shard": True}))
    )
    assert_alike(one, two)


@pytest.mark.slow
def test_who_cannot_be_divided_is_told_so() -> None:
    grpo, task, two = get_method("grpo"), resolve_task("compose"), Options(ranks=2, shard=True)
    check(grpo, task, two)
    for options in ({"shard": True}, {"shard": True, "ranks": 1}):
        with pytest.raises(ConfigError, match=r"give ranks of at least two \(--ranks 2 --shard\)"):
            Options(**options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="of an adapter these are few"):
        check(grpo, task, Options(ranks=2, shard=True, adapter="lora"))  # type: ignore[arg-type]
    ppo: Any = get_method("ppo")
    check(ppo, task, two)
    with pytest.raises(ConfigError, match=r"critic of ppo is a network of its own .* \(--set critic=token-critic\)"):
        check(ppo.replace(critic=ValueModel()), task, two)
    with pytest.raises(ConfigError, match="optimizer of oblr-po compares the gradients of two halves"):
        check(get_method("oblr-po"), task, two)
    with pytest.raises(ConfigError, match=r"(--ranks|--shard) means nothing for"):
        etude.train("ppo", "CartPole-v1", ranks=2, shard=True)


def test_models_that_cannot_be_divided_are_refused() -> None:
    model = random_model()
    shards.check(model)
    assert len(shards.layers(model)) == 2 and len(shards.layers(random_model("gpt2"))) == 2
    with pytest.raises(ConfigError, match=r"on a CPU alone for now, not on meta: give --device cpu"):
        shards.check(copy.deepcopy(model).to("meta"))
    frozen = copy.deepcopy(model)
    next(frozen.parameters()).requires_grad_(False)
    with pytest.raises(ConfigError, match="some of these are frozen"):
        shards.check(frozen)
    model.config.num_hidden_layers = 5
    with pytest.raises(ConfigError, match="LlamaForCausalLM has no one list of 5 layers"):
        shards.check(model)


def test_rounded_weights_move_no_reference() -> None:
    policy = random_policy(dtype=torch.bfloat16)
    policy.keep_reference()
    own = object.__new__(shards.Shards)
    own.dtype, own.weights, own.parameters = torch.bfloat16, dict(policy.model.named_parameters()), {}
    policy.weights.masters = own
    with pytest.raises(ConfigError, match=r"has them in 16 bits alone: train in --dtype float32"):
        policy.move_reference(0.5)


@pytest.mark.slow
def test_a_reference_that_moves_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="reference of grpo moves towards exact weights, and with --shard the first"):
        trained(
            "grpo", tmp_path / "run", (*GRPO, "reference=moving-average"), ranks=2, shard=True, dtype="bfloat16"
        )  # fmt: skip


def test_rows_of_all_ranks_are_a_tensor_again(tmp_path: Path) -> None:
    assert divided.read(tmp_path) == {}
    rows = torch.arange(10.0).view(5, 2)
    divided.write_index(tmp_path, 2, {"w": 5})
    for rank, own in enumerate((rows[:3], rows[3:])):
        divided.write(tmp_path, rank, 2, {"w": own})
    assert torch.equal(divided.read(tmp_path)["w"], rows)
    divided.write(tmp_path, 1, 2, {"w": rows[4:]})
    with pytest.raises(CheckpointError, match="4 of 5 rows of w: a rank's file is another run's"):
        divided.read(tmp_path)
    divided.write(tmp_path, 1, 2, {})
    with pytest.raises(CheckpointError, match="3 of 5 rows of w"):
        divided.read(tmp_path)


def test_what_comes_back_is_looked_at_wherever_it_is_written(tmp_path: Path) -> None:
    rows, two, three, one = torch.arange(12.0).view(6, 2), tmp_path / "two", tmp_path / "three", tmp_path / "one"
    for folder, count in ((two, 2), (three, 3), (one, 1)):
        folder.mkdir()
        save_tensors(folder / "state.safetensors", {"noise": torch.ones(1), **({"w": rows} if count == 1 else {})})
        for rank, own in enumerate(rows.chunk(count) if count > 1 else ()):
            divided.write_index(folder, count, {"w": 6})
            divided.write(folder, rank, count, {"w": own})
    for saved_, again in ((two, three), (two, one), (one, three), (two, two)):
        assert round_trip.unlike(saved_, again) == ""
    divided.write(three, 2, 3, {"w": rows[4:] + 1})
    assert round_trip.unlike(two, three) == "w in ranks"
    assert round_trip.unlike(one, three) == "w in state.safetensors"
    save_tensors(one / "state.safetensors", {"noise": torch.ones(1)})
    assert round_trip.unlike(two, one) == "w in ranks"
