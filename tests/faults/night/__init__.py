"""Breaks something, and reads what somebody who is called at night would read: the cause must stand there."""
