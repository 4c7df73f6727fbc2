"""Parts: validation, JSON, names, states."""

from __future__ import annotations

import json
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Count, Fraction, NonNegative, Positive, Probability
from etude.core.part import Need, Part, from_json, kebab, part_class, part_from_json, part_types, to_json
from etude.core.slots import Reward, TokenObjective
from etude.objectives.policy_gradient import ClippedSurrogate
from etude.rewards import outcome
from etude.rewards.outcome import OverlongPenalty


class Inner(Part):
    """Counts what it sees."""

    scale: Positive = 1.0

    def initial_state(self) -> dict[str, Any]:
        return {"seen": 0}


class Outer(Part):
    """Holds values and parts of every kind."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ENTROPY})
    share: Fraction = 0.5
    amount: NonNegative = 0.0
    chance: Probability = 1.0
    count: Count = 1
    kind: Literal["a", "b"] = "a"
    label: str = ""
    on: bool = False
    limit: Positive | None = None
    sizes: tuple[int, ...] = ()
    inner: Inner = Inner()
    more: tuple[Inner, ...] = ()
    maybe: Inner | None = None

    def check(self) -> None:
        if self.kind == "b" and self.limit is None:
            raise ConfigError("Outer.limit must be set when kind is 'b'.")


def test_a_part_is_a_frozen_dataclass_with_a_name() -> None:
    part = Outer(share=0.25)
    assert (Outer.name, part.share, part.inner) == ("outer", 0.25, Inner())
    with pytest.raises(FrozenInstanceError):
        part.share = 0.5  # type: ignore[misc]
    assert part == Outer(share=0.25) and hash(part) == hash(Outer(share=0.25))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("KLToReference", "kl-to-reference"), ("AdamW", "adam-w"), ("GAE", "gae"), ("Top2Prob", "top2-prob")],
)
def test_kebab(name: str, expected: str) -> None:
    assert kebab(name) == expected


def test_faults_are_sentences() -> None:
    with pytest.raises(ConfigError, match=r"^ClippedSurrogate\.low must be a number in \(0, 1\), got 1\.5\.$"):
        ClippedSurrogate(low=1.5)
    with pytest.raises(ConfigError, match=r"^Outer\.kind must be one of 'a', 'b', got 'c'\.$"):
        Outer(kind="c")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^Outer\.inner must be a Inner part, got 3\.$"):
        Outer(inner=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^Outer\.more must be a list of Inner parts, got Inner\(scale=1\.0\)\.$"):
        Outer(more=Inner())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^Outer\.inner must be a Inner part, got \(\)\.$"):
        Outer(inner=())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^Outer\.limit must be set when kind is 'b'\.$"):
        Outer(kind="b")
    with pytest.raises(UnknownNameError, match=r"no field of Outer named 'shar'\. Did you mean 'share'"):
        Outer().replace(shar=0.1)


def test_which_parts_a_field_may_hold() -> None:
    assert part_types(Inner) == ((Inner,), False)
    assert part_types(tuple[Inner, ...]) == ((Inner,), True)
    assert part_types(Inner | None) == ((Inner,), False)
    assert part_types(tuple[int, ...]) == ((), True)
    assert Outer(maybe=None).maybe is None
    assert Outer(more=[Inner(), Inner(scale=2.0)]).more == (Inner(), Inner(scale=2.0))  # type: ignore[arg-type]


inners = st.builds(Inner, scale=st.floats(1e-6, 1e6))
outers = st.builds(
    Outer,
    share=st.floats(0, 1, exclude_min=True, exclude_max=True),
    amount=st.floats(0, allow_infinity=False),
    chance=st.floats(0, 1),
    count=st.integers(1, 2**60),
    label=st.text(),
    on=st.booleans(),
    limit=st.none() | st.floats(0, exclude_min=True, allow_infinity=False),
    sizes=st.lists(st.integers(-(2**60), 2**60), max_size=4).map(tuple),
    inner=inners,
    more=st.lists(inners, max_size=3).map(tuple),
    maybe=st.none() | inners,
)


@given(outers)
def test_json_round_trip(part: Outer) -> None:
    assert part_from_json(json.loads(json.dumps(part.to_json()))) == part


@given(st.floats(0, 1, exclude_min=True, exclude_max=True), st.floats(0, exclude_min=True, allow_infinity=False))
def test_json_round_trip_of_a_built_in_part(low: float, high: float) -> None:
    part = ClippedSurrogate(low=low, high=high)
    data = json.loads(json.dumps(part.to_json()))
    assert data["part"] == "clipped-surrogate"
    assert part_from_json(data) == part


def test_json_of_values() -> None:
    assert to_json((1, (2.0, None), {"a": (True,)})) == [1, [2.0, None], {"a": [True]}]
    assert from_json([1, [2.0, None], {"a": [True]}]) == (1, (2.0, None), {"a": (True,)})


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        part_class("cliped-surrogate")
    assert caught.value.nearest[0] == "clipped-surrogate"
    assert "There is no part named 'cliped-surrogate'. Did you mean 'clipped-surrogate'" in str(caught.value)
    with pytest.raises(UnknownNameError, match=r"no field of ClippedSurrogate named 'hihg'\. Did you mean 'high'"):
        part_from_json({"part": "clipped-surrogate", "hihg": 0.3})
    with pytest.raises(ConfigError, match="must be a Part class"):
        part_class("etude.core.fields:check")
    assert part_class("overlong-penalty") is OverlongPenalty


def test_a_class_does_not_take_the_name_of_another_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever module of the library it is in: names on the command line and in a run's files would change meaning."""
    elsewhere: Any = ModuleType("etude.experiments.elsewhere")
    elsewhere.ClippedSurrogate = type("ClippedSurrogate", (TokenObjective,), {"__module__": elsewhere.__name__})
    assert part_class("clipped-surrogate") is ClippedSurrogate, "no module that is loaded has the other"
    monkeypatch.setitem(sys.modules, elsewhere.__name__, elsewhere)
    with pytest.raises(ConfigError) as caught:
        part_class("overlong-penalty")
    said = str(caught.value)
    both = ("etude.experiments.elsewhere.ClippedSurrogate", "etude.objectives.policy_gradient.ClippedSurrogate")
    assert all(name in said for name in both) and "is called 'clipped-surrogate', and so is" in said
    assert said.endswith("rename one of these classes.")


