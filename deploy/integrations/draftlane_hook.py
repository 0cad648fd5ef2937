"""A LiteLLM callback that asks Draftlane which pool a call should go to, and names that pool's model.

DRAFTLANE_URL and DRAFTLANE_KEY say where to ask and as which tenant. While there is no answer, calls go where the plain model's
entry points, which should be baseline.
"""

import os
from typing import Any

import httpx
from litellm.integrations.custom_logger import CustomLogger

ENDPOINTS = {
    "completion": "chat",
    "acompletion": "chat",
    "text_completion": "completions",
    "atext_completion": "completions",
    "responses": "responses",
    "aresponses": "responses",
    "anthropic_messages": "messages",
}
# What LiteLLM puts beside the client's own fields.
INTERNAL = {
    "metadata",
    "litellm_metadata",
    "proxy_server_request",
    "secret_fields",
    "litellm_call_id",
    "litellm_logging_obj",
}


class Router(CustomLogger):
    """Renames the model of each scored call to that of the pool that Draftlane names."""

    def __init__(self) -> None:
        super().__init__()
        self._client = httpx.AsyncClient(
            base_url=os.environ.get("DRAFTLANE_URL", "http://draftlane:80"),
            headers={"authorization": f"Bearer {os.environ.get('DRAFTLANE_KEY', '')}"},
            timeout=0.5,
        )

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> Any:
        """Called by LiteLLM before each call; returns the call to make."""
        del user_api_key_dict, cache
        endpoint = ENDPOINTS.get(call_type)
        if endpoint is None:
            return data
        body = {name: value for name, value in data.items() if name not in INTERNAL}
        question = {"requests": [{"body": body, "endpoint": endpoint}]}
        try:
            answer = await self._client.post("/draftlane/route", json=question)
            advice = answer.raise_for_status().json()["data"][0]
        except (httpx.HTTPError, TypeError, ValueError):
            return data
        if "kind" in advice:
            data["model"] = f"{advice['served_model']}-{advice['kind']}"
        return data


router = Router()
