"""What is wrong with a part, before a run: each thing in one sentence, as `check_environment` does for environments."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.errors import ConfigError, EtudeError
from etude.core.part import Need, Part, from_json
from etude.core.slots import (
    Curriculum,
    Filter,
    GroupReward,
    Objective,
    Reward,
    TokenAdvantages,
    TokenObjective,
    TokenRegularizer,
    TokenReward,
    TokenWeights,
)
from etude.core.step_slots import StepAdvantages, StepObjective, StepRegularizer, StepReward
from etude.core.streams import Stream
from etude.core.transitions import ActionLogProbs, Transitions
from etude.core.worlds import World
from etude.evaluation.environment_findings import Finding
from etude.evaluation.small_batch import (
    ENVIRONMENTS,
    MEMBERS,
    ROWS,
    STEPS,
    TOKENS,
    Letters,
    NotHere,
    multipliers,
    needed,
    parts_inside,
    small_context,
    small_episodes,
    small_steps,
    small_tokens,
)

Batch: TypeAlias = TokenBatch | Transitions
ORDER = {"fault": 0, "warning": 1, "fact": 2}
"""Of findings."""


def check_part(part: Part | type[Part]) -> list[Finding]:
    """Look at everything that a loop relies on: fields, JSON, state, and what it returns where a loop calls it.

    Args:
        part: a part, or the class of one whose fields all have defaults.

    Returns: the findings, faults first; the last facts say which functions were called, and on what.
    """
    if isinstance(part, type):
        name, fields = part.__name__, dataclasses.fields(part)
        if missing := [f.name for f in fields if f.init and not _has_default(f)]:
            given = ", ".join(f"{field}=..." for field in missing)
            return [fault("fields", f"{name} has no default for {' and '.join(missing)}: check {name}({given}).")]
        try:
            part = part()
        except EtudeError as error:
            return [fault("fields", f"{name} refuses its own defaults: {error}")]
    findings = [*_fields(part), *_state(part)]
    if not any(f.level == "fault" for f in findings):
        findings += _called(part)
    return sorted(findings, key=lambda f: ORDER[f.level])


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def fault(about: str, sentence: str) -> Finding:
    """What keeps something from being trained."""
    return Finding("fault", about, sentence)


# Fields and state


def _fields(part: Part) -> Iterator[Finding]:
    """Values that cannot change, and that can be written down and read back."""
    name = type(part).__name__
    for field, value in part.fields().items():
        where = f"{name}.{field}"
        if isinstance(value, (list, dict, set, Tensor)):
            type_name = type(value).__name__
            yield fault(
                "fields",
                f"{where} holds a {type_name}, which can change while a part may not: make it a tuple or a part.",
            )
    if not all(map(_has_default, dataclasses.fields(part))):
        yield Finding(
            "warning", "fields", f"{name} has fields without a default, so `--with {part.name}` cannot add it."
        )
    try:
        text = json.dumps({k: v for k, v in part.to_json().items() if k != "part"})
    except TypeError as error:
        yield fault("json", f"{name} cannot be written into method.json: {error}. Fields are numbers, text, and parts.")
        return
    if "<locals>" in type(part).__qualname__:
        yield Finding(
            "warning", "json",
            f"{name} is defined inside a function, where method.json cannot name it, so that no run with it can be "
            "resumed or evaluated: define it at the top of a file.",
        )  # fmt: skip
    try:
        again = type(part)(**{k: from_json(v) for k, v in json.loads(text).items()})
    except EtudeError as error:
        yield Finding("warning", "json", f"{name} cannot be read back from method.json: {error}")
        return
    if again != part:
        yield fault("json", f"{name} is another part after it was written to method.json and read back.")


def _state(part: Part) -> Iterator[Finding]:
    """JSON values and tensors, made anew for every run."""
    name = type(part).__name__
    try:
        first, second = part.bind().initial_state(), part.bind().initial_state()
    except EtudeError as error:
        yield fault("state", f"{name} cannot begin a run: {error}")
        return
    except Exception as error:
        yield fault("state", f"{name}.initial_state raised {type(error).__name__}: {error}{_place(error)}.")
        return
    if not isinstance(first, dict):
        yield fault("state", f"{name}.initial_state must return a dictionary, got {first!r}.")
        return
    for key, value in first.items():
        if wrong := _unsaved(value):
            yield fault(
                "state", f"The state {key!r} of {name} holds {wrong}: checkpoints keep JSON values and tensors."
            )
        elif isinstance(value, (list, dict, Tensor)) and value is second.get(key):
            yield fault("state", f"The state {key!r} of {name} is one object for all runs: make it in initial_state.")


def _unsaved(value: object) -> str | None:
    """What in a state cannot be saved, None if all can."""
    if value is None or isinstance(value, (bool, int, float, str, Tensor)):
        return None
    if isinstance(value, Mapping):
        keys = next((f"the key {k!r}" for k in value if not isinstance(k, str)), None)
        return keys or next((w for v in value.values() if (w := _unsaved(v))), None)
    if isinstance(value, (list, tuple)):
        return next((w for v in value if (w := _unsaved(v))), None)
    return f"a {type(value).__name__}"


# What it returns


@dataclasses.dataclass(frozen=True)
class Contract:
    """How a loop calls the parts of a slot, and what they return.

    Args:
        call: of the part's bound copy, a batch and what a policy says of it.
        signature: the call, as text.
        batch: what it is called on.
        shape: what it returns, of what [..] means on that batch.
        gradient: whether a gradient belongs there.
    """

    call: Callable[[Any, Any, Any], Any]
    signature: str
    batch: Callable[[frozenset[Need]], tuple[Batch, TokenLogProbs]]
    shape: str
    gradient: bool = False

    def fits(self, part: Part) -> bool:
        """Whether the part works where such batches come from."""
        control = self.batch is not small_tokens
        return not part.worlds or any((world is World.CONTROL) == control for world in part.worlds)


def _rollout(needs: frozenset[Need]) -> tuple[Transitions, ActionLogProbs]:
    return small_steps(needs, flat=False)


def _minibatch(needs: frozenset[Need]) -> tuple[Transitions, ActionLogProbs]:
    return small_steps(needs, flat=True)


CONTRACTS: dict[type[Part], Contract] = {
    TokenReward: Contract(lambda p, b, _: p.shape_in(b, small_context()), "shape(batch)", small_tokens, "[B, T]"),
    GroupReward: Contract(lambda p, b, _: p.rescore_in(b, small_context()), "rescore(batch)", small_tokens, "[B]"),
    Filter: Contract(lambda p, b, _: p.weigh(b), "weigh(batch)", small_tokens, "[B]"),
    TokenAdvantages: Contract(lambda p, b, _: p(b), "__call__(batch)", small_tokens, "[B, T]"),
    TokenWeights: Contract(lambda p, b, q: p(b, q), "__call__(batch, policy)", small_tokens, "[B, T]"),
    TokenRegularizer: Contract(lambda p, b, q: p(b, q), "__call__(batch, policy)", small_tokens, "[B, T]", True),
    TokenObjective: Contract(lambda p, b, q: p(b, q), "__call__(batch, policy)", small_tokens, "[B, T]", True),
    StepReward: Contract(lambda p, b, _: p.shape(b), "shape(batch)", _rollout, "[P, T, E]"),
    StepAdvantages: Contract(lambda p, b, _: p.of_transitions(b), "of_transitions(batch)", _rollout, "[P, T, E]"),
    StepRegularizer: Contract(lambda p, b, q: p(b, q), "__call__(batch, policy)", _minibatch, "[P, N]", True),
    StepObjective: Contract(lambda p, b, q: p(b, q), "__call__(batch, policy)", _minibatch, "[P, N]", True),
}
"""Of the parts that can be judged on a batch alone."""
SIZES = {
    "[B]": (ROWS,), "[B, T]": (ROWS, TOKENS), "[P, T, E]": (MEMBERS, STEPS, ENVIRONMENTS),
    "[P, N]": (MEMBERS, STEPS * ENVIRONMENTS),
}  # fmt: skip


def _called(part: Part) -> Iterator[Finding]:
    """What comes of calling it in every way that a loop would."""
    name = type(part).__name__
    contracts = [contract for kind, contract in CONTRACTS.items() if isinstance(part, kind) and contract.fits(part)]
    for contract in contracts:
        yield from _on_a_batch(part, contract)
    if isinstance(part, Reward):
        yield from _scored(part)
    elif isinstance(part, Curriculum):
        yield from _chosen(part)
    elif not contracts:
        yield Finding("fact", "calls", f"{name} fills the slot {part.slot or '(none)'}: fields and state were checked.")


def _on_a_batch(part: Part, contract: Contract) -> Iterator[Finding]:
    where, needs = f"{type(part).__name__}.{contract.signature}", needed(part)
    batch, policy = contract.batch(needs)
    value = _tried(
        lambda: _call(part, contract, batch, policy), part, where, "a small batch",
        lambda: _undeclared(part, contract, needs),
    )  # fmt: skip
    if isinstance(value, Finding):
        yield value
        return
    shape = "[B]" if isinstance(part, TokenObjective) and part.per_row else contract.shape
    if isinstance(part, TokenRegularizer) and contract.shape == "[B, T]" and getattr(value, "ndim", 0) == 1:
        shape = "[B]"  # which a regularizer may choose
    yield from _returned(part, where, value, dataclasses.replace(contract, shape=shape), batch)
    yield from _written(where, batch, contract.batch(needs)[0])
    if isinstance(value, Tensor):
        yield from _declared(part, contract, where, value)
    yield Finding("fact", "calls", f"{where} was called on a small batch {contract.shape}.")


def _call(part: Part, contract: Contract, batch: Batch, policy: TokenLogProbs) -> Any:
    policy.said |= multipliers(part)
    with torch.set_grad_enabled(contract.gradient):
        return contract.call(part.bind(), batch, policy)


def _tried(
    call: Callable[[], Any], part: Part, where: str, on: str, hint: Callable[[], str] = lambda: ""
) -> Any:  # fmt: skip
    """What the call `where` returns, or a finding that says why it returned nothing; `hint` is added to a fault."""
    try:
        return call()
    except (NotHere, ConfigError) as error:
        return Finding("fact", "calls", f"{where} was not judged: {error}")
    except NotImplementedError:
        return fault("calls", f"{where} is not written: the slot {part.slot} calls it.")
    except Exception as error:
        told = f"{where} raised {type(error).__name__} on {on}: {str(error).rstrip('.')}{_place(error)}."
        return fault("calls", told + hint())


def _place(error: BaseException) -> str:
    """Where in the user's file it happened."""
    frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
    return f" ({frames[-1].filename.rpartition('/')[2]}, line {frames[-1].lineno})" if frames else ""


