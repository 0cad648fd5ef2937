"""The operator's page in a real browser: it loads, updates live, explains, refuses a wrong key, and asks nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from harness import ADMIN_KEY, KEY, Running, config_for, serving
from playwright.async_api import Browser, BrowserContext, Page, ViewportSize, async_playwright, expect
from prom import ROOT, tool

from gateway.config import Config
from gateway.engine import EngineSettings
from gateway.engine import serve as engine

AXE = ROOT / "tests/node/node_modules/axe-core/axe.min.js"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
}
PHONE: ViewportSize = {"width": 390, "height": 844}

PATIENCE = 30_000  # ms: on a busy machine the chart library alone takes seconds to start

expect.set_options(timeout=PATIENCE)
pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(slots=True)
class Visit:
    """A page that is open, with all that the browser complained about and all addresses that it asked."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    async def sign_in(self, key: str = ADMIN_KEY) -> None:
        """Give a key."""
        await self.page.get_by_label("Key", exact=True).fill(key)
        await self.page.get_by_role("button", name="Open").click()

    async def drawn(self, chart: str) -> None:
        """Wait until a chart is there."""
        await expect(self.page.locator(f"#{chart} .main-svg").first).to_be_visible()


@dataclass(frozen=True, slots=True)
class Site:
    """A gateway and a browser."""

    gateway: Running
    browser: Browser
    contexts: dict[str, BrowserContext] = field(default_factory=dict)

    @asynccontextmanager
    async def visit(self, look: str = "light", path: str = "") -> AsyncIterator[Visit]:
        """Open the page; afterwards nothing may have been complained about, and nobody else asked."""
        if look not in self.contexts:
            self.contexts[look] = await self.browser.new_context(**LOOKS[look])
        page = await self.contexts[look].new_page()
        seen = Visit(page)
        page.on("console", lambda said: said.type in ("error", "warning") and seen.complaints.append(said.text))
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.on("request", lambda request: seen.asked.append(request.url))
        page.set_default_timeout(PATIENCE)
        await page.goto(f"{self.gateway.url}/draftlane/console{path}")
        yield seen
        await page.evaluate("localStorage.clear()")
        await page.close()
        # A browser tells every answer of 401 to its console, whoever asked for it.
        assert [said for said in seen.complaints if "status of 401" not in said] == []
        assert [url for url in seen.asked if not url.startswith((f"{self.gateway.url}/", "data:", "blob:"))] == []

    async def call(self, prompt: str = "Count from 1 to 40.") -> str:
        """Send a call through the gateway and return its request id."""
        body = {"model": "demo", "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 30}
        async with httpx.AsyncClient() as client:
            answer = await client.post(
                f"{self.gateway.url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {KEY}"}
            )
        return answer.headers["x-request-id"]


def config(urls: dict[str, list[str]], folder: Path) -> Config:
    """Return a configuration with a Store, so that there is money of today."""
    store = {"kind": "sqlite", "path": str(folder / "draftlane.db"), "flush_seconds": 0.2}
    return config_for(urls, store=store)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """Serve two embedded engines, with some calls done, and start a browser."""
    chromium = tool("chromium")
    async with (
        engine(EngineSettings(kind="speculative", speed=20.0)) as spec,
        engine(EngineSettings(kind="baseline", speed=20.0)) as base,
        serving(config({"spec": [spec.url], "base": [base.url]}, tmp_path_factory.mktemp("console"))) as gateway,
        async_playwright() as playwright,
    ):
        # Tests may run as root in a container, where Chromium's own sandbox cannot be made.
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        found = Site(gateway, browser)
        for prompt in ("Count from 1 to 40.", "Tell me a story.", "Count from 40 to 1."):
            await found.call(prompt)
        yield found
        await browser.close()


async def test_a_wrong_key_opens_nothing(site: Site) -> None:
    """A wrong key is refused in words and kept nowhere, and no figure is to be seen."""
    async with site.visit() as seen:
        await seen.sign_in("wrong")

        await expect(seen.page.get_by_role("alert").first).to_have_text("That is not the admin key.")
        await expect(seen.page.locator("#board")).to_be_hidden()
        assert await seen.page.evaluate("sessionStorage.length") == 0


