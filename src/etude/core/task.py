"""Tasks and language environments: what to get good at, and how it answers back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from etude.core.episodes import Episode, Message, Problem, Segment, StopReason
from etude.core.fields import Count
from etude.core.part import Part
from etude.core.worlds import World


class Environment(Protocol):
    """One episode's world. A single-turn task is an environment that ends after one step.

    Segments that it returns carry `role` and `text`; the rollout encodes them. The assistant segment that it is
    given carries the sampled tokens and their text. An environment may also offer `snapshot() -> Any` and
    `restore(state)` for branching and retry, and `tools()` to describe what can be called.
    """

    def reset(self, problem: Problem, seed: int) -> list[Segment]:
        """Start an episode; the first segments the policy sees."""
        ...

    def step(self, segment: Segment) -> StepResult:
        """Answer what the policy said."""
        ...


VALID = "valid"
"""Where the `info` of a step, and of the turn that it answers, says whether what was said could be done."""


@dataclass
class StepResult:
    """What a step returned: new segments, the reward of the policy's segment, and whether the episode is over.

    `terminated`: the outcome is there, and nothing follows. `truncated`: a limit of the environment's own stopped the
    episode before its outcome; with a critic it goes on with the value of what `segments` show.
    `info` may hold `success` (bool), `valid` (bool: what was said was understood and could be done) and numbers to log.
    Of an episode the last ones are kept, `valid` also of every turn, in the `info` of what was said.

    In a game of several players (`LanguageTask.players`) the reward is that of who has just spoken, and `segments` are
    shown to who speaks next: `player`, or the same again where that is empty. `pays` says what others earn by the step,
    each for the last thing that it said.
    """

    segments: list[Segment]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] | None = None
    player: str = ""
    pays: Mapping[str, float] = field(default_factory=dict)


class Task(Part, abstract=True):
    """Something to get good at. Its world decides which methods can be trained on it."""

    slot = "task"
    world: ClassVar[World] = World.LANGUAGE
    id: ClassVar[str] = ""
    together: ClassVar[bool] = False
    """Whether all seeds are members of one run."""

    def problems(self, split: str) -> Sequence[Problem]:
        """The pool of a split ('train', 'test', ...): indexable, with a length; made lazily where it is large.

        Raises UnknownNameError for a split it does not have.
        """
        raise NotImplementedError

    def splits(self) -> tuple[str, ...]:
        """Names of the splits; 'train' is trained on, the others are evaluated."""
        return ("train", "test")

    def needs_reward(self) -> str | None:
        """Why nothing says how good an outcome is, as a sentence; None if the task scores by itself."""
        return None

    def evaluated(self) -> tuple[str, ...]:
        """Of a run 'before', 'between' its steps and 'after' it: when it is measured how good what is trained is."""
        return () if self.needs_reward() else ("before", "between", "after")

    def warnings(self) -> list[str]:
        """What the user should know before a run, as sentences."""
        return []


class Toolbox(Part, abstract=True):
    """What can be called in a task's episodes besides what its environments answer by themselves.

    Args:
        turns: turns of an episode of a task that would end after one: calls, and what is said in the end.
    """

    slot = "tools"

    turns: Count = 6

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of what is called that may be the user's own Python, as 'file.py' or 'file.py:name'."""
        return ()

    @property
    def ends(self) -> tuple[str, ...]:
        """Strings that end what the policy says, besides the task's own, so that a call is answered at once."""
        return ()

    def around(self, environment: Environment, task: LanguageTask) -> Environment:
        """The environment with these tools in reach."""
        raise NotImplementedError


