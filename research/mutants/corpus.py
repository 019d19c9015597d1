"""All planted bugs."""

from __future__ import annotations

from research.mutants import of_attention, of_products, of_rows

MUTANTS = (*of_rows.MUTANTS, *of_products.MUTANTS, *of_attention.MUTANTS)
