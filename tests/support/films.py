"""Made-up rows with the columns of MovieLens, for configurations that read it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

GENRES = ["Drama", "Comedy", "Action", "Sci-Fi", "Horror"]
FILMS = 400


def made_up_films(rows: int, seed: int = 1) -> pa.Table:
    """Returns rows whose label follows from film, like_rate and whether liked films are near; rating from it."""
    rng = np.random.default_rng(seed)

    def numbers(low: int, high: int, nulls: float = 0.1) -> list[int | None]:
        return [None if rng.random() < nulls else int(value) for value in rng.integers(low, high, rows)]

    def words(known: list[str]) -> list[str | None]:
        return [None if rng.random() < 0.1 else str(word) for word in rng.choice(known, rows)]

    def films_seen() -> list[list[int] | None]:
        return [
            None if rng.random() < 0.1 else rng.integers(1, FILMS, rng.integers(0, 6)).tolist() for _ in range(rows)
        ]

    item, like_rate, history = rng.integers(1, FILMS, rows), rng.random(rows, np.float32), films_seen()
    near = np.array(
        [sum(abs(film - now) < 100 for film in seen or ()) for seen, now in zip(history, item, strict=True)]
    )
    logit = 2.0 * np.sin(item / 30) + 3.0 * like_rate - 2.5 + 0.7 * near
    table = pa.table(
        {
            "item": item,
            "genres": [rng.choice(GENRES, rng.integers(0, 4)).tolist() for _ in range(rows)],
            "release_year": numbers(1930, 1999),
            "gender": words(["F", "M"]),
            "age": numbers(10, 70),
            "occupation": words(["student", "writer"]),
            "history": pa.array(history, pa.list_(pa.int64())),
            "disliked": pa.array(films_seen(), pa.list_(pa.int64())),
            "rated_before": numbers(0, 50),
            "like_rate": like_rate,
            "label": (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float32),
        }
    )
    liked = table["label"].to_numpy() == 1
    rating = np.where(liked, rng.integers(4, 6, rows), rng.integers(1, 4, rows)).astype(np.float32)
    return table.append_column("rating", pa.array(rating))
