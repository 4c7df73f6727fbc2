"""What a checkpoint of language is asked: how often it is right, or what a search, a judge or another look comes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from etude.core.errors import ConfigError
from etude.core.task import LanguageTask
from etude.runs.worlds import EvaluationOptions
from etude.runs.worlds.asked import (
    axes_asked,
    counted_asked,
    credit_asked,
    greedy_asked,
    judging_asked,
    released_asked,
    search_asked,
)
from etude.runs.worlds.seats import seats_of
from etude.runs.worlds.views import view_asked

if TYPE_CHECKING:
    from etude.evaluation.intervals import Interval
    from etude.policies.language import LanguagePolicy


def evaluated(
    restored: Callable[[], LanguagePolicy], checkpoint: str, config: Mapping[str, Any], task: LanguageTask,
    options: EvaluationOptions,
) -> dict[str, dict[str, Interval]]:  # fmt: skip
    """pass@k, avg@k, maj@k and reward, over problems; with a search how often its answer is right, and its tokens.

    With axes how often answers are right with something in view, and by how much more often. With a judge how well it
    judges solutions, and what choosing by its word comes to. With credit whom it blames in spoilt answers. With a
    date of release what it resolves, with its error over runs, of older tasks and of fresh ones.

    Args:
        restored: makes the policy, once nothing is to be refused.
    """
    from etude.evaluation.language import evaluate_split, evaluation_splits
    from etude.experience.groups import Groups
    from etude.rewards.several import reward_parts

    search, axes, judging = search_asked(options, task), axes_asked(options, task), judging_asked(options, task)
    reference = credit_asked(options, task, config)
    ks, count = (greedy_asked(options), 1) if options.temperature == 0 else counted_asked(options)
    view, temperature = view_asked(options.view, checkpoint, task), options.temperature or 1.0
    how = Groups(temperature=temperature, top_p=options.top_p, max_tokens=options.max_tokens, view=view)
    splits = [options.split] if options.split else list(evaluation_splits(task))
    for name in splits:
        task.problems(name)
    if options.reward is None and (sentence := task.needs_reward()):
        raise ConfigError(sentence)
    rewards = () if options.reward is None else tuple(part.bind() for part in reward_parts(options.reward))
    created = released_asked(options, task, splits)
    policy = restored()
    if search is not None:
        from etude.evaluation.searched import search_split

        bound = search.bind()  # its guide may keep what it made, such as a model
        return {
            split: search_split(
                policy, task, split, bound, problems=options.problems, seed=options.seed, experience=how
            ).summary()
            for split in splits
        }  # fmt: skip
    if reference is not None:
        from etude.evaluation.credit import evaluate_credit

        return {
            split: evaluate_credit(policy, reference, task, split, problems=options.problems).summary()
            for split in splits
        }
    if axes:
        from etude.evaluation.axes import evaluate_axes

        return {
            split: evaluate_axes(
                policy, task, split, axes, problems=options.problems, samples=count, seed=options.seed, experience=how,
                temperature=options.temperature,
            ).summary()
            for split in splits
        }  # fmt: skip
    if judging is not None:
        from etude.evaluation.judging import evaluate_judging

        return {
            split: evaluate_judging(
                policy, task, split, judging, problems=options.problems, samples=count,
                judges=options.judgements, seed=options.seed, experience=how,
            ).summary(ks)
            for split in splits
        }  # fmt: skip
    measures = {}
    for split in splits:
        one = evaluate_split(
            policy, task, split, problems=options.problems, samples=count, seed=options.seed, experience=how,
            temperature=options.temperature, rewards=rewards, seats=seats_of(checkpoint, policy),
        )  # fmt: skip
        measures[one.split] = dict(one.summary(ks, majority=True))
        if created:
            from etude.evaluation.fresh_tasks import resolved

            dates = [created[row[0].problem.id] for row in one.episodes]
            measures[one.split] |= resolved(one.correct, dates, str(options.released))
    return measures
