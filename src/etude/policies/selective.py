"""A frozen language model and an adapter that share the pen: a selector says token by token whose word comes next.

With h_t the frozen model's last state of all tokens so far, whoever wrote them (arXiv:2209.08206),

    z_t = LSTM(h_t),    p_0 = softmax(E h_t),    p_1 = softmax(E' (h_t + W z_t)),    lambda_t = softmax(U z_t)

and the next token is w by voice k with the joint probability lambda_t(k) p_k(w). The model says these as one
distribution over 2 V outputs, output k V + w being word w by voice k, so what samples it draws both at once, top-p and
top-k filter both together ("cat"), and the word alone has the chance lambda_t(0) p_0(w) + lambda_t(1) p_1(w). E' begins
as E. Only LSTM, W, E' and U learn. `adapter:` is the same with lambda_t = (0, 1): the adapter writes alone.

The states that everything is computed from, [h, h + W z, z, c / 2^14] with c = log lambda - log sum exp of each
voice's logits, are what the output layer is linear in. So small, c sways nothing else that reads them (a value head).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

from etude.policies.loading import SELECTIVE_TYPE, move

FAR = 2.0**14
"""A logit of minus this is a probability of exactly 0. States say c in parts of it, a power of two and so exactly."""
LAYERS, MOST = 2, 512
"""Layers of the LSTM, and its width at most: it is as wide as the frozen model up to there."""


class SelectiveConfig(PretrainedConfig):
    """The frozen model's configuration, and how wide the adapter is; `alone`: whether it writes alone."""

    model_type = SELECTIVE_TYPE

    def __init__(
        self, frozen: dict[str, Any] | None = None, width: int = 8, alone: bool = False, **options: Any
    ) -> None:
        frozen = frozen or {"model_type": "llama", "vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1}
        self.frozen, self.width, self.alone, self.voices = frozen, width, alone, 2
        self.vocab_size, size = int(frozen["vocab_size"]), int(frozen["hidden_size"])
        self.hidden_size, self.num_hidden_layers = 2 * size + width + 2, int(frozen["num_hidden_layers"]) + 1
        self.max_position_embeddings = frozen.get("max_position_embeddings")
        ends = {k: frozen.get(k) for k in ("eos_token_id", "pad_token_id", "bos_token_id")}
        super().__init__(**{"tie_word_embeddings": False, **ends, **options})


class Voices(nn.Module):
    """Tokens to states [N, T, 2 H + width + 2]. Frozen states of what was read before are kept as keys in the cache."""

    def __init__(self, config: SelectiveConfig) -> None:
        super().__init__()
        inner = AutoConfig.for_model(**config.frozen)
        self.frozen: PreTrainedModel = AutoModelForCausalLM.from_config(inner)
        size, self.place, self.alone = inner.hidden_size, inner.num_hidden_layers, config.alone
        self.lstm = nn.LSTM(size, config.width, LAYERS, batch_first=True)
        self.towards = nn.Linear(config.width, size)
        self.words = nn.Linear(size, inner.vocab_size, bias=False)
        self.selector = nn.Linear(config.width, 2)
        self.frozen.requires_grad_(False)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None,
        past_key_values: Any = None, use_cache: bool = False,
    ) -> BaseModelOutput:  # fmt: skip
        """`attention_mask` [N, S] covers all tokens so far, the new ones being the last."""
        with torch.no_grad():
            h: Tensor = self.frozen.base_model(
                input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                past_key_values=past_key_values, use_cache=use_cache,
            ).last_hidden_state  # fmt: skip
        seen = h
        if past_key_values is not None:
            seen = past_key_values.update(h[:, None], h[:, None], self.place)[0][:, 0]
        return BaseModelOutput(last_hidden_state=self.states(h, self.remembered(seen, attention_mask, h.shape[1])))

    def remembered(self, seen: Tensor, mask: Tensor | None, new: int) -> Tensor:
        """z [N, T, width] of the last T = `new` of the states [N, S, H] so far; padding on the left is not read."""
        count = seen.shape[1]
        columns = torch.arange(count, device=seen.device)
        first = torch.zeros_like(seen[:, 0, 0], dtype=torch.long) if mask is None else mask[:, -count:].int().argmax(1)
        rows = torch.arange(len(seen), device=seen.device)[:, None]
        out, _ = self.lstm(seen[rows, (columns + first[:, None]).clamp(max=count - 1)])
        found: Tensor = out[rows, (columns[-new:] - first[:, None]).clamp(min=0)]
        return found

    def states(self, h: Tensor, z: Tensor) -> Tensor:
        """[h, h + W z, z, c / FAR], of which the joint logits are a linear function."""
        g, frozen = h + self.towards(z), self.frozen.get_output_embeddings()
        with torch.no_grad():
            first = frozen(h).logsumexp(-1)
        normalisers = torch.stack([first, self.words(g).logsumexp(-1)], -1)
        chosen = self.selector(z).log_softmax(-1)
        if self.alone:
            chosen = torch.zeros_like(chosen) - torch.tensor([FAR, 0.0]).to(chosen)
        return torch.cat([h, g, z, (chosen - normalisers) / FAR], -1)


