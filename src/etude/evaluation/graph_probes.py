"""What a one-layer decoder has learned of a graph: where it looks, and the two matrices inside it (arXiv:2405.09220).

A layer that finds paths has to do two things: attend to the target, and let two tables vote on the next node,

    logits(current j, target i) ~ W_M[j] + W_V[i],    W_M like the adjacency A, W_V like the reachability R_obs.

With x the embedding of a node, o(x) = O V norm(x) what attention brings from it if it attends to nothing else, and
says(h) = head(norm(h + mlp(norm(h)))) what the rest of the model makes of a state h, the tables of a trained model are

    W_M'[j] = says(x_j),    W_V'[i] = says(o(x_i))

each row centred, since a softmax ignores constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from etude.core.errors import ConfigError
from etude.policies.byte_tokenizer import NODES
from etude.tasks.language.paths import PathData

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy


@dataclass(frozen=True)
class Probe:
    """What was found; gaps are differences of mean logits.

    Args:
        attention: mean attention on the target, by head, where the next node is predicted.
        edges: W_M' on edges, less that on pairs that are none.
        observed: W_V' on nodes seen on a path to the target, less that on all others.
        reachable: W_V' on nodes that reach the target but were not seen to, less that on nodes that do not reach it.
    """

    attention: tuple[float, ...]
    edges: float
    observed: float
    reachable: float


@torch.no_grad()
def probe(policy: LanguagePolicy, made: PathData, paths: Sequence[Sequence[int]]) -> Probe:
    """Look into a trained one-layer policy; attention is averaged over the given paths.

    Raises: ConfigError for a model that is not a Llama-type decoder of one layer.
    """
    current, target = tables(policy, made.nodes)
    off = torch.eye(made.nodes) == 0
    a, r, seen = (torch.from_numpy(np.ascontiguousarray(x)) for x in (made.edges, made.reaches.T, made.seen))
    return Probe(
        tuple(target_attention(policy, paths)),
        gap(current, a, ~a & off),
        gap(target, seen & off, ~seen & off),
        gap(target, r & ~seen & off, ~r & ~seen & off),
    )


def gap(table: Tensor, high: Tensor, low: Tensor) -> float:
    """Mean of the entries that should be high, less that of those that should be low."""
    return float(table[high].mean() - table[low].mean())


@torch.no_grad()
def tables(policy: LanguagePolicy, nodes: int) -> tuple[Tensor, Tensor]:
    """W_M' and W_V' [n, n] of a trained one-layer policy."""
    model, layer = _only_layer(policy)
    ids = node_ids(policy, nodes)
    x = model.base_model.embed_tokens(ids)

    def says(h: Tensor) -> Tensor:
        h = h + layer.mlp(layer.post_attention_layernorm(h))
        logits: Tensor = model.get_output_embeddings()(model.base_model.norm(h))[:, ids].float()
        return logits - logits.mean(1, keepdim=True)

    attention = layer.self_attn
    values = attention.v_proj(layer.input_layernorm(x))
    groups = attention.o_proj.in_features // values.shape[1]
    heads = values.view(nodes, -1, attention.head_dim).repeat_interleave(groups, 1)
    return says(x), says(attention.o_proj(heads.flatten(1)))


@torch.no_grad()
def target_attention(policy: LanguagePolicy, paths: Sequence[Sequence[int]]) -> list[float]:
    """[heads] mean attention on the first token, the target, of the tokens that predict the next node of a path."""
    import copy

    model, _ = _only_layer(policy)
    model = copy.deepcopy(model)
    model.set_attn_implementation("eager")  # the one that shows its weights
    total, count = torch.zeros(model.config.num_attention_heads), 0
    for size in sorted({len(p) for p in paths}):
        rows = torch.tensor([[p[-1], *p[:-1]] for p in paths if len(p) == size])
        ids = node_ids(policy, int(rows.max()) + 1)[rows]
        weights = model(input_ids=ids, output_attentions=True).attentions[0]  # [B, heads, T, T]
        total += weights[:, :, 1:, 0].float().mean(2).sum(0).cpu() * (size - 1)
        count += len(rows) * (size - 1)
    return [float(x) for x in total / count]


def node_ids(policy: LanguagePolicy, nodes: int) -> Tensor:
    """[n] the token of each node."""
    return torch.tensor([policy.encode(name)[0] for name in NODES[:nodes]], device=policy.device)


def _only_layer(policy: LanguagePolicy) -> tuple[Any, Any]:
    """The causal model and its one layer."""
    model = policy.merged()
    layers: Sequence[Any] = getattr(model.base_model, "layers", ())
    if len(layers) != 1 or not hasattr(layers[0], "post_attention_layernorm"):
        raise ConfigError(
            f"The tables of a graph can be read from a Llama-type decoder of one layer (blank:1x120), got "
            f"{type(model).__name__} with {len(layers)}."
        )
    return model, layers[0]
