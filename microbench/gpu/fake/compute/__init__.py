"""The simulated GPU's tensor cores and ALUs: matrix products, instructions alone, and the clock that power leaves."""
