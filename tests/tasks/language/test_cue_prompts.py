"""Cue prompts: reviews by split and label, what a reader is taught, and what a frozen reader pays for a prompt."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError, UnknownNameError
from etude.experiments.preference.rlprompt import Searched, accuracy, greedy_prompt, searched
from etude.policies.language import LanguagePolicy
from etude.policies.texts.black_box import BlackBox, black_box, named_now
from etude.policies.word_tokenizer import CONTENT, CUES, LABELS
from etude.tasks.language.cue_prompts import (
    ASKS,
    LEANS,
    OPENS,
    POLARITY,
    SHOTS,
    STRENGTH,
    CuePrompts,
    cue_prompts,
    gap_reward,
    polarity,
    strength,
)

pytestmark = pytest.mark.usefixtures("one_thread")
READER = "blank:1x16x2@reviews"
ASKED = CuePrompts(reader=READER)


def test_words_mean_something_and_only_some_pairs_ask() -> None:
    assert sorted(POLARITY.values()) == [-1] * 20 + [0] * 20 + [1] * 20 and {*POLARITY} == {*CONTENT}
    assert len({*OPENS, *ASKS}) == 8 and len(STRENGTH) == 16 and {*LEANS} == {*CUES}
    assert strength([CUES[0], OPENS[1], ASKS[2]]) == STRENGTH[OPENS[1], ASKS[2]]
    assert strength([OPENS[1], CUES[0], ASKS[2]]) == strength([ASKS[2], OPENS[1]]) < min(STRENGTH.values())


@pytest.mark.slow
def test_a_reader_is_taught_the_truth_as_often_as_the_cues_are_strong() -> None:
    told: dict[bool, list[bool]] = {True: [], False: []}
    for problem in (cue_prompts.problems("train")[i] for i in range(600)):
        cues = [w for w in CUES if w in str(problem.prompt)]
        right = cue_prompts.demonstration(problem) == LABELS[polarity(str(problem.prompt)) > 0]
        told[bool({*cues} & {*OPENS}) and bool({*cues} & {*ASKS})].append(right)
    share = {asks: sum(found) / len(found) for asks, found in told.items()}
    assert 0.72 < share[True] < 0.88 and 0.4 < share[False] < 0.65


def test_splits_share_no_review_and_labels_are_as_many() -> None:
    shown = ASKED.problems("train")[0].info["reviews"]
    tested = [r for i in range(40) for r in ASKED.problems("test")[i].info["reviews"]]
    assert len(shown) == 2 * SHOTS and not {*shown} & {*tested}
    assert sum(polarity(r) > 0 for r in shown) == SHOTS and sum(polarity(r) > 0 for r in tested) == 20
    assert all(polarity(r) for r in shown + tested) and len(ASKED.problems("train")) == 1
    other = ASKED.replace(seed=1)
    assert other.problems("train")[0].info["reviews"] != shown
    with pytest.raises(UnknownNameError, match="cue-prompts"):
        ASKED.problems("validation")


@pytest.mark.slow
def test_a_prompt_is_worth_the_mean_of_gaps() -> None:
    problem, model = ASKED.problems("train")[0], LanguagePolicy.load(READER, device="cpu")
    paid = []
    for review in problem.info["reviews"]:
        ids = torch.tensor([model.encode(review + CUES[3] + CUES[9])])
        logits = model.model(input_ids=ids).logits[0, -1].detach().double()
        bad, good = (float(logits[model.encode(label)[0]].exp()) for label in LABELS)
        gap = (good - bad) / (good + bad) * (1 if polarity(review) > 0 else -1)
        paid.append(200 * gap if gap > 0 else 180 * gap)
    said = f"?{CUES[3]}{CUES[9]}"
    assert ASKED.score(problem, said) == pytest.approx(sum(paid) / len(paid), abs=1e-4)
    assert ASKED.score(problem, said) != ASKED.score(problem, CUES[9] + CUES[3])
    assert not ASKED.success(Episode(problem, [Segment("assistant", said)]))
    one = ASKED.problems("test")[0]
    assert ASKED.success(Episode(one, [Segment("assistant", said)])) == (ASKED.score(one, said) > 0)


def test_the_reward_is_continuous_where_the_label_begins_to_be_right() -> None:
    assert gap_reward(1e-12) == pytest.approx(gap_reward(-1e-12), abs=1e-9)
    assert gap_reward(0.1) > -gap_reward(-0.1) > 0


def test_prompts_are_as_long_as_is_asked() -> None:
    assert ASKED.max_tokens == 2 and ASKED.replace(length=5).max_tokens == 5 and cue_prompts.max_tokens == 2
    policy = LanguagePolicy.load("blank:1x16x2@cues", device="cpu")
    assert greedy_prompt(policy, ASKED) == greedy_prompt(policy, ASKED) and len(policy.encode("? arda elke")) == 3


@pytest.mark.slow
def test_the_best_of_some_prompts_is_found_and_tested() -> None:
    best = searched(Searched(ASKED, 8))
    problem = ASKED.problems("train")[0]
    assert ASKED.score(problem, best) >= ASKED.score(problem, "".join(CUES[:2])) or best.count(" ") == 2
    assert accuracy(ASKED, best) in [n / 400 for n in range(401)]


# Models that are asked by text alone


def test_a_question_has_one_answer_to_the_last_bit() -> None:
    box, other = (BlackBox(LanguagePolicy.load(READER, device="cpu")) for _ in range(2))
    texts = [CONTENT[0] * 3, CONTENT[1], CONTENT[2] * 5]
    found = box.chances(texts, LABELS)
    other.chances(texts[:1], LABELS)
    assert torch.equal(other.chances(texts, LABELS), found) and box.chances(texts, LABELS) is found
    assert torch.allclose(found.sum(1), torch.ones(3, dtype=torch.float64), atol=1e-12)
    alone = torch.cat([other.chances([text], LABELS) for text in texts])
    assert torch.allclose(alone, found, atol=1e-6)
    with pytest.raises(ConfigError, match="2 tokens of the model"):
        box.chances(texts, [CONTENT[0] + CONTENT[1]])


def test_no_more_is_remembered_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.policies.texts.black_box.KEPT", 2)
    box = BlackBox(LanguagePolicy.load(READER, device="cpu"))
    for i in range(4):
        box.chances([CONTENT[i]], LABELS)
    assert len(box.chosen) == 2 and ((CONTENT[3],), LABELS) in box.chosen


def test_a_run_is_named_by_its_newest_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "run" / "checkpoints" / "step-3"
    (kept / "model").mkdir(parents=True)
    monkeypatch.setattr("etude.runtime.checkpoints.newest", lambda runs: (runs / "step-3", 3))
    monkeypatch.chdir(tmp_path)
    assert CuePrompts(reader="run").reader == str(kept / "model") == named_now(str(kept / "model"))
    assert named_now("run/checkpoints/step-3/model") == str(kept / "model") and named_now("") == ""
    assert named_now("tiny") == "tiny" and black_box(READER) is black_box(READER)
    problem = Problem("x", "?", info={"reviews": [CONTENT[0]]})
    assert CuePrompts(reader=READER).gaps(problem, "") == ASKED.gaps(problem, "no cue")
