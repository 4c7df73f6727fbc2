"""What the runs of the museum share: a language model of 2 layers, a task of three prompts, loops of a few steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import torch
from etude_museum.scoring import letters

from etude.core.control import ControlTask
from etude.core.edit import set_values
from etude.core.episodes import Problem
from etude.core.method import Method
from etude.core.population import Member
from etude.core.registry import get_method
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.experience.groups import Groups
from etude.loops.language import LanguageLoop
from etude.methods.rlvr.grpo import grpo
from etude.optimizers.adam import AdamW

SMALL = grpo.replace(problems=3, experience=Groups(size=4), optimizer=AdamW(lr=1e-3))
"""GRPO with three problems of four completions a step."""


@cache
def tokenizer() -> Any:
    """The built-in byte tokenizer."""
    from etude.policies.byte_tokenizer import build_tokenizer

    return build_tokenizer(256)


def policy(dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """A random model of 2 layers of width 32; options of the model are `dropout` and `adapter`, others the policy's."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from etude.policies.language import LanguagePolicy

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=307, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.3, bos_token_id=None, eos_token_id=1,
        pad_token_id=0, attention_dropout=options.pop("dropout", 0.0),
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config).eval().to(dtype)
    adapter = options.pop("adapter", None)
    return LanguagePolicy(adapter.wrap(model, Stream(0)) if adapter else model, tokenizer(), **options)


class Letters(LanguageTask):
    """Three prompts; what is scored is the share of lower-case letters."""

    id: ClassVar[str] = "letters"
    stop: ClassVar[tuple[str, ...]] = ()
    max_tokens: int = 8

    def problems(self, split: str) -> list[Problem]:
        return [Problem(f"{split}-{i}", prompt) for i, prompt in enumerate(("one:", "three:", "x="))]

    def score(self, problem: Problem, completion: str) -> float:
        return letters(completion)


def language(
    method: Method = SMALL, steps: int = 3, task: LanguageTask | None = None, micro_tokens: int = 8192, **options: Any
) -> Iterator[Mapping[str, float]]:
    """Steps of a language loop; options are the policy's."""
    loop = LanguageLoop(method, task or Letters(), policy(**options), seed=0, steps=10, micro_tokens=micro_tokens)
    for _ in range(steps):
        yield loop.step().metrics


def control(
    method: Method, task: ControlTask | None = None, steps: int = 3, seeds: Sequence[int] = (0,), **options: Any
) -> Iterator[Mapping[str, float]]:
    """Steps of the loop of a method of control, on cart-pole unless a task is given."""
    loop = control_loop(method, task, seeds, **options)
    try:
        for _ in range(steps):
            yield loop.step().metrics
    finally:
        loop.close()


def control_loop(method: Method, task: ControlTask | None = None, seeds: Sequence[int] = (0,), **options: Any) -> Any:
    """A loop of control, of the kind that the method asks for."""
    from etude.core.kinds import ReplayMethod
    from etude.loops.off_policy import OffPolicyLoop
    from etude.loops.on_policy import OnPolicyLoop
    from etude.tasks.control.cartpole import cartpole

    kind = OffPolicyLoop if isinstance(method, ReplayMethod) else OnPolicyLoop
    return kind(method, task or cartpole, [Member(seed) for seed in seeds], 10, **options)


def small_sac() -> Method:
    """SAC with networks of 16, batches of 6, and a replay of 64 steps that it learns from after 12."""
    changes = {
        "policy.network.hidden": "16", "critic.network.hidden": "16", "sampling.batch": 6, "experience.capacity": 64,
        "experience.random": 8, "experience.warmup": 12, "experience.every": 1, "experience.updates": 1.0,
    }  # fmt: skip
    return set_values(get_method("sac"), changes)
