import asyncio

from gen_durable import Context, Done, Machine, Next, Outcome, Worker, step


class Greet(Machine[str, str]):
    @step
    async def hello(self, ctx: Context[str]) -> Outcome:
        return Next(self.shout, f"hello {ctx.state}")  # committed before shout() runs

    @step
    async def shout(self, ctx: Context[str]) -> Outcome[str]:
        return Done(ctx.state.upper())


async def main() -> None:
    async with Worker([Greet]) as worker:  # an embedded PostgreSQL; or dsn="postgresql://…"
        greeting = await worker.insert(Greet, "ada")
        print((await worker.wait(greeting)).result)  # HELLO ADA


asyncio.run(main())
