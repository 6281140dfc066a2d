"""Writes invented clicks of a shop for docs/tutorial.md: python examples/tutorial/clicks.py

clicks.csv holds six days, monday.csv and tuesday.csv the two that follow. On Monday sixty new items come in.
"""

from __future__ import annotations

import csv
import math
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

ROWS_A_DAY = 8_000
USERS = 900
ITEMS = 300
NEW_ITEMS = 60
CATEGORIES = ("books", "garden", "kitchen", "music", "outdoor", "toys")
DEVICES = ("phone", "phone", "tablet", "desktop")
COLUMNS = ("shown_at", "user", "item", "category", "price", "device", "clicked")
START = datetime(2026, 3, 3, tzinfo=UTC)


@dataclass(frozen=True)
class Item:
    """An item with what users do not see: how much it appeals to everybody, and its style."""

    name: str
    category: str
    price: float
    appeal: float
    style: tuple[float, float]


def make_items(draw: random.Random) -> list[Item]:
    """Returns the items, the new ones last."""
    return [
        Item(
            f"item-{number}",
            draw.choice(CATEGORIES),
            round(math.exp(draw.gauss(3, 0.8)), 2),
            draw.gauss(0, 1),
            (draw.gauss(0, 0.8), draw.gauss(0, 0.8)),
        )
        for number in range(ITEMS + NEW_ITEMS)
    ]


def write_clicks(folder: Path, rows_a_day: int = ROWS_A_DAY) -> None:
    """Writes the three files into a folder, each in the order of time."""
    draw = random.Random(7)
    items = make_items(draw)
    tastes = [(draw.gauss(0, 0.8), draw.gauss(0, 0.8)) for _ in range(USERS)]
    for name, first, days in (("clicks", 0, 6), ("monday", 6, 1), ("tuesday", 7, 1)):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            out = csv.writer(file)
            out.writerow(COLUMNS)
            for row in range(days * rows_a_day):
                item = choose(draw, items, is_new=name != "clicks" and draw.random() < 0.4)
                user = draw.randrange(USERS)
                liking = sum(a * b for a, b in zip(tastes[user], item.style, strict=True))
                device = draw.choice(DEVICES)
                odds = 1.2 * item.appeal + liking - 0.5 * (math.log(item.price) - 3) + 0.3 * (device == "desktop") - 1
                clicked = int(draw.random() < 1 / (1 + math.exp(-odds)))
                when = START + timedelta(days=first) + timedelta(seconds=row * 86_400 / rows_a_day)
                out.writerow([f"{when:%Y-%m-%d %H:%M:%S}", user, item.name, item.category, item.price, device, clicked])


def choose(draw: random.Random, items: list[Item], *, is_new: bool) -> Item:
    """Returns the item of an impression: of the new ones any, of the others the first ones most often."""
    if is_new:
        return items[ITEMS + draw.randrange(NEW_ITEMS)]
    return items[min(int(draw.paretovariate(0.5)) - 1, ITEMS - 1)]


if __name__ == "__main__":
    write_clicks(Path())
