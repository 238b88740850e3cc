"""What the official tools let through or get wrong: one function a check, in tables by what they look at.

An error is what the rules reject, or what makes a score worth nothing. What published and accepted packages do is at
most a warning: something that a reviewer would ask about.
"""
