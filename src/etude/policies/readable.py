"""Language models small enough to be read: their weights are tables of a graph, their logits are written down here.

Tokens are the nodes of a graph (and, in prompts of chains, its edges), read by a tokenizer that knows nothing else.

    two-matrices:N       z = W_M[current] + W_V[target]         ALPINE's model (arXiv:2405.09220), task `paths`
    path-table:N         z = f[target, current]                 any f (arXiv:2509.22613), task `paths`
    linear-attention:N   z = ((c * A[current]) V) / 0.2         task `chains` (arXiv:2601.15158)

with N nodes, the target being the first token of the prompt, the current node the last token, and c [N + N^2] how often
each node and each edge has occurred so far. A walk ends where it has to: at the target, or at the end of a chain, the
end token has probability 1, and elsewhere 0; so nothing of the weights is spent on it.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, one_hot
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

from etude.core.errors import ConfigError
from etude.policies.byte_tokenizer import END, NODES, PAD, VERTICES
from etude.policies.loading import READABLE_TYPE

UNKNOWN = "<|unknown|>"
FAR = 1e4
"""A logit of minus this is a probability of exactly 0."""
START = 1e-8
"""Standard deviation of the first weights of linear attention, the paper's; of zeros its gradient would be zero."""


class ReadableConfig(PretrainedConfig):
    """Which kind of table, over how many nodes."""

    model_type = READABLE_TYPE

    def __init__(self, kind: str = "two-matrices", nodes: int = 8, **options: Any) -> None:
        self.kind, self.nodes = kind, nodes
        self.vocab_size = nodes + KINDS[kind].tables.pairs * nodes**2 + 3
        self.hidden_size, self.num_hidden_layers = nodes + 1, 1
        options = {"eos_token_id": self.vocab_size - 3, "pad_token_id": self.vocab_size - 2, **options}
        super().__init__(**{"tie_word_embeddings": False, **options})


class Tables(nn.Module):
    """The weights, and what they say: states [N, T, n + 1] of T new tokens, the logits of all nodes and of the end.

    What was read before is kept in transformers' cache, token numbers as keys. `pairs`: edges are tokens, too.
    Logits are divided by `temperature`.
    """

    pairs: ClassVar[bool] = False
    temperature: ClassVar[float] = 1.0

    def __init__(self, config: ReadableConfig) -> None:
        super().__init__()
        self.nodes = config.nodes

    def said(self, ids: Tensor, real: Tensor, new: int) -> tuple[Tensor, Tensor]:
        """Logits [N, T, n] after each of the last T = `new` of the tokens [N, S], and whether the walk ends [N, T]."""
        raise NotImplementedError

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None,
        past_key_values: Any = None, use_cache: bool = False,
    ) -> BaseModelOutput:  # fmt: skip
        """`attention_mask` [N, S] covers all tokens so far, the new ones being the last; positions do not matter."""
        ids = input_ids
        if past_key_values is not None:
            numbers = ids[:, None, :, None].to(torch.float32)  # exact up to 2^24
            ids = past_key_values.update(numbers, numbers, 0)[0][:, 0, :, 0].long()
        real = torch.ones_like(ids) if attention_mask is None else attention_mask.long()
        logits, ended = self.said(ids, real, input_ids.shape[1])
        logits = (logits / self.temperature).masked_fill(ended[..., None], -FAR)
        end = torch.where(ended, 0.0, -FAR).to(logits)
        return BaseModelOutput(last_hidden_state=torch.cat([logits, end[..., None]], -1))

    def current_and_target(self, ids: Tensor, real: Tensor, new: int) -> tuple[Tensor, Tensor]:
        """The last tokens [N, T], and the first one of each row [N, T]; what is no node counts as the last node."""
        target = ids.gather(1, real.argmax(1, keepdim=True)).expand(-1, new)
        return ids[:, -new:].clamp(max=self.nodes - 1), target.clamp(max=self.nodes - 1)


class TwoMatrices(Tables):
    """z = W_M[current] + W_V[target], both [n, n], zeros at first: attention that sees nothing but the target."""

    def __init__(self, config: ReadableConfig) -> None:
        super().__init__(config)
        self.w_m, self.w_v = (nn.Parameter(torch.zeros(self.nodes, self.nodes)) for _ in range(2))

    def said(self, ids: Tensor, real: Tensor, new: int) -> tuple[Tensor, Tensor]:
        current, target = self.current_and_target(ids, real, new)
        return self.w_m[current] + self.w_v[target], current == target


class PathTable(Tables):
    """z = f[target, current] with f [n, n, n], zeros at first."""

    def __init__(self, config: ReadableConfig) -> None:
        super().__init__(config)
        self.f = nn.Parameter(torch.zeros(self.nodes, self.nodes, self.nodes))

    def said(self, ids: Tensor, real: Tensor, new: int) -> tuple[Tensor, Tensor]:
        current, target = self.current_and_target(ids, real, new)
        return self.f[target, current], current == target


