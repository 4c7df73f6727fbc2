"""MaxRL's claim: pass@k on tables of mixed difficulty with two optimizers, and a classifier rewarded 0 or 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from etude.advantages.group import GroupMean, GroupMeanScale, scaled
from etude.core.kinds import TokenMethod
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs, tables, variant
from etude.experiments.cells import spread
from etude.tasks.tabular.enumerable import Enumerable

if TYPE_CHECKING:
    from etude.loops.enumerable import EnumerableLoop

TABLE, STEPS = Enumerable(prompts=16, vocabulary=6, length=3, solutions=8, spread=1.5), 50
ADAMW = {f"{lr:g}": {"optimizer.lr": lr} for lr in (0.2, 0.4, 0.8)}
NORMALISED = {
    f"{length:g}": {"optimizer.lr": 1e3 * length, "optimizer.clip_norm": 1e-3, "optimizer.epsilon": 1.0,
                    "optimizer.beta1": 0.01}
    for length in (0.7, 1.4, 2.8)
}  # fmt: skip
"""Steps of one length along the gradient, so that arms differ in its direction alone. Prompts share nothing in a table:
Adam rescales the gradient of each, and undoes a part of what MaxRL changes."""
ARMS = {"AdamW": (ADAMW, ("maxrl", "grpo", "rloo")), "normalised steps": (NORMALISED, ("maxrl", "grpo"))}
TUNING = range(2)
CLASSES, WIDTH, EXAMPLES, CLASSIFIERS = 10, 16, 128, 4
UPDATES, RATE = 150, 0.5


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Tables with both optimizers, each arm at its own best rate; classifiers with 4 and 64 rollouts."""
    arm: dict[str, list[float]] = {}
    baseline: dict[str, list[float]] = {}
    start: dict[str, list[float]] = {}
    for optimizer, (rates, names) in ARMS.items():
        found = tables(tuned(names, rates), TABLE, seeds=seeds, steps=STEPS, measure=coverage)
        for other in names[1:]:
            for k in ("pass@1", "pass@64"):
                label = f"{k}, {optimizer}" + (f", against {other}" if other != "grpo" else "")
                arm[label], baseline[label] = found["maxrl"].final(k), found[other].final(k)
        start |= {f"{k}, {optimizer}": found["grpo"].first(k) for k in ("pass@1", "pass@64")}
    kinds = [
        Classifier(name, n, seed) for name, n in (("maxrl", 64), ("maxrl", 4), ("reinforce", 64)) for seed in seeds
    ]
    ours, few, plain = np.reshape(spread(distance, kinds), (3, len(seeds))).tolist()
    arm |= {"distance from cross-entropy": ours, "distance from cross-entropy, against reinforce": ours}
    baseline |= {"distance from cross-entropy": few, "distance from cross-entropy, against reinforce": plain}
    return pairs(seeds, arm, baseline, start=start)


def tuned(names: Sequence[str], rates: Mapping[str, Mapping[str, float]]) -> dict[str, TokenMethod]:
    """Each method at its rate of the largest area under pass@1, on tables that no claim is judged on."""
    methods = {(n, r): variant(n, {"experience.size": 16, **set_}) for n in names for r, set_ in rates.items()}
    labels = {f"{n} at {r}": (n, r) for n, r in methods}
    runs = tables({k: methods[v] for k, v in labels.items()}, TABLE, seeds=TUNING, steps=STEPS, measure=coverage)
    area = {labels[k]: float(np.mean(run.mean("pass@1"))) for k, run in runs.items()}
    return {n: methods[max(((n, r) for r in rates), key=area.__getitem__)] for n in names}


def coverage(loop: EnumerableLoop) -> dict[str, Tensor]:
    """Exact pass@64, mean over the prompts, [P]."""
    solved = (loop.policy.probs().detach() * (loop.rewards >= 1)).sum(-1).clamp(0, 1)
    return {"pass@64": (1 - (1 - solved) ** 64).mean(1)}


# A softmax classifier on Gaussian clusters: a label is sampled, and right or wrong


class Classifier(NamedTuple):
    """How it is rewarded: 'maxrl', or 'reinforce' with the mean as its baseline; and rollouts per example."""

    kind: str
    rollouts: int
    seed: int


def distance(job: Classifier) -> float:
    """Mean |difference| in nats along training between the losses of a rewarded classifier and of cross-entropy.

    Every classifier takes plain gradient steps on the mean over the examples, of E[reward] or what MaxRL makes of it,
    or of the log-likelihood.
    """
    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(job.seed)
    centres = 1.2 * torch.randn(CLASSIFIERS, CLASSES, WIDTH, generator=random)
    label = torch.randint(0, CLASSES, (CLASSIFIERS, EXAMPLES), generator=random)
    picked = centres.gather(1, label[..., None].expand(-1, -1, WIDTH))
    inputs = picked + torch.randn(picked.shape, generator=random)
    target = torch.nn.functional.one_hot(label, CLASSES).float()
    group = torch.arange(CLASSIFIERS * EXAMPLES).repeat_interleave(job.rollouts)
    taught, rewarded = torch.zeros(2, CLASSIFIERS, WIDTH, CLASSES)
    apart = torch.zeros(CLASSIFIERS)
    divisor = GroupMeanScale() if job.kind == "maxrl" else None
    for _ in range(UPDATES):
        knows, p = ((inputs @ w).softmax(-1) for w in (taught, rewarded))
        apart += (_loss(knows, label) - _loss(p, label)).abs() / UPDATES
        said = torch.multinomial(p.flatten(0, 1), job.rollouts, replacement=True, generator=random)
        reward = (said == label.flatten()[:, None]).float().flatten()
        credit = scaled(reward, group, GroupMean(), divisor).view_as(said) / job.rollouts
        pushed = -credit.sum(1, keepdim=True) * p.flatten(0, 1)  # sum_i A_i (onehot(y_i) - p) / N
        pushed = pushed.scatter_add(1, said, credit).view_as(p)
        taught = taught + RATE * inputs.mT @ (target - knows) / EXAMPLES
        rewarded = rewarded + RATE * inputs.mT @ pushed / EXAMPLES
    return float(apart.mean())


def _loss(p: Tensor, label: Tensor) -> Tensor:
    """[CLASSIFIERS] cross-entropy in nats."""
    return -p.gather(-1, label[..., None]).clamp(min=1e-30).log().mean((1, 2))
