"""Names, notes and texts that try to be more than words."""

HOSTILE = [
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onload='alert(1)",
    "&lt;b&gt;", "</style></title></svg>", "]]>--><!--", "a | b\n| c", "\x00\x1b[31m\x7f", "\ud800",
    "\u202etxt.exe", "{{7*7}} ${x}",
]  # fmt: skip
