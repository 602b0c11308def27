"""Negative labels: words far from every class, mined from WordNet or a user's list, encoded once and cached."""

from deltaenergy.scores.negatives.mining import MiningSettings, Negatives, mine
from deltaenergy.scores.negatives.pools import Pool, read_words, wordnet_pool

__all__ = ["MiningSettings", "Negatives", "Pool", "mine", "read_words", "wordnet_pool"]
