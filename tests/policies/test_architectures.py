"""Architectures: sampling and training say the same of a token, or the model is refused in a sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from etude.core.batches import TokenBatch
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError
from etude.core.rows import to_batch
from etude.policies import footprint
from etude.policies.byte_tokenizer import build_tokenizer
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Sampling
from language_toys import VOCABULARY, draws, random_model, random_prompts, tokenizer

SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.1,
    "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
ALTERNATING = {**SHAPE, "layer_types": ["linear_attention", "full_attention"]}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
DELTA = {
    "head_dim": 8, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}  # fmt: skip
SSM = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_chunk_size": 8}
WINDOWS = {"head_dim": 8, "sliding_window": 6}
EXACT: dict[str, dict[str, Any]] = {
    "Llama": SHAPE,
    "Mistral": {**SHAPE, "sliding_window": 6},
    "Qwen3": {**SHAPE, "head_dim": 8},
    "GPT2": SHAPE,
    "GPTNeoX": SHAPE,
    "Bloom": SHAPE,
    "Falcon": SHAPE,
    "Gemma2": {**SHAPE, **WINDOWS},
    "GptOss": {**SHAPE, **WINDOWS, "num_local_experts": 2, "num_experts_per_tok": 1},
    "OPT": {**SHAPE, "ffn_dim": 48, "word_embed_proj_dim": 16, "do_layer_norm_before": False},  # as OPT-350m
    "Mamba": {**SHAPE, "state_size": 4},
    "Mamba2": {**SHAPE, "state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8},
    "FalconMamba": {**SHAPE, "state_size": 4},
    "Jamba": {**SHAPE, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "num_experts_per_tok": 1,
              "mamba_d_state": 4, "mamba_dt_rank": 4},
    "Lfm2": {**SHAPE, "layer_types": ["conv", "full_attention"]},
    "Qwen3Next": {**ALTERNATING, **DELTA, **EXPERTS, "shared_expert_intermediate_size": 16},
    "Bamba": {**SHAPE, **SSM, "attn_layer_indices": [1]},
    "FalconH1": {**SHAPE, **SSM, "head_dim": 8, "mamba_d_ssm": 64},
}  # fmt: skip
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "Rwkv": ({**SHAPE, "attention_hidden_size": 32}, "cannot be sampled from here: .* keeps its state outside"),
    "RecurrentGemma": (
        {**SHAPE, "head_dim": 8, "lru_width": 32, "block_types": ["recurrent", "attention"], "logits_soft_cap": 1e4},
        "says something else token by token than at once when prompts of different lengths share a batch",
    ),
    "MiniMax": (
        {**ALTERNATING, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "block_size": 8},
        "its cache is of a kind that etude does not know",
    ),
    "Electra": ({**SHAPE, "embedding_size": 16, "is_decoder": True}, "layers between its last hidden states and its"),
    "Bert": ({**SHAPE, "is_decoder": True}, "scales its logits in a way that etude does not know"),
    "Granite": ({**SHAPE, "logits_scaling": 1.005}, "scales its logits in a way that etude does not know"),
}
PROMPTS = [*random_prompts(2, seed=1) * 2, *random_prompts(1, seed=2)]


def model_of(name: str, shape: dict[str, Any]) -> Any:
    """A random model of an architecture, from its configuration alone."""
    import transformers

    config = getattr(transformers, f"{name}Config")(**shape)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def sampled(policy: LanguagePolicy) -> TokenBatch:
    """Rows of several lengths, some prompts shared."""
    said = policy.generate(PROMPTS, Sampling(max_tokens=6), draws(len(PROMPTS)))
    rows = [
        [Segment("user", "", p, [0] * len(p), [0.0] * len(p)),
         Segment("assistant", "", c.tokens, [1] * len(c.tokens), c.logp)]
        for p, c in zip(PROMPTS, said, strict=True)
    ]  # fmt: skip
    return to_batch([Episode(Problem(str(i), ""), s, i) for i, s in enumerate(rows)], 0, 1.0, policy.device)


@pytest.mark.first
@pytest.mark.filterwarnings("ignore")  # transformers': a faster kernel is not installed
@pytest.mark.parametrize("name", EXACT)
def test_sampling_says_what_training_says(name: str) -> None:
    policy = LanguagePolicy(model_of(name, EXACT[name]), tokenizer())
    batch = sampled(policy)
    out = policy.evaluate(batch, {"values"})
    torch.testing.assert_close(out.logp, batch.behaviour_logp, rtol=0, atol=2e-6)
    for row in range(len(batch)):  # nor does it matter who else is in the batch
        alone = batch.rows(torch.tensor([row]), trim=True)
        torch.testing.assert_close(policy.evaluate(alone).logp, alone.behaviour_logp, rtol=0, atol=2e-6)
    (out.logp.sum() + out.values.sum()).backward()
    assert all(p.grad.isfinite().all() for p in policy.parameters() if p.grad is not None)
    assert "for the keys and values of 4 completions" in footprint.sentence(policy, 4, 20, 8192)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_sampled_or_scored_is_refused_in_a_sentence(name: str) -> None:
    shape, sentence = REFUSED[name]
    with pytest.raises(ConfigError, match=sentence):
        LanguagePolicy(model_of(name, shape), tokenizer())


def test_the_memory_of_a_recurrent_state_does_not_grow_with_the_tokens() -> None:
    policy = LanguagePolicy(model_of("Mamba", EXACT["Mamba"]), tokenizer())
    state = 2 * 48 * (4 + 4) * 4  # layers, inner width, 4 of the state and 4 of the convolution, float32
    assert policy.cache_bytes(1) == policy.cache_bytes(1000) == state


def test_a_tokenizer_with_more_tokens_than_the_embedding() -> None:
    with pytest.raises(ConfigError, match=r"a token of number 306, and the model's embedding has 300 rows"):
        LanguagePolicy(random_model(vocab_size=300), tokenizer())


def test_an_added_token_outside_the_embedding_is_refused_when_a_text_uses_it() -> None:
    words = build_tokenizer(256)
    words.add_tokens(["<new>"])
    policy = LanguagePolicy(random_model(vocab_size=307), words)
    assert len(words) == 308 and policy.encode("new")
    with pytest.raises(ConfigError, match=r"a token of number 307, and the model's embedding has 307 rows"):
        policy.encode("a <new> b")


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers(number: float) -> None:
    model = random_model()
    with torch.no_grad():
        model.get_decoder().layers[1].mlp.up_proj.weight[3, 4] = number
    with pytest.raises(ConfigError, match=r"layers\.1\.mlp\.up_proj\.weight holds numbers that are not finite"):
        LanguagePolicy(model, tokenizer())
