"""What both arms are given: the same model folder, prompts, reward and sizes. Imports neither etude nor TRL."""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

GROUP = 8
RATE = 1e-7
"""Small, so that neither arm drifts: answers of other lengths would be another workload."""
MODELS = {
    "tiny": {"vocab": 307, "hidden": 128, "layers": 3, "heads": 4, "kv_heads": 4, "mlp": 256},
    "0.8M": {"vocab": 512, "hidden": 128, "layers": 3, "heads": 4, "kv_heads": 2, "mlp": 448},
    "10M": {"vocab": 1000, "hidden": 384, "layers": 6, "heads": 6, "kv_heads": 2, "mlp": 1024},
    "0.5B": {"vocab": 151_936, "hidden": 896, "layers": 24, "heads": 14, "kv_heads": 2, "mlp": 4864},
    "1.5B": {"vocab": 151_936, "hidden": 1536, "layers": 28, "heads": 12, "kv_heads": 2, "mlp": 8960},
}


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Args:
        prompts: shortest and longest prompt in tokens; lengths are uniform in between.
        answer: limit of one completion; the chance to stop is 1 / answer at every token, so that about a third of
            the completions reach the limit and the mean is 0.63 of it.
        success: chance that a completion is rewarded. 0.5 makes groups of equal rewards very rare.
    """

    name: str
    model: str
    prompts: tuple[int, int]
    answer: int
    completions: int
    success: float = 0.5

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "group": GROUP, **MODELS[self.model]}


CASES = {
    c.name: c
    for c in (
        Case("short-0.8M", "0.8M", (16, 64), 64, 128),
        Case("long-0.8M", "0.8M", (256, 512), 128, 64),
        Case("short-10M", "10M", (16, 64), 64, 64),
        Case("long-10M", "10M", (256, 512), 128, 32),
        Case("short-sparse-0.8M", "0.8M", (16, 64), 64, 128, success=0.08),
    )
}

GPU_CASES = {
    c.name: c
    for c in (
        Case("short-0.5B", "0.5B", (64, 256), 256, 256),
        Case("long-0.5B", "0.5B", (512, 1024), 512, 64),
        Case("short-1.5B", "1.5B", (64, 256), 256, 128),
        Case("check-0.8M", "0.8M", (16, 64), 16, 16),
    )
}
"""Of `gpu.py`; the last one tries the script itself, on any machine."""
ALL_CASES = CASES | GPU_CASES


def prompts(case: Case, count: int = 512) -> list[str]:
    """Random words, the same in both arms."""
    rng = np.random.default_rng(1)
    words = MODELS[case.model]["vocab"] - 2
    return [" ".join(f"w{i}" for i in rng.integers(words, size=rng.integers(*case.prompts, endpoint=True)))
            for _ in range(count)]  # fmt: skip


def reward(completion: str, success: float) -> float:
    """1 for a fixed share of all texts, picked by a checksum; otherwise 0."""
    words = " ".join(completion.split())
    return float(zlib.crc32(words.encode()) % 1000 < 1000 * success)


def memory(device: str) -> dict[str, float]:
    """The most GiB that the device's tensors took until now; nothing on a CPU."""
    import torch

    return {"memory": torch.cuda.max_memory_allocated() / 2**30} if device.startswith("cuda") else {}


def make_model(case: Case, folder: Path) -> Path:
    """A random Llama that ends its answers with chance 1 / answer, and a tokenizer of whole words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    size = MODELS[case.model]
    vocabulary = {"<pad>": 0, "<end>": 1, **{f"w{i}": i + 2 for i in range(size["vocab"] - 2)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>")
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size["vocab"], hidden_size=size["hidden"], num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"], num_key_value_heads=size["kv_heads"], intermediate_size=size["mlp"],
        max_position_embeddings=max(1024, case.prompts[1] + case.answer), tie_word_embeddings=False,
        pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    _bias_the_end(model, 1 / case.answer)
    model.save_pretrained(folder)
    return folder


def _bias_the_end(model: Any, chance: float) -> None:
    """Give every embedding one common direction and let the end token's output row read it."""
    import torch

    with torch.no_grad():
        common = torch.randn(model.config.hidden_size) * 0.05
        model.get_input_embeddings().weight += common
        row, ids = model.lm_head.weight[1], torch.randint(2, model.config.vocab_size, (32, 64))
        row.copy_(common / common.norm())
        z = model(ids).logits
        along = z[..., 1].mean()
        others = z[..., 2:].logsumexp(-1).mean()
        wanted = others + torch.log(torch.tensor(chance / (1 - chance)))
        row.mul_(wanted / along)
