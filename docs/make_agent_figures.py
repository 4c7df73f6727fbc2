"""Draw the pictures of docs/agents.md: what is seen, who plays, and which turn gets the credit, of real episodes.

    python docs/make_agent_figures.py           the starts of three beds are trained if need be: some minutes of a core

Runs are kept in runs/figures and used again as long as they have the same settings.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from etude.core.batches import TokenBatch
from etude.core.complete import complete_token
from etude.core.episodes import Episode, Segment
from etude.core.task import LanguageTask
from etude.evaluation.plots import INK, LINE, SOFT
from etude.evaluation.svg import PALETTE
from etude.loops.credit import credited
from etude.loops.language import LanguageLoop
from etude.policies.language import LanguagePolicy
from etude.runs.beds import load_bed, start_of
from etude.runs.jobs import jobs_for, run_jobs
from etude.runs.training import compose_method, compose_task
from etude.runtime.checkpoints import newest

IMAGES = Path(__file__).resolve().parent / "images"
SEEN, OWN, SUMMARY = LINE, PALETTE[0], PALETTE[1]
"""Colours: of what the environment said, of what the policy said and learns from, of a summary that it learns from."""
PALE = 0.35
"""How much colour is left of what the policy sees of its own, and learns from in another row."""
VIEWS = {
    "full-history": [],
    "last-turns": ["experience.view.turns=1"],
    "drop-observations": [],
    "summary-at": ["experience.view.limit=40", "experience.view.tokens=12"],
}
CREDITS = {
    "the whole episode's (grpo)": ("grpo", [], []),
    "weighed by how sure each turn was (empg)": ("empg", [], []),
    "rewards of turns, from here on (reward-to-go)": (
        "grpo", ["advantages=reward-to-go"], ["task.pays=milestones"]
    ),
}  # fmt: skip


def batch_of(
    method: str, task: str, model: str, fields: Sequence[str], settings: Sequence[str] = (), problems: int = 8
) -> dict[str, TokenBatch]:
    """What a first step learns from, by player: rows with their rewards and advantages."""
    goal = compose_task(task, settings)
    assert isinstance(goal, LanguageTask)
    own = compose_method(method, fields)
    loop = LanguageLoop(own, goal, LanguagePolicy.load(model), seed=0, steps=1)
    step, context = loop.plan(0)
    rows = loop.party.scored(step, loop.gatherer.gather(step, problems, context), context)
    follow = {player.name: player.method for player in loop.party.players(step)}
    return {name: credited(complete_token(follow[name]), batch) for name, batch in rows.items()}


def figure_of(height: float, titles: Mapping[str, float]) -> tuple[Figure, list[Any]]:
    """A figure with a panel below the other for each title, as high as said beside each other."""
    figure = Figure(figsize=(8.4, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(len(titles), 1, squeeze=False, height_ratios=list(titles.values()))[:, 0])
    for ax, title in zip(axes, titles):
        for spine in ax.spines.values():
            spine.set_visible(False)
        ax.tick_params(colors=SOFT, length=0, labelsize=9)
        ax.set_title(title, loc="left", color=INK, fontsize=10.5, fontweight="bold")
    return figure, axes


def saved(figure: Figure, name: str) -> Path:
    """The picture, in docs/images."""
    figure.savefig(IMAGES / name, dpi=160, metadata={"Software": "etude"})
    return IMAGES / name


# What the policy sees


def views(model: str) -> Path:
    """The rows of one game, for each view: what is read, and what is learned from."""
    shown = {view: rows_of_best(model, [f"experience.view={view}", *fields]) for view, fields in VIEWS.items()}
    figure, axes = figure_of(5.6, {view: len(rows) + 0.8 for view, rows in shown.items()})
    widest = 0
    for ax, rows in zip(axes, shown.values()):
        for i, row in enumerate(rows):
            widest = max(widest, draw_row(ax, -i, row.segments))
        ax.set_yticks([-i for i in range(len(rows))], [f"row {i + 1}" for i in range(len(rows))])
        ax.set_ylim(0.5 - len(rows), 0.5)
    for ax in axes:
        ax.set_xlim(0, widest)
        ax.set_xticks([])
    axes[-1].set_xticks(range(0, widest, 10))
    axes[-1].set_xlabel("tokens", color=SOFT, fontsize=9)
    colours = {"said by the environment": (SEEN, 1.0), "said by the policy, learned in this row": (OWN, 1.0),
               "said by the policy, only seen here": (OWN, PALE), "a summary, learned in this row": (SUMMARY, 1.0),
               "a summary, only seen here": (SUMMARY, PALE)}  # fmt: skip
    handles = [Patch(color=to_rgba(*colour), label=name) for name, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8.5, labelcolor=INK)
    return saved(figure, "agents-views.png")


def rows_of_best(model: str, fields: Sequence[str]) -> list[Episode]:
    """The training rows of the best game, of those that one step samples; the shortest of equals."""
    (batch,) = batch_of("grpo", "collect", model, fields, ["task.keys=4"]).values()
    rows: dict[int, list[Episode]] = {}
    for row in batch.episodes:
        rows.setdefault(id(row.part_of or row), []).append(row)
    return max(rows.values(), key=lambda own: (own[0].total, -sum(len(row.segments) for row in own)))


def draw_row(ax: Any, y: int, segments: Sequence[Segment]) -> int:
    """A bar of segments at a height; how long it is."""
    place = 0
    for segment in segments:
        learned, size = any(segment.action_mask), len(segment.tokens)
        colour = SUMMARY if segment.role == "summary" else OWN if segment.role == "assistant" else SEEN
        alpha = 1.0 if learned or colour == SEEN else PALE
        ax.barh(y, size, left=place, height=0.7, color=colour, alpha=alpha, edgecolor="white", linewidth=1)
        place += size
    return place


# Who plays


def players(model: str) -> Path:
    """The most unusual game of two rounds, of two players: what each saw, said, was paid, and learns with."""
    batches = batch_of("grpo", "signals", model, [], ["task.rounds=2"])
    credits = {id(e): last_credit(batch, i) for batch in batches.values() for i, e in enumerate(batch.episodes)}
    games = [(e, *e.beside) for batch in batches.values() for e in batch.episodes if e.beside]
    game = max(games, key=lambda own: (len(own[0].segments), min(credits[id(e)] for e in own)))
    figure, (ax,) = figure_of(2.2, {"One game of signals, with an episode for each player": 1})
    boxes = {
        2 * (i // 2) * len(game) + 2 * lane + i % 2: (-lane, segment)
        for lane, episode in enumerate(game)
        for i, segment in enumerate(episode.segments)
    }
    for place, (y, segment) in boxes.items():
        draw_box(ax, place, y, segment.text.strip("\n") or "(nothing)", any(segment.action_mask))
        if any(segment.action_mask) and place + 1 in boxes:
            style = {"arrowstyle": "->", "color": SOFT, "shrinkA": 14, "shrinkB": 14}
            ax.annotate("", (place + 1, boxes[place + 1][0]), (place, y), arrowprops=style)
    for lane, episode in enumerate(game):
        said = f"paid {episode.total:.2f}\nadvantage {credits[id(episode)]:+.2f}"
        ax.text(len(boxes) - 0.2, -lane, said, va="center", fontsize=9, color=INK)
    ax.set_yticks([-lane for lane in range(len(game))], [episode.player for episode in game])
    ax.set_ylim(0.5 - len(game), 0.5)
    ax.set_xlim(-0.6, len(boxes) + 1.2)
    ax.set_xticks([])
    return saved(figure, "agents-players.png")


def last_credit(batch: TokenBatch, row: int) -> float:
    """The advantage of the last token that was sampled in a row."""
    assert batch.advantages is not None
    return float(batch.advantages[row][batch.action_mask[row]][-1])


def draw_box(ax: Any, x: float, y: float, text: str, own: bool) -> None:
    """A segment: dark where the player said it."""
    box = {"boxstyle": "round,pad=0.45", "facecolor": OWN if own else SEEN, "edgecolor": "none"}
    colour = "white" if own else INK
    ax.text(x, y, text, ha="center", va="center", fontsize=9.5, color=colour, family="monospace", bbox=box)


def trained_on_signals(root: Path) -> str:
    """The folder of a model that has played some games."""
    (job,) = jobs_for("grpo", "signals", "tiny", 1, 15, ["task.rounds=2"], root, flags=("--evaluate", "0"))
    run_jobs([job], workers=1)
    return str(newest(job.folder / "checkpoints")[0] / "model")


# Which turn gets the credit


def credit(model: str) -> Path:
    """What each token of one game is learned with, by three ways to give credit."""
    found = {
        title: next(iter(batch_of(method, "milestones", model, fields, settings, 32).values()))
        for title, (method, fields, settings) in CREDITS.items()
    }
    paid = list(found.values())[-1]
    row = max(range(len(paid)), key=lambda i: (paid.scores[i].item(), -paid.action_mask[i].sum().item()))
    figure, axes = figure_of(5.4, dict.fromkeys(found, 1))
    for ax, batch in zip(axes, found.values()):
        assert batch.advantages is not None
        place = 0
        for segment in batch.episodes[row].segments:
            size = len(segment.tokens)
            if any(segment.action_mask):
                values = batch.advantages[row, place : place + size].tolist()
                ax.bar(range(place, place + size), values, width=0.85, color=OWN)
            else:
                ax.axvspan(place - 0.5, place + size - 0.5, color=SEEN, alpha=0.6, linewidth=0)
            place += size
        ax.axhline(0, color=SOFT, linewidth=0.8)
        ax.set_xlim(-0.5, place - 0.5)
        ax.set_ylabel("advantage", color=SOFT, fontsize=9)
        ax.set_xticks([])
    label_turns(axes[-1], paid.episodes[row])
    return saved(figure, "agents-credit.png")


def label_turns(ax: Any, episode: Episode) -> None:
    """What was said in each turn, below it, and what it was paid."""
    place, places, labels = 0, list[float](), list[str]()
    for segment in episode.segments:
        if any(segment.action_mask):
            places.append(place + (len(segment.tokens) - 1) / 2)
            labels.append(segment.text.strip() + (f"\n{segment.reward:+g}" if segment.reward else ""))
        place += len(segment.tokens)
    ax.set_xticks(places, labels, fontsize=8, color=INK)


def main() -> None:
    """Train what is missing, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/figures"), help="where runs are kept and looked for")
    root = parser.parse_args().runs
    print(views(start_of(load_bed("language/collect"), root)))
    print(players(trained_on_signals(root)))
    print(credit(start_of(load_bed("language/milestones"), root)))


if __name__ == "__main__":
    main()
