"""What all tests share: Hypothesis without deadlines, as a busy machine is no failure; and who runs beside whom.

`script/test` runs the tests in two processes. Those that share a server which takes seconds to start stay together in
one of them, so that it starts once; other files go where there is room, each as a whole.
"""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import settings

settings.register_profile("ternmq", deadline=None, print_blob=True)
settings.load_profile("ternmq")

#: By fixture.
SLOW_TO_START: Final = {"spark": "spark"} | dict.fromkeys(("rocketmq_4", "rocketmq_5", "any_rocketmq"), "rocketmq")


# First, or the plugin that runs them side by side has looked for the groups already.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        needs = [SLOW_TO_START[name] for name in getattr(item, "fixturenames", ()) if name in SLOW_TO_START]
        item.add_marker(pytest.mark.xdist_group(needs[0] if needs else item.path.stem))
