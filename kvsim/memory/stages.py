"""Pipeline stages: which layers stand on which GPU, as vLLM deals them out."""

from dataclasses import dataclass, replace

from kvsim.model import LayerGroup, ModelSpec


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the model that follows another: so many layers, perhaps one of its ends."""

    layers: int
    is_first: bool = True  # has the embedding
    is_last: bool = True  # has the logits and the sampler


def stages(num_layers: int, pipeline_parallel_size: int) -> list[Stage]:
    """Return the stages; where they can't be equal, those before the last get one layer more.

    That is vLLM's `get_pp_indices`: the last stage, which has the logits too, is never longer.
    """
    size = pipeline_parallel_size
    each, more = divmod(num_layers, size)
    return [
        Stage(each + (size - 1 - more <= index < size - 1), index == 0, index == size - 1)
        for index in range(size)
    ]


def model_of(stage: Stage, model: ModelSpec) -> ModelSpec:
    """Return the layers of a stage as a model, each kind of layers in proportion.

    The order of kinds isn't known, so a model whose kinds are not evenly spread (a few dense
    layers before many with experts) has stages that differ a little more than it seems here.
    """
    share = stage.layers / model.num_layers
    counts = [int(group.count * share) for group in model.layers]
    rest = [group.count * share - count for group, count in zip(model.layers, counts, strict=True)]
    for index in sorted(range(len(rest)), key=lambda i: -rest[i])[: stage.layers - sum(counts)]:
        counts[index] += 1
    layers = zip(model.layers, counts, strict=True)
    return replace(
        model,
        layers=tuple(LayerGroup(n, group.attention, group.mlp) for group, n in layers if n),
        norm_weights=round(model.norm_weights * share),
        vision=model.vision if stage.is_first else (),
    )
