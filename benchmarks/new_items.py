"""Scores films that training saw fewer than five times: their own rows, none, or those of their genres (fallback).

MovieLens-100k. For each seed a fifth of the films is new: of each, the first 0 to 4 ratings stay in the training data,
as a time would have it in which the film has just come out, and all later ratings are scored. All variants have the
same rows, features and seeds; they differ in when a film gets a row, and in what it reads until then. Each is published
and scored as served. Differences are taken seed by seed; their interval is a bootstrap over films.

The model `by_id` knows a film by its id alone, beside what it knows of the user; `quickstart` is the quickstart's
DeepFM, which has genres and year as features of their own.

    python -m benchmarks.new_items                # five seeds
    python -m benchmarks.new_items --model quickstart
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.machine import machine_line
from serving.scoring import Scorer, find_as_of, open_source, score_parquet
from trainer import auc, load_config, load_trained, train
from trainer.config import TrainConfig
from trainer.config_errors import parse_config
from trainer.datasets.movielens import movielens_table
from trainer.datasets.recbole_wheel import find_wheel

ROOT = Path(__file__).parent.parent
DIM, FEWER_THAN = 9, 5
NEW_SHARE = 0.2
DRAWS = 300


CHAIN = ("genre_set", "main_genre", "mean")


@dataclass(frozen=True)
class Variant:
    """When a film gets a row, and what it reads until then."""

    name: str
    #: Ratings, in each epoch, until a film has a row.
    ratings: int
    fallback: tuple[str, ...] = ()
    #: Of the films with a row, those that read their chain in training all the same.
    share: float = 0.0


#: The others are compared with the first two: what the model does without a chain.
VARIANTS = (
    Variant("own row from the first rating", 1),
    Variant("own row from 5 ratings, zeros before", FEWER_THAN),
    Variant("own row from 5 ratings, chain before", FEWER_THAN, CHAIN, 0.1),
)
#: Features of genres and years, which the model does not see that knows films by their ids.
_CONTENT = ("genres", "release_year", "genre_set", "main_genre")


def config_of(variant: Variant, seed: int, model: str) -> TrainConfig:
    """Returns the quickstart's configuration with two features of genres that stand for a film."""
    content = load_config(ROOT / "trainer" / "configs" / "movielens.yaml").model_dump(mode="json")
    content["training"] |= {"seed": seed, "eval_every": 0, "fallback_share": variant.share}
    for name in ("genre_set", "main_genre"):
        content["inputs"].append({"name": name, "dtype": "BYTES"})
        feature = {"name": name, "inputs": [name], "transforms": [{"op": "hash"}], "output": "ids", "table": name}
        content["features"].append(feature)
        content["tables"].append({"name": name, "dim": DIM, "init": {"type": "uniform", "scale": 0.01}})
    if model == "by_id":
        content["model"] = {"type": "benchmarks.films_by_id:FilmsById", "unseen": list(_CONTENT)}
    (item,) = (table for table in content["tables"] if table["name"] == "item")
    # All epochs count.
    item["admit_after"] = (variant.ratings - 1) * content["training"]["epochs"] + 1
    (feature,) = (feature for feature in content["features"] if feature["name"] == "item")
    feature["fallback"] = list(variant.fallback)
    return parse_config(TrainConfig, content)


def with_genres(table: pa.Table) -> pa.Table:
    """Adds the two columns of genres that stand for a film."""
    genres = table["genres"].to_pylist()
    table = table.append_column("genre_set", pa.array(["|".join(sorted(each)) for each in genres]))
    return table.append_column("main_genre", pa.array([each[0] if each else "" for each in genres]))


def split(table: pa.Table, seed: int) -> tuple[pa.Table, pa.Table, np.ndarray]:
    """Returns rows to train on, later rows of new films, and how often training saw the film of each of these."""
    rng = np.random.default_rng(seed)
    item = table["item"].to_numpy()
    films = np.unique(item)
    new = rng.choice(films, int(NEW_SHARE * len(films)), replace=False)
    keeps = dict(zip(new.tolist(), rng.integers(0, FEWER_THAN, len(new)).tolist(), strict=True))
    seen = dict.fromkeys(keeps, 0)
    trains = np.ones(len(item), bool)
    for place, film in enumerate(item.tolist()):  # in the order of time
        if film in keeps:
            trains[place] = seen[film] < keeps[film]
            seen[film] += 1
    kept = np.array([keeps[film] for film in item[~trains].tolist()])
    return table.filter(pa.array(trains)), table.filter(pa.array(~trains)), kept


