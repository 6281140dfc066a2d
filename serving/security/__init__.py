"""Who may ask what: tokens, certificates, roles, rates and the audit log. All of it before a request's body is read."""
