"""Finding and loading causal language models: `tiny`, `tiny-agent`, a local folder, or a name on the Hugging Face hub.

A name like `blank:1x120`, or `blank:2x64x4` with four heads, is a model that has learned nothing: a Llama-type decoder
of so many layers and so wide, with tiny's tokenizer and random weights that are the same in every run, or with a token
for each word of a family of tasks, as `blank:2x128@tools` (`word_tokenizer.py`). Names like `two-matrices:30` are
models small enough to be read, see `readable.py`. `selective:NAME` is a new adapter beside a model of any of these
names, which stays as it is, and a selector of who writes each token (`selective.py`). `wide:2x4:NAME` is a wider model
that says what NAME says (`wide.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from etude.core.errors import ConfigError
from etude.policies import adapters, quantized
from etude.policies.word_tokenizer import build_word_tokenizer

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

HUB_TIMEOUT = 5.0
"""Seconds that the hub has to answer before only models on this machine are looked for."""
BUILT_IN = {name: Path(__file__).parent / name for name in ("tiny", "tiny-agent")}
BLANK = re.compile(r"blank:([1-9]\d*)x([1-9]\d*)(?:x([1-9]\d*))?(?:@(\w+))?")
"""Layers, width, heads (one if not given) and family of words (if any) of a model without pre-training."""
READABLE = {"two-matrices": 30, "path-table": 30, "linear-attention": 8}
"""Models small enough to be read, each with the number of nodes that its task has by default."""
READABLE_TYPE = "etude-readable"
BESIDE = re.compile("(selective|adapter):(.+)")
"""A new adapter beside a model that stays frozen, with a selector or alone (`selective.py`), and that model's name."""
SELECTIVE_TYPE = "etude-selective"
WIDE = re.compile(r"wide:([1-9]\d*)x([1-9]\d*):(.+)")
"""Times the hidden width, times the width of feed-forward layers, and the model that is widened (`wide.py`)."""
BLANK_SEED = 0
BLANK_POSITIONS = 512


def resolve(name: str) -> str:
    """Where transformers finds the model: a folder or a hub name."""
    return str(BUILT_IN.get(name, name))


