"""LoRA: a low-rank branch beside any linear map, put in by rules over parameter paths."""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import pydantic
from flax import nnx
from jaxtyping import Array, Float

from cxrjax.errors import UserError
from cxrjax.models.gemma import Embedder
from cxrjax.models.layers import Linear, TokenDropout, matmul, stored_matmul
from cxrjax.models.partition import path_of
from cxrjax.models.quantize import QuantizedKernel
from cxrjax.models.vlm import VLM
from cxrjax.settings import STRICT, NotNegative, NotNegativeFloat


@dataclasses.dataclass(frozen=True)
class LoRAConfig:
    """Rank, alpha and dropout of the branches, and the linear maps that get one.

    `targets` are regular expressions over module paths such as `decoder/layers/attn/q_proj`,
    matched from any '/' to the end: `attn/(q|k|v|o)_proj` names four maps of every block, and
    `vision/.*` all those of a tower. Of a decoder of several kinds of layers, `decoder/layers/`
    names all, `decoder/local_layers/` and the others of `DecoderConfig.stacks` one.

    `use_rslora` scales by alpha / sqrt(rank) instead of alpha / rank (arXiv 2312.03732).
    `use_dora` trains a magnitude for every output feature besides (arXiv 2402.09353).
    `rank_pattern` and `alpha_pattern` give some targets a rank or alpha of their own, by rules like
    those of `targets`; of several that match, the first counts. All four are as in PEFT.
    """

    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    targets: Sequence[str] = (r"decoder/layers/attn/(q|k|v|o)_proj",)
    use_rslora: bool = False
    use_dora: bool = False
    rank_pattern: Mapping[str, int] = dataclasses.field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = dataclasses.field(default_factory=dict)


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class AdapterConfig:
    """The group `lora`."""

    rank: NotNegative = 0  # 0: no adapters
    alpha: NotNegativeFloat = 0.0  # the update is scaled by alpha / rank; with adapters above 0
    use_rslora: bool = False  # by alpha / sqrt(rank) instead
    use_dora: bool = False  # a trained magnitude for every output feature
    # On the adapter's input, in training alone.
    dropout: Annotated[float, pydantic.Field(ge=0, lt=1)] = 0.0
    # Regexes over paths of linear maps.
    targets: tuple[str, ...] = ("decoder/layers/attn/(q|k|v|o)_proj",)
    # Other ranks for some targets, "regex=rank": ("vision/.*=8",).
    rank_pattern: tuple[str, ...] = ()
    alpha_pattern: tuple[str, ...] = ()  # the same for alpha; of several that fit, the first counts
    init_from: str | None = None  # PEFT adapter of this very shape to start from; null: anew
    loc_rows: bool = False  # a trainable difference on the embedding rows of the <loc> tokens
    # Rank of a second adapter, on the <loc> tokens' logits among themselves, that the box loss
    # trains and nothing else, and that the box loss trains alone; 0: none, it trains all.
    box_rank: NotNegative = 0
    # An output layer apart from the embedding, which it starts as; train them by a rule such as
    # "embedder/(table|head)$", as PEFT's modules_to_save does.
    untied: bool = False

    @property
    def adapts(self) -> bool:
        """True if a model has adapters of any kind."""
        return self.rank > 0 or self.loc_rows or self.box_rank > 0

    def branches(self) -> LoRAConfig:
        """Returns what `apply_lora` takes.

        Raises:
            UserError: a pattern that cannot be read.
        """
        patterns: dict[str, Any] = {
            name: parse_pattern(getattr(self, name), f"lora.{name}")
            for name in ("rank_pattern", "alpha_pattern")
        }
        same = ("rank", "alpha", "dropout", "targets", "use_rslora", "use_dora")
        return LoRAConfig(**{name: getattr(self, name) for name in same}, **patterns)


