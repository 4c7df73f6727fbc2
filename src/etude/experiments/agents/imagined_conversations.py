"""The claim of imagined-conversations: who recommends what is right to personas that nobody imagined.

All arms learn from dialogues of one engine: ILQL, cloning all, cloning the best fifth, and ILQL without the critique.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from etude.core.registry import get_method
from etude.evaluation.pairs import Pair
from etude.experiments.arms import START, pairs, variant
from etude.experiments.cells import Cell, by_label, folder_name, model_folder, spread, trained
from etude.methods.agents.imagined_conversations.imagination import Imagine
from etude.runtime import disk
from etude.tasks.agents._dialogues import Dialogues
from etude.tasks.agents.recommend import recommend

STEPS, ASKED, BEST = 150, 400, 0.2
CHANGES = {"problems": 32, "optimizer.lr": 1e-3}
ARMS = {"ilql": ("ilql", 1.0), "bc": ("sft", 1.0), "best": ("sft", BEST)}
Looked = tuple[float, float]
"""How often the recommendation is right, and how many different questions that matter were asked."""


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """All measures by seed."""
    with imagined(4) as checked, imagined(0) as unchecked:
        jobs = [cell(name, checked, seed) for name in ARMS for seed in seeds]
        jobs += [cell("ilql", unchecked, seed, "unchecked") for seed in seeds]
        found = by_label([job.label for job in jobs], spread(looked, jobs))
    right, asked = ({k: [x[i] for x in each] for k, each in found.items()} for i in (0, 1))
    own = {name: right["ilql"] for name in ("right", "right, against the best fifth", "right, with the critique")}
    other = {
        "right": right["bc"], "right, against the best fifth": right["best"],
        "right, with the critique": right["unchecked"],
    }  # fmt: skip
    return pairs(
        seeds, {**own, "questions that matter": asked["ilql"]}, {**other, "questions that matter": asked["bc"]}
    )  # fmt: skip


@contextmanager
def imagined(drafts: int) -> Iterator[str]:
    """The file of imagined dialogues."""
    engine = get_method("imagined-conversations").slots()["runs"][0].replace(drafts=drafts)
    assert isinstance(engine, Imagine)
    with model_folder(folder_name(f"imagined-{drafts}", [repr(engine)])) as folder:
        file = Path(folder) / "imagined.jsonl"
        if not file.is_file():
            pool = recommend.problems("train")
            rows = engine.rows([pool[i] for i in range(engine.problems)], recommend, START)
            disk.make_folder(file.parent)
            disk.replace_file(file, "".join(json.dumps(row) + "\n" for row in rows).encode())
        yield str(file)


def cell(name: str, file: str, seed: int, label: str = "") -> Cell:
    """A run that learns from a file of dialogues."""
    method, top = ARMS[name]
    task = Dialogues(data=file, game=recommend, top=top)
    return Cell(label or name, variant(method, CHANGES), task, seed, STEPS)


def looked(job: Cell) -> Looked:
    """What a run says to personas of the test."""
    from etude.evaluation.language import evaluate_split

    loop, _ = trained(job)
    found = evaluate_split(loop.policy, job.task, "test", problems=ASKED, samples=1, seed=START)
    asked = [episode.info.get("asked", 0.0) for row in found.episodes for episode in row]
    return float(found.correct.mean()), float(np.mean(asked))
