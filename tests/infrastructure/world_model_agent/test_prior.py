import json
import shutil
from dataclasses import replace

import pytest

from infrastructure.trajectories.split import part_of
from infrastructure.world_model import WorldModel
from infrastructure.world_model_agent.prior import Prior, PriorError, build_prior, choose_model

pytestmark = pytest.mark.process  # trains for seconds


def published(spec, folder, beaten_prior):
    """Publish a model that says which prior it has beaten."""
    model = WorldModel.load(folder.parent / "prior" / "twin")
    model.beaten_prior = beaten_prior
    model.save(folder)
    return folder


def test_equal_experience_gives_the_same_files(repair_prior, repair_data, tmp_path):
    spec, transitions = repair_data
    build_prior(
        tmp_path, spec, transitions, epochs=16, seed=0, command="make it", notes={"why": "test"}
    )
    assert Prior.open(tmp_path).files == Prior.open(repair_prior).files
    assert json.loads((tmp_path / "prior.json").read_text())["why"] == "test"


def test_the_twin_has_seen_no_test_group(repair_prior, repair_data):
    spec, transitions = repair_data
    groups = {transition.group for transition in transitions}
    held_out = {group for group in groups if part_of(group) == "test"}
    prior = Prior.open(repair_prior)
    assert len(held_out) >= 2
    assert prior.twin_groups == groups - held_out
    seen = json.loads((repair_prior / "prior.json").read_text())["groups"]
    assert set(seen["model"]) == groups
    assert prior.load("twin", spec).metrics["outcome.auroc"] > 0.6
    assert prior.load("model", spec).metrics == {}  # no group was held back to measure them


def test_the_weights_are_small_files_and_float32_in_use(repair_prior, repair_data):
    model = Prior.open(repair_prior).load("model", repair_data[0])
    parameters = list(model.fitted_model.ensemble.parameters())
    assert {str(parameter.dtype) for parameter in parameters} == {"torch.float32"}
    [weights] = (repair_prior / "model").glob("weights-*.pt")
    assert weights.stat().st_size < 3 * sum(parameter.numel() for parameter in parameters)


@pytest.mark.parametrize(
    ("name", "how", "problem"),
    [
        ("prior.json", "missing", "No such file"),
        ("prior.json", "truncated", "truncated or altered"),
        ("prior.json", "format", "format is 99, expected 1"),
        ("model/model.json", "missing", "No such file"),
        ("twin/weights-*.pt", "truncated", "hash .* prior.json"),
    ],
)
def test_damage_is_named_and_another_model_used(
    repair_prior, repair_data, tmp_path, name, how, problem
):
    spec, _ = repair_data
    folder = tmp_path / "prior"
    shutil.copytree(repair_prior, folder)
    published(spec, tmp_path / "published", Prior.open(folder).digest)
    [path] = folder.glob(name)
    content = path.read_bytes()
    path.unlink()
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    if how == "format":
        path.write_text(json.dumps(json.loads(content) | {"format": 99}))
    with pytest.raises(PriorError, match=problem) as raised:
        Prior.open(folder)
    assert str(path) in str(raised.value)
    assert "install the distribution" in str(raised.value)
    nothing = choose_model(tmp_path / "none", folder, spec)
    assert (nothing.model, nothing.source) == (None, "none")
    assert nothing.reason == f"no world model is published yet; {raised.value}"
    other = choose_model(tmp_path / "published", folder, spec)
    assert (other.source, other.reason) == ("published", str(raised.value))


@pytest.mark.parametrize("name", ["model/\0", "model/\ud800"])
def test_names_that_no_file_can_have_are_refused(repair_data, tmp_path, name):
    index = {"format": 1, "files": {name: ""}, "command": "make it", "groups": {"twin": []}}
    (tmp_path / "prior.json").write_text(json.dumps(index))
    chosen = choose_model(None, tmp_path, repair_data[0])
    assert chosen.source == "none"
    assert f"prior.json: it names a file that cannot exist, {name!r}" in chosen.reason


def test_a_prior_for_other_fields_names_the_command(repair_prior, repair_data):
    other = replace(repair_data[0], success=None)
    with pytest.raises(PriorError, match=r"agent's fields.*make it"):
        Prior.open(repair_prior).load("model", other)
    chosen = choose_model(None, repair_prior, other)
    assert chosen.source == "none"
    assert "build it again" in chosen.reason


def test_a_published_model_is_used_if_it_has_beaten_this_prior(repair_prior, repair_data, tmp_path):
    spec, _ = repair_data
    folder = tmp_path / "prior"
    shutil.copytree(repair_prior, folder)
    digest = Prior.open(folder).digest
    assert choose_model(None, None, spec).source == "none"
    first = choose_model(tmp_path / "published", folder, spec)
    assert (first.source, first.reason) == ("prior", "no world model is published yet")
    assert first.model is not None
    published(spec, tmp_path / "published", "an earlier prior")
    stale = choose_model(tmp_path / "published", folder, spec)
    assert (stale.source, "not compared with this prior" in stale.reason) == ("prior", True)
    published(spec, tmp_path / "published", digest)
    better = choose_model(tmp_path / "published", folder, spec)
    assert (better.source, better.reason) == ("published", "")
    (tmp_path / "published" / "model.json").write_text("{")
    damaged = choose_model(tmp_path / "published", folder, spec)
    assert (damaged.source, "truncated or altered" in damaged.reason) == ("prior", True)
