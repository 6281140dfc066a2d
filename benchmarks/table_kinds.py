"""Compares table kinds, row types and admission on MovieLens: the AUC of what a server would answer, and its bytes.

The quickstart's model is trained once a seed and variant, and published. The scores are those of the published version,
over the last tenth of the ratings. Rows and bytes are those of the three tables by film (`item`, `liked`, `disliked`),
which each variant changes; those of the five small tables are the same in all. Beside them the same model is trained on
torch's own layers. Differences are taken seed by seed. Prints a Markdown table.

    python -m benchmarks.table_kinds              # five seeds a variant
    python -m benchmarks.table_kinds --seeds 1 --only hashed
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.machine import machine_line
from benchmarks.plain_tables import train_plain
from serving.scoring import Scorer, find_as_of, open_source, score_parquet
from trainer import auc, load_config, load_trained, train
from trainer.config import TrainConfig
from trainer.config_errors import parse_config
from trainer.datasets import write_movielens

ROOT = Path(__file__).parent.parent
FILMS = ("item", "liked", "disliked")
DIM = 9
INIT = {"init": {"type": "uniform", "scale": 0.01}}
# 1,682 films: about a quarter of a row for each.
BUCKETS = 420


@dataclass(frozen=True)
class Variant:
    """A way to store the rows of films."""

    name: str
    #: What the three tables are; `dynamic` unless it says otherwise.
    table: dict[str, Any] = field(default_factory=dict)
    row_type: str = "fp32"
    #: The variant whose training it publishes; None trains its own.
    trained_as: str | None = None


def _dynamic(admit_after: int) -> dict[str, Any]:
    return {"dim": DIM, "admit_after": admit_after, **INIT}


VARIANTS = (
    Variant("dynamic", _dynamic(1)),
    Variant("dynamic, int8", row_type="int8", trained_as="dynamic"),
    Variant("dynamic, admit_after 2", _dynamic(2)),
    Variant("dynamic, admit_after 5", _dynamic(5)),
    # Seven epochs count every film seven times.
    Variant("dynamic, admit_after 100", _dynamic(100)),
    Variant("dynamic, admit_after 400", _dynamic(400)),
    Variant("dynamic, dim 5", {**_dynamic(1), "dim": 5}),
    Variant(f"hashed, {BUCKETS} buckets", {"kind": "hashed", "dim": DIM, "buckets": BUCKETS, **INIT}),
    Variant(
        f"multi_hash, 2 x {BUCKETS // 2} buckets",
        {"kind": "multi_hash", "dim": DIM, "hashes": 2, "buckets": BUCKETS // 2, **INIT},
    ),
    Variant(
        f"quotient_remainder, {BUCKETS // 2} + {BUCKETS // 2} buckets",
        {
            "kind": "quotient_remainder",
            "dim": DIM,
            "buckets": BUCKETS // 2,
            "quotient_buckets": BUCKETS // 2,
            **INIT,
        },
    ),
    Variant(
        "classes, 9 from 50 on + 3, 420 buckets",
        {
            "kind": "classes",
            "dims": {"hot": DIM, "cold": 3},
            "buckets": BUCKETS,
            "admit_after": 50,
            "cold_init": INIT["init"],
        },
    ),
)


#: The same model on torch's layers, and whether it begins with the rows of our tables.
PLAIN = {"torch EmbeddingBag": False, "torch EmbeddingBag, our first rows": True}
#: What the others are compared with, seed by seed.
REFERENCE = "torch EmbeddingBag"


@dataclass
class Figures:
    """Results of a variant, a value a seed."""

    aucs: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)

    def line(self, name: str, reference: Figures) -> str:
        """Returns the row of the Markdown table."""
        mean, spread = _mean_and_spread(self.aucs)
        more, more_spread = _mean_and_spread(np.subtract(self.aucs, reference.aucs))
        size, whole = np.mean(self.bytes), np.mean(reference.bytes)
        return (
            f"| {name} | {mean:.4f} | {spread:.4f} | {more:+.4f} | {more_spread:.4f} | {np.mean(self.rows):,.0f} | "
            f"{size / 1000:,.1f} | {size / whole:.0%} |"
        )


def _mean_and_spread(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def config_of(variant: Variant, seed: int) -> TrainConfig:
    """Returns the quickstart's configuration with the film tables of a variant."""
    config = load_config(ROOT / "trainer" / "configs" / "movielens.yaml")
    content = config.model_dump(mode="json")
    content["training"] |= {"seed": seed, "eval_every": 0}
    if variant.table.get("dim", DIM) != DIM:
        # DeepFM takes one dim for all tables.
        content["tables"] = [{**table, "dim": variant.table["dim"]} for table in content["tables"]]
    content["tables"] = [
        {"name": table["name"], **variant.table} if table["name"] in FILMS else table for table in content["tables"]
    ]
    return parse_config(TrainConfig, content)