async def test_it_updates_while_it_is_looked_at(site: Site) -> None:
    """With the key it shows money, pools, curve and decisions, and a call that ends appears without a reload."""
    async with site.visit() as seen:
        await seen.sign_in()
        for chart in ("curve", "spend", "balance"):
            await seen.drawn(chart)
        request_id = await site.call()

        row = seen.page.locator(f'#decisions tr[data-id="{request_id}"]')
        await expect(row).to_be_visible()
        await expect(row).to_contain_text("Predictable")
        await expect(row).to_contain_text("spec")
        await expect(seen.page.locator("#today")).to_contain_text("tester")
        await expect(seen.page.locator("#tiles")).to_contain_text("Saved today against all-baseline")
        await expect(seen.page.locator("#problems")).to_contain_text("All is well")
        await expect(seen.page.locator("#curve")).to_contain_text("threshold")
        await expect(seen.page.locator("#curve-words")).to_contain_text("A speculative step takes")


async def test_a_prompt_is_explained(site: Site) -> None:
    """A prompt's verdict, reason, options and features are told, and no engine is asked for it."""
    async with site.visit() as seen:
        await seen.sign_in()
        await seen.page.get_by_label("Prompt", exact=True).fill("Count from 1 to 200, one number per line.")
        before = len(site.gateway.finished)
        await seen.page.get_by_role("button", name="Explain").click()
        await seen.drawn("features")
        explained = seen.page.locator("#explained")

        await expect(explained.locator(".verdict")).to_contain_text("Predictable")
        await expect(explained).to_contain_text("tokens per step")
        await expect(explained.get_by_role("row")).to_have_count(3)
        assert len(site.gateway.finished) == before


async def test_a_refused_prompt_is_told_why(site: Site) -> None:
    """What the gateway would refuse is told in its own words."""
    async with site.visit() as seen:
        await seen.sign_in()
        await seen.page.get_by_label("Prompt", exact=True).fill("Hello")
        await seen.page.get_by_label("Temperature").fill("0")
        # In one go: with the next overview, which may come in between, the page lists the models that there are again.
        await seen.page.evaluate(
            "document.getElementById('explain-model').append(new Option('gone', 'gone', true, true));"
            "document.querySelector('#explain-form button').click()"
        )

        await expect(seen.page.locator("#explained .error")).to_contain_text("gone")
        seen.complaints[:] = [said for said in seen.complaints if "status of 404" not in said]


async def test_the_keyboard_is_enough(site: Site) -> None:
    """Key, explanation and receipt can be had without a mouse, and the receipt closes with Escape."""
    request_id = await site.call("Count from 1 to 20.")
    async with site.visit() as seen:
        page = seen.page
        await expect(page.get_by_label("Key", exact=True)).to_be_focused()
        await page.keyboard.type(ADMIN_KEY)
        await page.keyboard.press("Enter")
        button = page.get_by_role("button", name=f"receipt of {request_id}")
        await button.focus()
        await page.keyboard.press("Enter")

        await expect(page.get_by_role("dialog")).to_contain_text("attempts")
        await expect(page.get_by_role("dialog")).to_contain_text(request_id)
        await expect(page.locator("#decisions-note")).to_contain_text("newest first")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_be_hidden()
        await expect(button).to_be_focused()


async def test_a_link_leads_to_a_receipt(site: Site) -> None:
    """The address that Grafana's points lead to opens the receipt once the key is given; an unknown one is told."""
    request_id = await site.call()
    for which, said in ((request_id, "slot seconds"), ("req-unknown", "No receipt of")):
        async with site.visit(path=f"#receipt={which}") as seen:
            await seen.sign_in()
            await expect(seen.page.get_by_role("dialog")).to_contain_text(said)
            seen.complaints[:] = [complaint for complaint in seen.complaints if "status of 404" not in complaint]


