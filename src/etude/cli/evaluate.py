"""`etude evaluate`: how good a model is."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from etude.cli.task_fields import NOTHING, Fields, TaskFields
from etude.core.errors import ConfigError

if TYPE_CHECKING:
    from etude.runs.evaluate import Evaluated
    from etude.runs.worlds import EvaluationOptions

SHARES = ("action-distance", "beyond-logs")
"""Metrics that are no returns but parts of 1."""


def evaluate(
    checkpoint: str,
    *others: str,
    task: str | None = None,
    k: str = "1,8",
    problems: int = 100,
    samples: int | None = None,
    split: str | None = None,
    seed: int = 0,
    set: Fields = (),
    reward: Annotated[tuple[str, ...] | None, Parameter(negative=())] = None,
    search: str | None = None,
    axes: str | None = None,
    judge: str | None = None,
    judgements: int = 1,
    credit: str | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    max_tokens: int | None = None,
    view: str | None = None,
    released: str | None = None,
    episodes: int = 100,
    video: str | None = None,
    member: int = 0,
    data: str | None = None,
    gamma: float | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
    of_task: TaskFields = NOTHING,
) -> None:
    """Unbiased pass@k, avg@k and maj@k of a run, a checkpoint or any causal language model, with intervals.

    Of a run of control: the returns of sampled and of likeliest actions, interquartile means over its members; with
    --data what logs of others say that one of its policies earns.

    Parameters
    ----------
    checkpoint
        A run folder, a checkpoint in it, 'tiny', 'tiny-agent', a model folder or a hub name.
    others
        More of them, on the same problems; adapters over one base share it in memory.
    task
        What to evaluate on; by default the task that the run was trained on.
    k
        Sample counts, as in 1,8,64.
    problems
        How many problems of each split.
    samples
        Completions per problem; by default the largest k.
    split
        One split; by default all that are not trained on.
    set
        Fields of the task, as in task.levels=3. Repeatable.
    reward
        A Python function over completions that scores; by default those that the run was trained with. Repeatable.
    search
        Look for one answer to each problem: best-of:16, majority-vote:16, beam:4 or tree-search:32, with fields after
        commas, as in beam:4,branch=2,guide=lookahead. `etude parts search` lists them.
    axes
        How much more often answers are right with something in view, paired: plan, knowledge, subproblems, or several
        with commas. Problems have it in columns of these names. Of several models also how far they differ in it, each
        from those before it, paired over the same problems.
    judge
        Let the model judge solutions, given ones (F1 of the first wrong step) and its own (Self-PRM beside votes and
        pass@k): plain, or self-ref with a solution of its own in view.
    judgements
        How often the judge is asked about each solution: of a given one the commonest word counts, of one of its own
        the share of judgements that accept it.
    credit
        A reference: how often the token of a spoilt answer with the lowest log-ratio to it is a wrong one. 'start',
        what the run began from, or a run, a folder, a hub name. Data files have such answers as 'steps' and 'label'.
    temperature
        Logits are divided by it; 0 for one greedy completion of each problem, whose metrics are named pass@1/greedy.
    top_p
        Sample only from the likeliest tokens that have this probability together.
    max_tokens
        Limit of one completion; by default the task's.
    view
        What the policy sees of an episode before each turn, as in summary-at,most=8 or full-history; fields that are
        not said, and the view without a word, are those of the run. `etude parts view` lists them.
    released
        The date on which the model came out, as in 2025-07-01: what its runs (samples) resolve of tasks that are older,
        which it may have read, of fresh ones and of each month, with the standard error over runs. For mini-swe.
    episodes
        Episodes of each member, in control.
    video
        Also write an animated picture (GIF) of one episode, in control.
    member
        Whose episode that is, or whose policy is judged from --data; the first by default.
    data
        Logs to judge a policy of control from, which it should not have learned from: all that `train --data` takes.
        Estimates of its discounted return, each with an interval. Returns are played beside in --task, or in the
        environment that the run was trained in.
    gamma
        The discount of what is estimated from --data; by default the method's own.
    json
        Print JSON.
    """
    from etude.runs import shorthands
    from etude.runs.evaluate import evaluations_of
    from etude.runs.worlds import EvaluationOptions

    try:
        ks = tuple(int(x) for x in k.split(","))
    except ValueError:
        raise ConfigError(f"--k takes whole numbers with commas, as in 1,8,64; got {k!r}.") from None
    if min(ks) < 1:
        raise ConfigError(f"--k takes numbers of at least 1, got {k!r}.")
    options = EvaluationOptions(
        k=ks, problems=problems, samples=samples, split=split, seed=seed, reward=reward, search=search, axes=axes,
        judge=judge, judgements=judgements, credit=credit, temperature=temperature, top_p=top_p,
        max_tokens=max_tokens, view=view, released=released, episodes=episodes, video=video, member=member, data=data,
        gamma=gamma,
    )  # fmt: skip
    fields = [*shorthands.taken(of_task.given()), *set]
    found = evaluations_of([checkpoint, *others], task, options, fields)
    if json:
        scores = {name: _plain(one) for name, one in found.items()}
        print(json_module.dumps(scores if others else scores[checkpoint], indent=1))
        return
    _table(found, options, 1 + len(others))


def _plain(one: Evaluated) -> dict[str, dict[str, object]]:
    """Its scores as `evaluation.json` has them."""
    return {split: {name: i.to_json() for name, i in metrics.items()} for split, metrics in one.scores.items()}


def _table(found: Mapping[str, Evaluated], options: EvaluationOptions, models: int) -> None:
    """A line for each metric; of several checkpoints each named."""
    from rich.console import Console
    from rich.table import Table

    from etude.evaluation.report_evaluation import doubts

    world, several = next(iter(found.values())).world, models > 1
    about = f"{models} models" if several else next(iter(found))
    title = f"{about}: {world.about(options)}, 95% {'' if options.data else 'bootstrap '}intervals"
    table, digits = Table(title=title, title_justify="left"), world.WORDING.digits
    weighted = ("effective episodes",) * (options.data is not None)
    for column in ("model",) * several + ("split", "metric", "value", "interval", *weighted):
        table.add_column(column, overflow="fold")
    reasons = [f"{f'{name}, ' * several}{doubt}" for name, one in found.items() for doubt in doubts(_plain(one))]
    for name, one in found.items():
        for split, metrics in one.scores.items():
            for metric, i in metrics.items():
                places = max(digits, 2) if metric in SHARES else digits
                value, interval = f"{i.value:.{places}f}", f"{i.low:.{places}f} to {i.high:.{places}f}"
                effective = getattr(i, "effective", None)
                own = ("" if effective is None else f"{effective:.1f}",) * len(weighted)
                table.add_row(*(name,) * several, split, metric, value, interval, *own)
    console = Console(highlight=False)
    console.print(table)
    for reason in reasons:
        console.print(reason, markup=False, soft_wrap=True)
