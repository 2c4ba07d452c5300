"""Every constant of the tolerance model. Units are units in the last place of the scale against which a number is
compared."""

from __future__ import annotations

# Rules that stop at the first which settles an output (tolerance.py)
SCALE_EPSILONS = 32.0
"""Units that any output may be off by: another order of summation, another erf."""
DISTANCE_RATIO = 8.0
"""The reference may be this many times as far from an engine as the two nearest of the three programs are apart."""
MOST_BY_DISTANCE = 32.0
"""The limit of ``DISTANCE_RATIO`` in ``SCALE_EPSILONS``: what is farther off is compared with float64."""
ERROR_RATIO = 16.0
"""An engine may be this many times as far from float64 as the reference is: other summation orders and other erf or exp
approximations stay below 8 over the zoo, wrong attributes are thousands off."""
MOST_BY_FLOAT64 = 16.0
"""The reference may be off by so many times ``SCALE_EPSILONS`` itself, for its error to say what an engine's may be."""
UNJUDGED_EPSILONS = 4096.0
"""The units where nothing else is known of how far float32 is off."""

# The scale of a number
MASK_GAP = 32.0
"""Numbers so many times as large as all others are mask values: they stand for what is left out."""
MASK_SHARE = 0.5
"""A share of the largest number of a dtype: numbers beyond it are mask values, too; that they are large is all they
say."""
SMALL_PART = 1 / 16
"""A row or channel has a scale of its own where its largest number is such a share of the output's."""
LEAST_SCALE = 1e-30
"""The scale of an output of zeros."""
SPREAD = 3.0
"""The largest number of an output is so many times as large as one that is usual there, or less."""
ALIKE = 2.0**-10
"""Rows that are nearer to each other, as a share of the scale, are the same, as those of equal inputs are."""
BY_CHANCE = 0.01
"""A part is of another kind than the rest where chance makes one of its size so small in fewer outputs than this share."""

# What other runs of the reference give (movements.py)
MOVEMENT_RATIO = 2.0
"""An engine may be this many times as far as the largest of the movements seen: it is one more draw from the same distribution."""
SPREAD_RATIO = 3.0
"""The root of its mean square, this many times as large as theirs."""
MOVED_RATIO = 8.0
CHOSEN = 1 / 16
"""A share of the scale. Where runs move a number by more, the program chose: items along the first axis are others as a
whole."""
UNEXPLAINED = 0.03
"""The largest share of the rows that are off which may be off by more than ``MOVED_RATIO`` times what the reference
moves there."""
STAGES = ((1, 0.0), (1, 2.0), (3, 2.0), (1, 4.0), (3, 4.0), (1, 8.0), (3, 8.0))
"""Runs, and by how many units in the last place their operators are off: more where these are not enough. In the first
only equal numbers are chosen among otherwise."""
EQUAL_STAGES = ((4, 2.0), (4, 8.0))
"""The stages where the order of equal numbers decides how many come out: these stay equal."""
FEWER_STAGES = 3
"""On a file that is known to be wrong."""
TRANSFORM_RUNS = 4
TRANSFORM_UNITS = 64.0
"""onnxruntime 1.31's STFT of 400 samples is off by about half of this, in units of the largest number of a frame."""
TRANSFORM_UNITS_PER_POINT = 2.5
"""Units per point of a transform whose length is no power of two: onnxruntime 1.31's DFT is off by 1.3 to 2.8 (12 to 16,000 points)."""
OWN_ERROR = 8.0
"""Units by which the reference has to be off itself, at least, for larger stages: long sums are, and each layer adds its own."""
MOST_LARGER = 16.0
INPUT_MOVE = 2.0**-22
"""The share of themselves by which inputs move, of a reference whose operators cannot round otherwise."""
INPUT_RUNS = 3

# Files in 16 bits
NEAR_THE_END = 2.0**-5
"""A share of the largest number of a dtype. A number that is nearer to it may be rounded beyond it."""
UNSEEN_RATIO = 4.0
"""The factor by which other inputs may be farther off than those that a precision was measured on, and than what is
allowed of these."""

# Arrays that a user gives (run --assert-outputs), and constants
RTOL, ATOL = 1e-3, 1e-7
"""The tolerances of ONNX's own test cases."""
FOLDED_RTOL = 1e-6
"""Constants that were folded by other programs."""

# Values found again by weighted sums of their numbers (verify/locating/side_by_side.py)
SKETCH_ROUNDED = 1e-5
"""A share of the sum of magnitudes. Two sums of floats that differ by more are of other numbers, not of rounded
ones."""
SKETCH_ALIKE = 2e-4
"""The same, of numbers that may be a little wrong."""