async def test_nothing_changes_unless_it_is_unlocked(site: Site) -> None:
    """Switches appear only when changes are allowed; a pool that is switched off is told in words, and comes back."""
    async with site.visit() as seen:
        page = seen.page
        page.on("dialog", lambda dialog: dialog.accept())
        await seen.sign_in()
        pool = page.get_by_role("article", name="Pool spec")
        await expect(pool).to_contain_text("available")
        await expect(page.get_by_role("button", name="Switch off pool spec")).to_have_count(0)
        await page.get_by_label("Allow changes").check()
        await page.get_by_role("button", name="Switch off pool spec").click()
        await expect(page.locator("#problems")).to_contain_text("Pool spec is switched off.")
        assert not site.gateway.gateway.pipeline.live.pools["spec"].enabled
        await page.get_by_role("button", name="Switch on pool spec").click()

        await expect(page.locator("#problems")).to_contain_text("All is well")
        assert site.gateway.gateway.pipeline.live.pools["spec"].enabled


async def test_the_key_lives_as_long_as_the_tab(site: Site) -> None:
    """A reload keeps the key, forgetting it closes the page, and another tab has none."""
    async with site.visit() as seen:
        await seen.sign_in()
        await expect(seen.page.locator("#board")).to_be_visible()
        await seen.page.reload()
        await expect(seen.page.locator("#board")).to_be_visible()
        await seen.page.get_by_role("button", name="Forget key").click()
        await expect(seen.page.locator("#board")).to_be_hidden()
        assert await seen.page.evaluate("sessionStorage.length + '/' + document.cookie") == "0/"


async def test_the_theme_follows_the_system_and_can_be_chosen(site: Site) -> None:
    """Dark systems get a dark page, and the button overrules them for good."""
    ground = "getComputedStyle(document.body).backgroundColor"
    async with site.visit("light") as seen:
        light = await seen.page.evaluate(ground)
    async with site.visit("dark") as seen:
        dark = await seen.page.evaluate(ground)
        await seen.page.get_by_role("button", name="Theme: system").click()
        await expect(seen.page.get_by_role("button", name="Theme: light")).to_be_visible()
        assert await seen.page.evaluate(ground) == light != dark
        await seen.page.reload()
        assert await seen.page.evaluate(ground) == light


async def faults(page: Page) -> list[tuple[str, str]]:
    """Return what axe finds against WCAG's rules and good practice: the rule, and the first element that breaks it."""
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [(fault["id"], fault["nodes"][0]["html"]) for fault in found["violations"]]


@pytest.mark.parametrize("look", list(LOOKS))
async def test_everybody_can_read_it(site: Site, look: str) -> None:
    """Axe finds nothing, contrast included, on a desk and on a phone, and nothing is wider than the screen."""
    async with site.visit(look) as seen:
        page = seen.page
        await page.evaluate(AXE.read_text())
        assert await faults(page) == []
        await seen.sign_in()
        await page.get_by_role("button", name="Explain").click()
        for chart in ("curve", "spend", "balance", "features"):
            await seen.drawn(chart)
        await page.locator("summary").click()
        assert await faults(page) == []
        await page.set_viewport_size(PHONE)
        await expect(page.locator("#decisions thead")).to_have_css("position", "absolute")

        assert await faults(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_a_gateway_that_is_gone_is_told(site: Site) -> None:
    """While no answer comes the page says so and keeps what it had; when answers come again it goes on by itself."""
    async with site.visit() as seen:
        await seen.sign_in()
        await expect(seen.page.locator("#pulse")).to_contain_text("Live at")
        await seen.page.route("**/draftlane/overview", lambda route: route.abort())
        await expect(seen.page.locator("#pulse")).to_contain_text("still trying")
        await expect(seen.page.locator("#tiles")).to_contain_text("Spent today")
        await seen.page.unroute("**/draftlane/overview")
        await expect(seen.page.locator("#pulse")).to_contain_text("Live at")
        seen.complaints[:] = [said for said in seen.complaints if "ERR_FAILED" not in said]
