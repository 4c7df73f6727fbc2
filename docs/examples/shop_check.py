"""1 for the right price, which only the tool knows; a tenth for a call that was answered."""


def score(messages, answers):
    return [
        float(said[-1]["content"].strip() == answer) + 0.1 * called(said) for said, answer in zip(messages, answers)
    ]


def called(said):
    """Whether a tool answered."""
    return any(m["role"] == "tool" and not m["content"].startswith("Error") for m in said)
