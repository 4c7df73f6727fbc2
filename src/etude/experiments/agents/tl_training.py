"""The claim of TL-Training: what key tokens, leaving out failed calls, and the reward each do for calls of tools.

All begin from one model, which has read many other dialogues, in each of which a call fails. Arms learn from the same
1,217: plain fine-tuning, the whole of it, without key tokens, and without the filter. PPO goes on from what the whole
of it came to, with the same seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from etude.evaluation.pairs import Pair
from etude.experiments.arms import START, pairs, variant
from etude.experiments.cells import Cell, by_label, model_folder, spread, trained
from etude.tasks.agents.tool_dialogue import ToolDialogue, tool_dialogue

if TYPE_CHECKING:
    from etude.core.episodes import Episode

MODEL, STEPS, PPO_STEPS, PROBLEMS = "blank:2x128x4@services", 60, 40, 400
READ, READ_STEPS = ToolDialogue(dialogues=20_000, errors=1.0, seed=1), 1500
READ_BY = {"optimizer.lr": 2e-3, "problems": 32}
"""What the model that all begin from has read, and how."""
ALONE: dict[str, dict[str, Any]] = {
    "tl-training": {}, "no key tokens": {"token_weights.key-tokens.most": 1.0}, "no filter": {"filters": ()},
}  # fmt: skip
PPO = {"problems": 32, "experience.size": 4}


class Learning(NamedTuple):
    """A run, and where what it came to is saved; None: nobody goes on from it."""

    cell: Cell
    folder: Path | None = None


class Looked(NamedTuple):
    """Of a policy: shares of test calls that are exactly right and that have a parameter which their tool does not
    have, what calls are worth by the reward on average, and rows that the run was shown."""

    exact: float
    foreign: float
    worth: float
    rows: float


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Calls that are right, and those with a foreign parameter, of both ways to tune and of what goes on from one."""
    arms = {label: variant("tl-training", {**(arm or {}), **changes}) for label, changes in ALONE.items()}
    arms["sft"] = variant("sft", dict(baseline or {}))
    reader = Cell("reader", variant("sft", READ_BY), READ, START, READ_STEPS, MODEL)
    with ExitStack() as open_folders:
        begun = open_folders.enter_context(model_folder(reader.folder()))
        start = looked(Learning(reader, begun))
        cells = [
            Cell(label, method, tool_dialogue, seed, STEPS, str(begun))
            for seed in seeds
            for label, method in arms.items()
        ]
        whole = {cell.seed: cell for cell in cells if cell.label == "tl-training"}
        folders = {seed: open_folders.enter_context(model_folder(cell.folder())) for seed, cell in whole.items()}
        jobs = [Learning(cell, folders[cell.seed] if cell.label == "tl-training" else None) for cell in cells]
        found = by_label([cell.label for cell in cells], spread(looked, jobs))
        rewarded = variant("tl-training-ppo", PPO)
        later = [Cell("ppo", rewarded, tool_dialogue, seed, PPO_STEPS, str(folders[seed])) for seed in seeds]
        after = spread(looked, [Learning(cell) for cell in later])
    return _pairs(seeds, found, after, start)


def _pairs(
    seeds: Sequence[int], found: Mapping[str, Sequence[Looked]], after: Sequence[Looked], start: Looked
) -> list[Pair]:
    def of(label: str, what: str) -> list[float]:
        return [float(getattr(each, what)) for each in found[label]]

    own = {
        "exact": of("tl-training", "exact"), "foreign parameter": of("tl-training", "foreign"),
        "exact against no key tokens": of("tl-training", "exact"),
        "no key tokens against sft": of("no key tokens", "exact"),
        "foreign parameter against no filter": of("tl-training", "foreign"),
        "exact after PPO": [each.exact for each in after], "worth after PPO": [each.worth for each in after],
    }  # fmt: skip
    other = {
        "exact": of("sft", "exact"), "foreign parameter": of("sft", "foreign"),
        "exact against no key tokens": of("no key tokens", "exact"), "no key tokens against sft": of("sft", "exact"),
        "foreign parameter against no filter": of("no filter", "foreign"),
        "exact after PPO": of("tl-training", "exact"), "worth after PPO": of("tl-training", "worth"),
    }  # fmt: skip
    before = {"exact": [start.exact] * len(seeds), "foreign parameter": [start.foreign] * len(seeds)}
    return pairs(seeds, own, other, start=before, budgets={"rows": (of("tl-training", "rows"), of("sft", "rows"))})


def looked(job: Learning) -> Looked:
    """Train a policy, save it where it is to be, and have it say the test calls twice."""
    from etude.core.slots import Context
    from etude.core.streams import Stream
    from etude.evaluation.language import evaluate_split
    from etude.methods.agents.tl_training.calls import CallErrors

    loop, metrics = trained(job.cell)
    if job.folder is not None:
        loop.policy.save(job.folder)
    played = evaluate_split(loop.policy, tool_dialogue, "test", problems=PROBLEMS, samples=2, seed=START)
    said = [e for row in played.episodes for e in row]
    worth = CallErrors().score(said, Context(tool_dialogue, loop.policy, Stream(0)))
    rows = float(sum(line["rows"] for line in metrics))
    return Looked(float(played.correct.mean()), sum(map(foreign, said)) / len(said), sum(worth) / len(worth), rows)


def foreign(episode: Episode) -> bool:
    """Whether a call was made of a listed tool with a parameter that it does not have."""
    from etude.rewards.tool_matches import calls_in

    tools, calls = episode.problem.info["signatures"], calls_in(episode.completion) or []
    return any(p not in tools[c["name"]] for c in calls if c["name"] in tools for p in c["parameters"])
