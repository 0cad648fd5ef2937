"""Trains a draft of a few of the target's layers on the target's own answers. For `.lab`'s interpreter.

Embeddings, which the output shares, stay the target's and are frozen: they are two thirds of a small draft and what both have
to agree in. The loss is the cross entropy with what the target thought of each token (its likeliest eight), over those tokens
and a sample of all others, as the whole vocabulary would take most of the time.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from gateway.measure.lab.distil_corpus import CHOICES, shards
from gateway.measure.lab.engines import Say
from gateway.measure.lab.model import publish
from gateway.measure.lab.place import Place

OTHERS: Final = 4096  # tokens besides the likely ones that each step learns to rule out
BATCH_TOKENS: Final = 2048
RATE: Final = 1.5e-3
WARM_UP: Final = 40  # steps
SAVE_SECONDS: Final = 60.0
HELD_OUT: Final = 0.03  # of the answers: agreement is told for those


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft to make: which of the target's layers it begins with."""

    name: str
    layers: tuple[int, ...]


DRAFTS: Final = (Draft("SmolLM2-draft-4", (0, 1, 28, 29)), Draft("SmolLM2-draft-2", (0, 29)))


@dataclass(slots=True)
class Texts:
    """Answers with what the target thought of them."""

    tokens: list[np.ndarray] = field(default_factory=list)
    answered: list[np.ndarray] = field(default_factory=list)
    ids: list[np.ndarray] = field(default_factory=list)
    logs: list[np.ndarray] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path) -> tuple[Texts, Texts]:
        """Read all shards: what is learned from, and what is held out."""
        learned, held = cls(), cls()
        for path in shards(folder):
            found = np.load(path)
            ends = np.cumsum(found["lengths"])
            said = np.concatenate([[0], np.cumsum(found["answered"])])
            for row, (end, length) in enumerate(zip(ends, found["lengths"], strict=True)):
                begin = end - length
                into = held if row < max(1, round(HELD_OUT * len(ends))) else learned
                into.tokens.append(found["tokens"][begin:end])
                into.answered.append(found["answered"][begin:end])
                into.ids.append(found["ids"][said[begin] : said[end]])
                into.logs.append(found["logs"][said[begin] : said[end]].astype(np.float32))
        return learned, held

    def batches(self, chance: np.random.Generator) -> Iterator[Sequence[int]]:
        """Yield groups of answers of about BATCH_TOKENS, near in length, in random order, again and again."""
        while True:
            order = sorted(range(len(self.tokens)), key=lambda index: len(self.tokens[index]) + chance.integers(20))
            groups: list[list[int]] = [[]]
            for index in order:
                if groups[-1] and len(self.tokens[index]) * (len(groups[-1]) + 1) > BATCH_TOKENS:
                    groups.append([])
                groups[-1].append(index)
            for group in chance.permutation(len(groups)):
                yield groups[int(group)]


