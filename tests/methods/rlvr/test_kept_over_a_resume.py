"""What methods keep across steps, memories and buffers, is the same after a resume, entry by entry; its loss shows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from etude.core.edit import set_values
from etude.core.episodes import Problem
from etude.core.registry import get_method
from etude.experience.groups import Groups
from etude.loops.language import LanguageLoop
from etude.policies.fingerprint import fingerprint
from etude.policies.language import LanguagePolicy
from etude.tasks import resolve_task
from language_toys import Toy, make_loop, untimed

pytestmark = pytest.mark.usefixtures("one_thread")
STOP, STEPS = 3, 6
PROMPTS = tuple(f"{name}:" for name in "abcdef")


def rare(problem: Problem, completion: str) -> float:
    return float("e" in completion or "o" in completion)


def remembering(order: str) -> LanguageLoop:
    """Six problems, of which a memory has room for four with five responses each: it forgets."""
    memory = {"problems": 4, "responses": 5, "warmup": 1, "neighbours": 2, "width": 64, "order": order}
    fields = {f"rewards.1.{name}": value for name, value in memory.items()}
    method = set_values(get_method("memory-r-plus"), {"problems": 3, "experience.size": 6, **fields})
    return make_loop(method, Toy(prompts=PROMPTS, scoring=rare, max_tokens=6))


def buffering() -> LanguageLoop:
    """Supervised steps of four problems: some of the buffer is left after each."""
    method = get_method("relift").replace(problems=6, experience=Groups(size=2))  # type: ignore[call-arg]
    method = set_values(method, {"stages.0.chooser.size": 4})
    return LanguageLoop(method, resolve_task("compose"), LanguagePolicy.load("tiny"), seed=0, steps=STEPS)


def searching() -> LanguageLoop:
    """Problems of which at most half of the answers are right come again."""
    fields = {"problems": 3, "size": 8, "width": 4, "depth": 3, "replayed": 0.5}
    placed = {k if k == "problems" else f"experience.{k}": v for k, v in fields.items()}
    method = set_values(get_method("deepsearch"), placed)
    return make_loop(method, Toy(prompts=PROMPTS, scoring=rare, max_tokens=6))


KEEPING: dict[str, tuple[Callable[[], LanguageLoop], str]] = {
    "memory-r-plus": (lambda: remembering("score-first"), "rewards.1"),
    "memory-r-plus, as released": (lambda: remembering("store-first"), "rewards.1"),
    "relift": (buffering, "stages.0.chooser.buffer"),
    "deepsearch": (searching, "experience"),
}


def plain(state: Any) -> Any:
    """A state with its tensors as their dtypes and numbers, which can be compared."""
    if isinstance(state, torch.Tensor):
        return [str(state.dtype), state.tolist()]
    if isinstance(state, dict):
        return {k: plain(v) for k, v in state.items()}
    return [plain(v) for v in state] if isinstance(state, list | tuple) else state


def kept(loop: LanguageLoop) -> Any:
    """All that parts keep, as it is now."""
    return plain(copy.deepcopy(loop.method.state_dict()))


def played(loop: LanguageLoop) -> list[Any]:
    """Metrics, what is kept and the weights, after each of the steps that are left."""
    found = []
    while loop.finished < STEPS:
        metrics = untimed(loop.step().metrics)
        found.append((metrics, kept(loop), fingerprint(loop.policy.parameters())))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", KEEPING)
def test_what_is_kept_is_the_same_after_a_resume_and_its_loss_is_noticed(name: str, tmp_path: Path) -> None:
    made, place = KEEPING[name]
    whole, resumed, forgetful = made(), made(), made()
    for _ in range(STOP):
        whole.step()
    whole.save(tmp_path)
    at_stop, expected = kept(whole), played(whole)
    for loop in (resumed, forgetful):
        loop.load(tmp_path)
        assert kept(loop) == at_stop
    assert played(resumed) == expected
    part: Any = forgetful.method.parts()[place]
    assert plain(part.state) != plain(part.initial_state()), "there is something to lose"
    part.state.update(part.initial_state())
    lost = played(forgetful)
    assert [(m, w) for m, _, w in lost] != [(m, w) for m, _, w in expected]
