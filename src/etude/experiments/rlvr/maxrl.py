"""MaxRL's claim: pass@k on tables of mixed difficulty and on sums, and a classifier rewarded 0 or 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from etude.advantages.group import GroupMean, GroupMeanScale, scaled
from etude.core.kinds import TokenMethod
from etude.experiments.arms import SEEDS, Exact, Question, enumerable, findings, language, variant
from etude.experiments.cells import spread
from etude.tasks.language.sums import Sums
from etude.tasks.tabular.enumerable import Enumerable

if TYPE_CHECKING:
    from etude.loops.enumerable import EnumerableLoop

ARMS = ("maxrl", "grpo", "rloo")
SEED_COUNT, STEPS = 64, 50
CLASSES, WIDTH, EXAMPLES, CLASSIFIERS = 10, 16, 128, 16
UPDATES, RATE = 150, 0.5


def experiment() -> dict[str, Any]:
    """All parts; the tables first."""
    methods = [*map(_normalised, ARMS), *(variant(name, {"experience.size": 16}) for name in ARMS)]
    trained = spread(_tables, methods)
    tables, adam = dict(zip(ARMS, trained[:3])), dict(zip(ARMS, trained[3:]))
    sums = language({name: variant(name) for name in ARMS[:2]}, Sums(terms=(3, 4, 5)), seeds=4, steps=30)
    gap = {k: [a - b for a, b in zip(tables["maxrl"].final(k), tables["grpo"].final(k))] for k in ("pass@64", "pass@1")}
    questions = [
        Question(f"{k} on enumerable, against {other}", {name: tables[name].final(k) for name in ("maxrl", other)})
        for k, other in (("pass@64", "grpo"), ("pass@16", "grpo"), ("pass@4", "grpo"), ("pass@1", "grpo"),
                         ("pass@64", "rloo"), ("pass@1", "rloo"))
    ]  # fmt: skip
    questions.append(Question("gain over grpo at pass@64 and at pass@1", gap))
    for k in (8, 1):
        arms = {name: [run.pass_at(k) for run in runs] for name, runs in sums.items()}
        questions.append(Question(f"pass@{k} on sums", arms))
    kinds = [(name, n) for name in ("maxrl", "reinforce") for n in (4, 64)]
    distances = {f"{name} {n}": d for (name, n), d in zip(kinds, spread(_distance, kinds))}
    questions += [
        Question("distance from cross-entropy's curve, 64 and 4 rollouts",
                 {k: distances[k] for k in ("maxrl 64", "maxrl 4")}, "lower"),
        Question("distance from cross-entropy's curve at 64 rollouts",
                 {k: distances[k] for k in ("maxrl 64", "reinforce 64")}, "lower"),
    ]  # fmt: skip
    with_adam = {n: {k: sum(e.final(k)) / SEED_COUNT for k in ("pass@1", "pass@64")} for n, e in adam.items()}
    return findings(
        questions, task="enumerable, sums, classes", steps=STEPS, seeds=SEED_COUNT, with_adam=with_adam,
        distances={k: sum(v) / len(v) for k, v in distances.items()},
    )  # fmt: skip


def _normalised(name: str) -> TokenMethod:
    """Steps of length 1/2 along the gradient, so that arms differ in its direction alone.

    Tables share nothing between prompts: Adam would rescale each prompt's gradient and undo what MaxRL changes.
    """
    step = {"optimizer.lr": 500.0, "optimizer.clip_norm": 1e-3, "optimizer.epsilon": 1.0, "optimizer.beta1": 0.01}
    return variant(name, {"experience.size": 16, **step})


def _tables(method: TokenMethod) -> Exact:
    """Eight prompts with 1 to 8 right responses of 36, most of them unlikely at first."""
    task = Enumerable(prompts=8, vocabulary=6, length=2, solutions=8, spread=2.0)
    return enumerable(method, task, seeds=SEED_COUNT, steps=STEPS, measure=_coverage)


def _coverage(loop: EnumerableLoop) -> dict[str, Tensor]:
    solved = (loop.policy.probs().detach() * (loop.rewards >= 1)).sum(-1).clamp(0, 1)
    return {"pass@64": (1 - (1 - solved) ** 64).mean(1)}


# A softmax classifier on Gaussian clusters: a label is sampled, and right or wrong


def _distance(job: tuple[str, int]) -> list[float]:
    """Mean |difference| in nats along training between the losses of a rewarded classifier and of cross-entropy.

    Every classifier takes plain gradient steps on the mean over the examples, of E[reward] or what MaxRL makes of it,
    or of the log-likelihood. `job`: 'maxrl' or 'reinforce' with the mean as its baseline, and rollouts per example.
    """
    kind, rollouts = job
    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(SEEDS)
    centres = 1.2 * torch.randn(CLASSIFIERS, CLASSES, WIDTH, generator=random)
    label = torch.randint(0, CLASSES, (CLASSIFIERS, EXAMPLES), generator=random)
    picked = centres.gather(1, label[..., None].expand(-1, -1, WIDTH))
    inputs = picked + torch.randn(picked.shape, generator=random)
    target = torch.nn.functional.one_hot(label, CLASSES).float()
    group = torch.arange(CLASSIFIERS * EXAMPLES).repeat_interleave(rollouts)
    taught, rewarded = torch.zeros(2, CLASSIFIERS, WIDTH, CLASSES)
    apart = torch.zeros(CLASSIFIERS)
    divisor = GroupMeanScale() if kind == "maxrl" else None
    for _ in range(UPDATES):
        knows, p = ((inputs @ w).softmax(-1) for w in (taught, rewarded))
        apart += (_loss(knows, label) - _loss(p, label)).abs() / UPDATES
        said = torch.multinomial(p.flatten(0, 1), rollouts, replacement=True, generator=random)
        reward = (said == label.flatten()[:, None]).float().flatten()
        credit = scaled(reward, group, GroupMean(), divisor).view_as(said) / rollouts
        pushed = -credit.sum(1, keepdim=True) * p.flatten(0, 1)  # sum_i A_i (onehot(y_i) - p) / N
        pushed = pushed.scatter_add(1, said, credit).view_as(p)
        taught = taught + RATE * inputs.mT @ (target - knows) / EXAMPLES
        rewarded = rewarded + RATE * inputs.mT @ pushed / EXAMPLES
    return apart.tolist()


def _loss(p: Tensor, label: Tensor) -> Tensor:
    """[CLASSIFIERS] cross-entropy in nats."""
    return -p.gather(-1, label[..., None]).clamp(min=1e-30).log().mean((1, 2))
