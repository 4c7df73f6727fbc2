"""What is said about `tiny`: the table of its scores and the README.md beside its weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etude.core.task import LanguageTask
from etude.policies.measure import Score, measure
from etude.tasks.agents.attr_20q import Attr20Q
from etude.tasks.language.compose import Compose
from etude.tasks.language.countdown import Countdown
from etude.tasks.language.sums import Sums


def table() -> dict[str, tuple[LanguageTask, str]]:
    """The rows: task and split by name."""
    compose = Compose()
    return {
        **{f"compose {split}": (compose, split) for split in compose.splits()},
        **{f"sums test, {n} terms": (Sums(terms=(n,)), "test") for n in (2, 3, 4, 5, 6)},
        "sums test": (Sums(), "test"),
        "countdown test": (Countdown(), "test"),
        "attr-20q train": (Attr20Q(), "train"),
        "attr-20q test": (Attr20Q(), "test"),
    }


def scores(folder: Path) -> dict[str, Score]:
    """Every row, measured on the weights in the folder (rounded as they are stored), computed in float32."""
    import torch
    from rich.progress import track
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = track(table().items(), description="measuring tiny")
    return {name: measure(model, tokenizer, task, split) for name, (task, split) in rows}


def show(scores: Mapping[str, Score]) -> None:
    """Print the table on the terminal."""
    from rich.console import Console
    from rich.table import Table

    shown = Table("task and split", "pass@1", "pass@8", "mean reward")
    for name, score in scores.items():
        shown.add_row(name, f"{score.pass_at_1:.3f}", f"{score.pass_at_n:.3f}", f"{score.reward:.3f}")
    Console().print(shown)


def write_card(folder: Path, seed: int, steps: int, scores: Mapping[str, Any]) -> None:
    """Write README.md."""
    lines = [f"| {k} | {s.pass_at_1:.3f} | {s.pass_at_n:.3f} | {s.reward:.3f} |" for k, s in scores["scores"].items()]
    text = CARD.format(seed=seed, steps=steps, rows="\n".join(lines), **{**scores, "scores": None})
    (folder / "README.md").write_text(text, encoding="utf-8")


CARD = """# tiny

The base model of etude's built-in language tasks: a Llama with {parameters:,} parameters ({bytes:,} bytes in
bfloat16) and a byte-level tokenizer, small enough to train by reinforcement learning on a laptop in a minute.
It has the single skills of the tasks and is careless with the rest; `policies/pretrain.py` says what it was shown.

Made by

    etude pretrain tiny

with seed {seed}: {steps:,} steps, {seconds:.0f} seconds of one core, final loss {loss:.4f} nats per token. The same
versions of torch and transformers on the same kind of processor give the same bytes.

128 problems, 8 samples each, temperature 1, float32 arithmetic on the stored weights:

| task and split | pass@1 | pass@8 | mean reward |
|---|---|---|---|
{rows}

    compose     f6(f1(x)) cab>          f1:abc>f6:cab
    sums        3+5+9+2=                8,17,19
    countdown   3,5,8->16:              (5-3)*8
    attr-20q    who? c1 e0              ask b1 (no), say K (yes)

Every completion ends with `<|end|>`; there is no token at the start.
"""
