"""Runs of language: the model, what is sampled before and after, what is asked of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

from etude.core.complete import complete_token
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.method import Method
from etude.core.slots import Reward
from etude.core.stages import composed, resets
from etude.core.task import LanguageTask, Task
from etude.core.worlds import World
from etude.evaluation.report import Wording
from etude.rewards.several import only_python
from etude.runs import ranks, samplers
from etude.runs.training import Options, Result
from etude.runs.worlds import OF_LANGUAGE, EvaluationOptions, Measured, parent
from etude.runs.worlds.evaluated import evaluated
from etude.runs.worlds.seats import tilting_of
from etude.runtime.looks import Look

if TYPE_CHECKING:
    from etude.core.episodes import Episode
    from etude.evaluation.intervals import Interval
    from etude.evaluation.language import Evaluation
    from etude.loops.language import LanguageLoop
    from etude.policies.language import LanguagePolicy

SMALL = 20_000_000
"""Parameters up to which one thread is faster than several: the products are too small to divide."""
KS = (1, 8)
SEEDS, STEPS, COMPARED_STEPS = 3, 150, 100
EVALUATED = 100
READS = OF_LANGUAGE
EVALUATION_READS = frozenset({
    "k", "problems", "samples", "split", "seed", "reward", "search", "axes", "judge", "judgements", "credit",
    "temperature", "top_p", "max_tokens", "view", "released",
})  # fmt: skip
WORDING = Wording(unread=("seeds", "population"))


def measured(task: LanguageTask, options: Options | None = None) -> tuple[list[str], list[str]]:
    """Metrics and splits of an evaluation."""
    from etude.evaluation.judging import GIVEN
    from etude.evaluation.language import GREEDY, evaluation_splits

    names, splits = [*(f"pass@{k}" for k in KS), "reward"], list(evaluation_splits(task))
    if options is None:
        return names, splits
    greedy = [f"{n}{GREEDY}" for n in ("pass@1", "reward")]
    judged = [] if options.evaluate_judge is None else [*GIVEN]
    return [*(greedy if options.evaluate_temperature == 0 else names), *judged], _splits(task, options)


def curve(metric: str) -> tuple[str, str, str]:
    """The reward of what was sampled for training, which is not what an evaluation measures."""
    return "reward", "training reward", "training steps"


def grid(budget: int) -> list[float]:
    """Every training step."""
    return list(range(1, budget + 1))


def budget(task: LanguageTask) -> int:
    """Training steps."""
    return STEPS


def compared(task: LanguageTask) -> tuple[int, int]:
    """Runs and training steps."""
    return SEEDS, COMPARED_STEPS


def suited(method: Method, task: LanguageTask) -> tuple[Method, str]:
    """The method as it is."""
    return method, ""


def prepare(method: Method, task: LanguageTask, options: Options) -> None:
    """Read the data.

    Raises: UnknownNameError for a split to evaluate on that the task has not; ConfigError or DataError where solutions
    are to be judged and there are none.
    """
    from etude.policies.showing import check_given

    check_given(task)
    task.problems("train")
    if options.evaluate_split not in (None, *task.splits()):
        raise UnknownNameError("split", str(options.evaluate_split), task.splits(), f"{task.id} has no other.")
    if options.evaluate_judge is not None:
        _check_judging(task, options)
    samplers.check(method, task, options)
    ranks.check(method, task, options)
    if options.adapter is not None:
        _check_reference(method)
    if options.adapter is not None and options.adapter.dropout:
        _check_dropout(method, options)
    if options.adapter is not None and options.adapter.bits:
        from etude.policies import loading, quantized

        where = loading.choose_device(options.device)
        quantized.check(options.model, loading.choose_dtype(options.dtype, where), where)


def _check_judging(task: LanguageTask, options: Options) -> None:
    """Raise ConfigError or DataError for a task without solutions to judge on some split that is evaluated."""
    from etude.evaluation import judging

    judging.check_judging(task)
    for split in _splits(task, options):
        judging.check_given(task, task.problems(split)[: options.evaluate or EVALUATED], split)


def _check_reference(method: Method) -> None:
    """Raise ConfigError for a method whose reference moves: with an adapter that is the base, which stays."""
    parts = (own.slots()["reference"] for own in composed(method))
    if (moving := next((part for part in parts if part is not None and part.moves), None)) is not None:
        raise ConfigError(
            f"The reference of {method.id} moves ({type(moving).__name__}), and with an adapter the reference is the "
            "base, which stays as it is: train all weights, without --adapter, or set reference=frozen."
        )
    if any("reference" in resets(method, number) for number in range(1, len(method.slots().get("stages", ())))):
        raise ConfigError(
            f"A later stage of {method.id} begins with a reference of its own, and with an adapter the reference is "
            "the base, which stays as it is: train all weights, without --adapter."
        )


def _check_dropout(method: Method, options: Options) -> None:
    """Raise ConfigError where an adapter's dropout would contradict something."""
    if any((experience := own.slots()["experience"]) and experience.samples for own in composed(method)):
        raise ConfigError(
            f"{method.id} compares what its samples were drawn with to what is trained, and adapter.dropout makes "
            "these two: leave it at 0. It is for methods that learn from data (sft, dpo)."
        )
    if options.gradient_checkpointing:
        raise ConfigError("Layers that are computed again would drop out anew: adapter.dropout needs them kept.")