def _undeclared(part: Part, contract: Contract, needs: frozenset[Need]) -> str:
    """Which need would have helped, as a sentence; empty if none."""
    for need in set(Need) - needs:
        try:
            _call(part, contract, *contract.batch(needs | {need}))
        except Exception:
            continue
        return f" With Need.{need.name} it does not: a loop computes that only for parts that have it in `needs`."
    return ""


def _returned(part: Part, where: str, value: object, contract: Contract, batch: Batch) -> Iterator[Finding]:
    """Shape, kind and size of what came back."""
    shape, sizes = contract.shape, SIZES[contract.shape]
    if not isinstance(value, Tensor):
        yield fault("returns", f"{where} must return a tensor {shape}, got {type(value).__name__}.")
        return
    if tuple(value.shape) != sizes:
        per_row = isinstance(part, TokenObjective) and value.shape == (ROWS,)
        hint = " A loss per row is said by per_row = True in the class." if per_row else ""
        yield fault("returns", f"{where} must return {shape}, here {sizes}, got {tuple(value.shape)}.{hint}")
        return
    if not (value.is_floating_point() or value.dtype == torch.bool):
        yield fault("returns", f"{where} must return numbers as the batch has them (float32), got {value.dtype}.")
        return
    counted = value[batch.action_mask] if isinstance(batch, TokenBatch) and shape == "[B, T]" else value
    if not bool(counted.isfinite().all()):
        yield fault("numbers", f"{where} returned numbers that are not finite: look for a division by 0 or a log of 0.")
    if isinstance(part, Filter) and bool((counted < 0).any()):
        yield fault("numbers", f"{where} returned weights below 0: a filter weighs rows from 0 (dropped) up.")
    if contract.gradient and not value.requires_grad:
        yield Finding(
            "fault" if isinstance(part, Objective) else "warning", "gradient",
            f"{where} has no gradient: compute it from policy.logp (or what the part needs), without detach.",
        )  # fmt: skip


