"""As ``shop.worker``, with a broken rule."""

from __future__ import annotations

import asyncio
import sys

from shop import worker
from shop.schema import Shop

from tests.shop.broken import break_rule

if __name__ == "__main__":
    shop = Shop.at(*sys.argv[1:])
    break_rule(shop)
    asyncio.run(worker.main(shop))
