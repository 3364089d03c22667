"""A stand-in for PML 3, from its documentation alone: what passes with it has the adapter's shape, it is not PML 3."""
