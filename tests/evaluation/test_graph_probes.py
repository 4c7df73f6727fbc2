"""The probes against a model whose tables are known, and against attention computed by hand."""

from __future__ import annotations

import pytest
import torch

from etude.core.errors import ConfigError
from etude.evaluation.graph_probes import gap, node_ids, probe, tables, target_attention
from etude.policies.language import LanguagePolicy
from etude.tasks.language.paths import NAMES, Paths, data

pytestmark = pytest.mark.usefixtures("one_thread")
TASK = Paths(nodes=10, density=0.3, demonstrations=2)


@pytest.fixture
def policy() -> LanguagePolicy:
    return LanguagePolicy.load("blank:1x32", device="cpu", dtype="float64")


@torch.no_grad()
def test_the_current_path_is_what_the_model_says_without_attention(policy: LanguagePolicy) -> None:
    """A sequence of one token attends to itself alone; without attention it says what W_M' does."""
    ids = node_ids(policy, 10)
    layer = policy.model.base_model.layers[0]
    current, target = tables(policy, 10)
    whole = policy.model(input_ids=ids[:, None]).logits[:, 0][:, ids]
    centred = whole - whole.mean(1, keepdim=True)
    layer.self_attn.o_proj.weight.zero_()
    silent = policy.model(input_ids=ids[:, None]).logits[:, 0][:, ids]
    torch.testing.assert_close(current, (silent - silent.mean(1, keepdim=True)).float(), atol=1e-5, rtol=0)
    assert not torch.allclose(current, centred.float(), atol=1e-2)
    assert target.shape == (10, 10)


@torch.no_grad()
def test_the_value_path_is_the_models_own(policy: LanguagePolicy) -> None:
    """With embeddings removed from the residual stream, one token's logits are W_V' of that token."""
    ids, layer = node_ids(policy, 10), policy.model.base_model.layers[0]
    _, target = tables(policy, 10)
    seen: list[torch.Tensor] = []
    hook = layer.self_attn.register_forward_hook(lambda module, args, out: seen.append(out[0]))
    policy.model(input_ids=ids[:, None])
    hook.remove()
    brought = seen[0][:, 0]
    said = brought + layer.mlp(layer.post_attention_layernorm(brought))
    logits = policy.model.lm_head(policy.model.base_model.norm(said))[:, ids]
    torch.testing.assert_close(target, (logits - logits.mean(1, keepdim=True)).float(), atol=1e-5, rtol=0)


def test_attention_is_that_of_the_model(policy: LanguagePolicy) -> None:
    """Uniform attention (no queries) over t + 1 tokens, averaged over the tokens that predict a next node."""
    with torch.no_grad():
        policy.model.base_model.layers[0].self_attn.q_proj.weight.zero_()
    (found,) = target_attention(policy, [[0, 1, 2], [3, 4]])
    # sequences 2 0 1 and 4 3: each token sees itself and all before, and all but the target predict
    assert found == pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 3)


def test_attention_is_averaged_over_every_predicted_node(policy: LanguagePolicy) -> None:
    paths = [[0, 1, 2], [3, 4], [5, 0, 7, 9]]
    policy.model.set_attn_implementation("eager")
    with torch.no_grad():
        policy.model.base_model.layers[0].self_attn.q_proj.weight.mul_(20)  # so that it is far from uniform
        rows = [node_ids(policy, 10)[torch.tensor([[p[-1], *p[:-1]]])] for p in paths]
        seen = [policy.model(input_ids=ids, output_attentions=True).attentions[0][0, 0] for ids in rows]
    wanted = torch.cat([weights[1:, 0] for weights in seen])
    assert len(wanted) == 6 and float(wanted.std()) > 0.05
    assert target_attention(policy, paths) == pytest.approx([float(wanted.mean())], abs=1e-6)


def test_gaps_by_hand() -> None:
    table = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    high = torch.tensor([[True, False], [False, True]])
    assert gap(table, high, ~high) == 3.5 - 2.5


@pytest.mark.slow
def test_a_trained_layer_is_told_from_an_untrained_one(policy: LanguagePolicy) -> None:
    from etude.core.registry import get_method
    from etude.loops.language import LanguageLoop

    made, fresh = data(TASK), LanguagePolicy.load("blank:1x32", device="cpu")
    before = probe(fresh, made, made.paths)
    loop = LanguageLoop(get_method("alpine").replace(problems=32), TASK, fresh, seed=0, steps=60)
    for _ in range(60):
        loop.step()
    after = probe(fresh, made, made.paths)
    assert after.edges > before.edges + 0.5
    assert after.observed > before.observed
    assert all(0 <= a <= 1 for a in after.attention)


@pytest.mark.slow
def test_other_models_are_refused() -> None:
    with pytest.raises(ConfigError, match="of one layer"):
        tables(LanguagePolicy.load("tiny", device="cpu"), 10)
    assert len(NAMES) >= 73