class Training:
    """One draft while it learns; whatever was learned before is gone on with."""

    def __init__(self, place: Place, draft: Draft, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.place, self.draft, self.file = place, draft, folder / f"{draft.name}.pt"
        target = AutoModelForCausalLM.from_pretrained(place.target, dtype=torch.float32)
        self.config = target.config
        self.config.num_hidden_layers = len(draft.layers)
        self.model = AutoModelForCausalLM.from_config(self.config, dtype=torch.float32)
        self.model.model.embed_tokens.load_state_dict(target.model.embed_tokens.state_dict())
        self.model.model.norm.load_state_dict(target.model.norm.state_dict())
        for own, taken in enumerate(draft.layers):
            self.model.model.layers[own].load_state_dict(target.model.layers[taken].state_dict())
        self.model.tie_weights()
        self.head = self.model.model.embed_tokens.weight
        self.head.requires_grad_(False)
        self.learning = [value for value in self.model.parameters() if value.requires_grad]
        self.optimizer = torch.optim.AdamW(self.learning, lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
        self.steps = self.seen = 0
        self.seconds = 0.0
        if self.file.exists():
            self._load()

    def run(self, texts: Texts, held: Texts, *, seconds: float, say: Say) -> dict[str, Any]:
        """Learn for so long; return what came of it."""
        chance = np.random.default_rng(1000 + self.steps)
        began = saved = time.monotonic()
        before, trained = self.seen, self.seconds
        losses: list[float] = []
        for group in texts.batches(chance):
            now = time.monotonic()
            self.seconds = trained + now - began
            if now - began >= seconds:
                break
            if now - saved >= SAVE_SECONDS:
                self.save()
                say(
                    f"{self.draft.name}: {now - began:.0f} of {seconds:.0f} s, loss {np.mean(losses[-20:]):.2f}, "
                    f"{(self.seen - before) / (now - began):.0f} tokens/s"
                )
                saved = now
            # The rate falls with the time that is left, so that every run ends with small steps.
            share = min(1.0, (self.steps + 1) / WARM_UP) * max(0.05, 1.0 - (now - began) / seconds)
            losses.append(self._step(texts, group, RATE * share, chance))
        self.save()
        return {
            "layers": list(self.draft.layers),
            "parameters": sum(value.numel() for value in self.model.parameters()),
            "agreement": round(self.agreement(held), 4),
            "tokens_seen": self.seen,
            "seconds": round(self.seconds),
        }

    def agreement(self, held: Texts) -> float:
        """Return on what share of held-out tokens the draft's first choice is the target's."""
        import torch

        right = all_ = 0
        self.model.eval()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            for tokens, answered, ids in zip(held.tokens, held.answered, held.ids, strict=True):
                hidden = self.model.model(torch.from_numpy(tokens[None].astype(np.int64))).last_hidden_state[0]
                chosen = (hidden[:-1][torch.from_numpy(answered[1:])] @ self.head.T).argmax(-1).numpy()
                right += int((chosen == ids[:, 0]).sum())
                all_ += len(chosen)
        self.model.train()
        return right / max(1, all_)

    def save(self) -> None:
        """Write the state, whole or not at all."""
        import torch

        part = self.file.with_suffix(f".{os.getpid()}.part")
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "steps": self.steps,
            "seen": self.seen,
            "seconds": self.seconds,
        }
        torch.save(state, part)
        part.rename(self.file)

    def publish(self, facts: dict[str, Any]) -> Path:
        """Put the draft beside the other models, with the target's tokenizer; return its folder."""
        import torch
        from transformers import AutoTokenizer

        folder = self.place.models / self.draft.name
        part = folder.with_name(f".{folder.name}.{os.getpid()}")
        part.mkdir(parents=True, exist_ok=True)
        copy = type(self.model)(self.config)
        copy.load_state_dict(self.model.state_dict())
        copy.to(torch.bfloat16).save_pretrained(part)
        AutoTokenizer.from_pretrained(self.place.target).save_pretrained(part)
        settings = json.loads((part / "config.json").read_text())
        (part / "config.json").write_text(json.dumps({**settings, "dtype": "bfloat16"}, indent=1))
        publish(part, folder, draft=facts)
        return folder

    def _load(self) -> None:
        import torch

        state = torch.load(self.file, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps, self.seen, self.seconds = state["steps"], state["seen"], state["seconds"]

    def _step(self, texts: Texts, group: Sequence[int], rate: float, chance: np.random.Generator) -> float:
        """Learn from one batch; return its loss."""
        import torch

        longest = max(len(texts.tokens[index]) for index in group)
        tokens = np.full((len(group), longest), self.config.pad_token_id or 0, np.int64)
        answered = np.zeros((len(group), longest), bool)
        for row, index in enumerate(group):
            tokens[row, : len(texts.tokens[index])] = texts.tokens[index]
            answered[row, : len(texts.answered[index])] = texts.answered[index]
        ids = np.concatenate([texts.ids[index] for index in group]).astype(np.int64)
        logs = torch.from_numpy(np.concatenate([texts.logs[index] for index in group]))
        others = chance.integers(len(self.head), size=OTHERS)
        candidates, places = np.unique(np.concatenate([ids.ravel(), others]), return_inverse=True)
        wanted = torch.from_numpy(places[: ids.size].reshape(-1, CHOICES).astype(np.int64))

        with torch.autocast("cpu", torch.bfloat16):  # twice as fast where the processor multiplies in it
            hidden = self.model.model(torch.from_numpy(tokens)).last_hidden_state[:, :-1]
            scores = hidden[torch.from_numpy(answered[:, 1:])] @ self.head[torch.from_numpy(candidates)].T
        likely = torch.log_softmax(scores.float(), -1).gather(1, wanted)
        loss = -(torch.softmax(logs, -1) * likely).sum(-1).mean()
        for group_of in self.optimizer.param_groups:
            group_of["lr"] = rate
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.learning, 1.0)
        self.optimizer.step()
        self.steps += 1
        self.seen += int(answered.sum())
        return float(loss.item())