def test_a_class_that_was_loaded_again_is_taken_as_it_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the library's own by its place; files of a user by theirs, the copy in a run's folder included."""
    again = type("OverlongPenalty", (Reward,), {"__module__": OverlongPenalty.__module__})
    with monkeypatch.context() as patch:
        patch.setattr(outcome, "OverlongPenalty", again)
        assert part_class("overlong-penalty") is again
    assert part_class("overlong-penalty") is OverlongPenalty
    text = "from etude.core.fields import Positive\nfrom etude.core.slots import Reward\n\n\n"
    found = []
    for i, folder in enumerate((tmp_path, tmp_path / "run" / "sources")):
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "penalties_of_mine.py"
        file.write_text(f"{text}class OverlongPenalty(Reward):\n    size: Positive = {i + 1}\n", encoding="utf-8")
        found.append(part_class(f"{file}:OverlongPenalty")())
    assert [part.to_json() for part in found] == [
        {"part": "penalties_of_mine:OverlongPenalty", "size": size} for size in (1.0, 2.0)
    ]
    assert part_class("overlong-penalty") is OverlongPenalty


def test_state_belongs_to_a_bound_copy() -> None:
    part = Outer(inner=Inner(), more=(Inner(), Inner()))
    with pytest.raises(RuntimeError, match="call bind"):
        _ = part.inner.state
    a, b = part.bind(), part.bind()
    a.inner.state["seen"] = 3
    a.more[1].state["seen"] = 5
    assert (b.inner.state, b.more[1].state, a.more[0].state) == ({"seen": 0}, {"seen": 0}, {"seen": 0})
    assert a == part, "what was learned is no part of its value"
