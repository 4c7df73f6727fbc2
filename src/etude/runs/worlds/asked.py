"""What is asked of a checkpoint of language, read from the options, and refused where they contradict each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Count, check
from etude.core.task import LanguageTask
from etude.runs.worlds import EvaluationOptions

if TYPE_CHECKING:
    from etude.evaluation.judging import Judging
    from etude.planners.search import Search
    from etude.policies.texts.models import Model


def search_asked(options: EvaluationOptions, task: LanguageTask) -> Search | None:
    """The search that was asked for. Raises ConfigError for one that the task or another option does not go with."""
    if options.search is None:
        return None
    from etude.evaluation.searched import check_searchable
    from etude.runs.searching import search_of

    usual = EvaluationOptions()
    for flag, differs in {
        "--k": options.k != usual.k, "--samples": options.samples is not None,
        "--reward": options.reward is not None, "--temperature 0": options.temperature == 0,
    }.items():  # fmt: skip
        if differs:
            raise ConfigError(
                f"--search says itself how much is sampled, and what answers are worth: leave out {flag}."
            )
    check_searchable(task)
    return search_of(options.search)


def axes_asked(options: EvaluationOptions, task: LanguageTask) -> Sequence[str]:
    """What is shown. Raises ConfigError for what the task or another option does not go with."""
    if options.axes is None:
        return ()
    from etude.evaluation.axes import check_axes

    for flag, differs in {"--search": options.search is not None, "--reward": options.reward is not None}.items():
        if differs:
            raise ConfigError(f"--axes compares how often the task calls answers right: leave out {flag}.")
    axes = options.axes.split(",") if isinstance(options.axes, str) else tuple(options.axes)
    check_axes(axes, task)
    return axes


def judging_asked(options: EvaluationOptions, task: LanguageTask) -> Judging | None:
    """How it judges. Raises ConfigError for what the task or another option does not go with."""
    if options.judge is None:
        if options.judgements != 1:
            raise ConfigError("--judgements says how often a judge is asked: give --judge plain, or leave it out.")
        return None
    from etude.evaluation.judging import JUDGINGS, check_judging

    for flag, differs in {
        "--search": options.search is not None, "--axes": options.axes is not None,
        "--reward": options.reward is not None, "--temperature 0": options.temperature == 0,
    }.items():  # fmt: skip
        if differs:
            raise ConfigError(f"--judge chooses among samples by what the model says of them: leave out {flag}.")
    check_judging(task)
    for judging in JUDGINGS:
        if options.judge == judging:
            return judging
    raise UnknownNameError("judge", options.judge, JUDGINGS)


def credit_asked(options: EvaluationOptions, task: LanguageTask, config: Mapping[str, Any]) -> Model | None:
    """The reference. Raises ConfigError for one that nobody named, or what another option does not go with."""
    if options.credit is None:
        return None
    from etude.evaluation.credit import check_credit
    from etude.policies.texts.models import SavedModel

    usual = EvaluationOptions()
    for flag, differs in {
        "--search": options.search is not None, "--axes": options.axes is not None,
        "--judge": options.judge is not None, "--k": options.k != usual.k, "--samples": options.samples is not None,
        "--reward": options.reward is not None,
        "--temperature": options.temperature != 1, "--top-p": options.top_p != 1,
    }.items():  # fmt: skip
        if differs:
            raise ConfigError(f"--credit reads given answers, and samples none: leave out {flag}.")
    check_credit(task)
    named = config.get("model", "") if options.credit == "start" else options.credit
    if not named:
        raise ConfigError("--credit start is what a run began from, and this is no run: name a model instead.")
    return SavedModel(model=str(named)).bind()


def released_asked(options: EvaluationOptions, task: LanguageTask, splits: Sequence[str]) -> dict[str, str]:
    """When each problem that is asked came to be, by its id; nothing where no date of release is given.

    Raises ConfigError for a task whose problems have no date, fewer than two samples, or what samples none.
    """
    if options.released is None:
        return {}
    from etude.evaluation.fresh_tasks import dated

    dated(options.released, "--released")
    for flag, differs in {
        "--search": options.search is not None, "--axes": options.axes is not None,
        "--judge": options.judge is not None, "--credit": options.credit is not None,
    }.items():  # fmt: skip
        if differs:
            raise ConfigError(f"--released says what several runs resolve: leave out {flag}.")
    if options.temperature == 0 or (options.samples or max(options.k)) < 2:
        raise ConfigError("--released needs at least two runs of each task, as in --k 1,5; the paper has five.")
    asked = [problem for split in splits for problem in task.problems(split)[: options.problems]]
    if missing := next((p.id for p in asked if "created_at" not in p.info), None):
        raise ConfigError(f"--released needs a date of each task (`created_at`), and {missing} of {task.id} has none.")
    return {problem.id: str(problem.info["created_at"]) for problem in asked}


def counted_asked(options: EvaluationOptions) -> tuple[Sequence[int], int]:
    """Sample counts, and completions of each problem. Raises ConfigError for more of the first."""
    most = max(options.k)
    count = check("samples", Count, most if options.samples is None else options.samples)
    if most > count:
        raise ConfigError(f"pass@{most} needs at least {most} samples per problem, got {count}.")
    return options.k, count


def greedy_asked(options: EvaluationOptions) -> Sequence[int]:
    """One completion of each problem. Raises ConfigError for an option of sampling."""
    usual = EvaluationOptions()
    said = {
        "--k": (options.k, ((1,), usual.k)),
        "--samples": (options.samples, (1, None)),
        "--top-p": (options.top_p, (1.0,)),
    }
    for flag, (value, allowed) in said.items():
        if value not in allowed:
            raise ConfigError(f"At temperature 0 each problem has one completion, the greedy one: leave out {flag}.")
    return (1,)
