"""How a running server or client is watched: status, metrics, a page, and the audit log."""
