"""Main set-ups render what is kept in ``goldens/``; an upgrade from the last release changes no fixed field."""

from pathlib import Path

import pytest

from tests.charts.cluster import forbidden_changes
from tests.charts.engine import Engine
from tests.charts.golden import GOLDENS, RELEASED, SETUPS, rendered
from tests.charts.rendered import Object, objects_of

every_setup = pytest.mark.parametrize("setup", SETUPS)


def by_name(text: str) -> dict[tuple[str, str], Object]:
    return {(each["kind"], each["metadata"]["name"]): each for each in objects_of(text)}


@every_setup
def test_a_main_set_up_renders_what_is_kept(engine: Engine, setup: str) -> None:
    kept = (GOLDENS / f"{setup}.yaml").read_text()
    assert rendered(engine, setup) == kept, "run: .venv/bin/python -m tests.charts.golden --write, and look at the diff"


@every_setup
def test_rendering_twice_gives_the_same(engine: Engine, setup: str) -> None:
    """GitOps tools render again and again: what differs each time would be applied each time."""
    assert rendered(engine, setup) == rendered(engine, setup)


@pytest.mark.parametrize("folder", [GOLDENS, RELEASED])
def test_no_file_is_kept_of_a_set_up_that_is_gone(folder: Path) -> None:
    assert {path.stem for path in folder.iterdir()} == {*SETUPS}


@every_setup
def test_an_upgrade_changes_no_field_that_may_not_change(engine: Engine, setup: str) -> None:
    old, new = by_name((RELEASED / f"{setup}.yaml").read_text()), by_name(rendered(engine, setup))
    both = old.keys() & new.keys()
    assert {kind for kind, _ in both} >= {"Deployment", "Service", "ServiceAccount", "ConfigMap"}
    assert [fault for name in both for fault in forbidden_changes(old[name], new[name])] == []


@every_setup
def test_an_upgrade_keeps_the_names_of_what_pods_and_people_refer_to(engine: Engine, setup: str) -> None:
    old, new = by_name((RELEASED / f"{setup}.yaml").read_text()), by_name(rendered(engine, setup))
    kept = {"Deployment", "StatefulSet", "Service", "ServiceAccount", "Secret"}
    assert {name for name in old if name[0] in kept} <= new.keys()
