"""A variant with all defaults filled in: what a simulation, a manifest and a report read."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kvsim.cost import StepCost
from kvsim.engine.allocators import KVAllocator, PoolShape
from kvsim.engine.allocators.paged import Paged
from kvsim.engine.config import EngineConfig
from kvsim.engine.request import RequestView
from kvsim.engine.schedulers import KVBlock, Scheduler, WaitingQueue
from kvsim.engine.schedulers.vllm import Vllm
from kvsim.gpu import GpuSpec, Price
from kvsim.memory import MemoryBudget, slots_of
from kvsim.model import ModelSpec
from kvsim.scenario.profiles import EngineProfile
from kvsim.scenario.schema import Scenario


@dataclass(frozen=True, slots=True)
class ResolvedVariant:
    """One variant, ready to run.

    Attributes:
        name: "base", or its name in the file.
        scenario: The variant as written, overrides merged in; workload, kv_cache, routing, cost,
            slo and the rest are read from it.
        model: As served: dtype and quantization of the engine applied.
        gpu: Each of the replica's GPUs.
        engine: Settings of each replica.
        memory: Where a GPU's memory goes.
        cost: What its steps cost.
        profile: Constants of the engine's version, and what its front end takes; None if the
            steps cost what the scenario says.
        price: What a GPU costs an hour; None if nobody said.
        notes: What a reader of the results must know, in sentences.
    """

    name: str
    scenario: Scenario
    model: ModelSpec
    gpu: GpuSpec
    engine: EngineConfig
    memory: MemoryBudget
    cost: StepCost
    profile: EngineProfile | None
    price: Price | None
    notes: tuple[str, ...]

    @property
    def num_gpus(self) -> int:
        """GPUs of all replicas together."""
        return self.scenario.replicas * self.memory.flags.parallel.num_gpus

    @property
    def num_engines(self) -> int:
        """Engines of all replicas together: one for each data-parallel rank."""
        return self.scenario.replicas * self.scenario.engine.data_parallel_size

    @property
    def kv_slot_bytes(self) -> int:
        """Bytes of a KV slot on one GPU: of a token in all layers, or in those of a KV group."""
        block_slots, token_slots = slots_of(self.memory.kv_layout.groups)
        slots = 1 if isinstance(self.scenario.kv_cache, Paged) else token_slots
        return self.memory.block_bytes * slots // block_slots

    def build_allocator(self, answer_tokens: Callable[[RequestView], int]) -> KVAllocator:
        """Return an empty KV cache of one replica; only an oracle's asks for `answer_tokens`."""
        layout = self.scenario.kv_cache
        return layout.build(PoolShape.of(self.engine, answer_tokens if layout.is_oracle else None))

    def build_scheduler(
        self, config: EngineConfig, allocator: KVAllocator, waiting: WaitingQueue
    ) -> Scheduler:
        """Return the scheduler of one replica."""
        return self.scenario.scheduler.build(config, allocator, waiting, self.kv_block)

    @property
    def kv_block(self) -> KVBlock | None:
        """A block of the KV cache on one GPU; None if the GPU's link to its host is not known."""
        if self.gpu.pcie_bytes_per_s is None:
            return None
        layers = -(-self.model.num_layers // self.scenario.engine.pipeline_parallel_size)
        return KVBlock(self.memory.block_bytes, 2 * layers, self.gpu.pcie_bytes_per_s)

    def as_dict(self) -> dict[str, Any]:
        """Return the resolved values, ready for JSON."""
        usual = {"scheduler"} if isinstance(self.scenario.scheduler, Vllm) else set()
        if self.scenario.replications == 1:
            usual.add("replications")
        written = self.scenario.model_dump(mode="json", exclude={"name", "variants", *usual})
        return written | {
            "model": _model_facts(self.model),
            "gpu": self.gpu.as_dict(),
            "engine": written["engine"] | self._engine_facts(),
            "cost": _told(written["cost"]) | self._profile_facts(),
            "memory": _memory_facts(self.memory),
            "price": asdict(self.price) if self.price else None,
            "notes": list(self.notes),
        }

    def _profile_facts(self) -> dict[str, Any]:
        return {} if self.profile is None else self.profile.model_dump(mode="json")

    def _engine_facts(self) -> dict[str, Any]:
        """Return the engine's settings with every `auto` replaced by what it came to."""
        flags = self.memory.flags
        return {
            **asdict(flags),
            **asdict(self.engine),
            "kv_groups": [asdict(group) for group in self.engine.kv_groups],
            "dtype": self.model.dtype,
            "kv_cache_dtype": self.model.kv_cache_dtype(flags.kv_cache_dtype),
        }


def scenario_hash(variants: Mapping[str, Mapping[str, Any]], files: Mapping[str, str]) -> str:
    """Return a SHA-256 of all that decides the results but kvsim's own version.

    Neither the order of keys, nor a default written out, nor the scenario's name changes it.

    Args:
        variants: What `ResolvedVariant.as_dict` returns of each; the notes don't count.
        files: Digests of the files that the workload reads.
    """
    values = {
        name: {key: value for key, value in facts.items() if key != "notes"}
        for name, facts in variants.items()
    }
    return _digest({"variants": values, "files": files})


def _told(cost: dict[str, Any]) -> dict[str, Any]:
    """Leave out kernels as they are measured: only those of another generation change anything."""
    modern = cost.get("attention_kernel") == {"kind": "modern"}
    return {key: value for key, value in cost.items() if not (modern and key == "attention_kernel")}


def _model_facts(model: ModelSpec) -> dict[str, Any]:
    return {
        "name": model.name,
        "dtype": model.dtype,
        "num_layers": model.num_layers,
        "parameters": sum(model.parameters().values()),
        "active_parameters": model.active_parameters(),
        "quantization": asdict(model.quantization) if model.quantization else None,
        "sha256": _digest(asdict(model)),
    }


def _memory_facts(memory: MemoryBudget) -> dict[str, Any]:
    facts = {k: v for k, v in asdict(memory).items() if k not in {"flags", "kv_layout"}}
    return facts | {"block_bytes": memory.block_bytes, "kv_cache_tokens": memory.kv_cache_tokens}


def _digest(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
