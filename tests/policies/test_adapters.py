"""Adapters: fields from the shell, dropout, what a run saves of them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import etude
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.streams import Stream
from etude.policies.adapters import Adapter, adapter_of, base_of
from etude.policies.language import LanguagePolicy
from etude.runs.training import Options, with_adapter
from language_toys import random_batch, random_model, tokenizer

BATCH = random_batch((3, 1, 2), turns=2)
SMALL = {"problems": 2, "experience.size": 4, "optimizer.lr": 1e-3}
TIMED = ("seconds", "tokens_per_second", "seconds/experience", "seconds/update")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    random_model().save_pretrained(tmp_path / "m")
    tokenizer().save_pretrained(tmp_path / "m")
    return tmp_path / "m"


def test_fields_are_set_by_path() -> None:
    fields = ["adapter.rank=4", "adapter.alpha=8", "adapter.targets=q_proj,v_proj", "adapter.rank_stabilized=true"]
    wanted = Adapter(rank=4, alpha=8.0, targets="q_proj,v_proj", rank_stabilized=True)
    assert with_adapter(Options(), fields).adapter == wanted
    assert with_adapter(Options(adapter="dora"), ["adapter.rank=4"]).adapter == Adapter(rank=4, weight_decomposed=True)  # type: ignore[arg-type]
    assert with_adapter(Options(), []).adapter is None
    assert adapter_of(json.loads(json.dumps(wanted.fields()))) == wanted


@pytest.mark.parametrize(
    ("field", "error", "sentence"),
    [
        ("adapter.rnk=4", UnknownNameError, r"There is no field of Adapter named 'rnk'. Did you mean 'rank'"),
        ("adapter.rank=0", ConfigError, r"Adapter.rank must be a whole number of at least 1, got '0'"),
        ("adapter.rank", ConfigError, r"--set takes PATH=VALUE, as in adapter.rank=8; got 'adapter.rank'"),
        (
            "adapter.targets=q_prj",
            ConfigError,
            r"Adapter.targets names q_prj, and the model has no such module",
        ),
        ("adapter.dropout=0.1", ConfigError, r"grpo compares what its samples .* adapter.dropout makes these two"),
    ],
)
def test_fields_that_cannot_be(field: str, error: type[Exception], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=sentence):
        etude.train("grpo", steps=1, evaluate=0, set=[field], out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_reference_that_moves_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"The reference of t1 moves \(MovingAverage\), and with an adapter"):
        etude.train("t1", adapter="lora", steps=1, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_what_is_no_adapter() -> None:
    with pytest.raises(
        ConfigError, match=r"adapter must be one of 'lora', 'rslora', 'dora', 'qlora' or none, got 'loraa'"
    ):
        Options(adapter="loraa")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"would drop out anew: adapter.dropout needs them kept"):
        etude.train("sft", steps=1, set={"adapter.dropout": 0.1}, gradient_checkpointing=True)


def plain(run: etude.Result) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in TIMED} for line in run.metrics]


@pytest.mark.slow
def test_a_run_with_an_adapter_is_repeated_and_resumed(saved: Path, tmp_path: Path) -> None:
    """With the fields that were set, from its file and from its checkpoint."""
    told: dict[str, Any] = dict(evaluate=0, quiet=True, set={**SMALL, "adapter.rank": 2, "adapter.alpha": 4.0})
    whole = etude.train("grpo", steps=3, adapter="rslora", out=tmp_path / "whole", **told)
    file = tomllib.loads((tmp_path / "whole" / "run.toml").read_text())
    assert file["adapter"] == "rslora" and file["set"]["adapter.rank"] == 2 and file["set"]["adapter.alpha"] == 4.0
    assert plain(etude.train(config=tmp_path / "whole" / "run.toml", out=tmp_path / "b", quiet=True)) == plain(whole)
    etude.train("grpo", steps=2, adapter="rslora", out=tmp_path / "half", **told)
    resumed = etude.resume(tmp_path / "half", steps=3, quiet=True)
    weights = [r.checkpoint / "model" / "adapter_model.safetensors" for r in (whole, resumed)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    config = json.loads((whole.checkpoint / "model" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["use_rslora"]) == (2, 4.0, True)
    assert set(etude.evaluate(whole.folder, problems=2, k=(1,), split="test")) == {"test"}


@pytest.mark.slow
def test_a_base_that_is_gone_is_named(saved: Path, tmp_path: Path) -> None:
    policy = LanguagePolicy.load(str(saved), device="cpu", adapter=Adapter(rank=2))
    policy.save(tmp_path / "out")
    assert base_of(tmp_path / "out") == str(saved.resolve())
    saved.rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"out holds an adapter for .*/m, which is not there: put it back"):
        LanguagePolicy.load(str(tmp_path / "out"), device="cpu")


# Dropout


@pytest.mark.slow
def test_dropout_is_on_where_something_is_learned_and_only_there(saved: Path) -> None:
    def load(dropout: float, seed: int = 0) -> LanguagePolicy:
        adapter = Adapter(rank=2, dropout=dropout)
        policy = LanguagePolicy.load(str(saved), device="cpu", adapter=adapter, stream=Stream(seed))
        with torch.no_grad():
            for p in policy.parameters():
                p.fill_(0.05)
        return policy

    def seen(policy: LanguagePolicy) -> torch.Tensor:
        with torch.no_grad():
            return policy.evaluate(BATCH).logp

    never, half = load(0.0), load(0.5)
    before = torch.get_rng_state()
    assert torch.equal(seen(half), seen(never)) and torch.equal(seen(half), never.evaluate(BATCH).logp)
    learned = [half.evaluate(BATCH).logp.detach() for _ in range(2)]
    assert (learned[0] - seen(never)).abs().max() > 1e-3 and not torch.equal(*learned)
    assert torch.equal(torch.get_rng_state(), before), "nobody else's random numbers move"
    again, other = load(0.5), load(0.5, seed=1)
    assert torch.equal(again.evaluate(BATCH).logp, learned[0])
    assert not torch.equal(other.evaluate(BATCH).logp, learned[0])


@pytest.mark.slow
def test_dropout_in_fine_tuning_is_resumed_exactly(tmp_path: Path) -> None:
    told: dict[str, Any] = dict(evaluate=0, quiet=True, set={"problems": 4, "adapter.rank": 2, "adapter.dropout": 0.2})
    whole = etude.train("sft", steps=3, out=tmp_path / "whole", **told)
    etude.train("sft", steps=2, out=tmp_path / "half", **told)
    assert plain(etude.resume(tmp_path / "half", steps=3, quiet=True))[-1] == plain(whole)[-1]
