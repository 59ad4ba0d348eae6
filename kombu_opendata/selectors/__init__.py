"""Selectors: filters over the headers of messages, as in JMS (docs/rfcs/0005-selectors.md).

    selector = compile_selector("task LIKE 'billing.%' AND priority >= 5")
    selector.matches({"task": "billing.send", "priority": "7"})

The parser, and lark with it, is imported only when there is a text to parse.
"""

from __future__ import annotations

from ..errors import SelectorError
from .selector import Explanation, Selector, compile_expression, compile_selector

__all__ = ["Explanation", "Selector", "SelectorError", "compile_expression", "compile_selector"]
