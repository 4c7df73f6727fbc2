"""A frozen base in 4 bits below an adapter: QLoRA (arXiv:2305.14314), by bitsandbytes, on CUDA.

The base is quantised while it loads, and what is trained over it never changes it. Whatever writes a whole model folds
the adapter into the base as it lies on the disk, in full: 4 bits are a way to hold it, not what is saved.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.errors import ConfigError, EtudeError, MissingExtraError

if TYPE_CHECKING:
    import torch
    from torch import nn

BITS = 4
PACKAGES = ("bitsandbytes", "accelerate")


def lacking(device: torch.device) -> EtudeError | None:
    """What is missing to hold a base in 4 bits here, as an error to raise; None if nothing is."""
    if device.type != "cuda":
        return ConfigError(
            f"A base in 4 bits (adapter.bits=4, QLoRA) is computed on CUDA alone, and this run is on {device.type}: "
            "leave it out; adapter='lora' with dtype='bfloat16' holds the base in half the memory of float32."
        )
    if any(importlib.util.find_spec(name) is None for name in PACKAGES):
        return MissingExtraError("A base in 4 bits", "quantized")
    return None


def check(name: str, dtype: torch.dtype, device: torch.device) -> None:
    """Raise ConfigError or MissingExtraError for a base that cannot be held in 4 bits, here or at all."""
    import torch

    from etude.policies import adapters, loading

    if error := lacking(device):
        raise error
    if dtype == torch.float64:
        raise ConfigError("A base in 4 bits is computed in bfloat16 or float32, got dtype='float64'.")
    if loading.is_blank(name) or loading.is_readable(name) or loading.WIDE.fullmatch(name):
        raise ConfigError(f"{name} is made in memory; a base in 4 bits is loaded from a folder or the hub.")
    if adapters.is_adapter(Path(loading.resolve(name))):
        raise ConfigError(
            f"{name} holds an adapter, which is not folded into a base in 4 bits: write the whole model first (etude "
            "export RUN DIR --merge), and name that."
        )


def options(dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """What `from_pretrained` is told: NF4, its constants quantised once more, computed in `dtype`."""
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    return {"quantization_config": config, "device_map": {"": device}}


def check_folding(model: nn.Module) -> None:
    """Raise ConfigError for a model into which an adapter cannot be folded without rounding it."""
    if is_quantized(model):
        raise ConfigError(
            "The base is held in 4 bits, and an adapter folded into it would be rounded to them: fold it into the "
            "whole base, as `etude export --merge` does."
        )


def is_quantized(model: nn.Module) -> bool:
    """Whether some of a model's weights are held in fewer bits."""
    return any(hasattr(p, "quant_state") for p in model.parameters())
