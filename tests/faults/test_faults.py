"""Faults that `make faults` plants: each fits the code of today, and a test is there for it."""

import shutil

import pytest

from tests.faults.__main__ import FOLDER, ROOT, apply, read_fault


def test_every_fault_fits_the_code_and_names_a_test(subtests):
    if shutil.which("git") is None:
        pytest.skip("needs git")
    for patch in sorted(FOLDER.glob("*.patch")):
        with subtests.test(patch.stem):
            assert apply(read_fault(patch), ROOT, "--check") is None
