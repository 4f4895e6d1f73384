//! Variables of NCCL (`docs/userguide/source/env.rst` of NVIDIA/nccl).

use super::gid_rows::{Rows, rows};
use super::{Plan, Request};

/// Adds the variables. A name after `=` is exact; without it, `mlx5_1` would mean `mlx5_10` as
/// well.
pub(super) fn add(plan: &mut Plan, request: &Request<'_>) {
    plan.add(request, "NCCL_SOCKET_IFNAME", request.interfaces().map(|names| format!("={names}")));
    let devices = request.device_ports().map(|ports| format!("={ports}"));
    let differs = request.differs("NCCL_IB_HCA", &devices);
    plan.add(request, "NCCL_IB_HCA", devices.map_err(|reason| format!("{reason}; NCCL uses sockets")));
    let of_same_devices = |value: String| differs.clone().map_or(Ok(value), Err);
    if request.has_ipv6_rows() {
        plan.add(request, "NCCL_IB_ADDR_FAMILY", of_same_devices("AF_INET6".to_owned()));
    }
    match rows(request) {
        Rows::NotNeeded => {}
        Rows::Index(row) => plan.add(request, "NCCL_IB_GID_INDEX", of_same_devices(row.to_string())),
        Rows::Range(range) => plan.add(request, "NCCL_IB_ADDR_RANGE", of_same_devices(range.to_string())),
        Rows::Unknown(reason) => plan.add(request, "NCCL_IB_GID_INDEX", Err(reason)),
    }
}
