"""Negative labels: words far from every class, mined from WordNet or a user's list, encoded once and cached."""

from deltaenergy.scores.negatives.mining import Negatives, Recipe, mine
from deltaenergy.scores.negatives.pools import Pool, frequent_nouns, read_words, wordnet_pool

__all__ = ["Negatives", "Pool", "Recipe", "frequent_nouns", "mine", "read_words", "wordnet_pool"]
