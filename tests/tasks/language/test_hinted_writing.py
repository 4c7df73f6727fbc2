"""Hinted writing: what is shown, what a writer is taught, what hints are worth, and how a black box is asked."""

from __future__ import annotations

from collections import Counter

import pytest

from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import UnknownNameError
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.policies.language import LanguagePolicy
from etude.policies.texts.black_box import BlackBox, Writing, black_box
from etude.tasks.language.hinted_writing import (
    HINTS,
    LIKING,
    RANK,
    SAMPLES,
    TOPICS,
    VOCABULARY,
    WRITTEN,
    HintedWriting,
    f1,
    hints_in,
    shown_to_writer,
)

pytestmark = pytest.mark.usefixtures("one_thread")
WRITER = "blank:1x16x2"
TASK = HintedWriting(writer=WRITER)


def test_a_reference_has_the_words_that_matter_most_to_the_topic() -> None:
    seen = Counter()
    for problem in (TASK.problems("train")[i] for i in range(60)):
        topic, shown = problem.prompt[0], problem.prompt[1:-1]  # type: ignore[index]
        wanted = sorted(shown, key=lambda w: RANK[topic][w])[:WRITTEN]
        assert problem.info["reference"] == "".join(wanted) and len({*shown}) == 16 and {*shown} <= {*VOCABULARY}
        hints = hints_in(problem.info["demonstration"])
        assert len(hints) == HINTS and {*hints} <= {*wanted}
        seen[topic] += 1
    assert {*seen} == {*TOPICS} and len(TASK.problems("train")) == 500
    assert all(sorted(rank.values()) == list(range(48)) for rank in RANK.values()) and RANK["#"] != RANK["$"]


def test_splits_share_no_prompt_and_seeds_draw_others() -> None:
    train, test = ({TASK.problems(s)[i].prompt for i in range(100)} for s in ("train", "test"))
    assert not train & test and not train & {TASK.replace(seed=1).problems("train")[i].prompt for i in range(100)}
    with pytest.raises(UnknownNameError, match="hinted-writing"):
        TASK.problems("validation")


@pytest.mark.slow
def test_a_writer_is_taught_to_take_up_hints_and_to_follow_its_own_liking() -> None:
    pool = HintedWriting(asks="texts", size=2_000).problems("train")
    taken, liked, bare = list[bool](), list[float](), 0
    for problem in (pool[i] for i in range(600)):
        prompt, _, hints = str(problem.prompt)[:-1].partition("~")
        text = problem.info["demonstration"]
        assert len(text) == len({*text}) == WRITTEN and {*text} <= {*prompt[1:], *hints}
        taken += [hint in text for hint in hints]
        bare += not hints
        rest = [w for w in text if w not in hints]
        liked.append(sum(LIKING[w] for w in rest) / max(1, len(rest)) - sum(LIKING[w] for w in prompt[1:]) / 16)
    assert 0.75 < sum(taken) / len(taken) < 0.85 and 110 < bare < 190 and sum(liked) / 600 > 0.5


def test_what_hints_are_worth() -> None:
    assert f1("abcdef", "abcxyz") == pytest.approx(0.5) and f1("aaaaaa", "abcdef") == pytest.approx(1 / 6)
    assert hints_in("a;a;bb;?;;b;c") == "abc" and hints_in("a;b;c;d;e;") == "abcd"
    problem = TASK.problems("test")[0]
    plain = HintedWriting()
    assert plain.score(problem, "".join(w + ";" for w in problem.info["reference"][:2])) == pytest.approx(0.5)
    assert HintedWriting(asks="texts").score(problem, problem.info["reference"]) == 1.0
    assert shown_to_writer(problem, "") == problem.prompt
    assert shown_to_writer(problem, "a;b;") == f"{str(problem.prompt)[:-1]}~ab>"
    assert plain.max_tokens == 9 and HintedWriting(asks="texts").max_tokens == 7
    assert plain.success(Episode(problem, [Segment("assistant", "", reward=0.7)]))
    assert not plain.success(Episode(problem, [Segment("assistant", "", reward=0.6)]))


def test_the_reward_is_the_mean_over_what_the_writer_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, asked = TASK.problems("test")[3], list[object]()
    reference = problem.info["reference"]

    def written(box: BlackBox, texts: list[str], how: Writing) -> list[list[str]]:
        asked.append((texts, how))
        return [[reference, reference[:3] + "???", "", reference[0]]]

    monkeypatch.setattr(BlackBox, "writes", written)
    assert TASK.score(problem, "a;") == pytest.approx((1 + 6 / 12 + 0 + 2 / 7) / 4, abs=1e-12)
    assert asked == [([shown_to_writer(problem, "a;")], SAMPLES)] and Writing(4, 0.7, WRITTEN + 1) == SAMPLES


@pytest.mark.slow
def test_a_text_has_the_same_answers_whoever_asked_before() -> None:
    box, how = BlackBox(LanguagePolicy.load(WRITER, device="cpu")), Writing(times=3, max_tokens=5)
    texts = ["#abc>", "$b>", "#abc>", "%ghi~g>"]
    found = box.writes(texts, how)
    assert found[0] == found[2] and len({tuple(x) for x in found}) == 3 and {len(x) for x in found} == {3}
    assert len(box.written) == 3 and box.writes(["$b>"], how) == [found[1]]
    assert [BlackBox(box.model).writes([text], how)[0] for text in texts] == found
    box.expect(["&x>"], how)
    assert [*box.written] == [("&x>", how)] and box.writes(texts, how) == found
    assert box.writes(texts, how._replace(temperature=5.0)) != found


@pytest.mark.slow
def test_completions_of_a_step_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, asked = LanguagePolicy.load("blank:1x16x2", device="cpu"), list[int]()
    box = black_box(TASK.writer)
    expect = type(box).expect
    monkeypatch.setattr(
        type(box), "expect", lambda box, texts, how: (asked.append(len(texts)), expect(box, texts, how))
    )
    problems: list[Problem] = [TASK.problems("train")[i] for i in range(3)]
    episodes = Groups(size=2).collect(problems, Context(TASK, policy, Stream(1), max_tokens=9))
    assert asked == [6] and all(e.reward == TASK.score(e.problem, e.completion) for e in episodes)
