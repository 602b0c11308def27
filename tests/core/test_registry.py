"""The registry: names are taken once, near names suggested, and other packages' entry points taken in or left out."""

from __future__ import annotations

import importlib.metadata
import sys
import threading
import types
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaenergy.core.registry import Registry
from deltaenergy.errors import InputError


def test_a_name_is_taken_once() -> None:
    registry: Registry[type] = Registry("thing")
    registry.add("one", int)
    assert registry.add("one", int) is int
    with pytest.raises(ValueError, match="'one' is registered twice"):
        registry.add("one", str)
    assert registry.get("one") is int


def test_what_will_not_do_is_refused() -> None:
    def check(name: str, entry: object) -> None:
        if not isinstance(entry, type):
            raise TypeError(f"{name} is no class")

    registry: Registry[object] = Registry("thing", check=check)
    with pytest.raises(TypeError, match="one is no class"):
        registry.add("one", 1)
    assert registry.names() == []


@given(st.dictionaries(st.text(min_size=1, max_size=12), st.integers(), max_size=8), st.text(max_size=200))
def test_known_names_are_found_and_others_refused_with_a_message(entries: dict[str, int], name: str) -> None:
    registry: Registry[int] = Registry("thing")
    for known, entry in entries.items():
        registry.add(known, entry)
    assert dict(registry.items()) == entries
    assert list(registry) == registry.names() == sorted(entries)
    assert (name in registry) == (name in entries)
    if name in entries:
        assert registry.get(name) == entries[name]
    else:
        with pytest.raises(InputError, match="Unknown thing"):
            registry.get(name)


def test_a_near_name_is_suggested() -> None:
    registry: Registry[int] = Registry("thing")
    registry.add("delta-energy", 1)
    with pytest.raises(InputError, match=r"'delta-enrgy'.*'delta-energy'"):
        registry.get("delta-enrgy")


@pytest.fixture
def a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package whose second module asks the registry while it is being imported."""
    folder = tmp_path / "some_things"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from deltaenergy.core.registry import Registry\nTHINGS = Registry('thing', package='some_things')\n"
    )
    (folder / "first.py").write_text("from some_things import THINGS\nTHINGS.add('first', 1)\n")
    (folder / "second.py").write_text(
        "from some_things import THINGS\nSO_FAR = THINGS.names()\nTHINGS.add('second', 2)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "some_things"
    for name in [name for name in sys.modules if name.partition(".")[0] == "some_things"]:
        del sys.modules[name]


def test_a_package_registers_itself_at_the_first_look(a_package: str) -> None:
    things = importlib.import_module(a_package).THINGS
    assert f"{a_package}.first" not in sys.modules
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.append(things.names())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["first", "second"]] * 4
    assert sys.modules[f"{a_package}.second"].SO_FAR == ["first"]


def test_a_module_that_fails_is_not_forgotten(a_package: str, tmp_path: Path) -> None:
    things = importlib.import_module(a_package).THINGS
    broken = tmp_path / a_package / "broken.py"
    broken.write_text("raise RuntimeError('broken')\n")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            things.names()
    broken.write_text("")
    assert things.names() == ["first", "second"]


def entry_point(name: str, value: str) -> importlib.metadata.EntryPoint:
    return importlib.metadata.EntryPoint(name, value, "some.group")


def test_entry_points_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    registry: Registry[type] = Registry("thing", group="some.group")
    other = types.ModuleType("other_package")
    other.Plain = type("Plain", (), {})  # type: ignore[attr-defined]
    other.Own = registry.add("own", type("Own", (), {}))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "other_package", other)
    points = [
        entry_point("plain", "other_package:Plain"),
        entry_point("another name", "other_package:Own"),  # it has registered itself
        entry_point("gone", "other_package:Nothing"),
    ]
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: points if group == "some.group" else pytest.fail(group)
    )
    with pytest.warns(UserWarning, match=r"'gone'.*AttributeError"):
        assert registry.names() == ["own", "plain"]
    assert registry.get("plain") is other.Plain


def test_an_entry_point_cannot_take_the_place_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    registry: Registry[type] = Registry("thing", group="some.group")
    registry.add("int", int)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry_point("int", "builtins:str")])
    with pytest.warns(UserWarning, match=r"'int'.*registered twice"):
        assert registry.get("int") is int