def lasting(name: str) -> str:
    """What a model will be found by later, from any folder: an absolute path where it is one, else its name."""
    where = Path(resolve(name))
    return str(where.resolve()) if where.exists() else name


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, with end and padding tokens checked (faults row 19)."""
    from transformers import AutoTokenizer

    if (inside := named(name)) != name:
        return load_tokenizer(inside)
    if is_readable(name):
        readable: PreTrainedTokenizerBase = _readable().readable_tokenizer(name)
        return readable
    if is_blank(name):
        if family := _family(name):
            return build_word_tokenizer(family, BLANK_POSITIONS)
        name = "tiny"
    tokenizer: PreTrainedTokenizerBase = _load(AutoTokenizer.from_pretrained, name, "a tokenizer")
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            f"The tokenizer of {name!r} has no end-of-text token: set `eos_token` in its tokenizer_config.json."
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(name: str, dtype: torch.dtype, device: torch.device, bits: int | None = None) -> PreTrainedModel:
    """The causal language model in evaluation mode (no dropout, so that ratios start at exactly 1).

    Of a folder that holds an adapter, its base with the adapter folded in. With `bits`, quantised (`quantized.py`).
    """
    from transformers import AutoModelForCausalLM

    if beside := BESIDE.fullmatch(name):
        both: PreTrainedModel = _selective().selective(load_model(beside[2], dtype, device), beside[1] == "adapter")
        return both
    if bits is not None:
        quantized.check(name, dtype, device)
    if wide := _asked_wide(name):
        import torch

        narrow = load_model(wide[3], torch.float32, torch.device("cpu"))
        grown: PreTrainedModel = _wide().widened(narrow, wide[3], int(wide[1]), int(wide[2]))
        move(grown, device, dtype)
        grown.eval()
        return grown
    if is_readable(name):
        tables: PreTrainedModel = _readable().readable(name)
        move(tables, device, dtype)
        tables.eval()
        return tables
    if is_blank(name):
        fresh = blank(name)
        move(fresh, device, dtype)
        fresh.eval()
        return fresh
    if adapters.is_adapter(folder := Path(resolve(name))):
        return adapters.folded(load_model(adapters.base_of(folder), dtype, device), folder)
    _readable(), _selective()  # transformers must know their classes to load what was saved
    options: dict[str, Any] = {"dtype": dtype, "use_safetensors": True}  # never a pickle
    if bits is not None:
        options |= quantized.options(dtype, device)
    model: PreTrainedModel = _load(AutoModelForCausalLM.from_pretrained, name, "a causal language model", **options)
    if model.config.model_type == SELECTIVE_TYPE:
        model.model.frozen.requires_grad_(False)
    if bits is None:
        move(model, device)
    model.eval()
    return model


def move(module: nn.Module, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
    """Bring a model to a device or a dtype, in place; transformers hides the types of its own `to`."""
    if device is not None:
        module.to(device)
    if dtype is not None:
        module.to(dtype)


def is_shipped(name: str) -> bool:
    """Whether a model comes with etude, so that its version says what it is."""
    own = named(name)
    return own in BUILT_IN or is_blank(own) or is_readable(own)


def named(name: str) -> str:
    """The model inside of a name that asks for an adapter beside it, or for a wider one; else the name itself."""
    beside, wide = BESIDE.fullmatch(name), _asked_wide(name)
    return beside[2] if beside else wide[3] if wide else name


def is_readable(name: str) -> bool:
    """Whether the name asks for one of the models of `readable.py`. Raises ConfigError if it does not say how large."""
    kind = name.partition(":")[0]
    asked = kind in READABLE and not Path(name).exists()
    if asked and not re.fullmatch(r"[1-9]\d*", name.partition(":")[2]):
        raise ConfigError(f"{kind} wants its number of nodes, as in {kind}:{READABLE[kind]}; got {name!r}.")
    return asked


def _readable() -> ModuleType:
    """Its module, and no progress bars for what takes a millisecond."""
    from transformers.utils import logging

    from etude.policies import readable

    logging.disable_progress_bar()
    return readable


def _asked_wide(name: str) -> re.Match[str] | None:
    """What a name says of a wider model. Raises ConfigError if it is not spelled out."""
    found = WIDE.fullmatch(name)
    if name.startswith("wide:") and not found:
        raise ConfigError(
            "A wider model is called wide:WIDTHxFEEDFORWARD:NAME, by how many times as wide it is, as in "
            f"wide:2x4:tiny; got {name!r}."
        )
    return found


def _wide() -> ModuleType:
    """Its module."""
    from etude.policies import wide

    return wide


def _selective() -> ModuleType:
    """Its module."""
    from etude.policies import selective

    return selective


def is_blank(name: str) -> bool:
    """Whether the name asks for a model without pre-training. Raises ConfigError if it is not spelled out."""
    asked = name == "blank" or name.startswith("blank:")
    if asked and not BLANK.fullmatch(name):
        raise ConfigError(
            "A model without pre-training is called blank:LAYERSxWIDTH or blank:LAYERSxWIDTHxHEADS, as in blank:1x120, "
            f"with @FAMILY for a family's words; got {name!r}."
        )
    return asked


def _family(name: str) -> str:
    """The family whose words a model without pre-training reads; '' for tiny's tokenizer."""
    match = BLANK.fullmatch(name)
    return (match[4] if match else None) or ""


