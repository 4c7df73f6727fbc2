"""A base in 4 bits: refused in a sentence where it cannot be held, and told to transformers as QLoRA has it."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import etude
from etude.core.errors import ConfigError, MissingExtraError
from etude.core.streams import Stream
from etude.policies import bases, loading, quantized
from etude.policies.adapters import Adapter, adapter_of, named
from etude.policies.language import LanguagePolicy
from etude.runs.worlds import language
from language_toys import random_batch

pytest.importorskip("peft")
CUDA = torch.device("cuda", 0)
SMALL = {"problems": 2, "experience.size": 4, "adapter.rank": 2}
here = pytest.mark.skipif(
    quantized.lacking(loading.choose_device()) is not None, reason="needs CUDA and the extra 'quantized'"
)


def test_its_name() -> None:
    assert adapter_of("qlora") == Adapter(bits=4) and named(Adapter(bits=4, rank=8)) == ("qlora", {"rank": 8})
    assert named(Adapter(bits=4, weight_decomposed=True)) == ("dora", {"bits": 4})
    with pytest.raises(ConfigError, match=r"Adapter.bits must be .*got '8'"):
        etude.train("grpo", set={"adapter.bits": 8})


@pytest.mark.parametrize("told", [{"adapter": "qlora"}, {"set": {"adapter.bits": 4}}])
def test_elsewhere_it_is_refused_before_anything_is_written(tmp_path: Path, told: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"\(adapter.bits=4, QLoRA\) is computed on CUDA alone, and this run is on cpu"
    ):
        etude.train("grpo", steps=1, out=tmp_path / "run", device="cpu", **told)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_what_cannot_be_held_in_4_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"A base in 4 bits needs .*pip install 'etude\[quantized\]'"):
        quantized.check("tiny", torch.bfloat16, CUDA)
    monkeypatch.setattr(quantized, "lacking", lambda device: None)
    quantized.check("tiny", torch.bfloat16, CUDA)
    with pytest.raises(ConfigError, match=r"computed in bfloat16 or float32, got dtype='float64'"):
        quantized.check("tiny", torch.float64, CUDA)
    with pytest.raises(ConfigError, match=r"blank:1x32 is made in memory; a base in 4 bits is loaded from a folder"):
        quantized.check("blank:1x32", torch.bfloat16, CUDA)
    LanguagePolicy.load("tiny", device="cpu", adapter=Adapter(rank=2)).save(tmp_path / "a")
    with pytest.raises(ConfigError, match=r"holds an adapter, which is not folded into a base in 4 bits: write the"):
        quantized.check(str(tmp_path / "a"), torch.bfloat16, CUDA)


@pytest.mark.slow
def test_what_transformers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}
    load, version = transformers.AutoModelForCausalLM.from_pretrained, importlib.metadata.version

    def loader(where: str, *, quantization_config: Any, device_map: Any, **options: Any) -> Any:
        told.update(config=quantization_config, device_map=device_map, dtype=options["dtype"])
        return load(where, **options)

    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.0" if name == "bitsandbytes" else version(name))
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", loader)
    monkeypatch.setattr(quantized, "lacking", lambda device: None)
    policy = LanguagePolicy.load("tiny", device="cpu", adapter=Adapter(rank=2, bits=4))
    config = told["config"]
    assert (config.load_in_4bit, config.bnb_4bit_quant_type, config.bnb_4bit_use_double_quant) == (True, "nf4", True)
    assert config.bnb_4bit_compute_dtype == told["dtype"] == torch.bfloat16
    assert told["device_map"] == {"": torch.device("cpu")}
    assert policy.model.dtype == torch.bfloat16
    assert (
        LanguagePolicy.load("tiny", device="cpu", dtype="float32", adapter=Adapter(bits=4)).model.dtype == torch.float32
    )


@pytest.mark.slow
def test_what_would_write_into_it() -> None:
    """Folding is refused, and no copy in bfloat16 is made to sample from."""
    policy = LanguagePolicy.load("tiny", device="cpu", adapter=Adapter(rank=2))
    next(policy.model.parameters()).quant_state = "scales"  # type: ignore[attr-defined]  # as bitsandbytes marks it
    assert not policy._shadow_pays()
    with pytest.raises(
        ConfigError, match=r"an adapter folded into it would be rounded to them: fold it into the whole"
    ):
        policy.merged()


def test_elsewhere_its_adapter_is_evaluated_over_the_whole_base(capsys: pytest.CaptureFixture[str]) -> None:
    assert language._bits({"adapter": {"rank": 2, "bits": None}}) is language._bits({"adapter": None}) is None
    assert not capsys.readouterr().out
    if quantized.lacking(loading.choose_device()) is not None:
        assert language._bits({"adapter": {"bits": 4}}) is None
        assert "trained over a base in 4 bits, which cannot be held here" in "".join(capsys.readouterr())


@here
def test_a_base_in_4_bits_is_there_once_and_is_the_reference() -> None:
    batch = random_batch((3, 1, 2), turns=2).to(CUDA)
    one, two = (LanguagePolicy.load("tiny", adapter=Adapter(rank=2, bits=4), stream=Stream(k)) for k in (1, 2))
    lie = [{p.data_ptr() for n, p in x.model.named_parameters() if "lora_" not in n} for x in (one, two)]
    assert lie[0] == lie[1] and len(bases.ORIGINALS) == 1 and quantized.is_quantized(one.model)
    whole = LanguagePolicy.load("tiny", dtype="bfloat16")
    size = [sum(p.nbytes for n, p in x.model.named_parameters() if "lora_" not in n) for x in (one, whole)]
    assert size[0] < 0.4 * size[1]
    assert torch.equal(one.reference_logp(batch), two.reference_logp(batch))
    assert torch.equal(one.reference_logp(batch), one.evaluate(batch).logp), "B begins at zero"
    gap = (one.evaluate(batch).logp - whole.evaluate(batch).logp).abs()
    assert 0 < gap.max() < 2


@here
def test_qlora_is_trained_resumed_evaluated_and_exported(tmp_path: Path) -> None:
    told: dict[str, Any] = {"adapter": "qlora", "set": SMALL, "evaluate": 2, "evaluate_samples": 2, "quiet": True}
    straight = etude.train("grpo", steps=3, out=tmp_path / "a", **told)
    etude.train("grpo", steps=3, until=1, out=tmp_path / "b", **told)
    stopped = etude.resume(tmp_path / "b", quiet=True)
    weights = [r.checkpoint / "model" / "adapter_model.safetensors" for r in (straight, stopped)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    after = json.loads((tmp_path / "a" / "evaluation.json").read_text())["after"]["test"]
    found = etude.evaluate(tmp_path / "a", k=(1,), problems=2, samples=2, split="test")["test"]
    assert found["reward"].value == after["reward"]["value"]
    etude.export(tmp_path / "a", tmp_path / "whole", merge=True)
    assert not quantized.is_quantized(LanguagePolicy.load(str(tmp_path / "whole")).model)