class LanguageTask(Task, abstract=True):
    """A task whose episodes are text.

    A single-turn task defines `score`; a multi-turn one overrides `environment`.

    Args:
        add_bos: whether plain-text prompts begin with the tokenizer's beginning-of-text token; None for as the
            tokenizer does it by itself. A conversation begins as its chat template says.
        chat: whether prompts that are text are shown as a user's message, through the model's chat template: 'auto',
            if it has one; 'always', or stop; 'never', as plain text.
        system: a file whose text is the system's message, before all others.
        template_arguments: what the chat template is given besides, as in 'enable_thinking=false'.
        tools: what the policy can call (`--tools my_tools.py`).
    """

    add_bos: bool | None = field(default=None, kw_only=True)
    chat: Literal["auto", "always", "never"] = field(default="auto", kw_only=True)
    system: str | None = field(default=None, kw_only=True)
    template_arguments: tuple[str, ...] = field(default=(), kw_only=True)
    tools: Toolbox | None = field(default=None, kw_only=True)

    max_tokens: ClassVar[int] = 64
    """Default limit of one completion."""
    max_turns: ClassVar[int] = 1
    """Turns of an episode, those of all players together."""
    players: ClassVar[tuple[str, ...]] = ()
    """Who takes turns in an episode, where several do; the first of them begins. Each sees what the environment shows
    it, has an episode of its own (`Episode.beside`), and is what `roles` make of it."""
    modes: ClassVar[tuple[str, str]] = ("<think>", "<no_think>")
    """How a completion begins that thinks before it answers, and one that does not, for policies that do both."""
    thought: ClassVar[tuple[str, str]] = ("<think>", "</think>")
    """How a thought begins that stands between a text and what comes next in it, and how it ends."""
    stop: ClassVar[tuple[str, ...]] = ()
    """Strings that end a completion (kept in it), besides the end-of-text token."""
    step_timeout: ClassVar[float] = 60.0
    """Seconds that the environment may take for one reset or step, before the run stops; or, in a worker process,
    before the process is replaced and the episode lost."""
    workers: ClassVar[int] = 0
    """Processes that step its environments, so many at once: for slow ones, which compute for long or wait. 0: in this
    process, one after another. Changes no number."""
    step_joint: ClassVar[str] = "\n"
    """What stands between the steps of a solution."""
    shows_how: ClassVar[bool] = True
    """Whether its worked completions are right; False: they show how somebody writes, well or badly."""
    by_arrival: ClassVar[bool] = False
    """Whether an episode goes on as soon as its environment has answered, though others have not: for `workers` whose
    answers take very different times. The clock then decides who is sampled with whom, so that a run comes to the same
    numbers again to rounding only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tools is not None and self.max_turns == 1:
            object.__setattr__(self, "max_turns", self.tools.turns)
        if self.tools is not None and self.tools.ends:
            object.__setattr__(self, "stop", (*type(self).stop, *self.tools.ends))

    @property
    def prompt_limit(self) -> int | None:
        """Longest prompt in tokens; None: what the model's context leaves. Fields of this name take its place."""
        return None

    @property
    def on_long_prompt(self) -> Literal["drop", "error"] | None:
        """What becomes of longer ones before training: 'drop', 'error', or None: they are met when they come."""
        return None

    def environment(self) -> Environment:
        """A fresh environment for one episode."""
        return SingleTurn(self)

    def played_in(self) -> Environment:
        """A fresh environment for one episode, with the task's tools in reach: what loops play in."""
        made = self.environment()
        return made if self.tools is None else self.tools.around(made, self)

    def score(self, problem: Problem, completion: str) -> float:
        """Reward of one completion."""
        raise NotImplementedError

    def expect(self, asked: Sequence[tuple[Problem, str]]) -> None:
        """Be told which completions of problems are about to be scored one by one, of tasks that read many at once."""

    def success(self, episode: Episode) -> bool:
        """Whether an episode counts as solved in accuracy and pass@k."""
        return bool(episode.info.get("success", episode.reward >= 1.0))

    def metrics(self, episode: Episode) -> Mapping[str, float]:
        """Numbers of an episode, such as how often it goes back: steps report means of them, as `task/NAME`."""
        return {}

    @property
    def judged_by_reward(self) -> bool:
        """Whether reward functions alone can tell what a success is, for want of answers."""
        return False

    def answer(self, completion: str) -> str:
        """The final answer inside a completion, for majority votes."""
        return completion.strip()

    def demonstration(self, problem: Problem) -> str | None:
        """A worked completion, where the task has one: what supervised methods learn from."""
        worked = problem.info.get("demonstration")
        return None if worked is None else str(worked)

    def solution_steps(self, completion: str) -> list[str]:
        """The steps of a solution, as a judge sees them: its lines."""
        return completion.strip().splitlines()

    def given_solutions(self, problem: Problem) -> list[tuple[list[str], int]]:
        """Solutions that a judge is tried on: their steps, and the number of the first wrong one from 0, -1 for none.

        `info` has one as `steps` and `label`.
        """
        steps, label = problem.info.get("steps"), problem.info.get("label")
        return [] if steps is None or label is None else [([str(step) for step in steps], int(label))]


def spoken(message: Message) -> Segment:
    """A message as a segment: its text, and in `info` that it is a message, whole where it is more than its text."""
    content = message.get("content")
    info: dict[str, Any] = {"message": True}
    if not isinstance(content, str) or message.keys() - {"role", "content"}:
        info["said"] = dict(message)
    return Segment(message["role"], plain(content), info=info)


def plain(content: object) -> str:
    """The text of a message's content; its parts are joined.

    >>> plain([{"type": "text", "text": "2 + "}, {"type": "text", "text": "2"}]), plain(None)
    ('2 + 2', '')
    """
    if isinstance(content, str):
        return content
    return "".join(str(part["text"]) for part in content) if isinstance(content, Sequence) else ""


class SingleTurn:
    """The environment of a task that ends after one completion."""

    def __init__(self, task: LanguageTask) -> None:
        self.task = task

    def reset(self, problem: Problem, seed: int) -> list[Segment]:
        self.problem = problem
        if isinstance(problem.prompt, str):
            opening = [Segment("user", problem.prompt)]
        else:
            opening = [spoken(m) for m in problem.prompt]
        if arguments := problem.info.get("template_arguments"):
            opening[0].info["arguments"] = dict(arguments)
        return opening

    def step(self, segment: Segment) -> StepResult:
        return StepResult([], reward=self.task.score(self.problem, segment.text), terminated=True)


__all__ = [
    "Environment", "Episode", "LanguageTask", "Problem", "SingleTurn", "StepResult", "StopReason", "Task", "Toolbox",
    "plain", "spoken",
]  # fmt: skip
