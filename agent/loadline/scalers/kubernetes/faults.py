"""Sentences about calls that the API server refused: object, problem and remedy. Pure."""

from typing import Final

from loadline.adapters.kubernetes_api import NOT_FOUND, ApiFault, ObjectName

GRANT: Final = "Grant it to the scaler's login, see deploy/kubernetes/scaler."
_SERVER_ERROR: Final = 500


def explain(target: ObjectName, fault: ApiFault) -> str:
    """Return the sentence about a refused call for an object."""
    if fault.status == NOT_FOUND:
        return f"{target} is missing: {fault}. Create it, or correct object, namespace and api_version."
    if fault.forbidden:
        return f"{target}: forbidden: {fault}. {GRANT}"
    if not fault.status or fault.status >= _SERVER_ERROR:
        return f"{target}: {fault}. Check the API server and the kubeconfig."
    return f"{target}: {fault}"
