"""A class of one's own in the configuration: what it gets, and how a wrong one is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from emberline.cli.train import command as train_command
from storage import open_delta
from storage.errors import ConfigError
from tests.unit.trainer.conftest import clicks_config
from trainer import load_trained, train, update
from trainer.config import TrainConfig
from trainer.config_errors import parse_config
from trainer.models import build_model, build_tables

SOURCE = """
import torch
from torch import nn
import trainer

class Ranker(trainer.RankingModel):
    def __init__(self, features, width, *, scales=(1.0,), depth=1):
        super().__init__(features)
        self.scales = list(scales)
        self.top = nn.Sequential(nn.Linear(self.features.width, width), nn.Tanh(), nn.Linear(width, 1))

    def logits(self, inputs):
        embedded = self.features(inputs)
        return sum(self.scales) * self.top(torch.cat([embedded.pooled, *self.features.dense(inputs)], dim=1))

class Flat(Ranker):
    def logits(self, inputs):
        return super().logits(inputs)[:, 0]

class Given(Ranker):
    def __init__(self, features, given):
        super().__init__(features, 4)
        self.given = given

    def logits(self, inputs):
        found = super().logits(inputs)
        return eval(self.given, {"torch": torch}, {"found": found, "wide": self.wide})

    def wide(self, found):
        return nn.functional.linear(found, torch.ones(3, 7))

class Forgetful(trainer.RankingModel):
    def __init__(self, features):
        nn.Module.__init__(self)
    def logits(self, inputs):
        return inputs

