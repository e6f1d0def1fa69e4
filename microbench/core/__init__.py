"""The nouns that every room uses: data model, units, errors, operations and benchmark declarations."""
