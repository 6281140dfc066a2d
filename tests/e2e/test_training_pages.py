"""Types the commands of pages about training, on a shop with few clicks and the configuration of docs/training.md."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from benchmarks.peers import PeerMissingError
from tests.support import redis_server
from tests.support.followed_page import why_not
from tests.support.typed_pages import Reader, type_page
from trainer import train, update

ROOT = Path(__file__).parents[2]
LIMIT_S = 600.0
#: Files of clicks.
NAMES = ("clicks/2026-11-01", "clicks/2026-11-02", "today/1", "mended/1", "history/1")

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]

#: Each block begins with what the reader had at first: a run, a version and a delta.
FRESH = "fresh"
#: The same before the first training.
UNTRAINED = "fresh; rm -rf runs model_repo"
#: A server of Redis on its usual port, and its programs.
REDIS = """
export LD_LIBRARY_PATH={libraries} PATH={programs}:$PATH
redis-server --save '' > redis.log &
until redis-cli ping; do sleep 0.1; done
""".format(libraries=redis_server.environment()["LD_LIBRARY_PATH"], programs=redis_server.FOLDER / "usr" / "bin")
READERS = {
    "docs/data.md": Reader(FRESH),
    "docs/ranks.md": Reader(UNTRAINED),
    "docs/streams.md": Reader(
        FRESH,
        {
            "emberline train shop.yaml --data history/ --output runs/shop ": UNTRAINED,
            "emberline train shop.yaml --data history/ --output runs/shop-2 ": "fresh; rm -rf runs/shop-2",
            "redis-cli": f"fresh; {REDIS}",
        },
    ),
    "docs/training.md": Reader(
        FRESH,
        {
            "emberline train shop.yaml": UNTRAINED,
            "emberline train wider.yaml": "fresh; rm -rf runs/shop-2",
        },
        {"3.17": "1.1"},
    ),
    "docs/tuning-runs.md": Reader(
        smaller={"--trials 30": "--trials 2", "trials/0017": "trials/0001"},
        before_block={"emberline publish sweeps": "rm -rf runs/shop"},
    ),
}


def clicks(seed: int, rows: int = 600) -> pa.Table:
    """Makes rows of the columns that the page's configuration reads."""
    random = np.random.default_rng(seed)
    user, item = random.integers(0, 40, rows), random.integers(0, 30, rows)
    seen = [[f"a{each}" for each in random.integers(0, 30, random.integers(0, 5))] for _ in range(rows)]
    likes = 1 / (1 + np.exp(-2.0 * np.cos(user * 12.9898 + item * 78.233)))
    return pa.table(
        {
            "user_id": user,
            "item": [f"a{each}" for each in item],
            "history": ["|".join(each) for each in seen],
            "price": np.round(random.exponential(10.0, rows), 2),
            "clicked": (random.random(rows) < likes).astype(np.int8),
        }
    )


def configuration() -> str:
    """Returns the configuration that docs/training.md begins with."""
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    found = re.search(r"^(    model_name: shop\n(?:    .*\n)+)", page, re.MULTILINE)
    assert found is not None
    return re.sub("^    ", "", found[1], flags=re.MULTILINE)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Makes what a reader has: files of clicks, a configuration and a wider one, two runs, a version and a delta."""
    folder = tmp_path_factory.mktemp("shop") / "base"
    for number, name in enumerate(NAMES):
        path = folder / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.csv.write_csv(clicks(number), path)
    pyarrow.csv.write_csv(clicks(9), folder / "clicks.csv")
    for day in (1, 2):
        (folder / f"day-{day}.txt").write_text("".join(f"{user};a{user % 5};{user % 2}\n" for user in range(50)))
    (folder / "shop.yaml").write_text(configuration())
    (folder / "wider.yaml").write_text(configuration().replace("name: users, dim: 16", "name: users, dim: 24"))
    (folder / "examples").symlink_to(ROOT / "examples")
    train(folder / "shop.yaml", folder / "clicks", output=folder / "runs" / "shop-2", valid=0.1, progress=False)
    train(
        folder / "shop.yaml",
        folder / "clicks",
        output=folder / "runs" / "shop",
        valid=0.1,
        repository=folder / "model_repo",
        progress=False,
    )
    update(folder / "runs" / "shop", folder / "history", repository=folder / "model_repo", progress=False)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("page", READERS)
def test_the_commands_of_a_page_work(page: str, base: Path, tmp_path: Path) -> None:
    if page == "docs/streams.md":
        try:
            redis_server.fetch()
        except PeerMissingError as error:
            pytest.skip(f"no redis-server: {error}")
    (tmp_path / "base").symlink_to(base)
    printed = type_page(page, tmp_path, READERS[page], LIMIT_S)
    assert len(printed) > 1
