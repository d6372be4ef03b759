"""Launches of kernels/embed.cu: a step's rows of the embedding table, scaled, with learned positions added."""

from .launch import NULL, SUFFIX, Half, Launch, require_aligned

_THREADS = 256
_BLOCK_PIECES = 4 * _THREADS  # of 16 bytes


def plan(
    out: int,
    table: int,
    tokens: int,
    count: int,
    hidden: int,
    vocabulary: int,
    *,
    dtype: Half,
    ids: int = NULL,
    scale: float = 1.0,
    position_table: int = NULL,
    positions: int = NULL,
) -> Launch:
    """out[t] = table[tokens[t]] * scale + position_table[positions[t]], rounded once: [count, hidden].

    table: [vocabulary, hidden]; position_table: [positions there are, hidden], or none. tokens, positions: [count]
    int32. ids: int32, or none: a token t < 0 is ids[~t]. One outside the vocabulary reads its nearest row; positions
    are taken as they are.
    Raises ValueError for what no kernel takes.
    """
    if count < 1 or hidden < 8 or hidden % 8 != 0 or vocabulary < 1:
        raise ValueError(f"embedding of {count} tokens, {vocabulary} rows of {hidden}: rows are multiples of 8")
    if (position_table == NULL) != (positions == NULL):
        raise ValueError("a position table goes with positions")
    require_aligned(out=out, table=table, position_table=position_table)
    return Launch(
        module="embed",
        entry=f"embed_{SUFFIX[dtype]}",
        grid=(-(-count * hidden // 8 // _BLOCK_PIECES), 1, 1),
        block=(_THREADS, 1, 1),
        shared_bytes=0,
        arguments=(out, table, position_table, tokens, ids, positions, count, hidden, vocabulary, float(scale)),
    )
