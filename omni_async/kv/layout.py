"""How a KV cache lies in memory, and whether two of them can hold the same cache.

In: numbers, or the cache tensors of an engine. Out: a value that says where each byte is; refusals.
Never: touches a cache's bytes, imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import msgspec

from ..errors import ProtocolError, UsageError
from .shapes import Form, Order, block_of, facts_of, form_of

ITEMSIZES = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "int8": 1,
    "uint8": 1,
}
"""Bytes of one element, by what torch calls its dtype."""

RANK_LIMIT = 4096
"""Ranks that may share the heads of one cache."""

_NBYTES_LIMIT = 1 << 62  # sums of offsets stay whole numbers of 64 bits


class KVStrides(NamedTuple):
    """Bytes from one to the next within a layer, whose tensors count as one after the other."""

    part: int
    """From a key to its value; 0 where there is no such pair."""
    block: int
    token: int
    head: int


class KVLayout(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's share of a paged KV cache. All layers are alike.

    The tensors of a layer, where ``N`` is ``num_blocks``, ``B`` is ``block_size``, ``H`` is ``heads`` and
    ``D`` is ``head_size``:

    =========== ======================= ====================================================
    ``split``   ``[N, B, H, D]`` twice  keys, then values
    ``stacked`` ``[2, N, B, H, D]``     the same in one tensor
    ``paired``  ``[N, 2, B, H, D]``     keys and values of a block next to each other
    ``packed``  ``[N, H, B, 2 * D]``    a value follows its key
    ``mla``     ``[N, B, D]``           latents, which all heads share
    =========== ======================= ====================================================

    With ``order`` ``head_token`` the axes ``B`` and ``H`` change places. That is the order of ``packed`` unless
    another is named; everything else is ``token_head``.

    Heads are shared out evenly. With more ranks than heads each head has as many ranks that hold it.

    Raises:
        UsageError: a number makes no sense, or the heads cannot be shared out; names the values.
    """

    layers: int
    num_blocks: int
    block_size: int
    """Tokens in a block."""
    kv_heads: int
    """Of the whole model; 1 for ``mla``."""
    head_size: int
    """Elements; for ``mla`` those of a latent."""
    dtype: str
    """As torch calls it: a key of :data:`ITEMSIZES`."""
    form: Form = "split"
    order: Order | None = None
    """Inside a block. Never ``None`` once constructed."""
    tp_size: int = 1
    tp_rank: int = 0

    def __post_init__(self) -> None:
        for name in ("layers", "num_blocks", "block_size", "kv_heads", "head_size", "tp_size"):
            _positive(name, getattr(self, name))
        if self.dtype not in ITEMSIZES:
            raise UsageError(f"dtype has to be one of {', '.join(ITEMSIZES)}, not {self.dtype!r}")
        if self.form not in get_args(Form):
            raise UsageError(
                f"form has to be one of {', '.join(get_args(Form))}, not {self.form!r}"
            )
        if self.order not in (None, *get_args(Order)):
            raise UsageError(
                f"order has to be one of {', '.join(get_args(Order))}, not {self.order!r}"
            )
        if self.form == "mla" and self.kv_heads != 1:
            raise UsageError(f"a cache of latents has kv_heads 1, not {self.kv_heads}")
        share(self.kv_heads, self.tp_size, self.tp_rank)
        if self.form == "mla" or self.order is None:
            order: Order = "head_token" if self.form == "packed" else "token_head"
            msgspec.structs.force_setattr(self, "order", order)
        if self.layer_nbytes > _NBYTES_LIMIT:
            raise UsageError(f"a layer of {self.layer_nbytes} bytes is too large")

    @property
    def parts(self) -> int:
        """2 where there are keys and values, 1 where there are latents."""
        return 1 if self.form == "mla" else 2

    @property
    def head_range(self) -> range:
        """The model's heads that this rank holds."""
        return share(self.kv_heads, self.tp_size, self.tp_rank)

    @property
    def heads(self) -> int:
        """How many heads this rank holds."""
        return len(self.head_range)

    @property
    def head_nbytes(self) -> int:
        """Bytes of one key, value or latent of one token and head."""
        return self.head_size * ITEMSIZES[self.dtype]

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block in one layer, keys and values together."""
        return self.parts * self.block_size * self.heads * self.head_nbytes

    @property
    def layer_nbytes(self) -> int:
        """Bytes of one layer, keys and values together."""
        return self.num_blocks * self.block_nbytes

    @property
    def tensor_nbytes(self) -> tuple[int, ...]:
        """Bytes of each tensor of a layer."""
        count = 2 if self.form == "split" else 1
        return (self.layer_nbytes // count,) * count

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the tensors of a layer, as they lie in memory."""
        blocks, size = self.num_blocks, self.head_size
        if self.form == "mla":
            return ((blocks, self.block_size, size),)
        block = (self.block_size, self.heads)
        if self.order == "head_token":
            block = (self.heads, self.block_size)
        if self.form == "packed":
            return ((blocks, *block, 2 * size),)
        if self.form == "paired":
            return ((blocks, 2, *block, size),)
        if self.form == "stacked":
            return ((2, blocks, *block, size),)
        return ((blocks, *block, size),) * 2

    @property
    def strides(self) -> KVStrides:
        """Where things are within a layer, in bytes."""
        item = self.head_nbytes * (2 if self.form == "packed" else 1)
        token, head = item * self.heads, item
        if self.order == "head_token":
            token, head = item, item * self.block_size
        if self.form == "mla":
            return KVStrides(0, self.block_nbytes, token, head)
        half = self.block_nbytes // 2
        if self.form == "packed":
            return KVStrides(self.head_nbytes, self.block_nbytes, token, head)
        if self.form == "paired":
            return KVStrides(half, self.block_nbytes, token, head)
        return KVStrides(self.num_blocks * half, half, token, head)

    @classmethod
    def of(
        cls,
        caches: Sequence[Any],
        *,
        kv_heads: int | None = None,
        block_size: int | None = None,
        form: Form | None = None,
        order: Order | None = None,
        tp_size: int = 1,
        tp_rank: int = 0,
    ) -> KVLayout:
        """The layout of an engine's cache tensors.

        What the shapes leave open has to be said. A tensor whose axes were permuted is taken as it lies in
        memory.

        Args:
            caches: one item a layer: a torch tensor or numpy array of one of the shapes above, or a pair of
                tensors with the keys and the values.
            kv_heads: of the whole model; left out, one rank holds them all.
            block_size: tokens in a block.
            form: where two axes have a length of 2.
            order: where a block has as many tokens as heads, or neither number is given.
            tp_size: ranks that share the heads.
            tp_rank: this one.

        Raises:
            UsageError: layers differ, a tensor has gaps or another shape, or it remains open what its axes are.
        """
        if not len(caches):
            raise UsageError("a KV cache has one layer at least")
        first = facts_of(caches[0], 0)
        for number in range(1, len(caches)):
            other = facts_of(caches[number], number)
            if other != first:
                raise UsageError(
                    f"all layers have to be alike: layer 0 is {first}, layer {number} is {other}"
                )
        found = form_of(first, form)
        last = first.shape[-1]
        if found == "mla":
            tokens, heads = first.shape[1], 1
            if block_size not in (None, tokens) or kv_heads not in (None, 1):
                raise UsageError(
                    f"{first} are latents of blocks of {tokens} tokens and has kv_heads 1, "
                    f"not block_size {block_size} and kv_heads {kv_heads}"
                )
            kv_heads = 1
        else:
            if kv_heads is None and tp_size != 1:
                raise UsageError(f"kv_heads, of the whole model, is needed with tp_size {tp_size}")
            held = None if kv_heads is None else len(share(kv_heads, tp_size, tp_rank))
            if found == "packed" and (held, block_size, order) == (None, None, None):
                order = "head_token"
            order, tokens, heads = block_of(first, held, block_size, order)
            kv_heads = heads if kv_heads is None else kv_heads
            if found == "packed" and last % 2:
                raise UsageError(f"{first} does not hold a key and a value of the same size")
        return cls(
            layers=len(caches),
            num_blocks=first.shape[1 if found == "stacked" else 0],
            block_size=tokens,
            kv_heads=kv_heads,
            head_size=last // 2 if found == "packed" else last,
            dtype=first.dtype,
            form=found,
            order=order,
            tp_size=tp_size,
            tp_rank=tp_rank,
        )


