"""Small language models, tasks and batches that tests of several rooms share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch

from etude.core.batches import TokenBatch
from etude.core.draws import Draw
from etude.core.episodes import Episode, Problem, Segment
from etude.core.method import Method
from etude.core.rows import to_batch
from etude.core.task import Environment, LanguageTask, SingleTurn
from etude.loops.language import LanguageLoop
from etude.policies.byte_tokenizer import build_tokenizer
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Completion, Sampling

torch.set_num_threads(1)  # the models are too small to divide

KINDS = ("llama", "qwen2", "gpt2")
VOCABULARY = 307
TIMINGS = ("seconds", "tokens_per_second")
"""How metrics begin that say how long something took."""


@cache
def tokenizer() -> Any:
    """The built-in byte tokenizer, as its own copy."""
    return build_tokenizer(256)


def random_model(kind: str = "llama", *, context: int = 128, seed: int = 0, **changes: Any) -> Any:
    """A random causal language model with 2 layers of width 32, in float32 and in evaluation mode."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    shape = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": context,
        "initializer_range": 0.3, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0,
    }  # fmt: skip
    if kind == "gpt2":
        config = GPT2Config(
            vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=context, initializer_range=0.3,
            bos_token_id=None, eos_token_id=1, pad_token_id=0, **changes,
        )  # fmt: skip
        return GPT2LMHeadModel(config).eval()
    if kind == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**{**shape, "tie_word_embeddings": False, **changes})).eval()
    return LlamaForCausalLM(LlamaConfig(**{**shape, **changes})).eval()


def random_policy(
    kind: str = "llama", *, dtype: torch.dtype = torch.float32, context: int = 128, seed: int = 0, **options: Any
) -> LanguagePolicy:
    """A policy around a random model."""
    return LanguagePolicy(random_model(kind, context=context, seed=seed).to(dtype), tokenizer(), **options)


def draws(count: int, seed: int = 0) -> list[Draw]:
    """A draw for each of `count` rows."""
    return [Draw.at(seed, row) for row in range(count)]


def random_prompts(count: int, *, seed: int = 0, low: int = 2, high: int = 12) -> list[list[int]]:
    """Prompts of random lengths from `low` to `high` tokens."""
    random = torch.Generator().manual_seed(seed)
    sizes = torch.randint(low, high + 1, (count,), generator=random).tolist()
    return [torch.randint(3, VOCABULARY, (n,), generator=random).tolist() for n in sizes]


def random_episodes(
    sizes: Sequence[int] = (3, 1, 4), *, turns: int = 1, seed: int = 0, low: int = 2, high: int = 12
) -> list[Episode]:
    """Episodes with random tokens: one group per entry of `sizes`, `turns` sampled runs with observations between."""
    random = torch.Generator().manual_seed(seed)

    def tokens(least: int, most: int) -> list[int]:
        n = int(torch.randint(least, most + 1, (1,), generator=random))
        return torch.randint(3, VOCABULARY, (n,), generator=random).tolist()

    found = []
    for group, size in enumerate(sizes):
        prompt = tokens(low, high)
        for _ in range(size):
            segments = [Segment("user", "", prompt, [0] * len(prompt), [0.0] * len(prompt))]
            for turn in range(turns):
                said, seen = tokens(1, 9), tokens(1, 4)
                logp = torch.rand(len(said), generator=random).sub(4).tolist()
                segments.append(Segment("assistant", "", said, [1] * len(said), logp, 0))
                if turn + 1 < turns:
                    segments.append(Segment("user", "", seen, [0] * len(seen), [0.0] * len(seen)))
            found.append(Episode(Problem(f"p{group}", "?"), segments, group))
    return found


def random_batch(sizes: Sequence[int] = (3, 1, 4), *, temperature: float = 1.0, **options: Any) -> TokenBatch:
    """A batch of random episodes on the CPU."""
    return to_batch(random_episodes(sizes, **options), 0, temperature, torch.device("cpu"))


def letters_reward(problem: Problem, completion: str) -> float:
    """Share of a completion's characters that are lower-case letters: no two completions are likely to tie."""
    return sum(c.islower() for c in completion) / max(1, len(completion))


