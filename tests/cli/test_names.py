"""What nobody has is answered with the closest names, exit code 2, no traceback, and no folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Cli

OFFERS = [
    (["train", "grp"], "Did you mean 'grpo'"),
    (["train", "--task", "compse"], "Did you mean 'compose'"),
    (["train", "--stepz", "3"], "Did you mean --steps"),
    (["train", "--steps", "abc"], 'Invalid value for --steps: unable to convert "abc" into int'),
    (["train", "--set", "optimizer.lr=1", "optimzer.beta1=0.5"], "Did you mean 'optimizer'"),
    (["train", "--set", "optimzer.lr=1"], "Did you mean 'optimizer'"),
    (["train", "--set", "task.levelz=3"], "Did you mean 'levels'"),
    (["train", "--set", "task.levels"], "--set takes PATH=VALUE"),
    (["train", "--with", "kl-to-referense"], "Did you mean 'kl-to-reference'"),
    (["train", "--sink", "wandbb"], "Did you mean 'wandb'"),
    pytest.param(["train", "--task", "reasoning-gym:chain_sums"], "Did you mean 'chain_sum'", marks=pytest.mark.slow),
    (["train", "--reward", "score"], "must be 'module:name' or 'path/to/file.py:name', got 'score'"),
    (["train", "--reward", "none.py:score"], "There is no file none.py"),
    (["train", "none.py:grpo2"], "There is no file none.py"),
    (["train", "no_such_module:grpo2"], "Cannot import 'no_such_module'"),
    (["train", "--task", "none.jsonl"], "There is no file or folder none.jsonl"),
    (["train", "--resume", "nowhere"], "There is no run folder nowhere"),
    (["tran"], "Did you mean"),
    (["methods", "show", "grop"], "Did you mean 'grpo'"),
    (["tasks", "show", "compos"], "Did you mean 'compose'"),
    (["tasks", "show", "compose", "--split", "tset"], "Did you mean 'test'"),
    (["parts", "advantage"], "Did you mean 'advantages'"),
    (["claims", "run", "grop"], "Did you mean 'grpo'"),
    (["compare", "grpo", "dr-grp"], "Did you mean 'dr-grpo'"),
    (["compare", "grpo", "dr-grpo", "--metric", "pas@1"], "Did you mean 'pass@1'"),
    (["compare", "grpo", "dr-grpo", "--split", "tset"], "Did you mean 'test'"),
    (["evaluate", "tiny", "--task", "compose", "--split", "hold-out"], "Did you mean 'heldout'"),
    (["report", "nowhere"], "nowhere is not a run folder"),
    (["pretrain", "tinny"], "Did you mean 'tiny'"),
]
RANGES = [
    (["--steps", "0"], "steps must be a whole number of at least 1 or none, got 0"),
    (["--seed", "-1"], "seed must be a whole number of at least 0, got -1"),
    (["--seeds", "0"], "--seeds must be at least 1, got 0"),
    (["--evaluate", "-1"], "evaluate must be a whole number of at least 0 or none, got -1"),
    (["--checkpoint-every", "0"], "checkpoint_every must be a whole number of at least 1 or none, got 0"),
    (["--micro-tokens", "0"], "micro_tokens must be a whole number of at least 1, got 0"),
    (["--threads", "0"], "threads must be a whole number of at least 1 or none, got 0"),
    (["--dtype", "f32"], "dtype must be one of 'auto', 'float32', 'bfloat16', 'float64', got 'f32'"),
    (["--adapter", "loraa"], "adapter must be one of 'lora', 'rslora', 'dora', 'qlora' or none, got 'loraa'"),
    (["--device", "gpu"], "device must be 'auto', 'cpu', 'mps', 'cuda' or 'cuda:N', got 'gpu'"),
    (["--set", "experience.size=1"], "set experience.size to 2 or more"),
    (["--with", "gae"], "no critic learns"),
]
OTHERS = [
    (["train", "--accept-changes"], "give it with --resume DIR"),
    (["evaluate", "tiny"], "name one with --task"),
    (["evaluate", "tiny", "--task", "compose", "--k", "1,x"], "--k takes whole numbers with commas"),
    (["evaluate", "tiny", "--task", "compose", "--k", "0"], "--k takes numbers of at least 1"),
    (["evaluate", "tiny", "--task", "compose", "--k", "8", "--samples", "4"], "needs at least 8 samples"),
    (["evaluate", "tiny", "--task", "compose", "--problems", "0"], "problems must be a whole number of at least 1"),
    (["compare", "grpo"], "Comparing takes at least two methods"),
    (["compare", "grpo", "grpo"], "has one twice"),
    (["compare", "grpo", "dr-grpo", "--seeds", "0"], "seeds must be a whole number of at least 1, got 0"),
    (["compare", "grpo", "dr-grpo", "--workers", "0"], "workers must be a whole number of at least 1, got 0"),
    (["compare", "dpo", "reward-model", "--task", "preferences"], "reward-model trains a scorer"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "sentence"), [*OFFERS, *OTHERS, *((["train", *flags], sentence) for flags, sentence in RANGES)]
)
def test_refused_in_a_sentence(cli: Cli, tmp_path: Path, args: list[str], sentence: str) -> None:
    answer = cli(*args)
    assert answer.code == 2
    assert sentence in answer.sentence
    assert "Traceback" not in answer.err
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
    assert not list(tmp_path.glob("runs/*"))


def test_an_unknown_model_is_refused_at_once_without_a_network(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No minute of retries: whether the hub answers is asked once."""
    from huggingface_hub.utils import get_session

    from etude.policies import loading

    asked = []

    def unreachable(*args: object, **kwargs: object) -> None:
        asked.append(kwargs.get("timeout"))
        raise ConnectionError("no network")

    monkeypatch.setattr(get_session(), "head", unreachable)
    monkeypatch.setattr(get_session(), "request", unreachable)
    loading._hub_answers.cache_clear()
    try:
        answer = cli("train", "--model", "some-body/some-model", "--out", "run")
    finally:
        loading._hub_answers.cache_clear()
    assert answer.code == 2
    assert "no model 'some-body/some-model'" in answer.sentence
    assert "the hub cannot be reached" in answer.sentence
    assert len(asked) <= 1, "nothing was retried"
    assert not (tmp_path / "run").exists(), "nothing was trained, so nothing is left behind"
