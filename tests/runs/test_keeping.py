"""Which checkpoints stay, how large they are, and that each of them is enough to go on from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import etude
from etude.core.errors import CheckpointError, ConfigError, UnknownNameError
from etude.policies.fingerprint import fingerprint
from etude.policies.language import LanguagePolicy
from etude.runtime.checkpoints import load_tensors
from etude.runtime.jsonl import JsonLines
from etude.runtime.looks import Look
from language_toys import random_model, tokenizer

SMALL = {"problems": 2, "experience.size": 4, "optimizer.lr": 1e-2}
KL = {**SMALL, "regularizers": "kl-to-reference"}
TOLD: dict[str, Any] = {"evaluate": 0, "quiet": True, "set": SMALL}
TIMED = ("seconds", "tokens_per_second", "seconds/experience", "seconds/update")


def plain(run: etude.Result) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in TIMED} for line in run.metrics]


def steps(folder: Path) -> list[int]:
    return sorted(int(p.name[5:]) for p in (folder / "checkpoints").glob("step-*"))


def size(checkpoint: Path) -> int:
    return sum(p.stat().st_size for p in checkpoint.rglob("*.safetensors"))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of which a tensor is much larger than a header."""
    folder = tmp_path_factory.mktemp("start")
    random_model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


# How many


@pytest.mark.slow
@pytest.mark.parametrize("keep", [1, 3])
def test_so_many_stay(keep: int, tmp_path: Path) -> None:
    run = etude.train("grpo", out=tmp_path / "run", steps=5, checkpoint_every=1, keep=keep, **TOLD)
    assert steps(run.folder) == list(range(6 - keep, 6))


@pytest.mark.slow
def test_the_best_stays_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores 0.1, 0.6, 0.6, 0.2, 0.3 after steps 1 to 5: of step 2, also in a run that was stopped in between."""
    from etude.runs.worlds import language

    scores = {1: 0.1, 2: 0.6, 3: 0.6, 4: 0.2, 5: 0.3}
    real = language.look

    def look(*given: Any) -> Look:
        return real(*given)._replace(means={"test": {"pass@1": scores[given[0].finished]}})

    monkeypatch.setattr(language, "look", look)
    told = {**TOLD, "evaluate": 2, "evaluate_samples": 1, "evaluate_every": 1, "keep": 1, "keep_best": "test/pass@1"}
    whole = etude.train("grpo", out=tmp_path / "whole", steps=5, checkpoint_every=5, **told)
    assert steps(whole.folder) == [2, 5]
    etude.train("grpo", out=tmp_path / "half", steps=3, checkpoint_every=5, **told)
    assert steps(tmp_path / "half") == [2, 3]
    resumed = etude.resume(tmp_path / "half", steps=5, quiet=True)
    assert steps(resumed.folder) == [2, 5] and plain(resumed) == plain(whole)
    assert [line["step"] for line in JsonLines.read(resumed.folder / "evaluations.jsonl")] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"keep": 0}, ConfigError, r"keep must be a whole number of at least 1, got 0"),
        (
            {"keep_best": "test/pas@1", "evaluate_every": 1, "evaluate": 2},
            UnknownNameError,
            r"Did you mean 'test/pass",
        ),
        ({"keep_best": "test/pass@1"}, ConfigError, r"test/pass@1 is known after an evaluation: say how often with"),
    ],
)
def test_what_cannot_be_kept(
    options: dict[str, Any], error: type[Exception], sentence: str, tmp_path: Path
) -> None:  # fmt: skip
    with pytest.raises(error, match=sentence):
        etude.train("grpo", out=tmp_path / "run", steps=1, **{**TOLD, **options})
    assert not (tmp_path / "run").exists()


# How large


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "bytes_each"), [("float32", 4), ("bfloat16", 2)])
def test_each_tensor_is_saved_once(dtype: str, bytes_each: int, start: Path, tmp_path: Path) -> None:
    """Three float32 numbers for each weight: two moments and the weight, or its master with the model in its dtype."""
    told = {**TOLD, "set": KL, "dtype": dtype}
    run = etude.train("grpo", model=str(start), out=tmp_path / "run", steps=1, **told)
    count = sum(p.numel() for p in random_model().parameters())
    largest = 3 * 4 * count + (0 if bytes_each == 4 else bytes_each * count)
    assert 0.98 * largest < size(run.checkpoint) < 1.15 * largest  # a header, and heads, of a tiny model
    names = load_tensors(run.checkpoint / "state.safetensors").keys()
    assert not any(k.startswith("reference.") for k in names), "it is the start"
    assert any(k.startswith("model.") for k in names) == (dtype == "bfloat16")


@pytest.mark.slow
def test_a_reference_that_moves_adds_its_size(start: Path, tmp_path: Path) -> None:
    told = {**TOLD, "model": str(start), "steps": 1}
    frozen = etude.train("grpo", out=tmp_path / "a", **{**told, "set": KL})
    moving = {**KL, "reference": "moving-average"}
    moved = etude.train("grpo", out=tmp_path / "b", **{**told, "set": moving})
    weights = 4 * sum(p.numel() for p in random_model().parameters())
    assert size(moved.checkpoint) - size(frozen.checkpoint) == pytest.approx(weights, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("reference", ["frozen", "moving-average"])
def test_what_is_not_saved_comes_back_exactly(dtype: str, reference: str, tmp_path: Path) -> None:
    told = {**TOLD, "set": {**KL, "reference": reference}, "dtype": dtype}
    whole = etude.train("grpo", out=tmp_path / "whole", steps=2, **told)
    etude.train("grpo", out=tmp_path / "half", steps=1, **told)
    resumed = etude.resume(tmp_path / "half", steps=2, quiet=True)
    assert any(line["gradient_norm"] > 0 for line in plain(whole)), "something is learned"
    assert plain(resumed) == plain(whole)
    for name in ("state.safetensors", "model/model.safetensors"):
        assert (whole.checkpoint / name).read_bytes() == (resumed.checkpoint / name).read_bytes()


@pytest.mark.slow
def test_the_start_is_named_by_its_fingerprint(tmp_path: Path) -> None:
    """A reference that is not saved has to be what it was; a run is not gone on with on another one."""
    folder = tmp_path / "start"
    random_model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    run = etude.train("grpo", model=str(folder), out=tmp_path / "run", steps=1, **{**TOLD, "set": KL})
    said = json.loads((run.checkpoint / "state.json").read_text())["counters"]["reference"]
    assert said == list(fingerprint(LanguagePolicy.load(str(folder), device="cpu").model.parameters()))
    other = random_model()
    with torch.no_grad():
        next(other.parameters()).add_(0.5)
    other.save_pretrained(folder)
    with pytest.raises(CheckpointError, match=r"The model that this run started from is its reference, and is no"):
        etude.resume(run.folder, steps=2, accept_changes=True, quiet=True)


@pytest.mark.slow
def test_the_size_is_said_before_the_run(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {**TOLD, "set": KL, "quiet": False, "model": str(start), "steps": 1}
    run = etude.train("grpo", out=tmp_path / "a", keep=3, **told)
    line = next(x for x in capsys.readouterr().err.splitlines() if x.startswith("Checkpoints take about"))
    said = float(line.split("about ")[1].split()[0]) * {"kB": 1e3, "MB": 1e6}[line.split("about ")[1].split()[1]]
    assert said == pytest.approx(size(run.checkpoint), rel=0.15) and "each, and 3 stay" in line
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    etude.train("grpo", out=tmp_path / "b", **told)
    assert "more than the 1 kB that are free" in capsys.readouterr().err.replace("\n", " ")
