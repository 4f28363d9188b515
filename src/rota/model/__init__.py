"""Data only: the nouns of rota as types. Imports nothing but msgspec and itself."""
