"""Engines in processes of their own, asked over HTTP: token ids in, token ids and their log-probabilities out.

    addresses.py  where one is, as one word says it, and what addresses are allowed
    wire.py       JSON over connections that stay open, with deadlines and a way to wait for room
    dialects.py   what all adapters share: what is asked of a row, what is said
    vllm.py       vLLM's routes, by version; native.py: the same, and what etude's own server can do beside
    sglang.py     SGLang's routes
    remote.py     the engine as a run sees it: weights held, rows asked again by number, conversations

The server that has our own engine behind these routes is `etude.experience.engine_server`.
"""
