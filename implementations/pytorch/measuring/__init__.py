"""How fast training steps are: what is timed, against what, and what the times say."""
