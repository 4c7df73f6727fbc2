"""What is wrong with a part, before a run: each thing in one sentence, as `check_environment` does for environments."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from etude.core.batches import Episode, Problem, Segment, TokenBatch, TokenLogProbs
from etude.core.errors import EtudeError
from etude.core.part import Part, from_json
from etude.core.slots import (
    Filter,
    GroupReward,
    StepAdvantages,
    TokenAdvantages,
    TokenObjective,
    TokenRegularizer,
    TokenReward,
    TokenWeights,
)
from etude.evaluation.environment_findings import Finding

ROWS, TOKENS, WIDTH, WORDS = 6, 5, 4, 7
"""Of the small batch: two groups of three rows, the last tokens of which are padding in some."""


def check_part(part: Part | type[Part]) -> list[Finding]:
    """Look at everything that a loop relies on: fields, JSON, state, and what it returns on a small batch.

    Args:
        part: a part, or the class of one whose fields all have defaults.

    Returns: the findings, faults first; a last fact says which function was called on the batch.
    """
    kind = part if isinstance(part, type) else type(part)
    if isinstance(part, type):
        try:
            part = part()
        except (TypeError, EtudeError) as error:
            return [_fault("fields", f"{kind.__name__} cannot be made without arguments: {error} Give it made.")]
    found = [*_fields(part), *_state(part)]
    if not any(f.level == "fault" for f in found):
        found += _called(part)
    order = {"fault": 0, "warning": 1, "fact": 2}
    return sorted(found, key=lambda f: order[f.level])


def _fault(about: str, sentence: str) -> Finding:
    return Finding("fault", about, sentence)


# Fields and state


def _fields(part: Part) -> Iterator[Finding]:
    """Values that cannot change, and that can be written down and read back."""
    name = type(part).__name__
    for field, value in part.fields().items():
        where = f"{name}.{field}"
        if isinstance(value, (list, dict, set, Tensor)):
            kind = type(value).__name__
            yield _fault(
                "fields", f"{where} holds a {kind}, which can change while a part may not: make it a tuple or a part."
            )
    if any(f.default is dataclasses.MISSING for f in dataclasses.fields(part)):
        yield Finding(
            "warning", "fields", f"{name} has fields without a default, so `--with {part.name}` cannot add it."
        )
    try:
        text = json.dumps({k: v for k, v in part.to_json().items() if k != "part"})
    except TypeError as error:
        yield _fault(
            "json", f"{name} cannot be written into method.json: {error}. Fields are numbers, text, and parts."
        )
        return
    read = {k: from_json(v) for k, v in json.loads(text).items()}
    if type(part)(**read) != part:
        yield _fault("json", f"{name} is another part after it was written to method.json and read back.")


def _state(part: Part) -> Iterator[Finding]:
    """JSON values and tensors, made anew for every run."""
    name = type(part).__name__
    try:
        first, second = part.bind().initial_state(), part.bind().initial_state()
    except Exception as error:
        yield _fault("state", f"{name}.initial_state raised {type(error).__name__}: {error}")
        return
    if not isinstance(first, dict):
        yield _fault("state", f"{name}.initial_state must return a dictionary, got {first!r}.")
        return
    for key, value in first.items():
        if wrong := _unsaved(value):
            yield _fault(
                "state", f"The state {key!r} of {name} holds {wrong}: checkpoints keep JSON values and tensors."
            )
        elif isinstance(value, (list, dict, Tensor)) and value is second[key]:
            yield _fault("state", f"The state {key!r} of {name} is one object for all runs: make it in initial_state.")


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


# A small batch


def small_batch() -> tuple[TokenBatch, TokenLogProbs]:
    """Two groups of three completions with everything that a part may need, and what a policy says of them."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    lengths = torch.tensor([5, 3, 4, 2, 5, 4])
    mask = torch.arange(TOKENS) < lengths[:, None]
    tokens = torch.randint(WORDS, (ROWS, TOKENS), generator=draw) * mask
    scores = torch.tensor([1.0, 0.0, 0.5, 0.0, 1.0, 0.25])
    rewards = torch.zeros(ROWS, TOKENS).scatter(1, lengths[:, None] - 1, scores[:, None])
    behaviour = -normal(ROWS, TOKENS).abs() * mask
    batch = TokenBatch(
        tokens, mask, mask, behaviour, rewards, torch.tensor([0, 0, 0, 1, 1, 1]), torch.ones(ROWS), scores,
        torch.zeros(ROWS, dtype=torch.bool), advantages=normal(ROWS, TOKENS) * mask,
        returns=normal(ROWS, TOKENS) * mask, values=normal(ROWS, TOKENS) * mask, next_values=torch.zeros(ROWS),
        reference_logp=behaviour + 0.1 * normal(ROWS, TOKENS) * mask, solved=scores >= 1,
        shares=mask / mask.sum(), row_shares=torch.full((ROWS,), 1 / ROWS), draw=torch.arange(ROWS),
        extras={"entropy": normal(ROWS, TOKENS).abs() * mask}, episodes=_episodes(tokens, lengths, behaviour, scores),
    )  # fmt: skip
    logp = (behaviour + 0.2 * normal(ROWS, TOKENS) * mask).requires_grad_()
    logits = normal(ROWS, TOKENS, WORDS).requires_grad_()
    policy = TokenLogProbs(
        logp, entropy=(1 + logp**2) * mask, values=normal(ROWS, TOKENS).requires_grad_(), logits=logits
    )
    return batch, policy


