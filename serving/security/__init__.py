"""Decides who is allowed to do what: tokens, certificates, roles, rates and the audit log.

All of it happens before a request's body is read.
"""