class Scripted:
    """An engine that says what a function makes of each row's tokens."""

    def __init__(self, say: Callable[[list[int]], Completion]) -> None:
        self.say, self.rows, self.opened = say, dict[int, list[int]](), 0

    def open(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        made = {self.opened + i: list(prompt) for i, prompt in enumerate(prompts)}
        self.opened += len(made)
        self.rows |= made
        return list(made)

    def extend(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        for row, new in zip(rows, tokens, strict=True):
            self.rows[row] += new

    def rewind(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        for row, count in zip(rows, counts, strict=True):
            self.rows[row] = self.rows[row][:count]

    def sample(
        self, rows: Sequence[int], sampling: Sampling, draws: Sequence[Draw], begun: Sequence[int] = (),
        last: bool = False,
    ) -> list[Completion]:  # fmt: skip
        said = [self.say(list(self.rows[row])) for row in rows]
        self.extend(rows, [c.tokens for c in said])
        if last:
            self.close(rows)
        return said

    def fork(self, rows: Sequence[int]) -> list[int]:
        return self.open([self.rows[row] for row in rows])

    def close(self, rows: Sequence[int]) -> None:
        for row in rows:
            del self.rows[row]

    def tokens(self, row: int) -> Sequence[int]:
        return self.rows[row]


class Toy(LanguageTask):
    """Single-turn problems with any scoring function, or any environment."""

    id: ClassVar[str] = "toy"
    stop: ClassVar[tuple[str, ...]] = ()
    prompts: tuple[str, ...] = ("one:", "three:", "x=")
    scoring: Callable[[Problem, str], float] = field(default=letters_reward, kw_only=True)
    world: Callable[[Any], Environment] = field(default=SingleTurn, kw_only=True)
    max_tokens: int = field(default=8, kw_only=True)  # type: ignore[misc]
    max_turns: int = field(default=1, kw_only=True)  # type: ignore[misc]
    step_timeout: float = field(default=60.0, kw_only=True)  # type: ignore[misc]

    def problems(self, split: str) -> list[Problem]:
        return [Problem(f"{split}-{i}", p) for i, p in enumerate(self.prompts)]

    def environment(self) -> Environment:
        return self.world(self)

    def score(self, problem: Problem, completion: str) -> float:
        return self.scoring(problem, completion)


def make_loop(
    method: Method, task: LanguageTask | None = None, policy: LanguagePolicy | None = None, **options: Any
) -> LanguageLoop:
    """A loop on the toy task with a random model, 3 problems a step unless the method says otherwise."""
    options = {"seed": 0, "steps": 10, **options}
    return LanguageLoop(method, task or Toy(), policy or random_policy(), **options)


def untimed(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics but for those that say how long something took."""
    return {k: v for k, v in metrics.items() if not k.startswith(TIMINGS)}


def resumed_exactly(made: Callable[[], LanguageLoop], folder: Path, steps: int = 4) -> list[dict[str, float]]:
    """Metrics of a run's steps, which one that was saved half way and loaded anew has repeated, episodes and all."""
    whole, begun, resumed = made(), made(), made()
    reports = [whole.step() for _ in range(steps)]
    for _ in range(steps // 2):
        begun.step()
    begun.save(folder)
    resumed.load(folder)
    for report in reports[steps // 2 :]:
        again = resumed.step()
        assert [e["id"] for e in again.episodes] == [e["id"] for e in report.episodes]
        assert untimed(again.metrics) == untimed(report.metrics)
    for loop in (whole, begun, resumed):
        if loop.ahead is not None:
            loop.ahead.close()
    return [report.metrics for report in reports]


def gradients(policy: LanguagePolicy) -> dict[str, torch.Tensor]:
    """The gradient of every trained parameter, by name."""
    named = dict(policy.model.named_parameters())
    if policy.value_head is not None:
        named |= {f"value_head.{k}": v for k, v in policy.value_head.named_parameters()}
    return {k: v.grad.clone() for k, v in named.items() if v.grad is not None}