class LinearAttention(Tables):
    """z = (c * A[current]) V with A [n, C] and V [C, n], C = n + n^2, entries N(0, 1e-16) at first.

    A chain ends at a node that edges lead to, and none from.
    """

    pairs = True
    temperature = 0.2

    def __init__(self, config: ReadableConfig) -> None:
        super().__init__(config)
        types = self.nodes + self.nodes**2
        self.queries = nn.Parameter(START * torch.randn(self.nodes, types))
        self.values = nn.Parameter(START * torch.randn(types, self.nodes))

    def said(self, ids: Tensor, real: Tensor, new: int) -> tuple[Tensor, Tensor]:
        n, types = self.nodes, len(self.values)
        seen = one_hot(ids.clamp(max=types), types + 1)[..., :types] * real[..., None]
        counts = seen.to(self.values.dtype).cumsum(1)[:, -new:]
        current = ids[:, -new:].clamp(max=n - 1)
        edges = counts[..., n:].unflatten(-1, (n, n))
        after, before = (edges.sum(d).gather(-1, current[..., None])[..., 0] for d in (-1, -2))
        return (counts * self.queries[current]) @ self.values, (before > 0) & (after == 0)


class Spelled(nn.Module):
    """The output layer, with nothing to learn: logits of tokens [.., V] from those of nodes and the end [.., n + 1]."""

    def __init__(self, config: ReadableConfig) -> None:
        super().__init__()
        n, size = config.nodes, config.vocab_size
        weight = torch.zeros(size, n + 1)
        weight[torch.arange(n + 1), torch.arange(n + 1)] = 1.0
        weight[[n, size - 3]] = weight[[size - 3, n]]
        self.weight: Tensor
        self.bias: Tensor
        self.register_buffer("weight", weight)
        self.register_buffer("bias", torch.where(weight.any(1), 0.0, -FAR))

    def forward(self, states: Tensor) -> Tensor:
        return linear(states, self.weight, self.bias)


class Readable(PreTrainedModel):
    """A table of some kind, and the spelling of what it says."""

    config_class = ReadableConfig
    base_model_prefix = "model"
    generation_config = None  # type: ignore[assignment]  # transformers allows it

    def __init__(self, config: ReadableConfig) -> None:
        super().__init__(config)
        self.model, self.head = KINDS[config.kind].tables(config), Spelled(config)
        self.post_init()  # type: ignore[no-untyped-call]  # of transformers

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: tables are made with their first weights."""

    def get_input_embeddings(self) -> Spelled:
        """Something with a row for every token."""
        return self.head

    def get_output_embeddings(self) -> Spelled:
        return self.head

    def forward(self, input_ids: Tensor, **inputs: Any) -> CausalLMOutput:
        return CausalLMOutput(logits=self.head(self.model(input_ids, **inputs).last_hidden_state))


class Kind(NamedTuple):
    """A kind of table, and the names of nodes."""

    tables: type[Tables]
    names: str


KINDS = {
    "two-matrices": Kind(TwoMatrices, NODES),
    "path-table": Kind(PathTable, NODES),
    "linear-attention": Kind(LinearAttention, VERTICES),
}
AutoConfig.register(ReadableConfig.model_type, ReadableConfig)
AutoModelForCausalLM.register(ReadableConfig, Readable)


def readable(name: str, seed: int = 0) -> Readable:
    """The model that the name asks for, in float32: the same weights every time for a seed."""
    kind, nodes = _asked(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Readable(ReadableConfig(kind=kind, nodes=nodes))


def readable_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """Its tokenizer: a token for each node, with edges one for each pair of nodes, as in 'cb ' or 'cb>'."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    kind, nodes = _asked(name)
    names = KINDS[kind].names[:nodes]
    edges = [f"{a}{b} " for a in names for b in names] if KINDS[kind].tables.pairs else []
    tokens = {token: i for i, token in enumerate([*names, *edges, END, PAD, UNKNOWN])}
    core = Tokenizer(models.WordLevel(tokens, UNKNOWN))
    if edges:
        core.normalizer = normalizers.Replace(">", " ")
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"\S\S |." if edges else "."), "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token=PAD, eos_token=END, unk_token=UNKNOWN, padding_side="left",
        clean_up_tokenization_spaces=False,
    )  # fmt: skip


def _asked(name: str) -> tuple[str, int]:
    """Kind and number of nodes. Raises ConfigError for more nodes than there are names for."""
    kind, _, size = name.partition(":")
    nodes, most = int(size), len(KINDS[kind].names)
    if not 4 <= nodes <= most:
        raise ConfigError(f"{kind} takes 4 to {most} nodes, as there are names for, got {nodes}.")
    return kind, nodes
