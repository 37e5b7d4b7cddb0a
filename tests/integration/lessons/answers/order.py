"""Answers of the lesson order."""

from tests.integration.lessons.book import Answer

_ORDER = "%%mhjax\ndef in_order(names):\n    return {}\nmhnb.teach.check('in_order', in_order)"
_KEYS = "%%mhjax\nparams_key = {}\ndata_key = {}\nmhnb.teach.check('keys_apart', params_key, data_key)"
_START = "%%mhjax\nfrom jax.experimental import multihost_utils\nstart = {}\nmhnb.teach.check('agreed_start', start)"
_KEY = "jax.random.key(0)"
_FOLDED = "jax.random.fold_in(jax.random.key(0), jax.process_index())"

ANSWERS = {
    "in_order": Answer(
        [
            (_ORDER.format("list(names)"), "depends on the hash seed of its process"),
            (_ORDER.format("sorted(names, key=hash)"), "in_order of 3 names is ["),
            (_ORDER.format("sorted(names, reverse=jax.process_index() == 1)"), "not yet · 08.1 in_order on rank 1"),
            (_ORDER.format("tuple(sorted(names))"), "(tuple, not list)"),
        ],
    ),
    "keys_apart": Answer(
        [
            (_KEYS.format(_KEY, _KEY), "data_key is the same on every rank, expected a key for each rank"),
            (_KEYS.format(_FOLDED, _FOLDED), "params_key depends on the number of this rank"),
            (_KEYS.format(_KEY, "jax.random.key(jax.process_index())"), "data_key has a seed of its own"),
            (_KEYS.format("jax.random.key(7)", _FOLDED), "params_key is not the key that the exercise names"),
            (_KEYS.format("jax.random.PRNGKey(0)", _FOLDED), "params_key is a jax.Array"),
            (_KEYS.format("0", _FOLDED), "params_key is an int, expected one key"),
        ],
    ),
    "agreed_start": Answer(
        [
            (_START.format("drawn"), "That is what rank 1 drew itself"),
            (
                _START.format("int(multihost_utils.process_allgather(np.array(drawn)).max())"),
                "Every rank needs the number that rank 0 drew",
            ),
            (_START.format("multihost_utils.process_allgather(np.array(drawn))"), "start is array([100, 107]"),
            (_START.format("drawn if jax.process_index() == 0 else None"), "start is None, expected 100"),
        ],
        setup="%%mhjax\ndrawn = 100 + 7 * jax.process_index()",
    ),
}

SAID = {
    ("order", "start"): ["guard lockstep"],
    ("order", "setup"): ["total 28.0 top 7.0"],
    ("order", "off"): ["[13.0, 22.0]"],
    ("order", "on"): ["OrderMismatch", "nothing was launched, the cluster is clean", "jit(sum)", "jit(max)", "line 2"],
    ("order", "again"): ["total 28.0 top 7.0"],
    ("order", "parity"): ["tainted"],
    ("order", "gate"): ["NotClean", "was not run"],
    ("order", "shapes"): ["OrderMismatch", "f32[4", "f32[8"],
    ("order", "reveal-two_orders"): ["it is [13.0, 22.0]"],
    ("order", "dicts"): ["ranks 0-1", "['wq', 'wk', 'wv'] ['wk', 'wq', 'wv']"],
    ("order", "seeds"): ["same key 0.", "numbers differ by rank"],
    ("order", "replay"): ["replayed In [2,4,7-8]", "left out · In [9]: tainted"],
}
