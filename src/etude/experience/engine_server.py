"""The routes of HTTP behind which our own engine is: etude's, vLLM's or SGLang's.

    native   what `etude engine start native` speaks
    vllm     vLLM's routes and no others, so that its adapter meets a server that takes weights, pauses and samples
    sglang   the same with SGLang's

Each is what the adapters in `etude.policies.engines` ask, of a kind. Whoever reaches the server can change its weights:
it is bound to this machine or a private network, answers to its own names alone (a page of a browser asks under
another), and asks for a key if there is one in `ETUDE_ENGINE_KEY`.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from etude.core.draws import Draw
from etude.core.episodes import StopReason
from etude.core.errors import ConfigError, EtudeError, InvariantError
from etude.experience.engine import Full, Request, ServedEngine
from etude.policies.engines.addresses import Kind, check_host
from etude.policies.engines.wire import KEY
from etude.policies.sampling import Completion, Sampling
from etude.runtime.environment import version

BODY = 1 << 30
"""Bytes of a request at most."""
VERSIONS = {"vllm": "0.33.0", "sglang": "0.5.23"}
"""What a server says that it is while it speaks another's routes."""
Route = Callable[[dict[str, Any]], dict[str, Any]]


class EngineServer(ThreadingHTTPServer):
    """Serves an engine until it is closed.

    Args:
        host: an address of this machine or of a private network; others in words (`addresses.check_host`).
        port: 0 takes a free one.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, engine: ServedEngine, host: str = "127.0.0.1", port: int = 0, speaks: Kind = "native") -> None:
        name = check_host(host)
        if ":" in name:
            self.address_family = socket.AF_INET6
        self.engine, self.names, self.key = engine, {name, "localhost"}, os.environ.get(KEY)
        self.routes = ROUTES[speaks](engine).routes
        super().__init__((name, port), _Handler)

    @property
    def url(self) -> str:
        """Where it is."""
        host, port = self.server_address[:2]
        return f"http://{f'[{host!s}]' if ':' in str(host) else host!s}:{port}"


class _Handler(BaseHTTPRequestHandler):
    """One connection, which stays open."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # with what is buffered below: an answer goes out at once, and in one piece
    wbufsize = -1
    server: EngineServer

    def do_GET(self) -> None:
        self._answer("GET", {})

    def do_POST(self) -> None:
        try:
            size = int(self.headers.get("Content-Length", "0"))
            if size > BODY:
                return self._send(413, _error(f"A request has at most {BODY} bytes, this one {size}."))
            raw = self.rfile.read(size)
            if self.headers.get_content_type() != "application/json":  # what a page of a browser may not send unasked
                return self._send(415, _error("What is sent must be application/json."))
            body = json.loads(raw) if raw else {}
        except ValueError as error:
            return self._send(400, _error(f"What was sent is no JSON: {error}."))
        self._answer("POST", body if isinstance(body, dict) else {})

    def _answer(self, method: str, body: dict[str, Any]) -> None:
        if not self._allowed():
            return
        route = self.server.routes.get(f"{method} {urlsplit(self.path).path}")
        if route is None:
            return self._send(404, _error(f"There is no {method} {self.path} here."))
        try:
            self._send(200, route(body))
        except Full as error:
            self._send(503, _error(str(error)), {"Retry-After": "1"})
        except InvariantError as error:
            self._send(409, _error(str(error)))
        except EtudeError as error:
            self._send(400, _error(str(error)))
        except ConnectionError:  # nobody is there to be answered
            self.close_connection = True
        except (KeyError, TypeError, ValueError) as error:
            self._send(400, _error(f"What was asked is of another form ({type(error).__name__}: {error})."))
        except Exception as error:
            self._send(500, _error(f"{type(error).__name__}: {error}."))
            raise

    def _allowed(self) -> bool:
        name = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        if name not in self.server.names and not _is_number(name):
            self._send(403, _error(f"This engine does not answer to the name {name!r}."))
            return False
        told, key = self.headers.get("Authorization", ""), self.server.key
        if key and not hmac.compare_digest(told.encode(), f"Bearer {key}".encode()):
            self._send(401, _error(f"This engine asks for the key that is in {KEY} where it was started."))
            return False
        return True

    def _send(self, status: int, said: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        raw = json.dumps(said).encode()
        with suppress(ConnectionError):  # who asked is gone
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing for each request."""


def _error(sentence: str) -> dict[str, Any]:
    return {"error": {"message": sentence}}


def _is_number(name: str) -> bool:
    """Whether a host is written as an address: no page can be made to ask under one that it does not come from."""
    with suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    return False


# Routes


class _Common:
    """What vLLM's routes and etude's have in common."""

    def __init__(self, engine: ServedEngine) -> None:
        self.engine = engine
        self.routes: dict[str, Route] = {
            "GET /health": lambda _: {},
            "POST /pause": lambda _: self._done(engine.pause),
            "POST /resume": lambda _: self._done(engine.resume),
            "GET /is_paused": lambda _: {"is_paused": engine.paused},
        }

    @staticmethod
    def _done(do: Callable[[], None]) -> dict[str, Any]:
        do()
        return {"status": "done"}


class Native(_Common):
    """etude's own: vLLM's routes with what `etude.policies.engines.native` asks beside."""

    def __init__(self, engine: ServedEngine) -> None:
        super().__init__(engine)
        self.routes |= {
            "GET /version": self.version, "GET /weight_info": lambda _: {"weight_version": engine.mark},
            "POST /v1/completions": self.completions, "POST /init_weight_transfer_engine": self.init,
            "POST /start_weight_update": lambda _: self._phase("start", ("init", "finish")),
            "POST /update_weights": self.update,
            "POST /finish_weight_update": lambda _: self._phase("finish", ("update",)),
        }  # fmt: skip

    def version(self, body: dict[str, Any]) -> dict[str, Any]:
        """Who this is."""
        policy = self.engine.policy
        return {
            "version": version("etude"),
            "engine": "etude",
            "model": policy.base or "policy",
            "context": policy.context,
        }

    def init(self, body: dict[str, Any]) -> dict[str, Any]:
        """How weights will come: as files."""
        if (backend := body["init_info"].get("backend")) != "file":
            raise ConfigError(f"Weights come to etude's own engine as backend 'file', got {backend!r}.")
        return self._phase("init", ("none", "init", "start", "update", "finish"))

    def update(self, body: dict[str, Any]) -> dict[str, Any]:
        """Take a file, all or nothing."""
        told = body["update_info"]
        return self._phase("update", ("start",), lambda: self.engine.take_file(told["file"], told["mark"]))

    def _phase(self, name: str, after: tuple[str, ...], do: Callable[[], None] | None = None) -> dict[str, Any]:
        self.engine.phase(name, after, do)
        return {"message": name}

    def completions(self, body: dict[str, Any]) -> dict[str, Any]:
        """Go on with the rows of a turn."""
        own = body["etude"]
        how = Sampling(**own["sampling"], stop=tuple(body["stop"]))
        asked = Request(
            {number: list(view) for number, view in zip(own["rows"], body["prompt"], strict=True)}, how,
            [Draw(key) for key in own["draws"]], own["begun"], own["last"], own["others"], own["session"],
        )  # fmt: skip
        found = self.engine.complete(asked)
        beside = {"mark": found.mark, "work": found.work, "entropy": [c.entropy for c in found.completions]}
        choices = [_choice(i, c, how) for i, c in enumerate(found.completions)]
        return {"model": body.get("model"), "choices": choices, "etude": beside}


class VLLM(_Common):
    """vLLM's own, one row in each request."""

    def __init__(self, engine: ServedEngine) -> None:
        super().__init__(engine)
        self.routes |= {
            "GET /version": lambda _: {"version": VERSIONS["vllm"]},
            "GET /v1/models": lambda _: {"data": [{"id": "policy", "max_model_len": engine.policy.context}]},
            "GET /weight_info": lambda _: {"weight_version": engine.name},
            "POST /v1/completions": self.completions, "POST /collective_rpc": self.rpc,
            "POST /update_weight_version": self.tag,
        }  # fmt: skip

    def completions(self, body: dict[str, Any]) -> dict[str, Any]:
        """Go on with a row."""
        how = Sampling(body["temperature"], body["top_p"], body["top_k"], body["max_tokens"], tuple(body["stop"]))
        (said,) = _one(self.engine, body["prompt"], how, body["seed"])
        return {"choices": [_choice(0, said, how)]}

    def rpc(self, body: dict[str, Any]) -> dict[str, Any]:
        """Read weights from a folder; there is no other method."""
        if body["method"] != "reload_weights":
            raise ConfigError(f"There is no method {body['method']!r} here.")
        self.engine.take_folder(body["kwargs"]["weights_path"])
        return {"results": [None]}

    def tag(self, body: dict[str, Any]) -> dict[str, Any]:
        """Name the weights."""
        self.engine.name = str(body["new_version"])
        return {"success": True, "new_version": self.engine.name}


class SGLang(_Common):
    """SGLang's own, one row in each request."""

    def __init__(self, engine: ServedEngine) -> None:
        super().__init__(engine)
        told = {"version": VERSIONS["sglang"], "context_length": engine.policy.context}
        self.routes = {
            "GET /health": lambda _: {}, "GET /get_server_info": lambda _: told,
            "GET /get_weight_version": lambda _: {"weight_version": engine.name}, "POST /generate": self.generate,
            "POST /update_weights_from_disk": self.update,
            "POST /pause_generation": lambda _: self._done(engine.pause),
            "POST /continue_generation": lambda _: self._done(engine.resume),
        }  # fmt: skip

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        """Go on with a row."""
        told = body["sampling_params"]
        how = Sampling(told["temperature"], max_tokens=told["max_new_tokens"], stop=tuple(told["stop"]))
        (said,) = _one(self.engine, body["input_ids"], how, told["sampling_seed"])
        choice = _choice(0, said, how)
        matched = {} if choice["stop_reason"] is None else {"matched": choice["stop_reason"]}
        about = {
            "finish_reason": {"type": choice["finish_reason"], **matched}, "weight_version": self.engine.name,
            "output_token_logprobs": [[p, t, None] for p, t in zip(said.logp, said.tokens)],
        }  # fmt: skip
        return {"output_ids": said.tokens, "meta_info": about}

    def update(self, body: dict[str, Any]) -> dict[str, Any]:
        """Read weights from a folder, and name them."""
        self.engine.take_folder(body["model_path"])
        self.engine.name = str(body["weight_version"])
        return {"success": True, "message": ""}


ROUTES: dict[str, Callable[[ServedEngine], _Common]] = {"native": Native, "vllm": VLLM, "sglang": SGLang}


def _one(engine: ServedEngine, tokens: list[int], how: Sampling, key: int) -> list[Completion]:
    """A row by itself."""
    return engine.complete(Request({0: list(tokens)}, how, [Draw(key)], [0])).completions


def _choice(index: int, said: Completion, how: Sampling) -> dict[str, Any]:
    """A completion in vLLM's words."""
    stopped, reason = not said.stop.cut, None
    if said.stop is StopReason.STOP_STRING:
        reason = how.stop[0]
    return {
        "index": index, "text": "", "token_ids": said.tokens, "logprobs": {"token_logprobs": said.logp},
        "finish_reason": "stop" if stopped else "length", "stop_reason": reason,
    }  # fmt: skip
