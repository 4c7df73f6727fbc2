"""The language policy: loading and saving, adapters, references, value head, samplers."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import etude
from etude.core.errors import ConfigError, InvariantError
from etude.core.streams import Stream
from etude.policies import language
from etude.policies.adapters import Adapter
from etude.policies.fingerprint import fingerprint
from etude.policies.language import LanguagePolicy
from etude.policies.loading import choose_device, choose_dtype, shadow_from
from etude.policies.sampling import Sampling
from etude.runs.training import Options
from etude.runs.worlds.language import arguments
from language_toys import (
    KINDS,
    Toy,
    draws,
    gradients,
    random_batch,
    random_model,
    random_policy,
    random_prompts,
    tokenizer,
)

BATCH = random_batch((3, 1, 2), turns=2)
ADAPTERS = {
    "lora": Adapter(rank=2, alpha=8),
    "rslora": Adapter(rank=4, rank_stabilized=True),
    "dora": Adapter(rank=2, weight_decomposed=True),
    "some modules": Adapter(rank=2, targets="q_proj,v_proj"),
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with a random Llama, as `save_pretrained` writes it."""
    random_model().save_pretrained(tmp_path / "m")
    tokenizer().save_pretrained(tmp_path / "m")
    return tmp_path / "m"


def step(policy: LanguagePolicy, lr: float = 0.1) -> None:
    """One step of gradient descent on something."""
    policy.evaluate(BATCH, {"values"} if policy.value_head is not None else ()).logp.sum().backward()
    with torch.no_grad():
        for p in policy.parameters():
            if p.grad is not None:
                p -= lr * p.grad.sign()
                p.grad = None
    policy.updated()


# In and out of Hugging Face's format


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_plain_transformers_loads_what_was_saved(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    policy = random_policy(kind)
    step(policy)
    policy.save(tmp_path / "out")
    model, words = (
        AutoModelForCausalLM.from_pretrained(tmp_path / "out"),
        AutoTokenizer.from_pretrained(tmp_path / "out"),
    )
    ids = torch.tensor([policy.encode("say K\n")])
    if kind != "qwen2":  # transformers gives that model type a tokenizer class of its own, whatever the folder says
        assert words.encode("say K\n") == ids[0].tolist()
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, policy.model(input_ids=ids).logits)
    again = LanguagePolicy.load(str(tmp_path / "out"), device="cpu")
    assert torch.equal(again.evaluate(BATCH).logp, policy.evaluate(BATCH).logp)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.slow
@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_is_saved_as_peft_reads_it(name: str, saved: Path, tmp_path: Path) -> None:
    """Alone: peft puts it on the base, to the same logits bit for bit; loaded here, it is folded into the base."""
    from peft import AutoPeftModelForCausalLM, PeftModel

    policy = LanguagePolicy.load(str(saved), device="cpu", adapter=ADAPTERS[name])
    step(policy)
    policy.save(tmp_path / "out")
    assert not list((tmp_path / "out").glob("model*"))
    ids = torch.tensor([policy.encode("say K\n")])
    base = LanguagePolicy.load(str(saved), device="cpu")
    for peft in (
        AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out"),
        PeftModel.from_pretrained(copy.deepcopy(base.model), str(tmp_path / "out")),
    ):
        with torch.no_grad():
            assert torch.equal(peft.eval()(input_ids=ids).logits, policy.model(input_ids=ids).logits)
    merged = LanguagePolicy.load(str(tmp_path / "out"), device="cpu")
    torch.testing.assert_close(merged.evaluate(BATCH).logp, policy.evaluate(BATCH).logp, rtol=1e-4, atol=1e-4)
    assert (merged.evaluate(BATCH).logp - base.evaluate(BATCH).logp).abs().max() > 0.05, "and it was trained"


@pytest.mark.slow
def test_the_value_head_is_saved_too(saved: Path, tmp_path: Path) -> None:
    policy = LanguagePolicy.load(str(saved), device="cpu")
    assert policy.value_head is None
    assert not policy.evaluate(BATCH, {"values"}).values.any(), "it begins at zero"
    torch.nn.init.normal_(policy.value_head.weight)
    policy.save(tmp_path / "out")
    values = policy.evaluate(BATCH, {"values"}).values
    assert values[BATCH.action_mask].abs().min() > 0 and not values[~BATCH.action_mask].any()
    again = LanguagePolicy.load(str(tmp_path / "out"), device="cpu")
    assert torch.equal(again.evaluate(BATCH, {"values"}).values, values)