class Failing(Ranker):
    def __init__(self, features, size):
        super().__init__(features, size // 0)

class Silent(trainer.RankingModel):
    pass

class Module(nn.Module):
    pass

nothing = 3
"""


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Writes a module of models into the current folder; yields its name."""
    name = f"ours_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(SOURCE)
    (tmp_path / f"{name}_broken.py").write_text("import no_such_package\n")
    monkeypatch.chdir(tmp_path)
    yield name
    for each in [each for each in sys.modules if each.startswith(name)]:
        del sys.modules[each]


def config_with(model: str) -> TrainConfig:
    """Returns the click log's configuration with another `model`."""
    content = clicks_config("dlrm").model_dump(mode="json")
    return parse_config(TrainConfig, {**content, "model": yaml.safe_load(model)})


def test_a_class_gets_the_features_and_its_arguments_and_the_path_is_as_it_was(ours: str) -> None:
    before = list(sys.path)
    config = config_with(f"{{type: '{ours}:Ranker', width: 5, scales: [1.0, 0.5]}}")
    model = build_model(config, build_tables(config))
    assert model.scales == [1.0, 0.5]
    assert dict(model.named_parameters())["top.0.weight"].shape == (5, 33)
    assert sys.path == before
    assert parse_config(TrainConfig, config.model_dump(mode="json")) == config


def test_it_is_trained_published_started_from_and_resumed_as_any_other(
    ours: str, clicks: Path, fresh_clicks: Path, tmp_path: Path
) -> None:
    config = config_with(f"{{type: '{ours}:Ranker', width: 5}}")
    train(config, clicks, output=tmp_path / "run", repository=tmp_path / "models", progress=False)
    assert load_trained(tmp_path / "run").evaluate(fresh_clicks).auc > 0.55
    started = train(
        config, fresh_clicks, output=tmp_path / "next", start_from=tmp_path / "run", limit=256, progress=False
    ).started
    assert started is not None
    assert {weight.change for weight in started.weights} == {"taken"}
    update(tmp_path / "run", fresh_clicks, repository=tmp_path / "models", progress=False)
    assert any(table.rows for table in open_delta(tmp_path / "models" / "clicks" / "1" / "deltas" / "000001").tables)
    other = config_with(f"{{type: '{ours}:Ranker', width: 5, depth: 2}}")
    with pytest.raises(ConfigError, match=r"model\.depth was added"):
        train(other, clicks, output=tmp_path / "run", progress=False, resume=True)


@pytest.mark.parametrize(
    ("model", "field", "words"),
    [
        ("no_such_module:Ranker", "model.type", "there is no module 'no_such_module', neither installed nor in"),
        ("OURS.inner:Ranker", "model.type", "there is no module 'OURS.inner'"),
        (
            "OURS_broken:Ranker",
            "model.type",
            "importing 'OURS_broken' failed: ModuleNotFoundError: No module named 'no_such_package'",
        ),
        ("OURS:Rankr", "model.type", "has no class 'Rankr'; did you mean 'Ranker'"),
        ("OURS:nothing", "model.type", "has no class 'nothing'"),
        ("OURS:Module", "model.type", "is not a trainer.RankingModel"),
        ("OURS:Silent", "model.type", "has no method 'logits'"),
        ("OURS:Forgetful", "model.type", r"call super\(\).__init__\(features\) first"),
        ("OURS:Failing', size: '3", "model", "could not be made: TypeError: unsupported operand"),
        ("OURS:Failing', size: !!int '3", "model", "could not be made: ZeroDivisionError"),
        ("OURS:Ranker", "model", "missing a required argument: 'width'"),
        ("OURS:Ranker', widht: '3", "model.widht", "takes no argument 'widht'; did you mean 'width'"),
        ("OURS:Ranker', features: '3", "model.features", "takes no argument 'features'"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused_with_the_reason(ours: str, model: str, field: str, words: str) -> None:
    config = config_with(f"{{type: '{model.replace('OURS', ours)}'}}")
    with pytest.raises(ConfigError, match=words.replace("OURS", ours)) as caught:
        build_model(config, build_tables(config))
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["ours:", ":Ranker", "our models:Ranker", "ours:Outer.Inner", "a/b:C"])
def test_a_name_that_is_none_is_refused_by_the_configuration(name: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.type: expected MODULE:CLASS, such as"):
        config_with(f"{{type: '{name}'}}")


def test_a_misspelt_network_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"or MODULE:CLASS, .* got 'widedeep'; did you mean 'wide_deep'\?"):
        config_with("{type: widedeep}")


def test_a_number_in_the_place_of_a_list_is_refused_in_plain_words() -> None:
    with pytest.raises(ConfigError, match=r"model\.hidden: expected a list, got 64"):
        config_with("{type: deepfm, hidden: 64}")


def test_logits_of_another_shape_are_refused(ours: str, clicks: Path, tmp_path: Path) -> None:
    config = config_with(f"{{type: '{ours}:Flat', width: 5}}")
    with pytest.raises(ConfigError, match=r"Flat.logits gave \(256,\), expected a float32 tensor \(256, 1\): a value"):
        train(config, clicks, output=tmp_path / "run", progress=False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("found.double()", r"logits gave torch.float64, expected a float32 tensor \(256, 1\)"),
        ("found.long()", "logits gave torch.int64, expected a float32"),
        ("found.to(torch.complex64)", "logits gave torch.complex64, expected a float32"),
        ("found.half()", "logits gave torch.float16, expected a float32"),
        ("found.expand(-1, 2)", r"logits gave \(256, 2\), expected a float32"),
        ("found[0]", r"logits gave \(1,\), expected"),
        ("(found, found)", "logits gave tuple, expected"),
        ("None", "logits gave NoneType, expected"),
        ("found.detach()", r"gave values without a gradient, .* leave detach\(\)"),
        ("found * float('nan')", r"step 1: the loss is nan, as Given.logits gave nan \(row 0 of the batch, value 0\)"),
        ("found / 0", r"step 1: the loss is nan, as Given.logits gave -?inf"),
    ],
)
def test_logits_that_cannot_be_learned_are_refused_by_name(
    ours: str, clicks: Path, tmp_path: Path, given: str, words: str
) -> None:
    config = config_with(f'{{type: "{ours}:Given", given: "{given}"}}')
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    with pytest.raises(ConfigError, match=words) as caught:
        train(tmp_path / "shop.yaml", clicks, output=tmp_path / "run", progress=False)
    assert str(caught.value).startswith(f"{tmp_path / 'shop.yaml'}: ")


def test_what_fails_in_a_class_is_said_with_its_lines_and_the_configuration(
    ours: str, clicks: Path, tmp_path: Path
) -> None:
    config = config_with(f'{{type: "{ours}:Given", given: "wide(found)"}}')
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    done = CliRunner().invoke(
        train_command, ["shop.yaml", "--data", str(clicks), "--output", str(tmp_path / "run"), "--quiet"]
    )
    assert isinstance(done.exception, ConfigError)
    head, *lines = str(done.exception).splitlines()
    assert head.startswith(f"shop.yaml: model.type: {ours}:Given failed in step 1: RuntimeError: mat1 and mat2 shapes")
    assert [line.split(":")[0] for line in lines] == [f"  {ours}.py"] * 2
    assert lines[-1].endswith("in wide: return nn.functional.linear(found, torch.ones(3, 7))")


def test_a_constructor_that_fails_is_said_with_its_line(ours: str) -> None:
    config = config_with(f"{{type: '{ours}:Failing', size: 3}}")
    with pytest.raises(ConfigError, match=rf"ZeroDivisionError: .*\n  {ours}\.py:\d+ in __init__: super"):
        build_model(config, build_tables(config))


def test_a_value_that_json_has_not_is_refused(ours: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.day"):
        config_with(f"{{type: '{ours}:Ranker', width: 5, day: 2026-01-01}}")
