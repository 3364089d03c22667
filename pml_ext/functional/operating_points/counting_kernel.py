"""The loops that count a block's pairs in bins, written for numba, which compiles them; imported only where it is used.

A comparison makes one word of 64 cosines, a bit for each, and the set bits are read off without a branch a pair: one
pair in ten counts, and which is what a processor cannot predict. Two fifths less time than a comparison at a time.
"""

import numba
import numpy as np

_WORD, _AT_ONCE = 64, 1024
# So many bits are read off every word, whether set or not. A loop reads what a word has more: where one pair in ten
# counts, this is one word in a hundred.
_EXPECTED = 12
_PAIRS, _FOURS = np.uint64(0x3333333333333333), np.uint64(0x0F0F0F0F0F0F0F0F)
_ALTERNATE, _BYTES = np.uint64(0x5555555555555555), np.uint64(0x0101010101010101)
_ONE, _TWO, _FOUR, _LAST_BYTE = np.uint64(1), np.uint64(2), np.uint64(4), np.uint64(56)


def _count_bits(word):  # type: ignore[no-untyped-def]
    """How many bits of a word are set, by sums of ever more neighbours: compilers make one instruction of it."""
    word = word - ((word >> _ONE) & _ALTERNATE)
    word = (word & _PAIRS) + ((word >> _TWO) & _PAIRS)
    word = (word + (word >> _FOUR)) & _FOURS
    return (word * _BYTES) >> _LAST_BYTE


_bits = numba.njit(inline="always")(_count_bits)


def count_rows(  # type: ignore[no-untyped-def]
    cosines, first, bottom, scale, shift, last, log_parts, row_cells, column_cells, by_class, pooled
):
    """Add the pairs of a block at or above a cosine to counters.

    Args:
        cosines: (r, c) float32 or float64; bottom, scale, shift and last are numbers of the same type.
        first: (r,) int64, the column at which a row's pairs begin.
        bottom: the least similar cosine that counts.
        scale, shift, last: a pair's part is scale × cosine + shift, cut to a whole number from 0 to last.
        log_parts: uint32; a part's bin is its number without so many of its last bits.
        row_cells, column_cells: (r,) and (c,) int32, where in by_class the counters of each sample begin.
        by_class, pooled: int32 or int64 counters of bins and of parts.
    """
    zero = scale * 0  # of the cosines' type
    found = np.empty(_AT_ONCE + _WORD, np.uint32)  # columns of a piece of a row; what lies behind the last is not read
    for i in range(cosines.shape[0]):
        row, row_cell = cosines[i], row_cells[i]
        for start in range(first[i], row.size, _AT_ONCE):
            piece, cells = row[start : start + _AT_ONCE], column_cells[start : start + _AT_ONCE]
            count = np.uint64(0)
            words = piece.size // _WORD
            for w in range(words):
                of_word = piece[w * _WORD : (w + 1) * _WORD]
                bits = np.uint64(0)
                for j in range(_WORD):
                    bits |= np.uint64(of_word[j] >= bottom) << np.uint64(j)
                place, count = count, count + _bits(bits)
                column = np.uint32(w * _WORD)
                for _ in range(_EXPECTED):
                    found[place] = column + np.uint32(_bits(~bits & (bits - _ONE)))  # the zeros below the lowest one
                    bits &= bits - _ONE  # without the lowest one
                    place += _ONE
                while bits:
                    found[place] = column + np.uint32(_bits(~bits & (bits - _ONE)))
                    bits &= bits - _ONE
                    place += _ONE
            for j in range(words * _WORD, piece.size):
                found[count] = j
                count += np.uint64(piece[j] >= bottom)
            for k in range(count):
                column = found[k]
                part = np.uint32(min(max(piece[column] * scale + shift, zero), last))
                bin_ = np.int32(part >> log_parts)
                pooled[part] += 1
                by_class[np.uint32(row_cell + bin_)] += 1
                by_class[np.uint32(cells[column] + bin_)] += 1
