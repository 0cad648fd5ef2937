"""Compiled code remembers where it found attributes, and finds what Python would, whatever becomes of types and objects."""

from __future__ import annotations

import gc
import importlib.util
import subprocess
import sys
import sysconfig
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from Cython.Build import cythonize

from gateway.native import build

ROOT = Path(__file__).parent.parent
SOURCE = """
def get(thing): return thing.value
def put(thing, value): thing.value = value
def drop(thing): del thing.value
def call(thing, *more): return thing.value() if not more else thing.value(more[0])
def by_name(thing, given): return thing.value(given=given)
"""


class Slotted:
    """Has its value in a slot."""

    __slots__ = ("value",)


class Free:
    """Has its value where anything may be."""


class Struct(msgspec.Struct):
    """Has its value in a field."""

    value: Any = 1


class Frozen(msgspec.Struct, frozen=True):
    """Has a value that stays."""

    value: Any = 1


class Light(msgspec.Struct, gc=False):
    """Has its value in a field, and is nothing for the collector."""

    value: Any = 1


class Guarded(msgspec.Struct):
    """Looks at what its field is set to."""

    value: Any = 1

    def __setattr__(self, name: str, value: object) -> None:
        """Count on by one."""
        super().__setattr__(name, value + 1 if isinstance(value, int) else value)


class Able:
    """Has its value as a method, and no place that could hide it."""

    __slots__ = ()

    def value(self, given: object = "nothing") -> object:
        """Return what was given."""
        return given


