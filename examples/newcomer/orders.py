"""Writes a CSV of 20,000 invented shop visits, for the newcomer's page: python examples/newcomer/orders.py FILE."""

from __future__ import annotations

import csv
import math
import random
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

ROWS = 20_000
TAGS = ("new", "sale", "gift", "outdoor", "kids", "kitchen", "garden", "music")


def write_orders(path: Path, rows: int = ROWS) -> None:
    """Writes visits in the order of time: who saw which item, and whether it was bought."""
    draw = random.Random(1)
    items = [(f"item-{number}", round(math.exp(draw.gauss(3, 1)), 2), draw.sample(TAGS, 2)) for number in range(500)]
    appeal = {name: draw.gauss(0, 1) for name, _, _ in items}
    taste = [draw.gauss(0, 1) for _ in range(2000)]
    start = datetime(2026, 1, 1, tzinfo=UTC)
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["visited_at", "customer_id", "item", "tags", "price", "age", "device", "shop_version", "bought"])
        for row in range(rows):
            name, price, tags = items[min(int(draw.paretovariate(0.7)) - 1, 499)]
            customer = draw.randrange(2000)
            age = draw.randint(18, 80) if draw.random() < 0.7 else ""
            odds = 1.3 * appeal[name] + taste[customer] - 0.6 * (math.log(price) - 3) + ("sale" in tags) - 1
            bought = int(draw.random() < 1 / (1 + math.exp(-odds)))
            when = (start + timedelta(minutes=6.5 * row)).strftime("%Y-%m-%d %H:%M:%S")
            device = draw.choice(("phone", "phone", "tablet", "desktop"))
            out.writerow([when, customer, name, "|".join(tags), price, age, device, 7, bought])


if __name__ == "__main__":
    write_orders(Path(sys.argv[1]))
