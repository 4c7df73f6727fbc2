"""What etude asks of transformers' models, where their own types do not say it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from torch import Tensor, nn

if TYPE_CHECKING:
    import numpy as np
    from peft import PeftModel
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
    from typing_extensions import TypeIs

    from etude.core.draws import Draw
    from etude.policies.sampling import Completion, Sampling

Model: TypeAlias = "PreTrainedModel | PeftModel"
"""A causal language model, or peft's wrapper around one."""


class Speaker(Protocol):
    """What texts are encoded by: a policy, or its tokenizer alone."""

    tokenizer: PreTrainedTokenizerBase

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, no special tokens added."""
        ...


class Engine(Protocol):
    """What samples: rows of tokens, named by handles, that stay open between turns.

    Plain numbers go in and come out. `etude.policies.conversation.Conversation` is one, and says what each of these
    does; another may stand behind the same calls.
    """

    def open(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """A row for each prompt; handles."""
        ...

    def extend(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """Append what was observed to rows."""
        ...

    def rewind(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        """Let rows hold only the first so many of their tokens; something is appended before they are sampled from."""
        ...

    def sample(
        self, rows: Sequence[int], sampling: Sampling, draws: Sequence[Draw], begun: Sequence[int] = (),
        last: bool = False,
    ) -> list[Completion]:  # fmt: skip
        """One completion for each row, which then holds it; the last one closes it."""
        ...

    def following(self, rows: Sequence[int], room: int) -> Tensor:
        """Logits [N, V] of what could come after rows, which are appended to before they are asked again."""
        ...

    def fork(self, rows: Sequence[int]) -> list[int]:
        """Rows that go on from where these are; handles."""
        ...

    def close(self, rows: Sequence[int]) -> None:
        """Forget rows."""
        ...

    def tokens(self, row: int) -> Sequence[int]:
        """All that a row holds."""
        ...


class Within(Protocol):
    """What says which tokens may be drawn."""

    def begin(self, rows: Sequence[Sequence[int]], room: int) -> Reader:
        """Read rows before anything is drawn behind them, at most `room` tokens behind each."""
        ...


class Reader(Protocol):
    """What reads along while rows are sampled; rows are named by their places in `Within.begin`."""

    def allowed(self, rows: np.ndarray) -> Tensor:
        """[N, V] True on the tokens that may come next in these rows, one of them at least."""
        ...

    def said(self, rows: np.ndarray, tokens: Tensor) -> None:
        """These rows go on with these tokens [N]."""
        ...


class Tilt(Protocol):
    """What is added to a policy's logits where tokens are drawn."""

    def begin(self, rows: Sequence[Sequence[int]], room: int) -> TiltReader:
        """Read rows before anything is drawn behind them, at most `room` tokens behind each."""
        ...


class TiltReader(Protocol):
    """What reads along while rows are sampled, and says how the logits change; rows are named as for `Reader`."""

    def tilts(self, rows: np.ndarray) -> Tensor:
        """[N, V] what is added to the logits of the tokens that may come next in these rows."""
        ...

    def said(self, rows: np.ndarray, tokens: Tensor) -> None:
        """These rows go on with these tokens [N]."""
        ...


class Decoder(Protocol):
    """Rows and what attention needs of their tokens. Those that do not rest are the N that are fed."""

    rewinds: ClassVar[bool]
    """Whether rows can be rewound to any token behind their prompt."""

    @property
    def size(self) -> int:
        """Rows that it holds, those that rest included."""
        ...

    def __call__(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Hidden states [N, H] after one token for each row: tokens [N] at positions [N]."""
        ...

    def extend(self, tokens: Sequence[Sequence[int]], begun: Sequence[int]) -> Tensor:
        """Hidden states [N, H] of the last of the tokens that each row is given, which has `begun` of them so far."""
        ...

    def narrow(self, rows: Tensor) -> None:
        """Let all but these, numbers among the N, rest as they are until `widen`."""
        ...

    def widen(self) -> None:
        """Have all rows again, in the order in which they were."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Drop all other rows for good. None may rest."""
        ...

    def join(self, other: Any) -> None:
        """Take the rows of another one, of the same model and kind, behind the own. None may rest."""
        ...

    def fork(self, rows: Tensor) -> None:
        """Add rows behind the others that go on from where these are. None may rest."""
        ...

    def rewind(self, rows: Sequence[int], counts: Sequence[int]) -> list[bool]:
        """Let rows have only the first so many of their tokens, where that can be. None may rest."""
        ...

    def fitting(self, limit: int) -> int:
        """How many of the first rows take no more than `limit` bytes."""
        ...


class States(Protocol):
    """What a backbone returns."""

    last_hidden_state: Tensor


class Backbone(Protocol):
    """A causal language model without its head: tokens to hidden states."""

    training: bool
    config: PreTrainedConfig

    def __call__(self, **inputs: object) -> States:
        """Hidden states [B, T, H] of `input_ids` [B, T]."""
        ...

    def forward(self, **inputs: object) -> States:
        """What the call does."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """Its weights."""
        ...


def adapted(model: Model) -> TypeIs[PeftModel]:
    """Whether only adapters inside the model are trained."""
    return hasattr(model, "disable_adapter")


def embedded(causal: PreTrainedModel) -> int:
    """How many tokens the model has an embedding for."""
    weight = causal.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    return weight.shape[0]
