//! Variables of NVSHMEM, whose choice of rows is NCCL's.

use super::gid_rows::{self, Names};
use super::{Plan, Request};

const ROWS: Names = Names {
    index: "NVSHMEM_IB_GID_INDEX",
    range: "NVSHMEM_IB_ADDR_RANGE",
    family: "NVSHMEM_IB_ADDR_FAMILY",
    version: "NVSHMEM_IB_ROCE_VERSION_NUM",
};

/// Adds the variables. NVSHMEM heeds the list of devices only with `NVSHMEM_ENABLE_NIC_PE_MAPPING`,
/// and only devices whose names begin with `mlx5`, unless another prefix is set.
pub(super) fn add(plan: &mut Plan, request: &Request<'_>) {
    let names = request.interfaces().map(|names| format!("={names}"));
    plan.add(request, "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", names);
    if request.is_ipv6_only() {
        plan.add(request, "NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY", Ok("AF_INET6".to_owned()));
    }
    let devices = request.device_ports();
    let differs = request.differs("NVSHMEM_HCA_LIST", &devices);
    if devices.is_ok() {
        plan.add(request, "NVSHMEM_ENABLE_NIC_PE_MAPPING", Ok("1".to_owned()));
    }
    plan.add(request, "NVSHMEM_HCA_LIST", devices);
    if !request.devices().all(|place| place.device.starts_with("mlx5")) {
        let names: Vec<&str> = request.devices().map(|place| place.device.as_str()).collect();
        let prefix = common_prefix(&names);
        let none = || format!("the names of {} have no prefix in common", names.join(", "));
        plan.add(request, "NVSHMEM_HCA_PREFIX", prefix.map(str::to_owned).ok_or_else(none));
    }
    gid_rows::add(plan, request, &ROWS, differs);
}

/// Returns the longest beginning that all names have, if it is not empty.
fn common_prefix<'a>(names: &[&'a str]) -> Option<&'a str> {
    let (first, others) = names.split_first()?;
    let lengths = first.char_indices().map(|(at, c)| at + c.len_utf8());
    let is_common = |length: &usize| others.iter().all(|other| other.starts_with(&first[..*length]));
    lengths.take_while(is_common).last().map(|length| &first[..length])
}