def arguments(method: Method, task: LanguageTask, options: Options) -> dict[str, Any]:
    """The model, the problems, and how much of a batch goes through the model at once."""
    import torch

    from etude.policies.footprint import micro_tokens

    pool = task.problems("train")
    policy = samplers.load_policy(options)
    torch.set_num_threads(options.threads or threads(policy))
    budget = options.micro_tokens or micro_tokens(policy)
    return {
        "policy": policy, "pool": pool, "seed": options.seed, "micro_tokens": budget,
        "samplers": samplers.samplers_of(method, options, task, policy), "bound": samplers.bound_of(method, options),
        "team": ranks.team_of(method, options, policy, budget),
    }  # fmt: skip


def begin(loop: LanguageLoop, options: Options) -> list[str]:
    """Nothing: the model that it begins with is loaded already."""
    return []


def threads(policy: LanguagePolicy) -> int:
    """CPU threads that serve a model of this size best."""
    from etude.runtime.cores import cores

    small = sum(p.numel() for p in policy.model.parameters()) < SMALL
    return 1 if small else cores()


def size(loop: LanguageLoop, method: Method, task: LanguageTask) -> str:
    """Memory that the run will need."""
    from etude.policies.footprint import sentence

    own = complete_token(method)
    rows = own.problems * own.experience.rows_per_problem
    expected = 2 * (task.max_tokens or 64)
    return sentence(loop.policy, rows, expected, loop.updater.budget).removesuffix(".")


def rate(loop: LanguageLoop, method: Method) -> str:
    """By how much is trained."""
    from etude.optimizers.adam import SIZES, rate_sentence

    return rate_sentence(loop.method.optimizer, loop.updater.stepper.lr, SIZES)


def evaluation(
    loop: LanguageLoop, task: LanguageTask, options: Options, when: str, known: Look | None = None
) -> Measured:
    """pass@k and reward on the split that was asked for, else on every one that is not trained on."""
    from etude.evaluation.pass_at_k import to_json
    from etude.runs.training import say

    splits = _splits(task, options)
    if known is None or len(splits) > 1:
        say(f"Sampling {options.evaluate} problems per split {when} training ...", options.quiet)
    scores: dict[str, Any] = {}
    samples: list[dict[str, Any]] = []
    solved: dict[str, list[int]] = {}
    for split in splits:
        there = known is not None and known.found.own.split == split
        evaluated, judged = known.found if known is not None and there else _seen(loop, task, options, split)
        intervals = _intervals(evaluated) | judged
        scores[split], solved[split] = to_json(intervals), evaluated.correct.sum(1).tolist()
        samples += [_sample(split, episodes[0], task.success(episodes[0])) for episodes in evaluated.episodes[:3]]
    return Measured(scores, samples, solved)


def look(loop: LanguageLoop, task: LanguageTask, options: Options) -> Look:
    """pass@k and reward, and how it judges, on the first split, the same problems and random numbers every time."""
    found = _seen(loop, task, options, _splits(task, options)[0])
    means = found.own.means(KS) | {name: i.value for name, i in found.judged.items()}
    ends = {k: [i.low, i.high] for k, i in (_intervals(found.own) | found.judged).items()}
    return Look({found.own.split: means}, ends, found)


def _intervals(found: Evaluation) -> dict[str, Interval]:
    """Over problems."""
    return {k: v for k, v in found.summary(KS).items() if not k.startswith("avg@")}  # is pass@1


def _splits(task: LanguageTask, options: Options) -> list[str]:
    from etude.evaluation.language import evaluation_splits

    return [options.evaluate_split] if options.evaluate_split else evaluation_splits(task)


class Seen(NamedTuple):
    """What an evaluation sampled, and what came of judging the given solutions of its problems, if that was asked."""

    own: Evaluation
    judged: dict[str, Interval]


def _seen(loop: LanguageLoop, task: LanguageTask, options: Options, split: str) -> Seen:
    own, how = _sampled(loop, task, options, split), options.evaluate_judge
    if how is None:
        return Seen(own, {})
    from etude.evaluation.judging import judge_given

    given = judge_given(
        loop.policy, task, own, how, seed=options.seed, temperature=options.evaluate_temperature
    )  # fmt: skip
    return Seen(own, given.of_given())


def _sampled(loop: LanguageLoop, task: LanguageTask, options: Options, split: str) -> Evaluation:
    from etude.evaluation.language import evaluate_split
    from etude.experience.groups import Groups
    from etude.experience.views import view_of

    return evaluate_split(
        loop.policy, task, split, problems=options.evaluate or EVALUATED, samples=options.evaluate_samples,
        seed=options.seed, temperature=options.evaluate_temperature, rewards=scorers(loop.method, task),
        seats=loop.party.seats(loop.method), experience=Groups(view=view_of(loop.method, task)),
    )  # fmt: skip


