"""What a training step of a population reports: each member's numbers, their means, and the episodes that ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from etude.core.loop import StepReport
from etude.core.population import Population
from etude.loops.block import Block


def reported(
    block: Block, members: dict[str, list[float]], population: Population, recent: Sequence[deque[tuple[float, int]]],
    acted: int, taken: float,
) -> StepReport:  # fmt: skip
    """Means over the members, and each member's own.

    Args:
        block: whose `ended` episodes are added to `recent`, the last ones of each member.
        members: what was measured, of every member; the returns of `recent` are added.
        acted: environment steps of each member so far. taken: seconds of this step.
    """
    for member, total, length in block.ended:
        recent[member].append((total, length))
    if all(recent):
        members["return"] = [sum(r for r, _ in d) / len(d) for d in recent]
        members["episode_length"] = [sum(n for _, n in d) / len(d) for d in recent]
    metrics = {k: sum(v) / len(v) for k, v in members.items()}
    if "return" in members:
        for label in dict.fromkeys(m.label for m in population.members if m.label):
            own = [x for x, m in zip(members["return"], population.members) if m.label == label]
            metrics[f"return/{label}"] = sum(own) / len(own)
    metrics["environment_steps"] = float(acted)
    metrics["steps_per_second"] = block.steps * population.size / max(taken, 1e-9)
    metrics["seconds/experience"], metrics["seconds/update"] = block.collecting, taken - block.collecting
    if block.faults:
        metrics["environment_faults"] = float(block.faults)
    episodes = [{"member": m, "return": r, "length": n} for m, r, n in block.ended]
    return StepReport(metrics, episodes, members)
