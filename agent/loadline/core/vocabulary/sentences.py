"""Sentences of reasons: for each ``ReasonCode`` a format string over ``Reason.numbers``."""

from typing import Final

SENTENCES: Final[dict[str, str]] = {
    "prefill_queue_high": (
        "mean prefill queue {mean:.2f} exceeds {threshold:g}, and {predicted:.2f} are forecast for when a new worker "
        "can help"
    ),
    "prefill_queue_low": "mean prefill queue {mean:.2f} is below {threshold:g}",
    "kv_usage_high": "mean KV load {mean:.2f} exceeds {threshold:g}",
    "kv_usage_low": "mean KV load {mean:.2f} is below {threshold:g}",
    "decided_again": (
        "the target is decided again: a scaler requested it, its platform removes other workers, a worker must drain, "
        "the number of workers differs from the target, or etcd has lost the decision"
    ),
    "fixed_count": "the configured count is {replicas:g}",
    "kv_usage_target": "KV usage per worker is {value:.2f}, target {target:g}: {wanted:workers} needed",
    "waiting_requests_target": ("{value:.2f} requests wait per worker, target {target:g}: {wanted:workers} needed"),
    "prefill_requests_target": (
        "{value:.2f} prefills are in flight per worker, target {target:g}: {wanted:workers} needed"
    ),
    "concurrency_target": (
        "{concurrency:.2f} requests are in flight, target {target:g} per worker: {wanted:workers} needed"
    ),
    "panic": (
        "panic mode: {concurrency:.2f} requests are in flight, target {target:g} per worker; at least "
        "{allowed:workers} for {left_ms:time}"
    ),
    "flow_control_queue": (
        "{value:g} requests wait for workers that accept them, target {target:g} per worker: {wanted:workers} needed"
    ),
    "pool_saturation": "workers are saturated to {value:.2f}, target {target:g}: {wanted:workers} needed",
    "prefill_backlog": (
        "waiting prompts take {value:.2f} s of prefill, target {target:g} s per worker: {wanted:workers} needed"
    ),
    "latency_ratio": (
        "latencies are {value:.2f} of their objectives, the target is {low:g} to {high:g}: {wanted:workers} needed"
    ),
    "throughput_target": (
        "{requests_per_s:.2f} requests/s of {isl_tokens:.0f} input and {osl_tokens:.0f} output tokens occupy "
        "{busy:.2f} workers: {wanted:workers} needed, {allowed:g} in this interval"
    ),
    "traffic_surge": (
        "{requests_per_s:.2f} requests/s of {isl_tokens:.0f} input and {osl_tokens:.0f} output tokens exceed the "
        "forecast and occupy {busy:.2f} workers: {wanted:workers} needed"
    ),
    "first_worker": (
        "{wanted:g} raised to {allowed:g}: {under_way:g} requests are outstanding and no worker serves the role"
    ),
    "load_high": (
        "the load of every worker exceeds {target:.0f}, which gives {latency_ms:g} ms; the lowest is {load_min:.0f}"
    ),
    "load_low": "worker loads are at most {load_max:.0f}, below {target:.0f}: one worker fewer suffices",
    "worker_queue_high": (
        "requests have waited for {queued_ms:time} at half of the {ready:g} workers or more; {waiting:g} wait and "
        "{running:g} run"
    ),
    "throughput_minimum": "{wanted:g} raised to {allowed:g}: the forecast traffic needs it",
    "queueing_target": (
        "{requests_per_s:.2f} requests/s of {isl_tokens:.0f} input and {osl_tokens:.0f} output tokens are expected, "
        "and {backlog_requests_per_s:.2f} requests/s of backlog; the pool gets {takes:.2f} of these, one worker serves "
        "{serves:.2f}, and {busy:.2f} workers are busy: {wanted:workers} needed, {allowed:g} in this interval"
    ),
    "saturation_high": (
        "load needs {held:.2f} of {workers:workers}, above a utilisation of {threshold:g}: {wanted:workers} needed"
    ),
    "saturation_low": (
        "load needs {held:.2f} of {workers:workers} at its recent peak, below a utilisation of {threshold:g} with "
        "fewer: {wanted:workers} needed"
    ),
    "headroom_capacity": (
        "{unsaturated:g} of {workers:workers} are not saturated, with a headroom of {kv:.2f} KV usage and "
        "{waiting:.1f} waiting requests each: {wanted:workers} needed"
    ),
    "demand_target": (
        "{requests_per_s:.2f} requests/s are to be served when a worker requested now is ready; a worker serves "
        "{serves:.2f} within the objectives: {needed:.2f} workers are busy, {wanted:g} needed"
    ),
    "backlog_target": (
        "{waiting:g} requests wait for {behind:g} of {ready:workers}, and {requests_per_s:.2f} requests/s arrive: "
        "{wanted:workers} needed until the backlog is served"
    ),
    "saturated_target": (
        "the pool is full ({ready:workers}) and serves {served:.2f} of {requests_per_s:.2f} requests/s: "
        "{wanted:workers} needed"
    ),
    "occupancy_target": "the KV usage of all workers would fill {full:.2f} of them: {wanted:workers} needed",
    "shared_demand": (
        "{requests_per_s:.2f} requests/s are expected at all pools of the role, which serve {capacity:.2f} within the "
        "objectives; a worker of this one serves {serves:.2f}: {wanted:workers} needed"
    ),
    "latency_high": (
        "the mean latency of {window_ms:time} is {ratio:.2f} of its objective of {objective_ms:g} ms at {requests:.1f} "
        "requests per worker: {wanted:workers} needed"
    ),
    "latency_limit": (
        "{wanted:g} held at {allowed:g}: above {limit:.1f} requests per worker the latency exceeds its objective"
    ),
    "latency_unaffected": (
        "the latency is {ratio:.2f} of its objective of {objective_ms:g} ms at {requests:.1f} requests per worker, and "
        "fewer did not lower it enough: no scale-up"
    ),
    "saturation_within": ("load needs {held:.2f} of {workers:workers}, within the thresholds"),
    "recent_peak": (
        "{wanted:g} held at {allowed:g}: load needs {held:.2f} workers, but needed {peak:.2f} in the last "
        "{window_ms:time}; that peak is over in {left_ms:time}"
    ),
    "other_pool_first": ("load needs {held:.2f} of {workers:workers}: another pool of the role changes first"),
    "silent_workers": "{silent:g} silent workers may be full: no scale-down",
    "within_thresholds": "all signals are within their thresholds",
    "no_workers": "no worker is ready",
    "no_data": ("{fresh:g} of {ready:g} ready workers report, {known:g} of them the metrics that the planner needs"),
    "adjustment_interval": (
        "the last change was {age_ms:time} ago; the next one is possible after {interval_ms:time}, in {left_ms:time}"
    ),
    "workers_pending": "{pending:workers} pending",
    "queue_trend_falling": (
        "mean prefill queue {mean:.2f} exceeds {threshold:g}, but only {predicted:.2f} are forecast for when a new "
        "worker can help"
    ),
    "new_worker_grace": (
        "a worker was added {age_ms:time} ago; scale-down is possible {grace_ms:time} after that, in {left_ms:time}"
    ),
    "no_fixed_count": "no count is configured: the current target is kept",
    "within_tolerance": "{value:.2f} per worker is within {tolerance:g} of the target {target:g}",
    "unknown_workers": ("the load of {missing:g} silent and {starting:g} pending workers could reverse the decision"),
    "metric_missing": "{known:g} of {metrics:g} metrics are known: no scale-down to {wanted:g}",
    "profile_unusable": "the engine profile cannot be used",
    "sla_infeasible": (
        "a single request takes {best_ms:.1f} ms, above the objective of {objective_ms:g} ms: raise the objective or "
        "use faster engines"
    ),
    "kv_cache_too_small": (
        "a request holds {context_tokens:.0f} tokens on average, more than the KV cache of a worker "
        "({max_kv_tokens:g} tokens)"
    ),
    "traffic_unknown": "the traffic is unknown",
    "traffic_incomplete": "a frontend has stopped reporting: no scale-down",
    "forecast_fallback": "the forecast failed and the last value is used",
    "forecast_too_short": (
        "a mean length of {forecast_tokens:.0f} tokens is forecast; {used_tokens:.0f}, half of the shortest one of the "
        "last day, are used"
    ),
    "load_learning": "{known:g} of {needed:g} required samples of load and latency are available",
    "load_within": (
        "worker loads are between {load_min:.0f} and {load_max:.0f}; a load of {target:.0f} gives {latency_ms:g} ms"
    ),
    "consolidation_refused": "with one worker fewer, the others would exceed {latency_ms:g} ms",
    "planner_failed": "the planner failed and the current target is kept; report this with the journal",
    "peak_over": (
        "{wanted:g} held at {allowed:g}: less than half of the forecast peak has arrived for {window_ms:time}; the "
        "pools are sized again within {left_ms:time}"
    ),
    "highest_recommendation": (
        "{wanted:g} held at {allowed:g}: the highest recommendation of the last {window_ms:time}, for {left_ms:time} "
        "more"
    ),
    "lowest_recommendation": (
        "{wanted:g} held at {allowed:g}: the lowest recommendation of the last {window_ms:time}, for {left_ms:time} "
        "more"
    ),
    "scale_up_limit": "{wanted:g} limited to {allowed:g}: the largest scale-up of one sync",
    "scale_rate": ("{wanted:g} limited to {allowed:g}: the largest change of {ready:g} ready workers in one tick"),
    "scaling_policy": "{wanted:g} limited to {allowed:g}: the largest change in {period_ms:time}",
    "scale_down_margin": (
        "{wanted:g} held at {allowed:g}: a scale-down leaves a tenth of headroom; the pools are sized again within "
        "{left_ms:time}"
    ),
    "surge_adds_only": (
        "{wanted:g} held at {allowed:g}: seconds of traffic cause no scale-down; the pools are sized again within "
        "{left_ms:time}"
    ),
    "forecast_step": (
        "{wanted:g} limited to {allowed:g}: the largest change by one forecast; the pools are sized again within "
        "{left_ms:time}"
    ),
    "saturation_veto": (
        "the queueing model recommends {queueing:g} and saturation {saturation:g}: a saturated pool is not scaled down"
    ),
    "shrink_unsafe": ("the queueing model recommends {queueing:g}, but one worker fewer would saturate the others"),
    "saturation_leads": ("saturation recommends {saturation:g}, the queueing model no more than {queueing:g}"),
    "queueing_leads": "the queueing model recommends {queueing:g}, saturation {saturation:g}",
    "queueing_keeps": ("the queueing model needs all of {queueing:workers}, saturation recommends {saturation:g}"),
    "saturation_alone": ("the queueing model has no recommendation, saturation recommends {saturation:g}"),
    "queueing_alone": ("saturation has no recommendation, the queueing model recommends {queueing:g}"),
    "no_recommendation": "neither saturation nor the queueing model has a recommendation",
    "engine_learning": "no engine profile is configured, and too few iterations have been measured",
    "capacity_learning": (
        "it is not known yet what a worker serves within the objectives: no scale-down; {needed:.2f} workers are "
        "occupied"
    ),
    "unproven_load": (
        "{wanted:g} held at {allowed:g}: with {wanted:g}, a worker would serve {rate:.2f} requests/s, which is too far "
        "beyond the {proven:.2f} that have been seen within the objectives"
    ),
    "trial_pending": (
        "{wanted:g} held at {allowed:g}: with {wanted:g}, a worker would serve {rate:.2f} requests/s, of which "
        "{proven:.2f} have been seen within the objectives; it is tried if nothing changes for {left_ms:time}"
    ),
    "arrivals_rising": (
        "{wanted:g} held at {allowed:g}: the arrivals seem to rise, to {growth:.1f} times their rate within a start-up "
        "time"
    ),
    "backlog_passed_on": (
        "{wanted:g} held at {allowed:g}: prefill workers that work off a backlog pass on {passed_on_per_s:.1f} "
        "requests/s"
    ),
    "shrink_reversed": (
        "{wanted:g} held at {allowed:g}: a scale-down to {per_worker:.2f} requests/s of each worker was reversed, for "
        "{left_ms:time} more"
    ),
    "replacement_not_ready": (
        "{wanted:g} held at {allowed:g}: the ready workers of the other pools cannot carry the load"
    ),
    "shrink_stepwise": "{wanted:g} raised to {allowed:g}: a larger scale-down is not known to be safe",
    "capacity_limited": "{wanted:g} limited to {allowed:g}: models share {limit:g} GPUs",
    "quota_limited": "{wanted:g} limited to {allowed:g}: the quota of the namespace is {limit:g} GPUs",
    "gives_way": "{wanted:g} limited to {allowed:g}: GPUs are short and other models take precedence",
    "unneeded_gives_way": (
        "{wanted:g} limited to {allowed:g}: GPUs are short, and others need workers that this pool does not"
    ),
    "served_by_another_pool": ("{wanted:g} limited to {allowed:g}: GPUs are short and another pool serves the load"),
    "serves_for_another_pool": (
        "{wanted:g} raised to {allowed:g}: GPUs are short and the pool serves the load of another"
    ),
    "gpus_occupied": "{wanted:g} limited to {allowed:g}: {free:g} GPUs are free",
    "replicas_min": "{wanted:g} raised to replicas_min {allowed:g}",
    "replicas_max": "{wanted:g} limited to replicas_max {allowed:g}",
    "gpu_budget_max": ("{wanted:g} limited to {allowed:g}: {gpus:g} GPUs would exceed gpu_budget_max {budget:g}"),
    "gpu_budget_min": ("{wanted:g} raised to {allowed:g}: {gpus:g} GPUs would be below gpu_budget_min {budget:g}"),
    "gpu_budget_hold": ("{wanted:g} held at {allowed:g}: the GPU budget allows no step from {gpus:g} GPUs"),
    "gpu_budget_reconcile": (
        "{wanted:g} set to {allowed:g}: {gpus:g} GPUs are outside the GPU budget or the bounds of a pool"
    ),
    "gpu_budget_gives_way": "{wanted:g} set to {allowed:g}: another model waits for GPUs",
    "fleet_gpu_budget_max": (
        "{wanted:g} limited to {allowed:g}: {gpus:g} GPUs of all models are occupied or reserved, "
        "fleet.gpu_budget_max is {budget:g}"
    ),
    "fleet_gpu_budget_min": (
        "{wanted:g} raised to {allowed:g}: {gpus:g} GPUs of all models are occupied or reserved, "
        "fleet.gpu_budget_min is {budget:g}"
    ),
    "no_data_no_shrink": "{wanted:g} held at {allowed:g}: only {fresh:g} of {ready:g} ready workers report",
    "step_up": "{wanted:g} limited to {allowed:g}: the largest step up",
    "step_down": "{wanted:g} raised to {allowed:g}: the largest step down",
    "stabilisation": (
        "{wanted:g} held at {allowed:g}: the highest proposal of the last {window_ms:time}, for {left_ms:time} more"
    ),
    "warm_up": (
        "{wanted:g} held at {allowed:g}: data has been complete for {age_ms:time}, scale-down needs {needed_ms:time}; "
        "{left_ms:time} left"
    ),
    "cooldown": (
        "{wanted:g} held at {allowed:g}: the last change was {age_ms:time} ago, the cooldown of {cooldown_ms:time} "
        "ends in {left_ms:time}"
    ),
    "pending_unreached": "{missing:workers} requested but not ready within the deadline",
    "idle": "{wanted:g} limited to {allowed:g}: the model has had no requests for {idle_ms:time}",
    "last_worker": ("{wanted:g} raised to {allowed:g}: each role keeps a worker until the model scales to zero"),
    "schedule_minimum": ("{wanted:g} raised to {allowed:g}: the minimum of a schedule that ends in {left_ms:time}"),
    "unaccepted": "{wanted:g} held at {allowed:g}: no scaler has accepted the last scale-down",
    "drain_limit": "{wanted:g} raised to {allowed:g}: at most {drains_max:workers} of a pool may drain at once",
    "unnumbered_worker": (
        "{wanted:g} held at {allowed:g}: the platform removes the worker with the highest number, and one has none"
    ),
    "moved_worker": (
        "{wanted:g} raised to {allowed:g}: workers serve in another pool than the one that started them, and their "
        "platform cannot be told which to remove"
    ),
    "not_leader": "this agent is not the leader, or its lease is about to expire",
    "not_settled": "the registry or the decisions have not been read yet",
    "paused": "the model is paused",
    "bus_down": "NATS is unreachable",
    "decision_in_flight": "a decision is being committed",
    "decision_unfinished": "decisions.blocking: the last decision is not done; it expires in {left_ms:time}",
    "retry_backoff": "the last decision was not applied; the next attempt is in {left_ms:time}",
    "advise_only": "no_operation is set: the decision is not executed",
    "stopping": "the agent is stopping",
    "handing_over": "another agent takes over the model",
}
