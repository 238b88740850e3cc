"""What the official tools let through or get wrong: one function a check, in tables by what they look at."""