class Joint(nn.Module):
    """The output layer over words by voice: nothing of its own to learn."""

    def __init__(self, voices: Voices) -> None:
        super().__init__()
        self.voices = (voices,)  # whose weights they are: not registered a second time

    @property
    def weight(self) -> Tensor:
        """[2 V, 2 H + width + 2]."""
        (own,) = self.voices
        frozen, words = own.frozen.get_output_embeddings().weight, own.words.weight
        size, width, far = words.shape[1], own.lstm.hidden_size, words.new_full((len(words), 1), FAR)
        first = pad(torch.cat([pad(frozen, (0, size + width)), far], 1), (0, 1))
        return torch.cat([first, torch.cat([pad(words, (size, width + 1)), far], 1)])

    def forward(self, states: Tensor) -> Tensor:
        return linear(states, self.weight)


class Selective(PreTrainedModel):
    """A frozen model, an adapter and a selector, as one causal language model with two outputs for each word."""

    config_class = SelectiveConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"

    def __init__(self, config: SelectiveConfig) -> None:
        super().__init__(config)
        self.model = Voices(config)
        self.joint = Joint(self.model)
        self.post_init()  # type: ignore[no-untyped-call]  # of transformers

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: modules are made with their first weights."""

    @property
    def generation_config(self) -> Any:  # type: ignore[override]  # it is not set here
        """What ends a text is the frozen model's."""
        return self.model.frozen.generation_config

    def get_input_embeddings(self) -> nn.Module:
        embeddings: nn.Module = self.model.frozen.get_input_embeddings()
        return embeddings

    def get_output_embeddings(self) -> Joint:
        return self.joint

    def forward(self, input_ids: Tensor, **inputs: Any) -> CausalLMOutput:
        return CausalLMOutput(logits=self.joint(self.model(input_ids, **inputs).last_hidden_state))


AutoConfig.register(SelectiveConfig.model_type, SelectiveConfig)
AutoModelForCausalLM.register(SelectiveConfig, Selective)


def selective(frozen: PreTrainedModel, alone: bool = False, seed: int = 0) -> Selective:
    """A new adapter beside a model, in its dtype: the same weights every time for a seed."""
    known = frozen.config.to_dict()
    if frozen.generation_config is not None:
        known["eos_token_id"] = frozen.generation_config.eos_token_id
    config = SelectiveConfig(known, width=min(MOST, int(frozen.config.hidden_size)), alone=alone)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = Selective(config)
    made.model.frozen.load_state_dict(frozen.state_dict())
    with torch.no_grad():
        made.model.words.weight.copy_(frozen.get_output_embeddings().weight)
    move(made, frozen.device, frozen.dtype)
    made.eval()  # type: ignore[no-untyped-call]  # of transformers
    return made
