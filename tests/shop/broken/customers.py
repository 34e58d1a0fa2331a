"""As ``shop.customers``, with a broken rule."""

from __future__ import annotations

import sys

from shop import customers
from shop.schema import Shop

from tests.shop.broken import break_rule

if __name__ == "__main__":
    break_rule(Shop.at(*sys.argv[1:3]))
    customers.main(*sys.argv[1:])
