"""Wider models: they say what the narrow one says, have the sizes that were asked for, and copies that part."""

from __future__ import annotations

import pytest
import torch

from etude.core.errors import ConfigError
from etude.policies.loading import is_shipped, load_model, load_tokenizer, named
from etude.policies.wide import divided, widened

CPU = torch.device("cpu")


def logits(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=tokens).logits
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "millions"), [("wide:2x4:tiny", 3.3), ("wide:4x8:tiny", 12.9)])
def test_it_says_what_the_narrow_one_says(name: str, millions: float) -> None:
    tokens = torch.randint(3, 250, (4, 20), generator=torch.Generator().manual_seed(0))
    narrow, wide = load_model("tiny", torch.float32, CPU), load_model(name, torch.float32, CPU)
    torch.testing.assert_close(logits(wide, tokens), logits(narrow, tokens), atol=2e-4, rtol=1e-4)
    assert wide.num_parameters() / 1e6 == pytest.approx(millions, abs=0.1)
    assert all(torch.equal(a, b) for a, b in zip(wide.parameters(), load_model(name, torch.float32, CPU).parameters()))
    assert load_tokenizer(name).get_vocab() == load_tokenizer("tiny").get_vocab()


@pytest.mark.slow
def test_to_rounding_in_double_precision_and_with_fewer_heads_for_keys() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=11, hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, tie_word_embeddings=False,
    )  # fmt: skip
    narrow = LlamaForCausalLM(config).eval()
    wide = widened(narrow, "it", 3, 2).eval()
    tokens = torch.arange(10)[None]
    torch.testing.assert_close(logits(wide.double(), tokens), logits(narrow.double(), tokens), atol=1e-6, rtol=1e-6)


@pytest.mark.slow
def test_copies_have_gradients_of_their_own() -> None:
    """Divided into equal parts they would stay copies for ever."""
    wide = widened(load_model("blank:1x16x2", torch.float32, CPU), "it", 2, 2)
    loss = wide(input_ids=torch.arange(6)[None], labels=torch.arange(6)[None]).loss
    loss.backward()
    for key in ("q_proj", "o_proj"):
        first, second = getattr(wide.model.layers[0].self_attn, key).weight.grad.chunk(2, dim=0)
        assert (first - second).norm() > 0.1 * first.norm()
    first, second = wide.model.embed_tokens.weight.grad.chunk(2, dim=1)
    assert (first - second).norm() > 0.1 * first.norm()


def test_parts_add_up_and_differ() -> None:
    weight = torch.tensor([[1.0, -2.0], [0.5, 4.0]])
    parts = divided(weight, 2, 3, torch.Generator().manual_seed(1)).reshape(2, 2, 3, 2)
    torch.testing.assert_close(parts.sum(2), weight.expand(2, 2, 2))
    assert (parts[0] - parts[1]).abs().min() > 0 and (parts[:, :, 0] - parts[:, :, 1]).abs().min() > 0
    torch.testing.assert_close(divided(weight, 1, 1, torch.Generator()), weight)


def test_names() -> None:
    assert named("wide:2x4:tiny") == "tiny" and is_shipped("wide:4x8:tiny") and not is_shipped("wide:2x4:runs/mine")
    for wrong in ("wide:2:tiny", "wide:tiny", "wide:0x1:tiny"):
        with pytest.raises(ConfigError, match=r"as in wide:2x4:tiny; got"):
            load_model(wrong, torch.float32, CPU)


@pytest.mark.slow
def test_what_is_no_llama_is_refused() -> None:
    with pytest.raises(ConfigError, match="can widen Llama-type decoders without biases, and two-matrices:5 is a"):
        load_model("wide:2x2:two-matrices:5", torch.float32, CPU)