def served_scores(work: Path, config: TrainConfig, data: Path) -> np.ndarray:
    """Trains, publishes, and returns the scores (N,) of the rows to be scored, as a server gives them."""
    train(config, data / "train.parquet", output=work / "run", progress=False)
    version = load_trained(work / "run").publish(work / "models")
    with Scorer(find_as_of(version.parent, version.name), work / "store") as scorer:
        score_parquet(scorer, open_source(scorer.spec, data / "new.parquet"), work / "scores.parquet")
    scores: np.ndarray = pq.read_table(work / "scores.parquet").column("score").to_numpy().reshape(-1)
    return scores


@dataclass
class SeedRows:
    """The rows that one seed scores, and their scores by variant."""

    labels: np.ndarray
    films: np.ndarray
    kept: np.ndarray
    scores: dict[str, np.ndarray]

    def auc(self, name: str, rows: np.ndarray | slice = slice(None)) -> float:
        """Returns the AUC of a variant over some rows."""
        return float(auc(self.labels[rows], self.scores[name][rows]))

    def drawn(self, rng: np.random.Generator) -> np.ndarray:
        """Returns the rows of as many films as there are, drawn with replacement."""
        films, inverse = np.unique(self.films, return_inverse=True)
        order = np.argsort(inverse, kind="stable")
        ends = np.cumsum(np.bincount(inverse))
        parts = np.split(order, ends[:-1])
        return np.concatenate([parts[k] for k in rng.integers(0, len(films), len(films))])


def interval(seeds: list[SeedRows], name: str, other: str) -> tuple[float, float, float]:
    """Returns the mean difference of AUC to another variant, and the 95% interval of a bootstrap over films."""
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(DRAWS):
        differences = []
        for seed_rows in seeds:
            rows = seed_rows.drawn(rng)
            differences.append(seed_rows.auc(name, rows) - seed_rows.auc(other, rows))
        draws.append(np.mean(differences))
    mean = float(np.mean([seed_rows.auc(name) - seed_rows.auc(other) for seed_rows in seeds]))
    low, high = np.quantile(draws, [0.025, 0.975]).tolist()
    return mean, low, high


def table_of(seeds: list[SeedRows], names: list[str], against: Mapping[str, str]) -> list[str]:
    """Returns the Markdown table. against: what a variant is compared with, by the heading of its column."""
    heads = " | ".join(f"minus {title} (95%)" for title in against)
    lines = [f"| film | AUC | never rated | 1 to 4 ratings | {heads} |", "|---" * (4 + len(against)) + "|"]
    for name in names:
        never = np.mean([seed_rows.auc(name, seed_rows.kept == 0) for seed_rows in seeds])
        few = np.mean([seed_rows.auc(name, seed_rows.kept > 0) for seed_rows in seeds])
        cells = [f"{np.mean([seed_rows.auc(name) for seed_rows in seeds]):.4f}", f"{never:.4f}", f"{few:.4f}"]
        for other in against.values():
            mean, low, high = interval(seeds, name, other)
            cells.append("" if name == other else f"{mean:+.4f} ({low:+.4f} to {high:+.4f})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each variant, each with other new films")
    parser.add_argument("--model", choices=("by_id", "quickstart"), default="by_id", help="see above")
    parser.add_argument("--json", type=Path, help="write the AUCs here too, after each seed")
    options = parser.parse_args()
    plain = [each for each in VARIANTS if not each.fallback]
    seeds: list[SeedRows] = []
    with tempfile.TemporaryDirectory() as folder:
        whole = with_genres(movielens_table(find_wheel(Path.home() / ".cache" / "emberline")))
        for seed in range(1, options.seeds + 1):
            data = Path(folder) / str(seed)
            data.mkdir()
            rows, new, kept = split(whole, seed)
            pq.write_table(rows, data / "train.parquet")
            pq.write_table(new, data / "new.parquet")
            seed_rows = SeedRows(new["label"].to_numpy().astype(np.float32), new["item"].to_numpy(), kept, {})
            for number, variant in enumerate(VARIANTS):
                seed_rows.scores[variant.name] = served_scores(
                    data / str(number), config_of(variant, seed, options.model), data
                )
            seeds.append(seed_rows)
            if options.json:
                found: dict[str, Any] = {
                    each.name: [seed_rows.auc(each.name) for seed_rows in seeds] for each in VARIANTS
                }
                options.json.write_text(json.dumps(found, indent=2))
    print(machine_line())
    rows_scored = sum(len(seed_rows.labels) for seed_rows in seeds)
    print(
        f"{options.seeds} seeds, {rows_scored:,} ratings of films with fewer than {FEWER_THAN} in training; as served"
    )
    against = {"own row": plain[0].name, "zeros": plain[1].name}
    print("\n".join(table_of(seeds, [each.name for each in VARIANTS], against)))
    for each in VARIANTS:
        print(f"{each.name}: {', '.join(f'{seed_rows.auc(each.name):.5f}' for seed_rows in seeds)}")


if __name__ == "__main__":
    main()
