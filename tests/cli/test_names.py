"""What nobody has is answered with the closest names, exit code 2, no traceback, and no folder."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path

import pytest
from command import Cli

import etude
from etude.cli.train import train

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
    (["train", "--task", "reasoning-gym:chain_sums"], "Did you mean 'chain_sum'"),
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
    (["pretrain", "tiny-agnt"], "Did you mean 'tiny-agent'"),
]
RANGES = [
    (["--steps", "0"], "steps must be a whole number of at least 1 or none, got 0"),
    (["--seed", "-1"], "seed must be a whole number of at least 0, got -1"),
    (["--seeds", "0"], "--seeds must be at least 1, got 0"),
    (["--evaluate", "-1"], "evaluate must be a whole number of at least 0 or none, got -1"),
    (["--checkpoint-every", "0"], "checkpoint_every must be a whole number of at least 1 or none, got 0"),
    (["--micro-tokens", "0"], "micro_tokens must be a whole number of at least 1 or none, got 0"),
    (["--threads", "0"], "threads must be a whole number of at least 1 or none, got 0"),
    (["--dtype", "f32"], "dtype must be one of 'auto', 'float32', 'bfloat16', 'float64', got 'f32'"),
    (["--adapter", "loraa"], "adapter must be one of 'lora', 'rslora', 'dora', 'qlora' or none, got 'loraa'"),
    (["--device", "gpu"], "device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got 'gpu'"),
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
FLAGS = {
    "--population": (["ppo", "--task", "cartpole", "--population", "lr"], "is no FIELD=VALUE,VALUE,... of this method"),
    "--after": (["--after", "nowhere"], "nowhere is no run that another could go on after"),
    "--anew": (["--anew", "optimizer"], "give after=RUN"),
    "--out": (["--out", "/dev/null/run"], "The folder /dev/null/run cannot be made: Not a directory"),
    "--config": (["--config", "none.toml"], "There is no file none.toml"),
    "--data": (["sac", "--task", "Pendulum-v1", "--data", "none.npz"], "sac acts, and would not read the logs"),
    "--heldout": (
        ["td3-bc", "--task", "pendulum", "--data", "a.npz", "--heldout", "b.npz"], "heldout is for what cannot be"
    ),
    "--columns": (["--columns", "prompt=x"], "--columns sets it, which means nothing here: leave it out"),
    "--answer": (["--answer", "boxed"], "--answer sets it, which means nothing here: leave it out"),
    "--skip-bad-rows": (["--skip-bad-rows"], "--skip-bad-rows sets it, which means nothing here"),
    "--stream": (["--stream"], "--stream sets it, which means nothing here: leave it out"),
    "--chat": (["--chat", "sometimes"], "compose.chat must be one of 'auto', 'always', 'never', got 'sometimes'"),
    "--system": (["--system", "none.txt"], "The system's message cannot be read from none.txt: No such file"),
    "--template-arguments": (["--template-arguments", "thinking"], "takes NAME=VALUE, as in enable_thinking=false"),
    "--tools": (["ppo", "--task", "cartpole", "--tools", "calculator"], "--tools sets it, which means nothing here"),
    "--reward": (["ppo", "--task", "cartpole", "--reward", "a.py:f"], "in control the environment rewards"),
    "--evaluate-samples": (["--evaluate-samples", "0"], "evaluate_samples must be a whole number of at least 1"),
    "--evaluate-split": (["--evaluate-split", "tset"], "Did you mean 'test'? compose has no other"),
    "--evaluate-temperature": (["--evaluate-temperature", "-1"], "evaluate_temperature must be a number of at least 0"),
    "--evaluate-judge": (["--evaluate-judge", "self"], "evaluate_judge must be one of 'plain', 'self-ref' or none"),
    "--evaluate-every": (["--evaluate-every", "0"], "evaluate_every must be a whole number of at least 1 or none"),
    "--stop-when": (["--stop-when", "reward"], "What a run stops at must be a metric, one of >= <= > < and a number"),
    "--minutes": (["--minutes", "0"], "minutes must be a number above 0 or none, got 0"),
    "--until": (["--until", "0"], "until must be a whole number of at least 1 or none, got 0"),
    "--autocast": (["ppo", "--task", "cartpole", "--autocast"], "--autocast means nothing for cartpole"),
    "--gradient-checkpointing": (
        ["ppo", "--task", "cartpole", "--gradient-checkpointing"], "--gradient-checkpointing means nothing for cartpole"
    ),
    "--on": (["--on", "mars"], "--on must be local, processes, ray, hogwild, or one of them with the number"),
    "--bound": (["--bound", "-1"], "bound must be a whole number of at least 0 or none, got -1"),
    "--engine": (["--engine", "mars"], "--engine must be native:http://127.0.0.1:8000"),
    "--ranks": (["--ranks", "0"], "ranks must be a whole number of at least 1 or none, got 0"),
    "--shard": (["--shard"], "give ranks of at least two (--ranks 2 --shard), or leave it out"),
    "--keep": (["--keep", "0"], "keep must be a whole number of at least 1, got 0"),
    "--keep-best": (["--keep-best", "test/pas@1", "--evaluate-every", "1"], "Did you mean 'test/pass@1'"),
    "--callback": (["--callback", "none.py:Slack"], "There is no file none.py"),
}  # fmt: skip
"""Flags of `train` that the lists above leave out."""
WITHOUT = {"--preset", "--quiet", "--model"}
"""Two that nothing refuses, and one with a test of its own."""
VERBS = [
    (["evaluate", "tiny", "--task", "compose", "--seed", "-1"], "seed must be a whole number of at least 0, got -1"),
    (["evaluate", "tiny", "--task", "compose", "--temperature", "-1"], "temperature must be a number of at least 0"),
    (["evaluate", "tiny", "--task", "compose", "--top-p", "0"], "top_p must be a number in (0, 1], got 0"),
    (["evaluate", "tiny", "--task", "compose", "--episodes", "3"], "--episodes means nothing for compose"),
    (["evaluate", "tiny", "--task", "compose", "--gamma", "2"], "gamma must be a number in [0, 1], got 2"),
    (["evaluate", "tiny", "--task", "compose", "--axes", "plann"], "Did you mean 'plan'"),
    (["compare", "grpo", "dr-grpo", "--evaluate", "0"], "evaluate must be a whole number of at least 1, got 0"),
    (["tune", "grpo", "--over", "optimizer.lr=1,2", "--seeds", "0"], "seeds must be a whole number of at least 1"),
    (["tune", "grpo", "--over", "optimizer.lr=1..2", "--budget", "1"], "--budget is how many settings are tried"),
    (["tune", "grpo", "--over", "optimizer.lr=1,2", "--metric", "pas@1"], "Did you mean 'pass@1'"),
    (["export", "nowhere", "x"], "nowhere is no run, nor a checkpoint in one"),
    (["tasks", "show", "compose", "--count", "-1"], "count must be a whole number of at least 0, got -1"),
    (["new", "tsk", "mine"], "Did you mean 'task'"),
    (["new", "task", "1-2"], "A name has letters, digits, '-' and '_', and begins with a letter"),
    (["check", "cartpole", "--steps", "0"], "--steps must be at least 1, got 0"),
    (["data", "info", "none.npz"], "There is nothing at none.npz"),
    (["data", "make", "cartpole", "--out", "x", "--levels", "expart"], "Did you mean 'expert'"),
    (["museum", "run", "nothing"], "There is no exhibit named 'nothing'"),
    (["beds", "show", "nothing"], "There is no bed named 'nothing'"),
    (["studies", "run", "lite-ppo", "--seeds", "0"], "A study needs at least 2 seeds"),
    (["train", "--resume", "nowhere", "--seed", "3"], "--resume goes on with the run as it was started"),
]


def test_a_refusal_of_every_flag_of_train_is_tried() -> None:
    tried = [*OFFERS, *OTHERS, *RANGES, *FLAGS.values()]
    names = {f"--{name.strip('_').replace('_', '-')}" for name in inspect.signature(train).parameters}
    seen = {word for args, _ in tried for word in args} | WITHOUT
    assert not names - seen - {"--method", "--task"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "sentence"),
    [*OFFERS, *OTHERS, *VERBS, *((["train", *flags], said) for flags, said in [*RANGES, *FLAGS.values()])],
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


def test_a_warning_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours without the line of the library that it comes from; those of others as Python shows them."""
    from etude.cli import main

    said: list[str] = []

    def app(_: object) -> None:
        for file, kind in (
            (etude.__file__, UserWarning),
            ("/else/where.py", UserWarning),
            (etude.__file__, FutureWarning),
        ):
            said.append(warnings.formatwarning("It is inert.", kind, file, 3))

    monkeypatch.setattr("etude.cli.app.app", app)
    monkeypatch.setattr("sys.argv", ["etude"])
    before = warnings.formatwarning
    main()
    assert said[0] == "etude: warning: It is inert.\n"
    assert said[1] == "/else/where.py:3: UserWarning: It is inert.\n"
    assert said[2].endswith("etude/__init__.py:3: FutureWarning: It is inert.\n")
    assert warnings.formatwarning is before
