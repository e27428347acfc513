"""The second floor: what takes measurements with other tools than the program. Imports records and steps."""
