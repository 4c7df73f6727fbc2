"""The written-out decoding step against transformers' forward pass over the whole sequence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config

from etude.policies import native, shared
from etude.policies.cache import CachedDecoder, decoding_cache, rope_positions
from etude.policies.recorded import Recorded

V, CAPACITY = 40, 5
SIZES: dict[str, Any] = dict(vocab_size=V, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                             intermediate_size=48, max_position_embeddings=64)  # fmt: skip
PROMPTS = [[3, 4, 5, 6, 7, 8, 9], [10, 11, 12]]
OWNER = [1, 0, 1, 1, 0]  # rows of a prompt need not be neighbours


def model(kind: type, **changes: Any) -> Any:
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(kind(**{**SIZES, **changes})).double().eval()
    with torch.no_grad():  # norms and biases start at 1 and 0, which would hide their omission
        for p in made.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return made


def prefilled(causal: Any, kind: Any = native.decoder) -> Any:
    """The decoder of five rows after their prompts."""
    width = max(map(len, PROMPTS))
    device = causal.device
    ids = torch.tensor([[0] * (width - len(p)) + p for p in PROMPTS], device=device)
    mask = torch.tensor([[False] * (width - len(p)) + [True] * len(p) for p in PROMPTS], device=device)
    cache = decoding_cache(causal.config, width + CAPACITY)
    backbone = causal.base_model
    backbone(input_ids=ids, attention_mask=mask, position_ids=rope_positions(mask), past_key_values=cache)
    return kind(backbone, causal.config, cache, mask, torch.tensor(OWNER, device=device), CAPACITY)


def whole(causal: Any, row: int, said: Tensor) -> Tensor:
    """Logits of the last token by one plain forward pass over prompt and answer."""
    ids = torch.tensor([PROMPTS[OWNER[row]] + said.tolist()], device=causal.device)
    return causal(input_ids=ids).logits[0, -1]


CONFIGS = [
    pytest.param(LlamaConfig, {"num_key_value_heads": 4, "tie_word_embeddings": True}, id="llama-tied"),
    pytest.param(LlamaConfig, {"num_key_value_heads": 2, "tie_word_embeddings": False}, id="llama-gqa-untied"),
    pytest.param(Qwen2Config, {"num_key_value_heads": 2, "tie_word_embeddings": True}, id="qwen2-gqa-tied"),
    pytest.param(Qwen2Config, {"num_key_value_heads": 1, "tie_word_embeddings": False}, id="qwen2-mqa-untied"),
    pytest.param(Qwen3Config, {"num_key_value_heads": 2, "head_dim": 16}, id="qwen3-gqa"),
]


@pytest.mark.first
@pytest.mark.parametrize(("kind", "changes"), CONFIGS)
@torch.no_grad()
def test_logits_equal_a_plain_forward_pass(kind: type, changes: dict[str, Any]) -> None:
    causal = model(kind, **changes)
    rows = prefilled(causal)
    assert isinstance(rows, native.SharedDecoder)
    said = torch.randint(V, (len(OWNER), CAPACITY), generator=torch.Generator().manual_seed(1))
    position = torch.tensor([len(PROMPTS[i]) for i in OWNER])
    alive = torch.arange(len(OWNER))
    for step in range(CAPACITY):
        if step == 1:  # one row of each prompt leaves
            alive = torch.tensor([0, 1, 3])
            rows.keep(torch.tensor([0, 1, 3]))
        if step == 3:  # the first prompt has no rows left
            alive = torch.tensor([0, 3])
            rows.keep(torch.tensor([0, 2]))
            assert len(rows.prompts[0][0]) == 1
        logits = causal.get_output_embeddings()(rows(said[alive, step], position[alive] + step))
        wanted = torch.stack([whole(causal, int(row), said[row, : step + 1]) for row in alive])
        torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("stride", [2, 128])
@pytest.mark.parametrize(("kind", "changes"), CONFIGS[:4:3])
@torch.no_grad()
def test_steps_in_shapes_that_stay_say_the_same(
    kind: type, changes: dict[str, Any], stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are recorded on a GPU, where rows leave and columns are added in between."""
    causal = model(kind, **changes)
    usual, fixed = prefilled(causal), prefilled(causal)
    monkeypatch.setattr(shared, "STRIDE", stride)
    position, kept = torch.tensor([len(PROMPTS[i]) for i in OWNER]), torch.tensor([0, 1, 3])
    made = set()
    for step in range(CAPACITY):
        tokens = torch.arange(len(position)) * 3 + step
        wanted = usual(tokens, position + step)
        with monkeypatch.context() as context:
            context.setattr(shared, "RECORDED", {"cpu"})
            torch.testing.assert_close(fixed(tokens, position + step), wanted, rtol=0, atol=1e-10)
        made.add(fixed.recorded.step)
        if step == 2:
            for rows in (usual, fixed):
                rows.keep(kept)
            position = position[kept]
    assert len(made) == {2: 4, 128: 2}[stride]


