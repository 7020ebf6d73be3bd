"""What a plan is called in rows of results."""

from fedbnsl.plan.plan import Plan


def short_digest(plan: Plan) -> str:
    """16 hexadecimal digits that identify a plan by all its settings, defaults included."""
    return plan.digest().hex()[:16]
