"""Rewards, as TRL's users write them: lists in, numbers out."""

import asyncio


def right(completions, answers):
    return [float(text.strip() == answer) for text, answer in zip(completions, answers)]


def short(completions):
    return [-len(text) / 100 for text in completions]


async def judged(completion, answer):
    await asyncio.sleep(0)  # where yours would ask a server
    return float(answer in completion)
