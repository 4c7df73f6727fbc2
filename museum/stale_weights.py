"""Sampling with weights that are not the trained ones, and optimizers that train others."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from etude_museum.tiny import SMALL, language

from etude.evaluation.exhibits import Exhibit, Report
from etude.optimizers.adam import AdamW
from etude.policies.adapters import Adapter
from etude.policies.language import LanguagePolicy
from etude.regularizers.kl import KLToReference


def shadow() -> Iterator[Mapping[str, float]]:
    """Three steps, sampled by a bfloat16 copy of the weights."""
    return language(shadow=True)


def asleep() -> Any:
    """The sampler wakes up with the weights that it had when it went to sleep: its first ones."""
    return mock.patch.object(LanguagePolicy, "refresh_sampler", _awake)


def _awake(self: LanguagePolicy) -> None:
    self._sampled = self.version, self.loads


@contextmanager
def unused() -> Iterator[None]:
    """New weights arrive and are counted, but what decodes is the base model that was loaded first."""
    first: dict[int, Any] = {}
    original = LanguagePolicy.sampler

    def sampler(self: LanguagePolicy) -> Any:
        return first.setdefault(id(self), copy.deepcopy(original(self)))

    with mock.patch.object(LanguagePolicy, "sampler", sampler):
        yield


@contextmanager
def other_parameters() -> Iterator[None]:
    """The optimizer is made of the parameters as they were before the model was wrapped."""
    original = AdamW.build

    def build(self: AdamW, parameters: Any) -> Any:
        return original(self, [torch.nn.Parameter(p.detach().clone()) for p in parameters])

    with mock.patch.object(AdamW, "build", build):
        yield


def adapted() -> Iterator[Mapping[str, float]]:
    """Two steps of a low-rank adapter, sampled by a copy of base and adapter in one."""
    return language(SMALL.replace(optimizer=AdamW(lr=1e-2)), adapter=Adapter(rank=2), shadow=True, steps=2)


@torch.no_grad()
def _base_alone(self: LanguagePolicy) -> None:
    assert self._copy.model is not None
    base = copy.deepcopy(self.model).unload()
    for mine, theirs in zip(self._copy.model.parameters(), base.parameters(), strict=True):
        mine.copy_(theirs)
    self._copy.held = self.version, self.loads


def _same_model(self: LanguagePolicy) -> None:
    self.weights.reference = self.model


exhibits = (
    Exhibit(
        id="sampler-asleep",
        kind="weights",
        report=Report(
            thread="huggingface/trl#5312", title="vLLM weights are not synchronized with vllm_enable_sleep_mode=True"
        ),
        says="Whoever let the sampler sleep between updates trained on completions of the model that was loaded first; "
        "rewards and losses looked as usual.",
        mechanism="the sampler's copy of the weights is never refreshed, but counts as fresh.",
        inject=asleep,
        run=shadow,
        expect="The sampler does not hold the weights of version",
        begins=1,
    ),
    Exhibit(
        id="adapter-not-used",
        kind="weights",
        report=Report(thread="unslothai/unsloth#1694", title="Updating LoRA Weights VLLM"),
        says="New weights are handed to the engine, but it decodes with the base model unless it is told to use them: "
        "samples never change.",
        mechanism="what decodes is a copy of the model as it was at first.",
        inject=unused,
        run=language,
        expect="The sampler does not hold the weights of version",
        begins=1,
    ),
    Exhibit(
        id="adapter-never-sent",
        kind="weights",
        report=Report(
            thread="verl-project/verl#7495",
            title="[BUG][LoRA][Async] Disaggregated weight sync never delivers the LoRA adapter — rollout keeps "
            "sampling from the initial policy",
        ),
        says="Every transfer sent the frozen base and no adapter: the sampler stayed at the initial policy, and two "
        "months went into explaining it as staleness.",
        mechanism="the sampler's copy is made of the base without its adapter.",
        inject=lambda: mock.patch.object(LanguagePolicy, "refresh_sampler", _base_alone),
        run=adapted,
        expect="The sampler does not hold the weights of version",
        begins=1,
    ),
    Exhibit(
        id="optimizer-of-other-parameters",
        kind="weights",
        report=Report(
            thread="huggingface/accelerate#3256",
            title="[BUG] [Fix-Suggested] Model Training Stalls with FSDP when fsdp_use_orig_params=False due to "
            "inconsistent model-optimizer state",
        ),
        says="The optimizer was made before the model was wrapped and held parameters that nobody used any more: "
        "training ran, and no weight moved.",
        mechanism="the optimizer is built over copies of the parameters.",
        inject=other_parameters,
        run=language,
        expect="left every weight as it was: the optimizer does not hold the policy's parameters",
    ),
    Exhibit(
        id="updates-lost-to-rounding",
        kind="weights",
        report=Report(thread="pytorch/ao#1124", title="Add BF16 stochastic rounding option for optimizers", pull=True),
        says="A step smaller than a thousandth of a bfloat16 weight is rounded away: full-bfloat16 training at the "
        "usual rates changes few weights or none.",
        mechanism="steps are taken on the bfloat16 weights themselves, without float32 masters.",
        inject=lambda: mock.patch("etude.policies.masters.LOW", ()),
        run=lambda: language(SMALL.replace(optimizer=AdamW(lr=1e-5)), dtype=torch.bfloat16),
        expect="of the weights that have a gradient moved in step|too small for the dtype",
    ),
    Exhibit(
        id="reference-that-trains",
        kind="weights",
        report=Report(thread="hiyouga/ChatGLM-Efficient-Tuning#380", title="关于PPO中ref_model的问题"),
        says="Log-probabilities of policy and reference came from the same weights: the penalty that should hold the "
        "policy back was zero throughout.",
        mechanism="the reference is the trained model itself instead of a frozen copy.",
        inject=lambda: mock.patch.object(LanguagePolicy, "keep_reference", _same_model),
        run=lambda: language(SMALL.replace(regularizers=(KLToReference(),))),
        expect="The reference of the policy changed, and nothing was to move it",
        begins=1,
    ),
)
