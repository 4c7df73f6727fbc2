"""Endgames: the rules against `chess` itself, what is posed, how a game ends, and that it can be gone back to."""

from __future__ import annotations

import json
import sys
from typing import Any

import chess
import pytest

from etude.core.episodes import Problem, Segment
from etude.core.errors import ConfigError, EnvironmentFault, MissingExtraError, UnknownNameError
from etude.core.registry import load_task
from etude.core.streams import Stream
from etude.policies.word_tokenizer import build_word_tokenizer
from etude.tasks.agents.endgames import Endgame, Endgames, endgames, read, runs_through


def begun(fen: str, **fields: Any) -> Endgame:
    game = Endgames(**fields).environment()
    game.reset(Problem("1", f"{fen}\n", info={"fen": fen}), 0)
    return game


def say(game: Endgame, *moves: str) -> list[Any]:
    return [game.step(Segment("assistant", move)) for move in moves]


def outcome(fen: str, move: str) -> tuple[str, float, bool, bool]:
    (found,) = say(begun(fen), move)
    assert found.info is not None
    return found.segments[0].text, found.reward, found.terminated, found.info["success"]


def test_mate_wins() -> None:
    assert outcome("7k/5K2/8/8/8/8/8/6Q1 w - - 0 1", "Qg7#") == (" mate\n", 1.0, True, True)
    assert outcome("7k/8/6K1/8/8/8/8/R7 w - - 0 1", " Ra8") == (" mate\n", 1.0, True, True)


def test_stalemate_and_too_little_and_fifty_moves_are_draws() -> None:
    assert outcome("7k/8/5K2/8/8/8/6Q1/8 w - - 0 1", "Qg6") == (" draw\n", 0.0, True, False)
    hanging = say(begun("8/8/8/8/8/1k6/8/K1R5 w - - 0 1", opponent="flees"), "Rc2")  # which the king takes
    assert hanging[0].segments[0].text == " draw\n" and hanging[0].terminated
    assert outcome("7k/8/5K2/8/8/8/8/R7 w - - 98 90", "Ra2")[0] == " draw\n"
    assert outcome("7k/8/5K2/8/8/8/8/R7 w - - 97 90", "Ra2")[0] != " draw\n"


@pytest.mark.parametrize("said", ["Qh9", "Qg8", "Kh7", "nonsense", "", "Qa2 Qa3", "--", "O-O", "e5", "Ka3"])
def test_what_is_no_legal_move_costs_and_changes_nothing(said: str) -> None:
    """The pieces stand on a1 (queen), f6 (king) and h8, so that no queen goes to g8, and no king to h7 or a3."""
    game = begun("7k/8/5K2/8/8/8/8/Q7 w - - 0 1")
    found, after = say(game, said, "Qh1+")
    assert (found.segments[0].text, found.reward, found.terminated) == (" illegal Kf6 Qa1 kh8\n", -1.0, False)
    assert found.info is not None and found.info["valid"] is False and found.info["success"] is False
    assert after.reward == 0 and after.segments[0].text.startswith(" Kf6 Qh1 k")


def test_being_mated_loses() -> None:
    """A position that is never posed, with a queen of Black's, and an opponent who mates."""
    game = begun("8/8/8/8/8/1q4k1/P7/7K w - - 0 1")
    game.answer = lambda board: board.parse_san("Qb1")  # type: ignore[method-assign]
    (found,) = say(game, "a4")
    assert found.segments[0].text == " lost\n" and found.reward == -1.0 and found.terminated


def test_an_ambiguous_move_is_none_and_marks_of_check_may_be_missing() -> None:
    board = chess.Board("7k/8/5K2/8/8/8/8/R6R w - - 0 1")
    assert read(board, "Rd1") is None and read(board, "Rad1") == chess.Move.from_uci("a1d1")
    assert read(chess.Board("7k/5K2/8/8/8/8/8/6Q1 w - - 0 1"), "Qg7") == chess.Move.from_uci("g1g7")


