"""Our losses inside other frameworks."""

from pml_ext._errors import import_library

# What needs the libraries of an extra; without them the error says what to install.
import_library("pml_ext.runner.modeling.losses.factory", needed_for=__name__, install="'pml_ext[runner]'")
