"""Chess endgames in text: positions that are won for White, who is to move, against a lone king.

    Ka1 Qb2 ke5                             a position: pieces and where they stand, Black's written small
    Qb4                                     a move, as SAN
    Ka1 Qb4 kd5                             the position after Black's answer

or, with `task.position=fen`, `8/8/8/4k3/8/8/1Q6/K7 w - - 0 1` and so on.

The rules are those of the package `chess`. A move that is none, or that nobody may make here, costs 1 and changes
nothing, as in the released code of LMRL-Gym (arXiv:2311.18232): the position is told again.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, MissingExtraError
from etude.core.fields import Count
from etude.core.streams import Stream
from etude.tasks.agents.games import Game, Heard, Posed, TurnTask, one_of

if TYPE_CHECKING:
    import chess

Ending = Literal["KQK", "KRK", "KPK"]
"""White's pieces, then Black's."""


def rules() -> Any:
    """The package `chess`. Raises MissingExtraError without it."""
    try:
        return importlib.import_module("chess")
    except ImportError:
        raise MissingExtraError("The task endgames", "games") from None


class Endgames(TurnTask):
    """Mate a lone king: 1 for mate; -1 for each move that is not legal, and for being mated; 0 for a draw.

    Args:
        endings: what White has beside the king. A queen or a rook wins from every position in which White is to move;
            of pawns those are posed that run through: pushed at every move they become a queen that stays, whatever
            Black does.
        opponent: 'random' makes any legal move; 'flees' takes what it can, else goes where its king has most squares to
            go to next. What it does by chance the position and the seed decide, so a game can be branched.
        position: how a position is told: 'pieces' names each and where it stands, 'fen' is the usual line of a whole
            board, whose clocks it also tells.
        max_turns, slips, seed: as of `TurnTask`; turns are White's moves.

    Splits: 'train' and 'test', which share no position. Levels are the endings.

    Raises: MissingExtraError without the package `chess`.

    >>> from etude.core.episodes import Segment
    >>> game = endgames.environment()
    >>> shown = game.reset(Problem("1", "", info={"fen": "7k/5K2/8/8/8/8/8/6Q1 w - - 0 1"}), 0)
    >>> [(r.segments[0].text, r.reward) for r in [game.step(Segment("assistant", "Qg7#"))]]
    [(' mate\\n', 1.0)]
    """

    id: ClassVar[str] = "endgames"
    max_tokens: ClassVar[int] = 8

    endings: tuple[Ending, ...] = ("KQK", "KRK", "KPK")
    opponent: Literal["random", "flees"] = "random"
    position: Literal["pieces", "fen"] = "pieces"
    max_turns: Count = 30  # type: ignore[misc]

    def check(self) -> None:
        if not self.endings:
            raise ConfigError("Endgames.endings names what White has: give one at least, as in task.endings=KQK.")

    def posed(self, random: Generator) -> Posed | None:
        chess = rules()
        ending = one_of(random, self.endings)
        board = placed(chess, ending[1], random)
        if board is None or (ending == "KPK" and not runs_through(board.fen())):
            return None
        return Posed(f" {self.told(board)}\n", None, ending, {"fen": board.fen()})

    def divided(self, posed: Posed) -> str:
        return f"{posed.info['fen']}\n"

    def told(self, board: chess.Board) -> str:
        """A position as the player is told it; pieces in the order of FEN's letters: White's king first."""
        return str(board.fen()) if self.position == "fen" else pieces(board)

    def environment(self) -> Endgame:
        return Endgame(self)


def pieces(board: chess.Board) -> str:
    """Each piece and its square, White's in the order of `KQRBNP`, then Black's, both by squares.

    >>> import chess
    >>> pieces(chess.Board("8/8/8/4k3/8/8/1Q6/K7 w - - 0 1"))
    'Ka1 Qb2 ke5'
    """
    found = sorted(("KQRBNPkqrbnp".index(piece.symbol()), square) for square, piece in board.piece_map().items())
    return " ".join("KQRBNPkqrbnp"[kind] + rules().square_name(square) for kind, square in found)


def placed(chess: Any, piece: str, random: Generator) -> chess.Board | None:
    """Both kings and a piece of White's anywhere; None where that is no position, or no game with White to move."""
    squares = [int(s) for s in random.permutation(64)[:3]]
    board = chess.Board(None)
    for square, symbol in zip(squares, ("K", piece, "k")):
        board.set_piece_at(square, chess.Piece.from_symbol(symbol))
    return board if board.is_valid() and not board.is_game_over() else None


