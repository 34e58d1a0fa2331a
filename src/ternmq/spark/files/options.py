"""Options of the format ``ternmq_files`` (U3)."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ternmq.errors import ConfigError
from ternmq.spark.source.options import MAX_BODY_BYTES, OptionTexts, local_path, time_ms, topic_names, topic_pattern

NAME: Final = "ternmq_files"

#: Bytes of a segment for one task: 16 tasks per GiB.
SLICE_BYTES: Final = 64 << 20

_OPTIONS: Final = (
    "path",
    "part",
    "topic",
    "topics",
    "topicPattern",
    "startingTimestamp",
    "endingTimestamp",
    "onCorrupt",
    "broker",
    "sliceBytes",
    "maxBodyBytes",
    "mappedFileSizeCommitLog",
)


class OnCorrupt(enum.StrEnum):
    """How to treat damaged places in the log."""

    FAIL = "fail"
    SKIP = "skip"
    KEEP = "keep"


class StorePart(enum.StrEnum):
    """The table of a store: the records of its log, or the entries of its ConsumeQueues or its index."""

    LOG = "log"
    QUEUES = "queues"
    INDEX = "index"


@dataclass(slots=True, frozen=True)
class FilesOptions:
    """What to read, and how."""

    paths: tuple[Path, ...]
    part: StorePart
    #: By name, or else by pattern; without both, all topics.
    topics: tuple[str, ...]
    topic_pattern: str
    #: Store times: from the first, before the second, in ms since 1970.
    begin_ms: int | None
    end_ms: int | None
    on_corrupt: OnCorrupt
    #: The value of the column ``broker``: files do not contain the name of their broker.
    broker: str
    slice_bytes: int
    #: A body that is larger than this after decompression is an error.
    max_body_bytes: int
    #: Derived from the files if it is not given.
    segment_bytes: int | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> FilesOptions:
        """The options of ``spark.read``; raises ``ConfigError``."""
        texts = OptionTexts(options, known=_OPTIONS, name=NAME)
        chosen = texts.one_of("topic", "topics", "topicPattern")
        begin, end = texts.text("startingTimestamp"), texts.text("endingTimestamp")
        return cls(
            paths=_paths(texts.text("path")),
            part=texts.choice("part", StorePart, StorePart.LOG),
            topics=topic_names(texts.text(chosen)) if chosen in ("topic", "topics") else (),
            topic_pattern=topic_pattern(texts.text("topicPattern")),
            begin_ms=time_ms("startingTimestamp", begin) if begin else None,
            end_ms=time_ms("endingTimestamp", end) if end else None,
            on_corrupt=texts.choice("onCorrupt", OnCorrupt, OnCorrupt.FAIL),
            broker=texts.text("broker"),
            slice_bytes=texts.count("sliceBytes") or SLICE_BYTES,
            max_body_bytes=texts.count("maxBodyBytes") or MAX_BODY_BYTES,
            segment_bytes=texts.count("mappedFileSizeCommitLog"),
        )

    @property
    def chooses_topics(self) -> bool:
        return bool(self.topics or self.topic_pattern)

    def selects(self, topic: str) -> bool:
        """Whether a topic is selected."""
        if self.topic_pattern:
            return re.fullmatch(self.topic_pattern, topic) is not None
        return not self.topics or topic in self.topics


def _paths(text: str) -> tuple[Path, ...]:
    # Spark converts a path that looks like a file to an address.
    cure = "mount what it names where Spark's workers can read it as files"
    paths = dict.fromkeys(local_path(part.strip(), cure=cure) for part in text.split(",") if part.strip())
    if not paths:
        raise ConfigError('no directory is given; give the directory of a store: load("/path/store")')
    return tuple(paths)
