"""The third floor: figures, of records and of what programs of a build print. Imports the floors below."""

import os

# A notebook's, for its own Python: matplotlib refuses to be imported where that is not installed.
os.environ.pop("MPLBACKEND", None)
