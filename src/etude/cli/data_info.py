"""`etude data info`: what is in logs."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from etude.cli.task_fields import Fields

BEST = 0.95
"""TQ from which imitation is optimal: nineteen twentieths of the way from chance to the best policy known."""
WIDTH = 40
"""Characters of the longest bar."""


def info(
    path: Path,
    *,
    task: str | None = None,
    columns: str | None = None,
    skip_bad_rows: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    worst: str | None = None,
    best: str | None = None,
    reference: str | None = None,
    set: Fields = (),
    model: str = "tiny-agent",
    picture: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """What is in logs, or dialogues: spaces, episodes, ends, returns, how much more than imitation they can support.

    TQ says how good their episodes are, from 0 (chance) to 1 (the best policy known); SACo how many different states
    and actions they hold, in parts of those that an online run saw (arXiv:2111.04714).

    Parameters
    ----------
    path
        All that `train --data` takes, or a folder of `etude data make`, all of whose data sets are told.
    task
        The environment that they were taken in, whose spaces they must agree with.
    columns
        What the columns of a table are, as in 'obs=x1,x2 action=u reward=r episode=id done=end'.
    skip_bad_rows
        Leave out whole episodes in which something is wrong.
    worst
        Logs of chance, by which TQ is 0; by default the data set `random` beside the path.
    best
        Logs of the best policy known, by which TQ is 1; by default `expert` beside it.
    reference
        Logs by which SACo is 1; by default `replay` beside it.
    set
        A field of the logs, as in task.episode_length=200. Repeatable.
    model
        Of dialogues with rewards (JSON lines): by whose tokenizer tokens are counted.
    picture
        Also draw the returns of episodes into this file (PNG); of one data set.
    json
        Print JSON.
    """
    from etude.core.errors import ConfigError
    from etude.experience.dialogues import is_dialogues
    from etude.runs import shorthands
    from etude.runs.data_info import References, data_info, data_sets, dialogues_info

    if is_dialogues(path):
        asked = {"task": task, "columns": columns, "skip-bad-rows": skip_bad_rows, "worst": worst, "best": best,
                 "reference": reference, "set": set, "picture": picture}  # fmt: skip
        if names := [f"--{name}" for name, value in asked.items() if value]:
            raise ConfigError(f"{' and '.join(names)} cannot be said of dialogues, and {path} has those: leave it out.")
        told = dialogues_info(path, model)
        print(json_module.dumps(told, indent=1) if json else "\n".join(_of_dialogues(told)))
        return
    given = {"columns": columns, "skip_bad_rows": skip_bad_rows}
    fields = [*shorthands.taken({k: v for k, v in given.items() if v}), *set]
    places = data_sets(path)
    if picture is not None and len(places) > 1:
        raise ConfigError(f"--picture is of one data set: give one of {', '.join(map(str, places))}.")
    found = {str(p): data_info(p, References(worst, best, reference), task, fields) for p in places}
    if picture is not None:
        _draw(next(iter(found.values())), picture)
    if json:
        print(json_module.dumps(found if len(found) > 1 else next(iter(found.values())), indent=1))
        return
    print("\n\n".join("\n".join(_lines(one)) for one in found.values()))


def _of_dialogues(told: dict[str, Any]) -> Iterator[str]:
    """Of dialogues, for people."""
    turns, rewards, returns = told["turns_of_episodes"], told["rewards"], told["returns"]
    ends = " and ".join(f"{count:,} {how}" for how, count in sorted(told["ends"].items()))
    yield f"{told['path']}: {told['episodes']:,} dialogues, {told['turns']:,} turns of the assistant"
    yield f"  turns of each      {turns['least']:,} to {turns['most']:,}, {turns['mean']:.1f} on average"
    tokens = told["tokens"]
    yield f"  tokens             {tokens['said']:,} said, {tokens['shown']:,} shown, by {told['tokens_by']}"
    yield f"  ends               {ends}"
    paid = f"{told['rewarded_turns']:,} turns have one"
    yield f"  rewards            {rewards['least']:.4g} to {rewards['most']:.4g}; {paid}"
    yield f"  returns            {returns['least']:.4g} to {returns['most']:.4g}, {returns['mean']:.4g} on average"
    yield "  success            " + ("not told" if told["success"] is None else f"{told['success']:.1%}")
    if returns["least"] == returns["most"]:
        yield "  All dialogues return the same: imitation is as good as any method can get from them."


def _draw(told: dict[str, Any], picture: Path) -> None:
    from etude.evaluation.plots import draw_histogram

    draw_histogram(told["histogram"]["counts"], told["histogram"]["edges"], picture, x_label="return of an episode",
                   title=told["path"])  # fmt: skip


def _lines(told: dict[str, Any]) -> Iterator[str]:
    """For people."""
    from etude.experience.logs.table import IMITABLE

    ends, length, floor = told["ends"], told["length"], told["imitation"]
    counted, says = f"{told['rows']:,} steps of {told['episodes']:,} episodes", "a" if told["behaviour_logp"] else "no"
    yield f"{told['path']}: {counted}, fingerprint {told['fingerprint'][:12]}"
    yield f"  observations       {told['observations']}"
    yield f"  actions            {told['actions']}, as {told['spaces_said_by']} says"
    yield f"  likelihoods        {says} column says how likely actions were"
    yield f"  ends               {ends['terminated']:,} terminated, {ends['truncated']:,} stopped by a limit"
    yield f"  steps of episodes  {length['least']:,} to {length['most']:,}, {length['mean']:.1f} on average"
    for why, count in told["dropped"].items():
        yield f"  left out           {count:,} rows, {why}" if count else ""
    yield "  returns"
    counts, edges = told["histogram"]["counts"], told["histogram"]["edges"]
    for count, low, high in zip(counts, edges, edges[1:]):
        yield f"    {low:>10.4g} to {high:>10.4g}  {count:>7,}  {'#' * round(WIDTH * count / max(counts))}"
    yield f"  imitation          earns about {floor['value']:.4g} ({floor['low']:.4g} to {floor['high']:.4g})"
    yield f"  TQ                 {_by(told['tq'], '--worst and --best')}"
    yield f"  SACo               {_by(told['saco'], '--reference')}; {told['unique_pairs']:,} different pairs"
    yield f"  PSV                {told['psv']:.4f}: how far good episodes are above the usual ones"
    yield f"  good episodes      {told['effective_episodes']:.1f} effective ones, weighted by their returns"
    if told["imitable"]:
        yield f"  {IMITABLE}"
    elif told["tq"] is not None and told["tq"] >= BEST:
        yield "  Its episodes earn what the best policy known does: imitation is optimal already, whatever is tried."
    yield from (f"  {note}" for note in told["notes"])


def _by(number: float | None, flags: str) -> str:
    return f"not known: give {flags}" if number is None else f"{number:.3f}"
