"""Rewards that users write: a plain function over completions, called in a process of its own.

    def score(completions, answers, **columns):
        return [float(c.strip() == a) for c, a in zip(completions, answers)]

`etude train grpo --task my_tasks.jsonl --reward my_rewards.py:score`, or `etude.train(..., reward=score)`. The
conventions are TRL's: the function gets lists, one item per completion, by the names of its parameters:

    completions            what the policy said, always text
    prompts                as the task gives them: text or a list of messages
    answers, levels, ids   of the problems
    messages               the whole conversation, prompt included, as a list of {"role", "content"}
    episodes               everything about each episode as JSON values (see `view`)
    any other name         that column of the data; `**columns` gets all of them

A function that asks for `completion` is called on each by itself, and gets that one's `prompt`, `answer`, `level`,
`id`, `messages`, `episode` and columns. A function may be async: those of one completion are awaited together.

A raised error, a missed deadline and a zero are three different outcomes, and each is counted.
"""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

from etude.core.episodes import Episode
from etude.core.errors import ConfigError, RewardError
from etude.core.fields import Positive, Probability, WholeNumber
from etude.core.slots import Context, Reward
from etude.rewards.calls import InvalidReturn, Limits, Signature
from etude.rewards.columns import columns
from etude.rewards.worker import Caller, InProcess
from etude.runtime.serving import CallFailed, Reason

RETRIES = 64
"""Calls that looking for the guilty completions of one batch may take."""
HANGS = 12
"""Of those, calls that may run into the deadline; halving finds one among 4096 in 12."""
BAD_AFTER = 100
"""Episodes that a run has seen before it asks what share of them has a bad reward."""
MARKS = {"drop": "dropped", "zero": "zeroed"}
"""What the state, and the info of an episode, call what became of a bad reward."""

Scores = dict[str, float | None]


@dataclass(frozen=True)
class Outcome:
    """What became of one completion: its components, or why there are none."""

    scores: Scores
    reason: Reason | None = None
    detail: str = ""
    suspects: tuple[int, ...] = ()
    """Rows of which one is to blame; more than one when no more could be found out."""

    @property
    def applies(self) -> bool:
        """Whether any component is a number; None is 'not applicable', as in TRL."""
        return any(v is not None for v in self.scores.values())

    @property
    def total(self) -> float:
        """Sum of the components that apply."""
        return sum(v for v in self.scores.values() if v is not None)


