"""What is wrong with a method or a reward function, before a run."""

from __future__ import annotations

import inspect
import json

from etude.core.errors import EtudeError
from etude.core.method import Method
from etude.core.registry import parent_of
from etude.evaluation.environment_findings import Finding
from etude.evaluation.part_check import ORDER, check_part, fault
from etude.rewards.function import FunctionReward


def check_method(method: Method) -> list[Finding]:
    """Look at a method: each part that is not etude's own, JSON, and what keeps it from being trained as it is.

    Returns: the findings, faults first; a fact says how many parts were checked.
    """
    own = [p for p in method.parts().values() if not type(p).__module__.startswith("etude.")]
    findings = [finding for part in dict.fromkeys(own) for finding in check_part(part)]
    try:
        again = Method.from_json(json.loads(json.dumps(method.to_json())))
        if again.slots() != method.slots():
            findings.append(fault("json", f"{method.id} is another method after method.json was read back."))
    except (EtudeError, TypeError) as error:
        findings.append(fault("json", f"{method.id} cannot be written to method.json and read back: {error}"))
    findings += [fault("method", f"As it is: {sentence}") for sentence in method.objections()]
    about = f"against {method.parent} it changes {', '.join(_against(method))}" if method.parent else "it has no parent"
    findings.append(
        Finding("fact", "method", f"{method.id} learns in tasks of {' and '.join(sorted(method.worlds))}; {about}.")
    )
    return sorted(findings, key=lambda f: ORDER[f.level])


def _against(method: Method) -> list[str]:
    parent = parent_of(method)
    return list(method.diff(parent)) if parent else []


def check_reward(name: str) -> list[Finding]:
    """Look at a reward function, 'file.py:name', as a run would call it: on a batch of episodes, in a process."""
    return [f for f in check_part(FunctionReward(name)) if f.about != "fields"]


def scores_completions(thing: object) -> bool:
    """Whether something is a function of completions, as rewards are."""
    if isinstance(thing, type) or not callable(thing):
        return False
    try:
        names = inspect.signature(thing).parameters
    except (TypeError, ValueError):
        return False
    return bool({"completions", "messages", "episodes", "completion", "episode"} & {*names})
