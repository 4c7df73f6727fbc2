"""What an update's micro-batch is said to keep, against a count of all storages that are alive at a time."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, Qwen2Config

from etude.core.batches import TokenBatch
from etude.policies import footprint as module
from etude.policies.footprint import footprint, update_bytes
from etude.policies.language import LanguagePolicy
from etude.policies.logprobs import CHUNK_ELEMENTS, token_logprobs
from language_toys import random_policy

ROWS, PROMPT, ANSWER = 8, 8, 56


class Alive(TorchDispatchMode):
    """Counts the bytes of the storages that operations make until nobody holds them, those of `known` not."""

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.held, self.now, self.most = {x.untyped_storage()._cdata for x in known}, 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for x in tree_leaves(found):
            if isinstance(x, torch.Tensor) and (key := x.untyped_storage()._cdata) not in self.held:
                self.held.add(key)
                self.now += x.untyped_storage().nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(x.untyped_storage(), self._gone, key, x.untyped_storage().nbytes())
        return found

    def _gone(self, key: int, size: int) -> None:
        self.held.discard(key)
        self.now -= size


def batch(vocabulary: int, rows: int = ROWS, prompt: int = PROMPT, answer: int = ANSWER) -> TokenBatch:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, vocabulary, (rows, prompt + answer), generator=generator)
    said = (torch.arange(prompt + answer) >= prompt).expand_as(tokens)
    nothing, one = torch.zeros(tokens.shape), torch.ones(rows)
    return TokenBatch(
        tokens, torch.ones_like(said), said, nothing, nothing, torch.arange(rows), one, one, torch.zeros(rows).bool()
    )  # fmt: skip


def measured(policy: LanguagePolicy) -> int:
    """The most bytes at a time beside the weights and gradients that were there before."""
    rows = batch(policy.model.get_input_embeddings().weight.shape[0])
    policy.evaluate(rows).logp.sum().backward()
    with Alive(policy.model.parameters()) as alive:
        policy.evaluate(rows, ("entropy",)).logp.sum().backward()
    return alive.most


def policy(kind: str) -> LanguagePolicy:
    tiny = LanguagePolicy.load("tiny", device="cpu")
    if kind == "tiny":
        return tiny
    config = Qwen2Config(
        vocab_size=4000, hidden_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=352, max_position_embeddings=512, tie_word_embeddings=True,
    )  # fmt: skip
    attention = {"attn_implementation": "eager"} if kind == "eager" else {}
    model = AutoModelForCausalLM.from_config(config, **attention)
    return LanguagePolicy(model, tiny.tokenizer, autocast=kind == "autocast")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tiny", "qwen", "eager", "autocast"])
def test_what_a_micro_batch_takes_is_known_within_a_tenth(kind: str) -> None:
    one = policy(kind)
    said = update_bytes(one, ROWS, PROMPT + ANSWER, budget=10_000)
    assert said == pytest.approx(measured(one), rel=0.1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("rows", "length"), [(16, 256), (64, 256), (16, 1024)])
@pytest.mark.parametrize("autocast", [False, True])
def test_what_a_micro_batch_takes_of_a_gpu_is_known_within_a_tenth(rows: int, length: int, autocast: bool) -> None:
    """By its allocator's own count, of a model whose logits fill several chunks."""
    config = Qwen2Config(
        vocab_size=32_000, hidden_size=512, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2,
        intermediate_size=1408, max_position_embeddings=2048,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    one = LanguagePolicy(model.to("cuda"), LanguagePolicy.load("tiny").tokenizer, autocast=autocast)
    said = update_bytes(one, rows, length, budget=rows * length)
    given = batch(config.vocab_size, rows, 8, length - 8).to(one.device)
    one.evaluate(given).logp.sum().backward()  # gradients, and what libraries keep, are there from now on
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    one.evaluate(given, ("entropy",)).logp.sum().backward()
    assert said == pytest.approx(torch.cuda.max_memory_allocated() - before, rel=0.1)


def test_attention_that_keeps_its_weights_grows_with_the_square() -> None:
    """Four heads keep [T, T] probabilities in float32 in each of three layers, twice where the mask is added."""
    found = footprint(policy("eager")).quadratic
    assert found >= 3 * 4 * 4
    assert footprint(policy("qwen")).quadratic == 0


def test_a_micro_batch_holds_no_more_than_its_budget_and_at_least_a_row() -> None:
    one = LanguagePolicy.load("tiny", device="cpu")
    assert update_bytes(one, 100, 64, budget=640) == update_bytes(one, 10, 64, budget=10_000)
    assert update_bytes(one, 100, 64, budget=1) == update_bytes(one, 1, 64, budget=10_000)


@pytest.mark.slow
def test_logits_of_one_chunk_are_gone_before_the_next_ones_are_made() -> None:
    """Two chunks of [N, V] with entropies: these logits and their slopes, never those of a chunk before."""
    count, vocabulary = 8, CHUNK_ELEMENTS // 4
    hidden = torch.randn(count, 1, requires_grad=True)
    head, targets = torch.randn(vocabulary, 1), torch.zeros(count, dtype=torch.long)
    with Alive() as alive:
        logp, entropy = token_logprobs(hidden, head, None, targets, entropy=True)
        assert entropy is not None
        (logp.sum() + entropy.sum()).backward()
    assert alive.most < 2.1 * CHUNK_ELEMENTS * 4 + head.numel() * 4


def test_micro_batches_of_a_gpu_take_what_room_there_is() -> None:
    policy = random_policy()
    assert module.micro_tokens(policy) == module.MICRO_TOKENS == 8192, "on a CPU"
    assert module.micro_tokens(policy, memory=1 << 20) == 8192
    assert module.micro_tokens(policy, memory=1 << 50) == module.MOST_TOKENS
    needed = [module.update_bytes(policy, 1 << 20, 512, tokens) for tokens in (16384, 32768)]
    between = (module.model_bytes(policy) + sum(needed) // 2) / module.SHARE
    assert module.micro_tokens(policy, memory=int(between)) == 16384
