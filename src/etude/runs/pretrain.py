"""Making `tiny`: a small Llama that has the single skills of the built-in tasks, and is careless with the rest.

It learns worked examples, completions only. What reinforcement learning is meant to teach is shown rarely or badly,
so that sampling finds it now and then:

    compose    every function alone, perfectly; chains of two and three (training pairs only) by a worker who mostly
               stops early, mixes up the order or takes a wrong function
    sums       two and three terms; few of four
    countdown  right expressions
    attr-20q   games of a player who asks at random and guesses too soon
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.episodes import Problem, Segment
from etude.core.fields import Count, Positive, check
from etude.core.streams import Stream
from etude.policies.worked_examples import Row, accumulate, rows
from etude.tasks.agents.attr_20q import Attr20Q, scripted_episode
from etude.tasks.language.compose import FUNCTIONS, Compose, functions_of, trains, worked
from etude.tasks.language.countdown import Countdown
from etude.tasks.language.sums import Sums

if TYPE_CHECKING:
    from numpy.random import Generator
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    from etude.optimizers.population import Metrics

POSITIONS = 512
BATCH = 128
RATE = 2e-3
RIGHT = 0.12
"""Share of the shown chains that are as intended (more give the right answer: many functions commute)."""
MISTAKES = ("stop early",) * 3 + ("any function",) * 2 + ("outside in",)


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
        yield [Segment("user", str(pool[i].prompt)), Segment("assistant", careless(pool[i], random))]


def _games(task: Attr20Q, seed: int, count: int, guessing: float, attention: float) -> Iterator[list[Segment]]:
    pool, random = task.problems("train"), Stream(seed).split("games", task.hints)
    for i in range(count):
        yield scripted_episode(task, pool[i % len(pool)], random.split(i), guessing, attention)


def careless(problem: Problem, random: Generator) -> str:
    """A worked chain that is as intended in `RIGHT` of all cases.

    Otherwise it stops early, goes from the outside in, or takes any function for one of them; where that would show
    a pair of functions that is held out, it stops early too. Every single step is done correctly.
    """
    functions, text = list(functions_of(problem)), problem.info["input"]
    if random.random() < RIGHT:
        return worked(functions, text)
    early = functions[: int(random.integers(1, len(functions)))]
    match str(random.choice(MISTAKES)):
        case "stop early":
            functions = early
        case "any function":
            functions[int(random.integers(len(functions)))] = str(random.choice(list(FUNCTIONS)))
        case _:
            functions.reverse()
    return worked(functions if all(map(trains, functions, functions[1:])) else early, text)


# How it is learned


def architecture(vocabulary: int) -> Any:
    """Half a million parameters, as a Hugging Face configuration."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )


class Shown:
    """Rows that a model is shown, as what takes its steps sees them (`optimizers/model.py`)."""

    batch = None

    def __init__(self, model: LlamaForCausalLM, chosen: Sequence[Row]) -> None:
        self.model, self.chosen = model, chosen

    def gradient(self) -> Metrics:
        import torch

        return {"loss": torch.tensor([accumulate(self.model, self.chosen)], dtype=torch.float64)}

    def halves(self) -> None:
        return None


def learn(model: LlamaForCausalLM, data: Sequence[Row], steps: int, stream: Stream) -> float:
    """AdamW, warm-up and cosine, `BATCH` rows a step; returns the mean loss of the last tenth, in nats per token."""
    from rich.progress import track

    from etude.optimizers.adam import AdamW
    from etude.optimizers.model import ModelStepper

    stepper = ModelStepper(AdamW(lr=1.0, beta2=0.98, weight_decay=0.01), model.parameters())
    losses = []
    for step in track(range(steps), description="pre-training tiny"):
        rate = RATE * min(1.0, (step + 1) / 200) * (0.525 + 0.475 * math.cos(math.pi * step / steps))
        shown = Shown(model, [data[i] for i in stream.numpy.integers(len(data), size=BATCH)])
        losses.append(float(stepper.step(shown, rate)["loss"]))
    stepper.clear()
    tail = losses[-max(1, steps // 10) :]
    return sum(tail) / len(tail)


def pretrain(out: Path, seed: int = 0, steps: int = 2500, scale: float = 1.0, report: bool = True) -> dict[str, Any]:
    """Train `tiny` and write it to `out`: weights in bfloat16, tokenizer, and README.md with what was measured.

    Deterministic: the default arguments give the shipped weights, bit for bit on the same kind of processor.

    Args:
        out: a folder; made if it is not there.
        seed: of the examples, the first weights and the order.
        steps: optimizer steps.
        scale: factor on the number of examples.
        report: whether to measure the result (a minute).

    Returns: 'parameters', 'bytes' (of the weights), 'loss' (nats per token), 'seconds' (processor time, measuring
        left out) and 'scores' (a `measure.Score` by row of the table; empty without `report`).

    Raises: ConfigError if `steps` or `scale` is not positive.
    """
    import torch
    from transformers import LlamaForCausalLM

    from etude.policies.byte_tokenizer import build_tokenizer
    from etude.runs.tiny_card import scores, show, write_card

    check("pretrain: steps", Count, steps)
    check("pretrain: scale", Positive, scale)
    threads, started = torch.get_num_threads(), time.process_time()
    torch.set_num_threads(1)  # sums in another order would give other weights
    try:
        tokenizer = build_tokenizer(POSITIONS)
        data = rows(tokenizer, list(examples(seed, scale)))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = LlamaForCausalLM(architecture(len(tokenizer)))
        loss = learn(model, data, steps, Stream(seed).split("pretrain"))
        seconds = time.process_time() - started
        save(model, tokenizer, out)
        measured: dict[str, Any] = {
            "parameters": model.num_parameters(),
            "bytes": (out / "model.safetensors").stat().st_size,
            "loss": loss,
            "seconds": seconds,
            "scores": scores(out) if report else {},
        }
    finally:
        torch.set_num_threads(threads)
    write_card(out, seed, steps, measured)
    if report:
        show(measured["scores"])
    return measured


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write both in Hugging Face's format, the weights rounded to bfloat16."""

    model.bfloat16().save_pretrained(out)
    tokenizer.save_pretrained(out)
    settings = out / "tokenizer_config.json"
    known = json.loads(settings.read_text(encoding="utf-8"))
    known["tokenizer_class"] = "PreTrainedTokenizerFast"  # the name that every version of transformers knows
    settings.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