def _episodes(tokens: Tensor, lengths: Tensor, logp: Tensor, scores: Tensor) -> list[Episode]:
    found = []
    for row, size in enumerate(lengths.tolist()):
        said = tokens[row, :size].tolist()
        segment = Segment("assistant", "abcdefg"[:size], said, [1] * size, logp[row, :size].tolist())
        segment.reward = float(scores[row])
        found.append(Episode(Problem(f"check/{row // 3}", "?", "a"), [segment], row // 3))
    return found


# What it returns


@dataclasses.dataclass(frozen=True)
class Contract:
    """How a slot's parts are called, what they return, and whether a gradient belongs there."""

    call: Callable[[Any, TokenBatch, TokenLogProbs], Any]
    says: str
    rows: bool = False
    gradient: bool = False


CONTRACTS: dict[type[Part], Contract] = {
    TokenReward: Contract(lambda p, b, _: p.shape(b), "shape(batch)"),
    GroupReward: Contract(lambda p, b, _: p.rescore(b), "rescore(batch)", rows=True),
    Filter: Contract(lambda p, b, _: p.weigh(b), "weigh(batch)", rows=True),
    TokenAdvantages: Contract(lambda p, b, _: p(b), "__call__(batch)"),
    TokenWeights: Contract(lambda p, b, q: p(b, q), "__call__(batch, policy)"),
    TokenRegularizer: Contract(lambda p, b, q: p(b, q), "__call__(batch, policy)", gradient=True),
    TokenObjective: Contract(lambda p, b, q: p(b, q), "__call__(batch, policy)", gradient=True),
}
"""Of the parts that can be judged on a batch alone."""


def _called(part: Part) -> Iterator[Finding]:
    name, contract = type(part).__name__, next((c for k, c in CONTRACTS.items() if isinstance(part, k)), None)
    if contract is None or "hidden" in part.needs or (isinstance(part, StepAdvantages) and not callable(part)):
        yield Finding("fact", "calls", f"{name} fills the slot {part.slot or '(none)'}: fields and state were checked.")
        return
    (batch, policy), kept = small_batch(), small_batch()[0]
    bound, where = part.bind(), f"{name}.{contract.says}"
    try:
        with torch.set_grad_enabled(contract.gradient):
            found = contract.call(bound, batch, policy)
    except NotImplementedError:
        if isinstance(part, TokenReward) and type(part).shape_in is not TokenReward.shape_in:
            yield Finding("fact", "calls", f"{name}.shape_in needs a task, so it was not called.")
        else:
            yield _fault("calls", f"{where} is not written: the slot {part.slot} calls it.")
        return
    except KeyError as error:
        yield Finding("warning", "calls", f"{where} reads {error}, which another part has to leave: it was not judged.")
        return
    except Exception as error:
        yield _fault("calls", f"{where} raised {type(error).__name__} on a small batch: {error}{_place(error)}.")
        return
    yield from _returned(part, where, found, contract)
    for field in ("rewards", "behaviour_logp", "scores", "weights", "action_mask"):
        if not torch.equal(getattr(batch, field), getattr(kept, field)):
            yield _fault("calls", f"{where} writes into batch.{field}: return a new tensor and leave the batch alone.")
    yield Finding("fact", "calls", f"{where} was called on {ROWS} rows of {TOKENS} tokens.")


def _place(error: BaseException) -> str:
    """Where in the user's file it happened."""
    frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
    return f" ({frames[-1].filename.rpartition('/')[2]}, line {frames[-1].lineno})" if frames else ""


def _returned(part: Part, where: str, found: object, contract: Contract) -> Iterator[Finding]:
    rows = contract.rows or (isinstance(part, TokenObjective) and part.per_row)
    wanted, shape = ((ROWS,), "[B]") if rows else ((ROWS, TOKENS), "[B, T]")
    if not isinstance(found, Tensor):
        yield _fault("returns", f"{where} must return a tensor {shape}, got {type(found).__name__}.")
        return
    if isinstance(part, TokenRegularizer) and found.dim() == 1:
        rows, wanted = True, (ROWS,)  # which a regularizer may choose
    if tuple(found.shape) != wanted:
        hint = " A loss per row is said by per_row = True in the class." if found.shape == (ROWS,) else ""
        yield _fault("returns", f"{where} must return {shape}, here {wanted}, got {tuple(found.shape)}.{hint}")
        return
    if not (found.is_floating_point() or found.dtype == torch.bool):
        yield _fault("returns", f"{where} must return numbers as the batch has them (float32), got {found.dtype}.")
        return
    acted = found if rows else found[small_batch()[0].action_mask]
    if not bool(acted.isfinite().all()):
        yield _fault(
            "numbers", f"{where} returned numbers that are not finite: look for a division by 0 or a log of 0."
        )
    if contract.gradient and not found.requires_grad:
        yield Finding(
            "fault" if isinstance(part, TokenObjective) else "warning", "gradient",
            f"{where} has no gradient: compute it from policy.logp (or what the part needs), without detach.",
        )  # fmt: skip
