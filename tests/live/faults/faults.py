"""Which faults there are on which place, by name: what ``scripts/soak`` draws from."""

from tests.live.faults import group_faults, network_faults, process_faults, server_faults
from tests.live.faults.fault import Draw

ANYWHERE: dict[str, Draw] = {"replica_stopped": process_faults.replica_stopped}
STANDALONE: dict[str, Draw] = {
    "killed": server_faults.killed,
    "restarted": server_faults.restarted,
    "from_old_data": server_faults.from_old_data,
    "frozen": server_faults.frozen,
    "slept": server_faults.slept,
    "paused": server_faults.paused,
    "flushed": server_faults.flushed,
    "scripts_lost": server_faults.scripts_lost,
    "evicting": server_faults.evicting,
    "evicting_few": server_faults.evicting_few,
    "full": server_faults.full,
    "clients_killed": network_faults.clients_killed,
    "output_limited": network_faults.output_limited,
    "half_open": network_faults.half_open,
    "cut_off": network_faults.cut_off,
    "deaf": network_faults.deaf,
    "dropped": network_faults.dropped,
    "slow": network_faults.slow,
    "split": network_faults.split,
    "moved": network_faults.moved,
    "password_rotated": network_faults.password_rotated,
    "replica_clock": process_faults.replica_clock,
    **ANYWHERE,
}
VALKEY_ONLY: dict[str, Draw] = {"server_clock": process_faults.server_clock}
SENTINEL: dict[str, Draw] = {
    "sentinel_failover": group_faults.sentinel_failover,
    "sentinel_master_killed": group_faults.sentinel_master_killed,
    "sentinel_master_frozen": group_faults.sentinel_master_frozen,
    "sentinels_killed": group_faults.sentinels_killed,
    "sentinel_master_flushed": group_faults.sentinel_master_flushed,
    **ANYWHERE,
}
CLUSTER: dict[str, Draw] = {
    "cluster_failover": group_faults.cluster_failover,
    "cluster_owner_killed": group_faults.cluster_owner_killed,
    "cluster_slot_moved": group_faults.cluster_slot_moved,
    "cluster_flushed": group_faults.cluster_flushed,
    **ANYWHERE,
}
