"""What a cluster's controller-manager would do for us: Jobs, Deployments, Models, namespaces, garbage.

Deciding is pure (`reconcile(object, children, now) -> Plan`), one module per kind; `driver` watches, calls
them, and has the plans carried out.
"""

from makeway.embedded.controllers.driver import Controllers, run_controllers, run_models

__all__ = ["Controllers", "run_controllers", "run_models"]
