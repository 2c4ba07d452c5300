"""A few hundred of the fuzzers' cases of texts and profiles; ``python -m tests.fuzz`` runs more."""

from __future__ import annotations

import random

from tests.fuzz import dims, page


def test_texts_of_sizes() -> None:
    for seed in range(400):
        dims.run_case(random.Random(seed))


def test_profiles() -> None:
    for seed in range(200):
        page.run_case(random.Random(seed))