@lru_cache(maxsize=10_000)
def runs_through(fen: str) -> bool:
    """Whether White's pawn, pushed at every move, becomes a queen that is not taken and leaves no stalemate.

    Every answer of Black's is tried, so this is exact for White who only pushes; other pawns may win in other ways.

    >>> runs_through("8/8/8/6k1/P7/8/8/7K w - - 0 1"), runs_through("8/8/8/4k3/P7/8/8/7K w - - 0 1")
    (True, False)
    """
    chess = rules()
    board = chess.Board(fen)
    (pawn,) = board.pieces(chess.PAWN, chess.WHITE)
    last = chess.square_rank(pawn) == 6
    push = chess.Move(pawn, pawn + 8, chess.QUEEN if last else None)
    if not board.is_legal(push):
        return False
    board.push(push)
    if board.is_checkmate() or board.is_stalemate():
        return bool(board.is_checkmate())
    answers = list(board.legal_moves)
    if last or any(board.is_capture(answer) for answer in answers):
        return not any(board.is_capture(answer) for answer in answers)
    return all(runs_through(after(board, answer)) for answer in answers)


def after(board: chess.Board, move: chess.Move) -> str:
    """The position that a move leads to; its clocks stand still."""
    found = board.copy(stack=False)
    found.push(move)
    found.halfmove_clock, found.fullmove_number = 0, 1
    return str(found.fen())


def read(board: chess.Board, said: str) -> chess.Move | None:
    """The legal move that is said as SAN, whose marks of check may be missing; None for anything else."""
    try:
        move = board.parse_san(said)
    except ValueError:
        return None
    return move if board.is_legal(move) else None


def drawn(board: chess.Board) -> bool:
    """Stalemate, too little to mate with, or fifty moves without a pawn's move or a capture."""
    return bool(board.is_stalemate() or board.is_insufficient_material() or board.halfmove_clock >= 100)


def ways_on(board: chess.Board, move: chess.Move) -> int:
    """How many squares Black's king has to go to, if White passed, after a move of Black's."""
    found = board.copy(stack=False)
    found.push(move)
    found.push(rules().Move.null())
    return found.legal_moves.count()


NARROW = 4
"""Squares of room from which on it is worth looking for mate two moves ahead."""


def left(board: chess.Board, move: chess.Move) -> tuple[int, int, int, int]:
    """What a move of White's leaves Black; less is better.

    Whether it throws the win away; answers that are not mated at once, where there is little room; room; the squared
    distance between the kings.
    """
    chess = rules()
    found = board.copy(stack=False)
    found.push(move)
    if found.is_checkmate():
        return -1, 0, 0, 0
    spoilt = found.is_stalemate() or any(found.is_capture(answer) for answer in found.legal_moves)
    king, other = king_of(found, chess.BLACK), king_of(found, chess.WHITE)
    apart = [(king & 7) - (other & 7), (king >> 3) - (other >> 3)]
    size = len(room(found))
    safe = escapes(found) if size <= NARROW and not spoilt else NARROW
    return int(spoilt), safe, size, sum(x * x for x in apart)


def escapes(board: chess.Board) -> int:
    """After how many of Black's answers White cannot mate at once."""
    return sum(not mates(after(board, answer)) for answer in board.legal_moves)


