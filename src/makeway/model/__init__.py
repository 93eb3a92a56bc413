"""Plain data and its arithmetic: what exists, what was asked for, what was decided and why."""