def scorers(method: Method, task: LanguageTask) -> list[Reward]:
    """What the reward of an evaluation is: that of the reward functions; without any, what the task pays."""
    from etude.rewards.function import FunctionReward

    own = [p for p in method.slots()["rewards"] if isinstance(p, Reward) and p.judges]
    return [p for p in own if isinstance(p, FunctionReward)] or (own if task.judged_by_reward else [])


def _sample(split: str, episode: Episode, success: bool) -> dict[str, Any]:
    prompt = "".join(s.text for s in episode.segments if not any(s.action_mask))
    return {"split": split, "prompt": prompt, "completion": episode.completion, "success": success}


# A checkpoint


def restore(checkpoint: str, config: Mapping[str, Any], task: LanguageTask) -> LanguagePolicy:
    """The model, from a checkpoint of a run, a model's folder, or by its name; adapters as they were trained.

    One that was sampled from with what a learner says is so again, where the checkpoint has the learner.
    """
    import torch

    from etude.policies.language import LanguagePolicy

    own = Path(checkpoint) / "model"
    policy = LanguagePolicy.load(str(own) if own.is_dir() else checkpoint, fold=False, bits=_bits(config))
    torch.set_num_threads(threads(policy))
    policy.tilting = tilting_of(checkpoint, policy)
    return policy


def _bits(config: Mapping[str, Any]) -> int | None:
    """Those of the base that the run trained over, if it can be held in them here; else none, and says so."""
    from etude.policies.loading import choose_device
    from etude.policies.quantized import lacking
    from etude.runs.training import say

    bits: int | None = (config.get("adapter") or {}).get("bits")
    if bits is not None and lacking(choose_device()) is not None:
        say("It was trained over a base in 4 bits, which cannot be held here: this is its adapter over the whole base.")
        return None
    return bits


def evaluate(
    checkpoint: str, config: Mapping[str, Any], task: LanguageTask, options: EvaluationOptions
) -> dict[str, dict[str, Interval]]:
    """What is asked of a checkpoint (`evaluated.py`)."""
    return evaluated(lambda: restore(checkpoint, config, task), checkpoint, config, task, options)


def about(options: EvaluationOptions) -> str:
    """How many problems."""
    return f"{options.problems} problems per split"


def export(checkpoint: str, config: Mapping[str, Any], out: Path, member: int, merge: bool) -> None:
    """Write a plain Hugging Face folder: the checkpoint's model as it is, or its adapter folded into the base."""
    import shutil

    from etude.policies.adapters import is_adapter
    from etude.policies.language import LanguagePolicy

    model = Path(checkpoint) / "model"
    if member:
        raise ConfigError(f"--member is for populations of control, and {checkpoint} is a run of language.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is there already: name a folder that is empty, or not there yet.")
    if merge and not is_adapter(model):
        raise ConfigError(f"{checkpoint} holds the whole model, and no adapter to fold into it: leave out --merge.")
    if merge:
        LanguagePolicy.load(str(model), device="cpu", dtype=config.get("dtype", "auto")).save(out)
    else:
        shutil.copytree(model, out, dirs_exist_ok=True)


# For people


def preview(task: Task, split: str | None, count: int) -> Iterable[str]:
    """Splits, fields and a few problems."""
    from etude.runtime.progress import printable

    pool = task.problems(split or task.splits()[0])
    fields = ", ".join(f"{k}={v}" for k, v in task.fields().items())
    yield f"{task.id}: splits {', '.join(task.splits())}; fields {fields or 'none'}"
    for i in range(min(count, len(pool))):
        problem = pool[i]
        yield f"\n{printable(problem.id)}  {printable(problem.level)}"
        yield f"  prompt  {printable(str(problem.prompt))}\n  answer  {printable(str(problem.answer))}"


def suggestions(done: Result, method: str, config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """More samples, and a comparison."""
    line = f"etude evaluate {quote(str(done.folder))} --k 1,8,64"
    return [(line, "how good it is with more samples"), *comparison(done, method, config, SEEDS)]


def comparison(done: Result, method: str, config: Mapping[str, Any], seeds: int) -> list[tuple[str, str]]:
    """The method's parent on the same task, or another where it has none."""
    learns = json.loads((done.folder / "method.json").read_text()).get("advantages") is not None
    named = not any(str(said).startswith("<") for said in (config.get("task"), only_python(config.get("reward"))))
    if not learns or not named or done.notes:
        return []
    other = parent(done.folder, World.LANGUAGE, method) or ("dr-grpo" if method != "dr-grpo" else "grpo")
    rewards = config.get("reward") or []
    scored = "".join(f" --reward {quote(r)}" for r in ([rewards] if isinstance(rewards, str) else rewards))
    task = quote(config.get("task", done.task)) + scored
    line = f"etude compare {other} {quote(method)} --task {task} --seeds {seeds}"
    return [(line, "which of the two is better, with statistics")]
