"""How the GPUs of a server share a model: tensor, pipeline, data and expert parallelism."""

from dataclasses import dataclass

from kvsim.model.spec import Weight


@dataclass(frozen=True, slots=True)
class Parallelism:
    """The parallel sizes of one server, under vLLM's names.

    A data-parallel rank is an engine of its own, of `tensor_parallel_size` x
    `pipeline_parallel_size` GPUs. The ranks share nothing but the routed experts: all their GPUs
    of a stage divide each expert among them or, with `enable_expert_parallel`, keep whole experts
    (vLLM, "Data Parallel Deployment").
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False

    @property
    def rank_gpus(self) -> int:
        """GPUs of one data-parallel rank."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def num_gpus(self) -> int:
        """GPUs of the server."""
        return self.rank_gpus * self.data_parallel_size

    @property
    def expert_gpus(self) -> int:
        """GPUs that share the experts of a layer."""
        return self.tensor_parallel_size * self.data_parallel_size

    @property
    def expert_tensor_size(self) -> int:
        """Pieces that each expert is cut into."""
        return 1 if self.enable_expert_parallel else self.expert_gpus

    @property
    def expert_parallel_size(self) -> int:
        """GPUs among which whole experts are dealt out."""
        return self.expert_gpus if self.enable_expert_parallel else 1

    def share(self, weight: Weight) -> float:
        """Return the fraction of a weight of its stage that the fullest GPU holds."""
        if weight.part != "experts":
            return weight.share(self.tensor_parallel_size)
        if self.enable_expert_parallel:
            return -(-weight.count // self.expert_gpus) / weight.count
        return weight.share(self.expert_gpus)
