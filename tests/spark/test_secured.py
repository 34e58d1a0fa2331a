"""Spark on a cluster with access control and TLS (B4, N1, U1, U2)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ternmq import ClientConfig, EmbeddedCluster, SyncAdmin
from ternmq.spark.session import sentence_of
from tests.auth.accounts import BOSS, acl_in
from tests.auth.certificates import Certificates
from tests.spark.small import SMALL

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
        # Without a limit for retries: a denial is final.
        denied = spark.read.format("ternmq").options(**reading).option("retryTimeoutMs", "0")
        denied.option("topic", "payments").load().collect()

    assert [f"{number:05}".encode() for number in range(100)] == sorted(bytes(row["body"]) for row in rows)
    assert "no permission for topic:'payments'" in sentence_of(refused.value)
    plan = read._jdf.queryExecution().toString()
    for text in (plan, str(refused.value), repr(read)):
        assert "secret-of" not in text


#: Reads and fails with options, and then with the environment; prints what the pages of the UI and its API show, and
#: the command lines of all processes: Spark's JVM and Python workers are among them.
_PROGRAM = """
import json, pathlib, sys, urllib.request
from ternmq.spark.session import session

names, ca, log, small = sys.argv[1:]
spark = session(
    master="local[1]",
    settings=json.loads(small) | {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": "file://" + log,
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
    },
    log_level="INFO",
)
tls = {"nameServers": names, "tls": "true", "tlsCaFile": ca, "retryTimeoutMs": "0"}
keys = {"accessKey": "reader-key", "secretKey": "secret-of-the-reader", "securityToken": "token-of-the-reader"}
for options, topic in (
    (tls | keys, "orders"), (tls | keys | {"secretKey": "secret-that-is-wrong"}, "orders"), (tls, "orders"),
    (tls, "payments"),
):
    try:
        read = spark.read.format("ternmq").options(**options).option("topic", topic).load()
        read.explain(True)
        print(read.count(), "rows")
    except Exception as error:
        print(type(error), error)
ui, app = spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId
for page in (
    "jobs/", "stages/", "environment/", "SQL/", "executors/", "SQL/execution/?id=0", "jobs/job/?id=0",
    f"api/v1/applications/{app}/environment", f"api/v1/applications/{app}/sql?details=true&planDescription=true",
):
    try:
        print(page, urllib.request.urlopen(f"{ui}/{page}", timeout=60).read().decode())
    except OSError as error:
        print(page, error)
for line in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        print("process", line.read_text().replace("\\0", " "))
    except OSError:
        pass  # it has ended
spark.stop()
"""


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_secrets_are_not_in_the_ui_the_event_log_or_any_output(
    secured: EmbeddedCluster, certificates: Certificates, tmp_path: Path
) -> None:
    """N1: keys as options, wrong keys, keys in the environment of the driver; requests that fail."""
    boss = ClientConfig(
        secured.name_servers, access_key=BOSS.access_key, secret_key=BOSS.secret_key, tls=certificates.client()
    )
    with SyncAdmin(config=boss) as admin:
        for topic in ("orders", "payments"):
            admin.topics.create(topic, queues=1)
    log = tmp_path / "events"
    log.mkdir()
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    done = subprocess.run(
        [
            sys.executable,
            str(program),
            secured.name_servers,
            str(certificates / "ca.pem"),
            str(log),
            json.dumps(SMALL),
        ],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"TERNMQ_ACCESS_KEY": READER[0], "TERNMQ_SECRET_KEY": READER[1]},
    )

    events = "".join(path.read_text() for path in log.rglob("*") if path.is_file())
    assert "SparkListenerApplicationEnd" in events
    assert 2 == done.stdout.splitlines().count("0 rows"), done.stdout
    assert "no permission for topic:'payments'" in done.stdout
    assert "the access key or the signature is not valid" in done.stdout
    assert "spark.app.name" in done.stdout, "the page of the environment is among them"
    assert "pyspark.daemon" in done.stdout, "so are the command lines of its workers"
    everything = done.stdout + done.stderr + events
    for secret in (READER[1], "secret-that-is-wrong", "token-of-the-reader", BOSS.secret_key):
        assert secret not in everything
