"""The HTTP side of one instance, as OpenAI's completions and vllm-router want it.

In: an engine. Out: an aiohttp application.
Never: goes on with a request whose client has gone; answers with tokens that nobody computed.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from typing import Any

from aiohttp import web

from omni_async.errors import OmniAsyncError, ProtocolError, UsageError

from .engine import Engine, Request
from .line import RankFailed
from .model import decode, encode

MODEL = "omni-async-pd"
LONGEST = 4096


class Refused(Exception):
    """The request makes no sense."""


class Service:
    """Requests to handlers. Without an engine it answers that it is not ready."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.app = web.Application()
        self.app.add_routes(
            [
                web.post("/v1/completions", self._completions),
                web.post("/v1/completions/render", self._render),
                web.post("/render", self._render),
                web.post("/tokenize", self._tokenize),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/health_generate", self._health),
                web.get("/stats", self._stats),
                web.post("/gaps", self._gaps),
            ]
        )

    # --- completions ------------------------------------------------------------------------------

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        if self.engine is None:
            return _error(503, "not ready yet")
        body = await _body(http)
        # Whatever else is wrong, another instance may wait for this one.
        request = Request([], 0, _params(body), http.headers.get("x-request-id", uuid.uuid4().hex))
        try:
            request.tokens, request.count = _tokens(body), _count(body)
            if body.get("n", 1) != 1:
                raise Refused("n has to be 1")
            if body.get("stream"):
                return await self._streamed(http, self.engine, request)
            return await self._at_once(self.engine, request)
        except (Refused, ValueError) as error:
            self.engine.refuse(request, str(error))
            return _error(400, str(error))
        except (ProtocolError, UsageError) as error:
            return _error(400, str(error))
        except (OmniAsyncError, RankFailed) as error:
            return _error(502, f"{type(error).__name__}: {error}")

    async def _at_once(self, engine: Engine, request: Request) -> web.Response:
        async with contextlib.aclosing(engine.complete(request)) as said:
            found = [one async for one in said]
        answer = _chunk(request, found, "length")
        answer["usage"] = {
            "prompt_tokens": len(request.tokens),
            "completion_tokens": len(found),
            "total_tokens": len(request.tokens) + len(found),
        }
        answer["kv_transfer_params"] = request.answer
        return web.json_response(answer)

    async def _streamed(
        self, http: web.Request, engine: Engine, request: Request
    ) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
        async with contextlib.aclosing(engine.complete(request)) as said:
            left = request.count
            async for one in said:
                if not stream.prepared:
                    await stream.prepare(http)
                left -= 1
                chunk = _chunk(request, [one], None if left else "length")
                await stream.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await stream.write(b"data: [DONE]\n\n")
        await stream.write_eof()
        return stream

    # --- what a proxy asks besides ----------------------------------------------------------------

    async def _render(self, http: web.Request) -> web.Response:
        return web.json_response([{"prompt_token_ids": _tokens(await _body(http))}])

    async def _tokenize(self, http: web.Request) -> web.Response:
        tokens = _tokens(await _body(http))
        return web.json_response({"tokens": tokens, "count": len(tokens), "max_model_len": LONGEST})

    async def _models(self, http: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _health(self, http: web.Request) -> web.Response:
        return web.Response(status=503 if self.engine is None else 200)

    # --- what the example asks --------------------------------------------------------------------

    async def _stats(self, http: web.Request) -> web.Response:
        if self.engine is None:
            return _error(503, "not ready yet")
        blocks = self.engine.blocks
        return web.json_response(
            {
                **self.engine.counts,
                "blocks": blocks.count,
                "free": blocks.free,
                "last_failure": self.engine.last_failure,
            }
        )

    async def _gaps(self, http: web.Request) -> web.Response:
        """Of each rank's event loop."""
        if self.engine is None:
            return _error(503, "not ready yet")
        phase = (await _body(http)).get("phase")
        return web.json_response(await self.engine.ranks.do("gaps", phase))


async def _body(http: web.Request) -> dict[str, Any]:
    try:
        body = await http.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise web.HTTPBadRequest(text="the body has to be a JSON object")
    return body


def _tokens(body: dict[str, Any]) -> list[int]:
    prompt = body.get("prompt")
    tokens = encode(prompt) if isinstance(prompt, str) else prompt
    if not isinstance(tokens, list) or not all(
        type(token) is int and 0 <= token < 256 for token in tokens
    ):
        raise Refused("prompt has to be text, or a list of tokens from 0 to 255")
    if not 0 < len(tokens) <= LONGEST:
        raise Refused(f"a prompt has 1 to {LONGEST} tokens, not {len(tokens)}")
    return tokens


def _count(body: dict[str, Any]) -> int:
    count = body.get("max_tokens", 16)
    if type(count) is not int or not 0 < count <= LONGEST:
        raise Refused(f"max_tokens has to be 1 to {LONGEST}, not {count!r}")
    return count


def _params(body: dict[str, Any]) -> dict[str, Any] | None:
    params = body.get("kv_transfer_params")
    return params if isinstance(params, dict) and params else None


def _chunk(
    request: Request, said: list[tuple[int, float]], finish_reason: str | None
) -> dict[str, Any]:
    tokens = [token for token, _ in said]
    choice = {
        "index": 0,
        "text": decode(tokens),
        "token_ids": tokens,
        "token_logprobs": [logprob for _, logprob in said],
        "finish_reason": finish_reason,
    }
    return {
        "id": request.request_id,
        "object": "text_completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [choice],
    }


def _error(status: int, message: str) -> web.Response:
    kind = "BadRequestError" if status == 400 else "InternalServerError"
    error = {"message": message, "type": kind, "code": status}
    return web.json_response({"error": error}, status=status)
