"""DataFile: every format, every fault with its sentence, and a reader that raises nothing but DataError."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from etude.core.episodes import Episode, Problem
from etude.core.errors import ConfigError, DataError, UnknownNameError
from etude.tasks import resolve_task
from etude.tasks.language.answers import final_answer, number, same_answer
from etude.tasks.language.files import DataFile, fit_prompts
from etude.tasks.language.loading import divide
from etude.tasks.language.rows import check_left

USER = {"role": "user", "content": "2+2?"}
FOUR = {"role": "assistant", "content": "4"}
FIVE = {"role": "assistant", "content": "5"}
WORKED = {"completion": "4", "demonstration": "4"}
PAIR = {"chosen": "4", "rejected": "5"}
DEVELOPER = {"role": "developer", "content": "Be brief."}
PARTS = {"role": "user", "content": [{"type": "text", "text": "2+"}, {"type": "text", "text": "2?"}]}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "add"}}]}
CALLED = {k: v for which in ("completion", "demonstration") for k, v in ((which, ""), (f"{which}_message", CALL))}


def write(folder: Path, *rows: Any, name: str = "data.jsonl") -> Path:
    """A file with one row per line; text is written as it is."""
    path = folder / name
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows), encoding="utf-8")
    return path


def only(folder: Path, *rows: Any, **options: Any) -> Problem:
    """The first problem of a file with these rows."""
    return DataFile(str(write(folder, *rows)), test_fraction=0.0, **options).problems("train")[0]


def refusal(path: Path | str, **options: Any) -> str:
    """The sentence with which a file is refused."""
    with pytest.raises(DataError) as error:
        DataFile(str(path), **options).problems("train")
    return str(error.value)


# Formats


def test_standard_prompt_with_answer(tmp_path: Path) -> None:
    row = {"prompt": "2+2?", "answer": 4, "difficulty": 3, "topic": "sums"}
    problem = only(tmp_path, row)
    assert (problem.id, problem.prompt, problem.answer, problem.level) == ("1", "2+2?", 4, "3")
    assert problem.info == {"answer": 4, "difficulty": 3, "topic": "sums"}


def test_id_and_solution_columns(tmp_path: Path) -> None:
    problem = only(tmp_path, {"prompt": "p", "solution": "s", "id": "q-7"})
    assert (problem.id, problem.answer) == ("q-7", "s")


def test_named_columns(tmp_path: Path) -> None:
    row = {"question": "q", "answer": "a", "target": "t", "source": "s"}
    problem = only(tmp_path, row, columns=("prompt=question", "answer=target", "source="))
    assert (problem.prompt, problem.answer, problem.level) == ("q", "t", "")
    assert problem.info == {"answer": "t"}, "a new name takes the place of an old one, and what is left out is gone"


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        ("prompt=questoin", "has no column 'questoin'. Did you mean 'question'? It has: answer, question."),
        ("images=", "has no column 'images'. It has: answer, question."),
        ("promt=question", "There is no column with a meaning named 'promt'. Did you mean 'prompt'?"),
        ("question", "task.columns takes NAME=COLUMN, as in prompt=question; got 'question'."),
    ],
)
def test_columns_that_are_not_there(tmp_path: Path, column: str, sentence: str) -> None:
    path = write(tmp_path, {"question": "q", "answer": "a"})
    with pytest.raises((DataError, ConfigError)) as error:
        DataFile(str(path), columns=(column,)).problems("train")
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("row", "prompt", "info"),
    [
        ({"prompt": "a b", "completion": " c"}, "a b", {"completion": " c", "demonstration": " c"}),
        ({"prompt": [USER], "completion": [FOUR]}, [USER], WORKED),
        ({"prompt": [USER], "completion": [FIVE, USER, FOUR]}, [USER, FIVE, USER], WORKED),
        ({"prompt": "p", "completion": "bad", "label": False}, "p", {"completion": "bad", "label": False}),
        ({"prompt": "p", "chosen": "x", "rejected": "y"}, "p", {"chosen": "x", "rejected": "y"}),
        ({"prompt": [USER], "chosen": [FOUR], "rejected": [FIVE]}, [USER], PAIR),
        ({"prompt": "2+2?", "chosen": [USER, FOUR], "rejected": [USER, FIVE]}, [USER], PAIR),
        ({"prompt": "2+2?", "chosen": [FOUR], "rejected": [FIVE]}, "2+2?", PAIR),
        ({"chosen": [USER, FOUR], "rejected": [USER, FIVE]}, [USER], PAIR),
        ({"messages": [USER, FOUR]}, [USER], WORKED),
        ({"messages": [DEVELOPER, USER, FOUR]}, [DEVELOPER, USER], WORKED),
        ({"prompt": [PARTS], "answer": "4", "images": []}, [PARTS], {"answer": "4"}),
        ({"messages": [USER, CALL]}, [USER], CALLED),
        ({"prompt": "p", "tools": [TOOL]}, "p", {"template_arguments": {"tools": [TOOL]}}),
        ({"prompt": "p", "tools": json.dumps([TOOL])}, "p", {"template_arguments": {"tools": [TOOL]}}),
        ({"prompt": "p", "tools": None}, "p", {}),
        ({"prompt": "p", "chat_template_kwargs": {"a": 1}}, "p", {"template_arguments": {"a": 1}}),
    ],
)  # fmt: skip
def test_formats(tmp_path: Path, row: dict[str, Any], prompt: Any, info: dict[str, Any]) -> None:
    problem = only(tmp_path, row)
    assert problem.prompt == prompt
    assert problem.info == info
    assert DataFile("x.jsonl").demonstration(problem) == info.get("demonstration")


@pytest.mark.parametrize(
    ("chosen", "rejected", "prompt", "answers"),
    [
        ("The sky is blue.", "The sky is black.", "The sky is", (" blue.", " black.")),  # TRL would cut inside "bl"
        ("Answer:yes", "Answer:no", "Answer:", ("yes", "no")),
        ("Q: hi", "Q: hi there", "Q:", (" hi", " hi there")),
    ],
)
def test_shared_beginning_of_text(
    tmp_path: Path, chosen: str, rejected: str, prompt: str, answers: tuple[str, str]
) -> None:
    problem = only(tmp_path, {"chosen": chosen, "rejected": rejected})
    assert (problem.prompt, problem.info["chosen"], problem.info["rejected"]) == (prompt, *answers)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"prompt": 3}, "prompt must be text or a list of messages, got int 3."),
        ({"prompt": "  "}, "prompt is empty."),
        ({"prompt": []}, "prompt is empty."),
        ({"prompt": ["x"]}, "prompt[0] must be a message with role and content, got str 'x'."),
        ({"prompt": [{"role": "bot", "content": "x"}]}, "prompt[0].role must be one of system, developer,"),
        ({"prompt": [{"role": "user", "content": None}]}, "prompt[0].content must be text or a list of parts, got"),
        ({"prompt": [{**USER, "tool_calls": [1]}]}, "prompt[0].tool_calls must be a list of objects, got list [1]."),
        ({"prompt": [{**USER, "weight": 2}]}, "prompt[0].weight is not supported: of a message are read role,"),
        ({"prompt": [{"role": "user", "content": ["x"]}]}, "prompt[0].content[0] must be {'type': 'text', "),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "prompt[0].content[0] is an image, which no"),
        ({"prompt": "p", "images": ["a.png"]}, "images holds images, which no policy of text can see: leave them out"),
        ({"prompt": "p", "tools": "{"}, "tools must be a list of JSON schemas, got '{'."),
        ({"prompt": "p", "tools": [3]}, "tools must be a list of JSON schemas, got list [3]."),
        ({"prompt": "p", "chat_template_kwargs": [1]}, "chat_template_kwargs must be an object, got list [1]."),
        ({"messages": [USER, {"role": "assistant", "content": None}]}, "messages[1].content must be text or a list"),
        ({"prompt": "p", "completion": ""}, "completion is empty."),
        ({"prompt": [USER], "completion": [USER]}, "completion must be the assistant's, got 'user'."),
        ({"prompt": "p", "chosen": "x", "rejected": [FOUR]}, "must both be text, or both be messages."),
        ({"prompt": "p", "chosen": "x", "rejected": "x"}, "chosen and rejected are the same."),
        ({"prompt": [USER], "chosen": [FOUR], "rejected": [FOUR]}, "chosen and rejected are the same."),
        ({"prompt": [USER], "chosen": [FOUR, USER, FOUR], "rejected": [FIVE]}, "differ in one last message only."),
        ({"chosen": "good", "rejected": "great"}, "share no beginning that could be the prompt."),
        ({"chosen": [FOUR], "rejected": [FIVE]}, "share no beginning that could be the prompt."),
        ({"chosen": "a b", "rejected": "a"}, "share no beginning that could be the prompt."),
        ({"messages": [FOUR]}, "messages must be a list of at least two messages."),
        ({"messages": [FOUR, USER]}, "the last message of messages must be the assistant's, got 'user'."),
        ({"prompt": "p", "answer": None}, "answer is null."),
        ({"prompt": "p", "id": 1.5}, "id must be text or a whole number, got 1.5."),
        ({"prompt": "p", "level": []}, "the level must be text or a number, got list."),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit(tmp_path: Path, row: dict[str, Any], sentence: str) -> None:
    message = refusal(write(tmp_path, row))
    assert "data.jsonl has 1 bad row:\n" in message
    assert "data.jsonl:1: " in message
    assert sentence in message


def test_unknown_columns_name_the_formats(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, {"question": "q", "text": "t"}))
    assert "lacks the column 'prompt'; it has: question, text." in message
    assert "prompt, chosen, rejected; prompt, completion; prompt; chosen, rejected; messages" in message
    assert "lacks the column 'rejected'" in refusal(write(tmp_path, {"prompt": "p", "chosen": "c"}))


# Faults of files


def test_malformed_lines_are_all_listed(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "a"}, '{"prompt": "b",}', {"prompt": "c"}, '{"prompt" "d"}', "[1]", "")
    path.write_text(path.read_text() + '{"prompt": "e"}\n')
    message = refusal(path)
    assert "has 4 bad rows:" in message
    if "Illegal trailing comma" in message:  # newer Pythons say more
        assert "data.jsonl:2:15: Illegal trailing comma" in message
    else:
        assert (
            'data.jsonl:2:16: Expecting property name enclosed in double quotes, near \'{"prompt": "b",}\'.' in message
        )
    assert "data.jsonl:4:11: Expecting ':' delimiter, near '{\"prompt\" \"d\"}'." in message
    assert "data.jsonl:5:1: must be an object {...}, got list '[1]'." in message
    assert "data.jsonl:6:1: the line is blank." in message
    assert message.endswith("Mend them, or leave them out with --skip-bad-rows.")


def test_only_the_first_twenty_faults_are_listed(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, {"prompt": "a"}, *["{"] * 23))
    assert "has 23 bad rows" in message
    assert message.count("data.jsonl:") == 20
    assert "... and 3 more" in message


def test_skip_bad_rows_counts_them(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "a"}, "{", {"prompt": "b"}, {"promt": "c"})
    task = DataFile(str(path), skip_bad_rows=True, test_fraction=0.0)
    assert [p.prompt for p in task.problems("train")] == ["a", "b"]
    (warning,) = task.warnings()
    assert warning.startswith(f"2 bad rows of {path} were left out; the first: {path}:2:2: ")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b'{"prompt": "\xff"}', "data.jsonl:2:13: not UTF-8: byte 0xff."),
        (b'{"prompt": NaN}', "data.jsonl:2:1: NaN is not a JSON value"),
        (b'{"prompt": "\\ud800"}', "half of a surrogate pair"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"prompt": ' + b"1" * 5_000 + b"}", "Exceeds the limit (4300 digits)"),
        (b'{"prompt": "\x1b[31m"}', 'near \'{"prompt": "\\x1b[31m"}\''),
    ],
)
def test_bytes_that_are_not_json(tmp_path: Path, line: bytes, sentence: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"prompt": "fine"}\n' + line + b"\n")
    message = refusal(path)
    assert sentence in message
    assert "\x1b" not in message


def test_byte_order_mark_crlf_and_blank_end_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n{"prompt": "b\xe2\x80\xa8c"}\r\n\r\n \n')
    task = DataFile(str(path), test_fraction=0.0)
    assert [p.prompt for p in task.problems("train")] == ["a", "b\u2028c"]
    assert task.warnings() == []


def test_files_that_hold_nothing_usable(tmp_path: Path) -> None:
    (tmp_path / "wide.jsonl").write_bytes('{"prompt": "a"}'.encode("utf-16"))
    (tmp_path / "empty.jsonl").write_bytes(b"\xef\xbb\xbf\n")
    assert "is encoded as UTF-16: save it as UTF-8." in refusal(tmp_path / "wide.jsonl")
    assert refusal(tmp_path / "empty.jsonl").endswith("is empty: it must hold at least one row.")
    assert refusal(tmp_path / "none.jsonl") == f"There is no file or folder {tmp_path / 'none.jsonl'}."
    bad = write(tmp_path, "{", "{")
    assert refusal(bad, skip_bad_rows=True) == f"{bad}: nothing is left of 2 rows: 2 bad."


def test_uneven_columns(tmp_path: Path) -> None:
    good = {"prompt": "p", "answer": "a"}
    message = refusal(write(tmp_path, {"prompt": "first", "anwser": "a"}, good, good))
    assert "data.jsonl:1: lacks 'answer' and has 'anwser', unlike the other rows." in message
    assert "1 bad row:" in message


def test_duplicate_ids_name_both_lines(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "a", "id": 1}, {"prompt": "b", "id": 2}, {"prompt": "c", "id": "1"})
    assert f"{path}:3: has the id '1' of {path}:1." in refusal(path)
    assert len(DataFile(str(path), skip_bad_rows=True, test_fraction=0.0).problems("train")) == 2


def test_other_kinds_of_file_are_refused() -> None:
    with pytest.raises(DataError, match=r"^d.txt must be a file of .jsonl, .json, .csv, .*, .parquet, got .txt.$"):
        DataFile("d.txt")


def test_json_list(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps([{"prompt": "a"}, {"prompt": "b"}], indent=1))
    assert [p.prompt for p in DataFile(str(path), test_fraction=0.0).problems("train")] == ["a", "b"]
    path.write_text('[{"prompt": "a"}, 3]')
    assert "data.json, item 2: must be an object {...}, got int '3'." in refusal(path)
    path.write_text('{"prompt": "a"}')
    assert "must hold a list of objects, got dict." in refusal(path)
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    assert "data.json:2:1: Extra data" in (message := refusal(path))
    assert message.endswith("If it holds one object per line, call it .jsonl.")
    path.write_text('[{"prompt": "a"},\n {"prompt": }]')
    assert "data.json:2:13: Expecting value" in refusal(path)


# Splits


def test_division_is_by_text_and_keeps_equal_prompts_together() -> None:
    problems = [Problem(str(i), f"Question  {i % 50}" if i < 50 else f"question {i % 50}") for i in range(100)]
    splits = divide(problems, 0.1)
    assert len(splits["test"]) == 10  # five of fifty distinct prompts, each there twice
    assert len(splits["train"]) == 90
    assert {int(p.id) % 50 for p in splits["test"]}.isdisjoint(int(p.id) % 50 for p in splits["train"])
    assert divide(problems[::-1], 0.1)["test"] == splits["test"][::-1]
    other = divide(problems, 0.1, seed=1)
    assert len(other["test"]) == 10 and other["test"] != splits["test"]
    assert divide(problems, 0.1, seed=1) == other


def test_division_of_few() -> None:
    assert [len(v) for v in divide([Problem("1", "a"), Problem("2", "b")], 0.1).values()] == [1, 1]
    assert list(divide([Problem("1", "a")], 0.5)) == ["train"]
    assert list(divide([Problem("1", "a"), Problem("2", "b")], 0.0)) == ["train"]


def test_folder_with_test_rows_in_the_training_set(tmp_path: Path) -> None:
    write(tmp_path, {"prompt": "One two"}, {"prompt": "three"}, name="train.jsonl")
    write(tmp_path, {"prompt": "one  TWO "}, {"prompt": "four"}, name="test.jsonl")
    task = resolve_task(f"{tmp_path}/")
    assert isinstance(task, DataFile)
    assert task.splits() == ("train", "test")
    assert [p.id for p in task.problems("test")] == ["test/1", "test/2"]
    (warning,) = task.warnings()
    assert warning.startswith("1 of the 2 test rows")
    with pytest.raises(UnknownNameError, match="Did you mean 'train'"):
        task.problems("trian")


def test_folder_without_training_set(tmp_path: Path) -> None:
    write(tmp_path, {"prompt": "a"}, name="test.jsonl")
    assert "must have a split to train on, as in train.jsonl; it has: test." in refusal(tmp_path)


# Limits


def test_fit_prompts() -> None:
    problems = [Problem(str(n), "x" * n) for n in (1, 5, 9)]
    kept, sentence = fit_prompts(problems, [1, 5, 9], 5, "drop")
    assert [p.id for p in kept] == ["1", "5"]
    assert sentence == (
        "1 of 3 prompts are longer than 5 tokens; the longest, of problem '9', has 9. They were left out."
    )
    assert fit_prompts(problems, [1, 5, 9], 9, "error") == (problems, None)
    with pytest.raises(DataError, match=r"1 of 3 prompts are longer than 5 tokens.*on_long_prompt be 'drop'"):
        fit_prompts(problems, [1, 5, 9], 5, "error")
    with pytest.raises(DataError, match="nothing is left of 3 rows: 3 longer than 0 tokens"):
        fit_prompts(problems, [1, 5, 9], 0, "drop")


def test_check_left_counts_per_filter() -> None:
    check_left(1, "d", 5, {"bad": 4})
    with pytest.raises(DataError, match=r"^d: nothing is left of 5 rows: 2 bad, 3 too long\.$"):
        check_left(0, "d", 5, {"bad": 2, "unused": 0, "too long": 3})


# Scoring


def test_scores_by_answer(tmp_path: Path) -> None:
    task = DataFile(str(write(tmp_path, {"prompt": "p", "answer": "1,200"}, {"prompt": "q", "answer": "no"})))
    problem = Problem("1", "p", "1,200")
    assert [task.score(problem, c) for c in ("so\n#### 1200", "1201", "")] == [1.0, 0.0, 0.0]
    assert task.needs_reward() is None
    assert task.answer("it is\nanswer: 7") == "7"


def test_a_reward_function_does_not_decide_what_is_right_where_there_are_answers(tmp_path: Path) -> None:
    """A reward of 2 for a wrong answer is no success; only without answers is an outcome of 1 one."""
    answered = DataFile(str(write(tmp_path, {"prompt": "p", "answer": "7"}, name="a.jsonl"))).replace(scored=False)
    bare = DataFile(str(write(tmp_path, {"prompt": "p"}, name="b.jsonl"))).replace(scored=False)
    assert [answered.score(Problem("1", "p", "7"), c) for c in ("7", "8")] == [1.0, 0.0]
    wrong, low = Episode(Problem("1", "p", "7")), Episode(Problem("1", "p"))
    wrong.total = wrong.outcome = 2.0
    assert (answered.success(wrong), bare.success(wrong), bare.success(low)) == (False, True, False)


def test_without_answers_a_reward_is_needed(tmp_path: Path) -> None:
    task = DataFile(str(write(tmp_path, {"prompt": "p"})))
    assert "has no 'answer' or 'solution' column" in str(task.needs_reward())
    assert "--reward my_rewards.py:score" in str(task.needs_reward())
    with pytest.raises(ConfigError, match="has no 'answer'"):
        task.score(Problem("1", "p"), "x")
    scored_elsewhere = task.replace(scored=False)
    assert scored_elsewhere.needs_reward() is None
    assert scored_elsewhere.score(Problem("1", "p"), "x") == 0.0


@pytest.mark.parametrize(
    ("completion", "answer", "same"),
    [
        ("4", 4, True),
        (" 4.0 ", "4", True),
        ("so \\boxed{\\boxed{3} + 1}", "\\boxed{3} + 1", True),
        ("#### -$1,000.50", -1000.5, True),
        ("<answer>\n7 </answer> done", 7, True),
        ("The answer is **42**.", 42, True),
        ("Answer: Paris.", "Paris", True),
        ("I think\nParis", "Paris", True),
        ("paris", "Paris", False),
        ("True", True, True),
        ("false", True, False),
        ("two\nlines", "two lines", True),
        ("5", "gives 5 * 1\n#### 5", True),
        ("1/2", "0.5", True),
        ("1/0", "1", False),
        ("1e999999999", "1", False),
        ("x" * 3_000, "y", False),
        ("", "", True),
        ("", "x", False),
        ("well-known", "known-well", False),
    ],
)
def test_same_answer(completion: str, answer: Any, same: bool) -> None:
    assert same_answer(completion, answer) is same


@pytest.mark.slow
def test_formulas_are_compared_in_a_process_with_a_deadline() -> None:
    pytest.importorskip("math_verify", exc_type=ImportError)
    assert same_answer("\\boxed{x + 1}", "1+x")
    assert not same_answer("\\boxed{x + 2}", "1+x")
    start = time.monotonic()
    assert not same_answer("9^{9^{9^{9^9}}}!", "x^2")
    assert time.monotonic() - start < 5
    assert same_answer("\\boxed{\\frac{1}{2}}", "$\\frac{2}{4}$")


def test_long_answers_are_compared_as_text_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.tasks.language.answers._same_formula", lambda given, wanted: True)
    assert same_answer("x + 1", "1+x")
    assert not same_answer("x + 1" + " + 0" * 500, "1+x")


@given(st.text())
def test_answer_parsers_take_any_text(text: str) -> None:
    assert isinstance(final_answer(text), str)
    number(text)
    assert same_answer(text, text)


ROWS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["prompt", "completion", "chosen", "rejected", "messages", "role", "content", "id", "answer"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None)
@given(st.binary(max_size=80) | st.lists(ROWS, max_size=5).map(lambda r: "\n".join(map(json.dumps, r)).encode()))
def test_reader_raises_nothing_but_data_error(tmp_path: Path, data: bytes) -> None:
    for name in ("data.jsonl", "data.json"):
        path = tmp_path / name
        path.write_bytes(data)
        for skip in (False, True):
            task = DataFile(str(path), skip_bad_rows=skip)
            try:
                assert len(task.problems("train")) > 0
                ids = [p.id for split in task.splits() for p in task.problems(split)]
                assert len(ids) == len(set(ids))
            except DataError as error:
                assert name in str(error)


# Finding a task


def test_resolve_task(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "p", "answer": "a"})
    assert resolve_task(str(path)) == DataFile(str(path))
    assert resolve_task("compose").id == "compose"
    with pytest.raises(UnknownNameError, match=r"no task named 'compos'. Did you mean 'compose'"):
        resolve_task("compos")


def test_resolve_task_from_a_file(tmp_path: Path) -> None:
    source = tmp_path / "my_own_task.py"
    source.write_text(
        "from etude.core.task import LanguageTask\n"
        "class Mine(LanguageTask):\n    depth: int = 2\n"
        "class Needy(LanguageTask):\n    depth: int\n"
        "mine, number = Mine(3), 7\n"
    )
    assert resolve_task(f"{source}:mine").depth == 3
    assert resolve_task(f"{source}:Mine").depth == 2
    with pytest.raises(ConfigError, match="must be a Task or a Task class, got int"):
        resolve_task(f"{source}:number")
    with pytest.raises(ConfigError, match="cannot be made without arguments"):
        resolve_task(f"{source}:Needy")
    with pytest.raises(UnknownNameError, match="Did you mean 'mine'"):
        resolve_task(f"{source}:mime")
