"""What a peer is asked to train, where that is kept, and the process that does what is missing."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _arms import HERE, peer_folder, peer_python

from etude.core.errors import EtudeError
from etude.core.worlds import World
from etude.policies.loading import resolve
from etude.runs.training import compose_method
from peers.cases import Case, goal_of
from peers.settings import Words, sb3, trl

RUNNERS = {"trl": "trl_runs.py", "sb3": "sb3_runs.py"}
PACKAGES = {"trl": ("trl", "transformers", "torch", "accelerate"),
            "sb3": ("stable_baselines3", "sb3_contrib", "torch", "gymnasium")}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One run of a peer: what it is asked, and the folder with what came of it."""

    library: str
    job: dict[str, Any]
    folder: Path

    @property
    def finished(self) -> bool:
        """Whether it is there."""
        return (self.folder / "finished.json").is_file()

    @property
    def counted(self) -> dict[str, Any]:
        """What it used, and what was logged."""
        return dict(json.loads((self.folder / "finished.json").read_text()))


def words_of(case: Case, arm: str) -> Words:
    """An arm of a case in the peer's words."""
    method = compose_method(arm, list(case.ground.changes), world=case.world)
    return sb3(method) if case.world is World.CONTROL else trl(method, goal_of(case.ground).max_tokens)


def run_of(case: Case, arm: str, seed: int, root: Path, start: str = "", pool: Path | None = None) -> Run:
    """The run of an arm with a seed.

    Args:
        start: the model that it begins from; '' for the shipped one.
        pool: a file with the problems that it learns from, where the seed has its own.
    """
    words, ground = words_of(case, arm), case.ground
    job: dict[str, Any] = {
        "trainer": words.trainer, "task": ground.task, "set": list(ground.set), "steps": ground.steps,
        "every": ground.every, **words.about, "settings": words.settings,
    }  # fmt: skip
    matters = [job, versions(case.library), (HERE / "peers" / RUNNERS[case.library]).read_text()]
    matters += [Path(start).parent.name] if start else []  # wherever it lies
    key = hashlib.sha256(json.dumps(matters).encode()).hexdigest()[:8]
    if case.world is World.LANGUAGE:
        job["model"] = start or resolve("tiny")
    job |= {"seed": seed, **({"pool": str(pool.resolve())} if pool else {})}
    return Run(case.library, job, root / case.library / f"{arm}-{ground.task}-{key}" / f"seed-{seed}")


def do(runs: Sequence[Run]) -> None:
    """Train what is missing, one after another in one process of the peer. Raises EtudeError if it fails."""
    missing = [run for run in runs if not run.finished]
    if not missing:
        return
    for run in missing:
        run.folder.mkdir(parents=True, exist_ok=True)
        (run.folder / "job.json").write_text(json.dumps(run.job, indent=1))
    library = missing[0].library
    done = subprocess.run(
        [str(peer_python(library)), "-W", "ignore", str(HERE / "peers" / RUNNERS[library]),
         *(str((run.folder / "job.json").resolve()) for run in missing)],
        env={**os.environ, **ENVIRONMENT}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    if done.returncode:
        raise EtudeError(f"{RUNNERS[library]} failed:\n{done.stderr[-3000:]}")


ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1", "PYTHONPATH": str(HERE.parent / "src"),
}  # fmt: skip


def versions(library: str) -> dict[str, str]:
    """Of the peer's packages, by what is installed in its environment."""
    peer_python(library)
    site = next((peer_folder(library) / "lib").glob("python3*/site-packages"))
    found = dict(p.name.removesuffix(".dist-info").split("-", 1) for p in site.glob("*.dist-info"))
    return {name: found[name] for name in PACKAGES[library] if name in found}
