"""Insert an order and its instance in one transaction of SQLAlchemy.

GEN_DURABLE_DSN=postgresql://… python sqlalchemy_app.py
"""

import asyncio
import os

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from gen_durable import AsyncClient, Context, Done, Machine, Outcome, Worker, step


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    price: Mapped[int]


class Checkout(Machine[int, str]):
    @step
    async def charge(self, ctx: Context[int]) -> Outcome[str]:
        async with sessions() as session:
            order = await session.get_one(Order, ctx.state)
            return Done(f"order {order.number}: {order.price} charged")


engine = create_async_engine(os.environ["GEN_DURABLE_DSN"].replace("postgresql:", "postgresql+asyncpg:", 1))
sessions = async_sessionmaker(engine)


async def place(session: AsyncSession, durable: AsyncClient, price: int) -> int:
    """Insert an order and its instance in the transaction of the caller."""
    order = Order(price=price)
    session.add(order)
    await session.flush()  # sets order.number
    await durable.insert(Checkout, order.number, correlation_key=f"order:{order.number}", conn=session)
    if price < 1:
        raise ValueError("the price must be at least 1")
    return order.number


async def main() -> None:
    async with engine.begin() as conn:
        await conn.run_sync(Base.metadata.create_all)
    async with Worker([Checkout]) as durable:
        try:
            async with sessions.begin() as session:
                await place(session, durable, 0)
        except ValueError as error:
            print(f"refused: {error}")
        async with sessions.begin() as session:
            number = await place(session, durable, 30)
        print((await durable.wait(f"order:{number}")).result)
        async with sessions() as session:
            orders = await session.scalar(select(func.count()).select_from(Order))
        print(f"in the tables: {orders} order, {await durable.count(Checkout)} instance")
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
