"""Low-rank adapters inside a causal language model, in peft's format."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from etude.core.errors import ConfigError, MissingExtraError
from etude.core.fields import Count, Positive, Probability
from etude.core.part import Part
from etude.core.streams import Stream

if TYPE_CHECKING:
    from peft import PeftModel
    from torch import nn
    from transformers import PreTrainedModel

    from etude.policies.protocols import Model

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


class Adapter(Part):
    """Low-rank adapters instead of full fine-tuning (peft): LoRA (arXiv:2106.09685), rsLoRA, DoRA.

    Args:
        rank: r of the update B A, [out, r] x [r, in].
        alpha: the update is scaled by alpha / r, or alpha / sqrt(r) for rsLoRA (arXiv:2312.03732).
        dropout: of the adapter's inputs in training; for methods that learn from data (sft, dpo). Drawn anew for each
            micro-batch, so with it micro_tokens changes numbers.
        weight_decomposed: DoRA (arXiv:2402.09353).
        targets: module names to adapt; 'all-linear' for every linear layer but the head.
        bits: 4 to hold the frozen base in 4 bits (QLoRA, arXiv:2305.14314), on CUDA; computed in bfloat16 unless
            `dtype` says otherwise.

    >>> Adapter(rank=4, alpha=8.0).rank * (64 + 32)  # numbers for a layer from 64 to 32
    384
    """

    slot = "adapter"
    rank: Count = 16
    alpha: Positive = 32.0
    dropout: Probability = 0.0
    rank_stabilized: bool = False
    weight_decomposed: bool = False
    targets: str = "all-linear"
    bits: Literal[4] | None = None

    def wrap(self, model: PreTrainedModel, stream: Stream) -> Model:
        """The model with adapters inside, their first weights drawn from `stream`.

        Raises: MissingExtraError without peft; ConfigError for targets that the model does not have.
        """
        import torch

        _require()
        from peft import LoraConfig, get_peft_model

        targets = self.targets if self.targets == "all-linear" else self.targets.split(",")
        config = LoraConfig(
            r=self.rank, lora_dropout=self.dropout, target_modules=targets,
            lora_alpha=self.alpha,  # type: ignore[arg-type]  # it only divides
            use_rslora=self.rank_stabilized, use_dora=self.weight_decomposed, task_type="CAUSAL_LM",
        )  # fmt: skip
        self._check_targets(model)
        with _quiet(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(stream.key)  # peft draws from it, on the CPU
            wrapped = get_peft_model(model, config)
        wrapped.eval()  # dropout is switched on where something is learned, and only there
        return wrapped

    def _check_targets(self, model: PreTrainedModel) -> None:
        names = {n.rpartition(".")[2] for n, m in model.named_modules() if getattr(m, "weight", None) is not None}
        wanted = [] if self.targets == "all-linear" else self.targets.split(",")
        if missing := [t for t in wanted if t.rpartition(".")[2] not in names]:
            raise ConfigError(
                f"Adapter.targets names {' and '.join(missing)}, and the model has no such module; it has "
                f"{', '.join(sorted(names))}. 'all-linear' takes every linear layer but the head."
            )


NAMED = {
    "lora": Adapter(), "rslora": Adapter(rank_stabilized=True), "dora": Adapter(weight_decomposed=True),
    "qlora": Adapter(bits=4),
}  # fmt: skip
"""Adapters that have a name."""


def adapter_of(given: object) -> Adapter | None:
    """The adapter that was asked for: by name, by its fields as JSON, or itself.

    >>> adapter_of("lora") == adapter_of({"rank": 16}) == Adapter()
    True

    Raises: ConfigError for anything else.
    """
    if given is None or isinstance(given, Adapter):
        return given
    if isinstance(given, Mapping):
        return Adapter().replace(**{k: v for k, v in given.items() if k != "part"})
    if not isinstance(given, str) or given not in NAMED:
        raise ConfigError(f"adapter must be one of {', '.join(map(repr, NAMED))} or none, got {given!r}.")
    return NAMED[given]


def named(adapter: Adapter) -> tuple[str, dict[str, Any]]:
    """The name that comes nearest to an adapter, and the fields in which it differs.

    >>> named(Adapter(weight_decomposed=True, rank=4))
    ('dora', {'rank': 4})
    """
    kinds = {"dora": adapter.weight_decomposed, "rslora": adapter.rank_stabilized, "qlora": adapter.bits is not None}
    name = next((name for name, of_it in kinds.items() if of_it), "lora")
    usual = NAMED[name].fields()
    return name, {k: v for k, v in adapter.fields().items() if v != usual[k]}


# In peft's format


def save(model: PeftModel, folder: Path, base: str) -> None:
    """Write an adapter as peft reads it.

    Args:
        base: where the model that it belongs to is found.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = get_peft_model_state_dict(model, save_embedding_layers=False)
    save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, folder / WEIGHTS, {"format": "pt"})
    config = copy.copy(model.peft_config["default"])
    config.base_model_name_or_path, config.inference_mode = base, True
    config.save_pretrained(str(folder))


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter, and no whole model."""
    return (folder / CONFIG).is_file()


def base_of(folder: Path) -> str:
    """The model that an adapter belongs to. Raises ConfigError if it does not say, or if its folder is gone."""
    base = json.loads((folder / CONFIG).read_text()).get("base_model_name_or_path")
    if not base or (Path(base).is_absolute() and not Path(base).is_dir()):
        raise ConfigError(
            f"{folder} holds an adapter for {base or 'a model that it does not name'}, which is not there: put it "
            f"back, or write in {CONFIG} where it is now."
        )
    return str(base)


def folded(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """A base with the adapter of a folder folded into its weights, which can be trained.

    Raises: MissingExtraError without peft.
    """
    _require()
    from peft import PeftModel

    with _quiet():
        merged: PreTrainedModel = PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
    merged.requires_grad_(True)  # peft froze the base, and all of it is what a run begins with
    merged.eval()
    return merged


def attached(model: PreTrainedModel, folder: Path) -> PeftModel:
    """A base with the adapter of a folder beside its weights, which are left as they are."""
    _require()
    from peft import PeftModel

    with _quiet():
        wrapped: PeftModel = PeftModel.from_pretrained(model, str(folder))
    wrapped.eval()
    return wrapped


def _require() -> None:
    try:
        import peft  # noqa: F401
    except ImportError:
        raise MissingExtraError("A LoRA adapter", "peft") from None


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        # peft asks transformers by names that will be removed in its version 6
        warnings.simplefilter("ignore", FutureWarning)
        yield


# Dropout


class Dropping:
    """An adapter's dropout, on only where something is learned, its random numbers the run's own.

    Args:
        model: with adapters.
        stream: what they are drawn from, at the version of the weights and the number of the forward pass.
    """

    def __init__(self, model: Model | None = None, stream: Stream | None = None) -> None:
        from torch import nn

        found = [] if model is None else [m for m in model.modules() if isinstance(m, nn.Dropout) and m.p]
        self.layers: Sequence[nn.Module] = found
        self.stream, self.version, self.count = stream or Stream(0), -1, 0

    @contextmanager
    def on(self, version: int, device: Any) -> Iterator[None]:
        """Drop out in what is computed here, if it is with gradient."""
        import torch

        if not self.layers or not torch.is_grad_enabled():
            yield
            return
        self.count = self.count + 1 if version == self.version else 0
        self.version = version
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.stream.split("dropout", version, self.count).key)
            for layer in self.layers:
                layer.training = True
            try:
                yield
            finally:
                for layer in self.layers:
                    layer.training = False