@pytest.mark.slow
@pytest.mark.parametrize("opponent", ["random", "flees"])
def test_games_follow_the_rules(opponent: Any) -> None:
    """Every position that is told comes of the last one by the move that was said and a legal one of Black's."""
    task = endgames.replace(opponent=opponent, slips=0.5, position="fen")
    for i in range(3):
        problem = task.problems("train")[i]
        segments = task.script(problem, Stream(i))
        told = [s.text.strip() for s in segments if s.role == "user"]
        said = [s.text for s in segments if s.role == "assistant"]
        for before, move, later in zip(told, said, told[1:]):
            if later in ("draw", "mate", "lost"):
                continue
            board = chess.Board(before.strip())
            board.push_san(move)
            reached = set()
            for answer in board.legal_moves:
                board.push(answer)
                reached.add(board.fen())
                board.pop()
            assert later in reached


def test_who_flees_takes_what_it_can_and_else_goes_where_most_is_open() -> None:
    game = begun("8/8/8/8/8/8/1k6/K1R5 w - - 0 1", opponent="flees")
    board = chess.Board("7k/8/8/8/8/8/8/K5R1 b - - 0 1")
    assert board.san(game.answer(board)) == "Kh7"
    beside = chess.Board("8/8/8/3k4/3R4/8/8/K7 b - - 0 1")
    assert beside.san(game.answer(beside)) == "Kxd4"


@pytest.mark.slow
def test_what_is_posed() -> None:
    for ending, piece in (("KQK", chess.QUEEN), ("KRK", chess.ROOK), ("KPK", chess.PAWN)):
        task = endgames.replace(endings=(ending,))
        for i in range(5):
            problem = task.problems("test")[i]
            board = chess.Board(problem.info["fen"])
            assert problem.level == ending and problem.prompt == f" {' '.join(listed(board))}\n"
            assert task.replace(position="fen").problems("test")[i].prompt == f" {board.fen()}\n"
            assert board.is_valid() and board.turn == chess.WHITE and not board.is_game_over()
            assert len(board.piece_map()) == 3 and len(board.pieces(piece, chess.WHITE)) == 1
            assert ending != "KPK" or pushed_through(board)


def listed(board: chess.Board) -> list[str]:
    """What stands where, a board's letters read off one by one."""
    rows = str(board).replace(" ", "").splitlines()
    found = [f"{letter}{'abcdefgh'[x]}{8 - y}" for y, row in enumerate(rows) for x, letter in enumerate(row)]
    return sorted((said for said in found if said[0] != "."), key=lambda said: (said[0].islower(), said[0]))


@pytest.mark.slow
def test_games_told_either_way_are_the_same_games() -> None:
    """Problems, answers and what comes of it differ only in how positions are said, and pieces are shorter."""
    short, long = endgames.replace(slips=0.3), endgames.replace(slips=0.3, position="fen")
    for i in range(2):
        a, b = (task.script(task.problems("train")[i], Stream(i)) for task in (short, long))
        assert [(s.role, s.reward) for s in a] == [(s.role, s.reward) for s in b]
        for said, told in zip(a, b, strict=True):
            assert said.text == told.text or said.text.split() == listed(chess.Board(told.text.strip()))
        assert sum(len(s.text) for s in a) < 0.6 * sum(len(s.text) for s in b)


def pushed_through(board: chess.Board) -> bool:
    """By trying every game in which White only pushes, with nothing remembered, the pieces moved by hand."""
    (pawn,) = board.pieces(chess.PAWN, chess.WHITE)
    move = chess.Move(pawn, pawn + 8, chess.QUEEN if pawn >= 48 else None)
    if move not in board.legal_moves:
        return False
    board = board.copy()
    board.push(move)
    if board.is_checkmate():
        return True
    answers = list(board.legal_moves)
    if not answers or any(answer.to_square == move.to_square for answer in answers):
        return False
    if move.promotion:
        return True
    found = []
    for answer in answers:
        board.push(answer)
        found.append(pushed_through(board))
        board.pop()
        if not found[-1]:
            return False
    return True


