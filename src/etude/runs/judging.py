"""A policy of a run of control judged from logs, beside what it earns where it can be played."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from etude.core.control import ControlTask
from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.core.population import Population
from etude.core.task import Task
from etude.runs.training import Options, compose_task, say
from etude.runs.worlds import EvaluationOptions
from etude.tasks.control.logged import LoggedTask

if TYPE_CHECKING:
    from etude.evaluation.intervals import Interval
    from etude.evaluation.off_policy.episodes import Estimate
    from etude.evaluation.off_policy.fqe import Counted, Progress
    from etude.evaluation.off_policy.judge import Judgement
    from etude.evaluation.off_policy.policies import Judged
    from etude.evaluation.restored import Acting, RestoredPolicies


def judged(
    checkpoint: str, config: Mapping[str, Any], task: ControlTask, options: EvaluationOptions
) -> dict[str, dict[str, Interval]]:
    """What `task`'s logs say of one member's policy, and where there is an environment what it earns there.

    Returns: {'logs': {estimator: Estimate}, 'test': {'return', 'return/deterministic': as of all members}}; among the
        estimators 'played' and 'played/deterministic', the same discounted return as it was played.

    Raises: ConfigError for a policy or spaces that logs say nothing of, DataError for logs with faults.
    """
    from etude.evaluation.off_policy.policies import Judged
    from etude.runs.worlds.control import played_returns, restore

    assert isinstance(task, LoggedTask)
    policies = restore(checkpoint, config, task if task.environment is not None else _own(config, task))
    policy = Judged(policies, options.member)
    found, gamma = estimated(policy, policies.method, task, options, _counter(False))  # type: ignore[arg-type]  # of any kind
    for sentence in found.sentences:
        say(sentence)
    estimates: dict[str, Any] = dict(found.estimates)
    if task.environment is None:
        return {"logs": estimates}
    alone = dataclasses.replace(
        policies, population=Population([policies.population.members[options.member]]), actor=policy.actor
    )
    return {
        "logs": {**estimates, **_played(alone, task, options, gamma, found.horizon)},
        "test": played_returns(policies, task, options),
    }


def judged_members(policies: Acting, task: LoggedTask, options: Options) -> dict[str, Estimate]:
    """What the logs that a task holds out say of the first member, and by FQE of every one."""
    from etude.evaluation.off_policy.members import with_members
    from etude.evaluation.off_policy.policies import Judged

    judging, told = task.judging(), EvaluationOptions(seed=options.seed, gamma=task.gamma)
    method: Any = policies.method  # of any kind
    counted = _counter(options.quiet)
    found, _ = estimated(Judged(policies, 0), method, judging, told, counted)
    for sentence in found.sentences:
        say(sentence, options.quiet)
    others = range(1, policies.population.size)
    gammas = [_discount(method, dataclasses.replace(told, member=m)) for m in others]
    rest = [Judged(policies, m) for m in others]
    each = with_members(found.estimates, rest, judging.logs(), gammas, options.seed, counted=counted)
    return {**found.estimates, **each}


def estimated(
    policy: Judged, method: Method, task: LoggedTask, options: EvaluationOptions, counted: Counted
) -> tuple[Judgement, float]:
    """What `task`'s logs say of a policy, and the discount of the return that this is of."""
    from etude.evaluation.off_policy.behaviour import behaviour_logp
    from etude.evaluation.off_policy.judge import judge

    logs, gamma = task.logs(), _discount(method, options)
    found = judge(
        policy, logs, lambda: behaviour_logp(task, logs, options.seed), gamma, options.seed, counted=counted
    )  # fmt: skip
    return found, gamma


def _counter(quiet: bool) -> Counted:
    """A bar for the updates of Q, or lines of text where there is no terminal."""
    from etude.runtime.progress import Counter

    @contextmanager
    def counted(total: int) -> Iterator[Progress]:
        with Counter("updates of Q", total, quiet=quiet) as counter:
            yield counter.add

    return counted


def _discount(method: Method, options: EvaluationOptions) -> float:
    """That which was asked for, else the member's own."""
    from etude.evaluation.off_policy.judge import USUAL, discount_of

    if options.gamma is not None:
        return options.gamma
    return USUAL if (own := discount_of(method, options.member)) is None else own


def one_discount(methods: Iterable[Method], task: Task) -> list[str]:
    """The field of a task that has everything judged by one discount, where logs judge and it does not say which.

    Raises: ConfigError for methods that learn with different ones: they would come to different returns.
    """
    from etude.evaluation.off_policy.judge import USUAL, discounts_of

    if not (isinstance(task, LoggedTask) and task.heldout) or task.gamma is not None:
        return []
    own = sorted(set[float]().union(*map(discounts_of, methods)))
    if len(own) > 1:
        raise ConfigError(
            f"They learn with discounts of {', '.join(f'{gamma:g}' for gamma in own)}, and what is compared is one "
            f"return: say of which discount, as in --set task.gamma={own[-1]:g}."
        )
    return [f"task.gamma={own[0] if own else USUAL}"]


def _own(config: Mapping[str, Any], task: LoggedTask) -> ControlTask:
    """The task that the run was trained on, whose spaces its policy acts in; the logs', where that was no other."""
    fields = config.get("task_fields", ())
    own = compose_task(config["task"], fields)
    return own if isinstance(own, ControlTask) else task


def _played(
    alone: RestoredPolicies, task: ControlTask, options: EvaluationOptions, gamma: float, horizon: int
) -> dict[str, Estimate]:
    """The return that is estimated, in the environment."""
    from etude.evaluation.control import play
    from etude.evaluation.off_policy.episodes import student
    from etude.runs.playing import LATEST

    found = {}
    for name, deterministic in {"played": False, "played/deterministic": True}.items():
        returns = play(
            alone, task, options.episodes, deterministic=deterministic, purpose=f"evaluate {options.seed}",
            longest=LATEST, counts=lambda age: gamma**age * (age < horizon),
        )[0]  # fmt: skip
        found[name] = student(float(returns.mean()), returns)
    return found
