"""Token methods on another device than the processor: one that is pretended here, and a GPU where there is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import etude
from etude.advantages.returns import GAE
from etude.core.edit import stack
from etude.core.registry import get_method
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.learners.token import TokenCritic
from etude.loops import language
from etude.loops.language import LanguageLoop
from etude.methods.rlvr.grpo import grpo
from etude.optimizers.adam import AdamW
from etude.policies import prompts
from etude.policies.adapters import Adapter
from etude.policies.language import LanguagePolicy
from etude.references.frozen import MovingAverage
from etude.regularizers.kl import KLToReference
from etude.runs.training import compose_task
from language_toys import Toy, make_loop, random_model, tokenizer
from two_devices import TwoDevices, mark

torch.set_num_threads(1)
CPU = torch.device("cpu")
sampled = grpo.replace(
    problems=2, experience=Groups(size=4), optimizer=AdamW(lr=1e-3), minibatches=2, regularizers=(KLToReference(),)
)
SAMPLING = {
    "grpo": sampled,
    "moving reference": sampled.replace(reference=MovingAverage(rate=0.3)),
    "critic": sampled.replace(advantages=GAE(), critic=TokenCritic()),
    "value model": stack(sampled.replace(advantages=GAE(), critic=TokenCritic()), "value-model"),
    "adapter": sampled,
}
WRITTEN = {"sft": "sums", "dpo": "preferences", "reward-model": "preferences"}
KINDS = [*SAMPLING, *WRITTEN]


def made(kind: str, device: torch.device = CPU, seed: int = 0) -> LanguageLoop:
    """A small run of a kind, of a random model with an adapter or without."""
    model = random_model()
    if kind == "adapter":
        model = Adapter(rank=2).wrap(model, Stream(0))
    policy = LanguagePolicy(model.to(device), tokenizer())
    if kind in SAMPLING:
        return make_loop(SAMPLING[kind], Toy(prompts=tuple("abcdefg")), policy, steps=4, seed=seed)
    method = get_method(kind).replace(problems=4, optimizer=AdamW(lr=1e-3))
    return make_loop(method, compose_task(WRITTEN[kind]), policy, steps=4)  # type: ignore[arg-type]  # of language


def weights(loop: LanguageLoop) -> dict[str, torch.Tensor]:
    return {name: x.detach().clone() for name, x in loop.policy.tensors().items()}


def moved(loop: LanguageLoop, steps: int) -> torch.Tensor:
    """How far all weights went in some steps, one after the other, on the CPU."""
    before = weights(loop)
    for _ in range(steps):
        loop.step()
    return torch.cat([(x.float() - before[name].float()).flatten().cpu() for name, x in weights(loop).items()])


def apart(here: torch.Tensor, there: torch.Tensor) -> float:
    """How far two ways of the weights end from each other, as a share of the first."""
    return float((there - here).norm() / here.norm())


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only the CPU's kernels can do is left out, and what comes from a file is the host's."""
    monkeypatch.setattr(prompts, "_probe", lambda *_: False)
    load = language.load_tensors
    monkeypatch.setattr(language, "load_tensors", lambda path: {k: mark(v) for k, v in load(path).items()})


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_step_mixes_devices(kind: str, tmp_path: Path, as_on_a_gpu: None) -> None:
    """Two steps, a checkpoint and another step, with the numbers of the CPU, bit for bit."""
    plain, loop = made(kind), made(kind)
    plain.step(), plain.step(), plain.step()
    mark(loop.updater.noise.sums)  # was made before, and is the host's
    with TwoDevices():
        loop.step(), loop.step()
        loop.save(tmp_path)
        loop.load(tmp_path)
        loop.step()
    assert weights(plain).keys() == weights(loop).keys()
    for name, value in weights(plain).items():
        assert torch.equal(value, weights(loop)[name]), name


def test_the_measure_tells_another_run_from_the_same() -> None:
    here, again, other = (moved(made("grpo", seed=seed), 1) for seed in (0, 0, 1))
    assert apart(here, again) == 0 and apart(here, other) > 0.3


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_trains_what_the_cpu_trains(kind: str, tmp_path: Path) -> None:
    """The same tokens are sampled, and the weights go the same way but for rounding; a checkpoint goes on there."""
    here, there = made(kind), made(kind, torch.device("cuda"))
    assert apart(moved(here, 1), moved(there, 1)) < 0.1
    there.save(tmp_path)
    again = made(kind, torch.device("cuda"))
    again.load(tmp_path)
    assert {x.device.type for x in again.policy.tensors().values()} == {"cuda"}
    assert apart(moved(there, 1), moved(again, 1)) < 0.01


@needs_gpu
def test_a_run_on_a_gpu(tmp_path: Path) -> None:
    told: dict[str, Any] = {"steps": 2, "evaluate": 2, "quiet": True, "set": {"problems": 2, "experience.size": 4}}
    done = etude.train("grpo", "sums", device="cuda", out=tmp_path / "run", **told)
    lines = [json.loads(line) for line in (done.folder / "metrics.jsonl").read_text().splitlines()]
    assert all(line["logp_gap"] <= line["logp_gap_bound"] for line in lines if "logp_gap" in line)
    assert etude.resume(done.folder, steps=3, quiet=True).steps == 3
    assert etude.evaluate(done.folder, problems=2, k=(1,))["test"]["pass@1"].value >= 0
