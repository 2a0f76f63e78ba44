"""Checks of registered workers against the configured pools."""

from loadline.config import Config
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.doctor.deployment import Deployment
from loadline.doctor.findings import Finding, failed, first_of, ok, skipped, warning
from loadline.doctor.store_facts import StoreFacts


def worker_findings(store: StoreFacts, deployment: Deployment) -> list[Finding]:
    """Check that the pools of all workers are configured, with the same role and GPUs."""
    check = "workers"
    if store.problem:
        return [skipped(check, "etcd cannot be read", "Remedy that first.")]
    found = list[Finding]()
    if store.unusable:
        remedy = "Check the program that wrote it; SECURITY.md tells what agents accept."
        found.append(warning(check, f"agents ignore {first_of(list(store.unusable))}", remedy))
    if deployment.config is None:
        text = f"{len(store.workers)} registered; without a configuration they cannot be compared"
        return [*found, skipped(check, text, "Name the agents' file: --config FILE.")]
    found += _differences(store.workers, deployment.config)
    if found:
        return found
    if not store.workers:
        return [warning(check, "none is registered", "Start one; docs/how-to/connect-an-engine.md.")]
    return [ok(check, f"{len(store.workers)} registered in configured pools")]


def _differences(workers: tuple[WorkerRecord, ...], config: Config) -> list[Finding]:
    check, found = "workers", list[Finding]()
    pools = {(model.name, pool.name): pool for model in config.models for pool in model.pools}
    known = [(worker, pool) for worker in workers if (pool := pools.get((worker.model, worker.pool)))]
    unknown = [_place(worker) for worker in workers if (worker.model, worker.pool) not in pools]
    roles = [f"{_place(one)} ({one.role} instead of {pool.role})" for one, pool in known if one.role != pool.role]
    gpus = [
        f"{_place(one)} ({one.gpus} instead of {pool.gpus_per_worker})"
        for one, pool in known
        if one.gpus != pool.gpus_per_worker
    ]
    if unknown:
        remedy = "Add the pool to [[models.pools]], or correct the worker's --model and --pool."
        found.append(failed(check, f"no such pool: {first_of(unknown)}", remedy))
    if roles:
        found.append(failed(check, f"another role: {first_of(roles)}", "Correct the worker's --role or the pool's."))
    if gpus:
        remedy = "Set gpus_per_worker of the pool to the number that its workers register; GPU budgets count by it."
        found.append(warning(check, f"another number of GPUs: {first_of(gpus)}", remedy))
    return found


def _place(worker: WorkerRecord) -> str:
    return f"{worker.model}/{worker.pool}/{worker.worker}"
