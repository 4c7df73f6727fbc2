"""What a peer's saved weights score in etude's evaluation: the same test, the same draws, at the same steps."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from etude.core.population import Member
from etude.core.worlds import World
from etude.runs.beds import Scores
from etude.runs.training import compose_method
from peers.cases import Case, Ground, goal_of
from peers.jobs import Run


def points(ground: Ground) -> list[int]:
    """The steps at which runs are tested."""
    return [*range(0, ground.steps, ground.every), ground.steps]


def scores(case: Case, arm: str, runs: Sequence[Run]) -> Scores:
    """The ground's metric along finished runs; what was tested once is kept beside them."""
    if missing := [run for run in runs if not (run.folder / "scores.json").is_file()]:
        test = played if case.world is World.CONTROL else sampled
        for run, curve in zip(missing, test(case, arm, missing)):
            (run.folder / "scores.json").write_text(json.dumps(curve))
    curves = [json.loads((run.folder / "scores.json").read_text()) for run in runs]
    return Scores(np.array(points(case.ground), float), np.array(curves))


def sampled(case: Case, arm: str, runs: Sequence[Run]) -> list[list[float]]:
    """[runs, points] pass@1 of language models."""
    from etude.evaluation.language import evaluate_split
    from etude.policies.language import LanguagePolicy
    from etude.policies.loading import load_model, load_tokenizer

    torch.set_num_threads(1)
    ground, task, found = case.ground, goal_of(case.ground), []
    for run in runs:
        curve = []
        for step in points(ground):
            model = load_model(str(run.folder / f"step-{step}"), torch.float32, torch.device("cpu"))
            policy = LanguagePolicy(model, load_tokenizer("tiny"))
            seed = run.job["seed"] if ground.test_seed is None else ground.test_seed
            tested = evaluate_split(
                policy, task, ground.split, problems=ground.problems, samples=ground.samples, seed=seed
            )
            curve.append(tested.means((1,))["pass@1"])
        found.append(curve)
    return found


def played(case: Case, arm: str, runs: Sequence[Run]) -> list[list[float]]:
    """[runs, points] mean returns of sampled actions, all runs as members of one population."""
    from etude.evaluation.control import play
    from etude.evaluation.restored import restore_policies
    from etude.runtime.checkpoints import save_tensors

    torch.set_num_threads(1)
    task: Any = goal_of(case.ground)
    method = compose_method(arm, list(case.ground.changes), world=World.CONTROL)
    members, found = [Member(run.job["seed"]) for run in runs], []
    with tempfile.TemporaryDirectory() as scratch:
        for step in points(case.ground):
            save_tensors(
                Path(scratch) / "policy.safetensors", stacked([run.folder / f"step-{step}.npz" for run in runs])
            )
            policies = restore_policies(Path(scratch), method, task, members)
            found.append(play(policies, task, case.ground.problems).mean(1).tolist())
    return [list(curve) for curve in zip(*found)]


def stacked(files: Sequence[Path]) -> dict[str, torch.Tensor]:
    """Policies of several runs as one population's, [P, ...] under etude's names."""
    each = [dict(np.load(file)) for file in files]
    return {
        f"policy.{name}": torch.from_numpy(np.stack([one[name] for one in each])).to(
            torch.float64 if "moments" in name else torch.float32
        )
        for name in each[0]
    }
