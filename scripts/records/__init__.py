"""The first floor: what a recorded run is, read and checked. Imports steps."""