class LoRA(nnx.Module):
    """`x @ kernel + dropout(x) @ a @ b * scale` (arXiv 2106.09685, section 4.1).

    `b` starts at zero, so that step 0 equals the base exactly. Dropout acts on the branch's input
    and only where noise is passed in, that is in training.

    With a magnitude, DoRA (arXiv 2402.09353, equation 5): the columns of kernel + scale * a @ b,
    divided by their norms, times the magnitude, which starts as the columns' norms. The norms that
    divide are constants to the gradient (section 4.3). Of a base that is quantised afterwards, step
    0 keeps the norms that the columns had before.

    Attributes:
        a: [*stack, i, r]; `stack` is the depth of stacked layers.
        b: [*stack, r, o].
        magnitude: [*stack, o], or None.
        scale: alpha / r, or alpha / sqrt(r) with `use_rslora`.
        dropout: probability.
    """

    def __init__(
        self,
        a: Array,
        b: Array,
        alpha: float,
        dropout: float,
        *,
        use_rslora: bool = False,
        magnitude: Array | None = None,
    ):
        self.a = nnx.Param(a)
        self.b = nnx.Param(b)
        self.magnitude = nnx.data(None if magnitude is None else nnx.Param(magnitude))
        rank = a.shape[-1]
        self.scale = alpha / (rank**0.5 if use_rslora else rank)
        self.dropout = dropout

    def __call__(
        self,
        x: Float[Array, "*batch i"],
        kernel: Float[Array, "i o"] | QuantizedKernel,
        dropout: TokenDropout | None,
    ) -> Float[Array, "*batch o"]:
        """The map of `x` by the frozen kernel and the branch, without bias."""
        a, b = self.a[...].astype(x.dtype), self.b[...].astype(x.dtype)
        ratio = None
        if self.magnitude is not None:
            norms = column_norms(jax.lax.stop_gradient(self._sum(kernel)))
            ratio = (self.magnitude[...] / norms).astype(x.dtype)
        if dropout is not None and self.dropout > 0:
            dropped = dropout(x, self.dropout)
            branch = matmul(matmul(dropped, a), b) * self.scale
            y = stored_matmul(x, kernel)
            if ratio is None:
                return y + branch
            # As PEFT: dropout acts on all that DoRA changes, so on x @ kernel there too.
            return y + (ratio - 1.0) * stored_matmul(dropped, kernel) + ratio * branch
        exact = x.dtype == jnp.float32 and jax.default_backend() == "cpu"
        if exact and folding_pays(x.size // x.shape[-1], *kernel.shape):
            y = folded_matmul(x, kernel, a, b, self.scale)
        else:
            y = stored_matmul(x, kernel) + matmul(matmul(x, a), b) * self.scale
        return y if ratio is None else ratio * y

    def merged(
        self, kernel: Float[Array, "*stack i o"] | QuantizedKernel
    ) -> Float[Array, "*stack i o"]:
        """The kernel that does what `kernel` and this branch do, float32."""
        merged = self._sum(kernel)
        if self.magnitude is None:
            return merged
        return merged * (self.magnitude[...] / column_norms(merged))[..., None, :]

    def _sum(self, kernel: Array | QuantizedKernel) -> Array:
        a, b = self.a[...].astype(jnp.float32), self.b[...].astype(jnp.float32)
        return kernel.astype(jnp.float32) + self.scale * (a @ b)


def column_norms(kernel: Float[Array, "*stack i o"]) -> Float[Array, "*stack o"]:
    """Euclidean norm of the weights of every output feature, float32; above 0."""
    norms = jnp.linalg.norm(kernel.astype(jnp.float32), axis=-2)
    return jnp.maximum(norms, jnp.finfo(jnp.float32).tiny)


def folding_pays(tokens: int, in_features: int, out_features: int) -> bool:
    """Returns whether `x @ (kernel + scale * a @ b)` is cheaper than a branch beside `x @ kernel`.

    Multiplications, forward and backward, beyond those of the kernel alone, with tokens T, rank r
    and features i and o:

        beside:  3 T r (i + o)                 the two products, twice more for the gradients
        folded:  2 T r (i + o) + 2 r i o       gradients of a and b; a @ b, again in the backward

    The rule wants the saving, T (i + o), to be twice the cost, 2 i o: adding to the kernel takes
    time that the count leaves out. The rank drops out. Measured on two CPU cores at T = 2,500 and
    r = 16, gradients included: a fifth to a third less time for kernels of 128x128 to 512x512
    (docs/log.md). Folding rounds the sum to what the product is computed in, so it is for float32
    on CPUs alone: bfloat16 would swallow the branch, and TPUs and GPUs multiply float32 in less.
    """
    return tokens * (in_features + out_features) >= 4 * in_features * out_features


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def folded_matmul(
    x: Float[Array, "*batch i"],
    kernel: Float[Array, "i o"] | QuantizedKernel,
    a: Float[Array, "i r"],
    b: Float[Array, "r o"],
    scale: float,
) -> Float[Array, "*batch o"]:
    """`x @ (kernel + scale * a @ b)`; the gradients of `a` and `b` go through small products.

    Plain differentiation would build the kernel's own gradient on the way to those of `a` and `b`.
    """
    return matmul(x, kernel.astype(x.dtype) + scale * (a @ b))


def _folded_forward(x: Array, kernel: Any, a: Array, b: Array, scale: float) -> tuple[Array, Any]:
    # The folded kernel is made again in the backward pass: cheap, and one less per layer to keep.
    return folded_matmul(x, kernel, a, b, scale), (x, kernel, a, b)


def _folded_backward(scale: float, kept: Any, dy: Array) -> tuple[Array, Any, Array, Array]:
    x, kernel, a, b = kept
    dx = matmul(dy, (kernel.astype(x.dtype) + scale * (a @ b)).T)
    x, dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    full = x.T @ dy  # the compiler drops it where nothing wants it
    dkernel = None if isinstance(kernel, QuantizedKernel) else full.astype(kernel.dtype)
    (in_features, out_features), rank = kernel.shape, a.shape[-1]
    if in_features * out_features < 2 * rank * (in_features + out_features):
        return dx, dkernel, scale * (full @ b.T), scale * (a.T @ full)
    return dx, dkernel, x.T @ (scale * (dy @ b.T)), (scale * (x @ a)).T @ dy


folded_matmul.defvjp(_folded_forward, _folded_backward)


def apply_lora(model: nnx.Module, config: LoRAConfig, rngs: nnx.Rngs) -> list[str]:
    """Puts a LoRA branch beside every linear map that a target names.

    Args:
        model: changed in place; with `use_dora` its kernels must be there, not just their shapes.
        config: ranks must be at least 1; every target and every pattern must match something.
        rngs: stream `params` starts the `a` matrices.

    Returns:
        The paths of the maps that got a branch.

    Raises:
        UserError: a target that matches no linear map, a pattern that matches none of the targets,
            or a rank below 1.
    """
    linears = {
        path_of(path): module
        for path, module in nnx.iter_modules(model)
        if isinstance(module, Linear)
    }
    chosen: list[str] = []
    for target in config.targets:
        matched = [path for path in sorted(linears) if _matches(target, path)]
        if not matched:
            raise UserError(
                f"lora.targets: {target!r} matches no linear map; there are "
                + ", ".join(sorted(linears))
            )
        chosen += [path for path in matched if path not in chosen]
    ranks = _values("lora.rank_pattern", config.rank_pattern, config.rank, chosen)
    alphas = _values("lora.alpha_pattern", config.alpha_pattern, config.alpha, chosen)
    for path in chosen:
        if ranks[path] < 1:
            raise UserError(f"lora.rank is {ranks[path]} for {path}: expected at least 1")
    for path in chosen:
        linear, rank = linears[path], ranks[path]
        kernel = linear.kernel.get_value()
        *stack, in_features, out_features = kernel.shape
        # As PEFT: uniform in +-1/sqrt(in_features) (Kaiming with a = sqrt(5)).
        bound = in_features**-0.5
        a = jax.random.uniform(
            rngs.params(), (*stack, in_features, rank), minval=-bound, maxval=bound
        )
        b = jnp.zeros((*stack, rank, out_features))
        linear.lora = LoRA(
            a,
            b,
            alphas[path],
            config.dropout,
            use_rslora=config.use_rslora,
            # b is zero, so these are the norms of kernel + scale * a @ b too.
            magnitude=_column_norms(kernel) if config.use_dora else None,
        )
    return chosen


def _matches(rule: str, path: str) -> bool:
    paths = {path, re.sub("/(shared_)?(local|global)_layers/", "/layers/", path)}
    return any(re.fullmatch(rf"(?:.*/)?(?:{rule})", each) for each in paths)


def _values(
    name: str, pattern: Mapping[str, Any], default: Any, paths: list[str]
) -> dict[str, Any]:
    """Each path's value by the patterns, else the default."""
    for rule in pattern:
        if not any(_matches(rule, path) for path in paths):
            raise UserError(
                f"{name}: {rule!r} matches no map with an adapter; there are {', '.join(paths)}"
            )
    return {
        path: next((value for rule, value in pattern.items() if _matches(rule, path)), default)
        for path in paths
    }


def parse_pattern(entries: Sequence[str], key: str) -> dict[str, Any]:
    """`{"vision/.*": 8}` of `("vision/.*=8",)`, as a configuration writes a pattern.

    A `key` of the configuration that holds "rank" wants whole numbers.

    Raises:
        UserError: an entry that isn't a rule, '=' and a number above 0.
    """
    kind: Any = int if "rank" in key else float
    pattern = {}
    for entry in entries:
        rule, _, number = entry.rpartition("=")
        try:
            value = kind(number)
            re.compile(rule)
        except (ValueError, re.error):
            value = 0
        if not rule or not value > 0:
            raise UserError(
                f"{key}: {entry!r}: expected REGEX=NUMBER, the number "
                f"{'whole and ' if kind is int else ''}above 0, such as 'vision/.*=8'"
            )
        pattern[rule] = value
    return pattern


def merge_lora(model: nnx.Module) -> list[str]:
    """Folds every adapter into the kernel beside it, and trained `<loc>` rows into their table.

    The box loss's adapter goes into an output layer that is untied for it, where words no longer
    keep their probability.

    One kernel at a time, and of a stack one layer at a time: beyond the model itself there is never
    more than one kernel. A kernel keeps its dtype, except that a quantised one becomes float32:
    rounding it again would lose what was learnt.

    Args:
        model: changed in place; without adapters it stays as it is.

    Returns:
        The paths of the maps that had an adapter.
    """
    paths = []
    for path, module in nnx.iter_modules(model):
        if isinstance(module, Linear) and module.lora is not None:
            module.kernel = nnx.Param(_merge(*nnx.split(module.lora), module.kernel.get_value()))
            module.lora = None
            paths.append(path_of(path))
        elif isinstance(module, Embedder) and module.loc_delta is not None:
            table, delta = module.table[...], module.loc_delta[...]
            start = module.loc_token_start
            rows = table[start : start + len(delta)].astype(jnp.float32) + delta
            rows = rows.astype(table.dtype)
            module.table = nnx.Param(jax.lax.dynamic_update_slice_in_dim(table, rows, start, 0))
            module.loc_delta = None
    if isinstance(model, VLM) and (box := model.decoder.embedder.lora) is not None:
        model.untie()
        embedder, start = model.decoder.embedder, model.decoder.embedder.loc_token_start
        head, delta = embedder.rows, (box.a[...] @ box.b[...]).T
        rows = (head[start : start + len(delta)].astype(jnp.float32) + delta).astype(head.dtype)
        embedder.head = nnx.Param(jax.lax.dynamic_update_slice_in_dim(head, rows, start, 0))
        embedder.lora = None
    return sorted(paths)


@functools.partial(jax.jit, static_argnums=0)
def _merge(graphdef: Any, params: Any, kernel: Any) -> Array:
    if kernel.ndim > 2:
        return jax.lax.map(lambda layer: _merge(graphdef, *layer), (params, kernel))
    dtype = jnp.float32 if isinstance(kernel, QuantizedKernel) else kernel.dtype
    return nnx.merge(graphdef, params).merged(kernel).astype(dtype)


@jax.jit
def _column_norms(kernel: Any) -> Array:
    if kernel.ndim > 2:
        return jax.lax.map(_column_norms, kernel)
    return column_norms(kernel.astype(jnp.float32))