def test_values_are_linear_in_the_predicting_state() -> None:
    policy = random_policy(dtype=torch.float64)
    head = policy.add_value_head()
    torch.nn.init.normal_(head.weight)
    assert head.weight.dtype == torch.float64
    out = policy.evaluate(BATCH, {"values", "hidden"})
    torch.testing.assert_close(out.values, (out.hidden @ head.weight[0]))
    assert any(p is head.weight for p in policy.parameters())


# Adapters and references


@pytest.mark.slow
@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_needs_no_second_copy(name: str, saved: Path) -> None:
    base = LanguagePolicy.load(str(saved), device="cpu")
    policy = LanguagePolicy.load(str(saved), device="cpu", adapter=ADAPTERS[name])
    policy.keep_reference()
    assert policy.reference is None
    before = base.evaluate(BATCH).logp
    torch.testing.assert_close(policy.evaluate(BATCH).logp, before, rtol=0, atol=1e-6)
    step(policy), step(policy)
    assert (policy.evaluate(BATCH).logp - before).abs().max() > 0.05
    torch.testing.assert_close(policy.reference_logp(BATCH), before, rtol=0, atol=1e-6)
    policy.evaluate(BATCH).logp.sum().backward()
    trained = {k for k, v in policy.model.named_parameters() if v.grad is not None}
    assert trained and all("lora_" in k for k in trained)
    assert sum(p.numel() for p in policy.parameters()) < 0.3 * sum(p.numel() for p in policy.model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("name", ADAPTERS)
def test_the_first_weights_of_an_adapter_follow_the_seed(name: str, saved: Path) -> None:
    def made(seed: int) -> list[torch.Tensor]:
        stream = Stream(seed).split("adapter")
        return LanguagePolicy.load(str(saved), device="cpu", adapter=ADAPTERS[name], stream=stream).parameters()

    before = torch.get_rng_state()
    first, again, other = made(0), made(0), made(1)
    assert torch.equal(torch.get_rng_state(), before), "nobody else's random numbers move"
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(p.any() for p in first) and sum(not torch.equal(a, b) for a, b in zip(first, other)) >= len(first) // 3


@pytest.mark.slow
def test_a_run_draws_its_adapter_from_its_seed(saved: Path) -> None:
    def made(seed: int) -> list[torch.Tensor]:
        options = Options(model=str(saved), steps=1, seed=seed, adapter="lora", device="cpu")
        return arguments(etude.method("grpo"), Toy(), options)["policy"].parameters()

    first, again, other = made(3), made(3), made(4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.slow
def test_an_adapter_samples_what_it_trains(saved: Path) -> None:
    policy = LanguagePolicy.load(str(saved), device="cpu", adapter=ADAPTERS["lora"])
    step(policy)
    said = policy.generate(random_prompts(4), Sampling(max_tokens=6), draws(4))
    merged = LanguagePolicy(policy.merged(), tokenizer())
    assert [c.tokens for c in merged.generate(random_prompts(4), Sampling(max_tokens=6), draws(4))] == [
        c.tokens for c in said
    ]


def test_the_reference_is_frozen_and_can_move() -> None:
    policy = random_policy()
    policy.keep_reference()
    before = policy.evaluate(BATCH).logp.detach()
    step(policy)
    policy.keep_reference()  # a second call keeps the first
    torch.testing.assert_close(policy.reference_logp(BATCH), before)
    assert not any(p.requires_grad for p in policy.reference.parameters())
    old = [p.clone() for p in policy.reference.parameters()]
    policy.move_reference(0.25)
    for was, now, mine in zip(old, policy.reference.parameters(), policy.model.parameters()):
        torch.testing.assert_close(now, 0.75 * was + 0.25 * mine)
    policy.move_reference(1.0)
    torch.testing.assert_close(policy.reference_logp(BATCH), policy.evaluate(BATCH).logp)


@pytest.mark.slow
def test_a_reference_cannot_move_with_an_adapter(saved: Path) -> None:
    policy = LanguagePolicy.load(str(saved), device="cpu", adapter=ADAPTERS["lora"])
    with pytest.raises(ConfigError, match="needs full weights"):
        policy.move_reference(0.5)


@pytest.mark.first
@pytest.mark.parametrize("adapter", [None, "dora"])
def test_tensors_restore_everything(adapter: str | None, saved: Path, tmp_path: Path) -> None:
    def make() -> LanguagePolicy:
        return LanguagePolicy.load(str(saved), device="cpu", adapter=ADAPTERS[adapter] if adapter else None)

    policy = make()
    policy.keep_reference()
    policy.add_value_head()
    step(policy)
    save_file({k: v.clone().contiguous() for k, v in policy.tensors().items()}, tmp_path / "t.safetensors")
    again = make()
    again.load_tensors(load_file(tmp_path / "t.safetensors"))
    for needs in ((), ("values",)):
        assert torch.equal(again.evaluate(BATCH, needs).logp, policy.evaluate(BATCH, needs).logp)
    assert torch.equal(again.reference_logp(BATCH), policy.reference_logp(BATCH))


# The bfloat16 sampler


@pytest.mark.slow
def test_a_shadow_sampler_follows_every_update() -> None:
    policy = random_policy(shadow=True)
    for _ in range(3):
        policy.generate([[5, 6]], Sampling(max_tokens=2), draws(1))
        sampler = policy.sampler()
        assert sampler.dtype == torch.bfloat16 and sampler is not policy.model
        for mine, theirs in zip(policy.model.parameters(), sampler.parameters(), strict=True):
            assert torch.equal(mine.to(torch.bfloat16), theirs)
        step(policy)
        policy.check_sampler()
    assert random_policy().sampler() is not None and random_policy().shadow is False


@pytest.mark.parametrize(("amx", "dot", "least"), ((True, True, 50e6), (False, True, 10e6), (False, False, math.inf)))
def test_a_shadow_samples_from_the_size_at_which_it_pays(
    amx: bool, dot: bool, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the processor can do; a model in 16 bits needs none."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: dot)
    assert shadow_from(torch.device("cpu")) == least
    assert shadow_from(torch.device("cuda")) == 50e6 and shadow_from(torch.device("meta")) == math.inf
    policy = random_policy()
    count = sum(p.numel() for p in policy.model.parameters())
    for size, pays in ((count, True), (count + 1, False)):
        monkeypatch.setattr(language, "shadow_from", lambda device, size=size: size)
        assert policy._shadow_pays() == random_policy().shadow == pays
    monkeypatch.setattr(language, "shadow_from", lambda device: 0)
    assert not random_policy(dtype=torch.bfloat16).shadow


def test_a_stale_shadow_sampler_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = random_policy(shadow=True)
    policy.generate([[5, 6]], Sampling(max_tokens=2), draws(1))
    step(policy)
    monkeypatch.setattr(policy, "refresh_sampler", lambda: None)
    with pytest.raises(InvariantError, match="does not hold the weights of version 1"):
        policy.check_sampler()


def test_a_shadow_sampler_is_not_believed_after_loading() -> None:
    policy, other = random_policy(shadow=True), random_policy(seed=9)
    policy.sampler()
    policy.load_tensors(other.tensors())
    for mine, theirs in zip(policy.model.parameters(), policy.sampler().parameters(), strict=True):
        assert torch.equal(mine.to(torch.bfloat16), theirs)


def test_a_fingerprint_sees_a_change_anywhere_it_looks() -> None:
    weights = [torch.randn(30, 7), torch.randn(1000)]
    mark = fingerprint(weights)
    assert fingerprint([w.clone() for w in weights]) == mark
    for w in weights:
        changed = [x + 1e-6 if x is w else x for x in weights]
        assert fingerprint(changed) != mark
    assert fingerprint([]) == ()
    assert fingerprint(weights, torch.bfloat16) == fingerprint([w.to(torch.bfloat16) for w in weights]) != mark


# Memory, device, dtype


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_checkpointing_changes_no_gradient(kind: str, tmp_path: Path) -> None:
    random_model(kind).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    found = []
    for on in (False, True):
        policy = LanguagePolicy.load(str(tmp_path), device="cpu", dtype="float64", gradient_checkpointing=on)
        computed = 0

        def count(*args: Any) -> None:
            nonlocal computed
            computed += 1

        layer = next(m for m in policy.model.modules() if type(m).__name__ in ("GPT2MLP", "LlamaMLP", "Qwen2MLP"))
        layer.register_forward_pre_hook(count)
        said = policy.generate([[5, 6, 7]] * 2, Sampling(max_tokens=4), draws(2))
        policy.share_prompts, computed = False, 0
        policy.evaluate(BATCH).logp.sum().backward()
        assert computed == (2 if on else 1), "the backward pass computes the layer again"
        assert not policy.model.training
        found.append((said, gradients(policy)))
    assert found[0][0] == found[1][0]
    for name, expected in found[0][1].items():
        assert (found[1][1][name] - expected).norm() <= 1e-6 * expected.norm(), name


@pytest.mark.slow
def test_autocast_computes_in_bfloat16_and_keeps_float32_masters() -> None:
    policy, exact = random_policy(autocast=True), random_policy()
    policy.evaluate(BATCH)  # which looks once, in float32, whether the model attends to blocks
    seen = []
    policy.model.get_decoder().layers[0].mlp.register_forward_hook(lambda *args: seen.append(args[-1].dtype))
    out = policy.evaluate(BATCH)
    assert set(seen) == {torch.bfloat16} and out.logp.dtype == torch.float32
    out.logp.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in policy.parameters() if p.grad is not None)
    assert 0 < (out.logp - exact.evaluate(BATCH).logp).abs().mean() < 0.2


def test_dtype_and_device_choices(saved: Path) -> None:
    cpu = torch.device("cpu")
    assert choose_dtype("auto", cpu) == torch.float32 and choose_dtype("float64", cpu) == torch.float64
    assert LanguagePolicy.load(str(saved), device="cpu", dtype="bfloat16").model.dtype == torch.bfloat16
    assert choose_device("cpu") == cpu
    with pytest.raises(ConfigError, match=r"^dtype must be one of 'auto', 'float32', .*, got 'half'\.$"):
        choose_dtype("half", cpu)
    with pytest.raises(ConfigError, match=r"^device must be 'auto', 'cpu'.*, got 'gpu': "):
        choose_device("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="got 'cuda'"):
            choose_device("cuda")


@pytest.mark.parametrize("gpu", [True, False])
def test_an_apple_gpu_is_neither_taken_nor_given(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no float64: the first token that is drawn would end the run in torch's own words."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert choose_device().type == ("cuda" if gpu else "cpu")
    for name in ("mps", "mps:0"):
        with pytest.raises(ConfigError, match=rf"got '{name}': Apple's MPS has no float64, .*--device cpu works"):
            choose_device(name)


# What cannot be loaded (faults rows 19, 31, 33)


def test_a_tokenizer_without_an_end_token(saved: Path) -> None:
    path = saved / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config.pop("eos_token")
    path.write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"no end-of-text token: set `eos_token` in its tokenizer_config\.json"):
        LanguagePolicy.load(str(saved), device="cpu")


def test_a_tokenizer_without_a_padding_token_pads_with_the_end(saved: Path) -> None:
    path = saved / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config.pop("pad_token")
    path.write_text(json.dumps(config))
    words = LanguagePolicy.load(str(saved), device="cpu").tokenizer
    assert words.pad_token_id == words.eos_token_id == 1


def test_a_model_that_is_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: Any, **options: Any) -> Any:
        raise OSError("We couldn't connect to the hub")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", offline)
    with pytest.raises(ConfigError, match=r"neither 'tiny' .* nor a local folder, .* \(OSError\)"):
        LanguagePolicy.load("nobody/nothing", device="cpu")


def test_a_model_with_code_of_its_own(saved: Path) -> None:
    path = saved / "config.json"
    config = json.loads(path.read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "x.C", "AutoModelForCausalLM": "x.M"}}
    path.write_text(json.dumps(config))
    (saved / "x.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ConfigError, match="runs code of its own from the hub, which etude refuses"):
        LanguagePolicy.load(str(saved), device="cpu")


@pytest.mark.parametrize("damage", ["model.safetensors", "config.json", "missing"])
def test_a_damaged_folder(damage: str, saved: Path) -> None:
    if damage == "missing":
        (saved / "model.safetensors").unlink()
        torch.save({}, saved / "pytorch_model.bin")  # a pickle is no replacement
    else:
        (saved / damage).write_bytes(b"\x01broken")
    with pytest.raises(ConfigError, match="cannot be loaded as a causal language model"):
        LanguagePolicy.load(str(saved), device="cpu")


def test_a_model_that_scales_its_logits_is_refused() -> None:
    model = random_model()
    model.lm_head.register_forward_hook(lambda *args: args[-1])
    inner = model.forward

    def scaled(*args: Any, **options: Any) -> Any:
        out = inner(*args, **options)
        out.logits = out.logits * 3
        return out

    model.forward = scaled
    with pytest.raises(ConfigError, match="scales its logits in a way that etude does not know"):
        LanguagePolicy(model, tokenizer())
