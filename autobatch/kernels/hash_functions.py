"""Hash functions: XXH64 of strings, and digests of parts of an array to detect changes.

String i is data[offsets[i]:offsets[i + 1]]. The hash is XXH64 (Collet, 2014), the same on every machine. The digest of
a part is NH of Black, Halevi, Krawczyk, Krovetz and Rogaway (UMAC, 1999), twice with independent keys: whatever two
different parts hold, their digests are equal with probability at most 2⁻⁶⁴ over the choice of the keys.
"""

from numpy import uint32, uint64

from autobatch.kernels.jit import jit

_P1, _P2 = uint64(0x9E3779B185EBCA87), uint64(0xC2B2AE3D27D4EB4F)
_P3, _P4, _P5 = uint64(0x165667B19E3779F9), uint64(0x85EBCA77C2B2AE63), uint64(0x27D4EB2F165667C5)


@jit
def _rotate_left(x, by):
    return (x << uint64(by)) | (x >> uint64(64 - by))


@jit
def _load_word(data, at, count):
    """`count` bytes from `at` on as a little-endian number."""
    out = uint64(0)
    for k in range(count):
        out |= uint64(data[at + k]) << uint64(8 * k)
    return out


@jit
def _round(acc, word):
    return _rotate_left(acc + word * _P2, 31) * _P1


@jit
def _merge_round(z, acc):
    return (z ^ _round(uint64(0), acc)) * _P1 + _P4


@jit
def _hash(data, start, end, seed):
    at = start
    if end - start >= 32:
        a, b, c, d = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
        while at + 32 <= end:
            a = _round(a, _load_word(data, at, 8))
            b = _round(b, _load_word(data, at + 8, 8))
            c = _round(c, _load_word(data, at + 16, 8))
            d = _round(d, _load_word(data, at + 24, 8))
            at += 32
        z = _rotate_left(a, 1) + _rotate_left(b, 7) + _rotate_left(c, 12) + _rotate_left(d, 18)
        z = _merge_round(_merge_round(_merge_round(_merge_round(z, a), b), c), d)
    else:
        z = seed + _P5
    z += uint64(end - start)
    while at + 8 <= end:
        z = _rotate_left(z ^ _round(uint64(0), _load_word(data, at, 8)), 27) * _P1 + _P4
        at += 8
    if at + 4 <= end:
        z = _rotate_left(z ^ (_load_word(data, at, 4) * _P1), 23) * _P2 + _P3
        at += 4
    while at < end:
        z = _rotate_left(z ^ (uint64(data[at]) * _P5), 11) * _P1
        at += 1
    z = (z ^ (z >> uint64(33))) * _P2
    z = (z ^ (z >> uint64(29))) * _P3
    return z ^ (z >> uint64(32))


@jit
def hash_strings(data, offsets, seed, out):
    """out[i]: the hash of string i, uint64."""
    for i in range(out.shape[0]):
        out[i] = _hash(data, offsets[i], offsets[i + 1], seed)


@jit
def digest_units(x, keys, first, last, out):
    """out[u] = the two digests of unit u, for first <= u < last; x is (units, words) uint32, words even."""
    half = x.shape[1] // 2
    for u in range(first, last):
        a = uint64(0)
        b = uint64(0)
        for j in range(half):  # words that lie side by side meet in different products: four lanes to an instruction
            p = x[u, j]
            q = x[u, j + half]
            a += uint64(uint32(p + keys[0, j])) * uint64(uint32(q + keys[0, j + half]))
            b += uint64(uint32(p + keys[1, j])) * uint64(uint32(q + keys[1, j + half]))
        out[u, 0] = a
        out[u, 1] = b