@torch.no_grad()
def test_a_step_is_recorded_once_for_all_columns_that_it_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which there are more than the numbers that Python keeps only once."""
    monkeypatch.setattr(shared, "RECORDED", {"cpu"})
    rows = prefilled(model(LlamaConfig))
    rows._make_room(400)
    rows.longest, rows.lengths = 300, torch.full_like(rows.lengths, 300)
    position = torch.tensor([len(PROMPTS[i]) for i in OWNER])
    made = set()
    for step in range(3):
        rows(torch.arange(len(OWNER)), position + step)
        made.add(rows.recorded.step)
    assert len(made) == 1 and rows.recorded.seen == 384


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@torch.no_grad()
def test_a_recorded_step_says_what_it_says_when_it_is_taken() -> None:
    causal = model(LlamaConfig, num_key_value_heads=2).cuda()
    rows, position = prefilled(causal), torch.tensor([len(PROMPTS[i]) for i in OWNER], device="cuda")
    said = torch.randint(V, (len(OWNER), CAPACITY), generator=torch.Generator().manual_seed(1)).cuda()
    for step in range(CAPACITY):
        logits = causal.get_output_embeddings()(rows(said[:, step], position + step))
        wanted = torch.stack([whole(causal, row, said[row, : step + 1]) for row in range(len(OWNER))])
        torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-10)
    assert rows.recorded.step.graph is not None and rows.recorded.step.refused is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@torch.no_grad()
def test_what_cannot_be_recorded_is_taken_as_before() -> None:
    def step(x: Tensor) -> Tensor:
        return x * int(x.sum())

    taken = Recorded(step)
    for k in (1, 2, 3):
        assert taken(torch.full((2,), k, device="cuda")).tolist() == [2 * k * k] * 2
    assert taken.graph is None and taken.refused
    usual = Recorded(lambda x: x + 1)
    assert [usual(torch.full((2,), k, device="cuda")).tolist() for k in (1, 2, 3)] == [[2, 2], [3, 3], [4, 4]]
    assert usual.graph is not None


def test_another_architecture_is_decoded_by_transformers() -> None:
    gpt2 = AutoModelForCausalLM.from_config(GPT2Config(vocab_size=V, n_embd=32, n_layer=1, n_head=2)).eval()
    with torch.no_grad():
        assert isinstance(prefilled(gpt2), CachedDecoder)


def test_windowed_attention_is_decoded_by_transformers() -> None:
    config = Qwen2Config(**SIZES, num_key_value_heads=2, use_sliding_window=True, sliding_window=4, max_window_layers=0)
    causal = AutoModelForCausalLM.from_config(config).eval()
    assert not native.supported(causal.base_model, config)


@torch.no_grad()
def test_a_model_that_computes_something_else_is_decoded_by_transformers() -> None:
    causal = model(LlamaConfig)
    for layer in causal.base_model.layers:  # a residual scale that the class name does not tell
        layer.register_forward_hook(lambda module, args, out: out * 1.01)
    assert not native.agrees(causal.base_model, causal.config)
    assert isinstance(prefilled(causal), CachedDecoder)


@torch.no_grad()
def test_both_decoders_agree_row_by_row() -> None:
    causal = model(LlamaConfig, num_key_value_heads=2)
    ours = prefilled(causal)
    theirs = prefilled(causal, lambda backbone, config, *rest: CachedDecoder(backbone, *rest))
    position = torch.tensor([len(PROMPTS[i]) for i in OWNER])
    for step in range(3):
        tokens = torch.arange(len(OWNER)) + step
        torch.testing.assert_close(ours(tokens, position + step), theirs(tokens, position + step), rtol=0, atol=1e-10)
