"""Weights on their way: what arrives is what was sent, bit for bit, or is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from etude.core.errors import InvariantError
from etude.core.streams import Stream
from etude.policies import snapshots
from etude.policies.adapters import Adapter
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Sampling
from language_toys import draws, random_model, random_policy, random_prompts, tokenizer


def marked(policy: LanguagePolicy) -> str:
    return snapshots.mark(snapshots.weights(policy))


def kept(policy: LanguagePolicy, folder: Path) -> Path:
    """A snapshot that stays."""
    with snapshots.written(policy) as file:
        return Path(shutil.copy(file, folder / "weights.safetensors"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_policy_that_took_a_snapshot_samples_the_same(dtype: torch.dtype, tmp_path: Path) -> None:
    ours, theirs = random_policy(dtype=dtype, seed=1), random_policy(dtype=dtype, seed=2)
    prompts, sampling = random_prompts(4), Sampling(max_tokens=8)
    assert marked(ours) != marked(theirs)
    snapshots.take(theirs, kept(ours, tmp_path), marked(ours))
    assert marked(ours) == marked(theirs)
    assert theirs.generate(prompts, sampling, draws(4)) == ours.generate(prompts, sampling, draws(4))


def test_the_copy_in_fewer_bits_that_decodes_is_renewed(tmp_path: Path) -> None:
    ours, theirs = random_policy(seed=1, shadow=True), random_policy(seed=2, shadow=True)
    prompts, sampling = random_prompts(4), Sampling(max_tokens=8)
    theirs.generate(prompts, sampling, draws(4))
    snapshots.take(theirs, kept(ours, tmp_path), marked(ours))
    theirs.check_sampler()
    assert theirs.generate(prompts, sampling, draws(4)) == ours.generate(prompts, sampling, draws(4))


def test_of_an_adapter_nothing_else_is_sent(tmp_path: Path) -> None:
    adapter = Adapter(rank=2)
    ours, theirs = (
        LanguagePolicy(adapter.wrap(random_model(), Stream(seed)), tokenizer()) for seed in (1, 2)
    )  # fmt: skip
    names = list(snapshots.weights(ours))
    assert names
    assert all("lora_" in name for name in names)
    with torch.no_grad():
        for p in snapshots.weights(ours).values():
            p.add_(0.5)
    snapshots.take(theirs, kept(ours, tmp_path), marked(ours))
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_the_mark_is_of_every_bit_and_of_where_it_stands() -> None:
    policy = random_policy()
    before = snapshots.weights(policy)
    for name, tensor in before.items():
        flat = tensor.clone().view(-1)
        flat[-1] = torch.nextafter(flat[-1], flat.new_tensor(torch.inf))
        assert snapshots.mark({**before, name: flat.view(tensor.shape)}) != snapshots.mark(before), name
    first, *rest = before
    assert snapshots.mark({first + "x": before[first], **{n: before[n] for n in rest}}) != snapshots.mark(before)


@pytest.mark.slow
def test_a_torn_file_or_another_versions_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    ours, theirs = random_policy(seed=1), random_policy(seed=2)
    before, wanted, file = marked(theirs), marked(ours), kept(ours, tmp_path)
    whole = file.read_bytes()
    torn = {
        "torn or of another version": whole[:-4] + bytes([whole[-4] ^ 1]) + whole[-3:],
        "cannot be read": whole[: len(whole) // 2],
        "cannot be read .*": b"",
    }
    for sentence, content in torn.items():
        file.write_bytes(content)
        with pytest.raises(InvariantError, match=sentence):
            snapshots.take(theirs, file, wanted)
    with pytest.raises(InvariantError, match=f"{before} was told"):
        snapshots.take(theirs, kept(ours, tmp_path), before)
    kept(LanguagePolicy(Adapter(rank=2).wrap(random_model(), Stream(0)), tokenizer()), tmp_path)
    with pytest.raises(InvariantError, match="cannot be read"):
        snapshots.take(theirs, file, wanted)
    assert (marked(theirs), theirs.loads) == (before, 0)


def test_a_file_is_gone_once_it_was_read_or_not_written_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    with snapshots.written(random_policy()) as file:
        assert file.is_file()
    assert not file.parent.exists()
    with pytest.raises(KeyError), snapshots.written(random_policy()) as file:
        raise KeyError
    assert not file.parent.exists()
    monkeypatch.setattr(snapshots, "SHARED", "/nowhere")
    with snapshots.written(random_policy()) as file:
        assert not str(file).startswith("/dev/shm")
