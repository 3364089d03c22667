"""`python -m pml_ext`: the pml-ext command."""

import sys

from pml_ext.cli import main

sys.exit(main())
