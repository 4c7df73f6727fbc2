"""Dialogues with rewards: what a file may say, what is told of it, and rows that are learned from without a game."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.cli.app import app
from etude.core.episodes import Problem, Segment, StopReason
from etude.core.errors import ConfigError, DataError
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.data import Demonstrations
from etude.experience.dialogues import counted, is_dialogues, read_dialogues, recorded, write_dialogues
from etude.rewards.outcome import TaskReward
from etude.runs.training import compose_task
from etude.stages.dialogues import RecordPlay, RecordScript
from etude.tasks import resolve_task
from etude.tasks.agents._dialogues import Dialogues
from etude.tasks.agents.text_maze import TextMaze
from language_toys import make_loop, random_policy


def line(*said: Any, **more: Any) -> dict[str, Any]:
    """A dialogue: what is shown as text, what is said with its reward."""
    segments = [
        {"role": "user", "text": s} if isinstance(s, str) else {"role": "assistant", "text": s[0], "reward": s[1]}
        for s in said
    ]
    return {"segments": segments, **more}


THREE = [
    line("a?", ("b", -0.5), "c?", ("d", 1.0), success=True),
    line("a?", ("x", -0.5), "zz?", stop="truncated", success=False),
    line("q?", ("y", 0.0)),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path, THREE)


def written(folder: Path, lines: list[Any]) -> Path:
    path = folder / "talks.jsonl"
    path.write_text("".join((s if isinstance(s, str) else json.dumps(s)) + "\n" for s in lines))
    return path


def test_what_is_written_is_read_again(file: Path, tmp_path: Path) -> None:
    found = read_dialogues(file)
    assert [d.total for d in found] == [0.5, -0.5, 0.0]
    assert [d.truncated for d in found] == [False, True, False] and [d.success for d in found] == [True, False, None]
    write_dialogues(tmp_path / "again.jsonl", found)
    again = read_dialogues(tmp_path / "again.jsonl")
    assert again == found
    assert is_dialogues(file) and not is_dialogues(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("nonsense", "2: this is no JSON object"),
        ([1], "a line must be a JSON object with 'segments', got"),
        ({"segments": []}, "'segments' must be a list of who said what, and is missing or empty"),
        ({"segmets": []}, "dialogue has no 'segmets'; did you mean 'segments'"),
        (line("a?"), "nothing is said by the assistant"),
        (line(("b", 1.0)), "the first segment is the assistant's, which answers to nothing"),
        (line("a?", ("b", "much")), "the reward of segment 1 must be a finite number, got 'much'"),
        (line("a?", ("b", True)), "the reward of segment 1 must be a finite number, got True"),
        ('{"segments": [{"role": "user", "text": "a"}, {"role": "assistant", "text": "b", "reward": NaN}]}', "NaN"),
        ({"segments": [{"role": "user", "text": "a", "reward": 2}, {"role": "assistant", "text": "b"}]},
         "segment 0 is the user's and has a reward: put it at the assistant's turn"),
        ({"segments": [{"role": "bot", "text": "a"}]}, "the role of segment 0 must be one of .*assistant.*, got 'bot'"),
        ({"segments": [{"role": "user", "text": 7}]}, "the text of segment 0 must be text, got 7"),
        ({"segments": [{"role": "user", "text": "a", "rewrd": 7}]}, "segment 0 has no 'rewrd'; did you mean 'reward'"),
        (line("a?", ("b", 1.0), stop="tired"), "'stop' must be one of terminated, truncated, got 'tired'"),
        (line("a?", ("b", 1.0), success="yes"), "'success' must be true or false, got 'yes'"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_line_is_said(tmp_path: Path, wrong: Any, sentence: str) -> None:
    path = written(tmp_path, [THREE[0], wrong])
    with pytest.raises(DataError, match=sentence) as caught:
        read_dialogues(path)
    assert f"{path}:2" in str(caught.value)


def test_files_that_are_not_there_or_empty_are_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no file"):
        read_dialogues(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="is empty: every line is a dialogue"):
        read_dialogues(written(tmp_path, [""]))


def test_what_is_in_them(file: Path) -> None:
    told = counted(read_dialogues(file))
    assert told["episodes"] == 3 and told["turns"] == 4 and told["rewarded_turns"] == 3
    assert told["ends"] == {"terminated": 2, "truncated": 1} and told["success"] == 0.5
    assert told["returns"] == {"least": -0.5, "mean": 0.0, "most": 0.5}
    assert told["rewards"] == {"least": -0.5, "mean": 0.0, "most": 1.0}


@pytest.mark.slow
def test_data_info_tells_it(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app(["data", "info", str(file), "--model", "tiny", "--json"], result_action="return_value")
    told = json.loads(capsys.readouterr().out)
    said, shown = ("b", "d", "x", "y"), ("a?", "c?", "a?", "zz?", "q?")
    tokens = {"said": sum(map(len, said)) + len(said), "shown": sum(map(len, shown))}  # a byte each, and an end
    assert told["tokens"] == tokens and told["turns"] == 4
    app(["data", "info", str(file), "--model", "tiny"], result_action="return_value")
    out = capsys.readouterr().out
    assert "3 dialogues, 4 turns" in out and "8 said, 11 shown" in out and "-0.5 to 0.5, 0 on average" in out
    with pytest.raises(ConfigError, match="--reference cannot be said of dialogues"):
        app(["data", "info", str(file), "--reference", "x"], result_action="return_value")


# As a task


def test_a_file_of_dialogues_is_a_task_of_its_own(file: Path) -> None:
    task = resolve_task(str(file))
    assert isinstance(task, Dialogues) and task.id == "talks" and task.splits() == ("train",)
    assert "cannot be played" in str(task.needs_reward())
    pool = task.problems("train")
    assert [p.prompt for p in pool] == ["a?", "a?", "q?"]
    said = task.script(pool[1], Stream(0))
    assert [s.reward for s in said] == [0.0, -0.5, 0.0] and said[-1].info["stop"] is StopReason.TRUNCATED
    with pytest.raises(ConfigError, match="name their game"):
        task.environment()


def test_the_best_share_is_kept_in_the_order_of_the_file(file: Path) -> None:
    for top, kept in ((1.0, [0.5, -0.5, 0.0]), (0.67, [0.5, 0.0]), (0.34, [0.5]), (0.01, [0.5])):
        pool = Dialogues(data=str(file), top=top).problems("train")
        assert [p.info["return"] for p in pool] == kept


def test_with_a_game_it_is_played_as_the_game_is(file: Path) -> None:
    task = compose_task("text-maze", [f"task.data={file}", "task.top=0.5", "task.size=3"])
    assert isinstance(task, Dialogues) and task.top == 0.5 and isinstance(task.game, TextMaze) and task.game.size == 3
    assert (task.max_tokens, task.max_turns, task.id) == (2, 16, "text-maze")
    assert task.splits() == ("train", "test") and task.problems("test")[0].info["start"]
    assert task.needs_reward() is None and task.environment().reset(task.problems("test")[0], 0)


def test_other_files_are_no_dialogues(tmp_path: Path) -> None:
    (tmp_path / "problems.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    with pytest.raises(ConfigError, match="files of problems are tasks themselves"):
        compose_task("text-maze", [f"task.data={tmp_path / 'problems.jsonl'}"])
    assert not isinstance(resolve_task(str(tmp_path / "problems.jsonl")), Dialogues)


def rows(task: Dialogues) -> Any:
    """All of its rows, with rewards."""
    from etude.core.rows import to_batch

    policy = random_policy()
    context = Context(task, policy, Stream(0))
    episodes = Demonstrations().collect(list(task.problems("train")), context)
    batch = to_batch(episodes, 0, 1.0, policy.device)
    return batch.replace(rewards=TaskReward().shape(batch))


@pytest.mark.slow
def test_rows_have_rewards_at_turns_and_say_what_was_cut_off(file: Path) -> None:
    batch = rows(Dialogues(data=str(file)))
    assert batch.truncated.tolist() == [False, True, False] and batch.written.all()
    assert batch.action_counts.tolist() == [4, 2, 2]  # a letter and the token that ends the turn
    paid = [[r for r, on in zip(row, mask) if on] for row, mask in zip(batch.rewards.tolist(), batch.action_mask)]
    assert paid == [[0.0, -0.5, 0.0, 1.0], [0.0, -0.5], [0.0, 0.0]]
    assert batch.rewards.sum().item() == 0.0  # and nowhere else


def test_scripts_of_games_say_where_a_limit_stopped_them() -> None:
    maze = TextMaze(size=3, max_turns=1, slips=1.0)
    lost = [s for s in (maze.script(maze.problems("train")[i], Stream(i)) for i in range(20)) if not s[1].reward]
    assert lost and all(s[-1].info["stop"] is StopReason.TRUNCATED for s in lost)
    assert recorded(lost[0]).truncated


def test_recorded_scripts_are_dialogues(tmp_path: Path) -> None:
    maze = TextMaze(size=3, max_turns=4, slips=0.5, cost=0.25)
    pool = [maze.problems("train")[i] for i in range(20)]
    lines = RecordScript(called="games").rows(pool, maze, 3)
    assert lines == RecordScript(called="games").rows(pool, maze, 3) != RecordScript(called="games").rows(pool, maze, 4)
    found = read_dialogues(written(tmp_path, lines))
    assert {d.success for d in found} == {True, False}
    for d in found:
        assert d.truncated == (not d.success) == (d.total == -1.0)
    with pytest.raises(DataError, match="has none: record a policy instead"):
        RecordScript(called="games").rows([], resolve_task("signals"), 0)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_games_of_a_policy_are_recorded(tmp_path: Path) -> None:
    maze = TextMaze(size=3, max_turns=2, cost=0.25)
    pool = [maze.problems("train")[i] for i in range(3)]
    lines = RecordPlay(called="games", samples=2).rows_by(pool, maze, random_policy(), 0)
    found = read_dialogues(written(tmp_path, lines))
    assert len(found) == 6 and all(d.truncated and d.total == -0.5 for d in found)
    assert [d.id for d in found] == [p.id for p in pool for _ in range(2)]


# Trained on, without a game


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("method", ["ilql", "mc-returns", "sft"])
def test_methods_learn_from_them_alone(file: Path, method: str) -> None:
    changed: Any = etude.method(method).replace(problems=3)  # type: ignore[attr-defined]
    loop = make_loop(changed, Dialogues(data=str(file)), steps=2)
    found = [loop.step().metrics for _ in range(2)]
    assert all(m["rows"] == 3 for m in found)
    if method != "sft":
        name = changed.learners[0].label
        assert found[1][f"{name}_loss"] < found[0][f"{name}_loss"]


def test_a_segment_of_a_dialogue_is_never_changed(file: Path) -> None:
    task = Dialogues(data=str(file))
    [first, *_] = task.problems("train")
    task.script(first, Stream(0))[0].tokens = [1]
    assert task.script(first, Stream(0))[0] == Segment("user", "a?")
    assert isinstance(first, Problem)
