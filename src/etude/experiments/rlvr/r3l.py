"""R3L's claim: a grid world in text, by a policy that was first taught to walk, to report, and to take advice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from etude.core.episodes import Episode, Problem, Segment
from etude.core.fields import Probability
from etude.core.kinds import TokenMethod
from etude.core.slots import Context, TokenExperience
from etude.core.streams import Stream
from etude.evaluation.pairs import Pair
from etude.experience.groups import Groups
from etude.experiments.arms import START, pairs, variant
from etude.experiments.cells import model_folder
from etude.experiments.watched import Job, Run, Shared, run, runs, scores
from etude.methods.rlvr.r3l.retry import ReflectThenRetry
from etude.policies.written import written
from etude.tasks.agents.keys import Grid, Keys, walk

if TYPE_CHECKING:
    from etude.loops.language import LanguageLoop

TASK, STEPS = Keys(size=3, walls=1, max_turns=8), 20
LESSONS, RATE = 100, 1e-3
CHANGES = {"problems": 12, "optimizer.lr": 2e-4}


class Lessons(TokenExperience):
    """What a policy has to know before it can reflect: walking, reporting (as an oracle would), and taking advice.

    Args:
        walks, reports: shares of the problems that show the first and the second; the others show advice being taken.
        slips: share of the steps of what is reported on, and of what comes before advice, that are random.
    """

    samples: ClassVar[bool] = False
    walks: Probability = 0.3
    reports: Probability = 0.4
    slips: Probability = 0.4

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        rows = []
        for group, problem in enumerate(problems):
            stream = context.stream.split("lesson", group)
            kind = stream.numpy.random()
            if kind < self.walks:
                rows.append(
                    written(problem, walk(context.task, problem, stream), group, context.policy, context.task.add_bos)
                )
                continue
            shown = walk(context.task, problem, stream, self.slips)
            make = reported if kind < self.walks + self.reports else advised
            segments, learned = make(context.task, problem, shown, stream)
            rows.append(only(written(problem, segments, group, context.policy, context.task.add_bos), learned))
        return rows


def reported(task: Keys, problem: Problem, shown: list[Segment], stream: Stream) -> tuple[list[Segment], int]:
    """A walk and the oracle's report on it, and the number of turns of which nothing is learned."""
    turns = sum(s.role == "assistant" for s in shown)
    request = Segment("user", ReflectThenRetry().request)
    return [*shown, request, Segment("assistant", oracle(task, problem, shown))], turns


def advised(task: Keys, problem: Problem, shown: list[Segment], stream: Stream) -> tuple[list[Segment], int]:
    """A walk up to some step, advice, and a shortest way from there."""
    said = [s.text for s in shown if s.role == "assistant"]
    place = int(stream.numpy.integers(len(said)))
    game = Grid(task)
    segments = game.reset(problem, 0)
    for letter in said[:place]:
        segments += [Segment("assistant", letter), *game.step(Segment("assistant", letter)).segments]
    over, first = False, True
    while not over:
        letter = game.best()[0]
        if first:
            segments.append(Segment("critique", ReflectThenRetry().guidance.replace("{}", letter)))
        result = game.step(Segment("assistant", letter))
        over, first = result.terminated or result.truncated, False
        segments += [Segment("assistant", letter), *([] if over else result.segments)]
    return segments, place


def oracle(task: Keys, problem: Problem, segments: Sequence[Segment]) -> str:
    """The report on a walk: its first step that was not on a shortest way, and a letter that is."""
    game, wasted = Grid(task), None
    game.reset(problem, 0)
    for number, letter in enumerate(s.text.strip() for s in segments if s.role == "assistant"):
        best = game.best()
        if wasted is None and letter not in best:
            wasted = (number, best[0])
        result = game.step(Segment("assistant", letter))
    if wasted is None:
        return "<ok>" if result.terminated else "<fail 0 ?>"
    return f"<{'slow' if result.terminated else 'fail'} {wasted[0]} {wasted[1]}>"


def only(episode: Episode, turns: int) -> Episode:
    """The episode with nothing learned of its first turns."""
    said = [s for s in episode.segments if s.role == "assistant"]
    for s in said[:turns]:
        s.action_mask = [0] * len(s.tokens)
    return episode


def counts(loop: LanguageLoop) -> dict[str, float]:
    """What `ReflectThenRetry` counted in a run."""
    state = loop.method.experience.state
    return {k: float(v) for k, v in state.items()} if "retries" in state else {}


def arms() -> dict[str, TokenMethod]:
    """R3L, without retries, and GRPO."""
    ours = variant("r3l", CHANGES)
    return {"r3l": ours, "without retries": ours.replace(experience=Groups(size=8)), "grpo": variant("grpo", CHANGES)}


@contextmanager
def taught() -> Iterator[str]:
    """The folder of `tiny` after the lessons."""
    method = variant("sft", {"problems": 64, "optimizer.lr": RATE}, experience=Lessons())
    job = Job("lessons", method, TASK, START, LESSONS, problems=50, samples=1)
    with model_folder(job.folder()) as folder:
        run(replace(job, keep=str(folder)))
        yield str(folder)


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Success on new grids after as many updates with at most as many episodes each; retries against attempts."""
    with taught() as start:
        options: Shared = {"start": start, "after": counts, "problems": 400, "samples": 1}
        found = runs(arms(), TASK, seeds=seeds, steps=STEPS, **options)
        before = run(Job("start", arms()["grpo"], TASK, START, 0, start, problems=400, samples=1)).scores["pass@1"]
    arm, base = dict[str, list[float]](), dict[str, list[float]]()
    for rival in ("grpo", "without retries"):
        arm[f"success against {rival}"] = scores(found["r3l"], "pass@1")
        base[f"success against {rival}"] = scores(found[rival], "pass@1")
    retries = found["r3l"]
    arm |= {"success of retries": [_share(r, "retry_successes") for r in retries],
            "retries": [_share(r, "retries", "attempts") for r in retries]}  # fmt: skip
    base |= {"success of retries": [_share(r, "peer_successes") for r in retries], "retries": [0.0] * len(seeds)}
    at_start = {name: [before] * len(seeds) for name in arm if name.startswith("success against")}
    return pairs(seeds, arm, base, start=at_start)


def _share(run: Run, of: str, among: str = "retries") -> float:
    return run.scores[of] / max(1.0, run.scores[among])
