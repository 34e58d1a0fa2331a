"""A client that is denied never learns whether a topic or a group exists (N1): for every code of a broker and of a name
server, the reply about one that exists is, byte for byte, the reply about one that does not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

import msgspec
import pytest

from ternmq.embedded import EmbeddedCluster
from ternmq.wire.auth import Credentials
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.codes import ResponseCode
from ternmq.wire.header import Fields, Response, header_type
from tests.auth.accounts import BILLING, BOSS, GUEST, acl_in, dialled, users_in
from tests.auth.test_attacks import IN_BODY
from tests.broker.calls import Caller

#: What exists and, as long, what does not.
TOPIC, NO_TOPIC = "payments", "paymentz"
GROUP, NO_GROUP = "banking", "bankinz"
#: Before each name: topics of the server's own, which belong to a group.
PREFIXES: Final = ("", "%RETRY%", "%DLQ%")


@dataclasses.dataclass(slots=True, frozen=True)
class Question:
    """A request about what exists."""

    fields: Fields
    body: bytes = b""

    def about_nothing(self) -> Question:
        """The same, about what does not."""
        fields = {name: value.replace(TOPIC, NO_TOPIC).replace(GROUP, NO_GROUP) for name, value in self.fields.items()}
        body = self.body.replace(TOPIC.encode(), NO_TOPIC.encode()).replace(GROUP.encode(), NO_GROUP.encode())
        return Question(fields, body)


def questions(code: Code) -> list[Question]:
    """Well-formed as far as the types of their fields go, so that each would reach its handler if it were let."""
    kind = header_type(code)
    names = [field.encode_name for field in msgspec.structs.fields(kind)] if kind is not None else []
    found: list[Question] = []
    for topic in (TOPIC, *(f"{prefix}{GROUP}" for prefix in PREFIXES[1:]), f"%RETRY%{GROUP}_{TOPIC}", "orders"):
        for group in (GROUP, "billing"):
            fields: Fields = {}
            for name in names:
                fields[name] = "0"
                if name == "b" or "opic" in name:
                    fields[name] = topic
                elif name == "a" or "roup" in name or name == "subject":
                    fields[name] = group
                elif name == "namespace":
                    fields[name] = "ORDER_TOPIC_CONFIG"
                elif name == "key":
                    fields[name] = topic
                elif name == "subscription":
                    fields[name] = "*"
            for body in (b"", IN_BODY.get(code, b"")):
                asked = body.replace(b"orders", TOPIC.encode()).replace(b"billing", GROUP.encode())
                found.append(Question(fields, asked))
    return [each for number, each in enumerate(found) if each not in found[:number] and each != each.about_nothing()]


async def reply(caller: Caller, code: Code, question: Question) -> tuple[object, ...]:
    answer: Response = await caller.call(code, None, question.body, more_fields=question.fields, timeout_ms=60_000)
    return answer.code, answer.remark or "", repr(answer.fields), bytes(answer.body)


def renamed(told: tuple[object, ...]) -> tuple[object, ...]:
    """A reply about what does not exist, as if it did."""
    code, remark, fields, body = told
    assert isinstance(body, bytes)
    return (
        code,
        str(remark).replace(NO_TOPIC, TOPIC).replace(NO_GROUP, GROUP),
        str(fields).replace(NO_TOPIC, TOPIC).replace(NO_GROUP, GROUP),
        body.replace(NO_TOPIC.encode(), TOPIC.encode()).replace(NO_GROUP.encode(), GROUP.encode()),
    )


def secured(directory: Path, kind: str) -> dict[str, object]:
    """Settings of servers with the same accounts, as RocketMQ 4.9 or as 5.3 has them."""
    if kind == "users":
        return {
            "authenticationEnabled": True,
            "authorizationEnabled": True,
            "authConfigPath": users_in(directory / "users"),
        }
    acl = acl_in(directory / "acl")
    (acl / "tools.yml").write_text(f"accessKey: {BOSS.access_key}\nsecretKey: {BOSS.secret_key}\n")
    (acl / "tools.yml").chmod(0o600)
    return {"aclEnable": True, "aclPath": acl}


@pytest.mark.parametrize("account", [None, GUEST, BILLING], ids=["no key", "no permission", "another topic"])
@pytest.mark.parametrize(("server", "kind"), [("broker", "accounts"), ("broker", "users"), ("name server", "accounts")])
async def test_a_denied_client_never_learns_what_exists(
    tmp_path: Path, account: Credentials | None, server: str, kind: str
) -> None:
    asked, told, denied = 0, [], 0
    async with EmbeddedCluster(settings=secured(tmp_path, kind)) as cluster:
        broker = cluster.brokers[0].address
        async with dialled(broker, BOSS) as boss:
            for topic in (TOPIC, f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"):
                await boss.sent(topic, b"secret", properties={"KEYS": TOPIC, "UNIQ_KEY": "U"})
            assert [b"secret"] == await boss.bodies(TOPIC, consumer_group=GROUP)
        async with dialled(broker if server == "broker" else cluster.name_servers, account) as caller:
            for code in Code:
                for question in questions(code):
                    first = await reply(caller, code, question)
                    other = renamed(await reply(caller, code, question.about_nothing()))
                    again = await reply(caller, code, question)
                    asked += first[0] != ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                    denied += first[0] == ResponseCode.NO_PERMISSION
                    # What an account may ask for can change from one moment to the next.
                    if other not in (first, again) and (first == again or other[:2] != first[:2]):
                        told.append((code.name, question, first, other))

    assert [] == told
    assert asked > 20
    assert denied > asked / 2
