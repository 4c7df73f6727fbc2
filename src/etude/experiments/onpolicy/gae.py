"""The claim of GAE: an intermediate lambda, against 0 and 1."""

from __future__ import annotations

from typing import Any

from etude.core.kinds import RolloutMethod
from etude.core.registry import get_method
from etude.core.worlds import World
from etude.evaluation.comparison import verdict
from etude.experiments.cells import Cell, advance

LAMBDAS = (0.0, 0.96, 1.0)
FIRST_SEED = 100


def experiment() -> dict[str, Any]:
    """Return of GAE with lambda 0.96 against lambda 0 and 1, all members of one population.

    Held if it is above both, not held if it is below either, each by the interval of its own difference.
    """
    import torch

    from etude.core.population import Member
    from etude.evaluation.control import play
    from etude.loops.on_policy import OnPolicyLoop
    from etude.tasks import resolve_task

    torch.set_num_threads(1)
    method = get_method("gae", World.CONTROL)
    claim = method.claim
    assert claim is not None and isinstance(method, RolloutMethod)
    rollout: Any = method.experience
    task: Any = resolve_task(claim.task)
    members = [Member(FIRST_SEED + s, {"advantages.lam": lam}) for lam in LAMBDAS for s in range(claim.seeds)]
    loop = OnPolicyLoop(method, task, members, -(-claim.steps // (rollout.steps * rollout.environments)))
    label = "-".join(["gae", *(f"{lam:g}" for lam in LAMBDAS), str(claim.seeds)])
    advance(loop, Cell(label, method, task, FIRST_SEED, loop.steps, start=""))
    returns = play(loop, task, 20).mean(1).reshape(len(LAMBDAS), claim.seeds)
    loop.close()
    arms = {f"lambda {lam:g}": row.tolist() for lam, row in zip(LAMBDAS, returns)}
    low, middle, high = arms.values()
    found = [verdict(middle, other, claim.direction, claim.margin) for other in (low, high)]
    outcomes = [f.outcome for f in found]
    both = "held" if outcomes == ["held"] * 2 else "not held" if "not held" in outcomes else "inconclusive"
    means = ", ".join(f"{name} {sum(row) / len(row):.1f}" for name, row in arms.items())
    return {
        "verdict": both,
        "summary": f"return on {claim.task} after {claim.steps:,} steps, {claim.seeds} seeds: {means}; differences "
        + " and ".join(f"{f.interval.value:+.1f} (95% {f.interval.low:+.1f} to {f.interval.high:+.1f})" for f in found)
        + ".",
        "task": claim.task, "metric": claim.metric, "direction": claim.direction, "margin": claim.margin,
        "steps": claim.steps, "seeds": claim.seeds, "arms": arms,
        "difference": min((f.interval for f in found), key=lambda i: i.low).to_json(),
    }  # fmt: skip
