"""Tokenizers with one token per word and tag, one for each family of tasks: `blank:2x128x4@tools`.

A text is taken apart from its beginning, the longest word that fits each time, so decoding undoes encoding exactly.
What no word fits is unknown, character by character. Tasks write their texts in these words.
"""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase, digits
from typing import TYPE_CHECKING

from etude.core.errors import UnknownNameError
from etude.policies.agent_words import GAMES
from etude.policies.byte_tokenizer import END, PAD
from etude.policies.code_words import CODE
from etude.policies.service_words import NOUNS, PARTS, REPLIES
from etude.policies.service_words import VERBS as ASKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

UNKNOWN = "<|unknown|>"

# Family `tools`: functions with typed parameters, and what is asked of them

VALUES: dict[str, tuple[str, ...]] = {
    "city": ("paris", "rome", "oslo", "cairo", "lima", "tokyo", "delhi", "quito"),
    "day": ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
    "person": ("anna", "ben", "clara", "david", "emma", "felix", "greta", "hugo"),
    "item": ("lamp", "chair", "piano", "tent", "radio", "clock", "bike", "mug"),
    "color": ("red", "green", "blue", "white", "black", "yellow"),
    "number": tuple(str(n) for n in range(2, 13)),
}
"""Values by type; a parameter is called as its type. Numbers are written without quotes."""
TOOLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "book_flight": ("fly", ("city", "day")),
    "reserve_hotel": ("sleep", ("city", "day", "number")),
    "send_mail": ("write", ("person",)),
    "call_phone": ("ring", ("person", "day")),
    "buy_item": ("buy", ("item", "number")),
    "sell_item": ("sell", ("item",)),
    "paint_item": ("paint", ("item", "color")),
    "lend_item": ("lend", ("item", "person", "day")),
    "get_weather": ("forecast", ("city",)),
    "find_train": ("ride", ("city", "day", "person")),
    "invite_guest": ("invite", ("person", "city")),
    "pay_person": ("pay", ("person", "number")),
    "repair_item": ("repair", ("item", "day")),
    "ship_item": ("ship", ("item", "city")),
    "set_alarm": ("wake", ("day", "number")),
    "choose_color": ("choose", ("color",)),
    "count_stock": ("count", ("item", "color")),
    "plan_tour": ("tour", ("city", "number")),
    "order_taxi": ("taxi", ("person", "number")),
    "wrap_gift": ("wrap", ("item", "color", "person")),
}
"""What asks for each tool, and its parameters."""
_KEYS = tuple(f'{key}": ' if key == "number" else f'{key}": "' for key in VALUES)
"""A key with all that comes before its value, so that the token before a value says what it must be."""
_JSON = ('{"name": "', '", "parameters": {"', *_KEYS, '", "', ', "', '"}}', "}}")
_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<response>", "</response>")

# Families `facts` and `questions`: made-up people, what they are to each other, and questions about chains of that,
# which the second can also pose

PEOPLE = tuple(
    first + last
    for first in ("bal", "cor", "dun", "fen", "gil", "hav", "jom", "kes")
    for last in ("ada", "eki", "ino", "ora", "usu", "yle", "ath", "ond")
)
RELATIONS = ("friend", "boss", "pupil", "guest", "rival", "doctor")
QUESTION_TAGS = ("<question>", "</question>")
SEARCH_TAGS = tuple(f"<{end}{tag}>" for tag in ("think", "search", "information", "answer") for end in ("", "/"))

# Families `reviews` and `cues`: reviews with a cue and a label behind them, and the cues alone

CONTENT = tuple(f" {first}{last}" for first in ("bo", "ce", "di", "fu", "ga", "hy") for last in "blmnprstvz")
CUES = tuple(
    f" {first}{last}" for first in ("ar", "el", "im", "os", "ul", "yn", "ack", "ez")
    for last in ("da", "ke", "lo", "mi", "nu", "ra", "so", "ty")
)  # fmt: skip
LABELS = (" bad", " good")


# Family `stories`: sentences of what happens to a thing, by whom and where