@lru_cache(maxsize=10_000)
def mates(fen: str) -> bool:
    """Whether a move mates."""
    board = rules().Board(fen)
    for move in list(board.legal_moves):
        board.push(move)
        mated = board.is_checkmate()
        board.pop()
        if mated:
            return True
    return False


def king_of(board: chess.Board, colour: bool) -> int:
    """The square of a king, both of which are always there."""
    square = board.king(colour)
    assert square is not None
    return int(square)


def room(board: chess.Board) -> set[int]:
    """Squares that Black's king can get to as White stands, its own among them."""
    chess = rules()
    king = king_of(board, chess.BLACK)
    bare = board.copy(stack=False)
    bare.remove_piece_at(king)  # it shields no square from what attacks it
    free = chess.BB_ALL
    for square in chess.scan_forward(bare.occupied_co[chess.WHITE]):
        free &= ~bare.attacks_mask(square)
    found = ahead = chess.BB_SQUARES[king]
    while ahead:
        near = 0
        for square in chess.scan_forward(ahead):
            near |= chess.BB_KING_ATTACKS[square]
        ahead = near & free & ~found
        found |= ahead
    return set(chess.scan_forward(found))


PATIENCE = 24
"""Half-moves after which a plan is given up."""


class Endgame(Game):
    """One game. `state`: the position with White to move, as `fen`."""

    def __init__(self, task: Endgames) -> None:
        super().__init__(task)
        self.task = task

    def begun(self, problem: Problem) -> dict[str, Any]:
        return {"fen": str(problem.info["fen"])}

    @property
    def board(self) -> chess.Board:
        """The position."""
        found: chess.Board = rules().Board(self.state["fen"])
        return found

    def said(self, words: Sequence[str]) -> Heard:
        board = self.board
        move = read(board, " ".join(words))
        if move is None:
            return Heard(f" illegal {self.task.told(board)}", -1.0, valid=False)
        board.push(move)
        if board.is_checkmate():
            return Heard(" mate", 1.0, True, True)
        if not drawn(board):
            board.push(self.answer(board))
        self.state["fen"] = board.fen()
        if board.is_checkmate():
            return Heard(" lost", -1.0, True)
        return Heard(" draw", 0.0, True) if drawn(board) else Heard(f" {self.task.told(board)}")

    def answer(self, board: chess.Board) -> chess.Move:
        """Black's move."""
        moves = sorted(board.legal_moves, key=str)
        if self.task.opponent == "flees":
            worth = [(board.is_capture(move), ways_on(board, move)) for move in moves]
            moves = [move for move, w in zip(moves, worth) if w == max(worth)]
        random = Stream(self.task.seed).split(self.task.id, "opponent", board.fen()).numpy
        move: chess.Move = one_of(random, moves)
        return move

    def best(self, random: Generator) -> str:
        """A pawn is pushed. Else mate, if there is one, or what leaves Black least room and brings White's king near.

        Where that has led nowhere for a dozen moves, one of three is any that does not throw the win away.
        """
        board = self.board
        moves = sorted(board.legal_moves, key=str)
        pushes = [move for move in moves if board.piece_type_at(move.from_square) == rules().PAWN]
        worth = [left(board, move) for move in (pushes or moves)]
        if board.halfmove_clock >= PATIENCE and random.random() < 1 / 3:
            worth = [(min(w[0], 1), 0, 0, 0) for w in worth]
        return str(board.san(one_of(random, [m for m, w in zip(pushes or moves, worth) if w == min(worth)])))

    def anything(self, random: Generator) -> str:
        board = self.board
        return str(board.san(one_of(random, sorted(board.legal_moves, key=str))))

    def tools(self) -> list[dict[str, Any]]:
        """What can be said."""
        return [{"name": "move", "example": "Qb4", "arguments": {"move": "SAN"}}]


endgames = Endgames()
