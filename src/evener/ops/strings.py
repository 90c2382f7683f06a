"""Strings, and tables that are looked up."""

from __future__ import annotations

from evener.ops.axes import like_input
from evener.ops.elementwise import unary
from evener.ops.registry import shape_rule

unary("""
AsString StaticRegexFullMatch StaticRegexReplace StringLength StringLower StringStrip
StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper
""")
shape_rule("LookupTableFind", "LookupTableFindV2")(like_input(1))
