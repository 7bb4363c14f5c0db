"""The statements of idem's functions, without a driver.

A statement has the parameters $1, $2… in this order, each with a cast, so that every driver passes
them in the same way. JSON is passed and read as text.
"""

from .call import Rows, Statement

__all__ = ["Rows", "Statement"]