def share(kv_heads: int, tp_size: int, tp_rank: int) -> range:
    """The heads that a rank holds.

    Raises:
        UsageError: they cannot be shared out evenly, or there is no such rank; names the values.
    """
    per_rank, copies = shares(kv_heads, tp_size)
    if type(tp_rank) is not int or not 0 <= tp_rank < tp_size:
        raise UsageError(f"tp_rank has to be one of tp_size {tp_size}, from 0, not {tp_rank!r}")
    start = tp_rank // copies * per_rank
    return range(start, start + per_rank)


def shares(kv_heads: int, tp_size: int) -> tuple[int, int]:
    """How many heads a rank has, and how many ranks have the same ones.

    Raises:
        UsageError: see :func:`share`.
    """
    _positive("tp_size", tp_size)
    if tp_size > RANK_LIMIT:
        raise UsageError(f"tp_size has to be at most {RANK_LIMIT}, not {tp_size}")
    if kv_heads % tp_size and tp_size % kv_heads:
        raise UsageError(
            f"kv_heads {kv_heads} cannot be shared out to tp_size {tp_size}: "
            "one has to be a multiple of the other"
        )
    return max(1, kv_heads // tp_size), max(1, tp_size // kv_heads)


def match(source: KVLayout, target: KVLayout, *, peer: str | None = None) -> None:
    """Whether both can hold the same cache.

    Block sizes, forms, orders, numbers of blocks and ranks may differ.

    Raises:
        ProtocolError: dtype, layers, heads, head size, or what is kept differs; names both values.
    """
    pairs: list[tuple[str, Any, Any]] = [
        (name, getattr(source, name), getattr(target, name))
        for name in ("dtype", "layers", "kv_heads", "head_size")
    ]
    if "mla" in (source.form, target.form):
        pairs.insert(0, ("form", source.form, target.form))
    differences = [pair for pair in pairs if pair[1] != pair[2]]
    if differences:
        raise ProtocolError(
            "the KV caches do not match: "
            + ", ".join(
                f"{name} is {here} at the source and {there} at the target"
                for name, here, there in differences
            ),
            peer=peer,
        )


def _positive(name: str, value: Any) -> None:
    if type(value) is not int or value < 1:
        raise UsageError(f"{name} has to be a whole number of at least 1, not {value!r}")
