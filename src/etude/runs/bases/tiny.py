"""`tiny`: a small Llama that has the single skills of the built-in tasks, and is careless with the rest.

It learns worked examples, completions only. What reinforcement learning is meant to teach is shown rarely or badly,
so that sampling finds it now and then:

    compose    every function alone, perfectly; chains of two and three (training pairs only) by a worker who mostly
               stops early, mixes up the order or takes a wrong function
    sums       two and three terms; few of four
    countdown  right expressions
    attr-20q   games of a player who asks at random and guesses too soon
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from etude.core.episodes import Segment
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.policies.byte_tokenizer import build_tokenizer
from etude.policies.measure import Score, measure
from etude.runs.bases.base import Base
from etude.tasks.agents.attr_20q import Attr20Q, scripted_episode
from etude.tasks.language.compose import Compose, careless
from etude.tasks.language.countdown import Countdown
from etude.tasks.language.sums import Sums

RIGHT = 0.12
"""Share of the shown chains that are as intended (more give the right answer: many functions commute)."""


# What is shown


def examples(seed: int, scale: float = 1.0) -> Iterator[list[Segment]]:
    """The worked examples, in order. `scale` multiplies how many there are (130,000)."""
    seed += 1  # the tasks' own default pools are drawn with seed 0
    yield from _shown(Compose(levels=(1,), seed=seed), int(64_000 * scale))
    yield from _chains(Compose(levels=(2,), seed=seed), int(9_000 * scale))
    yield from _chains(Compose(levels=(3,), seed=seed), int(3_000 * scale))
    yield from _shown(Sums(terms=(2,), seed=seed), int(3_000 * scale))
    yield from _shown(Sums(terms=(3,), seed=seed), int(10_000 * scale))
    yield from _shown(Sums(terms=(4,), seed=seed), int(500 * scale))
    yield from _shown(Countdown(seed=seed), int(8_000 * scale))
    for hints in (4, 5, 6, 7):
        yield from _games(Attr20Q(hints=hints, max_turns=3), seed, int(6_000 * scale), guessing=1.0, attention=1.0)
    yield from _games(Attr20Q(), seed, int(16_000 * scale), guessing=0.4, attention=0.6)


def _shown(task: Compose | Sums | Countdown, count: int) -> Iterator[list[Segment]]:
    pool = task.problems("train")
    for i in range(count):
        problem = pool[i]
        yield [Segment("user", str(problem.prompt)), Segment("assistant", str(task.demonstration(problem)))]


def _chains(task: Compose, count: int) -> Iterator[list[Segment]]:
    pool, random = task.problems("train"), Stream(task.seed).split("careless", *task.levels).numpy
    for i in range(count):
        yield [Segment("user", str(pool[i].prompt)), Segment("assistant", careless(pool[i], random, RIGHT))]


def _games(task: Attr20Q, seed: int, count: int, guessing: float, attention: float) -> Iterator[list[Segment]]:
    pool, random = task.problems("train"), Stream(seed).split("games", task.hints)
    for i in range(count):
        yield scripted_episode(task, pool[i % len(pool)], random.split(i), guessing, attention)


# What is said about it


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


CARD = """# tiny

The base model of etude's built-in language tasks: a Llama with {parameters:,} parameters ({bytes:,} bytes in
bfloat16) and a byte-level tokenizer, small enough to train by reinforcement learning on a laptop in a minute.
It has the single skills of the tasks and is careless with the rest; `runs/bases/tiny.py` says what it was shown.

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

Every completion ends with `<|end|>`; there is no token at the start. Licence: Apache-2.0,
as etude's.
"""

TINY = Base(
    id="tiny", tokenizer=build_tokenizer, examples=examples, scores=scores, columns=("pass@1", "pass@8", "mean reward"),
    cells=lambda s: (f"{s.pass_at_1:.3f}", f"{s.pass_at_n:.3f}", f"{s.reward:.3f}"), card=CARD,
)  # fmt: skip