@pytest.mark.slow
def test_pawns_that_run_through() -> None:
    """From the fourth rank on, both answers, against every game tried."""
    found = []
    for seed in range(60):
        random = Stream(seed).split("pawns").numpy
        pawn, white, black = int(random.integers(32, 56)), *(int(s) for s in random.permutation(64)[:2])
        board = chess.Board(None)
        for square, symbol in ((white, "K"), (black, "k"), (pawn, "P")):
            board.set_piece_at(square, chess.Piece.from_symbol(symbol))
        if len(board.piece_map()) == 3 and board.is_valid() and not board.is_game_over():
            found.append(runs_through(board.fen()))
            assert found[-1] == pushed_through(board), board.fen()
    assert len(found) > 30 and 5 < sum(found) < len(found) - 5


@pytest.mark.slow
def test_scripts_mostly_win_and_worse_ones_less() -> None:
    def won(slips: float) -> int:
        player = endgames.replace(slips=slips)
        return sum(player.script(player.problems("train")[i], Stream(i))[-1].reward == 1.0 for i in range(8))

    assert won(0.0) >= 6 > won(0.9)


@pytest.mark.slow
def test_splits_share_no_position_and_are_the_same_every_time() -> None:
    train, test = ([endgames.problems(s)[i] for i in range(15)] for s in ("train", "test"))
    assert not {p.prompt for p in train} & {p.prompt for p in test}
    assert endgames.problems("test")[7] == endgames.replace(slips=0.5).problems("test")[7] == test[7]
    assert endgames.replace(seed=1).problems("test")[7] != test[7]
    assert {p.level for p in train} == {"KQK", "KRK", "KPK"}
    with pytest.raises(UnknownNameError, match="split of endgames"):
        endgames.problems("dev")


@pytest.mark.slow
def test_a_game_can_be_gone_back_to_through_json() -> None:
    for i in range(3):
        task, problem = endgames.replace(slips=0.3), endgames.problems("train")[i]
        texts = [s.text for s in task.script(problem, Stream(i)) if s.role == "assistant"]
        game, other = task.environment(), task.environment()
        game.reset(problem, 0)
        half = len(texts) // 2
        say(game, *texts[:half])
        kept = json.loads(json.dumps(game.snapshot()))
        rest = say(game, *texts[half:])
        other.reset(endgames.problems("train")[i + 1], 5)
        other.restore(kept)
        assert say(other, *texts[half:]) == rest and rest


def test_games_end_at_their_limit() -> None:
    game = begun("8/8/8/4k3/8/8/8/KQ6 w - - 0 1", max_turns=2)
    first = say(game, "Qb4")[0]
    assert not first.truncated and not first.terminated and first.reward == 0
    there = game.board
    last = say(game, there.san(next(m for m in there.legal_moves if there.piece_type_at(m.from_square) == chess.KING)))
    assert last[0].truncated and not last[0].terminated
    with pytest.raises(EnvironmentFault, match="game of endgames is over"):
        say(game, "Qb4")


@pytest.mark.slow
def test_every_letter_is_a_token_and_moves_fit() -> None:
    words: Any = build_word_tokenizer("chess", 2048)
    for i in range(2):
        task = endgames.replace(slips=0.5, position="pieces" if i else "fen")
        texts = [s.text for s in task.script(task.problems("train")[i], Stream(i))]
        tokens = words(texts)["input_ids"]
        assert all(words.unk_token_id not in t for t in tokens) and list(map(words.decode, tokens)) == texts
        assert all(len(t) < endgames.max_tokens for t in tokens[1::2])
    for told in (" mate\n", " lost\n", " draw\n", " illegal\n", "Qa1xb2#", "a8=Q+"):
        assert words.unk_token_id not in words.encode(told) and len(words.encode(told)) <= 7


def test_it_is_refused_without_the_package_and_without_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"give one at least, as in task\.endings=KQK"):
        Endgames(endings=())
    assert load_task("endgames") == endgames
    monkeypatch.setitem(sys.modules, "chess", None)
    with pytest.raises(MissingExtraError, match=r"The task endgames needs .* pip install 'etude\[games\]'"):
        endgames.problems("train")[0]
