"""What there is on this machine, what it promises, and what would have to be installed for what."""

from __future__ import annotations

import importlib
import os
import shutil
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from etude.runtime.environment import record, version
from etude.runtime.sandbox.pool import kind

FOR = {
    "control": "environments of EnvPool, MuJoCo and classic control",
    "box2d": "LunarLander, BipedalWalker, CarRacing",
    "minatar": "MinAtar's five small Atari games",
    "games": "chess endgames",
    "minigrid": "grids with rooms, doors and keys, and a teacher's sub-goals",
    "data": "Parquet, and data sets of the Hugging Face hub",
    "tasks": "problems of reasoning-gym, answers judged by math-verify",
    "peft": "adapters: LoRA, rsLoRA, DoRA",
    "quantized": "QLoRA: a base in 4 bits below an adapter, on CUDA",
    "plots": "figures as PNG and PDF",
    "ray": "samplers and whole runs on the machines of a cluster",
    "sinks": "TensorBoard, Weights & Biases, trackio",
}
"""What each extra is for."""
MPS = "mps (not used: it has no float64)"
"""What is said of an Apple GPU: `policies/loading.choose_device` refuses it."""
LITTLE = 5e9
"""Free bytes below which a run may not find room for its checkpoints."""


@dataclass(frozen=True)
class Package:
    """A package that etude needs, or that an extra brings: what is asked for, and what is there ('' for nothing)."""

    name: str
    wanted: str
    there: str
    fits: bool


@dataclass(frozen=True)
class Extra:
    """An extra of etude. `missing` are its packages that are not there as they should be."""

    name: str
    what: str
    missing: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Health:
    """What was found.

    Args:
        here: versions, processor, devices and the like, as in a run's `environment.json`.
        blas: which libraries compute products, and which kernels were asked for.
        speeds: what they reach in float32 on one core.
        exact: whether members of a population equal their own runs bit for bit here.
        free_bytes: on the disk of this folder.
        hub: where models of the hub are kept, and whether it may be asked.
        programs: what programs of policies would run in.
        sentences: what is wrong and what to do; none if all is well.
    """

    here: dict[str, Any]
    blas: str
    speeds: str
    exact: bool
    free_bytes: int
    hub: str
    programs: str
    packages: list[Package]
    extras: list[Extra]
    sentences: list[str]

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def examine(folder: Path | str = ".") -> Health:
    """Look at this machine; takes a second or two."""
    import torch

    from etude.runs.speeds import measure

    here, packages, extras = record(0), needed(), brought()
    if torch.backends.mps.is_available():
        here["devices"].append(MPS)
    exact, free, speeds = members_equal_their_own_runs(), shutil.disk_usage(folder).free, measure()
    sentences = [
        f"{p.name} {p.there + ' is installed' if p.there else 'is not installed'}, and etude needs {p.wanted}: "
        f"pip install '{p.wanted}'"
        for p in packages
        if not p.fits
    ]
    if not exact:
        sentences.append(
            f"Members of a population are not bit for bit their own runs with the kernels {here['kernels']} here: "
            "their last digits may differ. MKL_CBWR=AUTO,STRICT or COMPATIBLE in the environment may do it."
        )
    if advice := speeds.advice():
        sentences.append(advice)
    if free < LITTLE:
        sentences.append(f"{free / 1e9:.1f} GB are free here: checkpoints may not find room.")
    blas = _blas(str(here["kernels"]))
    return Health(here, blas, str(speeds), exact, free, _hub(), kind(), packages, extras, sentences)


def needed() -> list[Package]:
    """The packages without which etude does not run."""
    return [_package(r) for r in _requirements("")]


def brought() -> list[Extra]:
    """The extras, and what is missing of each."""
    names = [n for n in metadata.metadata("etude").get_all("Provides-Extra") or [] if n != "dev"]
    found = {n: [_package(r) for r in _requirements(n)] for n in names}
    return [
        Extra(n, FOR.get(n, ", ".join(p.name for p in ps)), [p.name for p in ps if not p.fits])
        for n, ps in found.items()
    ]


def _requirements(extra: str) -> list[Any]:
    from packaging.requirements import Requirement

    wanted = [Requirement(text) for text in metadata.requires("etude") or []]
    mine = [r for r in wanted if ("extra" in str(r.marker)) == bool(extra)]
    return [r for r in mine if r.marker is None or r.marker.evaluate({"extra": extra})]


def _package(requirement: Any) -> Package:
    there = version(requirement.name) or ""
    fits = bool(there) and requirement.specifier.contains(there, prereleases=True)
    return Package(requirement.name, f"{requirement.name}{requirement.specifier}", there, fits)


def members_equal_their_own_runs() -> bool:
    """Tried on a small population of PPO's."""
    from etude.core.population import Member
    from etude.core.registry import get_method
    from etude.loops.on_policy import OnPolicyLoop
    from etude.loops.probe import members_are_exact
    from etude.tasks import resolve_task

    method = get_method("ppo", "control")
    loop = OnPolicyLoop(method, resolve_task("cartpole"), [Member(s) for s in range(4)], 1)  # type: ignore[arg-type]
    return members_are_exact(loop)


def _blas(kernels: str) -> str:
    """What torch was built with, in words."""
    from etude.runs.speeds import built_with

    found = [f"{name} {version}" for name, version in built_with()]
    return f"{', '.join(found) or 'unknown'}; kernels asked for: {kernels}"


def _hub() -> str:
    constants = importlib.import_module("huggingface_hub.constants")
    offline = os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")
    return f"{constants.HF_HUB_CACHE}{' (offline)' if offline else ''}"
