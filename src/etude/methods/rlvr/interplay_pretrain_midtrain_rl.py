"""Interplay: pre-training, mid-training and RL on graphs whose solutions are read back (arXiv:2512.07783).

A recipe of three runs on `dags`, instead of GRPO's one, from a model that has learned nothing (as `blank:4x128x4`):

1. `pre`: supervised steps on worked answers of one to four operations, a hundredth of them with names of the second
   vocabulary;
2. `mid`: supervised steps next to what is wanted, four fifths of them of five and six operations, the others of one and
   four, the ends of what came before;
3. `rl`: GRPO at that edge, where pass@1 is low and pass@k is not, rewarded by answer and graph (`graph-reward`).

With V the nodes of the worked answer, and E the nodes that are missing, those too many (at most |V|), wrong values,
wrong parents, and 1 for a wrong answer,

    P = max(0, 1 - E / |V|),    R = 0.2 O + 0.8 P where the answer is right (O = 1), else 0;

a text that is no list of definitions has P = 0, and where there is no worked graph R = O. `strict-graph-reward` is 1
where answer and graph are both right, by which a run is also evaluated, pass@k among them:

    etude evaluate RUN --set task.judged=process --k 1,32

One budget for both (`rl_cost`), in tokens of pre-training, of which each costs 6 units: a sampled token costs 2 to be
sampled, 2 for the log-probabilities that it is held against and 6 to be learned from, 10 in all, so that N problems of
r completions of L tokens cost 5/3 N r L. The steps below spend the same on `mid` and `rl`; another share b on `mid` is

    --set runs.mid.steps=M --set runs.rl.steps=K,    M, K = steps_for(budget, b)

The claim is in equal steps, where RL alone, which samples more, has the larger budget.

`rare` of the task is the exposure to the second vocabulary, and its split 'rare' asks in it alone; `task.ops` of the
`rl` run moves it into what was trained ([1,2,3,4]), or beyond the edge ([7,8]), of which the split 'hard' asks whatever
a run is trained on. Sizes are ours: 100 million parameters and op from 2 to 20 there.
"""

from __future__ import annotations

from collections.abc import Sequence

from etude.core.claims import Claim, Measure
from etude.core.episodes import Episode
from etude.core.fields import Probability
from etude.core.recipe import Recipe
from etude.core.slots import Context, Reward
from etude.stages.chain import Train
from etude.tasks.language.dags import parsed, process_score

TEXTS, PROBLEMS, SIZE = 32, 16, 8
"""Worked answers of a supervised step; problems of an RL step, and completions of each."""


class GraphReward(Reward):
    """R = w O + (1 - w) P where the answer is right (O = 1), else 0: answer and graph (arXiv:2512.07783).

    Args:
        outcome: w, the answer's share.

    >>> from types import SimpleNamespace
    >>> from etude.core.episodes import Problem, Segment
    >>> from etude.tasks.language.dags import dags
    >>> asked = Problem("1", "c=a+b;a=7;b=10?c>", "17", info={"demonstration": "a=7;b=10;c=a+b=17;"})
    >>> said = [Episode(asked, [Segment("assistant", t)]) for t in ("a=7;b=9;c=a+b=17;", "a=7;b=10;c=a+b=16;", "17")]
    >>> [round(r, 4) for r in GraphReward().score(said, SimpleNamespace(task=dags))]
    [0.7333, 0.0, 0.2]
    """

    outcome: Probability = 0.2

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [self._one(e, context) for e in episodes]

    def _one(self, episode: Episode, context: Context) -> float:
        if not _answered(episode, context):
            return 0.0
        worked = _worked(episode, context)
        return 1.0 if worked is None else self.outcome + (1 - self.outcome) * process_score(episode.completion, worked)