class FunctionReward(Reward):
    """A user's function, called in a worker process with a deadline.

    reward = weight * (sum of the components). A function that returns dicts, or a dict of lists, has named
    components: each is also left in `episode.scores['<function>/<component>']`, unweighted, as it was returned.
    A component that is None does not apply to the completion: it adds nothing and leaves no score. Where all of them
    are None the reward is None: a completion that no other reward judges is then left out of the step.

    A batch that fails is halved until the guilty completions are found, so the function should judge each
    completion on its own. `state` counts episodes by outcome: `zeros`, `not_applicable`, `failed` (raised, or ended
    its process), `timed_out`, `not_finite`, `dropped`, `zeroed`; and calls: `calls`, `recovered` (failed as a batch but
    not in parts), `rescored`, `disagreed`.

    Args:
        function: 'module:name' or 'path/to/file.py:name'.
        timeout: seconds that a call on a batch may take; importing the file has a limit of its own.
        weight: factor on the total, in reward units.
        on_bad_reward: what happens where the function raised, was late or returned what is not finite. 'stop' the run
            with an error that names the problem; 'drop' the episode: its reward is nan and `episode.info['dropped']`
            says why, so that the loop can leave it out before anything is averaged; or pay 'zero', which
            `episode.info['zeroed']` says.
        bad_share: the run stops all the same once more than this share of at least 100 episodes that the function
            applies to was bad; 1 for never.
        rescore_every: every so many calls, starting with the first, one completion is scored again, to see whether
            the function is deterministic; 0 never.

    Raises: ConfigError when a run starts and the function cannot be loaded; RewardError while it runs.

    Components of 1.0 and 0.5 make a reward of weight * 1.5:

    >>> FunctionReward(function="my_rewards.py:score", timeout=2.0, weight=2.0).weight * (1.0 + 0.5)
    3.0
    """

    function: str
    timeout: Positive = 10.0
    weight: float = 1.0
    on_bad_reward: Literal["stop", "drop", "zero"] = "stop"
    rescore_every: WholeNumber = 50
    bad_share: Probability = 0.01
    item_timeout: Positive | None = None
    column: str = ""

    def check(self) -> None:
        source, _, name = self.function.rpartition(":")
        if not source or not name.isidentifier():
            hint = f", such as '{self.function}:score'" if self.function.endswith(".py") else ""
            form = "'module:name' or 'path/to/file.py:name'"
            raise ConfigError(f"{type(self).__name__}.function must be {form}{hint}, got {self.function!r}.")

    @property
    def called(self) -> str:
        """What the function is called: 'score' of 'my_rewards.py:score'."""
        function: Any = self.function
        name = function.rpartition(":")[2] if isinstance(function, str) else getattr(function, "__name__", "function")
        return re.sub(r"\W", "", name)

    def initial_state(self) -> dict[str, Any]:
        counts = ("calls", "episodes", "zeros", "not_applicable", "failed", "timed_out", "not_finite", "dropped",
                  "zeroed", "recovered", "rescored", "disagreed")  # fmt: skip
        return dict.fromkeys(counts, 0)

    def bind(self) -> Self:
        """A run's copy, its function loaded. Raises ConfigError if that fails."""
        copy = super().bind()
        copy.start()
        return copy

    def start(self) -> Signature:
        """Load the function; what it is called and asks for.

        Raises: ConfigError if it cannot be loaded, or has no use for `item_timeout`.
        """
        asked = self._caller.start()
        if self.item_timeout is not None and not asked.single:
            raise ConfigError(
                f"{asked.name} takes a whole batch, so item_timeout={self.item_timeout:g} means nothing for it: have "
                "it ask for `completion` to be called on each, or leave item_timeout out."
            )
        return asked

    def close(self) -> None:
        """End the worker process. It also ends when the part is forgotten, and with this process."""
        self._caller.close()

    @cached_property
    def _caller(self) -> Caller | InProcess:
        return Caller(self.function)

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float | None]:
        """One reward per episode, None where no component applies, nan if it was dropped. Raises RewardError."""
        if not episodes:
            return []
        arguments = columns(episodes, self.start())
        outcomes = self._settle(arguments, len(episodes))
        self._count(outcomes.values())
        if bad := sorted(i for i, o in outcomes.items() if o.reason):
            if self.on_bad_reward == "stop":
                raise self._error(outcomes[bad[0]], [episodes[i] for i in outcomes[bad[0]].suspects], context)
            self._forgive([(episodes[i], outcomes[i]) for i in bad])
        self._rescore(arguments, outcomes)
        return [self._pay(e, outcomes[i]) for i, e in enumerate(episodes)]

    def _pay(self, episode: Episode, outcome: Outcome) -> float | None:
        name = self.column or self.start().name
        episode.scores.update({f"{name}/{k}": v for k, v in outcome.scores.items() if k and v is not None})
        if outcome.reason:
            return math.nan if self.on_bad_reward == "drop" else 0.0
        return self.weight * outcome.total if outcome.applies else None

    # Finding out what each completion is worth

    def _settle(self, arguments: Mapping[str, list[Any]], count: int) -> dict[int, Outcome]:
        """Outcomes by row. A batch that fails is halved, depth first; under 'stop' it ends with the first culprit."""
        outcomes: dict[int, Outcome] = {}
        waiting, spent = [list(range(count))], Counter[str]()
        while waiting:
            rows = waiting.pop()
            try:
                outcomes.update(self._call(arguments, rows))
            except CallFailed as failure:
                spent.update(["calls", failure.reason])
                if len(rows) > 1 and spent["calls"] < RETRIES and spent[Reason.TIMED_OUT] < HANGS:
                    half = len(rows) // 2
                    waiting += [rows[half:], rows[:half]]
                    continue
                suspects = tuple(rows)
                outcomes.update({i: Outcome({}, failure.reason, failure.detail, suspects) for i in rows})
                if self.on_bad_reward == "stop":
                    break
        self.state["calls"] += 1
        self.state["recovered"] += bool(spent) and not any(o.reason in spent for o in outcomes.values())
        return outcomes

    def _call(self, arguments: Mapping[str, list[Any]], rows: Sequence[int]) -> dict[int, Outcome]:
        part = {k: [v[i] for i in rows] for k, v in arguments.items()}
        try:
            reply = self._caller.call(part, len(rows), Limits(self.timeout, self.item_timeout))
        except InvalidReturn as error:  # a mistake in the function, whatever it was given: never forgiven
            raise RewardError(str(error)) from None
        found = {row: _outcome({k: v[i] for k, v in reply.components.items()}, row) for i, row in enumerate(rows)}
        return found | {rows[i]: Outcome({}, *why, (rows[i],)) for i, why in reply.failed.items()}

    def _rescore(self, arguments: Mapping[str, list[Any]], outcomes: Mapping[int, Outcome]) -> None:
        """Score one completion again, alone, and warn the first time that the answer is another."""
        calls, fine = self.state["calls"] - 1, [i for i in sorted(outcomes) if not outcomes[i].reason]
        if not self.rescore_every or calls % self.rescore_every or not fine:
            return
        row = fine[calls // self.rescore_every % len(fine)]
        try:
            again = self._call(arguments, [row])[row]
        except CallFailed as failure:
            again = Outcome({}, failure.reason)
        self.state["rescored"] += 1
        if again.reason is None and math.isclose(again.total, outcomes[row].total, rel_tol=1e-6, abs_tol=1e-9):
            return
        if not self.state["disagreed"]:
            second = f"nothing ({again.reason})" if again.reason else f"{again.total:g}"
            warnings.warn(
                f"{self.start().name} gave the same completion {outcomes[row].total:g} and then {second}: it depends "
                "on chance, on the time, or on the other completions of the batch.", stacklevel=3,
            )  # fmt: skip
        self.state["disagreed"] += 1

    # What happens to bad rewards

    def _count(self, outcomes: Collection[Outcome]) -> None:
        reasons = Counter(o.reason for o in outcomes)
        self.state["episodes"] += len(outcomes)
        self.state["zeros"] += sum(o.applies and o.total == 0 for o in outcomes)
        declined = sum(o.reason is None and not o.applies for o in outcomes)
        self.state["not_applicable"] = self.state.get("not_applicable", 0) + declined  # older checkpoints lack it
        self.state["failed"] += reasons[Reason.RAISED] + reasons[Reason.DIED]
        self.state["timed_out"] += reasons[Reason.TIMED_OUT]
        self.state["not_finite"] += reasons[Reason.NOT_FINITE]

    def _forgive(self, bad: Sequence[tuple[Episode, Outcome]]) -> None:
        """Mark and count the episodes that go on without a reward. Raises RewardError for too large a share."""
        state, mark = self.state, MARKS[self.on_bad_reward]
        for episode, outcome in bad:
            episode.info[mark] = f"reward {outcome.reason}"
        state[mark] = state.get(mark, 0) + len(bad)  # older checkpoints lack it
        judged, lost = state["episodes"] - state["not_applicable"], state["dropped"] + state.get("zeroed", 0)
        if judged >= BAD_AFTER and lost > self.bad_share * judged:
            raise RewardError(
                f"{self.start().name} had no reward for {lost} of {judged} episodes so far "
                f"({state['failed']} failed, {state['timed_out']} timed out, {state['not_finite']} not finite), which "
                f"is more than {self.bad_share:.4g} of them (bad_share). The last one {bad[-1][1].detail}"
            )

    def _error(self, outcome: Outcome, episodes: Sequence[Episode], context: Context) -> RewardError:
        """The error that names problem, task and completion."""
        ids = ", ".join(repr(e.problem.id) for e in episodes[:5]) + ", ..." * (len(episodes) > 5)
        which = f"problem {ids}" if len(episodes) == 1 else f"one of the problems {ids}"
        task = getattr(context.task, "id", "") or getattr(context.task, "name", "")
        texts = [e.completion for e in episodes]
        error = RewardError(
            f"{self.start().name}, on {which} of task {task!r}, {outcome.detail}\n"
            f"The {'first ' * (len(texts) > 1)}completion was {_quote(texts[0])}. "
            "Mend the function, or set on_bad_reward='drop' or 'zero'."
        )
        error.completion = texts[0] if len(texts) == 1 else texts
        return error


class CallableReward(FunctionReward):
    """A user's function, called in this process: for a lambda, or a function of a notebook or script.

    Everything is as in FunctionReward, but nothing can stop a function that is not async: past `timeout` there is only
    a warning. Put the function in a file to give it a deadline.

    >>> from etude.core.episodes import Problem, Segment
    >>> episode = Episode(Problem("sum/1", "1+1=", "2"), [Segment("assistant", "2")])
    >>> part = CallableReward(function=lambda completions, answers: [float(completions == answers)], weight=0.5).bind()
    >>> part.score([episode], None)
    [0.5]
    """

    function: Callable[..., Any]  # type: ignore[assignment]  # its parent's is a name

    def __post_init__(self) -> None:
        if isinstance(self.function, str):
            raise ConfigError(
                f"The reward {self.function!r} was a function of a notebook or script: give it again from Python, or "
                "put it in a file and name it 'file.py:name'."
            )
        super().__post_init__()

    def check(self) -> None:
        """Any callable will do; `start` looks at its parameters."""

    def start(self) -> Signature:
        """What the function asks for. Raises ConfigError if it cannot be called, or not be interrupted."""
        asked = super().start()
        if self.item_timeout is not None and not asked.awaits:
            raise ConfigError(
                f"{asked.name} runs in this process, which cannot interrupt it, so item_timeout means nothing for it: "
                f"put it in a file and name it 'file.py:{asked.name}', or make it async."
            )
        return asked

    def to_json(self) -> dict[str, Any]:
        name = f"{getattr(self.function, '__module__', '')}.{getattr(self.function, '__qualname__', self.function)}"
        return {**super().to_json(), "function": name}

    @cached_property
    def _caller(self) -> Caller | InProcess:
        return InProcess(self.function)


def _outcome(scores: Scores, row: int) -> Outcome:
    """The outcome of a call that returned numbers: none if their sum is not finite."""
    outcome = Outcome(scores)
    if math.isfinite(outcome.total):
        return outcome
    bad = {k: v for k, v in scores.items() if v is not None and not math.isfinite(v)} or scores
    shown = " and ".join(f"{v} for its component {k!r}" if k else f"{v}" for k, v in bad.items())
    return Outcome({}, Reason.NOT_FINITE, f"returned {shown}.", (row,))


def _quote(text: str) -> str:
    """A completion on one line, its middle cut out if it is long."""
    return repr(text if len(text) <= 600 else f"{text[:300]} [...] {text[-300:]}")
