"""Several adapters over one base: its tensors are there once, and every number is that of a copy of its own."""

from __future__ import annotations

import copy
import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import etude
from etude.core.errors import ConfigError
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.policies import bases
from etude.policies.adapters import Adapter
from etude.policies.language import LanguagePolicy
from etude.rewards.model import RewardModel
from language_toys import random_batch, random_model, tokenizer

pytest.importorskip("peft")
BATCH = random_batch((3, 1, 2), turns=2)
TOLD: dict[str, Any] = {"evaluate": 0, "quiet": True, "steps": 2, "adapter": Adapter(rank=2)}
SMALL = {"problems": 2, "experience.size": 4, "optimizer.lr": 1e-3}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    random_model().save_pretrained(tmp_path / "m")
    tokenizer().save_pretrained(tmp_path / "m")
    return tmp_path / "m"


def adapter_over(saved: Path, out: Path, seed: int) -> Path:
    """The folder of an adapter that is not the base."""
    policy = LanguagePolicy.load(str(saved), device="cpu", adapter=Adapter(rank=2), stream=Stream(seed))
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)), alpha=0.3)
    policy.updated()
    policy.add_value_head().weight.data.fill_(0.1 * seed)
    policy.save(out)
    return out


def frozen(policy: LanguagePolicy) -> set[int]:
    """Where the tensors of its base lie."""
    return {p.data_ptr() for name, p in policy.model.named_parameters() if "lora_" not in name}


def load(folder: Path, **said: Any) -> LanguagePolicy:
    return LanguagePolicy.load(str(folder), device="cpu", **said)


@pytest.mark.slow
def test_the_base_is_there_once_and_numbers_are_those_of_copies(saved: Path, tmp_path: Path) -> None:
    folders = [adapter_over(saved, tmp_path / f"a{seed}", seed) for seed in (1, 2)]
    gc.collect()
    assert not bases.ORIGINALS, "nobody is left"
    alone = []
    for folder in folders:
        one = load(folder, fold=False)
        alone.append((one.evaluate(BATCH, {"values"}), one.reference_logp(BATCH)))
        del one
        gc.collect()
    together = [*(load(folder, fold=False) for folder in folders), load(saved, adapter=Adapter(rank=3))]
    assert frozen(together[0]) == frozen(together[1]) == frozen(together[2]) and len(bases.ORIGINALS) == 1
    assert frozen(load(saved)).isdisjoint(frozen(together[0])), "a model that may be trained has tensors of its own"
    for policy, (out, reference) in zip(together, alone):
        now = policy.evaluate(BATCH, {"values"})
        assert torch.equal(now.logp, out.logp) and torch.equal(now.values, out.values)
        assert torch.equal(policy.reference_logp(BATCH), reference)
    assert not torch.equal(alone[0][0].logp, alone[1][0].logp)
    assert torch.equal(alone[0][1], load(saved).evaluate(BATCH).logp), "switched off it is the base"


@pytest.mark.slow
def test_training_one_moves_no_other(saved: Path, tmp_path: Path) -> None:
    other, trained = load(adapter_over(saved, tmp_path / "a", 1), fold=False), load(saved, adapter=Adapter(rank=2))
    before, base = other.evaluate(BATCH).logp, copy.deepcopy(load(saved).model.state_dict())
    optimizer = torch.optim.SGD(trained.parameters(), lr=1.0)
    for _ in range(2):
        optimizer.zero_grad()
        trained.evaluate(BATCH).logp.sum().backward()
        optimizer.step()
        trained.updated()
    trained.merged(), other.merged()
    assert torch.equal(other.evaluate(BATCH).logp, before)
    original = next(iter(bases.ORIGINALS.values()))
    assert all(torch.equal(v, original.state_dict()[k]) for k, v in base.items())
    assert not torch.equal(trained.evaluate(BATCH).logp, trained.reference_logp(BATCH))


@pytest.mark.slow
def test_a_base_that_was_written_again_is_loaded_again(saved: Path) -> None:
    first = load(saved, adapter=Adapter(rank=2))
    other = random_model()
    with torch.no_grad():
        other.get_output_embeddings().weight.mul_(2)
    other.save_pretrained(saved)
    second = load(saved, adapter=Adapter(rank=2))
    assert frozen(first).isdisjoint(frozen(second))
    assert not torch.equal(first.reference_logp(BATCH), second.reference_logp(BATCH))


@pytest.mark.slow
def test_a_reward_model_is_another_adapter_over_the_base(saved: Path, tmp_path: Path) -> None:
    folder = adapter_over(saved, tmp_path / "judge", 3)
    policy = load(saved, adapter=Adapter(rank=2), dtype="bfloat16")
    part = RewardModel(model=str(folder), weight=2.0).bind()
    scores = part.score(BATCH.episodes, Context(None, policy, Stream(0)))  # type: ignore[arg-type]
    scorer = part.made["scorer"]
    assert frozen(scorer) == frozen(policy) and scorer.model.dtype == torch.bfloat16
    assert len({*scores}) > 1


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("adapters")
    return [str(etude.train("grpo", seed=s, out=root / f"run-{s}", set=SMALL, **TOLD).folder) for s in (0, 1)]


@pytest.mark.slow
def test_several_runs_are_evaluated_over_one_base(runs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    load_model = bases.load_model
    monkeypatch.setattr(bases, "load_model", lambda name, *how: loaded.append(name) or load_model(name, *how))
    told: dict[str, Any] = {"k": (1, 2), "problems": 3, "split": "test"}
    gc.collect()
    both = etude.evaluate(runs, **told)
    assert len(loaded) == 1 and not any(bases.HELD)
    assert both == {run: etude.evaluate(run, **told) for run in runs}


@pytest.mark.slow
def test_what_is_trained_is_what_is_evaluated(tmp_path: Path) -> None:
    """The adapter beside its base, as it was sampled from in training, not folded into it."""
    told = TOLD | {"evaluate": 3, "evaluate_samples": 4}
    folder = etude.train("grpo", out=tmp_path / "run", set=SMALL, **told).folder
    after = json.loads((folder / "evaluation.json").read_text())["after"]["test"]
    now = etude.evaluate(folder, k=(1,), problems=3, samples=4, split="test")["test"]
    assert {k: now[k].value for k in ("pass@1", "reward")} == {k: after[k]["value"] for k in ("pass@1", "reward")}


@pytest.mark.slow
def test_what_is_asked_of_several_at_once(runs: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"--video is of one run: evaluate it alone"):
        etude.evaluate(runs, video="a.gif")
    with pytest.raises(ConfigError, match=r"Each checkpoint is evaluated once, got .*run-0, .*run-0"):
        etude.evaluate([runs[0], runs[0]])
