# The compiled part: src/module.cpp says what it has. Without this file type checkers would look for it in vain.
from typing import Any

def __getattr__(name: str) -> Any: ...
