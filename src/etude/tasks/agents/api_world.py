"""API-world: three apps, notes, contacts and wallet, behind a dozen calls, one per turn; tests look at what is left.

     pay note 3                     read 3
     ben 4                          find ben
     ben 6                          doc pay
     pay account amount             pay 6 4
     ok                             done

The amount and the account of a payment are numbers alike, and each problem draws which comes first in a call: `doc`
says so, and nothing else does. What was paid to the wrong account stays paid. `done` ends the game; then each app has
to be as it would be had only the task been done, so everything that was done besides makes a test fail.

| app | calls |
|---|---|
| notes | `list`, `read N`, `write N NAME AMOUNT`, `erase N` |
| contacts | `people`, `find NAME`, `save NAME ACCOUNT`, `forget NAME` |
| wallet | `balance`, `pay X Y`, `ask X Y` |
| all | `doc CALL`, `done` |

What cannot be done is answered with `error` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Annotated, Any, ClassVar, Literal

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.errors import ConfigError
from etude.core.fields import Count, Interval, NonNegative, Probability
from etude.policies.agent_words import CALLS, PEOPLE_OF_APPS
from etude.tasks.agents.games import Game, Heard, Posed, TurnTask, one_of, some_of, spaced

Kind = Literal["pay person", "pay note", "pay and erase", "copy note", "save person", "ask person"]
KINDS: tuple[Kind, ...] = ("pay person", "pay note", "pay and erase", "copy note", "save person", "ask person")
ORDERS = (("account", "amount"), ("amount", "account"))
Apps = dict[str, Any]
"""The state of the three apps, as JSON values: `notes` by number, `contacts` by name, `balance`, `paid`, `asked`."""


class APIWorld(TurnTask):
    """Tasks of two to five calls on three apps; 1 if all tests pass in the end, or the share that do.

    A test for each thing that was to be done, and one for each app, that nothing else of it has changed.

    Args:
        kinds: tasks; each problem draws one of these.
        notes: how many there are at the beginning.
        pays: 'success', 1 if all tests pass, or 'tests', the share that do; both at `done` alone.
        penalty: with 'tests' what each call takes off that could not be done, down to 0.
        hasty: share of the scripts that guess which argument comes first instead of asking.
        max_turns, slips, seed: as of `TurnTask`.

    Splits: 'train' and 'test', which share no contacts; what is asked may be the same in words. Levels say how many
    calls are needed, `done` included.
    `info` of a step: `failed`, calls so far that could not be done; `tests`, the share that passes, at the end.

    >>> from etude.core.episodes import Segment
    >>> game, problem = api_world.environment(), api_world.problems("test")[0]
    >>> [game.reset(problem, 0)[0].text, game.step(Segment("assistant", " doc pay")).segments[0].text]
    [' pay note 4\\n', ' pay account amount\\n']
    """

    id: ClassVar[str] = "api-world"
    max_tokens: ClassVar[int] = 6

    kinds: tuple[Kind, ...] = KINDS
    notes: Annotated[int, Interval(ge=2, le=6)] = 4
    pays: Literal["success", "tests"] = "success"
    penalty: NonNegative = 0.0
    hasty: Probability = 0.0
    max_turns: Count = 10  # type: ignore[misc]

    def check(self) -> None:
        if not self.kinds:
            raise ConfigError("APIWorld.kinds must have at least one task, got none.")
        if self.max_turns < 6:
            raise ConfigError(f"APIWorld.max_turns must be at least 6, which the longest task takes, got "
                              f"{self.max_turns}.")  # fmt: skip

    def posed(self, random: Generator) -> Posed:
        """Apps with something in them, and a task; two notes are never by the same person."""
        known = some_of(random, PEOPLE_OF_APPS, 5)
        notes = {str(n + 1): [p, _digit(random)] for n, p in enumerate(some_of(random, known, min(self.notes, 5)))}
        apps: Apps = {
            "notes": notes, "contacts": dict(zip(known, map(str, some_of(random, range(10), 5)))),
            "balance": int(random.integers(10, 100)), "paid": [], "asked": [],
        }  # fmt: skip
        orders = {call: list(one_of(random, ORDERS)) for call in ("pay", "ask")}
        kind: Kind = one_of(random, self.kinds)
        words, wanted = _task(kind, apps, random)
        info = {"kind": kind, "apps": apps, "wanted": wanted, "orders": orders}
        calls = len(_plan(kind, words, apps, orders, asks=True)) + 1
        return Posed(spaced(*words) + "\n", None, f"calls{calls}", info)

    def divided(self, posed: Posed) -> str:
        return str(sorted(posed.info["apps"]["contacts"].items()))

    def environment(self) -> Phone:
        return Phone(self)


def _digit(random: Generator) -> str:
    return str(random.integers(1, 10))


def _task(kind: Kind, apps: Apps, random: Generator) -> tuple[list[str], list[list[str]]]:
    """What is asked for, in words, and what has to be done: effects, as `_applied` reads them."""
    number, person, amount = one_of(random, [*apps["notes"]]), one_of(random, [*apps["contacts"]]), _digit(random)
    whom, sum_of_note = apps["notes"][number]
    match kind:
        case "pay person" | "ask person":
            verb = kind.split()[0]
            return [verb, person, amount], [[verb, apps["contacts"][person], amount]]
        case "pay note":
            return ["pay", "note", number], [["pay", apps["contacts"][whom], sum_of_note]]
        case "pay and erase":
            paid = ["pay", apps["contacts"][whom], sum_of_note]
            return ["pay", "note", number, "and", "erase"], [paid, ["erase", number]]
        case "copy note":
            to = str(int(random.integers(7, 10)))
            return ["copy", "note", number, "to", to], [["write", to, whom, sum_of_note]]
        case "save person":
            new = one_of(random, [p for p in PEOPLE_OF_APPS if p not in apps["contacts"]])
            account = str(random.integers(10))
            return ["save", new, account], [["save", new, account]]


def _applied(apps: Apps, effects: Sequence[Sequence[str]]) -> Apps:
    """The apps after these were done, and nothing else."""
    after = deepcopy(apps)
    for effect in effects:
        match [*effect]:
            case ["pay", account, amount]:
                after["paid"].append([account, amount])
                after["balance"] -= int(amount)
            case ["ask", account, amount]:
                after["asked"].append([account, amount])
            case ["write", number, name, amount]:
                after["notes"][number] = [name, amount]
            case ["erase", number]:
                after["notes"].pop(number, None)
            case ["save", name, account]:
                after["contacts"][name] = account
            case ["forget", name]:
                after["contacts"].pop(name, None)
    return after


def final_tests(before: Apps, wanted: Sequence[Sequence[str]], after: Apps) -> dict[str, bool]:
    """What is looked at in the end: that each thing was done, and that every app is as it would be had only that been.

    >>> before = {"notes": {}, "contacts": {"ben": "6"}, "balance": 9, "paid": [], "asked": []}
    >>> twice = {**before, "balance": 1, "paid": [["6", "4"], ["6", "4"]]}
    >>> final_tests(before, [["pay", "6", "4"]], twice)
    {'pay 6 4': True, 'notes': True, 'contacts': True, 'wallet': False}
    """
    right = _applied(before, wanted)
    wallet = ("balance", "paid", "asked")
    return {
        **{" ".join(effect): _done(effect, after) for effect in wanted},
        "notes": after["notes"] == right["notes"],
        "contacts": after["contacts"] == right["contacts"],
        "wallet": all(after[part] == right[part] for part in wallet),
    }


def _done(effect: Sequence[str], after: Apps) -> bool:
    """Whether something was done, whatever else was."""
    match [*effect]:
        case ["pay", *what]:
            return what in after["paid"]
        case ["ask", *what]:
            return what in after["asked"]
        case ["write", number, *what]:
            return bool(after["notes"].get(number) == what)
        case ["erase", number]:
            return number not in after["notes"]
        case ["save", name, account]:
            return bool(after["contacts"].get(name) == account)
    return False


def _plan(kind: Kind, words: Sequence[str], apps: Apps, orders: Mapping[str, Sequence[str]], asks: bool) -> list[str]:
    """The calls of somebody who does the task, each as its words with spaces between, without `done`."""
    number = words[2]
    match kind:
        case "save person":
            return [f"save {words[1]} {words[2]}"]
        case "copy note":
            name, amount = apps["notes"][number]
            return [f"read {number}", f"write {words[4]} {name} {amount}"]
        case "pay person" | "ask person":
            verb, name, amount = words
            return [f"find {name}", *_sent(verb, apps["contacts"][name], amount, orders, asks)]
    name, amount = apps["notes"][number]
    calls = [f"read {number}", f"find {name}", *_sent("pay", apps["contacts"][name], amount, orders, asks)]
    return [*calls, f"erase {number}"] if kind == "pay and erase" else calls


def _sent(verb: str, account: str, amount: str, orders: Mapping[str, Sequence[str]], asks: bool) -> list[str]:
    first, second = (account, amount) if orders[verb][0] == "account" else (amount, account)
    return [f"doc {verb}"] * asks + [f"{verb} {first} {second}"]


class Phone(Game):
    """One game. `state`: the apps `before` and `now`, the `kind` of task, its `words`, and what its script follows."""

    def __init__(self, task: APIWorld) -> None:
        super().__init__(task)
        self.task = task

    def begun(self, problem: Problem) -> dict[str, Any]:
        info = problem.info
        return {
            "before": deepcopy(info["apps"]), "now": deepcopy(info["apps"]), "wanted": deepcopy(info["wanted"]),
            "orders": deepcopy(info["orders"]), "kind": info["kind"], "words": str(problem.prompt).split(),
            "failed": 0, "plan": None,
        }  # fmt: skip

    def said(self, words: Sequence[str]) -> Heard:
        if [*words] == ["done"]:
            return self._judged()
        reply = self._called([*words])
        self.state["failed"] += reply is None
        return Heard(spaced(reply or "error"), valid=reply is not None, more={"failed": self.state["failed"]})

    def _called(self, words: list[str]) -> str | None:
        """What a call returns; None where it cannot be done."""
        now, orders = self.state["now"], self.state["orders"]
        match words:
            case ["list"]:
                return " ".join(now["notes"]) or "none"
            case ["people"]:
                return " ".join(now["contacts"]) or "none"
            case ["balance"]:
                return " ".join(str(now["balance"]))  # digit by digit
            case ["read", number] if number in now["notes"]:
                return " ".join(now["notes"][number])
            case ["find", name] if name in now["contacts"]:
                return f"{name} {now['contacts'][name]}"
            case ["doc", "pay" | "ask" as call]:
                return f"{call} {' '.join(orders[call])}"
            case ["doc", call] if call in CALLS:
                return f"{call} {' '.join(CALLS[call])}".strip()
            case ["pay" | "ask" as call, x, y] if _number(x) and _number(y):
                account, amount = (x, y) if orders[call][0] == "account" else (y, x)
                if call == "pay" and int(amount) > now["balance"]:
                    return None
                effect = [call, account, amount]
            case ["write", number, name, amount] if _number(number) and name in PEOPLE_OF_APPS and _number(amount):
                effect = words
            case ["save", name, account] if name in PEOPLE_OF_APPS and _number(account):
                effect = words
            case ["erase", number] if number in now["notes"]:
                effect = words
            case ["forget", name] if name in now["contacts"]:
                effect = words
            case _:
                return None
        self.state["now"] = _applied(now, [effect])
        return "ok"

    def _judged(self) -> Heard:
        found = [*final_tests(self.state["before"], self.state["wanted"], self.state["now"]).values()]
        share = sum(found) / len(found)
        reward = float(all(found))
        if self.task.pays == "tests":
            reward = max(0.0, share - self.task.penalty * self.state["failed"])
        more = {"failed": self.state["failed"], "tests": share}
        return Heard(spaced("over"), reward, True, all(found), more=more)

    def best(self, random: Generator) -> str:
        """The next call of its script; what was said besides, by somebody else, stays done."""
        state = self.state
        if state["plan"] is None:
            orders, asks = state["orders"], random.random() >= self.task.hasty
            if not asks:
                orders = {call: one_of(random, ORDERS) for call in orders}
            state["plan"] = _plan(state["kind"], state["words"], state["before"], orders, asks)
        return spaced(*(state["plan"].pop(0).split() if state["plan"] else ["done"]))

    def anything(self, random: Generator) -> str:
        call = one_of(random, [*CALLS, "done"])
        drawn = {
            "number": str(1 + random.integers(self.task.notes)), "name": one_of(random, PEOPLE_OF_APPS),
            "amount": _digit(random), "account": str(random.integers(10)), "call": one_of(random, [*CALLS]),
        }  # fmt: skip
        return spaced(call, *(drawn[kind] for kind in CALLS.get(call, ())))

    def tools(self) -> list[dict[str, Any]]:
        """What can be said."""
        examples = {"number": "3", "name": "ben", "amount": "4", "account": "6", "call": "pay"}
        shown = {call: spaced(call, *(examples[kind] for kind in kinds)) for call, kinds in CALLS.items()}
        return [
            *({"name": c, "example": shown[c], "arguments": {k: "a word" for k in CALLS[c]}} for c in CALLS),
            {"name": "done", "example": " done", "arguments": {}},
        ]


def _number(word: str) -> bool:
    return len(word) == 1 and word in "0123456789"


api_world = APIWorld()
