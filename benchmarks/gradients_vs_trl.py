"""One training step of each method by TRL, and etude's gradient on what TRL learned from: tokens, advantages, gradient.

TRL makes the batch by its own code, from the same problems: it tokenizes, samples, scores. etude is given the tokens,
scores them itself and takes the gradient of its composition's loss. Printed are the largest differences, of the
gradient as a share of its norm. Where the two have another formula etude is given TRL's: the sample deviation plus
1e-4, and for RLOO a completion's loss that is not divided by the limit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from _arms import HERE, peer_python
from peers.cases import Case, cases, goal_of
from peers.jobs import ENVIRONMENT, Run, run_of, words_of
from peers.trl_runs import problems
from torch import Tensor

from etude.advantages.group import BatchStd, GroupAdvantage, GroupStd, group_size
from etude.core.batches import TokenBatch
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.rows import to_batch
from etude.loops.credit import credited
from etude.loops.language import LanguageLoop
from etude.loops.tally import Tally
from etude.policies.language import LanguagePolicy
from etude.runs.training import compose_method
from etude.runtime.checkpoints import load_tensors

BOUND = 1e-4
"""Of the gradient's norm, in float32."""


class SampleStd(GroupStd):
    """A group's deviation as TRL has it: n - 1."""

    def spread(self, scores: Tensor, whose: Tensor) -> tuple[Tensor, Tensor]:
        spread, nothing = super().spread(scores, whose)
        size = group_size(whose)
        return spread * (size / (size - 1)).sqrt(), nothing


class SampleBatchStd(BatchStd):
    """The batch's deviation as TRL has it: n - 1."""

    def spread(self, scores: Tensor, whose: Tensor) -> tuple[Tensor, Tensor]:
        return scores.std(), super().spread(scores, whose)[1]


def with_formula(method: Any) -> Any:
    """The method with TRL's deviation."""
    part = method.advantages
    if not isinstance(part, GroupAdvantage) or part.scale is None:
        return method
    kind = SampleBatchStd if isinstance(part.scale, BatchStd) else SampleStd
    return method.replace(advantages=part.replace(scale=kind(epsilon=1e-4)), filters=())


