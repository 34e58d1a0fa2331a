"""Payments and messages that agree, whatever dies: a transaction with SQLAlchemy and SQLite.

    python examples/transactions.py [NAME_SERVERS]

The payment is a row, and so is the note that its transaction was committed. Should this program die between the two
commits, the broker asks the next one of the same group, and the table knows.
"""

import sys
import tempfile
from pathlib import Path

from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, select

from ternmq import Message, SyncProducer, TransactionTable


def main(name_servers: str, directory: Path) -> None:
    engine = create_engine(f"sqlite:///{directory}/shop.db")
    metadata = MetaData()
    payments = Table("payments", metadata, Column("id", Integer, primary_key=True), Column("amount", Integer))
    table = TransactionTable(engine, metadata=metadata)
    metadata.create_all(engine)

    with SyncProducer("shop", name_servers=name_servers, checker=table, topics=["payments"]) as producer:
        for number, amount in enumerate((20, 0, 35)):
            message = Message("payments", f"paid {amount}".encode(), keys=f"order-{number}")
            try:
                with producer.transaction(message) as tx, engine.begin() as connection:
                    connection.execute(insert(payments).values(id=number, amount=amount))
                    connection.execute(table.insert(tx))
                    if not amount:
                        raise ValueError("nothing to pay")
                print(f"order-{number}: committed, and {tx.id} is delivered")
            except ValueError as error:
                print(f"order-{number}: rolled back, {error}")

    with engine.connect() as connection:
        print("payments:", [row.amount for row in connection.execute(select(payments))])
    engine.dispose()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876", Path(temporary))
