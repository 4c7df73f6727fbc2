"""Recorded dialogues with rewards, a line of JSON for each: who said what, and what each turn was paid.

    {"segments": [{"role": "user", "text": " goal 4 3\\n at 2 3\\n"},
                  {"role": "assistant", "text": " right", "reward": -0.1},
                  {"role": "user", "text": " at 3 3\\n"},
                  {"role": "assistant", "text": " right", "reward": 1.0}],
     "stop": "terminated", "success": true}

`stop` is 'terminated' (by itself), or 'truncated' where a limit stopped it and it could have gone on. `success`, `id`
and `level` may be left out. A reward stands at the turn that was paid.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

from etude.core.episodes import Role, Segment, StopReason
from etude.core.errors import DataError, nearest
from etude.runtime import disk

STOPS = (StopReason.TERMINATED.value, StopReason.TRUNCATED.value)
KEYS = ("segments", "stop", "success", "id", "level")
OF_SEGMENT = ("role", "text", "reward")
SHOWN = 10
"""Faults that an error lists."""


@dataclass(frozen=True)
class Dialogue:
    """One recorded dialogue.

    Args:
        segments: what was said, with the reward of each turn of the assistant.
        truncated: whether a limit stopped it, so that it could have gone on.
        success: whether it came out well; None: nobody said.
    """

    segments: Sequence[Segment]
    truncated: bool = False
    success: bool | None = None
    id: str = ""
    level: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rewards(self) -> list[float]:
        """Of each turn of the assistant."""
        return [s.reward for s in self.segments if s.role == "assistant"]

    @property
    def total(self) -> float:
        """The return: all rewards, undiscounted."""
        return sum(self.rewards)

    @property
    def opening(self) -> str:
        """What was shown before the assistant said anything."""
        first = next(i for i, s in enumerate(self.segments) if s.role == "assistant")
        return "".join(s.text for s in self.segments[:first])

    def to_json(self) -> dict[str, Any]:
        """The object that stands in a line."""
        said = [
            {"role": s.role, "text": s.text, **({"reward": s.reward} if s.role == "assistant" else {})}
            for s in self.segments
        ]
        stop = StopReason.TRUNCATED if self.truncated else StopReason.TERMINATED
        named = {
            k: v for k, v in {"id": self.id, "level": self.level, "success": self.success}.items() if v or v is False
        }
        return {"segments": said, "stop": stop.value, **named}


def recorded(segments: Sequence[Segment], **known: Any) -> Dialogue:
    """A written episode as a dialogue; whether it was truncated its last segment says (`info["stop"]`)."""
    return Dialogue(segments, segments[-1].info.get("stop") == StopReason.TRUNCATED, **known)


def is_dialogues(path: str | Path) -> bool:
    """Whether a file of JSON lines has dialogues with rewards: the first of its lines has `segments`."""
    if not str(path).endswith(".jsonl") or not Path(path).is_file():
        return False
    with Path(path).open("rb") as lines:
        first = next((line for line in lines if line.strip()), b"")
    try:
        found = json.loads(first)
    except ValueError:
        return False
    return isinstance(found, dict) and "segments" in found


def write_dialogues(path: Path, dialogues: Iterable[Dialogue]) -> None:
    """Write a line for each."""
    lines = [json.dumps(d.to_json(), ensure_ascii=False, allow_nan=False) for d in dialogues]
    disk.replace_file(path, "".join(f"{line}\n" for line in lines).encode())


def read_dialogues(path: str | Path) -> list[Dialogue]:
    """All dialogues of a file, in order.

    Raises: DataError, with file, line and what to do, for a file that is not there, is empty, or has a line that is no
        dialogue.
    """
    try:
        text = Path(path).read_text("utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"There is no file {path}: name one of JSON lines, each a dialogue with 'segments'.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}): save it as UTF-8.") from None
    found, faults = [], list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(_dialogue(line, number))
        except ValueError as error:
            faults.append(f"{path}:{number}: {error}")
    if faults:
        more = f"\n... and {len(faults) - SHOWN} more." if len(faults) > SHOWN else ""
        raise DataError("\n".join(faults[:SHOWN]) + more)
    if not found:
        raise DataError(f"{path} is empty: every line is a dialogue, a JSON object with 'segments'.")
    return found


def _dialogue(line: str, number: int) -> Dialogue:
    """One line. Raises ValueError, in a sentence, for what is no dialogue."""
    try:
        values = json.loads(line, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise ValueError(f"this is no JSON object ({error.msg}).") from None
    if not isinstance(values, dict):
        raise ValueError(f"a line must be a JSON object with 'segments', got {values!r:.60}.")
    _known(values, KEYS, "dialogue")
    if not isinstance(said := values.get("segments"), list) or not said:
        raise ValueError("'segments' must be a list of who said what, and is missing or empty.")
    segments = [_segment(one, place) for place, one in enumerate(said)]
    if not any(s.role == "assistant" for s in segments):
        raise ValueError("nothing is said by the assistant, so there is nothing to learn: give a segment that role.")
    if segments[0].role == "assistant":
        raise ValueError("the first segment is the assistant's, which answers to nothing: begin with what was shown.")
    if (stop := values.get("stop", STOPS[0])) not in STOPS:
        raise ValueError(f"'stop' must be one of {', '.join(STOPS)}, got {stop!r}.")
    if not isinstance(success := values.get("success"), bool | None):
        raise ValueError(f"'success' must be true or false, got {success!r}.")
    named = str(values.get("id", number))
    return Dialogue(segments, stop == StopReason.TRUNCATED, success, named, str(values.get("level", "")))


def _segment(values: Any, place: int) -> Segment:
    where = f"segment {place}"
    if not isinstance(values, dict):
        raise ValueError(f"{where} must be an object with 'role' and 'text', got {values!r:.60}.")
    _known(values, OF_SEGMENT, where)
    if (role := values.get("role")) not in get_args(Role):
        raise ValueError(f"the role of {where} must be one of {', '.join(get_args(Role))}, got {role!r}.")
    if not isinstance(text := values.get("text"), str):
        raise ValueError(f"the text of {where} must be text, got {text!r:.60}.")
    reward = values.get("reward", 0.0)
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise ValueError(f"the reward of {where} must be a finite number, got {reward!r}.")
    if reward and role != "assistant":
        raise ValueError(f"{where} is the {role}'s and has a reward: put it at the assistant's turn that earned it.")
    return Segment(cast(Role, role), text, reward=float(reward))


def _known(values: Mapping[str, Any], names: Sequence[str], what: str) -> None:
    for name in values:
        if name not in names:
            close = nearest(name, names, 1)
            offer = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}."
            raise ValueError(f"{what} has no {name!r}; {offer}")


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no finite number.")


def counted(dialogues: Sequence[Dialogue]) -> dict[str, Any]:
    """What is in dialogues, as JSON values: episodes, turns, ends, rewards of turns and returns."""
    rewards, totals = [r for d in dialogues for r in d.rewards], [d.total for d in dialogues]
    turns = [len(d.rewards) for d in dialogues]
    told = [d.success for d in dialogues if d.success is not None]
    return {
        "episodes": len(dialogues), "turns": sum(turns), "turns_of_episodes": _spread(turns),
        "ends": dict(Counter(STOPS[d.truncated] for d in dialogues)), "rewarded_turns": sum(r != 0 for r in rewards),
        "rewards": _spread(rewards), "returns": _spread(totals), "success": sum(told) / len(told) if told else None,
    }  # fmt: skip


def _spread(numbers: Sequence[float]) -> dict[str, float]:
    return {"least": min(numbers), "mean": sum(numbers) / len(numbers), "most": max(numbers)}
