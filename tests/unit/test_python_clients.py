"""The blocking client and the one for asyncio are the same client."""

import inspect
import typing
from collections.abc import AsyncIterator, Iterator

import pytest

from rota import aio, api

PAIRS = [(api.Client, aio.Client), (api.Batch, aio.Batch), (api.Job, aio.Job)]
METHODS = [
    pytest.param(sync, other, name, id=f"{sync.__name__}.{name}")
    for sync, other in PAIRS
    for name in dir(sync)
    if name[0] != "_" and inspect.isfunction(getattr(sync, name))
]


@pytest.mark.parametrize(("sync", "other"), PAIRS)
def test_the_clients_have_the_same_names(sync, other):
    names = {name for name in dir(sync) if name[0] != "_"}
    assert names - {"manager"} == {name for name in dir(other) if name[0] != "_"}


@pytest.mark.parametrize(("sync", "other", "name"), METHODS)
def test_a_method_has_the_same_parameters_and_text_in_both(sync, other, name):
    blocking, awaited = getattr(sync, name), getattr(other, name)
    assert inspect.signature(blocking).parameters == inspect.signature(awaited).parameters
    assert blocking.__doc__ and blocking.__doc__ == awaited.__doc__
    assert blocking.__name__ == name and blocking.__qualname__ == f"{sync.__name__}.{name}"


@pytest.mark.parametrize(("sync", "other", "name"), METHODS)
def test_a_method_returns_the_same_in_both(sync, other, name):
    blocking, awaited = getattr(sync, name), getattr(other, name)
    assert not inspect.iscoroutinefunction(blocking)
    returned = inspect.signature(blocking).return_annotation
    assert returned in (None, typing.get_type_hints(blocking)["return"])
    expected = inspect.signature(awaited).return_annotation
    same = {aio.Job: api.Job, aio.Batch: api.Batch}
    if typing.get_origin(expected) is AsyncIterator:
        (row,) = typing.get_args(expected)
        found = Iterator if name == "as_completed" else api.Found  # which is an iterator that can be indexed
        assert returned == found[same.get(row, row)]
    else:
        assert inspect.iscoroutinefunction(awaited)
        assert returned == same.get(expected, expected)
