"""Spark on a cluster with access control and TLS (B4, N1, U1, U2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ternmq import ClientConfig, EmbeddedCluster, SyncAdmin
from ternmq.spark.session import sentence_of
from tests.auth.accounts import BOSS, acl_in
from tests.auth.certificates import Certificates

#: Reads orders, as Spark does: under the group of tools.
READER = ("reader-key", "secret-of-the-reader")
ACCOUNTS = """\
accounts:
- accessKey: boss-key
  secretKey: secret-of-the-boss
  admin: true
- accessKey: reader-key
  secretKey: secret-of-the-reader
  topicPerms: [orders=SUB]
  groupPerms: [TOOLS_CONSUMER=SUB]
"""


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certificates")


@pytest.fixture
def secured(tmp_path: Path, certificates: Certificates) -> Iterator[EmbeddedCluster]:
    conf = acl_in(tmp_path / "conf", ACCOUNTS)
    (conf / "tools.yml").write_text(f"accessKey: {BOSS.access_key}\nsecretKey: {BOSS.secret_key}\n")
    settings = {"aclEnable": True, "aclPath": conf, "tls.config.file": certificates / "tls.properties"}
    with EmbeddedCluster(settings=settings) as cluster:
        yield cluster


def test_rows_are_written_and_read_with_keys_and_tls(
    spark: SparkSession, secured: EmbeddedCluster, certificates: Certificates
) -> None:
    """Driver and executors sign, and no plan shows a secret."""
    names = secured.name_servers
    boss = ClientConfig(names, access_key=BOSS.access_key, secret_key=BOSS.secret_key, tls=certificates.client())
    with SyncAdmin(config=boss) as admin:
        for topic in ("orders", "payments"):
            admin.topics.create(topic, queues=1)
    tls = {"nameServers": names, "tls": "true", "tlsCaFile": str(certificates / "ca.pem")}
    writing = tls | {"accessKey": BOSS.access_key, "secretKey": BOSS.secret_key}
    reading = tls | {"accessKey": READER[0], "secretKey": READER[1]}

    frame = spark.range(0, 100, 1, 2).selectExpr("format_string('%05d', id) AS body")
    for topic in ("orders", "payments"):
        frame.write.format("ternmq").mode("append").options(**writing).save(topic)
    read = spark.read.format("ternmq").options(**reading).option("topic", "orders").load()
    rows = read.collect()
    with pytest.raises(PySparkException) as refused:
        spark.read.format("ternmq").options(**reading).option("topic", "payments").load().collect()

    assert [f"{number:05}".encode() for number in range(100)] == sorted(bytes(row["body"]) for row in rows)
    assert "no permission for topic:'payments'" in sentence_of(refused.value)
    plan = read._jdf.queryExecution().toString()
    for text in (plan, str(refused.value), repr(read)):
        assert "secret-of" not in text