VERBS = ("finds", "uses", "breaks", "loses", "mends")
THINGS = ("lamp", "rope", "boat", "coin", "drum", "kite", "sword", "harp", "crown", "comet")
ACTORS = ("ana", "ben", "cleo", "dan", "eva")
PLACES = ("mill", "barn", "well", "pier")


# Family `chess`: positions and moves, squares whole and the rest letter by letter, and what a game comes to

CHESS = (
    *"KQRBNPkqrbnp", *"abcdefgh", *digits, *"/-wx+#=O", " ", "\n", "mate", "lost", "draw", "illegal",
    *(f"{file}{rank}" for file in "abcdefgh" for rank in range(1, 9)),
)  # fmt: skip
"""Pieces and squares, FEN and SAN; some letters of pieces and of files are the same."""


# Family `agents`: all that agents' tasks say, these words and those of the families of single ones

_CELLS = tuple(f"{x}{y}" for x in range(6) for y in range(6))
_SPOKEN = ("who?", "ask ", "yes\n", "no\n", "invalid\n", "hunt>", "=", "tell ", "hear ", ":", ".")


def words(family: str) -> list[str]:
    """The words of a family, in order. Raises UnknownNameError for one that is not there."""
    if family not in FAMILIES:
        raise UnknownNameError("family of words", family, FAMILIES)
    return list(dict.fromkeys(FAMILIES[family]))


_OF_ONE: dict[str, tuple[str, ...]] = {
    "tools": (
        *_TAGS, *_JSON, "\n", " ", "(", ")", ",", *TOOLS, *(verb for verb, _ in TOOLS.values()), *VALUES,
        *(value for values in VALUES.values() for value in values),
    ),
    "values": (
        "keys ", "get ", "say ", "right", "wrong", "invalid", "Summary:", "\n", " ", *ascii_lowercase, *digits,
    ),
    "games": GAMES,
    "code": CODE,
    "facts": (*SEARCH_TAGS, "\n", "?", "'s ", " is ", *RELATIONS, *PEOPLE),
    "questions": (*SEARCH_TAGS, *QUESTION_TAGS, "\n", "?", "'s ", " is ", *RELATIONS, *PEOPLE),
    "reviews": (*CONTENT, *CUES, *LABELS),
    "cues": ("?", *CUES),
    "services": (
        "<tool_call>", "</tool_call>", *_JSON, '", "parameters": {}}', "\n", " ", "(", ")", ",", "?", *PARTS, *VALUES,
        *ASKING.values(), *NOUNS, *REPLIES, *(value for values in VALUES.values() for value in values),
    ),
    "stories": (
        ".", *(f" {verb}-{thing}" for verb in VERBS for thing in THINGS), *(f" {word}" for word in (*ACTORS, *PLACES)),
    ),
}  # fmt: skip
FAMILIES = {
    **_OF_ONE,
    "chess": CHESS,
    "agents": (
        *(word for family in ("tools", "values", "games", "questions") for word in _OF_ONE[family]),
        *(f" {word}" for word in (*TOOLS, *(value for values in VALUES.values() for value in values))),
        *_SPOKEN, *_CELLS, *ascii_uppercase,
    ),
}  # fmt: skip


def build_word_tokenizer(family: str, max_length: int) -> PreTrainedTokenizerFast:
    """A family's tokenizer, ready to be saved beside a model that has `max_length` positions.

    >>> tokenizer = build_word_tokenizer("tools", 128)
    >>> tokens = tokenizer.encode('fly paris\\n<tool_call>{"name": "book_flight')
    >>> len(tokens), tokenizer.decode(tokens[-2:])
    (7, '{"name": "book_flight')
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = words(family)
    tokens = {token: i for i, token in enumerate([PAD, END, UNKNOWN, *known])}
    longest = sorted(known, key=len, reverse=True)
    core = Tokenizer(models.WordLevel(tokens, UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(map(_escaped, longest)) + r"|[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token=PAD, eos_token=END, unk_token=UNKNOWN, padding_side="left",
        model_max_length=max_length, clean_up_tokenization_spaces=False,
    )  # fmt: skip


def _escaped(word: str) -> str:
    """A word as a regular expression of Oniguruma."""
    return "".join(f"\\{c}" if not c.isalnum() and c not in "\n _<>/'\",:" else c for c in word)
