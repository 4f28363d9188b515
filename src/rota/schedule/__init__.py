"""The one scheduling loop and what it is made of: views, filters, scorers, orders, policies, the ledger."""
