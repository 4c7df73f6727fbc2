"""Training on the user's own files, and what is said about files that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import Cli, tiny

SCORE = """
def score(completions, answers, **columns):
    return [
        {"right": float(a in c), "short": 0.1 * (len(c) < 30)} for c, a in zip(completions, answers, strict=True)
    ]
"""
RIGHT = [{"prompt": f"f{i % 9}(x) ab>", "answer": "ba"} for i in range(12)]


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_grpo_on_a_file_with_a_reward_of_components(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path / "mine.jsonl", [{**r, "prompt": f"{r['prompt']}{i}"} for i, r in enumerate(RIGHT)])
    (tmp_path / "my_rewards.py").write_text(SCORE)
    flags = ("--task", "mine.jsonl", "--reward", "my_rewards.py:score", "--set", "task.max_tokens=16")
    answer = cli("train", "grpo", *flags, *tiny(), "--out", "run")
    assert answer.code == 0, answer.err
    for line in lines(tmp_path / "run/metrics.jsonl"):
        assert line["reward"] == pytest.approx(line["reward/score/right"] + line["reward/score/short"], abs=1e-6)
        assert line["reward"] == pytest.approx(line["reward/function-reward"], abs=1e-6)
        assert "reward/task-reward" not in line, "the file's own scoring gave way"
    for episode in lines(tmp_path / "run/episodes.jsonl"):
        scores = episode["scores"]
        assert isinstance(scores, dict)
        assert scores["score/right"] + scores["score/short"] == pytest.approx(episode["reward"], abs=1e-6)
    page = (tmp_path / "run/report.html").read_text()
    assert "score/right" in page

    evaluated = cli("evaluate", "run", "--k", "1,2", "--problems", "2", "--json")
    assert evaluated.code == 0, evaluated.err
    found = json.loads(evaluated.out)
    assert set(found) == {"test"}
    assert found["test"]["reward"]["value"] > 0, "scored with the run's own function"


@pytest.mark.slow
def test_sft_on_prompts_and_completions(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path / "shown.jsonl", [{"prompt": f"q{i}>", "completion": f"a{i}"} for i in range(10)])
    answer = cli("train", "sft", "--task", "shown.jsonl", *tiny(evaluate=0)[:-2], "--out", "run")
    assert answer.code == 0, answer.err
    assert next(line["loss"] for line in lines(tmp_path / "run/metrics.jsonl")) > 0  # type: ignore[operator]


@pytest.mark.slow
def test_dpo_on_pairs(cli: Cli, tmp_path: Path) -> None:
    rows = [{"prompt": f"q{i}>", "chosen": f"yes{i}", "rejected": f"no{i}"} for i in range(10)]
    write(tmp_path / "pairs.jsonl", rows)
    answer = cli("train", "dpo", "--task", "pairs.jsonl", *tiny(evaluate=0)[:-2], "--out", "run")
    assert answer.code == 0, answer.err
    first = lines(tmp_path / "run/metrics.jsonl")[0]
    assert first["loss"] == pytest.approx(0.6931471805599453, abs=1e-5), "log 2: policy and reference are the same"


@pytest.mark.slow
def test_a_reasoning_gym_dataset(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    answer = cli("train", "grpo", "--task", "reasoning-gym:chain_sum", *tiny(evaluate=0), "--out", "run")
    assert answer.code == 0, answer.err
    assert [line["step"] for line in lines(tmp_path / "run/metrics.jsonl")] == [1, 2]


@pytest.mark.slow
def test_conversations_need_a_chat_template(cli: Cli, tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"a{i}"}]}
            for i in range(4)]  # fmt: skip
    write(tmp_path / "talk.jsonl", rows)
    answer = cli("train", "sft", "--task", "talk.jsonl", *tiny(evaluate=0)[:-2], "--out", "run")
    assert answer.code == 2
    assert "chat template" in answer.sentence
    assert "Traceback" not in answer.err
    assert not (tmp_path / "run").exists()


BAD = [
    ('{"prompt": "a", "answer": "b"}\n{"prompt": "c", "answer"\n', "bad.jsonl:2:", "bad JSON"),
    ("", "bad.jsonl", "empty"),
    ("\n\n", "bad.jsonl", "only blank lines"),
    ('{"prompt": "a", "answer": "b"}\n{"prompt": "c"}\n', "bad.jsonl:2:", "a row without the answer"),
    ('{"question": "a", "answer": "b"}\n', "prompt", "no prompt at all"),
    ('{"prompt": "a"}\n', "no 'answer' or 'solution' column", "nothing to score with"),
    ('["a", "b"]\n', "bad.jsonl:1:", "not an object"),
    ('{"id": 1, "prompt": "a", "answer": "b"}\n{"id": 1, "prompt": "c", "answer": "d"}\n', "bad.jsonl:2:", "ids"),
]


@pytest.mark.parametrize(("text", "where", "what"), BAD, ids=[what for _, _, what in BAD])
def test_a_bad_file_is_refused_before_any_folder_is_made(
    cli: Cli, tmp_path: Path, text: str, where: str, what: str
) -> None:
    (tmp_path / "bad.jsonl").write_text(text)
    answer = cli("train", "grpo", "--task", "bad.jsonl", *tiny(), "--out", "run")
    assert answer.code == 2
    assert where in answer.sentence
    assert "Traceback" not in answer.err
    assert [p.name for p in tmp_path.iterdir()] == ["bad.jsonl"]


@pytest.mark.parametrize(
    ("method", "sentence"),
    [("sft", "has no demonstration to learn from"), ("dpo", "has no 'chosen' answer to compare")],
)
def test_a_file_without_what_the_method_learns_from(cli: Cli, tmp_path: Path, method: str, sentence: str) -> None:
    write(tmp_path / "mine.jsonl", RIGHT[:3])  # type: ignore[arg-type]
    answer = cli("train", method, "--task", "mine.jsonl", "--steps", "1", "--out", "run")
    assert answer.code == 2
    assert sentence in answer.sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_bad_rows_can_be_left_out(cli: Cli, tmp_path: Path) -> None:
    rows = [json.dumps({"prompt": f"q{i}>", "answer": "b"}) for i in range(6)]
    (tmp_path / "some.jsonl").write_text("\n".join([*rows, '{"prompt": "c"']) + "\n")
    answer = cli("train", "grpo", "--task", "some.jsonl", "--skip-bad-rows", *tiny(evaluate=0), "--set",
                 "task.max_tokens=8")  # fmt: skip
    assert answer.code == 0, answer.err
    assert "1 bad rows of some.jsonl were left out" in answer.sentence
    assert "some.jsonl:7:" in answer.sentence