def _written(where: str, batch: Batch, before: Batch) -> Iterator[Finding]:
    """Tensors of the batch that are no longer what they were."""
    for field in (f.name for f in dataclasses.fields(before)):
        now, then = getattr(batch, field), getattr(before, field)
        if isinstance(then, Tensor) and not _same(now, then):
            yield fault("calls", f"{where} writes into batch.{field}: return a new tensor and leave the batch alone.")


def _declared(part: Part, contract: Contract, where: str, value: Tensor) -> Iterator[Finding]:
    """What the class says of itself, tried: a loop skips rows and allows truncated sampling by it."""
    if isinstance(part, Objective) and part.vanishes_with_advantage:
        batch, policy = contract.batch(needed(part))
        assert batch.advantages is not None
        batch.advantages = torch.zeros_like(batch.advantages)
        if bool((_call(part, contract, batch, policy) != 0).any()):
            yield fault(
                "declared",
                f"{where} is not 0 where advantages are, and vanishes_with_advantage says so: rows without advantage "
                "would be skipped. Leave it at False.",
            )
    if not part.uses_behaviour and contract.batch is small_tokens and not _stays(part, contract, value):
        yield Finding(
            "warning", "declared",
            f"{where} depends on behaviour_logp: say uses_behaviour = True in the class if it takes it for the "
            "policy's own, so that it is refused together with top-p or top-k.",
        )  # fmt: skip


