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
    async with Worker([Greet]) as worker:  # PostgreSQL included; or Worker([Greet], dsn="postgresql://…")
        print((await worker.wait(await worker.insert(Greet, "ada"))).result)
asyncio.run(main())
