"""Answers of the lesson by_hand."""

from tests.integration.lessons.book import Answer

_CENTERED = "%%mhjax\ndef centered(piece):\n    return {}\nmhnb.teach.check('centered', centered)"
_RING = """%%mhjax
def gather(piece):
    pieces, mine = [piece], lax.axis_index("i")
    for _ in range({steps}):
        pieces.append(lax.ppermute(pieces[-1], "i", {ring}))
    found = jnp.stack(pieces)
    return {give}

mhnb.teach.check('ring_gather', gather)"""
_FORWARD = "[(k, (k + 1) % 8) for k in range(8)]"
_SHARE = "%%mhjax\ndef share(partial):\n    return {}\nmhnb.teach.check('own_share', share)"

ANSWERS = {
    "centered": Answer(
        [
            (
                _CENTERED.format("piece - piece.mean()"),
                "each device subtracts the mean of its own piece, expected the mean of the whole array, 325.5",
            ),
            (
                _CENTERED.format("piece - lax.psum(piece.sum(), 'i') / piece.size"),
                "every device subtracts 2604, expected the mean of all numbers, 325.5",
            ),
            (_CENTERED.format("piece - lax.pmean(piece, 'i')"), "centered(piece) on device"),
            (_CENTERED.format("piece - lax.all_gather(piece, 'i').mean()"), "1 all-gather, expected none"),
            (
                _CENTERED.format("piece - lax.pmean(piece, 'i').mean()"),
                "each device contributes 16 bytes, expected at most 4",
            ),
        ],
    ),
    "ring_gather": Answer(
        [
            (
                _RING.format(steps=7, ring=_FORWARD, give="found.ravel()"),
                "each device has all pieces, in another order, expected the order of the devices",
            ),
            (
                _RING.format(steps=7, ring=_FORWARD, give="0 * found.ravel()"),
                "gather(piece) on device",
            ),
            (
                _RING.format(steps=0, ring=_FORWARD, give="jnp.concatenate([piece] * 8)"),
                "each device has its own piece 8 times, expected the pieces of all devices",
            ),
            (_RING.format(steps=6, ring=_FORWARD, give="found.ravel()"), "has shape (21,) per device, expected (24,)"),
            (
                _RING.format(steps=0, ring=_FORWARD, give="lax.all_gather(piece, 'i', tiled=True)"),
                "the program has 1 all-gather, expected none",
            ),
            (
                _RING.format(
                    steps=8,
                    ring=_FORWARD,
                    give="jnp.where(found[8] == found[0], found[:8][(mine - jnp.arange(8)) % 8], 0).ravel()",
                ),
                "the program has 8 collective-permute, expected at most 7",
            ),
        ],
    ),
    "own_share": Answer(
        [
            (
                _SHARE.format("lax.psum(partial, 'i')"),
                "every device has the whole sum, 16 numbers, expected its own part, 2 numbers",
            ),
            (_SHARE.format("partial.reshape(8, -1).sum(axis=0)"), "share(partial) on device"),
            (_SHARE.format("lax.psum_scatter(partial.reshape(8, -1), 'i')[::-1]"), "share(partial) on device"),
            (
                _SHARE.format("lax.dynamic_slice(lax.psum(partial, 'i'), (2 * lax.axis_index('i'),), (2,))"),
                "the program has 1 all-reduce, expected none",
            ),
            (
                _SHARE.format("lax.all_gather(partial, 'i').sum(axis=0).reshape(8, -1)[lax.axis_index('i')]"),
                "the program has 1 all-gather, expected none",
            ),
        ],
    ),
}

SAID = {
    ("by_hand", "reveal-shape_inside"): ["it is (2,)"],
    ("by_hand", "jit"): ["(16,) → (16,)"],
    ("by_hand", "jit-collectives"): ["all-gather f32[16]"],
    ("by_hand", "pmap"): ["holds 120.0"],
    ("by_hand", "sums"): ["120.0 120.0"],
    ("by_hand", "reduce"): ["[[56.0, 64.0], [7.0, 8.0], [14.0, 15.0]]"],
    ("by_hand", "gather"): ["(128,)", "[[0.0, 8.0], [16.0, 24.0]]"],
    ("by_hand", "permute"): ["[[14.0, 15.0], [0.0, 1.0]]"],
    ("by_hand", "swap"): ["[0.0, 8.0, 16.0, 24.0, 32.0, 40.0, 48.0, 56.0]"],
    ("by_hand", "swap-collectives"): ["all-to-all"],
    ("by_hand", "unbound"): ["NameError", "nbound axis name"],
    ("by_hand", "unchecked"): ["P()", "[1.0, 5.0]", "[25.0, 29.0]"],
    ("by_hand", "halves-collectives"): ["all-reduce f32[1024]", "reduce-scatter f32[128]", "all-gather f32[1024]"],
    ("by_hand", "inside"): ["[[0.0, 10.0], [20.0, 30.0]]"],
    ("by_hand", "varying"): ["ValueError", "out_specs"],
}
