"""Methods begin with the settings of their papers, or of the authors' code where the paper leaves them open."""

from __future__ import annotations

from typing import Any

import pytest

from deltaenergy.classifiers.methods import make_method
from deltaenergy.training.recipe import Recipe
from deltaenergy.tuning.tune import recipes_of

# What is set, and how each stage departs from the common recipe.
PUBLISHED: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "coop": ({"context_length": 16}, [{}]),
    "cocoop": ({"context_length": 4, "context_init": "a photo of a"}, [{}]),
    "clip-adapter": ({"alpha": 0.2}, [{}]),
    "tip-adapter-f": (
        {"alpha": 1.0, "beta": 5.5},
        [{"lr": 0.001, "weight_decay": 0.01, "eps": 1e-4, "epochs": 20, "batch_size": 256, "optimizer": "adamw"}],
    ),
    "croft": ({"ratio": 0.2, "text_ratio": 0.5, "lambda1": 5.0, "lambda2": 1.0}, [{}]),
    "bayes-cal": ({"domain_weight": 0.01, "irm_weight": 0.5, "cosine_weight": 0.01, "sigma": 1e-5}, [{}]),
    "dplclip": ({"context_length": 16, "dropout": 0.1, "input_scale": 10.0}, [{}]),
    "locoop": ({"weight": 0.25}, [{}]),
    "gallop": ({"top_k": (5, 10, 15, 20), "dropout": 0.75}, [{"weight_decay": 0.01, "warmup_epochs": 0}]),
    "negprompt": ({"negatives": 2, "near": 0.1, "apart": 0.05}, [{"epochs": 100}, {"epochs": 10}]),
    "id-like": (
        {"outliers": 100, "crops": 256, "selected": 32, "outlier_weight": 0.3, "apart": 0.2},
        [{"lr": 0.005, "weight_decay": 0.01, "epochs": 3, "batch_size": 1, "schedule": "constant"}],
    ),
    "lsn": ({"negatives": 3, "weight": 1.0}, [{"lr": 0.001, "epochs": 50}, {"lr": 0.002, "epochs": 100}]),
    "maple": ({"tokens": 2}, [{"lr": 0.0035, "batch_size": 4, "epochs": 50}]),
    "promptsrc": (
        {"vision_tokens": 4, "text_weight": 25.0, "image_weight": 10.0, "kl_weight": 1.0, "gpa": (0.6, 0.6)},
        [{"lr": 0.0025, "batch_size": 4, "epochs": 50}],
    ),
    "plot": ({"prompts": 4, "epsilon": 0.1}, [{"epochs": 200, "batch_size": 128}]),
    "plot++": ({"prompts": 4, "tokens": 2, "epsilon": 0.1}, [{"epochs": 50}, {"epochs": 50}]),
    "task-res": ({"alpha": 0.5}, [{}]),
    "clap": ({}, [{"lr": 0.1, "weight_decay": 0.0, "epochs": 300, "batch_size": 256}]),
    "lp++": ({"rounds": 300}, [{}]),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_settings(name: str) -> None:
    settings, recipes = PUBLISHED[name]
    method = make_method(name)
    assert {key: method.params[key] for key in settings} == settings
    for expected, recipe in zip(recipes, recipes_of(method, {}), strict=True):
        assert {key: getattr(recipe, key) for key in expected} == expected
        if not expected:
            assert recipe == Recipe()


def test_the_common_recipe_is_coop_s() -> None:
    recipe = Recipe()
    assert (recipe.lr, recipe.momentum, recipe.weight_decay, recipe.batch_size) == (0.002, 0.9, 5e-4, 32)
    assert (recipe.epochs, recipe.warmup_epochs, recipe.warmup_lr, recipe.optimizer) == (30, 1, 1e-5, "sgd")


def test_ebm_is_coop_s_term_with_the_paper_s_share() -> None:
    (term,) = make_method("ebm").terms
    assert term.params == {"weight": 1.0, "p": 0.6, "loss_tau": 1.0}
