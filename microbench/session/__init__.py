"""A measuring session: request, plan, budget, worker processes and their messages."""
