"""What can be called: every function here whose name does not begin with an underscore."""

PRICES = {
    "lamp": 7,
    "tent": 42,
    "mug": 3,
    "clock": 15,
    "radio": 28,
    "chair": 31,
    "piano": 96,
    "bike": 58,
    "book": 9,
    "cup": 4,
}


def price(item: str) -> int:
    """The price of an item in the shop, in euros."""
    return PRICES[item]


def items(most: int) -> list[str]:
    """Names of the items that cost no more than this."""
    return [name for name, euros in PRICES.items() if euros <= most]