class StrictGraphReward(Reward):
    """1 where the answer is right and nothing is wrong with the graph, else 0 (arXiv:2512.07783).

    >>> from types import SimpleNamespace
    >>> from etude.core.episodes import Problem, Segment
    >>> from etude.tasks.language.dags import dags
    >>> asked = Problem("1", "c=a+b;a=7;b=10?c>", "17", info={"demonstration": "a=7;b=10;c=a+b=17;"})
    >>> said = [Episode(asked, [Segment("assistant", t)]) for t in ("a=7;b=9;c=a+b=17;", "b=10;a=7;c=b+a=17;")]
    >>> StrictGraphReward().score(said, SimpleNamespace(task=dags))
    [0.0, 1.0]
    """

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [float(_answered(e, context) and self._whole(e, context)) for e in episodes]

    def _whole(self, episode: Episode, context: Context) -> bool:
        worked = _worked(episode, context)
        return worked is None or process_score(episode.completion, worked) == 1


def _answered(episode: Episode, context: Context) -> bool:
    """O: whether the last value is right, whatever else the task judges by (`task.judged=process`)."""
    if _worked(episode, context) is not None:
        return bool(context.task.answer(episode.completion) == episode.problem.answer)
    return bool(context.task.score(episode.problem, episode.completion) >= 1)


def _worked(episode: Episode, context: Context) -> str | None:
    """The worked answer, if it is a graph."""
    worked = context.task.demonstration(episode.problem)
    return worked if worked is not None and parsed(worked) else None


def rl_cost(problems: int, rollouts: int, length: float) -> float:
    """Tokens of pre-training that cost as much as RL on these: (2 + 2 + 6) / 6 N r L.

    >>> rl_cost(problems=3, rollouts=8, length=50)
    2000.0
    """
    return (2 + 2 + 6) * problems * rollouts * length / 6


def steps_for(budget: float, share: float, length: float = 1.0) -> tuple[int, int]:
    """Steps of mid-training and of RL that spend a share b of a budget on the former and the rest on the latter.

    Args:
        budget: in tokens of pre-training.
        length: tokens of a text, worked or sampled; 1 to give the budget in texts.

    >>> steps_for(10240, 0.5), steps_for(10240, 0.0), steps_for(10240, 1.0)
    ((160, 24), (0, 48), (320, 0))
    """
    return round(share * budget / (TEXTS * length)), round((1 - share) * budget / rl_cost(PROBLEMS, SIZE, length))


interplay_pretrain_midtrain_rl = Recipe(
    id="interplay-pretrain-midtrain-rl",
    title="On the Interplay of Pre-Training, Mid-Training, and RL on Reasoning Language Models",
    paper="arXiv:2512.07783",
    row="analysis",
    runs=(
        Train(
            called="pre", method="sft", steps=480,
            set=(f"problems={TEXTS}", "task.ops=[1,2,3,4]", "task.rare=0.01", "optimizer.lr=1e-3"),
        ),
        Train(
            called="mid", method="sft", steps=160,
            set=(f"problems={TEXTS}", "task.ops=[5,6,5,6,5,6,5,6,1,4]", "optimizer.lr=1e-3"),
        ),
        Train(
            called="rl", method="grpo", steps=24,
            set=(f"problems={PROBLEMS}", f"experience.size={SIZE}", "rewards=graph-reward", "task.ops=[5,6]"),
        ),
    ),
    claim=Claim(
        statement="After the same pre-training, some supervised steps at the edge of what is wanted before RL end "
        "higher on problems beyond it than RL alone, in equal steps.",
        bed="language/dags-hard",
        baseline="interplay-rl-alone",
        changes={"runs.pre.steps": 40, "runs.mid.steps": 40, "runs.rl.steps": 40},
        baseline_changes={"runs.pre.steps": 40, "runs.rl.steps": 80},
        measures=(Measure(name="end"), Measure(name="area", role="mechanism")),
        equal=("steps",),
        paper_effect="10.8 % over RL alone on hard problems at equal budget; up to 42 % of pass@128 at the edge",
    ),
)  # fmt: skip

interplay_rl_alone = Recipe(
    id="interplay-rl-alone",
    title="The interplay's control: what mid-training costs is spent on RL",
    paper="arXiv:2512.07783",
    runs=(interplay_pretrain_midtrain_rl.runs[0], interplay_pretrain_midtrain_rl.runs[2].replace(steps=48)),
)
