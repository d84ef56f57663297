"""An agent in a browser: live tokens, progress, a human approval, and a cancel button.

GEN_DURABLE_DSN=postgresql://… LIVE_SECRET=whsec_… uvicorn --timeout-graceful-shutdown 3 agent_app:app
"""

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from gen_durable import Await, Context, Done, Machine, Outcome, Ref, Signal, Stream, Worker, step
from gen_durable.contrib.fastapi import DurableClient
from gen_durable.server_events import ServerEvents, signed_path


class Model(Protocol):
    """The client of a language model."""

    def answer(self, prompt: str) -> AsyncIterator[str]: ...


class Script:
    """Says the same every time, word by word."""

    async def answer(self, prompt: str) -> AsyncIterator[str]:
        for word in f"{prompt} I look up the facts, compare them, and write a summary.".split():
            await asyncio.sleep(0.05)
            yield f"{word} "


class Agent(Machine[str, str]):
    tokens = Stream("tokens", str)
    decision = Signal("decision", bool)

    def __init__(self, model: Model) -> None:
        self.model = model

    @step(initial=True, interrupt=True)
    async def plan(self, ctx: Context[str]) -> Outcome[str]:
        await self.say(ctx, f"You ask: {ctx.state}")
        return Await(self.decision, then=self.act, timeout=timedelta(hours=1))

    @step(interrupt=True)
    async def act(self, ctx: Context[str]) -> Outcome[str]:
        if not ctx.awaited.get(self.decision):
            return Done("rejected")
        for number in range(1, 4):
            ctx.progress(number - 1, 3, f"source {number}")
            await self.say(ctx, f"Source {number}:")
        return Done("answered")

    async def say(self, ctx: Context[str], prompt: str) -> None:
        async for token in self.model.answer(prompt):
            await ctx.publish(self.tokens, token)


SECRET = os.environ["LIVE_SECRET"]
durable = Worker([Agent(Script())])  # or AsyncClient(), with workers in other processes
app = FastAPI(lifespan=durable.lifespan)
app.mount("/live", ServerEvents(durable, secret=SECRET))


@app.post("/agents")
async def start(question: dict[str, str], durable: DurableClient) -> dict[str, int]:
    agent = await durable.insert(Agent, question["text"])
    return {"id": agent.id}


@app.get("/agents/{id}")
async def live(id: int) -> dict[str, str]:
    # Check here that the user may read this agent. The URLs are valid for it only, and for five minutes.
    agent = Ref(Agent, id)
    return {
        "changes": "/live" + signed_path(SECRET, agent),
        "tokens": "/live" + signed_path(SECRET, agent, Agent.tokens),
    }


@app.post("/agents/{id}/decision")
async def decide(id: int, decision: dict[str, bool], durable: DurableClient) -> dict[str, Any]:
    await durable.signal(Ref(Agent, id), Agent.decision, decision["approved"], dedup_key="decision")
    return {}


@app.post("/agents/{id}/cancel")
async def cancel(id: int, durable: DurableClient) -> dict[str, Any]:
    await durable.cancel(Ref(Agent, id), reason="cancelled in the browser")
    return {}


app.mount("/", StaticFiles(directory=Path(__file__).with_name("agent_page"), html=True))
