"""The words of games in text, one token each: family `games` of `word_tokenizer.py`."""

from __future__ import annotations

from string import ascii_lowercase, digits

# Milestones

ROOMS = ("hall", "kitchen", "attic", "cellar", "library", "garage", "pantry", "studio")
THINGS = ("lamp", "rope", "tent", "coin", "drum", "harp", "crown", "sword")
_DOING = ("go", "take", "put", "open", "bring", "key", "|", "no", "got", "opened")

# API-world

PEOPLE_OF_APPS = ("anna", "ben", "clara", "david", "emma", "felix", "greta", "hugo")
CALLS: dict[str, tuple[str, ...]] = {
    "list": (), "read": ("number",), "write": ("number", "name", "amount"), "erase": ("number",),
    "people": (), "find": ("name",), "save": ("name", "account"), "forget": ("name",),
    "balance": (), "pay": ("account", "amount"), "ask": ("account", "amount"), "doc": ("call",),
}  # fmt: skip
"""What can be called, with the kinds of its arguments; those of `pay` and `ask` come in either order."""
_KINDS = ("number", "name", "amount", "account", "call")
_APPS = ("note", "and", "copy", "to", "done", "over", "ok", "error", "none", *_KINDS)

# Maze, menus, Wordle, plans

MOVES = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
_MAZE = (*MOVES, "at", "goal", "wall", "there")
APPS: dict[str, tuple[str, ...]] = {
    "network": ("wifi", "bluetooth", "hotspot"), "screen": ("dim", "rotate", "zoom"),
    "sound": ("ring", "vibrate", "music"), "privacy": ("camera", "microphone", "location"),
    "battery": ("saver", "charge", "widget"), "system": ("update", "backup", "clock"),
    "mail": ("sync", "signature", "spam"), "photos": ("flash", "timer", "grid"),
    "maps": ("traffic", "satellite", "offline"),
}  # fmt: skip
"""Menus of the phone with their settings."""
FOLDERS = ("device", "accounts", "apps")
SETTINGS = tuple(setting for settings in APPS.values() for setting in settings)
_MENUS = (*FOLDERS, *APPS, *SETTINGS, "tap", "back", "on", "off", "home", "set")
MARKS = "+?-"
"""Of a guess in Wordle: right, elsewhere, not there."""
FEATURES = ("plain", "squares", "products")
MODELS = ("constant", "linear", "neighbours", "trees")
SIZES = ("small", "medium", "large")
STEPS = ("read", "features", "model", "train", "predict", "save")
_PLANS = (*STEPS, *FEATURES, *MODELS, *SIZES, "plan")

_SPACED = (
    *_DOING, *ROOMS, *THINGS, *_APPS, *CALLS, *PEOPLE_OF_APPS, *digits, *_MAZE, *_MENUS, *_PLANS, "hint",
)  # fmt: skip
GAMES = tuple(dict.fromkeys(["\n", " ", *(f" {word}" for word in _SPACED), *ascii_lowercase, *MARKS]))
"""All words that begin with a space, and letters for Wordle."""
