//! Variables of NCCL (`docs/userguide/source/env.rst` of NVIDIA/nccl).

use super::gid_rows::{self, Names};
use super::{Plan, Request};
use crate::rail::NoRdma;

const ROWS: Names = Names {
    index: "NCCL_IB_GID_INDEX",
    range: "NCCL_IB_ADDR_RANGE",
    family: "NCCL_IB_ADDR_FAMILY",
    version: "NCCL_IB_ROCE_VERSION_NUM",
};

/// Adds the variables. A name after `=` is exact; without it, `mlx5_1` would mean `mlx5_10` as
/// well.
pub(super) fn add(plan: &mut Plan, request: &Request<'_>) {
    plan.add(request, "NCCL_SOCKET_IFNAME", request.interfaces().map(|names| format!("={names}")));
    if let Some(reason) = request.two_kinds() {
        let reason =
            format!("{reason}; NCCL connects devices of one kind only: choose by --network, or set it");
        return plan.add(request, "NCCL_IB_HCA", Err(reason));
    }
    let devices = request.device_ports().map(|ports| format!("={ports}"));
    let differs = request.differs("NCCL_IB_HCA", &devices);
    plan.add(
        request,
        "NCCL_IB_HCA",
        devices.map_err(|reason| format!("{reason}; {}", without_rdma(request))),
    );
    gid_rows::add(plan, request, &ROWS, differs);
}

/// Returns how NCCL goes on without the name of a device.
fn without_rdma(request: &Request<'_>) -> &'static str {
    let has_devices = request.rails.iter().any(|rail| !matches!(rail.rdma, Err(NoRdma::NoDevice)));
    match has_devices {
        false => "NCCL uses sockets",
        true => "NCCL uses any device that it can open, or sockets with NCCL_IB_DISABLE=1",
    }
}
