"""Train and evaluate embedding models from FastReID-style YAML files (`pml-ext train`, `pml-ext eval`)."""
