"""Making a base model: a small Llama learns worked examples, completions only.

`runs/bases/` says of each what it is shown.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.fields import Count, Positive, check
from etude.core.streams import Stream
from etude.policies.worked_examples import Row, accumulate, rows
from etude.runs.bases import TINY, Base
from etude.runs.bases.card import show, write_card

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    from etude.optimizers.population import Metrics

POSITIONS = 512
RATE = 2e-3


def architecture(vocabulary: int, layers: int = TINY.layers, spread: float = TINY.spread) -> Any:
    """Half a million parameters, as a Hugging Face configuration; with a fourth layer a third more."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=POSITIONS,
        initializer_range=spread,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )


class Shown:
    """Rows that a model is shown, as what takes its steps sees them (`optimizers/model.py`)."""

    batch = None

    def __init__(self, model: LlamaForCausalLM, chosen: Sequence[Row], cuts: Sequence[float]) -> None:
        self.model, self.chosen, self.cuts = model, chosen, cuts

    def gradient(self) -> Metrics:
        import torch

        return {"loss": torch.tensor([accumulate(self.model, self.chosen, self.cuts)], dtype=torch.float64)}

    def halves(self) -> None:
        return None


def learn(base: Base, model: LlamaForCausalLM, data: Sequence[Row], steps: int, stream: Stream) -> float:
    """AdamW, warm-up and cosine, `base.batch` rows a step.

    Returns: the mean loss of the last tenth, in nats per token.
    """
    from rich.progress import track

    from etude.optimizers.adam import AdamW
    from etude.optimizers.model import ModelStepper

    stepper = ModelStepper(AdamW(lr=1.0, beta2=0.98, weight_decay=0.01), model.parameters())
    losses = []
    for step in track(range(steps), description=f"pre-training {base.id}"):
        rate = RATE * min(1.0, (step + 1) / 200) * (0.525 + 0.475 * math.cos(math.pi * step / steps))
        chosen = [data[i] for i in stream.numpy.integers(len(data), size=base.batch)]
        losses.append(float(stepper.step(Shown(model, chosen, base.cuts), rate)["loss"]))
    stepper.clear()
    tail = losses[-max(1, steps // 10) :]
    return sum(tail) / len(tail)


def pretrain(
    out: Path, seed: int = 0, steps: int | None = None, scale: float = 1.0, report: bool = True, base: Base = TINY
) -> dict[str, Any]:
    """Train a base model and write it to `out`: weights in bfloat16, tokenizer, and README.md with what was measured.

    Deterministic: the default arguments give the shipped weights, bit for bit on the same kind of processor.

    Args:
        out: a folder; made if it is not there.
        seed: of the examples, the first weights and the order.
        steps: optimizer steps; None: the model's own.
        scale: factor on the number of examples.
        report: whether to measure the result (a minute).
        base: which model.

    Returns: 'parameters', 'bytes' (of the weights), 'loss' (nats per token), 'seconds' (processor time, measuring
        left out) and 'scores' (by row of the table; empty without `report`).

    Raises: ConfigError if `steps` or `scale` is not positive.
    """
    import torch
    from transformers import LlamaForCausalLM

    steps = base.steps if steps is None else steps
    check("pretrain: steps", Count, steps)
    check("pretrain: scale", Positive, scale)
    threads, started = torch.get_num_threads(), time.process_time()
    torch.set_num_threads(1)  # sums in another order would give other weights
    try:
        tokenizer = base.tokenizer(POSITIONS)
        data = rows(tokenizer, list(base.examples(seed, scale)))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = LlamaForCausalLM(architecture(len(tokenizer), base.layers, base.spread))
        loss = learn(base, model, data, steps, Stream(seed).split("pretrain"))
        seconds = time.process_time() - started
        save(model, tokenizer, out)
        measured: dict[str, Any] = {
            "parameters": model.num_parameters(),
            "bytes": (out / "model.safetensors").stat().st_size,
            "loss": loss,
            "seconds": seconds,
            "scores": base.scores(out) if report else {},
        }
    finally:
        torch.set_num_threads(threads)
    write_card(base, out, seed, steps, measured)
    if report:
        show(base, measured["scores"])
    return measured


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write both in Hugging Face's format, the weights rounded to bfloat16."""

    model.bfloat16().save_pretrained(out)
    tokenizer.save_pretrained(out)
    settings = out / "tokenizer_config.json"
    known = json.loads(settings.read_text(encoding="utf-8"))
    known["tokenizer_class"] = "PreTrainedTokenizerFast"  # the name that every version of transformers knows
    settings.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
