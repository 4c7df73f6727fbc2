"""What answers took: said by environments and tools, written to turns, reported, and fed to rewards and credit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from etude.advantages.durations import DurationFactors
from etude.advantages.turns import Turns, TurnWeights
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError
from etude.core.meters import Used, durations, metering, spend, taken, total
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import SingleTurn
from etude.evaluation.report_rollouts import render
from etude.experience.groups import Groups
from etude.experience.rollout import fresh, rollout
from etude.experience.toolbox import ToolCalls
from etude.methods.rlvr.grpo import grpo
from etude.policies.sampling import Sampling
from etude.rewards.meters import UsePenalty
from language_toys import Toy, make_loop, random_policy
from slow_worlds import Slow

TOOLS = str(Path(__file__).parents[1] / "experience" / "my_handy_tools.py")
CONSULT = '<tool_call>{"name": "consult", "arguments": {"question": "why?"}}</tool_call>'


def turn(*used: float, seconds: float = 0.0) -> Segment:
    return Segment("assistant", "a", [7], [1], [-1.0], duration=seconds, info={"used": list(used)} if used else {})


def episode(*turns: Segment) -> Episode:
    return Episode(Problem("p", "?"), [Segment("user", "?", [5], [0], [0.0]), *turns])


def played(task: Slow) -> list[Episode]:
    starts = fresh(task.problems("train"), 2, Stream(0))
    return rollout(starts, Context(task, random_policy(), Stream(0)), Sampling(max_tokens=task.max_tokens))


@pytest.mark.parametrize("wrong", [{"seconds": -1.0}, {"cost": math.inf}, {"tokens": math.nan}, {"cost": True}])
def test_what_is_no_amount_is_refused(wrong: dict[str, Any]) -> None:
    with metering() as meter, pytest.raises(ConfigError, match=f"spend: {next(iter(wrong))} must be a finite number"):
        spend(**wrong)
    assert meter.used is None
    spend(seconds=1.0)  # nobody asks: nothing happens


@pytest.mark.slow
def test_environments_say_it_turn_by_turn() -> None:
    for e in played(Slow(price=0.5)):
        said = [s for s in e.segments if s.role == "assistant"]
        assert [s.info["used"] for s in said] == [[0.5 * len(s.text), 0.25, 0] for s in said]
        assert [s.duration for s in said] == [0.5 * len(s.text) for s in said], "simulated, whatever really passed"
        assert total(e) == Used(0.5 * sum(len(s.text) for s in said), 0.25 * len(said), 0)
    free = played(Slow())
    assert all("used" not in s.info for e in free for s in e.segments) and taken(free) == {}
    assert any(s.duration > 0 for s in free[0].segments), "the time that passed"


@pytest.mark.slow
def test_tools_say_it_and_calls_have_prices() -> None:
    box = ToolCalls(functions=f"{TOOLS}:consult", seconds=20.0, prices=("consult=0.5",))
    game = box.around(SingleTurn(Toy()), Toy())
    game.reset(Problem("1", "?"), 0)
    with metering() as meter:
        assert game.step(Segment("assistant", CONSULT * 2)).segments[1].text == "ask me later"
    assert meter.used == Used(4.0, 1.5, 8)
    with metering() as meter:
        game.step(Segment("assistant", CONSULT.replace("question", "query")))  # refused before it is made
    assert meter.used is None
    with pytest.raises(ConfigError, match=r"no tool 'find' to have a price. There are: consult"):
        ToolCalls(functions=f"{TOOLS}:consult", prices=("find=1",)).around(SingleTurn(Toy()), Toy())
    for price in ("consult", "consult=", "consult=-1", "consult=nan"):
        with pytest.raises(ConfigError, match=r"as in search=0\.5"):
            ToolCalls(prices=(price,))


@pytest.mark.slow
def test_it_is_in_the_metrics_and_in_the_report() -> None:
    loop = make_loop(grpo.replace(problems=3, experience=Groups(size=4)), task=Slow(price=0.5))
    report = loop.step()
    letters = [sum(len(s["text"]) for s in r["segments"] if s["role"] == "assistant") for r in report.episodes]
    assert report.metrics["used/seconds"] == pytest.approx(sum(letters) / len(letters) / 2)
    assert report.metrics["used/longest"] == max(letters) / 2 and report.metrics["used/cost"] > 0
    assert "used/tokens" not in report.metrics
    assert [r["used"]["seconds"] for r in report.episodes] == [n / 2 for n in letters]
    assert f">{report.episodes[0]['used']['cost']:g}<" in render(report.episodes[:1]).replace(" ", "")


def test_durations_are_simulated_or_real_never_mixed() -> None:
    mixed = [episode(turn(2.0, 0.0, 0), turn(seconds=9.0)), episode(turn(seconds=9.0))]
    assert durations(mixed) == [[2.0, 0.0], [0.0]]
    assert durations(mixed[1:]) == [[9.0]]


def test_turns_weigh_as_they_last() -> None:
    """A of three turns, 1, 1 and -1, of 4, 1 and 1 seconds: the mean is 2."""
    batch = to_batch([episode(turn(4.0, 0, 0), turn(1.0, 0, 0)), episode(turn(1.0, 0, 0))], 0, 1.0, torch.device("cpu"))
    batch = batch.replace(scores=torch.tensor([1.0, 0.0]).double(), rewards=batch.rewards.double())
    found = TurnWeights(factors=DurationFactors(), centred=False)(batch)
    plain = TurnWeights().of(batch)
    torch.testing.assert_close(found, plain * torch.tensor([[0, 2.0, 0.5], [0, 0.5, 0]]).double(), atol=1e-12, rtol=0)
    same = to_batch([episode(turn(3.0, 0, 0))] * 2, 0, 1.0, torch.device("cpu"))
    factors = DurationFactors()(same, Turns.in_batch(same))[0]
    assert factors.tolist() == [1.0, 1.0], "equal durations change nothing"
    none = to_batch([episode(turn())], 0, 1.0, torch.device("cpu"))
    assert DurationFactors()(none, Turns.in_batch(none))[0].tolist() == [1.0]


def test_what_was_used_can_be_taken_off() -> None:
    said = [episode(turn(2.0, 0.25, 3), turn(1.0, 0.5, 1)), episode(turn())]
    for of, expected in (("seconds", -1.5), ("cost", -0.375), ("tokens", -2.0)):
        assert UsePenalty(of=of, weight=0.5).score(said, Context(None, None, None)) == [expected, 0.0]  # type: ignore[arg-type]
