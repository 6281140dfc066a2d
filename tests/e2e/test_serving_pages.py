"""Types the commands of pages about serving, beside a server of a small `movielens` with three deltas."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.films import made_up_films
from tests.support.followed_page import why_not
from tests.support.shown_commands import blocks_of
from tests.support.typed_pages import Reader, type_page
from trainer import train, update

ROOT = Path(__file__).parents[2]
LIMIT_S = 600.0

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]

SERVER = '[ -n "$server" ] || serving emberline serve --model-repository build/models --store build/store'
CERTIFICATES = [block for block in blocks_of("docs/security.md") if block[0].startswith("openssl")]
READERS = {
    "docs/cli.md": Reader(SERVER),
    "docs/format.md": Reader(),
    "docs/gpu.md": Reader(),
    "docs/inspecting-tables.md": Reader(),
    "docs/models.md": Reader(),
    "docs/scaling.md": Reader(),
    "docs/security.md": Reader(
        before_block={
            "emberline token new": "\n".join(line for block in CERTIFICATES for line in block),
            "emberline rollback": f"stop; {SERVER}",
        }
    ),
    "docs/serving.md": Reader(
        SERVER, {"curl localhost:8000/v1/models/movielens": f"stop; {SERVER}"}, {"2026-11-22T10:00": "2100-01-01T10:00"}
    ),
    "docs/store-repair.md": Reader(f"{SERVER}; stop"),
    "docs/store.md": Reader(SERVER, {"emberline plan": f"stop; {SERVER}"}),
    "model_repo/README.md": Reader(),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Makes what a reader has: files of films, a run, a version with three deltas, a run of two towers, a catalogue."""
    folder = tmp_path_factory.mktemp("films") / "base"
    data = folder / "build" / "movielens"
    data.mkdir(parents=True)
    for seed, name in enumerate(["train", "valid", "test"]):
        rows = made_up_films(600, seed)
        users = pa.array(np.random.default_rng(seed).integers(0, 50, len(rows)))
        pq.write_table(rows.append_column("user", users), data / f"{name}.parquet")
    shutil.copy(data / "test.parquet", folder / "in.parquet")
    (folder / "catalogue").mkdir()
    films = made_up_films(100, 7)
    titles = pa.array([f"film {number}" for number in range(len(films))])
    pq.write_table(films.append_column("title", titles), folder / "catalogue" / "1.parquet")
    shutil.copytree(ROOT / "model_repo", folder / "model_repo")
    (folder / "docs").mkdir()
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
    configs = ROOT / "trainer" / "configs"
    run, models = folder / "build" / "run", folder / "build" / "models"
    config = folder / "movielens.yaml"
    # As many deltas as are made are kept, however small the version is.
    config.write_text((configs / "movielens.yaml").read_text() + "publish: {version_at_share: 100}\n")
    train(config, data / "train.parquet", output=run, repository=models, progress=False)
    for _ in range(3):
        update(run, data / "valid.parquet", repository=models, progress=False)
    towers = configs / "movielens_two_tower.yaml"
    train(towers, data / "train.parquet", output=folder / "runs" / "films", progress=False)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("page", READERS)
def test_the_commands_of_a_page_work(page: str, base: Path, tmp_path: Path) -> None:
    (tmp_path / "base").symlink_to(base)
    printed = type_page(page, tmp_path, READERS[page], LIMIT_S)
    here = tmp_path / "here"
    if page == "docs/format.md":
        for name in ("manifest.schema.json", "delta-manifest.schema.json"):
            made, committed = (json.loads((root / "docs" / name).read_text()) for root in (here, ROOT))
            assert made == committed
    assert printed
