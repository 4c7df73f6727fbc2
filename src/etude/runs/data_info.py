"""What is in logs: `etude data info`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.errors import DataError
from etude.runs.training import compose_task
from etude.tasks import LOGS

if TYPE_CHECKING:
    from etude.experience.logs.table import Logs

MEANT = (
    "both-ends", "one-step-episodes", "constant-observations", "constant-rewards", "index", "jumps", "duplicates",
    "small-actions",
)  # fmt: skip
"""Faults that can be meant: they are told, and nothing is refused for them."""
BESIDE = {"worst": "random", "best": "expert", "reference": "replay"}
"""Data sets that stand beside one of `etude data make`."""


@dataclass(frozen=True)
class References:
    """Logs that others are measured by.

    Args:
        worst: of chance. best: of the best policy known. reference: all that it saw while it learned.
    """

    worst: str | None = None
    best: str | None = None
    reference: str | None = None


def data_sets(path: Path) -> list[Path]:
    """The path itself, or the Minari data sets in it, where it is only their folder."""
    from etude.experience.logs.formats import is_minari
    from etude.experience.logs.reading import located

    path = located(path)
    if path.is_dir() and not is_minari(path) and not (path / "method.json").is_file():
        return [p for p in sorted(path.iterdir()) if p.is_dir() and is_minari(p)] or [path]
    return [path]


def data_info(path: Path, by: References, task: str | None = None, fields: Sequence[str] = ()) -> dict[str, Any]:
    """What is in logs, as JSON values.

    Args:
        by: what they are measured by; by default the data sets `random`, `expert` and `replay` beside them.
        task: the environment that they were taken in, whose spaces they must agree with.
        fields: of the logs, as in `task.columns=...`.

    Raises: DataError for logs with faults that nobody can have meant.
    """
    from etude.evaluation import data_measures as measures
    from etude.evaluation.off_policy.episodes import student

    logs = _logs(path, task, fields)
    own = {k: v for k, v in _references(path, by).items() if v is not None}
    others = {k: logs if v == path else _logs(v, task, fields) for k, v in own.items()}
    _alike(logs, others)
    returns = logs.returns
    lengths = _lengths(logs)
    counts, edges = measures.histogram(returns)
    floor = student(float(returns.mean()), returns)
    seen, done = logs.spaces.observation_space, logs.spaces.action_space
    return {
        "path": str(path), "fingerprint": logs.fingerprint, "rows": logs.rows, "episodes": logs.episodes,
        "observations": str(seen), "actions": str(done), "spaces_said_by": logs.spaces.said_by,
        "behaviour_logp": logs.behaviour_logp is not None,
        "ends": {"terminated": int(logs.terminated.sum()), "truncated": int(logs.truncated.sum())},
        "dropped": dict(logs.dropped), "notes": list(logs.notes),
        "length": {"least": int(lengths.min()), "mean": float(lengths.mean()), "most": int(lengths.max())},
        "return": {"least": float(returns.min()), "mean": float(returns.mean()), "most": float(returns.max())},
        "histogram": {"counts": counts, "edges": edges},
        "imitation": floor.to_json() | {"effective_sample_size": None}, "imitable": logs.imitable,
        "tq": _quality(logs, others), **_coverage(logs, others.get("reference")),
        "psv": measures.positive_sided_variance(returns), "effective_episodes": measures.effective_episodes(returns),
        "measured_by": {k: str(v) for k, v in own.items()},
    }  # fmt: skip


def dialogues_info(path: Path, model: str) -> dict[str, Any]:
    """What is in recorded dialogues, as JSON values.

    Args:
        model: by whose tokenizer tokens are counted; the token that ends each turn is one of them.

    Raises: DataError, with file and line, for a line that is no dialogue.
    """
    from etude.experience.dialogues import counted, read_dialogues
    from etude.policies.loading import load_tokenizer

    found, tokenizer = read_dialogues(path), load_tokenizer(model)
    tokens = {"said": 0, "shown": 0}
    for segment in (s for d in found for s in d.segments):
        mine, size = segment.role == "assistant", len(tokenizer.encode(segment.text, add_special_tokens=False))
        tokens["said" if mine else "shown"] += size + mine
    return {"path": str(path), **counted(found), "tokens": tokens, "tokens_by": model}


def _logs(path: Path, task: str | None, fields: Sequence[str]) -> Logs:
    allow = f"task.allow={','.join(MEANT)}"
    made: Any = compose_task(task or LOGS, [f"task.data={path}", allow, *fields])
    found: Logs = made.logs()
    return found


def _references(path: Path, by: References) -> dict[str, Path | None]:
    """Where each is, or stands beside the data."""
    beside = {k: path.parent / name for k, name in BESIDE.items()}
    return {k: Path(given) if (given := getattr(by, k)) else (p if p.is_dir() else None) for k, p in beside.items()}


def _alike(logs: Logs, others: dict[str, Logs]) -> None:
    for what, other in others.items():
        if (other.observations.shape[1], other.actions.shape[1]) != (logs.observations.shape[1], logs.actions.shape[1]):
            raise DataError(f"{other.where} ({what}) has other observations or actions than {logs.where}.")


def _lengths(logs: Logs) -> Any:
    import numpy as np

    return np.diff(np.concatenate([[-1], logs.ends]))


def _quality(logs: Logs, others: dict[str, Logs]) -> float | None:
    """TQ; None without both references."""
    from etude.evaluation.data_measures import trajectory_quality

    if "worst" not in others or "best" not in others:
        return None
    worst, best = (float(others[k].returns.mean()) for k in ("worst", "best"))
    return trajectory_quality(float(logs.returns.mean()), worst, best)


def _coverage(logs: Logs, reference: Logs | None) -> dict[str, Any]:
    """u, the unique pairs of state and action, and SACo and lSACo by a reference; without one, u by the own limits."""
    import numpy as np

    from etude.evaluation.data_measures import limits, pairs

    by = logs if reference is None else reference
    low, high = limits(by.observations, by.actions)
    u = len(pairs(logs.observations, logs.actions, low, high))
    if reference is None:
        return {"unique_pairs": u, "saco": None, "lsaco": None}
    whole = len(pairs(by.observations, by.actions, low, high))
    return {"unique_pairs": u, "saco": u / whole, "lsaco": float(np.log(u) / np.log(whole)) if whole > 1 else None}
