"""The third floor: figures, of records and of what programs of a build print. Imports the floors below."""
