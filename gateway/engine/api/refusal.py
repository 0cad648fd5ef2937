"""The errors an engine answers with, in the shape and words of vLLM's."""

from __future__ import annotations

from http import HTTPStatus


class Refusal(Exception):
    """A request that is answered with an error; `body` is vLLM's error object."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
        code: str | int | None = None,
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = status if code is None else code
        self.headers = headers or []

    @property
    def body(self) -> dict[str, object]:
        """The error object, ready for JSON."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}


def unknown_model(name: object) -> Refusal:
    """Return the 404 for a model that is not served."""
    return Refusal(f"The model `{name}` does not exist.", status=404, kind="NotFoundError", param="model")


def invalid(kind: str, place: tuple[str | int, ...], message: str, value: object) -> Refusal:
    """Return the 400 for a field of the wrong type or out of range, in the words of pydantic's error list."""
    shown = repr(value)
    problem = f"{{'type': {kind!r}, 'loc': {('body', *place)!r}, 'msg': {message!r}, 'input': {shown[:200]}}}"
    param = ".".join(map(str, place)) or None
    return Refusal(f"[{problem}]", kind=HTTPStatus.BAD_REQUEST.phrase, param=param)