@pytest.fixture(name="site", scope="module")
def site_fixture(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """A module as `gateway/native/build.py` translates those of the path, compiled."""
    at = tmp_path_factory.mktemp("sites")
    (at / "site_probe.py").write_text(SOURCE)
    cythonize([str(at / "site_probe.py")], language_level=3, quiet=True)
    build.remember(at / "site_probe.c")
    assert (at / "site_probe.c").read_text().count('#include "sites.h"') == 2
    library = at / f"site_probe{sysconfig.get_config_var('EXT_SUFFIX')}"
    paths = [f"-I{ROOT / 'gateway' / 'native'}", f"-I{sysconfig.get_path('include')}"]
    flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-Wno-unused-function"]
    subprocess.run(["cc", *flags, *paths, str(at / "site_probe.c"), "-o", str(library)], check=True)
    spec = importlib.util.spec_from_file_location("site_probe", library)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def things() -> list[Any]:
    """Return one of each kind, with a value."""
    slotted, free = Slotted(), Free()
    slotted.value = free.value = 1  # type: ignore[attr-defined]
    return [slotted, free, Struct()]


def test_kinds_of_objects_take_turns(site: ModuleType) -> None:
    """What was remembered of one type is not believed of another."""
    for turn in range(3):
        for thing in things() * 2:
            site.put(thing, turn)
            assert site.get(thing) == thing.value == turn


def test_what_is_not_there_is_missed(site: ModuleType) -> None:
    """A slot that was emptied says so, and so does a type that has nothing by that name."""
    for thing in things():
        assert site.get(thing) == 1
        site.drop(thing)
        with pytest.raises(AttributeError, match="value"):
            site.get(thing)
        with pytest.raises(AttributeError, match="value"):
            site.drop(thing)
        site.put(thing, 2)
        assert site.get(thing) == 2
    with pytest.raises(AttributeError, match="value"):
        site.get(object())


def test_what_stays_cannot_be_set(site: ModuleType) -> None:
    """A frozen field is read and refuses to be written, before and after a type that may be."""
    for thing in (Frozen(), Struct(), Frozen(), Slotted(), Frozen()):
        if isinstance(thing, Frozen):
            assert site.get(thing) == 1
            with pytest.raises(AttributeError):
                site.put(thing, 2)
        else:
            site.put(thing, 2)


def test_a_changed_type_is_looked_through_again(site: ModuleType) -> None:
    """A property in the place of a slot, a base that gains one, a method that is replaced: all are seen at once."""

    class Base:
        __slots__ = ()

    class Changing(Base):
        __slots__ = ("kept", "value")

    thing: Any = Changing()
    thing.value, thing.kept = 1, 2
    assert [site.get(thing) for _ in range(3)] == [1, 1, 1]
    slot = Changing.value  # type: ignore[attr-defined]
    Changing.value = property(lambda self: self.kept)  # type: ignore[attr-defined]
    assert site.get(thing) == 2
    with pytest.raises(AttributeError):
        site.put(thing, 3)
    Changing.value = slot  # type: ignore[attr-defined]
    assert site.get(thing) == 1
    del Changing.value  # type: ignore[attr-defined]
    Base.value = 4  # type: ignore[attr-defined]
    assert site.get(thing) == 4


def test_methods_are_called_as_they_now_are(site: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """By place and by name, replaced ones too, and those of an instance that hides its type's."""
    able = Able()
    for _ in range(2):
        assert (site.call(able), site.call(able, 5), site.by_name(able, 6)) == ("nothing", 5, 6)
    monkeypatch.setattr(Able, "value", lambda self, given=None: (self is able, given))
    for _ in range(2):
        assert (site.call(able), site.call(able, 5), site.by_name(able, 6)) == ((True, None), (True, 5), (True, 6))

    class Hidden(Able):
        pass

    hidden: Any = Hidden()
    assert site.call(hidden, 5) == (False, 5)
    hidden.value = lambda given: given
    assert site.call(hidden, 5) == 5


def test_what_stands_in_a_slot_is_called_without_its_holder(site: ModuleType) -> None:
    """A function that is kept is no method; neither are those of a class or of no one."""
    slotted = Slotted()
    slotted.value = lambda *given, **named: (given, named)  # type: ignore[attr-defined]
    for _ in range(2):
        assert site.call(slotted) == ((), {})
        assert site.call(slotted, 5) == ((5,), {})
        assert site.by_name(slotted, 6) == ((), {"given": 6})

    class Static:
        __slots__ = ()
        value = staticmethod(lambda *given, **_: given)

    class OfClass:
        __slots__ = ()
        value = classmethod(lambda cls, *given, **_: (cls, *given))

    for _ in range(2):
        assert site.call(Static(), 5) == (5,)
        assert site.call(OfClass(), 5) == (OfClass, 5)


def test_a_type_decides_how_it_is_asked(site: ModuleType) -> None:
    """Types with a `__getattribute__`, `__getattr__` or `__setattr__` of their own are asked as they wish, each time."""

    class Own(Slotted):
        __slots__ = ("log",)

        def __getattribute__(self, name: str) -> Any:
            return f"asked for {name}"

    class Late(Slotted):
        __slots__ = ()

        def __getattr__(self, name: str) -> str:
            return f"has no {name}"

    class Strict(Slotted):
        __slots__ = ()

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, f"checked {value}")

    plain, strict = Slotted(), Strict()
    for _ in range(2):
        site.put(plain, 1)
        site.put(strict, 2)
        assert (site.get(plain), site.get(strict)) == (1, "checked 2")
        assert site.get(Own()) == "asked for value"
        assert site.get(Late()) == "has no value"


def test_types_come_and_go(site: ModuleType) -> None:
    """A type that took the memory of one that is gone is not taken for it."""
    for turn in range(200):
        names = ("value", "other") if turn % 2 else ("another", "other", "value")
        kind = type("Passing", (), {"__slots__": names})
        thing: Any = kind()
        thing.other, thing.value = "other", turn
        assert site.get(thing) == turn
        site.put(thing, -turn)
        assert (thing.value, thing.other) == (-turn, "other")
        del thing, kind
        gc.collect(0)


def test_structs_are_set_as_their_library_sets_them(site: ModuleType) -> None:
    """A struct is the collector's business once it holds what is, unless it never is; one that guards its fields is asked."""
    for _ in range(3):
        one, other, light, guarded = Struct(), Struct(), Light(), Guarded()
        site.put(one, 2)
        assert not gc.is_tracked(one)
        site.put(one, [other])
        site.put(other, [one])
        site.put(light, [one])
        site.put(guarded, 5)
        assert gc.is_tracked(one)
        assert gc.is_tracked(other)
        assert not gc.is_tracked(light)
        assert guarded.value == 6

    held, witness = Struct(), Free()
    gone = weakref.ref(witness)
    site.put(held, [held, witness])
    del held, witness
    gc.collect()
    assert gone() is None


def test_nothing_is_held_and_nothing_is_lost(site: ModuleType) -> None:
    """Reading, writing, calling and failing leave every reference count as it was."""
    marker, slotted, able = object(), Slotted(), Able()
    before = sys.getrefcount(marker), sys.getrefcount(Able.value)
    for _ in range(1000):
        site.put(slotted, marker)
        assert site.get(slotted) is marker
        site.call(able, marker)
        with pytest.raises(TypeError):
            site.call(slotted)
    site.put(slotted, None)

    assert (sys.getrefcount(marker), sys.getrefcount(Able.value)) == before