def caught(case: Case, arm: str, seed: int, scratch: Path) -> tuple[Run, dict[str, Tensor]]:
    """TRL's step."""
    run = run_of(replace(case, ground=replace(case.ground, steps=1, every=1)), arm, seed, scratch)
    run.job["settings"]["max_grad_norm"] = 1e9
    run.folder.mkdir(parents=True)
    file = run.folder / "job.json"
    file.write_text(json.dumps(run.job))
    command = [str(peer_python("trl")), "-W", "ignore", str(HERE / "peers" / "trl_gradient.py"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return run, load_tensors(file.with_suffix(".safetensors"))


def compare(case: Case, arm: str, seed: int, scratch: Path) -> dict[str, float]:
    """Differences between TRL's step and etude's on the same tokens."""
    run, found = caught(case, arm, seed, scratch)
    task: Any = goal_of(case.ground)
    method = with_formula(compose_method(arm, list(case.ground.changes)))
    loop = LanguageLoop(method, task, LanguagePolicy.load("tiny", device="cpu"), seed=seed, steps=1)
    inputs = {k.removeprefix("inputs."): v for k, v in found.items() if k.startswith("inputs.")}
    asked = problems(run.job)
    context = loop.context(loop.method, loop.stream)
    if "completion_ids" in inputs:
        episodes = answered(loop, asked, inputs)
    else:
        episodes = loop.method.experience.collect(asked, context)
        inputs = as_etude(inputs)
    batch = to_batch(episodes, loop.policy.tokenizer.pad_token_id, 1.0, loop.policy.device)
    if "completion_ids" in inputs:
        with torch.no_grad():
            batch.behaviour_logp = loop.policy.evaluate(batch).logp
    (batch,) = loop.party.scored(loop.method, batch, context).values()
    batch = credited(loop.method, batch)
    loop.updater.accumulate(loop.method, batch, False, Tally())
    return {
        "other_tokens": float(other_tokens(batch, inputs)),
        "advantages": advantages(batch, inputs),
        "gradient": gradient(loop, found, run.job["max_tokens"] if run.job["trainer"] == "rloo" else 1),
    }


def answered(loop: LanguageLoop, asked: list[Problem], inputs: dict[str, Tensor]) -> list[Episode]:
    """TRL's completions as episodes, scored by the task."""
    policy, task = loop.policy, loop.task
    known = {tuple(policy.encode(str(p.prompt))): (i, p) for i, p in enumerate(asked)}
    episodes = []
    for row in range(len(inputs["completion_ids"])):
        prompt, said = (
            inputs[f"{k}_ids"][row][inputs[f"{k}_mask"][row].bool()].tolist() for k in ("prompt", "completion")
        )
        group, problem = known[tuple(prompt)]
        text = policy.decode(said)
        shown = Segment("user", str(problem.prompt), prompt, [0] * len(prompt), [0.0] * len(prompt))
        spoken = Segment("assistant", text, said, [1] * len(said), [0.0] * len(said), reward=task.score(problem, text))
        stop = StopReason.TERMINATED if said[-1] in policy.end_ids else StopReason.MAX_TOKENS
        episodes.append(Episode(problem, [shown, spoken], group=group, stop=stop))
    return episodes


def as_etude(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rows of given text, padded on the right; pairs one after the other, as etude has them."""
    mask = inputs["labels"] != -100 if "labels" in inputs else inputs["completion_mask"].bool()
    rows = torch.arange(len(mask))
    if "labels" not in inputs:  # all chosen ones, then all rejected ones
        rows = rows.view(2, -1).T.flatten()
    return {"tokens": inputs["input_ids"][rows], "real": inputs["attention_mask"][rows].bool(), "learned": mask[rows]}


def other_tokens(batch: TokenBatch, inputs: dict[str, Tensor]) -> int:
    """Rows that have other tokens, or other tokens to learn."""
    if "completion_ids" in inputs:
        learned = inputs["completion_mask"].sum(1)
        return int((batch.action_counts != learned).sum())
    rows = zip(batch.tokens, batch.attention_mask, batch.action_mask, *inputs.values())
    return sum(
        own[real].tolist() != theirs[seen].tolist() or acted[real].tolist() != learned[seen].tolist()
        for own, real, acted, theirs, seen, learned in rows
    )


def advantages(batch: TokenBatch, inputs: dict[str, Tensor]) -> float:
    """Largest difference of a completion's advantage."""
    if "advantages" not in inputs:
        return 0.0
    assert batch.advantages is not None
    own = (batch.advantages * batch.action_mask).sum(1) / batch.action_counts
    return float((own - inputs["advantages"]).abs().max())


def gradient(loop: LanguageLoop, found: dict[str, Tensor], times: float) -> float:
    """Norm of the difference as a share of TRL's."""
    gaps, norms = [], []
    for name, parameter in loop.policy.model.named_parameters():
        theirs = found[f"gradient.{name}"]
        own = torch.zeros_like(theirs) if parameter.grad is None else parameter.grad * times
        gaps.append((own - theirs).norm())
        norms.append(theirs.norm())
    return float(torch.stack(gaps).norm() / torch.stack(norms).norm())


def main() -> None:
    """Print the JSON; exit 1 if tokens differ, or a gradient by more than the bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    arms = {arm: case for case in cases().values() if case.library == "trl" for arm in (case.arm, case.baseline)}
    result, met = dict[str, Any](), True
    with tempfile.TemporaryDirectory() as scratch:
        for arm, case in arms.items():
            row = compare(case, arm, chosen.seed, Path(scratch))
            result[arm] = {**row, "trainer": words_of(case, arm).trainer}
            met = met and row["other_tokens"] == 0 and row["gradient"] <= BOUND
            print(f"{arm}: {result[arm]}", file=sys.stderr, flush=True)
    print(json.dumps(result, indent=1))
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