def blank(name: str) -> LlamaForCausalLM:
    """The model without pre-training that the name asks for, in float32: the same weights every time.

    Raises: ConfigError if the width cannot be divided into heads of an even width.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    match = BLANK.fullmatch(name)
    assert match is not None
    layers, width, heads = (int(x or 1) for x in match.groups()[:3])
    if width % (2 * heads):
        raise ConfigError(f"{name!r} has {heads} heads of {width / heads:g}: each must be an even number wide.")
    tokenizer = load_tokenizer(name)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, max_position_embeddings=BLANK_POSITIONS,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(BLANK_SEED)
        return LlamaForCausalLM(config)


def recomputing_layers(model: PreTrainedModel) -> list[nn.Module]:
    """Switch gradient checkpointing on; returns the layers that recompute while they are in training mode."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    return [m for m in model.modules() if getattr(m, "gradient_checkpointing", False) and not m.training]


@contextmanager
def recomputation(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Layers recompute their activations in the backward pass of what is computed here.

    Transformers does so in training mode, which is switched on for the layers alone and only here: dropout inside
    them stays off, and so does recomputation while sampling, where it would drop the cache.
    """
    import torch

    layers = layers if torch.is_grad_enabled() else ()
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


def _load(loader: Callable[..., Any], name: str, kind: str, **options: object) -> Any:
    from safetensors import SafetensorError
    from transformers.utils import logging

    where = resolve(name)
    logging.disable_progress_bar()
    known = Path(where).exists() or _hub_answers()
    try:
        with nullcontext() if known else _offline():
            return loader(where, trust_remote_code=False, local_files_only=not known, **options)
    except (OSError, ValueError, SafetensorError) as error:
        if "trust_remote_code" in str(error):
            raise ConfigError(f"{name!r} runs code of its own from the hub, which etude refuses.") from None
        if Path(where).exists():
            raise ConfigError(f"{where} cannot be loaded as {kind} in Hugging Face's format: {error}") from None
        raise ConfigError(
            f"There is no model {name!r}: it is neither 'tiny' nor 'tiny-agent' (or 'blank:LAYERSxWIDTH') nor a "
            "local folder, and "
            + ("the hub has none of that name that can be read" if known else "the hub cannot be reached for it")
            + f" ({type(error).__name__}). Without a network, name a folder that `save_pretrained` wrote."
        ) from None


@contextmanager
def _offline() -> Iterator[None]:
    """Keep every request from the hub inside; `local_files_only` leaves out the one for an adapter."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@cache
def _hub_answers() -> bool:
    """Whether the hub can be reached. One short question instead of the minute of retries that a download makes."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_TIMEOUT)
    except Exception:  # whatever the transport raises: no name, no route, no answer in time
        return False
    return True


def choose_device(name: str = "auto") -> torch.device:
    """The GPU if there is one, or the device of this name.

    Raises: ConfigError for one that is not here; for MPS, since it has no float64, in which random numbers are drawn
    and weights and log-probabilities are compared.
    """
    import torch

    if name != "auto":
        if name.partition(":")[0] == "mps":
            raise ConfigError(
                f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {name!r}: Apple's MPS has no float64, in which "
                "tokens are drawn and checks compare. --device cpu works there."
            )
        try:
            torch.empty(0, device=name)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).strip().split("\n", 1)[0]
            raise ConfigError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {name!r}: {reason}") from None
        return torch.device(name)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """float32 masters unless asked otherwise."""
    import torch

    kinds = {"auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
    if name not in kinds:
        raise ConfigError(f"dtype must be one of {', '.join(map(repr, kinds))}, got {name!r}.")
    return kinds[name]


def shadow_from(device: torch.device) -> float:
    """Parameters from which decoding with a copy in bfloat16 takes less time on a device; infinite for never.

    From 50 M on matrix units (CUDA, AMX), and from 10 M where AVX-512 has a dot product of bfloat16: measured on AMD,
    a step is 0.93 times as fast with it at 0.8 M and 1.07 times at 10 M.
    """
    import torch

    if device.type == "cuda" or (device.type == "cpu" and torch.cpu._is_amx_tile_supported()):
        return 50e6
    return 10e6 if device.type == "cpu" and torch.cpu._is_avx512_bf16_supported() else math.inf
