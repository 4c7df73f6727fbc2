"""A language-model policy: any Hugging Face causal LM, with what reinforcement learning asks of it.

It samples (`generate`), says what it thinks of a batch (`evaluate`), and is saved in Hugging Face's format, so
plain transformers loads what etude trained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack, cast

import torch
from torch import Tensor, nn

from etude.core.batches import Head, TokenBatch, TokenLogProbs
from etude.core.draws import Draw
from etude.core.streams import Stream
from etude.policies import adapters, bases, quantized
from etude.policies.adapters import Adapter, Dropping
from etude.policies.cache import token_bytes
from etude.policies.conversation import Conversation
from etude.policies.forward import attend_in_float32, predictive_states
from etude.policies.loading import lasting, load_tokenizer, recomputation, recomputing_layers, resolve, shadow_from
from etude.policies.probe import check_model, check_text
from etude.policies.prompts import Held
from etude.policies.protocols import Backbone, Model, adapted
from etude.policies.sampling import Completion, Sampling, generate
from etude.policies.scoring import Output, scored
from etude.policies.shadow import Shadow
from etude.policies.templates import end_ids
from etude.policies.weights import Weights
from etude.runtime.ranks import Ranks

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from etude.policies.masters import Masters
    from etude.policies.protocols import Tilt


class PolicyOptions(TypedDict, total=False):
    """How a policy computes; see `LanguagePolicy`."""

    share_prompts: bool
    autocast: bool
    shadow: bool | None


class LanguagePolicy:
    """A causal language model being trained.

    Args:
        model: a Hugging Face causal LM (or a peft model around one).
        tokenizer: its tokenizer.
        share_prompts: compute a group's prompt once in the update as well.
        autocast: run the training forward in bfloat16.
        shadow: decode with a bfloat16 copy of the weights; None decides by size and hardware.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: PreTrainedTokenizerBase,
        *,
        share_prompts: bool = True,
        autocast: bool = False,
        shadow: bool | None = None,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.share_prompts, self.autocast = share_prompts, autocast
        self.device: torch.device = next(model.parameters()).device
        self.config = model.config.get_text_config()
        self.weights, self.reference_moved = Weights(model), False
        self.version = self.loads = 0  # updates, and how often other weights took their place
        self.emitted: set[int] = set()
        self.held: Held | None = None
        self.work: Counter[str] = Counter()  # tokens prefilled and sampled, judges asked; who reads it clears it
        self.shadow = self._shadow_pays() if shadow is None else shadow
        self._copy = Shadow(self.weights)
        self._recomputing: list[nn.Module] = []
        self._dropping = Dropping()
        self.base = str(getattr(model, "name_or_path", ""))
        self.tilting: Callable[[], Tilt | None] | None = None  # of whose learners say what is added to its logits
        if (
            self.device.type == "cuda"
        ):  # cuDNN's kernel is compiled anew for each shape, and no two batches have the same
            torch.backends.cuda.enable_cudnn_sdp(False)
        if autocast and self.device.type == "cpu":
            attend_in_float32(self._causal(model), self.backbone(self._causal(model)))
        check_model(self, self._causal(model))

    @classmethod
    def load(
        cls, name: str, *, device: str = "auto", dtype: str = "auto", adapter: Adapter | None = None,
        gradient_checkpointing: bool = False, stream: Stream | None = None, fold: bool = True,
        bits: int | None = None, **options: Unpack[PolicyOptions],
    ) -> LanguagePolicy:  # fmt: skip
        """Load `tiny`, `tiny-agent`, a local folder, or a hub name.

        A new adapter begins with weights from `stream` (of seed 0). It shares the tensors of its base (`bases.py`),
        and so does that of a folder that is not to be folded in; `bits` are of its base. Raises ConfigError in a
        sentence if it cannot.
        """
        stream, folder = stream or Stream(0), Path(resolve(name))
        beside = not fold and adapters.is_adapter(folder)
        base, bits = (adapters.base_of(folder), bits) if beside else (name, adapter.bits if adapter else None)
        plain = bases.find(base, device, dtype, bits, shares=beside or adapter is not None)
        layers = recomputing_layers(plain) if gradient_checkpointing else []
        if layers:
            options["share_prompts"] = False  # layers that are computed again cannot keep a cache
        model = adapters.attached(plain, folder) if beside else adapter.wrap(plain, stream) if adapter else plain
        policy = cls(model, load_tokenizer(name), **options)
        policy._recomputing, policy.base = layers, lasting(base)
        if adapter:
            policy._dropping = Dropping(policy.model, stream)
        if (saved := policy.weights.saved_value_head(folder)) is not None:
            policy.add_value_head().load_state_dict(saved)
        return policy

    # Tokens and text

    @property
    def end_ids(self) -> list[int]:
        """Tokens that end a completion: the model's, the tokenizer's, and the one that ends a turn in its template."""
        return end_ids(self.model, self.tokenizer)

    @property
    def voices(self) -> int:
        """By how many voices a word can be said, each an output of its own: 1 of most models (see `selective.py`)."""
        return int(getattr(self.config, "voices", 1))

    @property
    def context(self) -> int:
        """Most tokens that the model can attend to."""
        return int(getattr(self.config, "max_position_embeddings", None) or 1 << 30)

    @torch.no_grad()
    def cache_bytes(self, length: int) -> int:
        """Bytes that the cache of one completion takes while it is sampled, at `length` tokens with the prompt."""
        growing, fixed = token_bytes(self.backbone(self._causal(self.model)), self.config, self.device)
        return (growing * length + fixed) // (2 if self.shadow else 1)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, no special tokens added. Raises ConfigError for one that the model does not embed."""
        tokens: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        check_text(text, tokens, self)
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, without the special ones: a view for people and verifiers."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    # Sampling

    def sampler(self) -> PreTrainedModel:
        """The model that decodes, its weights those of this version."""
        if not self.shadow:
            return self._causal(self.model)
        return self._copy.at((self.version, self.loads), lambda: self.refresh_sampler())

    @property
    def tilt(self) -> Tilt | None:
        """What is added to its logits where tokens are drawn, as it is now; None: nothing."""
        return None if self.tilting is None else self.tilting()

    def refresh_sampler(self) -> None:
        """Copy the trained weights into the bfloat16 sampler, and remember their fingerprint."""
        self._copy.refresh((self.version, self.loads))

    def check_sampler(self) -> None:
        """Invariant 2: the sampler carries the fingerprint of this version's weights. Raises InvariantError."""
        if self.shadow and self._copy.model is None:
            return
        sampler = self.sampler()
        if sampler is not self._causal(self.model):  # else the trained weights themselves
            self._copy.check(sampler, self.version)

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, draws: Sequence[Draw], begun: Sequence[int] = ()
    ) -> list[Completion]:
        """One completion per prompt; see `etude.policies.sampling.generate`. What it emitted is remembered."""
        return generate(self, prompts, sampling, draws, begun)

    def converse(self) -> Conversation:
        """Rows that stay open between turns."""
        return Conversation(self)

    # What it thinks of a batch

    def evaluate(self, batch: TokenBatch, needs: Iterable[str] = ()) -> TokenLogProbs:
        """Log-probabilities of the action tokens, and what else is needed ('entropy', 'values', 'hidden', 'logits')."""
        return self._evaluate(self.model, batch, frozenset(needs))

    def evaluate_together(self, batch: TokenBatch, needs: Iterable[str] = ()) -> TokenLogProbs:
        """`evaluate`, of all ranks at once, each of its own rows: the one pass that weights divided among them take."""
        shards = self.weights.shards
        return self.evaluate(batch, needs) if shards is None else shards(batch, frozenset(needs))

    @property
    def sampler_is_more_precise(self) -> bool:
        """Whether it samples in another precision than the training forward has: autocast is for that alone."""
        return self.autocast and not self.shadow

    @contextmanager
    def as_precise_as_its_sampler(self) -> Iterator[None]:
        """Log-probabilities as the sampler computes them, but for the order of sums."""
        autocast, self.autocast = self.autocast, self.autocast and self.shadow
        try:
            yield
        finally:
            self.autocast = autocast

    @torch.no_grad()
    def reference_logp(self, batch: TokenBatch) -> Tensor:
        """[B, T] log-probabilities under the reference policy, which may say whatever it wants."""
        free = batch.replace(allowed=None, tilts=None)
        if adapted(self.model):
            with self.model.disable_adapter():
                return self._evaluate(self.model, free, frozenset()).logp
        assert self.reference is not None  # kept before training, as of every method that reads it
        return self._evaluate(self.reference, free, frozenset()).logp

    def keep_reference(self) -> None:
        """Freeze the current weights as the reference; with an adapter, switching it off is the reference."""
        self.weights.keep_reference()

    def move_reference(self, fraction: float, towards: dict[str, Tensor] | None = None) -> None:
        """reference <- (1 - fraction) reference + fraction policy, or towards other weights by name."""
        self.weights.move_reference(fraction, towards)
        self.reference_moved = True

    def _evaluate(self, model: Model, batch: TokenBatch, needs: frozenset[str]) -> TokenLogProbs:
        causal = self._causal(model)
        cast = torch.autocast(self.device.type, torch.bfloat16) if self.autocast else nullcontext()
        with cast, recomputation(self._recomputing_of(model)), self._dropping.on(self.version, self.device):
            hidden = predictive_states(self.backbone(causal), self.config, batch, self.share_prompts, self.held)
        values = self.add_value_head() if "values" in needs else None
        return scored(Output.of(causal, self.config), hidden, batch, needs, values)

    def _recomputing_of(self, model: Model) -> list[nn.Module]:
        """Those layers of a model that compute again what they do not keep."""
        if model is self.model or not self._recomputing:
            return self._recomputing
        return [m for m in model.modules() if getattr(m, "gradient_checkpointing", False)]

    # Weights

    def divide(self, ranks: Ranks) -> None:
        """Divide the weights among ranks, all of which do so at once; the first one keeps them whole as well.

        Raises: ConfigError where they cannot be divided.
        """
        self.weights.divide(self._evaluate, ranks)
        self.model, self.share_prompts = self.weights.model, False  # a prompt of its own would be a pass of its own

    @property
    def has_adapter(self) -> bool:
        """Whether only adapters are trained."""
        return adapted(self.model)

    @property
    def masters(self) -> Masters:
        """The trained weights as the optimizer knows them."""
        return self.weights.masters

    @property
    def reference(self) -> Model | None:
        """The frozen reference, where one is kept."""
        return self.weights.reference

    @property
    def value_head(self) -> nn.Linear | None:
        """The head on the last hidden states that says values, where there is one."""
        return self.weights.value_head

    def parameters(self) -> list[nn.Parameter]:
        """What is trained: of weights in 16 bits their float32 masters."""
        return self.weights.parameters()

    @property
    def width(self) -> int:
        """Size of the last hidden states."""
        return int(self._causal(self.model).get_output_embeddings().weight.shape[1])  # hidden_size may be another

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes in, and is saved in: shards of its weights may have more bits."""
        shards = self.weights.shards
        return self.model.dtype if shards is None else shards.dtype

    @property
    def head_dtype(self) -> torch.dtype:
        """What heads beside the model's own compute in."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def add_value_head(self) -> nn.Linear:
        """The value head, [H] -> 1 in float32 (float64 for a float64 model), made with zero weights on first use."""
        if self.weights.value_head is None:
            self.weights.value_head = head = nn.Linear(self.width, 1, device=self.device, dtype=self.head_dtype)
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
        return self.weights.value_head

    def updated(self) -> None:
        """Say that an optimizer step changed the parameters."""
        self.masters.publish()
        self.version += 1

    def backbone(self, causal: PreTrainedModel) -> Backbone:
        """The model without its head."""
        return cast("Backbone", causal.base_model)

    def head_logits(self, causal: PreTrainedModel, hidden: Tensor) -> Tensor:
        """Logits [N, V] of hidden states [N, H], in float32."""
        return Output.of(causal, self.config).logits(hidden)

    def head(self, temperature: float = 1.0) -> Head:
        """The last layer as it is now, without gradient: a copy, which later updates leave alone."""
        return Output.of(self._causal(self.model), self.config).copied(temperature)

    def merged(self) -> PreTrainedModel:
        """The causal LM with adapters folded in."""
        return self.weights.merged()

    def save(self, folder: Path) -> None:
        """Write model, tokenizer and value head in Hugging Face's format; with an adapter, that alone in peft's."""
        self.weights.save(folder, self.base)
        self.tokenizer.save_pretrained(folder)

    def tensors(self) -> dict[str, Tensor]:
        """Every trained tensor and the reference, by name: what an exact resume needs."""
        return self.weights.tensors()

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `tensors` returned."""
        if any(k.startswith("value_head.") for k in tensors):
            self.add_value_head()
        if any(k.startswith("reference.") for k in tensors):
            self.keep_reference()
        self.weights.load(tensors)
        self.loads += 1  # a sampler of the same version number may hold other weights

    def _causal(self, model: Model) -> PreTrainedModel:
        return cast("PreTrainedModel", model.get_base_model()) if adapted(model) else model

    def _shadow_pays(self) -> bool:
        whole = self.model.dtype == torch.float32 and not quantized.is_quantized(self.model)
        return whole and sum(p.numel() for p in self.model.parameters()) >= shadow_from(self.device)