def measure(data: Path, work: Path, variant: Variant, run: Path, figures: Figures) -> None:
    """Publishes what was trained, scores the test rows with it, and notes the figures."""
    types = dict.fromkeys(FILMS, variant.row_type)
    version = load_trained(run).publish(work / "models", row_types=types)
    as_of = find_as_of(version.parent, version.name)
    with Scorer(as_of, work / "store") as scorer:
        score_parquet(scorer, open_source(scorer.spec, data / "test.parquet"), work / "scores.parquet")
    scores = pq.read_table(work / "scores.parquet").column("score").to_numpy()
    labels = pq.read_table(data / "test.parquet", columns=["label"]).column("label").to_numpy()
    figures.aucs.append(auc(labels.astype(np.float32), scores.reshape(-1)))
    tables = [table for table in as_of.version.tables if table.name.partition("-")[0] in FILMS]
    figures.rows.append(sum(table.rows for table in tables))
    figures.bytes.append(sum(table.rows * table.row_bytes for table in tables))


def measure_plain(data: Path, seed: int, same_rows: bool, figures: Figures) -> None:
    """Trains the model on torch's layers, and notes the figures of its rows, which are of float32."""
    scored, ids = train_plain(config_of(VARIANTS[0], seed), data, same_rows=same_rows)
    figures.aucs.append(scored.auc)
    figures.rows.append(sum(len(ids[name]) for name in FILMS))
    figures.bytes.append(figures.rows[-1] * DIM * 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each variant")
    parser.add_argument("--only", help="variants whose name holds this, besides torch and dynamic")
    parser.add_argument("--json", type=Path, help="write the figures here too, after each training")
    options = parser.parse_args()
    chosen = [each for each in VARIANTS if each.name == "dynamic" or (options.only or "") in each.name]
    found = {name: Figures() for name in [*PLAIN, *(each.name for each in chosen)]}
    with tempfile.TemporaryDirectory() as folder:
        data = write_movielens(Path(folder) / "data", cache=Path.home() / ".cache" / "emberline").directory
        for seed in range(1, options.seeds + 1):
            for name, same_rows in PLAIN.items():
                measure_plain(data, seed, same_rows, found[name])
            for variant in chosen:
                work = Path(folder) / f"{seed}-{chosen.index(variant)}"
                run = work / "run"
                if variant.trained_as is None:
                    train(config_of(variant, seed), data / "train.parquet", output=run, progress=False)
                else:
                    names = [each.name for each in chosen]
                    run = Path(folder) / f"{seed}-{names.index(variant.trained_as)}" / "run"
                measure(data, work, variant, run, found[variant.name])
                if options.json:
                    options.json.write_text(json.dumps({name: vars(each) for name, each in found.items()}, indent=2))
    print(machine_line())
    print(f"{options.seeds} seeds; AUC over the test rows, as served; differences seed by seed")
    print("| film tables | AUC | sd | minus torch | sd | rows | kB | of torch |")
    print("|---|---|---|---|---|---|---|---|")
    for name, figures in found.items():
        print(figures.line(name, found[REFERENCE]))
    for name, figures in found.items():
        print(f"{name}: {', '.join(f'{value:.5f}' for value in figures.aucs)}")


if __name__ == "__main__":
    main()
