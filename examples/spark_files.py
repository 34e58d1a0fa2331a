"""A store directory as a table, without a broker: its largest topics, its messages, and records that consumers miss.

python examples/spark_files.py            # writes a store
python examples/spark_files.py DIRECTORY  # reads yours
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from ternmq import EmbeddedCluster, Message, SyncProducer
from ternmq.spark.files import lost
from ternmq.spark.session import session


def write_store(directory: Path) -> Path:
    with (
        EmbeddedCluster(directory=directory) as cluster,
        SyncProducer("shop", name_servers=cluster.name_servers) as producer,
    ):
        for number in range(40):
            producer.send(Message("sales", f"{number} books".encode(), tags="new" if number % 4 else "paid"))
    return directory / "broker-a"


def main(store: Path) -> None:
    spark = session(name="files")
    records = spark.read.format("ternmq_files").option("onCorrupt", "keep").load(str(store))
    for row in records.groupBy("topic").agg({"record_bytes": "sum", "*": "count"}).orderBy("topic").collect():
        print(row["topic"], row["count(1)"], "records")
    print("damaged places:", records.where("damage IS NOT NULL").count())
    print("lost:", lost(spark, store).count())
    spark.stop()


if __name__ == "__main__":
    # An argument that is not a store, such as the address for the other examples, is ignored.
    given = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
    if given.joinpath("commitlog").is_dir():
        main(given)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(write_store(Path(temporary)))
