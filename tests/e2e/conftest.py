"""Fixtures of the end-to-end tests. Modules that only look share one stack; those that change it make their own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from e2e.stack import Stack, stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Stack]:
    """One stack for all tests of a module, which run in its loop."""
    async with stack() as serving:
        yield serving


@pytest_asyncio.fixture(loop_scope="module")
async def quiet(shared: Stack) -> AsyncIterator[Stack]:
    """The module's stack with empty records; afterwards nothing may be held."""
    shared.forget()
    yield shared
    await shared.at_rest()
