"""Insert an order and its instance in one transaction of SQLAlchemy, and mark the order as paid exactly once.

python sqlalchemy_app.py                                     on the embedded server
GEN_DURABLE_DSN=postgresql://… python sqlalchemy_app.py      on yours
"""

import asyncio

from sqlalchemy import func, make_url, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from gen_durable import AsyncClient, Context, Done, Machine, Outcome, Sql, Worker, step


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    price: Mapped[int]
    is_paid: Mapped[bool] = mapped_column(default=False)


class Checkout(Machine[int, str]):
    @step
    async def charge(self, ctx: Context[int]) -> Outcome[str]:
        async with sessions() as session:
            order = await session.get_one(Order, ctx.state)
        paid = Sql("update orders set is_paid = true where number = $1", order.number)
        return Done(f"order {order.number}: {order.price} charged", effect=paid)  # commits with the outcome


durable = Worker([Checkout])
engine = create_async_engine(make_url(durable.dsn).set(drivername="postgresql+asyncpg"))
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
    async with durable:  # runs the embedded server as long as it is open
        async with engine.begin() as conn:
            await conn.run_sync(Base.metadata.create_all)
        try:
            async with sessions.begin() as session:
                await place(session, durable, 0)
        except ValueError as error:
            print(f"refused: {error}")
        async with sessions.begin() as session:
            number = await place(session, durable, 30)
        print((await durable.wait(f"order:{number}")).result)
        async with sessions() as session:
            orders = await session.scalar(select(func.count()).where(Order.is_paid))
        print(f"in the tables: {orders} paid order, {await durable.count(Checkout)} instance")
        await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