def _same(now: Tensor, then: Tensor) -> bool:
    """Whether two tensors are equal; nan, which stands for nothing there, equals nan."""
    return now.shape == then.shape and not bool(((now != then) & ~((now != now) & (then != then))).any())


def _stays(part: Part, contract: Contract, value: Tensor) -> bool:
    """Whether it returns the same of tokens that were sampled with other probabilities."""
    if any(inside.uses_behaviour for inside in _all_inside(part)):
        return True
    batch, policy = contract.batch(needed(part))
    assert isinstance(batch, TokenBatch)
    batch.behaviour_logp = batch.behaviour_logp - 0.5 * batch.action_mask
    return torch.equal(_call(part, contract, batch, policy), value)


def _all_inside(part: Part) -> Iterator[Part]:
    for inside in parts_inside(part):
        yield inside
        yield from _all_inside(inside)


# Parts that are called on episodes or problems


def _scored(part: Reward) -> Iterator[Finding]:
    """A reward of whole episodes: one number, or None, for each."""
    where, episodes = f"{type(part).__name__}.score(episodes, context)", small_episodes()
    scores = _tried(lambda: part.bind().score(episodes, small_context()), part, where, "six episodes")
    if isinstance(scores, Finding):
        yield scores
        return
    if not isinstance(scores, Sequence) or len(scores) != len(episodes):
        got = f"{len(scores)} of them" if isinstance(scores, Sequence) else type(scores).__name__
        yield fault("returns", f"{where} must return a number or None for each of 6 episodes, got {got}.")
        return
    wrong = [s for s in scores if s is not None and not (isinstance(s, (int, float)) and math.isfinite(s))]
    if wrong:
        yield fault("numbers", f"{where} must return finite numbers, or None where none applies; got {wrong[0]!r}.")
    yield Finding("fact", "calls", f"{where} was called on {len(episodes)} episodes.")


def _chosen(part: Curriculum) -> Iterator[Finding]:
    """A choice of problems: so many of the pool's, the same for the same stream."""
    where, pool, count = f"{type(part).__name__}.choose(pool, count, stream)", Letters().problems("train"), 4
    chosen = _tried(
        lambda: [part.bind().choose(pool, count, Stream(0)) for _ in range(2)], part, where, "twelve problems"
    )
    if isinstance(chosen, Finding):
        yield chosen
        return
    first, second = chosen
    if not isinstance(first, list) or len(first) != count or any(p not in pool for p in first):
        yield fault("returns", f"{where} must return a list of {count} problems of the pool, got {first!r}.")
    elif first != second:
        yield fault("returns", f"{where} chooses others for the same stream: draw from it, stream.numpy or split().")
    yield Finding("fact", "calls", f"{where} was called on {len(pool)} problems.")
